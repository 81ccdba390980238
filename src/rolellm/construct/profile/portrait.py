"""What a description has to be like: checks of the third-person portrait, and of the same in the second person.

The paper (arXiv 2310.00746) has it written in the third person without the name, then turned into the second. What is
checked of it, and how, is our choice: patterns, which look past what stands in quotation marks.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, Literal

from rolellm.construct.clean import broken_rules
from rolellm.construct.profile.naming import Names
from rolellm.construct.scripts.detect import detect_language
from rolellm.llm.model import Accept, Reply, Request, UnacceptableError
from rolellm.records import Language
from rolellm.text import chinese_words

Person = Literal["third", "second"]

#: The shortest and the longest description that is taken: words in English, characters in Chinese. The release's are of
#: 30 to 177 words, and 80 to 160 are asked for.
LENGTHS: Final = {"en": (15, 400), "zh": (25, 800)}
#: The longest in bytes, so that the request that it goes into has a bound.
MOST_BYTES: Final = 4000

_THOUGHTS: Final = "</think>"
_QUOTED: Final = re.compile(
    r"“[^“”]{0,400}”|\"[^\"]{0,400}\"|「[^「」]{0,400}」|『[^『』]{0,400}』|‘[^‘’]{0,400}’(?!\w)"
    r"|(?<![^\W_])'[^'\n]{1,400}'(?![^\W_])"
)
_HEADED: Final = re.compile(
    r"\A\W{0,3}(?:(?:sure|certainly|of course|absolutely|okay)\b|here(?:'s| is| are)\b|portrait\b|description\b"
    r"|(?:好的|当然|以下|下面|小传|人物小传)[^。]{0,20}[，,：:！!\n])",
    re.IGNORECASE,
)
_MARKED_UP: Final = re.compile(r"^\s*(?:#{1,6}\s|[-*•]\s|\d+[.)、]\s)|\*\*|```|^\s*<<<|>>>\s*$", re.MULTILINE)
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])")
_I: Final = re.compile(
    r"\bI(?:['’](?:m|ve|ll|d)\b| (?:am|was|have|had|will|would|can|cannot|can't|could|do|don't|did|must|shall|should"
    r"|know|see|need|think|believe|understand|apologi[sz]e)\b)|\b(?:my|myself)\b"
)
_YOU: Final = re.compile(r"\b(?:you|your|yours|yourself|you['’](?:re|ve|ll|d))\b", re.IGNORECASE)
_YOU_ZH: Final = frozenset({"你", "您", "你们", "您们"})
_I_ZH: Final = frozenset({"我", "我们", "咱", "咱们", "俺"})
_OPENS_AS_THIRD: Final = re.compile(r"\A\W{0,3}(?:(?:she|he|they|it)\b|[他她它])", re.IGNORECASE)


def accept_portrait(person: Person, names: Names, language: Language) -> Accept[str]:
    """The `accept` that takes a description, as one paragraph.

    Args:
        person: ``third``: nobody is addressed, and nobody speaks of itself. ``second``: the role is addressed from the
            beginning, and in half of the sentences.
        names: None of them may be in it.
        language: Of the reply.

    Returns:
        A function that raises `UnacceptableError` with a reason in words.
    """

    def accept(_: Request, reply: Reply) -> str:
        text = plain_reply(reply.text)
        problem = problem_of(text, person, names, language)
        if problem is not None:
            raise UnacceptableError(problem)
        return text if language == "en" else re.sub(r"(?<=[。！？；，、：”]) +", "", text)

    return accept


def plain_reply(text: str) -> str:
    """A reply without the thoughts before it and the quotation marks around it, on one line where it is prose."""
    text = text.rpartition(_THOUGHTS)[2].strip()
    for opening, closing in ('""', "“”"):
        inner = text[1:-1]
        if text.startswith(opening) and text.endswith(closing) and opening not in inner and closing not in inner:
            text = inner.strip()
    return text if _MARKED_UP.search(text) else " ".join(text.split())


def problem_of(text: str, person: Person, names: Names, language: Language) -> str | None:
    """What is wrong with a description, in words; ``None`` where nothing is."""
    bare = _QUOTED.sub(" ", text)
    checks: tuple[Callable[[], str | None], ...] = (
        lambda: _form(text, language),
        lambda: _broken(text, bare, language),
        lambda: _named(text, names),
        lambda: _third(bare, language) if person == "third" else _second(bare, language),
    )
    return next((problem for check in checks if (problem := check()) is not None), None)


def _form(text: str, language: Language) -> str | None:
    if not text:
        return "is empty"
    if detect_language(text) != language:
        return "is in another language"
    least, most = LENGTHS[language]
    size = len(text.split()) if language == "en" else sum(not character.isspace() for character in text)
    if size < least:
        return "is too short"
    if size > most or len(text.encode("utf-8", errors="replace")) > MOST_BYTES:
        return "is too long"
    if _HEADED.search(text):
        return "opens with something else than the description"
    return "is no plain paragraph" if _MARKED_UP.search(text) else None


def _broken(text: str, bare: str, language: Language) -> str | None:
    # A role may be a machine; that the reply speaks as one shows in the person.
    if any(breach.rule == "complete" for breach in broken_rules(text, language)):
        return "is not complete"
    for breach in broken_rules(bare, language, machine=True):
        if breach.rule != "complete":
            return breach.reason
    return None


def _named(text: str, names: Names) -> str | None:
    return "names the role" if names.find(text) else None


def _third(bare: str, language: Language) -> str | None:
    if _count(bare, language, you=True):
        return "addresses someone, and should be in the third person"
    return "speaks of itself, and should be in the third person" if _count(bare, language, you=False) else None


def _second(bare: str, language: Language) -> str | None:
    sentences = [sentence for sentence in _SENTENCE_END.split(bare) if any(map(str.isalnum, sentence))]
    addressed = [_count(sentence, language, you=True) > 0 for sentence in sentences]
    if _OPENS_AS_THIRD.search(bare) or not any(addressed[:1]):
        return "does not address the role from the beginning"
    if 2 * sum(addressed) < len(addressed):
        return "addresses the role in less than half of its sentences"
    return "speaks of itself, and should address the role" if _count(bare, language, you=False) else None


def _count(text: str, language: Language, *, you: bool) -> int:
    if language == "en":
        return sum(1 for _ in (_YOU if you else _I).finditer(text))
    wanted = _YOU_ZH if you else _I_ZH
    # By words, as 自我 and 你死我活 speak of nobody.
    return sum(word in wanted for word in chinese_words()(text))
