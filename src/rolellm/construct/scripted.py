"""Answers by rules to the prompts of all three stages: for demos, notebooks and tests, offline and the same each time.

It is no language model and knows nothing: it quotes what is in the prompt. What it makes shows that the stages work
together; it shows nothing about how good a real model's data would be.

::

    with Client(folder, [scripted_model()]) as client:
        ...
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import pairwise
from typing import Any, Final

from rolellm.construct.context_instruct.grounding import STOP_WORDS
from rolellm.construct.context_instruct.prompts import focuses
from rolellm.construct.context_instruct.segments import SegmentKind
from rolellm.core.fingerprint import hash_json
from rolellm.core.records import Language
from rolellm.core.text import HAN, chinese_words, fold
from rolellm.llm.model import Price, Request
from rolellm.llm.scripted import ScriptedModel
from rolellm.llm.tokens import TokenCounter
from rolellm.prompts.render import load_template

# --- Pairs for prompts of Context-Instruct


_SLOT: Final = re.compile(r"\\\{([a-z_]+)\\\}")
_SCRIPTED_PAIRS_SENTENCE: Final = re.compile(r"[^.!?。！？]+[.!?。！？]*")
_QUOTED: Final = re.compile(r"[\"“]([^\"“”]+)[\"”]")
_CATCHPHRASES: Final = re.compile(r"Your catchphrases? (?:is|are):|你的口头禅是：")
_ONE_IN: Final = 12
_WITHOUT_NAME: Final = 10
_LONGEST: Final = 12


@dataclass(frozen=True, slots=True)
class _Pair:
    """A pair; `sure` where its segment says so in as many words."""

    question: str
    answer: str
    sure: bool = True


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of a segment; without a speaker it is told."""

    speaker: str
    text: str


def scripted_pairs(request: Request) -> str:
    """The reply to a prompt of Context-Instruct, as JSON; the same for the same prompt.

    It brings fewer pairs than asked for once the segment holds no more that were not asked before.

    Raises:
        ValueError: For any other prompt.
    """
    language, kind, task = _read(request.messages[-1].content)
    role, segment, count = task["role"], task.get("segment"), int(task["count"])
    if segment is None:
        made = list(_of_profile(role, task["description"], language))
    else:
        made = list((_of_lore if kind == "lore" else _of_lines)(role, segment, language))
    asked = {fold(line.removeprefix("- ")) for line in task.get("asked", "").splitlines()}
    free = {fold(pair.question): pair for pair in made}
    order = [free[key] for key in sorted(free.keys() - asked, key=_scripted_pairs_draw)]
    # Requests of one round differ in their focus; each starts elsewhere, so that they bring different pairs.
    turn = focuses(language, kind).index(task["focus"]) + request.repeat
    start = turn * count % max(len(order), 1)
    chosen = (order[start:] + order[:start])[:count]
    return json.dumps({"pairs": [_spoiled(pair, role, language) for pair in chosen]}, ensure_ascii=False)


def _read(prompt: str) -> tuple[Language, SegmentKind, Mapping[str, str]]:
    for language, kind, asked in _forms():
        found = _pattern(language, kind, asked).fullmatch(prompt)
        if found is not None:
            return language, kind, found.groupdict()
    raise ValueError(f"not a prompt of Context-Instruct: {prompt[:80]!r}")


def _forms() -> Iterator[tuple[Language, SegmentKind, bool]]:
    languages: tuple[Language, ...] = ("en", "zh")
    # The profile's form would take a script's prompt as well.
    return (
        (language, kind, asked)
        for language in languages
        for kind in ("script", "lore", "profile")
        for asked in (True, False)
    )


