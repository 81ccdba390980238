"""A report from results: judging runs, predictions, scores, and runs of ``rolellm check``.

Each judging run is a section of the report; all files of predictions together are one more, of the config that is
named for them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from rolellm.checks.drift import MeasureDrift, read_drift
from rolellm.checks.safety import CheckSafety, read_safety
from rolellm.core.errors import DataError, PredictionError, SettingsError
from rolellm.core.progress import track_progress
from rolellm.core.records import Row
from rolellm.core.result import Result
from rolellm.core.settings import read, suggest_keywords
from rolellm.core.table import Table, write_tables
from rolellm.core.text import join_names, make_safe_name
from rolellm.data.rolebench.schema import SAMPLE
from rolellm.judging.records import RESULT, JudgeRun, read_run
from rolellm.judging.result import JudgingResult
from rolellm.judging.systems import ROLEGPT_NAME, parse_sources
from rolellm.judging.verdicts import sort_verdicts
from rolellm.reporting.blocks import Block, lay_out_drift, lay_out_safety, name_safety_models
from rolellm.reporting.findings import THIS, LeadingAnswer, PairTest
from rolellm.reporting.page import PageContent, Section, write_page
from rolellm.reporting.questions import QuestionSet
from rolellm.reporting.settings import ReportOptions
from rolellm.reporting.tables import COMPARED
from rolellm.runs import Run, find_runs
from rolellm.scoring.floors import add_scale
from rolellm.scoring.own_turns import OwnTurns
from rolellm.scoring.predictions import PredictionFile, Predictions, complete_source, read_predictions
from rolellm.scoring.published import PUBLISHED, published_for
from rolellm.scoring.rows import read_dataset_rows
from rolellm.scoring.score import load_training_rows, score_markers, score_rows
from rolellm.scoring.score_report import ScoreReport
from rolellm.scoring.settings import ScoreOptions


@dataclass(frozen=True, slots=True)
class ReportSources:
    """The results that a report is made of.

    Attributes:
        judged: Finished judging runs, a section each.
        predictions: System to its files of predictions; a section together.
        scored: System to its score report; a section together.
        drifts: Finished runs of ``rolellm check drift``.
        checks: Finished runs of ``rolellm check safety``.
        own: Rows of one's own that the predictions answer, instead of a config's.
        changes: Tests of other measures than those of the sections.
    """

    judged: list[JudgeRun] = field(default_factory=list)
    predictions: dict[str, list[Path]] = field(default_factory=dict)
    scored: dict[str, ScoreReport] = field(default_factory=dict)
    drifts: list[Run[Any]] = field(default_factory=list)
    checks: list[Run[Any]] = field(default_factory=list)
    own: OwnTurns | None = None
    changes: tuple[PairTest, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class BuiltReport(Result):
    """A report, built and perhaps written.

    Attributes:
        content: What the page shows; :func:`rolellm.reporting.page.write_page` writes it.
        named_tables: All tables by a name fit for a file; with several sections, each name begins with its section's.
        page: The HTML file, once it is written.
        files: The files of the tables, once they are written.
    """

    content: PageContent
    named_tables: dict[str, Table]
    page: Path | None = None
    files: tuple[Path, ...] = ()

    def tables(self) -> Sequence[Table]:
        """Return the tables of the checks, and the main one of each section."""
        tables: list[Table] = []
        for block in self.content.blocks:
            tables += block.tables
        for part in self.content.parts:
            tables.append(part.name_recipe(part.table))
        return tables

    def remarks(self) -> Sequence[str]:
        """Return which system is better, the findings, and where the tables are."""
        remarks = self.content.sentences
        if self.files:
            folder = self.files[0].parent
            remarks.append(f"Tables: {folder} ({len(self.files)} files)")
        return remarks

    def to_dict(self) -> dict[str, Any]:
        """Return what was reported and written, as one JSON object."""
        described: dict[str, Any] = {}
        if self.page:
            described = {"report": str(self.page), "tables": list(map(str, self.files))}
        described |= {"title": self.content.title, "findings": self.content.sentences}
        return described | {"parts": [part.to_dict() for part in self.content.parts]}


@suggest_keywords(ReportOptions)
def report(
    runs: Any,
    out: str | Path = "report.html",
    tables: str | Path | None = None,
    **options: Any,
) -> BuiltReport:
    """Report results as one HTML page, and as tables for a paper.

    Args:
        runs: One of these or a list of them: the folder of a judging run or of ``rolellm check drift`` or ``safety``,
            predictions (``P.jsonl`` or ``NAME=P.jsonl``, with ``config=``), a `JudgingResult` or a `ScoreReport`. A
            mapping gives score reports their names.
        out: The page to write.
        tables: A folder for every table as Markdown, CSV and LaTeX.
        options: Any field of `ReportOptions`.

    Raises:
        SettingsError: For nothing to report, unknown options, files without a config, or a run given twice.
        DataError: For a run or a file that cannot be read.
    """
    chosen = read(ReportOptions, options)
    items = runs if isinstance(runs, list | tuple) else [runs]
    built = build_report(collect_sources(items), chosen)
    page = write_page(Path(out), built.content)
    files = write_tables(Path(tables), built.named_tables) if tables else ()
    return replace(built, page=page, files=tuple(files))


def collect_sources(items: Sequence[Any]) -> ReportSources:
    """Read what `report` takes.

    Raises:
        SettingsError: For a kind of result that cannot be reported, two systems of one name, or a run given twice.
        DataError: For a folder that is not a finished run, or that has a damaged file.
    """
    sources = ReportSources()
    files: list[str] = []
    folders: list[Path] = []
    for item in items:
        source = item.folder if isinstance(item, JudgingResult) else item
        if isinstance(item, ScoreReport):
            sources.scored[f"system {len(sources.scored) + 1}"] = item
        elif isinstance(item, Mapping) and all(isinstance(value, ScoreReport) for value in item.values()):
            sources.scored.update(item)
        elif not isinstance(source, str | Path):
            kind = type(item).__name__
            problem = f"cannot report a {kind}; give runs, prediction files, score reports or judging results"
            raise SettingsError(problem)
        elif not Path(source).is_dir():
            files.append(str(source))
        elif Path(source).resolve() in folders:
            raise SettingsError("a run is given twice; name each run once")
        else:
            folders.append(Path(source).resolve())
            drifts = find_runs(source, MeasureDrift.kind)
            checks = find_runs(source, CheckSafety.kind)
            sources.drifts.extend(drifts)
            sources.checks.extend(checks)
            if not drifts and not checks:
                sources.judged.append(read_run(Path(source)))
    sources.predictions.update(parse_sources(files))
    return sources


def build_report(sources: ReportSources, options: ReportOptions | None = None) -> BuiltReport:
    """Compute Rouge-L of all answers, and lay the results out.

    Args:
        sources: The results.
        options: How.

    Raises:
        SettingsError: For no source, files without a config, or score reports that do not compare.
        DataError: For a file of predictions that cannot be read or answers no row.
    """
    options = options or read(ReportOptions, {})
    if not any(getattr(sources, name) for name in sources.__dataclass_fields__):
        raise SettingsError("nothing to report: name the folder of a judging run, or files of predictions")
    if options.config and sources.judged and not sources.predictions:
        raise SettingsError("a judging run names its own config; --config is for files of predictions")
    sections = [_read_judged_part(run, options, sources.own) for run in sources.judged]
    if sources.own and not sections:
        sections.append(_score_own_part(sources.own, sources.predictions, options))
    elif sources.predictions:
        sections.append(_score_part(sources.predictions, options))
    parts: list[Section] = []
    questions: list[QuestionSet] = []
    answers: list[LeadingAnswer] = []
    for section, part_questions in sections:
        part = replace(section, changes=sources.changes)
        parts.append(part)
        questions.append(part_questions)
        answer = part.evidence.answer()
        failure = part_questions.describe_failure(answer.lead)
        answers.append(replace(answer, failure=failure))
    if sources.scored:
        first, *_ = sources.scored.values()
        for name in COMPARED:
            values = {str(getattr(report.options, name)) for report in sources.scored.values()}
            if len(values) > 1:
                text = ", ".join(sorted(values))
                raise SettingsError(f"these scores do not compare: {name} is {text}; score all answers alike")
        part = Section(_make_title(first.options.config or "Answers"), sources.scored)
        parts.append(part)
        answers.append(part.evidence.answer())
    tables = _name_tables(parts)
    findings = [sentence for part in parts for sentence in part.describe()]
    recipe: dict[str, Any] = {}
    blocks: list[Block] = []
    if sources.drifts:
        drift = read_drift(sources.drifts)
        blocks.append(lay_out_drift(drift))
        tables["drift-breaks"], tables["drift"] = drift.tables()
        for name, system in drift.systems.items():
            recipe.setdefault(name, system.recipe)
    for number, run in enumerate(sources.checks, start=1):
        safety, title = read_safety(run), name_safety_models(run)
        block = lay_out_safety(safety, title, number)
        blocks.append(block)
        recipe[title] = {name: run.manifest[name] for name in ("settings", "play", "guard", "models")}
        findings += safety.remarks()
        if safety.changes:
            (table,) = block.tables
            tables[make_safe_name(table.title)] = table
    titles = [part.title for part in parts]
    titles += [block.title for block in blocks]
    content = PageContent(
        f"Report: {join_names(titles)}", parts, questions, answers, findings=findings, recipe=recipe, blocks=blocks
    )
    return BuiltReport(content, tables)


def _name_tables(parts: Sequence[Section]) -> dict[str, Table]:
    """Name the tables of all sections; of several, each name begins with its section's."""
    tables: dict[str, Table] = {}
    for number, part in enumerate(parts, start=1):
        name = make_safe_name(part.config or "part")
        prefix = f"{number}-{name}-" if len(parts) > 1 else ""
        for key, table in part.tables.items():
            tables[f"{prefix}{key}"] = part.name_recipe(table)
    return tables


