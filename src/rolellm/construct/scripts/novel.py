"""Novels: quotations are speech; who speaks is read where a name and a verb of saying are next to a quotation.

By default that is the only rule, in both languages: it names few speakers, and hardly ever a wrong one. The rest is
left to a language model (`rolellm.construct.attribution`), or guessed where that is asked for (`guesses`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rolellm.construct.scripts.guesses import guess
from rolellm.construct.scripts.quotes import Paragraph, Quotation, around, find_quotations, read_paragraphs
from rolellm.construct.scripts.reading import Found, Hints, Source, trim
from rolellm.construct.scripts.saying import FAMILIES, MANNER, NAME, NO_NAME, PUNCTUATION, SAYS, VERBS, plain
from rolellm.core.records import Language


def read_novel(source: Source, hints: Hints) -> list[Found]:
    """Read a novel: quotations are speech, the text between them is narration, headings of chapters are directions.

    Speech that runs over paragraphs without marks between them is one turn; where each paragraph opens with a mark of
    its own, each is a turn of the same speaker. Quoted words in the middle of a sentence stay narration.

    Args:
        source: The text; straight and curly quotes, ``「」``, ``«»``, ``„“`` and English single quotes are known.
        hints: The language; the role's names, which are taken for names whatever they look like; whether to guess.
    """
    text, language = source.text, hints.language
    paragraphs = read_paragraphs(text)
    quotations = [
        one
        for one in find_quotations(text, paragraphs, language)
        if one.is_resumed or _is_spoken(text, one, paragraphs[one.paragraph], language)
    ]
    named = _speakers(text, paragraphs, quotations, hints)
    speakers = _spread(guess(text, paragraphs, quotations, named, hints), quotations) if hints.guess else named
    return list(_turns(text, paragraphs, quotations, named, speakers))


def _turns(
    text: str,
    paragraphs: list[Paragraph],
    quotations: Sequence[Quotation],
    named: Sequence[str | None],
    speakers: Sequence[str | None],
) -> Iterator[Found]:
    place, following = 0, 0
    for paragraph in paragraphs:
        place = max(place, paragraph.start)
        while following < len(quotations) and quotations[following].left < paragraph.end:
            quotation, speaker = quotations[following], speakers[following]
            is_guess = speaker != named[following]
            following += 1
            yield from _told(text, place, quotation.left, paragraph)
            start, end = trim(text, quotation.start, quotation.end)
            said = " ".join(text[start:end].split())
            yield Found(speaker, said, "speech", paragraph.scene, start, end, quotation.is_mended, is_guess)
            place = quotation.right
        yield from _told(text, place, paragraph.end, paragraph)


def _told(text: str, start: int, end: int, paragraph: Paragraph) -> Iterator[Found]:
    start, end = trim(text, start, end)
    content = " ".join(text[start:end].split())
    if any(map(str.isalnum, content)):
        if paragraph.is_heading:
            yield Found("scene", content, "direction", paragraph.scene, start, end)
        else:
            yield Found("narrator", content, "narration", paragraph.scene, start, end)


def _is_spoken(text: str, quotation: Quotation, paragraph: Paragraph, language: Language) -> bool:
    """Whether a quotation is set off from the sentence around it; a word or title in its midst is not."""
    before = text[paragraph.start : quotation.left].rstrip()
    if not before or before[-1] in ".,:;!?—–-…。，：；！？”’」』\"'":
        return True
    if _SAID_LAST[language].search(before[-40:]):
        return True
    said = text[quotation.start : quotation.end].rstrip()
    # ``He thought it "a foolish word," and`` goes on; ``he turned "Never!"`` does not.
    return language == "zh" and len(said) > 1 and said[-1] in "。！？…"


_ADVERB: Final = r"(?:\s+(?!reply\b|only\b)\w+ly)?"
_AFTER: Final = re.compile(
    rf"[\s,—–-]*(?:(?:{VERBS})(?:\s+out)?{_ADVERB}\s+(?P<inverted>{NAME})|(?P<straight>{NAME}){_ADVERB}\s+(?:{VERBS})"
    r"(?=\s*[,.;:—–]|\s*$|\s+(?:\w+ly|to|with|in|as|at|after|from)\b))"
)
_BEFORE: Final = re.compile(
    rf"(?:^\s*|[.!?][”’\"')]*\s+|,\s+)(?:(?:And|But|Then|So|Now|At\s+(?:last|length|this)),?\s+)?(?P<straight>{NAME}){_ADVERB}"
    rf"\s+(?:{VERBS})(?:\s+(?:out|again|\w+ly|(?:to|with|in|at)\s+[^.,:;!?—“”\"]{{1,50}}))?\s*[,:—–-]+\s*$"
)
_NEW_SENTENCE: Final = re.compile(r"(?<!Mr)(?<!Mrs)(?<!Ms)(?<!Dr)(?<!St)[.;:!?]\s+\S")


def _english_after(after: str, ending: str, _: Iterable[str]) -> tuple[str, str] | None:
    match = _AFTER.match(after)
    if match is None or (match["straight"] and ending not in ",!?—–-"):
        return None
    name = plain(match["inverted"] or match["straight"])
    return (name, after[match.end() :]) if name else None


def _english_before(before: str, _: Iterable[str]) -> str | None:
    match = _BEFORE.search(before[-_FAR:])
    return plain(match["straight"]) if match else None


_LAST_CLAUSE: Final = re.compile(rf"[^{PUNCTUATION}]*$")
_FIRST_CLAUSE: Final = re.compile(rf"\s*(?P<clause>[^{PUNCTUATION}]{{2,16}})(?:[。，,.]|$)")
_SPOKEN_BY: Final = re.compile(rf"(?P<name>.*?){MANNER}{{0,2}}(?:{SAYS})$")


def _chinese_after(after: str, _: str, names: Iterable[str]) -> tuple[str, str] | None:
    match = _FIRST_CLAUSE.match(after)
    name = _spoken_by(match["clause"], names, opens=True) if match else None
    return (name, after[match.end() :]) if match and name else None


def _chinese_before(before: str, names: Iterable[str]) -> str | None:
    # Longer ones are no name and verb; and a paragraph may be a page.
    told = before[-_FAR:].rstrip()
    told = told[:-1] if told.endswith(("：", ":", "，", ",")) else told
    match = _LAST_CLAUSE.search(told)
    # A clause after a comma has its subject before that.
    opens = match is not None and told[: match.start()].rstrip()[-1:] in ("", *'。！？…”」』"')
    return _spoken_by(match[0], names, opens=opens) if match else None


def _spoken_by(clause: str, names: Iterable[str], *, opens: bool) -> str | None:
    """Who speaks by a clause that is a name, perhaps its manner, and a verb of saying."""
    for name in sorted(names, key=len, reverse=True):
        if clause.startswith(name) and (match := _SPOKEN_BY.fullmatch(clause, len(name))) and not match["name"]:
            return name
    match = _SPOKEN_BY.fullmatch(clause) if opens else None
    name = match["name"] if match else ""
    is_name = len(name) == _SHORT or (len(name) == _LONG and name[0] in FAMILIES)
    return name if is_name and not NO_NAME.search(name) else None


_SHORT, _LONG = 2, 3
_FAR: Final = 200
_AFTERS: Final = {"en": _english_after, "zh": _chinese_after}
_BEFORES: Final = {"en": _english_before, "zh": _chinese_before}
_SAID_LAST: Final = {"en": re.compile(rf"(?<![\w-])(?:{VERBS})$"), "zh": re.compile(f"(?:{SAYS})$")}


def _speakers(
    text: str, paragraphs: Sequence[Paragraph], quotations: Sequence[Quotation], hints: Hints
) -> list[str | None]:
    """Who speaks each quotation, where that is next to it; a speech that goes on keeps its speaker."""
    named_after, named_before, names = _AFTERS[hints.language], _BEFORES[hints.language], hints.names
    found: list[str | None] = []
    rest: str | None = None
    for index, quotation in enumerate(quotations):
        before, after, follows = around(text, paragraphs, quotations, index)
        goes_on = quotation.is_resumed or (follows and rest is not None and not _NEW_SENTENCE.search(rest))
        told = named_after(after, text[quotation.start : quotation.end].rstrip()[-1:], names)
        speaker = told[0] if told else None if goes_on else named_before(before, names)
        rest = told[1] if told else None
        found.append(speaker or (found[-1] if goes_on and found else None))
    return _spread(found, quotations)


def _spread(found: list[str | None], quotations: Sequence[Quotation]) -> list[str | None]:
    """What the last paragraph of a speech says of its speaker holds for the first."""
    for index in reversed(range(len(found) - 1)):
        if quotations[index + 1].is_resumed:
            found[index] = found[index] or found[index + 1]
    return found
