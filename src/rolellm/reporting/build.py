"""A report from what is on disk: folders of judging runs, and files of predictions.

Each run is a section of the report; all files of predictions together are one more, of the config that is named for
them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from rolellm.checks.drift import MeasureDrift, read_drift
from rolellm.checks.safety import CheckSafety
from rolellm.core.errors import DataError, PredictionError, SettingsError
from rolellm.core.jsonl import read_json
from rolellm.core.progress import track_progress
from rolellm.core.records import Row
from rolellm.core.settings import read
from rolellm.core.table import Table, write_tables
from rolellm.core.text import make_safe_name
from rolellm.judging.records import RESULT, Judgement, JudgeRun, read_run
from rolellm.judging.result import JudgingResult
from rolellm.judging.systems import ROLEGPT_NAME, parse_sources
from rolellm.judging.verdicts import Verdicts, sort_verdicts
from rolellm.reporting.browse import BrowsePart
from rolellm.reporting.page import PageContent, write_page
from rolellm.reporting.safety_section import SafetySection
from rolellm.reporting.section import Section
from rolellm.reporting.settings import ReportOptions
from rolellm.reporting.tables import PUBLISHED, published_for
from rolellm.runs import find_runs
from rolellm.scoring.floors import add_scale, score_markers
from rolellm.scoring.predictions import Predictions, complete_source, read_predictions
from rolellm.scoring.rows import read_dataset_rows
from rolellm.scoring.score import load_training_rows, score_rows
from rolellm.scoring.score_report import ScoreReport
from rolellm.scoring.settings import ScoreOptions


@dataclass(frozen=True, slots=True, repr=False)
class BuiltReport:
    """A report, built and perhaps written.

    Attributes:
        content: What the page shows; :func:`rolellm.reporting.page.write_page` writes it.
        tables: All tables by a name fit for a file; with several sections, each name begins with its section's.
        page: The HTML file, once it is written.
        files: The files of the tables, once they are written.
    """

    content: PageContent
    tables: dict[str, Table]
    page: Path | None = None
    files: tuple[Path, ...] = ()

    def __repr__(self) -> str:
        return f"<report {self.page or self.content.title}: {', '.join(self.tables)}>"

    def to_dict(self) -> dict[str, Any]:
        """Return what was reported and written, as one JSON object."""
        written = {"report": str(self.page), "tables": [str(path) for path in self.files]} if self.page else {}
        return {**written, "title": self.content.title, "parts": [_dump_part(part) for part in self.content.parts]}


def report(
    runs: Any,
    out: str | Path = "report.html",
    tables: str | Path | None = None,
    **options: Any,
) -> BuiltReport:
    """Report results as one HTML page, and as tables for a paper.

    Args:
        runs: One of these or a list of them: the folder of a judging run or of ``rolellm check drift`` or ``safety``,
            predictions (``P.jsonl`` or ``NAME=P.jsonl``, with ``config=``), a `JudgingResult`, a `ScoreReport`, or the
            run that `rolellm.train` returns, whose manifest is shown. A mapping gives score reports their names.
        out: The page to write.
        tables: A folder for every table as Markdown, CSV and LaTeX.
        options: Any field of `ReportOptions`.

    Raises:
        SettingsError: For nothing to report, unknown options, files without a config, or a run given twice.
        DataError: For a run or a file that cannot be read.
    """
    chosen = read(ReportOptions, options)
    items = list(runs) if isinstance(runs, list | tuple) else [runs]
    sources: list[str] = []
    scored: dict[str, ScoreReport] = {}
    recipe: Mapping[str, Any] = {}
    for item in items:
        if isinstance(item, str | Path):
            sources.append(str(item))
        elif isinstance(item, JudgingResult) and item.folder is not None:
            sources.append(str(item.folder))
        elif isinstance(item, ScoreReport):
            scored[f"system {len(scored) + 1}" if len(items) > 1 else "system"] = item
        elif isinstance(item, Mapping) and all(isinstance(value, ScoreReport) for value in item.values()):
            scored |= item
        elif isinstance(getattr(item, "out", None), str | Path):
            recipe = read_json(Path(item.out) / "manifest.json")
        else:
            kind = type(item).__name__
            raise SettingsError(
                f"cannot report a {kind}; give runs, prediction files, score reports or judging results"
            )
    built = build_report(sources, chosen, scored=scored, recipe=recipe)
    page = write_page(Path(out), built.content)
    return replace(built, page=page, files=tuple(write_tables(Path(tables), built.tables)) if tables else ())


def build_report(
    sources: Sequence[str],
    options: ReportOptions | None = None,
    *,
    scored: Mapping[str, ScoreReport] | None = None,
    recipe: Mapping[str, Any] | None = None,
) -> BuiltReport:
    """Read runs and predictions, compute Rouge-L, and lay all of it out.

    Args:
        sources: Folders of judging runs, and files of predictions: ``P.jsonl``, or ``NAME=P.jsonl`` to name a system;
            files of one name count as one system.
        options: How.
        scored: Score reports by system, for a section of their own.
        recipe: How a model was trained, to be shown as it is.

    Raises:
        SettingsError: For no source, files without a config, two systems of one name, or a run given twice.
        DataError: For a folder that is not a finished judging run, or that has a damaged file; for a file of
            predictions that cannot be read or answers no row.
    """
    options = options or read(ReportOptions, {})
    drifts = {source: run for source in sources for run in find_runs(source, MeasureDrift.kind)}
    checks = {source: run for source in sources for run in find_runs(source, CheckSafety.kind)}
    sources = [source for source in sources if source not in drifts and source not in checks]
    drift = read_drift(drifts.values()) if drifts else None
    safety = [SafetySection.read(run) for run in checks.values()]
    is_checked = bool(scored or recipe or drift or safety)
    folders, files = _sort_sources(sources, options) if sources or not is_checked else ([], {})
    sections: list[tuple[Section, BrowsePart | None]] = [
        _read_judged_part(read_run(folder), options) for folder in folders
    ]
    if files:
        sections.append(_score_part(files, options))
    if scored:
        config = next(iter(scored.values())).options.config
        sections.append((Section(_make_title(config or "Answers", None), scored), None))
    parts = [part for part, _ in sections]
    tables = _name_tables(parts)
    if drift is not None:
        tables |= dict(zip(("drift-breaks", "drift"), drift.tables(), strict=True))
    for table in (check.named_table for check in safety if check.result.changes):
        tables[make_safe_name(table.title)] = table
    checked = "over many turns" if drift else "safety before and after tuning"
    manner = "judged" if any(part.judged for part in parts) else "scored" if parts or not (drift or safety) else checked
    systems = {} if drift is None else drift.systems
    provenance = recipe or {name: system.recipe for name, system in systems.items()}
    provenance = {**provenance, **{check.title: check.recipe for check in safety}}
    findings = [sentence for part in parts for sentence in _describe(part)]
    findings += [sentence for check in safety for sentence in check.result.remarks()]
    content = PageContent(
        options.title or f"Role-playing, {manner}",
        parts,
        [rows for _, rows in sections if rows is not None],
        summary=_describe_parts(parts),
        findings=findings,
        recipe=provenance,
        drift=drift,
        safety=safety,
    )
    return BuiltReport(content, tables)


def _name_tables(parts: Sequence[Section]) -> dict[str, Table]:
    """Name the tables of all sections; of several, each name begins with its section's."""
    tables: dict[str, Table] = {}
    for at, part in enumerate(parts, start=1):
        prefix = f"{at}-{make_safe_name(part.config or 'part')}-" if len(parts) > 1 else ""
        tables |= {f"{prefix}{name}": table for name, table in part.named_tables().items()}
    return tables