@functools.cache
def _pattern(language: Language, kind: str, asked: bool) -> re.Pattern[str]:
    """The prompt's template, read backwards."""
    parts = [f"instruct_{kind}", "instruct_round", *(["instruct_asked"] if asked else [])]
    material, last, *more = (load_template(language, part).text for part in parts)
    form = re.escape("\n".join([f"{material}\n\n{last}", *more]))
    seen: set[str] = set()

    def group(slot: re.Match[str]) -> str:
        name = slot.group(1)
        if name in seen:
            return f"(?P={name})"
        seen.add(name)
        return f"(?P<{name}>.*?)"

    return re.compile(_SLOT.sub(group, form), re.DOTALL)


def _scripted_pairs_draw(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def _of_profile(role: str, description: str, language: Language) -> Iterator[_Pair]:
    plain, _, tail = _CATCHPHRASES.sub("\0", description, count=1).partition("\0")
    phrases = _QUOTED.findall(tail)
    for sentence in _SCRIPTED_PAIRS_SENTENCE.findall(_QUOTED.sub(r"\1", plain)):
        whole = _own(sentence.strip(" .!?。！？"), language)
        if len(whole) < 4:
            continue
        end = _phrase(phrases, whole)
        for word in _content(sentence, language):
            if language == "zh":
                yield _Pair(f"{role}，提起“{word}”，你想到什么？", f"{word}？{whole}。{end}")
                yield _Pair(f"{role}，你怎么看“{word}”这两个字？", f"说到{word}，{whole}。", sure=False)
                continue
            question = f'{role}, what comes to your mind at the word "{word}"?'
            yield _Pair(question, f"{word.capitalize()}? {whole}. {end}".strip())
            question = f'{role}, why would anyone speak of "{word}" to you?'
            yield _Pair(question, f"Because {whole}, that is why!", sure=False)
    for phrase in phrases:
        if language == "zh":
            yield _Pair(f"{role}，你什么时候会说“{phrase.strip('。！？')}”？", f"我想说便说！{phrase}")
        else:
            yield _Pair(f'{role}, when do you say "{phrase.strip(".!?")}"?', f"I say it whenever I please. {phrase}")


def _phrase(phrases: list[str], key: str) -> str:
    return phrases[int(_scripted_pairs_draw(key), 16) % len(phrases)] if phrases else ""


def _own(text: str, language: Language) -> str:
    """What was said to the role, said by the role."""
    if language == "zh":
        return text.replace("您", "我").replace("你", "我")
    for pattern, own in (
        (r"\byou are\b", "I am"),
        (r"\byou were\b", "I was"),
        (r"\byourself\b", "myself"),
        (r"\byours\b", "mine"),
        (r"\byour\b", "my"),
        (r"\byou(?=\s*(?:[,.;:!?]|$))", "me"),
        (r"\byou\b", "I"),
    ):
        text = re.sub(pattern, own, text, flags=re.IGNORECASE)
    return text[:1].upper() + text[1:]


def _content(text: str, language: Language) -> list[str]:
    if language == "zh":
        words = [word for word in chinese_words()(text) if len(word) >= 2]
    else:
        words = [word for word in re.findall(r"\b[a-z]{4,}\b", text) if word not in ("your", "yourself")]
    return [word for word in dict.fromkeys(words) if word not in STOP_WORDS[language]]


def _of_lines(role: str, segment: str, language: Language) -> Iterator[_Pair]:
    lines = [_line(text, language) for text in segment.splitlines() if text.strip(" *")]
    for before, line in pairwise(lines):
        own, other = line.speaker == role, before.speaker and before.speaker != role
        if own and other:
            yield from _answered(role, before, line, language)
        elif before.speaker == role and line.speaker and line.speaker != role:
            yield from _heard(role, before, line, language)
        elif own and not before.speaker:
            yield from _seen(role, before, line, language)
        elif other and not own:
            yield from _told(role, before, language)
    for line in lines:
        if not any(item.speaker for item in lines):
            yield from _told(role, line, language)


def _of_lore(role: str, segment: str, language: Language) -> Iterator[_Pair]:
    for text in segment.splitlines():
        # An entry's name stands where a script's line has its speaker.
        for sentence in _SCRIPTED_PAIRS_SENTENCE.findall(_line(text, language).text):
            yield from _told(role, _Line("", sentence.strip()), language)


def _line(text: str, language: Language) -> _Line:
    if text[:1] in "(（" and text[-1:] in ")）":
        return _Line("", text[1:-1])
    speaker, colon, said = text.partition("：" if language == "zh" else ": ")
    return _Line(speaker, said) if colon and len(speaker) <= 40 else _Line("", text)


def _cut(text: str, language: Language) -> str:
    """The first sentence, as far as a quotation should be long, without the sign at its end."""
    first = (_SCRIPTED_PAIRS_SENTENCE.match(text) or re.match("", text)).group()  # type: ignore[union-attr]
    if language == "zh":
        return first[: _LONGEST * 3].rstrip("。！？，；… ")
    return " ".join(first.split()[:_LONGEST]).rstrip(".!?,; ")


def _some(text: str, language: Language) -> str:
    """The sentences that an answer has room for."""
    limit = 90 if language == "zh" else 60
    kept = ""
    for sentence in _SCRIPTED_PAIRS_SENTENCE.findall(text):
        if kept and (len(kept + sentence) if language == "zh" else len((kept + sentence).split())) > limit:
            break
        kept += sentence
    kept = kept.strip()
    return kept if kept[-1:] in ".!?。！？…" else kept.rstrip(",;，；:：-— ") + ("。" if language == "zh" else ".")


def _answered(role: str, before: _Line, line: _Line, language: Language) -> Iterator[_Pair]:
    said, answer = _cut(before.text, language), _some(line.text, language)
    if language == "zh":
        yield _Pair(f"{role}，{before.speaker}说“{said}”，你是怎么回答的？", f"我当时答道：{answer}")
        yield _Pair(f"{role}，是谁对你说“{said}”？", f"是{before.speaker}说的，我记得清楚。")
        return
    yield _Pair(f'{role}, what did you answer when {before.speaker} said "{said}"?', f"I answered: {answer}")
    yield _Pair(f'{role}, who said to you "{said}"?', f"That was {before.speaker}, and I have not forgotten it.")


def _heard(role: str, before: _Line, line: _Line, language: Language) -> Iterator[_Pair]:
    said, answer = _cut(before.text, language), _some(line.text, language)
    if language == "zh":
        yield _Pair(f"{role}，你说了“{said}”之后，{line.speaker}说了什么？", f"{line.speaker}对我说：{answer}")
        yield _Pair(f"{role}，你对{line.speaker}说过什么？", f"我说：{_some(before.text, language)}", sure=False)
        return
    yield _Pair(f'{role}, what did {line.speaker} say after your "{said}"?', f"To me? This: {answer}")
    yield _Pair(f"{role}, what did you say to {line.speaker}?", f"I said: {_some(before.text, language)}", sure=False)


def _seen(role: str, before: _Line, line: _Line, language: Language) -> Iterator[_Pair]:
    said, told = _cut(line.text, language), _some(before.text, language)
    if language == "zh":
        yield _Pair(f"{role}，你说“{said}”的时候，眼前是什么情形？", f"我亲眼见的：{told}")
        return
    yield _Pair(f'{role}, what was to be seen when you said "{said}"?', f"I saw it with my own eyes: {told}")


def _told(role: str, line: _Line, language: Language) -> Iterator[_Pair]:
    words = _content(line.text, language)[:3]
    told = _some(line.text, language)
    if words and language == "zh":
        yield _Pair(f"{role}，{'、'.join(words)}，你知道多少？", f"我知道的是：{told}")
    elif words:
        yield _Pair(f"{role}, what do you know of {' and '.join(words)}?", f"I know this much: {told}")


def _spoiled(pair: _Pair, role: str, language: Language) -> dict[str, Any]:
    """The pair as JSON; every twelfth, by the hash of its question, with something wrong."""
    number = int(_scripted_pairs_draw(pair.question)[:8], 16)
    high, medium, low = ("高", "中", "低") if language == "zh" else ("high", "medium", "low")
    reason = "照材料写的。" if language == "zh" else "It stands in the material."
    question, answer = pair.question, pair.answer
    address = f"{role}，" if language == "zh" else f"{role}, "
    plain = question.removeprefix(address)
    if number % _WITHOUT_NAME == 1:
        question = plain[:1].upper() + plain[1:]
    levels = [high, high if pair.sure else medium]
    if number % _ONE_IN == 0:
        spoil = number // _ONE_IN % 5
        if spoil == 0:
            levels[0] = low
        elif spoil == 1:
            question = f"根据剧本，{plain}" if language == "zh" else f"According to the script, {plain}"
        elif spoil == 2:
            answer = "我是一个语言模型。" if language == "zh" else "As an AI language model, I was not there."
        elif spoil == 3:
            answer += "诸葛瑾数过，共有九百七十三个。" if language == "zh" else " Old Zebulon counted 973 of them."
        else:
            answer = ""
    return {
        "question": question,
        "answer": answer.strip(),
        "completeness": {"level": levels[0], "reason": reason},
        "factualness": {"level": levels[1], "reason": reason},
    }


# --- Descriptions and catchphrases for prompts of a profile


_BLOCK: Final = re.compile(r"^<<<\n(.*?)\n>>>$", re.DOTALL | re.MULTILINE)
_NUMBERED: Final = re.compile(r"^(\d+)\. (.+?) ?[(（]\D*(\d+)\D+(\d+)\D*[)）]$", re.MULTILINE)
_SCRIPTED_PROFILE_SENTENCE: Final = re.compile(r"[^.!?…。！？]+[.!?…。！？]+")
_QUOTATION: Final = re.compile(r"(“[^”]*”)")
#: Mean words (in Chinese, characters) of a sentence below which someone is said to be short of speech.
_SHORT: Final = {"en": 7, "zh": 12}
_SECOND: Final[dict[Language, tuple[tuple[str, str], ...]]] = {
    "en": (
        (r"\bTheir\b", "Your"),
        (r"\btheir\b", "your"),
        (r"\bthem\b", "you"),
        (r"\bThey\b", "You"),
        (r"\bthey\b", "you"),
    ),
    "zh": ((r"[他她]", "你"),),
}
_STRANGE: Final = frozenset({"you", "your", "me", "my", "mine", "myself", "i"})


def scripted_profile(request: Request) -> str:
    """The reply to a request with a tag ``profile/…``.

    Raises:
        ValueError: For a tag that the stage does not have.
    """
    what = request.tag.split("/")[1]
    language: Language = "zh" if len(HAN.findall(request.messages[0].content)) > 20 else "en"
    asked = request.messages[-1].content
    answer = _ANSWERS.get(what)
    if answer is None:
        raise ValueError(f"making a profile asks {', '.join(_ANSWERS)}; the tag is {request.tag!r}")
    return answer(asked, language)


def _third(asked: str, language: Language) -> str:
    head = asked.splitlines()
    role, names = _after_colon(head[0]), re.split(r", |、", _after_colon(head[1]))
    blocks = _BLOCK.findall(asked)
    lines = [line.partition("：" if language == "zh" else ": ") for line in (blocks[-1] if blocks else "").splitlines()]
    own = [said for speaker, colon, said in lines if colon and speaker == role]
    others = Counter(speaker for speaker, colon, _ in lines if colon and speaker != role and speaker[:1] not in "(（")
    fits = _without(names, language)
    sentences = [item.strip() for said in own for item in _SCRIPTED_PROFILE_SENTENCE.findall(said)]
    quoted = [item for item in sentences if fits(item) and 8 < len(item) < 120 and not re.search(r"[\"“”]", item)][:2]
    people = [name for name, _ in others.most_common(4) if fits(name)]
    text = " ".join(own)
    topics = [word for word in _topics(text, language) if fits(word)][:4]
    return _TOLD[language](
        _mean(sentences, language) < _SHORT[language], "!" in text or "！" in text, people, quoted, topics
    )


def _told_english(short: bool, loud: bool, people: Sequence[str], quoted: Sequence[str], topics: Sequence[str]) -> str:
    told = [
        f"A person of {'short' if short else 'long'} sentences and {'a loud' if loud else 'an even'} voice, "
        "with a mind of their own."
    ]
    if people:
        told.append(f"They speak most with {_and(people, ' and ', ', ')}, and seldom let others have the last word.")
    if topics:
        told.append(f"They come back again and again to {_and(topics, ' and ', ', ')}.")
    told += [f"They say: “{line}”" for line in quoted]
    return " ".join(told)


def _told_chinese(short: bool, loud: bool, people: Sequence[str], quoted: Sequence[str], topics: Sequence[str]) -> str:
    told = [f"一位说话{'短促' if short else '从容'}、嗓门{'洪亮' if loud else '平和'}、凡事自有主张的人。"]
    if people:
        told.append(f"他最常同{_and(people, '和', '、')}说话，少有让人占了上风的时候。")
    if topics:
        told.append(f"他三句不离{_and(topics, '和', '、')}。")
    told += [f"他说：“{line}”" for line in quoted]
    return "".join(told)


_TOLD: Final[dict[Language, Callable[[bool, bool, Sequence[str], Sequence[str], Sequence[str]], str]]] = {
    "en": _told_english,
    "zh": _told_chinese,
}


def _second(asked: str, language: Language) -> str:
    portrait = _BLOCK.findall(asked)[-1]
    # What is quoted stays as it was said.
    parts = _QUOTATION.split(portrait)
    for place in range(0, len(parts), 2):
        for pattern, own in _SECOND[language]:
            parts[place] = re.sub(pattern, own, parts[place])
    if portrait.startswith(("A ", "An ")):
        parts[0] = f"You are {parts[0][:1].lower()}{parts[0][1:]}"
    elif portrait.startswith("一"):
        parts[0] = f"你是{parts[0]}"
    return "".join(parts)


def _catchphrases(asked: str, _: Language) -> str:
    found = [(int(number), text, int(own), int(others)) for number, text, own, others in _NUMBERED.findall(asked)]
    most = int(re.findall(r"\d+", asked)[-1])
    exclaimed = [item for item in found if item[1][-1] in "!！" and item[3] == 0 and len(item[1]) >= 5]
    exclaimed.sort(key=lambda item: (-item[2], len(item[1]), item[0]))
    return json.dumps({"chosen": [number for number, *_ in exclaimed[:most]]})


def _knowledge(_: str, language: Language) -> str:
    if language == "zh":
        return "不知道。这些回答出自几条规则，不是语言模型；除题面所写，一概不知。"
    return "Not known. Rules write this, and no language model; they know nothing but what stands in their prompt."


def _after_colon(line: str) -> str:
    return re.split(r"[:：]\s*", line, maxsplit=1)[1]


def _without(names: Sequence[str], language: Language) -> Callable[[str], bool]:
    """Whether a text has no part of these names."""
    if language == "zh":
        return lambda text: not any(name in text or name[-2:] in text for name in names if name)
    parts = {part for name in names for part in re.findall(r"\w+", name.casefold()) if len(part) > 2}
    return lambda text: not parts & set(re.findall(r"\w+", text.casefold()))


def _topics(text: str, language: Language) -> list[str]:
    if language == "zh":
        words = [word for word in chinese_words()(text) if len(word) > 1]
    else:
        words = [word for word in re.findall(r"\b[a-z]{4,}\b", text) if word not in _STRANGE]
    return [word for word, _ in Counter(word for word in words if word not in STOP_WORDS[language]).most_common(8)]


def _mean(sentences: Sequence[str], language: Language) -> float:
    lengths = [len(item) if language == "zh" else len(item.split()) for item in sentences]
    return sum(lengths) / len(lengths) if lengths else 0.0


def _and(items: Sequence[str], last: str, between: str) -> str:
    return last.join([*([between.join(items[:-1])] if items[:-1] else []), items[-1]])


_ANSWERS: Final[dict[str, Callable[[str, Language], str]]] = {
    "third": _third,
    "second": _second,
    "catchphrases": _catchphrases,
    "knowledge": _knowledge,
}


# --- Replies for all three stages


_SENTENCE: Final = re.compile(r"[^.!?…。！？]+[.!?…。！？]+[\"'”’」』）)]*")
_FILES: Final = ("scripted.py", "context_instruct/grounding.py")


def scripted_model(*, concurrency: int = 8, price: Price | None = None) -> ScriptedModel:
    """The model that answers so; in settings files the rules ``quotes``.

    Args:
        concurrency: How many calls it takes at once.
        price: What to pretend that its tokens cost.
    """
    return ScriptedModel(
        scripted_answers,
        name="quotes",
        rules_hash=scripted_hash(),
        concurrency=concurrency,
        price=price,
        count=TokenCounter().count,
    )


def scripted_hash() -> str:
    """SHA-256 over the rules' source: other rules do not find the replies of these."""
    folder = resources.files("rolellm.construct")
    return hash_json([folder.joinpath(name).read_text(encoding="utf-8") for name in _FILES])


def scripted_answers(request: Request) -> str:
    """The reply to a request of a stage, told by its tag: ``instruct/…``, ``profile/…`` or ``respond/…``.

    Raises:
        ValueError: For any other request.
    """
    stage = request.tag.partition("/")[0]
    if stage == "instruct":
        return scripted_pairs(request)
    if stage == "profile":
        return scripted_profile(request)
    if stage == "respond":
        return _reply(request)
    raise ValueError(f"these rules answer the stages of making a role; the tag {request.tag!r} is of none of them")


def _draw(text: str, among: int) -> int:
    return int(hashlib.sha256(text.encode("utf-8", "replace")).hexdigest(), 16) % among


def _reply(request: Request) -> str:
    """A sentence about the question's words, and one of the role's own lines out of the prompt."""
    question = request.messages[-1].content
    role = request.tag.partition("/")[2].rpartition("/")[0]
    chinese = len(HAN.findall(question)) * 4 > len(question)
    lines = [message.content for message in request.messages if message.role == "assistant"]
    marks = tuple(f"{role}{colon}" for colon in (":", "："))
    for text in question.splitlines():
        if text.startswith(marks):
            lines.append(text[len(role) + 1 :].strip())
    if lines:
        # Demonstrations as text stand before the question, which then ends the turn.
        question = question.rsplit("\n\n", 1)[-1]
    described = request.messages[0].content
    sentences = [item.strip() for line in lines for item in _SENTENCE.findall(line)]
    sentences += re.findall(r"[\"“]([^\"“”]+[.!?。！？])[\"”]", described)
    own = sentences or ["那是自然。" if chinese else "So it is."]
    pick = _draw(f"{question}/{request.repeat}", len(own))
    words = _words_of(question, chinese)
    if chinese:
        return f"说到{'、'.join(words)}，{own[pick]}" if words else own[pick]
    return f"{' and '.join(words).capitalize()}? {own[pick]}" if words else own[pick]


def _words_of(question: str, chinese: bool) -> list[str]:
    """The longest words of a question, in their order, three at most."""
    language: Language = "zh" if chinese else "en"
    cut = chinese_words()(question) if chinese else re.findall(r"[a-z]{4,}", question.casefold())
    words = [word for word in dict.fromkeys(cut) if word not in STOP_WORDS[language] and len(word) > 1]
    longest = sorted(words, key=lambda word: -len(word))[:3]
    return [word for word in words if word in longest]
