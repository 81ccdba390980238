"""The report as one HTML file: the answer first, scores with their intervals, and how each number came about.

The file holds all it needs: no address outside it, and no script; the page's own policy lets nothing run or load. Text
of models and data sets is escaped, and what a reader could not see in it is spelled out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, Final

from rolellm.core.errors import DataError
from rolellm.core.files import open_atomic
from rolellm.core.jsonl import write_jsonl
from rolellm.core.sanitize import truncate
from rolellm.core.table import Table, TableRow
from rolellm.reporting.blocks import Block
from rolellm.reporting.findings import LeadingAnswer
from rolellm.reporting.questions import MAX_QUESTIONS, QuestionSet
from rolellm.reporting.section import Section
from rolellm.reporting.templates import generate_page

#: Characters of a recipe or a manifest that are shown.
_MAX_JSON: Final = 40_000


@dataclass(frozen=True, slots=True)
class PageContent:
    """The content of a report.

    Attributes:
        title: The page's heading.
        parts: Its sections.
        questions: All rows with their answers.
        answers: What the reader came for, of each section.
        split_note: How the held-out rows were set apart from those trained on, in a sentence; may be empty.
        summary: What was done, in a sentence or two; may be empty.
        warnings: What a reader must know before the answers.
        findings: What came out beside the answers, in sentences.
        recipe: How the run was made (model, tuning, decoding), as a JSON object of any depth.
        blocks: What else was measured or made.
    """

    title: str
    parts: Sequence[Section] = ()
    questions: Sequence[QuestionSet] = ()
    answers: Sequence[LeadingAnswer] = ()
    split_note: str = ""
    summary: str = ""
    warnings: Sequence[str] = ()
    findings: Sequence[str] = ()
    recipe: Mapping[str, Any] = field(default_factory=dict)
    blocks: Sequence[Block] = ()

    @property
    def sentences(self) -> list[str]:
        """Everything that came out, the answers first."""
        answers = [sentence for answer in self.answers for sentence in answer.sentences]
        return [*self.warnings, *answers, *self.findings]


def write_page(out: Path, content: PageContent) -> Path:
    """Write the report, complete or not at all, and its questions as JSON Lines next to it.

    Args:
        out: The HTML file to write; its folder is made where needed.
        content: What to show.

    Returns:
        The file written.

    Raises:
        DataError: When there is nothing to report.
    """
    questions = out.with_suffix(".questions.jsonl")
    if content.questions:
        records = chain.from_iterable(part.records() for part in content.questions)
        write_jsonl(questions, records)
    with open_atomic(out) as stream:
        stream.writelines(page_pieces(content, questions.name))
    return out


def page_pieces(content: PageContent, questions_file: str = "report.questions.jsonl") -> Iterator[str]:
    """Render the page in pieces; the same text for the same content.

    Args:
        content: What to show.
        questions_file: The file next to the page that has every question.

    Raises:
        DataError: When there is nothing to report.
    """
    filled = [part for part in content.parts if part.reports or part.judged]
    if not filled and not content.blocks:
        raise DataError("nothing to report: expected the scores of at least one system")
    contrasts = {part.name: part.pick_contrasts() for part in content.questions}
    blocks = []
    for number, part in enumerate(content.parts, start=1):
        prefix = f"part-{number}-" if len(content.parts) > 1 else ""
        cards = contrasts.get(part.title, [])
        blocks.append(part.lay_out(prefix, cards))
    heroes = list(zip_longest(content.parts, content.answers))
    blocks += content.blocks
    if content.questions:
        blocks.append(_lay_out_questions(content.questions, questions_file))
    blocks.append(_lay_out_origins(content))
    return generate_page("page.html.jinja", content=content, blocks=blocks, heroes=heroes)


def _lay_out_questions(questions: Sequence[QuestionSet], file: str) -> Block:
    """Lay out as many rows of each section."""
    sections = [part.lay_out(MAX_QUESTIONS // len(questions)) for part in questions]
    shown = sum(len(section.blocks) for section in sections)
    count = sum(len(part.rows) for part in questions)
    note = (
        f"{shown:,} of {count:,} questions, drawn evenly from subsets and roles. All of them, with every answer and "
        f"reason, are in {file} next to this page, one JSON object per line."
    )
    blocks = sections if len(sections) > 1 else sections[0].blocks
    return Block("Questions", "questions", notes=[note], blocks=blocks)


def _lay_out_origins(content: PageContent) -> Block:
    """Lay out what every number depends on."""
    sentences = [f"Held out: {content.split_note}"] if content.split_note else []
    blocks = [Block("The run", code=_dump(content.recipe))] if content.recipe else []
    for part in content.parts:
        blocks.append(_lay_out_scoring(part))
        if part.manifest:
            title = "How it was judged: data, systems, judges and their prompts, orders, seeds"
            blocks.append(Block(title, code=_dump(part.manifest)))
    title = "How these numbers came about"
    return Block(title, "provenance", sentences=sentences, blocks=blocks)


def _lay_out_scoring(part: Section) -> Block:
    """Lay out how answers were matched with rows, and the recipe of each system's scores."""
    rows = []
    warnings = []
    origins = {}
    for name, report in part.reports.items():
        counts = (report.unmatched["predictions"], report.unmatched["rows"])
        rows.append(TableRow((name,), counts))
        warnings += [f"{name}: {warning}" for warning in report.warnings]
        options = {key: getattr(report.options, key) for key in ("protocol", "config", "split")}
        origins[name] = options | report.fingerprint
    heads = ("Answers that match no row", "Rows without an answer")
    tables = [Table("Answers and rows", ("System",), heads, tuple(rows))] if rows else []
    title = f"How {part.title or 'Rouge-L'} was scored"
    return Block(title, warnings=warnings, tables=tables, code=_dump(origins))


def _dump(value: Any) -> str:
    """Dump settings of any depth and size as JSON, cut where there is too much."""
    try:
        text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    except RecursionError:
        text = "… (nested too deeply to show)"
    return truncate(text, _MAX_JSON)
