"""The common part of all script readers: the text they get, and the turns they find in it."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, NamedTuple

from rolellm.core.records import Language, TurnKind
from rolellm.core.settings import read_packaged_patterns

Format = Literal["play", "screenplay", "transcript", "novel", "subtitles", "table"]


@dataclass(frozen=True, slots=True)
class ScriptSource:
    """A script as the readers get it: decoded, newlines as LF, HTML crumbs and control characters taken out.

    Attributes:
        text: What the readers read. It is made of pieces of the source; the last is empty, where the text ends.
        at: Where each piece begins in `text`.
        starts: Where each piece begins in the decoded source.
        ends: Where it ends there, exclusive, if the source spells it in another way, such as ``&ldquo;``; else -1.
        length: Length of the decoded source, in characters.
        encoding: How the file was decoded.
        path: The file, where there is one.
    """

    text: str
    at: Sequence[int]
    starts: Sequence[int]
    ends: Sequence[int]
    length: int
    encoding: str = "utf-8"
    path: Path | None = None

    def place(self, start: int, end: int) -> tuple[int, int]:
        """A span of `text` (end exclusive) as a span of the decoded source."""
        first, _ = self._span(start)
        if end <= start:
            return first, first
        _, last = self._span(end - 1)
        return first, last

    def _span(self, offset: int) -> tuple[int, int]:
        number = bisect_right(self.at, offset) - 1
        start, end = self.starts[number], self.ends[number]
        if end < 0:
            start += offset - self.at[number]
            end = start + 1
        return start, end


@dataclass(frozen=True, slots=True)
class ScriptTurn:
    """A turn as a reader finds it.

    Attributes:
        speaker: As the script writes the name, without cues such as ``(V.O.)``; ``None`` where no
            speaker was found; of narration and directions ``narrator`` or ``scene``, and the like.
        content: White space folded and trimmed; empty only of a cue under which the script has nothing.
        kind: ``speech``, ``narration`` or ``direction``.
        scene: Counted from 0.
        start: Where it begins in `Source.text`; quotation marks are not part of it.
        end: Where it ends there, exclusive.
    """

    speaker: str | None
    content: str
    kind: TurnKind
    scene: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ReaderHints:
    """Facts that a reader gets beforehand.

    Attributes:
        language: The language of the script.
        names: The role asked for and its aliases, as given; readers of running text look for these, too.
        columns: Of a table: the names of its columns ``speaker``, ``text`` and ``scene``, where they are not usual.
    """

    language: Language
    names: Sequence[str] = ()
    columns: Mapping[str, str] = field(default_factory=dict)


#: Finds the turns of one format, in the order of the source; of a text in another format it finds little.
Reader = Callable[[ScriptSource, ReaderHints], list[ScriptTurn]]

#: What closes each kind of bracket.
CLOSING: Final = {"(": ")", "[": "]", "（": "）", "【": "】", "［": "］", "〔": "〕"}
_BRACKETS: Final = re.compile(r"[\[\](){}（）【】［］〔〕]")
_SPOKEN: Final = re.compile(r"[^\W_]")


class Aside(NamedTuple):
    """A piece of a speech that is not spoken: where it is with its brackets, and where the direction in it is."""

    start: int
    end: int
    inner_start: int
    inner_end: int


class ScriptLine(NamedTuple):
    """A line of the text: its place, and itself without the newline."""

    start: int
    end: int
    text: str

    @property
    def blank(self) -> bool:
        """The line has nothing but white space."""
        return not self.text or self.text.isspace()

    @property
    def indent(self) -> int:
        """The number of characters of white space it begins with."""
        text = self.text.expandtabs(8)
        return len(text) - len(text.lstrip())


_LINE: Final = re.compile("^.*$", re.MULTILINE)


def iterate_lines(text: str) -> Iterator[ScriptLine]:
    """The lines of a text."""
    return (ScriptLine(*match.span(), match[0]) for match in _LINE.finditer(text))


def iterate_paragraphs(lines: Iterable[ScriptLine]) -> Iterator[tuple[ScriptLine, bool, bool]]:
    """The lines that are not blank, and whether they are the first and the last of their paragraph."""
    pending, first = None, True
    for line in lines:
        if pending:
            yield pending, first, line.blank
        first = pending is None
        pending = None if line.blank else line
    if pending:
        yield pending, first, True


def trim(text: str, start: int, end: int, marks: str = "") -> tuple[int, int]:
    """A span without the white space at its ends, nor any of the marks."""
    while start < end and (text[start].isspace() or text[start] in marks):
        start += 1
    while end > start and (text[end - 1].isspace() or text[end - 1] in marks):
        end -= 1
    return start, end


def find_brackets(text: str, start: int, end: int) -> list[Aside]:
    """The outermost bracketed pieces of a span of a text; unmatched brackets are text."""
    asides: list[Aside] = []
    stack: list[tuple[str, int]] = []
    for match in _BRACKETS.finditer(text, start, end):
        mark = match[0]
        if mark in CLOSING:
            stack.append((CLOSING[mark], match.start()))
        elif stack and mark == stack[-1][0]:
            opening = stack.pop()[1]
            while asides and asides[-1].start > opening:
                asides.pop()
            asides.append(Aside(opening, match.end(), opening + 1, match.start()))
    return asides


class Collector:
    """Collects turns in the order of the source.

    Args:
        text: `Source.text`.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.found: list[ScriptTurn] = []
        self._scene = 0
        # A scene continues through headings that follow each other (ACT I, SCENE I), and includes what comes before
        # the first one (a title, the persons of the play).
        self._told = self._headed = self._spoken = False
        self._speaker: str | None = None
        self._start = self._end = -1
        #: Whether a speech is open, and whether only its speaker's name has been read.
        self.is_open = self.is_waiting = False
        #: An open paragraph outside of speeches.
        self.held: ScriptLine | None = None

    def open(self, speaker: str | None, line: ScriptLine, speech_start: int, aside: tuple[int, int] = (0, 0)) -> None:
        """Begin a speech; `speech_start` is where it begins in its line, `aside` a bracket next to the name."""
        self.close()
        self.add_text(line.start + aside[0], line.start + aside[1], "direction")
        self._speaker, self._end = speaker, line.start + speech_start
        self.is_open = self.is_waiting = True
        if line.text[speech_start:].strip():
            self.continue_speech(line, speech_start)

    def hold_line(self, line: ScriptLine) -> None:
        """Begin or continue a paragraph outside of speeches."""
        if self.held:
            line = ScriptLine(self.held.start, line.end, self.held.text)
        self.held = line

    def continue_speech(self, line: ScriptLine, at: int = 0) -> None:
        """Continue the open speech with a line."""
        if self._start < 0:
            self._start = line.start + at
        self._end, self.is_waiting = line.end, False

    def close(self, *, done: bool = True) -> None:
        """End the open speech or paragraph; unless `done`, the speaker may continue after a direction."""
        paragraph, self.held = self.held, None
        if paragraph:
            self.add_paragraph(paragraph)
        has_words = self._start >= 0
        if self.is_open and (has_words or (self.is_waiting and done)):
            start = self._start if has_words else self._end
            self.say(self._speaker, start, self._end, self.find_asides(start, self._end))
            self.is_waiting = False
        self._start = -1
        self.is_open = self.is_open and not done

    def add_paragraph(self, paragraph: ScriptLine) -> None:
        """Add a paragraph outside of speeches; of its text, `add_text` has the first line."""
        self.add_text(paragraph.start, paragraph.end)

    def find_asides(self, start: int, end: int) -> list[Aside]:
        """The pieces of a speech that are directions."""
        return find_brackets(self.text, start, end)

    def add_heading(self, start: int, end: int) -> None:
        """Begin a scene with what its heading says; nothing is told of an empty span, which only parts scenes."""
        if self._told and (self._headed or self._spoken):
            self._scene += 1
        self.add_told("narration", start, end, "scene")
        self._headed, self._told, self._spoken = True, False, False

    def add_told(self, kind: TurnKind, start: int, end: int, speaker: str | None = None) -> None:
        """Add narration or a direction, unless there is nothing in it."""
        marks, teller = "", "narrator"
        if kind == "direction":
            marks, teller = "_*〔〕", "stage direction"
        start, end = trim(self.text, start, end, marks)
        if start < end and _SPOKEN.search(self.text, start, end):
            self._add(speaker or teller, kind, start, end)

    def add_text(self, start: int, end: int, kind: TurnKind = "narration") -> None:
        """Add text outside of speeches: bracketed pieces as directions, the rest as `kind`."""
        at = start
        for aside in find_brackets(self.text, start, end):
            self.add_told(kind, at, aside.start)
            inner_start = aside.inner_start
            inner = self.text[inner_start : aside.inner_end].replace("\n", " ")
            heading = find_heading(inner)
            if heading and heading[1]:
                self.add_heading(inner_start + heading[0], inner_start + heading[1])
            else:
                self.add_told("direction", inner_start, aside.inner_end)
            at = aside.end
        self.add_told(kind, at, end)

    def say(self, speaker: str | None, start: int, end: int, asides: Sequence[Aside] = ()) -> None:
        """Add a speech: what is spoken, and the directions in it, each as a turn of its own and in their order.

        Args:
            speaker: As the script writes the name.
            start: Where the speech begins.
            end: Where it ends.
            asides: Rising, inside the span; one that begins inside another is ignored.
        """
        spans: list[tuple[bool, int, int]] = []
        at = start
        for aside in asides:
            if aside.start >= at:
                spans.append((True, *trim(self.text, at, aside.start)))
                spans.append((False, *trim(self.text, aside.inner_start, aside.inner_end)))
                at = aside.end
        spans.append((True, *trim(self.text, at, end)))
        full = [span for span in spans if span[1] < span[2]]
        for spoken, low, high in full:
            if not spoken:
                self.add_told("direction", low, high)
            # The full stop behind a direction is nothing said, but "…" alone is an answer.
            elif len(full) == 1 or _SPOKEN.search(self.text, low, high):
                self._add(speaker, "speech", low, high)
        if not full and not asides:
            # The script has the name and nothing under it.
            self._add(speaker, "speech", spans[0][1], spans[0][1])

    def _add(self, speaker: str | None, kind: TurnKind, start: int, end: int) -> None:
        content = " ".join(self.text[start:end].split())
        self.found.append(ScriptTurn(speaker, content, kind, self._scene, start, end))
        self._told = True
        self._spoken = self._spoken or kind == "speech"