def _read_judged_part(run: JudgeRun, options: ReportOptions, own: OwnTurns | None) -> tuple[Section, QuestionSet]:
    comparison = run.comparison
    if own is not None:
        # Judges read whole talks as questions.
        comparison = replace(comparison, rows=own.rows)
    judged = JudgingResult.from_dict(run.result, run.folder / RESULT)
    scoring = _score_options(options, judged.config, judged.split, run.dataset.fingerprint)
    predictions = {}
    sources = {system.name: system.source for system in comparison.systems}
    for model in judged.models:
        replies = comparison.answers.get(model.name, {})
        is_reference = own is not None and model.name == comparison.baseline
        if replies and not is_reference:
            predictions[model.name] = _restore_predictions(sources[model.name], replies)
    # Other training rows would have to be downloaded.
    training = load_training_rows(scoring) if judged.config == SAMPLE else None
    title = _make_title(judged.config, run.folder)
    if own is not None:
        training = list(map(asdict, own.trained))
        title = own.name
    part, scored = _score_systems(title, predictions, comparison.rows, scoring, training, comparison.canaries)
    released = published_for(judged.config, judged.split, comparison.rows)
    part = replace(part, judged=judged, manifest=run.recipe, released=released)
    return part, replace(_collect_questions(run), name=title, rows=comparison.rows, rouge=scored.rouge)


