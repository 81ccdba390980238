"""Novels: quoted speech with the words that say who speaks, in English or Chinese."""

from __future__ import annotations

from collections.abc import Iterator

from rolellm.construct.scripts.novel_en import English
from rolellm.construct.scripts.novel_zh import Chinese
from rolellm.construct.scripts.quotes import Paragraph, Quotation, find_quotations, read_paragraphs
from rolellm.construct.scripts.reading import Found, Hints, Source, trim


def read_novel(source: Source, hints: Hints) -> list[Found]:
    """Read a novel: quotations are speech, the text between them is narration, headings of chapters are directions.

    Speech that runs over paragraphs without marks between them is one turn; where each paragraph opens with a mark of
    its own, each is a turn of the same speaker. Quoted words, titles, inscriptions and cited verse stay narration.

    Args:
        source: The text; straight and curly quotes, ``「」``, ``«»``, ``„“`` and English single quotes are known.
        hints: The language, and the role's names, which are recognized in the narration even if they are never found
            next to a verb of speech.
    """
    text = source.text
    paragraphs = read_paragraphs(text)
    quotations = find_quotations(text, paragraphs, hints.language)
    rules = (Chinese if hints.language == "zh" else English)(text, paragraphs, quotations, hints.names)
    return list(_turns(text, paragraphs, list(zip(rules.quotations, rules.speakers(), strict=True))))


def _turns(text: str, paragraphs: list[Paragraph], spoken: list[tuple[Quotation, str | None]]) -> Iterator[Found]:
    place, following = 0, 0
    for paragraph in paragraphs:
        place = max(place, paragraph.start)
        while following < len(spoken) and spoken[following][0].left < paragraph.end:
            quotation, speaker = spoken[following]
            following += 1
            yield from _told(text, place, quotation.left, paragraph)
            start, end = trim(text, quotation.start, quotation.end)
            yield Found(speaker, " ".join(text[start:end].split()), "speech", paragraph.scene, start, end)
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
