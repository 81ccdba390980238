"""The report as one HTML file: the answer first, scores with their intervals, and how each number came about.

The file holds all it needs: no address outside it, and no script; the page's own policy lets nothing run or load. Text
of models and data sets is escaped, and what a reader could not see in it is spelled out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, Final

from rolellm.core.errors import DataError
from rolellm.core.files import open_atomic
from rolellm.core.jsonl import write_jsonl
from rolellm.core.sanitize import truncate
from rolellm.core.table import Table, TableRow
from rolellm.core.text import format_count
from rolellm.judging.result import MEASURES, JudgingResult, SystemFigures
from rolellm.judging.systems import ROLEGPT_NAME
from rolellm.reporting import plots
from rolellm.reporting.blocks import Block
from rolellm.reporting.findings import Evidence, LeadingAnswer, PairTest
from rolellm.reporting.questions import MAX_QUESTIONS, QuestionSet
from rolellm.reporting.tables import (
    describe_recipe,
    judged_tables,
    role_table,
    roles_of,
    system_table,
)
from rolellm.reporting.templates import generate_page
from rolellm.scoring.published import PUBLISHED, PublishedTable
from rolellm.scoring.score_report import ScoreReport
from rolellm.scoring.settings import ScoreOptions

#: Characters of a recipe or a manifest that are shown.
_MAX_JSON: Final = 40_000
_INTERVALS: Final = (
    "Below each mean is its 95 % interval; the table’s caption says how it was computed and for which roles. n is the "
    "number of rows behind a mean. A dash means no data, which is not 0."
)
_ROUGE: Final = (
    "Rouge-L, 0 to 1. CUS, speaking style: answers to general instructions against RoleGPT’s replies. RAW, accuracy: "
    "the same answers against the instruction’s role-free target. SPE, role knowledge: answers to role-specific "
    "questions against theirs. avg: mean of the three."
)
_OWN_ROUGE: Final = "Rouge-L, 0 to 1. CUS, likeness to what was said: replies to turns of your own dialogues."
_LENGTH: Final = (
    "LC, length-controlled: the win rate if the answers were as long as the baseline’s, from a logistic model of the "
    "outcome on the difference in length, after AlpacaEval 2. It assumes that length affects only the judge, and "
    "equally in all rows."
)
_CANARIES: Final = (
    "Canaries do not answer: one says the same words to every question, one repeats what the judge reads and adds a "
    "verdict of its own. Their scores are what a system can get without answering."
)
_TESTS: Final = (
    "Paired tests: the difference between two systems on the same rows, its 95 % interval, and p of the same "
    "computation, before and after Holm’s correction for all pairs of one measure. Win rates in percentage points. "
    "Canaries are left out. A p above .05 does not show that two systems are equal."
)
_OUTCOMES: Final = (
    "Win: 1 if the answer beats the baseline’s in both orders, 0 if it loses in both, .5 if even. Rank: mean place in "
    "the lists, from 1 (best), among the models; canaries do not count."
)
_JUDGES: Final = (
    "A judge may favor its own family: such systems are marked in every table above. A judge may prefer length, or "
    "longer answers may be better; the table cannot tell which. Answers are fenced by markers that no answer can know."
)


@dataclass(frozen=True)
class Section:
    """The content of one section of a report.

    Attributes:
        title: Its heading.
        scored: System name to its score report, in the order to show; in a judged section the models' order.
        judged: What judges found; ``None`` where Rouge-L is all there is.
        manifest: How it was judged, as a JSON object of any depth.
        released: The paper's table, where the rows are those of the release that it scored.
        changes: Tests of other measures.
    """

    title: str
    scored: Mapping[str, ScoreReport]
    judged: JudgingResult | None = None
    manifest: Mapping[str, Any] = field(default_factory=dict)
    released: PublishedTable | None = None
    changes: Sequence[PairTest] = ()

    def __post_init__(self) -> None:
        if self.judged:
            object.__setattr__(self, "judged", self.judged.leading)

    @cached_property
    def reports(self) -> dict[str, ScoreReport]:
        """The score reports as tables show them."""
        return {name: report.leading for name, report in self.scored.items()}

    @cached_property
    def models(self) -> dict[str, SystemFigures]:
        """The judged systems by name."""
        models = self.judged.models if self.judged else ()
        return {model.name: model for model in models}

    @property
    def options(self) -> ScoreOptions | None:
        """Options of the first system's scores, for what all share."""
        return next((report.options for report in self.reports.values()), None)

    @property
    def config(self) -> str | None:
        """The data set's config, where the section names one."""
        if self.options and self.options.config:
            return self.options.config
        return self.judged.config if self.judged else None

    @property
    def published(self) -> PublishedTable | None:
        """The paper's table where its rows may be shown with ours: the same rows, and the same protocol."""
        if self.released is None or self.options is None:
            return None
        return self.released if self.options.protocol == self.released.protocol else None

    @cached_property
    def series(self) -> dict[str, int]:
        """System name to the number of its color and marker."""
        return {name: number for number, name in enumerate(self.models or self.reports)}

    @cached_property
    def table(self) -> Table:
        """The section's one table that has it all."""
        return system_table(self.reports, self.judged, self.published, title=self.title or "Rouge-L")

    @cached_property
    def evidence(self) -> Evidence:
        """The evidence of its findings: all systems but canaries, baselines last."""
        scored: dict[str, ScoreReport] = {}
        baselines: dict[str, ScoreReport] = {}
        for name, report in self.reports.items():
            kind = self.models[name].kind if name in self.models else "model"
            if kind == "baseline" or name == ROLEGPT_NAME:
                baselines[name] = report
            elif kind == "model":
                scored[name] = report
        names = {*baselines}
        if self.judged and self.judged.baseline:
            names.add(self.judged.baseline)
        return Evidence(scored | baselines, self.judged, self.changes, sorted(names))

    def describe(self) -> list[str]:
        """Say whether the judges' figures stand, and what was found about all but canaries."""
        return self.evidence.describe_judges() + self.evidence.describe_pairs()

    def to_dict(self) -> dict[str, Any]:
        """Return what the section reports on, as one JSON object."""
        systems = dict.fromkeys([*self.series, *self.reports])
        described: dict[str, Any] = {"title": self.title, "config": self.config}
        described["systems"] = list(systems)
        described["protocol"] = self.options and self.options.protocol
        described["published"] = self.published is not None
        described["valid"] = self.judged and self.judged.valid
        described["problems"] = list(self.judged.problems) if self.judged else []
        return described

    @cached_property
    def tables(self) -> dict[str, Table]:
        """Every table that has a line, by a name fit for a file."""
        tables: dict[str, Table | None] = {"scores": self.table}
        tables["roles-rouge"] = role_table(self.reports)
        if self.judged:
            tables |= judged_tables(self.judged)
        return {name: table for name, table in tables.items() if table is not None}

    def name_recipe(self, table: Table) -> Table:
        """Return a table with the recipe behind its numbers under it: alone in a file, nothing else says it."""
        recipe = describe_recipe(self.reports)
        more = table.note.removeprefix(recipe).removeprefix(". ")
        sentences = [", ".join(self._list_facts()), more]
        return replace(table, note=". ".join(filter(None, sentences)))

    def _list_facts(self) -> Iterator[str]:
        """List what was measured on what, and what the numbers depend on."""
        recipe = describe_recipe(self.reports)
        if recipe:
            yield recipe
        roles = {*roles_of(self.reports.values())}
        if self.judged is None:
            yield format_count(len(roles), "role")
            return
        roles |= {*self.judged.list_groups("by_role")}
        yield format_count(len(roles), "role")
        yield f"{self.judged.rows:,} rows"
        yield format_count(self.judged.questions, "question")
        if self.options and self.options.dataset_fingerprint:
            yield f"data {self.options.dataset_fingerprint[:12]}"
        yield f"judged by {', '.join(judge.name for judge in self.judged.judges)}"
        if self.manifest.get("hash"):
            yield f"judging {str(self.manifest['hash'])[:12]}"
        if not self.judged.valid:
            yield "not valid"

    def draw_overview(self) -> list[str]:
        """Draw each system's measures: what judges made of them, and Rouge-L."""
        pictures = []
        if self.judged:
            pictures.append(plots.plot_verdicts(self.judged, self.series))
        canaries = {name for name, model in self.models.items() if model.kind == "canary"}
        models = {name: report for name, report in self.reports.items() if name not in canaries}
        pictures.append(plots.plot_scores(models, self.series))
        return list(filter(None, pictures))

    def lay_out(self, prefix: str = "") -> Block:
        """Lay the section out.

        Args:
            prefix: Goes before the ids of its blocks, so that each is there once in a page of several sections.
        """
        notes = [*self._describe_table(), *self._describe_published()]
        blocks = [Block("All figures", f"{prefix}figures", tables=[self.table], notes=notes)]
        by_role = self._lay_out_tables("roles-win-rate", "roles-rouge")
        if by_role:
            blocks.append(Block("By role", f"{prefix}roles", blocks=by_role))
        if self.judged:
            tests = self._lay_out_tables("tests")
            blocks.append(Block("Which systems differ", f"{prefix}significance", blocks=tests, notes=[_TESTS]))
            tables = self._lay_out_tables("habits", "judges-win-rate")
            notes = [self._describe_unscored(), _JUDGES]
            blocks.append(Block("How far to trust the judges", f"{prefix}judges", blocks=tables, notes=notes))
        warnings = self.judged.problems if self.judged else ()
        recipe = ", ".join(self._list_facts())
        section = Block(self.title or "Scores", f"{prefix}scores", warnings, notes=[recipe], is_folded=False)
        return replace(section, blocks=blocks)

    def _lay_out_tables(self, *names: str) -> list[Block]:
        """Lay out tables under their titles."""
        tables = [self.tables[name] for name in names if name in self.tables]
        return [Block(table.title, tables=[table], is_folded=False) for table in tables]

    def _describe_table(self) -> Iterator[str]:
        """Say what the columns of the main table mean."""
        yield _INTERVALS
        if self.reports:
            has_dialogues = any(report.has_dialogues for report in self.reports.values())
            yield _OWN_ROUGE if has_dialogues else _ROUGE
        if self.judged is None:
            return
        baseline = self.judged.baseline
        if baseline:
            yield (
                f"Win rate: share of rows won against {baseline} in pairs, each judged in both orders, ties half. "
                f"Above base in lists: share of lists in which the system ranks above {baseline}, ties half. "
                "Consistency: share of pairs in which both orders agree."
            )
            if MEASURES["lc_win_rate"] in self.table.columns:
                yield _LENGTH
            for model in self.judged.models:
                if model.kind == "model" and model.pairwise and model.pairwise.length_problem:
                    yield f"No length-controlled win rate of {model.name}: {model.pairwise.length_problem}."
        yield "Avg. rank: mean place among the models in lists of all systems, from 1 (best), in rotated orders."
        if any(model.kind == "canary" for model in self.judged.models):
            yield _CANARIES

    def _describe_published(self) -> Iterator[str]:
        """Say what the paper's rows are, or why they are not shown."""
        if self.published:
            text = f"Rows marked published are the paper’s own ({self.published.source}), without intervals."
            if self.judged:
                text += (
                    " Its win rates are shares of lists above RoleGPT, by a GPT judge of 2023: compare their order "
                    "with ours, not their level."
                )
            yield text
        elif (self.config or "") in PUBLISHED:
            reason = "its Rouge-L is recall under protocol paper, and the numbers here are not"
            if self.released is None:
                reason = "it scored the release's whole test split, and the rows here are others or only some of them"
            yield f"The paper’s rows for this config are left out: {reason}."

    def _describe_unscored(self) -> str:
        assert self.judged is not None
        unscored = self.judged.diagnostics.unscored
        reasons = [f"{reason}: {count:,}" for reason, count in unscored.by_reason.items()]
        return f"{unscored.describe()}. They count neither as wins nor as losses. {'; '.join(reasons[:5])}"


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
    blocks = []
    for number, part in enumerate(content.parts, start=1):
        prefix = f"part-{number}-" if len(content.parts) > 1 else ""
        blocks.append(part.lay_out(prefix))
    heroes = list(zip_longest(content.parts, content.answers))
    blocks += content.blocks
    if content.questions:
        blocks.append(_lay_out_questions(content.questions, questions_file))
    blocks.append(_lay_out_origins(content))
    return generate_page(content=content, blocks=blocks, heroes=heroes)


def _lay_out_questions(questions: Sequence[QuestionSet], file: str) -> Block:
    """Lay out as many rows of each section."""
    sections = [part.lay_out(MAX_QUESTIONS // len(questions)) for part in questions]
    shown = sum(len(section.blocks) for section in sections)
    count = sum(len(part.rows) for part in questions)
    note = (
        f"{shown:,} of {count:,} questions, drawn evenly from subsets and roles. All of them, with every answer and "
        f"reason, are in {file} next to this page, one JSON object per line."
    )
    notes = [note]
    if any(part.outcomes for part in questions):
        notes.append(_OUTCOMES)
    blocks = sections if len(sections) > 1 else sections[0].blocks
    return Block("Questions", "questions", notes=notes, blocks=blocks)


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