def _collect_questions(run: JudgeRun) -> QuestionSet:
    """Collect the rows of a judging run with all answers and what judges made of them."""
    comparison = run.comparison
    judgements = track_progress(run.judgements(), "reading judgements")
    verdicts = sort_verdicts(judgements, comparison.baseline, comparison.canaries)
    kinds = {system.name: system.kind for system in comparison.systems}
    answers = {name: comparison.answers[name] for name in kinds}
    return QuestionSet("", comparison.rows, answers, verdicts.outcomes, kinds=kinds)


def answer_judging(result: JudgingResult) -> list[str]:
    """Return the sentences that a reader of a judging run came for; none where the judge is not shown to be fit."""
    evidence = Section("", {}, result).evidence
    if not evidence.tests:
        return []
    answer = evidence.answer()
    if result.folder is not None:
        questions = _collect_questions(read_run(result.folder))
        answer = replace(answer, failure=questions.describe_failure(answer.lead))
    return answer.sentences


def answer_scoring(report: ScoreReport) -> list[str]:
    """Return the sentence that a reader of one system's scores came for; none without floors."""
    evidence = Section("", {THIS: report}).evidence
    return evidence.answer().sentences if evidence.tests else []


def _score_part(systems: Mapping[str, Sequence[Path]], options: ReportOptions) -> tuple[Section, QuestionSet]:
    from rolellm.data.rolebench import dataset_fingerprint, load_rolebench

    files = [path for paths in systems.values() for path in paths]
    for path in files:
        if not path.is_file():
            raise DataError("no such file or folder; expected a judging run's folder, or predictions", path=path)
    config, split, data_dir = complete_source(files, options.config, options.split, options.data_dir)
    rows = read_dataset_rows(load_rolebench(config, split, data_dir=data_dir))
    scoring = _score_options(options, config, split, dataset_fingerprint(config, data_dir), data_dir)
    predictions: dict[str, Predictions] = {}
    released_replies = {row.id: row.rolegpt for row in rows if row.rolegpt is not None}
    if released_replies and ROLEGPT_NAME not in systems:
        predictions[ROLEGPT_NAME] = _pair_texts(released_replies)
    for name, paths in systems.items():
        predictions[name] = read_predictions(paths)
    training = load_training_rows(scoring)
    part, questions = _score_systems(_make_title(config), predictions, rows, scoring, training)
    kinds = {ROLEGPT_NAME: "baseline"} if ROLEGPT_NAME in predictions else {}
    # The baseline's own replies are not there for every row.
    shared_ids = {row.id for row in rows}
    for name in systems:
        shared_ids &= {row_score.id for row_score in part.scored[name].scores}
    shared_rows = [row for row in rows if row.id in shared_ids]
    released = published_for(config, split, shared_rows)
    return replace(part, released=released), replace(questions, kinds=kinds)


