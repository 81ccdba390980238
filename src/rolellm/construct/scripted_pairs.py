"""Question and answer pairs by rules, out of a prompt of Context-Instruct: for demos and tests, and no language model.

The pairs quote their segment, in the role's first person. One in twelve is spoiled on purpose, each time in another
way, so that every filter has something to do.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from rolellm.construct.context_instruct.prompts import focuses
from rolellm.construct.context_instruct.segments import SegmentKind
from rolellm.construct.context_instruct.words import STOP_WORDS
from rolellm.llm.model import Request
from rolellm.prompts.template import load_template
from rolellm.records import Language
from rolellm.text import chinese_words, fold

_SLOT: Final = re.compile(r"\\\{([a-z_]+)\\\}")
_SENTENCE: Final = re.compile(r"[^.!?。！？]+[.!?。！？]*")
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
    order = [free[key] for key in sorted(free.keys() - asked, key=_draw)]
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


def _draw(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def _of_profile(role: str, description: str, language: Language) -> Iterator[_Pair]:
    plain, _, tail = _CATCHPHRASES.sub("\0", description, count=1).partition("\0")
    phrases = _QUOTED.findall(tail)
    for sentence in _SENTENCE.findall(_QUOTED.sub(r"\1", plain)):
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
    return phrases[int(_draw(key), 16) % len(phrases)] if phrases else ""


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
        for sentence in _SENTENCE.findall(_line(text, language).text):
            yield from _told(role, _Line("", sentence.strip()), language)


def _line(text: str, language: Language) -> _Line:
    if text[:1] in "(（" and text[-1:] in ")）":
        return _Line("", text[1:-1])
    speaker, colon, said = text.partition("：" if language == "zh" else ": ")
    return _Line(speaker, said) if colon and len(speaker) <= 40 else _Line("", text)


def _cut(text: str, language: Language) -> str:
    """The first sentence, as far as a quotation should be long, without the sign at its end."""
    first = (_SENTENCE.match(text) or re.match("", text)).group()  # type: ignore[union-attr]
    if language == "zh":
        return first[: _LONGEST * 3].rstrip("。！？，；… ")
    return " ".join(first.split()[:_LONGEST]).rstrip(".!?,; ")


def _some(text: str, language: Language) -> str:
    """The sentences that an answer has room for."""
    limit = 90 if language == "zh" else 60
    kept = ""
    for sentence in _SENTENCE.findall(text):
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
    number = int(_draw(pair.question)[:8], 16)
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
