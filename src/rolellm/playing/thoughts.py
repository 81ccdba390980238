"""Thoughts in what a character says in a scene or a group, which nobody else sees.

They are in ``[…]``, ``【…】`` or tags such as ``<role_thinking>``: the marks of CoSER (arXiv 2502.09082) and HER (arXiv
2601.21459). What is opened and never closed lasts to the end: a thought that a limit of tokens cut off is still one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_MARKS: Final = {"[": "]", "【": "】"}
_TAG: Final = re.compile(
    r"<\s*(?:system[_ ]|role[_ ])?think(?:ing)?\s*>.*?(?:<\s*/\s*(?:system[_ ]|role[_ ])?think(?:ing)?\s*>|\Z)",
    re.DOTALL | re.IGNORECASE,
)
_NEWLINES: Final = re.compile(r"\n+")


def strip_inner_thoughts(text: str) -> str:
    """Return what others see and hear of an utterance; empty where it is nothing but thoughts.

    Lines are trimmed and blank lines left out, as CoSER's evaluation does before it scores
    (https://github.com/Neph0s/CoSER/blob/624efc5/gca_evaluation/utils.py#L196).

    >>> strip_inner_thoughts("[He lies.] (nods) I see. [Does he know")
    '(nods) I see.'
    """
    visible = [part for part, is_thought in split_thoughts(text) if not is_thought]
    lines = (line.strip() for line in "".join(visible).split("\n"))
    return _NEWLINES.sub("\n", "\n".join(lines)).strip()


def split_thoughts(text: str) -> Iterator[tuple[str, bool]]:
    """Split an utterance into its parts in order, each with whether it is a thought.

    >>> list(split_thoughts("[He lies.] I see."))
    [('[He lies.]', True), (' I see.', False)]
    """
    start = position = 0
    while position < len(text):
        end = _find_end(text, position)
        if end == position:
            position += 1
            continue
        if start < position:
            yield text[start:position], False
        yield text[position:end], True
        start = position = end
    if start < len(text):
        yield text[start:], False


def _find_end(text: str, position: int) -> int:
    """Return where the thought that begins here ends; the same place where none begins."""
    opening = text[position]
    if opening == "<":
        match = _TAG.match(text, position)
        return match.end() if match else position
    if opening not in _MARKS:
        return position
    depth = 0
    for index in range(position, len(text)):
        if text[index] == opening:
            depth += 1
        elif text[index] == _MARKS[opening]:
            depth -= 1
            if depth == 0:
                return index + 1
    return len(text)
