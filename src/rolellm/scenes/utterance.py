"""The parts of what a character says in a scene: thoughts, which nobody else sees, actions, and speech.

Thoughts are in ``[…]``, ``【…】`` or tags such as ``<role_thinking>``; actions in ``(…)``, ``（…）``, ``*…*`` or
``<role_action>``; all else is speech. These are the marks of CoSER (arXiv 2502.09082) and HER (arXiv 2601.21459). What
is opened and never closed lasts to the end: a thought that a limit of tokens cut off is still one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, Literal, NamedTuple

Kind = Literal["thought", "action", "speech"]

_THOUGHT_MARKS: Final = {"[": "]", "【": "】"}
_ACTION_MARKS: Final = {"(": ")", "（": "）"}
_THOUGHT_TAG: Final = re.compile(
    r"<\s*(?:system[_ ]|role[_ ])?think(?:ing)?\s*>.*?(?:<\s*/\s*(?:system[_ ]|role[_ ])?think(?:ing)?\s*>|\Z)",
    re.DOTALL | re.IGNORECASE,
)
_ACTION_TAG: Final = re.compile(
    r"<\s*role[_ ]action\s*>.*?(?:<\s*/\s*role[_ ]action\s*>|\Z)", re.DOTALL | re.IGNORECASE
)
_STARS: Final = re.compile(r"(?<!\*)\*(?![\s*])[^*\n]+\*(?!\*)")
_TAG: Final = re.compile(r"<\s*/?\s*(?:system|role)?[_ ]?(?:think(?:ing)?|action)\s*>", re.IGNORECASE)
_NEWLINES: Final = re.compile(r"\n+")


class UtterancePart(NamedTuple):
    """A part of an utterance: its kind, and its text with the marks around it."""

    kind: Kind
    text: str

    @property
    def content(self) -> str:
        """The text without its marks."""
        if self.kind == "speech":
            return self.text.strip()
        text = _TAG.sub("", self.text).strip()
        if text[:1] in "[【(（*":
            text = text[1:]
        return text.rstrip("]】)）*").strip()


def split_utterance(text: str) -> list[UtterancePart]:
    """Split an utterance into its parts; joined, their texts are the utterance.

    >>> [(segment.kind, segment.content) for segment in split_utterance("[He lies.] (nods) I see.")]
    [('thought', 'He lies.'), ('action', 'nods'), ('speech', 'I see.')]
    """
    segments = []
    for part, is_thought in _cut(text, _THOUGHT_MARKS, _THOUGHT_TAG):
        if is_thought:
            segments.append(UtterancePart("thought", part))
            continue
        for piece, is_action in _cut(part, _ACTION_MARKS, _ACTION_TAG, _STARS):
            kind: Kind = "action" if is_action else "speech"
            if is_action or piece.strip():
                segments.append(UtterancePart(kind, piece))
    return segments


def strip_inner_thoughts(text: str) -> str:
    """Return what others see and hear of an utterance; empty where it is nothing but thoughts.

    Lines are trimmed and blank lines left out, as CoSER's evaluation does before it scores
    (https://github.com/Neph0s/CoSER/blob/624efc5/gca_evaluation/utils.py#L196).

    >>> strip_inner_thoughts("[He lies.] (nods) I see. [Does he know")
    '(nods) I see.'
    """
    parts = _cut(text, _THOUGHT_MARKS, _THOUGHT_TAG)
    visible = "".join(part for part, is_thought in parts if not is_thought)
    lines = (line.strip() for line in visible.split("\n"))
    return _NEWLINES.sub("\n", "\n".join(lines)).strip()


def _cut(text: str, marks: Mapping[str, str], *patterns: re.Pattern[str]) -> Iterator[tuple[str, bool]]:
    """Cut a text where marked passages begin and end; yields each part and whether it is such a passage."""
    start = position = 0
    while position < len(text):
        end = _find_end(text, position, marks, patterns)
        if end is None:
            position += 1
            continue
        if start < position:
            yield text[start:position], False
        yield text[position:end], True
        start = position = end
    if start < len(text):
        yield text[start:], False


def _find_end(text: str, position: int, marks: Mapping[str, str], patterns: tuple[re.Pattern[str], ...]) -> int | None:
    """Return where the passage that begins here ends; ``None`` where none begins."""
    opening = text[position]
    if opening in marks:
        return _find_closing(text, position, opening, marks[opening])
    if opening not in "<*":
        return None
    for pattern in patterns:
        match = pattern.match(text, position)
        if match:
            return match.end()
    return None


def _find_closing(text: str, position: int, opening: str, closing: str) -> int:
    depth = 0
    for index in range(position, len(text)):
        if text[index] == opening:
            depth += 1
        elif text[index] == closing:
            depth -= 1
            if depth == 0:
                return index + 1
    return len(text)
