"""Where the quotations of a novel stand: what is told before and after each."""

from __future__ import annotations

from collections.abc import Sequence

from rolellm.construct.scripts.chapters import Paragraph
from rolellm.construct.scripts.quotes import Quotation

#: How far back narration is looked at for who speaks, in characters (our choice).
REACH = 1500


class Surroundings:
    """The spoken quotations of a text, and the narration around them.

    Args:
        text: The text.
        paragraphs: Its paragraphs.
        quotations: Those of its quotations that somebody speaks, in order.
    """

    def __init__(self, text: str, paragraphs: Sequence[Paragraph], quotations: Sequence[Quotation]) -> None:
        self.text = text
        self.paragraphs = paragraphs
        self.quotations = quotations

    def scene(self, index: int) -> int:
        """The scene of a quotation."""
        return self.paragraphs[self.quotations[index].paragraph].scene

    def said(self, index: int) -> str:
        """What a quotation says, without its marks."""
        return self.text[self.quotations[index].start : self.quotations[index].end]

    def begin(self, index: int) -> int:
        """Where the narration before a quotation begins: after the one before, in the same scene."""
        quotation, scene = self.quotations[index], self.scene(index)
        start = max(0, quotation.left - REACH)
        if index and self.scene(index - 1) == scene:
            return max(start, self.quotations[index - 1].right)
        first = quotation.paragraph
        while first and self.paragraphs[first - 1].scene == scene and self.paragraphs[first].start > start:
            first -= 1
        first += self.paragraphs[first].is_heading
        return max(start, self.paragraphs[first].start)

    def gap(self, index: int) -> str:
        """The narration between the quotation before and this one, in the same scene."""
        return self.text[self.begin(index) : self.quotations[index].left]

    def tail(self, index: int) -> str:
        """What stands after a quotation in its paragraph, before the next."""
        quotation = self.quotations[index]
        paragraph = quotation.paragraph
        while self.paragraphs[paragraph].end < quotation.right:
            paragraph += 1
        end = self.paragraphs[paragraph].end
        if index + 1 < len(self.quotations):
            end = min(end, self.quotations[index + 1].left)
        return self.text[quotation.right : max(end, quotation.right)]
