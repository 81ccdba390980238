"""A few pairs of a run with the lines that they were made from, for a reader to compare."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rolellm.construct.context_instruct.filters import FilterName, Verdict
from rolellm.construct.context_instruct.run import InstructResult
from rolellm.construct.context_instruct.segments import Segment
from rolellm.construct.context_instruct.words import STOP_WORDS
from rolellm.records import Language
from rolellm.report.made import MadePair, Receipt
from rolellm.text import chinese_words

#: Which dropped pair is shown: one that has a place in the script, of the filter that says most about a pair.
_TELLING: tuple[FilterName, ...] = ("grounding", "standalone", "character", "confidence", "duplicate", "form")
_LINES = 4


def shown_pairs(result: InstructResult, script: str, name: str) -> tuple[MadePair, ...]:
    """The first kept pair of each type, and a dropped one.

    Args:
        result: Of Context-Instruct.
        script: The decoded text of the script, in which offsets are places.
        name: What the script is called.
    """
    return tuple(_pair(verdict, result.character.language, script, name) for verdict in _picked(result))


def _picked(result: InstructResult) -> Iterator[Verdict]:
    for kind in ("script_agnostic", "script_based"):
        yield from [verdict for verdict in result.kept if verdict.candidate.type == kind][:1]
    dropped = sorted(
        result.dropped,
        key=lambda item: (item.candidate.origin.segment.start < 0, _TELLING.index(item.by or "form")),
    )
    yield from dropped[:1]


def _pair(verdict: Verdict, language: Language, script: str, name: str) -> MadePair:
    pair = verdict.candidate
    segment = pair.origin.segment
    receipt = Receipt(
        source=name if segment.start >= 0 else f"the {segment.kind}",
        lines=_lines(segment, _words(f"{pair.question} {pair.answer}", language), language, script),
        prompt=pair.origin.prompt,
        model=pair.origin.model,
        start=segment.start,
        end=segment.end,
        by=verdict.by,
        reason=verdict.reason,
    )
    return MadePair(pair.question, pair.answer, pair.type, pair.confidence(language), receipt)


def _lines(segment: Segment, words: frozenset[str], language: Language, script: str) -> tuple[tuple[int, str], ...]:
    """The few lines in a row that have most of the words, the first of equals; of a profile, all of it."""
    if segment.start < 0:
        return ((0, segment.text),)
    first = script.count("\n", 0, segment.start) + 1
    numbered = [
        (first + place, line.strip())
        for place, line in enumerate(script[segment.start : segment.end].split("\n"))
        if line.strip()
    ]
    shared = [_words(line, language) & words for _, line in numbered]

    def found(place: int) -> int:
        return len(frozenset().union(*shared[place : place + _LINES]))

    best = max(range(max(len(numbered) - _LINES, 0) + 1), key=found)
    return tuple(numbered[best : best + _LINES])


def _words(text: str, language: Language) -> frozenset[str]:
    cut = chinese_words()(text) if language == "zh" else re.findall(r"[a-z]{3,}", text.casefold())
    return frozenset(word for word in cut if word not in STOP_WORDS[language])
