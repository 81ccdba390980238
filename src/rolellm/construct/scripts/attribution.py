"""What attribution says of a quotation: whether it is spoken, and by whom; and how its word lists are written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a quotation is.

    Attributes:
        is_speech: False of a quoted word, a title, an inscription, a verse that the narrator cites.
        speaker: As the text names who speaks; ``None`` where nobody could be found.
    """

    is_speech: bool
    speaker: str | None = None


#: The verdict on what nobody says.
NOT_SPEECH = Verdict(is_speech=False)


def verdicts(spoken: Iterable[bool], speakers: Iterable[str | None]) -> list[Verdict]:
    """A verdict on each quotation: whether it is spoken, and, of those that are, the next speaker."""
    of_speech = iter(speakers)
    return [Verdict(True, next(of_speech)) if is_spoken else NOT_SPEECH for is_spoken in spoken]


def word_list(text: str) -> list[str]:
    """The words of a text, parted by spaces."""
    return text.split()