def _describe(part: Section) -> list[str]:
    """Say what was found about all but canaries."""
    sentences, verdicts = part.evidence.describe_scores(), part.evidence.describe_verdicts()
    return sentences + verdicts if part.judged is None or part.judged.valid else verdicts + sentences


def _sort_sources(sources: Sequence[str], options: ReportOptions) -> tuple[list[Path], dict[str, list[Path]]]:
    """Sort sources into folders and systems; refuse what is neither."""
    if not sources:
        raise SettingsError("nothing to report: name the folder of a judging run, or files of predictions")
    folders = [Path(source) for source in sources if Path(source).is_dir()]
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise SettingsError("a run is given twice; name each run once")
    systems = parse_sources([source for source in sources if not Path(source).is_dir()])
    for path in (path for paths in systems.values() for path in paths):
        if not path.is_file():
            raise DataError("no such file or folder; expected a judging run's folder, or predictions", path=path)
    if options.config and not systems:
        raise SettingsError("a judging run names its own config; --config is for files of predictions")
    return folders, systems


def _read_judged_part(run: JudgeRun, options: ReportOptions) -> tuple[Section, BrowsePart]:
    comparison, judged = run.comparison, JudgingResult.from_dict(run.result, run.folder / RESULT)
    scoring = _score_options(options, judged.config, judged.split, run.dataset.fingerprint)
    systems = {system.name: system for system in comparison.systems}
    reports: dict[str, ScoreReport] = {}
    for name in (system.name for system in judged.models if comparison.answers.get(system.name)):
        answers = comparison.answers[name]
        predictions = Predictions.pair_texts(list(answers), list(answers.values()))
        report = _score(name, comparison.rows, predictions, scoring)
        reports[name] = replace(report, fingerprint={**report.fingerprint, "answers": dict(systems[name].source)})
    judgements = track_progress(run.judgements(), "reading judgements")
    verdicts = sort_verdicts(judgements, comparison.baseline, comparison.canaries)
    released = published_for(judged.config, judged.split, comparison.rows)
    part = Section(_make_title(judged.config, run.folder), reports, judged, run.recipe, released)
    questions = BrowsePart(
        name=part.title,
        rows=comparison.rows,
        answers={system.name: comparison.answers[system.name] for system in judged.models if system.name in systems},
        outcomes=verdicts.outcomes,
        rouge=_map_row_scores(reports),
        kinds={system.name: system.kind for system in comparison.systems},
        series=part.series,
        disputed=_find_disputed_rows(verdicts),
    )
    return part, questions


