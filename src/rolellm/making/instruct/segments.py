"""Segments that questions are made from: the profile's text, chunks of the script, and entries of a lorebook.

The paper has two kinds of segment (arXiv 2310.00746): description and catchphrases, which give ``script_agnostic``
questions, and chunks of structured dialogue, which give ``script_based`` ones. Lore is our addition. Its questions are
``script_based``, because what they ask is in a given text and not in the description that a tuned model is shown.

The size of chunks is open in the paper; ours is stated at `InstructSettings`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from rolellm.core.records import Profile, Turn
from rolellm.models.prompts.render import format_turn

Count = Callable[[str], int]
SegmentKind = Literal["profile", "script", "lore"]
QuestionType = Literal["script_agnostic", "script_based"]

#: Separator of two scenes in one chunk.
SCENE_BREAK = "***"
_SENTENCE_END = re.compile(r"[.!?…。！？；]+[\"'”’」』）)]*\s*")
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Segment:
    """A text that questions are made from.

    Attributes:
        id: ``profile``, ``script/0007`` or ``lore/0002``; by the place among all segments of its kind.
        kind: ``profile``, ``script`` or ``lore``.
        text: As prompts show it.
        tokens: Of the text, by the counter that it was made with.
        first: The first turn (or entry of the lorebook) in it, by its place; -1 for the profile.
        last: The last one, inclusive.
        about_role: Whether the role speaks in it or is named.
    """

    id: str
    kind: SegmentKind
    text: str
    tokens: int
    first: int = -1
    last: int = -1
    about_role: bool = True

    @property
    def type(self) -> QuestionType:
        """The type of the questions made from it."""
        return "script_agnostic" if self.kind == "profile" else "script_based"

    def to_dict(self) -> dict[str, Any]:
        """For receipts: what it is and its place, without its text."""
        return {"id": self.id, "kind": self.kind, "first": self.first, "last": self.last}


class _Unit(NamedTuple):
    """A line of a chunk, and the turn that it shows or a part of which it shows."""

    place: int
    turn: Turn
    text: str
    tokens: int


def build_segments(character: Profile, count: Count, *, chunk_tokens: int) -> list[Segment]:
    """Return all segments of a character: its profile, its script, its lore.

    Args:
        character: What is known of the role; each of the three may be missing.
        count: Tokens of a text.
        chunk_tokens: Maximum tokens of a chunk; only a line that cannot be cut is longer.
    """
    segments: list[Segment] = []
    profile = character.full_description or character.background
    if profile:
        segments.append(Segment("profile", "profile", profile, count(profile)))
    named = re.compile(character.name_pattern, re.IGNORECASE).search

    def format_line(turn: Turn) -> str:
        nameless = turn.kind == "speech" and not turn.speaker
        if nameless:
            return turn.content
        return format_turn(turn, character.language, is_full=True)

    # An entry has nothing to do with the one before it, as a scene has with the scene before.
    lore = []
    for index, entry in enumerate(character.lore):
        content = " ".join(entry.content.split())
        lore.append(Turn(entry.name.strip(), content, scene=index))
    sources: dict[SegmentKind, Sequence[Turn]] = {"script": character.turns, "lore": lore}
    for kind, turns in sources.items():
        units = list(_split_units(turns, format_line, count, chunk_tokens))
        for index, chunk in enumerate(_pack_chunks(units, chunk_tokens, count)):
            text = _join_chunk(chunk)
            # A lorebook is about its character's world whether or not an entry names the character.
            is_about_role = kind == "lore" or named(text) is not None
            if any(character.owns(unit.turn) for unit in chunk):
                is_about_role = True
            name = f"{kind}/{index:04}"
            tokens = count(text)
            segment = Segment(name, kind, text, tokens, chunk[0].place, chunk[-1].place, is_about_role)
            segments.append(segment)
    return segments


def _join_chunk(chunk: Sequence[_Unit]) -> str:
    lines: list[str] = []
    scene = chunk[0].turn.scene
    for unit in chunk:
        if unit.turn.scene != scene:
            lines.append(SCENE_BREAK)
        scene = unit.turn.scene
        lines.append(unit.text)
    return "\n".join(lines)


def _split_units(
    turns: Sequence[Turn], format_line: Callable[[Turn], str], count: Count, budget: int
) -> Iterator[_Unit]:
    for index, turn in enumerate(turns):
        for piece in _split_turn(turn, lambda part: count(format_line(part) + "\n") <= budget):
            if piece.content:
                text = format_line(piece)
                yield _Unit(index, piece, text, count(text + "\n"))


def _split_turn(turn: Turn, fits: Callable[[Turn], bool]) -> Iterator[Turn]:
    """Halve a turn until its parts fit, at the ends of sentences where there are any."""
    if len(turn.content) < 2 or fits(turn):
        yield turn
        return
    cut = _find_cut(turn.content)
    for content in (turn.content[:cut], turn.content[cut:]):
        if content.strip():
            yield from _split_turn(replace(turn, content=content.strip()), fits)


def _find_cut(content: str) -> int:
    middle = len(content) // 2
    for pattern in (_SENTENCE_END, _SPACE):
        ends = [match.end() for match in pattern.finditer(content) if 0 < match.end() < len(content)]
        if ends:
            return min(ends, key=lambda end: abs(end - middle))
    return middle


def _pack_chunks(units: Sequence[_Unit], budget: int, count: Count) -> Iterator[list[_Unit]]:
    """Pack lines up to the budget. A chunk that is half full ends before a scene that would not fit into it whole."""
    gap = count(SCENE_BREAK + "\n")
    chunk: list[_Unit] = []
    used = 0
    for unit, scene_tokens in zip(units, _sum_scene_tokens(units), strict=True):
        scene = unit.turn.scene
        is_new_scene = bool(chunk) and chunk[-1].turn.scene != scene
        needed = used + gap * is_new_scene
        is_better_parted = is_new_scene and used * 2 >= budget and needed + scene_tokens > budget
        if is_better_parted or (chunk and needed + unit.tokens > budget):
            yield chunk
            chunk = []
            needed = 0
        used = needed + unit.tokens
        chunk.append(unit)
    if chunk:
        yield chunk


def _sum_scene_tokens(units: Sequence[_Unit]) -> Iterable[int]:
    """Sum, for each line, the tokens from it to the end of its scene."""
    sums: list[int] = []
    scene = None
    tokens = 0
    for unit in reversed(units):
        if unit.turn.scene != scene:
            scene = unit.turn.scene
            tokens = 0
        tokens += unit.tokens
        sums.append(tokens)
    return reversed(sums)
