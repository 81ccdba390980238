"""Novels: quoted speech with the words that say who speaks, in English or Chinese."""

from __future__ import annotations

from collections.abc import Iterator

from rolellm.construct.scripts.novel_en import attribute_en
from rolellm.construct.scripts.novel_zh import attribute_zh
from rolellm.construct.scripts.quotes import Paragraph, Quotation, Verdict, find_quotations, read_paragraphs
from rolellm.construct.scripts.reading import Found, Hints, Source


def read_novel(source: Source, hints: Hints) -> list[Found]:
    """Read a novel: what is quoted is speech, what stands between is narration, headings of chapters are directions.

    Speech that runs over paragraphs without marks between them is one turn; where each paragraph opens with a mark of
    its own, each is a turn of the same speaker. Quoted words, titles, inscriptions and cited verse stay narration.

    Args:
        source: The text; straight and curly quotes, ``「」``, ``«»``, ``„“`` and English single quotes are known.
        hints: The language, and the role's names, which are recognised in the narration even if they are never found
            beside a verb of speech.
    """
    text = source.text
    paragraphs = read_paragraphs(text)
    quotations = find_quotations(text, paragraphs, hints.language)
    attribute = attribute_zh if hints.language == "zh" else attribute_en
    verdicts = attribute(text, paragraphs, quotations, hints)
    spoken = [pair for pair in zip(quotations, verdicts, strict=True) if pair[1].is_speech]
    return list(_turns(text, paragraphs, spoken))


def _turns(text: str, paragraphs: list[Paragraph], spoken: list[tuple[Quotation, Verdict]]) -> Iterator[Found]:
    place, following = 0, 0
    for paragraph in paragraphs:
        place = max(place, paragraph.start)
        if paragraph.is_heading:
            yield from _told(text, place, paragraph.end, paragraph)
            continue
        while following < len(spoken) and spoken[following][0].left < paragraph.end:
            quotation, verdict = spoken[following]
            following += 1
            yield from _told(text, place, quotation.left, paragraph)
            start, end = _trimmed(text, quotation.start, quotation.end)
            content = " ".join(text[start:end].split())
            yield Found(verdict.speaker, content, "speech", paragraph.scene, start, end)
            place = quotation.right
        yield from _told(text, place, paragraph.end, paragraph)


def _told(text: str, start: int, end: int, paragraph: Paragraph) -> Iterator[Found]:
    start, end = _trimmed(text, start, end)
    content = " ".join(text[start:end].split())
    if any(map(str.isalnum, content)):
        if paragraph.is_heading:
            yield Found("scene", content, "direction", paragraph.scene, start, end)
        else:
            yield Found("narrator", content, "narration", paragraph.scene, start, end)


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    block = text[start:end]
    if not block.strip():
        return start, start
    return start + len(block) - len(block.lstrip()), start + len(block.rstrip())