def _score_part(systems: Mapping[str, Sequence[Path]], options: ReportOptions) -> tuple[Section, BrowsePart]:
    from rolellm.data.rolebench import dataset_fingerprint, load_rolebench

    files = (path for paths in systems.values() for path in paths)
    config, split, data_dir = complete_source(files, options.config, options.split, options.data_dir)
    rows = read_dataset_rows(load_rolebench(config, split, data_dir=data_dir))
    content = dataset_fingerprint(config, data_dir)
    scoring = _score_options(options, config, split, content, data_dir)
    read: dict[str, Predictions] = {}
    own = {row.id: row.rolegpt for row in rows if row.rolegpt is not None}
    if own and ROLEGPT_NAME not in systems:
        read[ROLEGPT_NAME] = Predictions.pair_texts(list(own), list(own.values()))
    read |= {name: read_predictions(paths) for name, paths in systems.items()}
    reports = {name: _score(name, rows, predictions, scoring) for name, predictions in read.items()}
    training = load_training_rows(scoring)
    scored = {row_score.id for report in reports.values() for row_score in report.scores}
    markers = score_markers(rows, scored, scoring, read_dataset_rows(training) if training else [])
    reports = {name: add_scale(report, markers) for name, report in reports.items()}
    answers = {name: read[name].map_texts(rows, report.answers) for name, report in reports.items()}
    kinds = {ROLEGPT_NAME: "baseline"} if ROLEGPT_NAME in read else {}
    # The baseline's own replies are not there for every row.
    by_all = [{row_score.id for row_score in report.scores} for name, report in reports.items() if name in systems]
    released = published_for(config, split, [row for row in rows if all(row.id in ids for ids in by_all)])
    part = Section(_make_title(config, None), reports, released=released)
    return part, BrowsePart(part.title, rows, answers, rouge=_map_row_scores(reports), kinds=kinds)


def _score(name: str, rows: Sequence[Row], predictions: Predictions, options: ScoreOptions) -> ScoreReport:
    try:
        return score_rows(rows, predictions, options, label=f"scoring {name}")
    except PredictionError as error:
        raise PredictionError(f"{name}: {error.problem}", path=error.path, line=error.line) from error


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
        processes=options.processes,
    )


def _map_row_scores(reports: Mapping[str, ScoreReport]) -> dict[str, dict[str, float]]:
    """Return each answer's Rouge-L against its references (not the role-free target)."""
    return {
        name: {row_score.id: row_score.value for row_score in report.scores if row_score.metric != "RAW"}
        for name, report in reports.items()
    }


def _find_disputed_rows(verdicts: Verdicts) -> set[str]:
    """Find rows on which orders or judges disagree about a pair; where no pairs were judged, about the best."""
    values: dict[tuple[str, str], set[Any]] = defaultdict(set)
    for pair in verdicts.pairs:
        values[pair.row, pair.system] |= {pair.first, pair.second}
    for judgement in verdicts.lists if not verdicts.pairs else ():
        values[judgement.row, ""].add(_select_best(judgement))
    return {row for (row, _), each in values.items() if len(each) > 1}


def _select_best(judgement: Judgement) -> frozenset[str]:
    """Return who is first: several, where they tie, whichever of them was shown first."""
    ranks = judgement.ranks or ()
    return frozenset(name for name, rank in zip(judgement.order, ranks, strict=False) if rank == min(ranks))


def _make_title(config: str | None, folder: Path | None) -> str:
    table = PUBLISHED.get(config or "")
    where = f" ({folder.name})" if folder is not None and folder.name else ""
    return f"{table.title if table else config or 'Judged answers'}{where}"


def _describe_parts(parts: Sequence[Section]) -> str:
    """Say what was done, in a sentence or two."""
    judged = [part.judged for part in parts if part.judged]
    if not parts:
        return ""
    if not judged:
        return "Answers scored by Rouge-L, with the recipe behind every number."
    *names, last = dict.fromkeys(judge.name for result in judged for judge in result.judges) or ["nobody"]
    judges = f"{', '.join(names)} and {last}" if names else last
    canaries = any(model.kind == "canary" for result in judged for model in result.models)
    attackers = " Some of the systems are attackers that do not answer." if canaries else ""
    return f"Answers in character, ranked by {judges}, blind to who wrote them and in several orders.{attackers}"


def _dump_part(part: Section) -> dict[str, Any]:
    judged = part.judged
    return {
        "title": part.title,
        "config": part.config,
        "protocol": part.options and part.options.protocol,
        "systems": list(dict.fromkeys([*part.series, *part.reports])),
        "published": part.published is not None,
        "valid": None if judged is None else judged.valid,
        "problems": [] if judged is None else list(judged.problems),
    }