def load_script_patterns(section: str) -> dict[str, re.Pattern[str]]:
    """Load the patterns of a section of ``patterns.yaml``."""
    patterns = read_packaged_patterns("rolellm.characters.scripts", "patterns.yaml", section)
    return {name: re.compile(text) for name, text in patterns.items()}


HEADINGS: Final = load_script_patterns("headings")
_SHORT: Final = 60
_RULE: Final = re.compile(r"(?:[*#~=_—–-]\s*){3,}$")


def find_heading(line: str) -> tuple[int, int] | None:
    """Find a heading's text, as a span of the line: what follows its label, else all of it; None for any other line.

    Brackets must be off already. A line of asterisks parts scenes and says nothing: an empty span.

    >>> find_heading("Scene 1: The galley.")
    (9, 20)
    """
    stripped = line.strip()
    if not stripped:
        return None
    text = stripped.strip("#*_ ")
    if not text or _RULE.match(stripped):
        return 0, 0
    start = line.index(text)
    end = start + len(text)
    match = HEADINGS["scene"].match(text) if len(text) <= 500 else None
    if match:
        remainder = match["rest"] or match["rest_zh"] or ""
        if remainder.strip():
            start += match.end() - len(remainder)
        return start, end
    return (start, end) if is_slug(text) else None


def is_foreign_act(line: ScriptLine) -> bool:
    """Tell whether a line is an act's or scene's heading in another language than English, such as ``SCÈNE III.``."""
    if len(line.text) >= _SHORT:
        return False
    match = HEADINGS["scene"].match(line.text.strip())
    return match is not None and bool(match["act"])


def is_slug(line: str) -> bool:
    """Tell whether a line is a screenplay's heading, such as ``INT. KITCHEN - DAY``."""
    if len(line) >= 300:
        return False
    text = line.strip().removeprefix(".")
    return HEADINGS["slug"].match(text) is not None
