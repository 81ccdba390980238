"""Descriptions and catchphrases by rules, out of the prompts of making a profile: for demos and tests, and no model.

A description tells how the role talks, with whom and of what, as far as that can be counted in the excerpts.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from rolellm.construct.context_instruct.words import STOP_WORDS
from rolellm.llm.model import Request
from rolellm.records import Language
from rolellm.text import HAN, chinese_words

_BLOCK: Final = re.compile(r"^<<<\n(.*?)\n>>>$", re.DOTALL | re.MULTILINE)
_NUMBERED: Final = re.compile(r"^(\d+)\. (.+?) ?[(（]\D*(\d+)\D+(\d+)\D*[)）]$", re.MULTILINE)
_SENTENCE: Final = re.compile(r"[^.!?…。！？]+[.!?…。！？]+")
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
    sentences = [item.strip() for said in own for item in _SENTENCE.findall(said)]
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
