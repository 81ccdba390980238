"""What a script is: its language, and its format by how much of it looks like one.

A format's score is the share of lines that only this format has: cues of names that come again, headings, times. The
thresholds are our choice; a user who knows better names the format.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Final

from rolellm.construct.scripts import headings, play, screenplay, subtitles, transcript
from rolellm.construct.scripts.collect import lines_of
from rolellm.construct.scripts.names import bare, key
from rolellm.construct.scripts.reading import Format, Hints
from rolellm.errors import ScriptError
from rolellm.records import Language
from rolellm.text import HAN

_SAMPLE: Final = 400_000
# One line in thirty names a speaker, even where speeches are long; a novel has hardly a line that seems to.
_LEAST: Final = 0.03
_LATIN: Final = re.compile("[A-Za-z\u00c0-\u024f]")
# A Chinese character says about as much as three letters; with five, subtitles in both languages are Chinese.
_LETTERS_A_HAN: Final = 5
_QUOTED: Final = re.compile("[“「『\"]|(?:^|(?<=\\s))[‘']", re.MULTILINE)
_ACT: Final = re.compile(r"^[ \t]*(?:ACT|SCENE|Act|Scene)\s+[IVXLC\d]{1,6}\b", re.MULTILINE)
_STAGE: Final = re.compile(r"^[ \t]*[\[_(]{0,2}(?:Enter|Exit|Exeunt|ENTER|EXIT|EXEUNT)\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Detected:
    """What a script was taken for.

    Attributes:
        format: The format with the highest score.
        scores: Each format's share of telling lines, 0 to 1; of a novel, the quotations a line, cut at 1.
    """

    format: Format
    scores: dict[Format, float]


def detect_language(text: str) -> Language:
    """``zh`` where Chinese characters outweigh Latin letters, five of which count as one; else ``en``."""
    sample = _sampled(text)
    han = sum(1 for _ in HAN.finditer(sample))
    latin = sum(1 for _ in _LATIN.finditer(sample))
    return "zh" if han * _LETTERS_A_HAN > latin else "en"


def detect_format(text: str, hints: Hints) -> Detected:
    """The format of a script.

    Args:
        text: `Source.text`.
        hints: Names that are known to speak.

    Raises:
        ScriptError: When it looks like none of them.
    """
    sample = _sampled(text)
    lines = max(1, sum(not line.blank for line in lines_of(sample)))
    scores: dict[Format, float] = {
        "subtitles": min(1.0, 3 * sum(1 for line in lines_of(sample) if subtitles.TIMES.match(line.text)) / lines),
        "screenplay": _screenplay(sample, lines),
        "play": _play(sample, hints, lines),
        "transcript": _transcript(sample, hints, lines),
    }
    best = max(scores, key=lambda name: scores[name])
    scores["novel"] = min(1.0, sum(1 for _ in _QUOTED.finditer(sample)) / lines)
    if scores[best] >= _LEAST:
        return Detected(best, scores)
    if scores["novel"] > 0:
        return Detected("novel", scores)
    shown = ", ".join(f"{name} {score:.3f}" for name, score in scores.items())
    raise ScriptError(
        "the format is not clear: no `NAME:` lines, screenplay cues, subtitle times or quoted speech that come often "
        f"enough (scores: {shown}; at least {_LEAST} expected). Name it: --format play, screenplay, transcript, novel "
        "or subtitles"
    )


def _sampled(text: str) -> str:
    """Two pieces: front matter tells little of what follows."""
    if len(text) <= 2 * _SAMPLE:
        return text
    middle = len(text) // 2
    return text[:_SAMPLE] + "\n\n" + text[middle : middle + _SAMPLE]


def _repeated(counts: Counter[str], asked: set[str]) -> int:
    """Cues of names that come again; a name asked for needs no second time."""
    return sum(count for name, count in counts.items() if count > 1 or name in asked)


def _screenplay(text: str, lines: int) -> float:
    cues = screenplay.cues_of(text)
    slugs = sum(1 for line in lines_of(text) if headings.slug(line.text))
    # Names in capitals on lines of their own are found in tables and poems, too.
    telling = _repeated(cues, set()) if slugs or max(cues.values(), default=0) > 2 else 0
    # The line under a cue is told by it.
    return min(1.0, (2 * telling + (cues.total() - telling if slugs else 0) + 2 * slugs) / lines)


def _play(text: str, hints: Hints, lines: int) -> float:
    cast = play.cast_of(text, hints)
    if cast is None:
        return 0.0
    staged = _ACT.search(text) is not None or _STAGE.search(text) is not None
    if cast.way == "colon" and not staged:
        # A line such as "JOHN: Well." is a transcript's, but for acts and entrances.
        return 0.0
    alone = cast.way.endswith("alone")
    return min(1.0, (2 if alone or staged else 1) * cast.cues / lines)


def _transcript(text: str, hints: Hints, lines: int) -> float:
    asked = {key(name) for name in hints.names}
    labels = []
    for line in lines_of(text):
        label = transcript.label_of(line.text)
        if label is None or headings.heading_of(f"{label.name}:") is not None:
            continue
        # A novel's "the king said:" goes on with a quotation mark.
        if not _QUOTED.match(line.text[label.end :].lstrip()) or key(bare(label.name)) in asked:
            labels.append(label.name)
    known = transcript.known_names(labels, hints.names)
    counts = Counter(name for name in map(key, map(bare, labels)) if name in known)
    return min(1.0, _repeated(counts, asked) / lines)