def _score_own_part(
    own: OwnTurns, systems: Mapping[str, Sequence[Path]], options: ReportOptions
) -> tuple[Section, QuestionSet]:
    scoring = _score_options(options, None, None, None)
    predictions = {name: read_predictions(paths) for name, paths in systems.items()}
    training = list(map(asdict, own.trained))
    return _score_systems(own.name, predictions, own.rows, scoring, training)


def _score_systems(
    title: str,
    predictions: Mapping[str, Predictions],
    rows: Sequence[Row],
    options: ScoreOptions,
    training: Any,
    canaries: Collection[str] = (),
) -> tuple[Section, QuestionSet]:
    """Score systems, all but canaries with floors, baseline and reference, and collect their answers."""
    reports: dict[str, ScoreReport] = {}
    answers: dict[str, Mapping[str, str]] = {}
    rouge: dict[str, Mapping[str, float]] = {}
    scored_ids: set[str] = set()
    for name, items in predictions.items():
        try:
            report = score_rows(rows, items, options, label=f"scoring {name}")
        except PredictionError as error:
            raise PredictionError(f"{name}: {error.problem}", path=error.path, line=error.line) from error
        reports[name] = report
        answers[name] = items.map_texts(rows, report.answers)
        # Against the references, not the role-free target.
        scores = [row_score for row_score in report.scores if row_score.metric != "RAW"]
        rouge[name] = {row_score.id: row_score.value for row_score in scores}
        if name not in canaries:
            scored_ids.update(row_score.id for row_score in report.scores)
    training_rows = read_dataset_rows(training) if training else []
    markers = score_markers(rows, scored_ids, options, training_rows)
    for name in reports.keys() - set(canaries):
        reports[name] = add_scale(reports[name], markers)
    return Section(title, reports), QuestionSet(title, rows, answers, rouge=rouge)


def _pair_texts(replies: Mapping[str, str]) -> Predictions:
    return Predictions.pair_texts(list(replies), list(replies.values()))


def _restore_predictions(source: Mapping[str, Any], replies: Mapping[str, str]) -> Predictions:
    """Restore what a judging run keeps of predictions: the answers, and how a file of them was made."""
    predictions = _pair_texts(replies)
    files = source.get("files", ())
    if len(files) != 1:
        return predictions
    (record,) = files
    file = PredictionFile(Path(record["file"]), record["sha256"], len(replies), record.get("generation"))
    return replace(predictions, files=(file,))


def _score_options(
    options: ReportOptions,
    config: str | None,
    split: str | None,
    fingerprint: str | None,
    data_dir: Path | None = None,
) -> ScoreOptions:
    """Choose how Rouge-L is computed for a config."""
    protocol = options.protocol or ("paper" if config in PUBLISHED else "rouge-score")
    return ScoreOptions(
        protocol=cast(Any, protocol),  # checked there
        config=config,
        split=split,
        dataset_fingerprint=fingerprint,
        data_dir=data_dir,
    )


def _make_title(config: str | None, folder: Path | None = None) -> str:
    table = PUBLISHED.get(config or "")
    title = table.title if table else config or "Judged answers"
    return f"{title} ({folder.name})" if folder is not None and folder.name else title
