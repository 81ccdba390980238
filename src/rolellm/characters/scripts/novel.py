"""Novels: quotations are speech, and nobody is named as their speaker: that is left to `rolellm.making.attribution`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rolellm.characters.scripts.quotes import Paragraph, Quotation, find_quotations, read_paragraphs
from rolellm.characters.scripts.reading import ReaderHints, ScriptSource, ScriptTurn, trim
from rolellm.core.records import TurnKind

#: What a quotation that is set off from the sentence around it follows, and what one that is not ends with.
_SET_OFF: Final = ".,:;!?—–-…。，：；！？”’」』\"'"
_SENTENCE_ENDS: Final = ".!?。！？…"
_FAR: Final = 200


def read_novel(source: ScriptSource, hints: ReaderHints) -> list[ScriptTurn]:
    """Read a novel: quotations are speech, the text between them is narration, headings of chapters are directions.

    Where each paragraph of a speech opens with a mark of its own, each is a turn. Quoted words in the middle of a
    sentence stay narration.

    Args:
        source: The text; straight and curly quotes, ``「」``, ``«»`` and English single quotes are known.
        hints: The language.
    """
    text = source.text
    paragraphs = read_paragraphs(text)
    quotations: list[Quotation] = []
    for quotation in find_quotations(text, paragraphs, hints.language):
        if quotation.is_resumed or _is_spoken(text, quotation, paragraphs[quotation.paragraph]):
            quotations.append(quotation)
    return list(_collect_turns(text, paragraphs, quotations))


def _collect_turns(text: str, paragraphs: list[Paragraph], quotations: list[Quotation]) -> Iterator[ScriptTurn]:
    offset, following = 0, 0
    for paragraph in paragraphs:
        teller: tuple[str, TurnKind] = "narrator", "narration"
        if paragraph.is_heading:
            teller = "scene", "direction"
        offset = max(offset, paragraph.start)
        while following < len(quotations) and quotations[following].opening < paragraph.end:
            quotation = quotations[following]
            yield from _make_turns(text, *teller, paragraph.scene, offset, quotation.opening)
            yield from _make_turns(text, None, "speech", paragraph.scene, quotation.start, quotation.end)
            offset, following = quotation.closing_end, following + 1
        yield from _make_turns(text, *teller, paragraph.scene, offset, paragraph.end)


def _make_turns(
    text: str, speaker: str | None, kind: TurnKind, scene: int, start: int, end: int
) -> Iterator[ScriptTurn]:
    start, end = trim(text, start, end)
    content = " ".join(text[start:end].split())
    if kind == "speech" or any(map(str.isalnum, content)):
        yield ScriptTurn(speaker, content, kind, scene, start, end)


def _is_spoken(text: str, quotation: Quotation, paragraph: Paragraph) -> bool:
    """Tell whether a quotation is set off from the sentence around it; a word or title in its midst is not."""
    # A paragraph may be the whole book.
    start = max(paragraph.start, quotation.opening - _FAR)
    before = text[start : quotation.opening].rstrip()
    if not before or before[-1] in _SET_OFF:
        return True
    # ``He thought it "a foolish word," and`` goes on; ``he turned "Never!"`` does not.
    speech = text[quotation.start : quotation.end].rstrip()
    return len(speech) > 1 and speech[-1] in _SENTENCE_ENDS
