"""A report from what is on disk: folders of judging runs, and files of predictions.

Each run is a section of the report; all files of predictions together are one more, of the config that is named for
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from rolellm.core.errors import DataError, PredictionError, SettingsError
from rolellm.core.jsonl import read_json
from rolellm.core.records import Row
from rolellm.core.settings import read
from rolellm.core.text import safe_name
from rolellm.evaluation.floors import markers, with_scale
from rolellm.evaluation.predictions import Predictions, read_predictions
from rolellm.evaluation.rows import rows_of
from rolellm.evaluation.score import ScoreReport, score_rows, training_rows
from rolellm.evaluation.settings import ScoreOptions
from rolellm.judging.aggregate import Verdicts, sort_out
from rolellm.judging.drift import DRIFT
from rolellm.judging.figures import JudgingResult
from rolellm.judging.folder import RESULT, JudgeRun, read_run
from rolellm.judging.systems import ROLEGPT_NAME, parse_sources, texts_by_row
from rolellm.judging.types import Judgement
from rolellm.report.browse import BrowsePart
from rolellm.report.drift_section import life_table, read_drift, window_table
from rolellm.report.judged import win_by_length
from rolellm.report.page import PageContent, write_page
from rolellm.report.published import PUBLISHED, published_for
from rolellm.report.score_table import ScoreTable, write_tables
from rolellm.report.section import Section
from rolellm.report.settings import ReportOptions
from rolellm.runtime.progress import counted


@dataclass(frozen=True, slots=True, repr=False)
class BuiltReport:
    """What was built.

    Attributes:
        content: What the page shows; :func:`rolellm.report.page.write_page` writes it.
        tables: All tables by a name fit for a file; with several sections, each name begins with its section's.
        page: The HTML file, once it is written.
        files: The files of the tables, once they are written.
    """

    content: PageContent
    tables: dict[str, ScoreTable]
    page: Path | None = None
    files: tuple[Path, ...] = ()

    def __repr__(self) -> str:
        return f"<report {self.page or self.content.title}: {', '.join(self.tables)}>"

    def to_dict(self) -> dict[str, Any]:
        """What was reported and written, as one JSON object."""
        written = {"report": str(self.page), "tables": [str(path) for path in self.files]} if self.page else {}
        return {**written, "title": self.content.title, "parts": [_part_dict(part) for part in self.content.parts]}


def report(
    runs: Any,
    out: str | Path = "report.html",
    tables: str | Path | None = None,
    **options: Any,
) -> BuiltReport:
    """Report results as one HTML page, and as tables for a paper.

    Args:
        runs: One of these or a list of them: the folder of a judging run or of ``rolellm drift``, a file of predictions
            (``P.jsonl`` or ``NAME=P.jsonl``, with ``config=``), a `JudgingResult`, a `ScoreReport`, or the run that
            `rolellm.train` returns, whose manifest is shown. A mapping gives score reports their names.
        out: The page to write.
        tables: A folder for every table as Markdown, CSV and LaTeX.
        options: Any field of `ReportOptions`.

    Raises:
        SettingsError: For nothing to report, unknown options, files without a config, or a run given twice.
        DataError: For a run or a file that cannot be read.
    """
    chosen = read(ReportOptions, options)
    given = list(runs) if isinstance(runs, list | tuple) else [runs]
    sources: list[str] = []
    scored: dict[str, ScoreReport] = {}
    recipe: Mapping[str, Any] = {}
    for one in given:
        if isinstance(one, str | Path):
            sources.append(str(one))
        elif isinstance(one, JudgingResult) and one.folder is not None:
            sources.append(str(one.folder))
        elif isinstance(one, ScoreReport):
            scored[f"system {len(scored) + 1}" if len(given) > 1 else "system"] = one
        elif isinstance(one, Mapping) and all(isinstance(value, ScoreReport) for value in one.values()):
            scored |= one
        elif isinstance(getattr(one, "out", None), str | Path):
            recipe = read_json(Path(one.out) / "manifest.json")
        else:
            kind = type(one).__name__
            raise SettingsError(
                f"cannot report a {kind}; give runs, prediction files, score reports or judging results"
            )
    made = build_report(sources, chosen, scored=scored, recipe=recipe)
    page = write_page(Path(out), made.content)
    return replace(made, page=page, files=tuple(write_tables(Path(tables), made.tables)) if tables else ())


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
    drifts = [Path(source) for source in sources if (Path(source) / DRIFT).is_file()]
    sources = [source for source in sources if Path(source) not in drifts]
    drift = read_drift(drifts)
    folders, files = _sorted_out(sources, options) if sources or not (scored or recipe or drift) else ([], {})
    found: list[tuple[Section, BrowsePart | None]] = [_judged_part(read_run(folder), options) for folder in folders]
    if files:
        found.append(_scored_part(files, options))
    if scored:
        config = next(iter(scored.values())).options.config
        found.append((Section(_title(config or "Answers", None), scored), None))
    parts = [part for part, _ in found]
    tables: dict[str, ScoreTable] = {}
    for at, part in enumerate(parts, start=1):
        prefix = f"{at}-{safe_name(part.config or 'part')}-" if len(parts) > 1 else ""
        tables |= {f"{prefix}{name}": table for name, table in part.named_tables().items()}
    if drift:
        tables |= {"drift-life": life_table(drift), "drift": window_table(drift)}
    judged = any(part.judged for part in parts)
    how = "judged" if judged else "scored" if parts or not drift else "over many turns"
    title = options.title or f"Role-playing, {how}"
    questions = [rows for _, rows in found if rows is not None]
    shown = recipe or {name: one["recipe"] for name, one in drift.items()}
    content = PageContent(title, parts, questions, summary=_summary(parts), recipe=shown, drift=drift)
    return BuiltReport(content, tables)


def _sorted_out(sources: Sequence[str], options: ReportOptions) -> tuple[list[Path], dict[str, list[Path]]]:
    """Folders and systems; what is neither is refused in words."""
    if not sources:
        raise SettingsError("nothing to report: name the folder of a judging run, or files of predictions")
    folders = [Path(source) for source in sources if Path(source).is_dir()]
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise SettingsError("a run is given twice; name each run once")
    systems = parse_sources([source for source in sources if not Path(source).is_dir()])
    for path in (path for paths in systems.values() for path in paths):
        if not path.is_file():
            raise DataError("no such file or folder; expected a judging run's folder, or predictions", path=path)
    if systems and not options.config:
        raise SettingsError("predictions need the config whose rows they answer; add --config, such as --config sample")
    if options.config and not systems:
        raise SettingsError("a judging run names its own config; --config is for files of predictions")
    return folders, systems


def _judged_part(run: JudgeRun, options: ReportOptions) -> tuple[Section, BrowsePart]:
    comparison, judged = run.comparison, JudgingResult.from_dict(run.result, run.folder / RESULT)
    scoring = _score_options(options, judged.config, judged.split, run.named.dataset.fingerprint)
    known = {one.name: one for one in comparison.systems}
    reports: dict[str, ScoreReport] = {}
    for name in (one.name for one in judged.models if comparison.answers.get(one.name)):
        answers = comparison.answers[name]
        predictions = Predictions.from_texts(list(answers), list(answers.values()))
        report = _score(name, comparison.rows, predictions, scoring)
        reports[name] = replace(report, fingerprint={**report.fingerprint, "answers": dict(known[name].source)})
    baseline = comparison.baseline.name if comparison.baseline else None
    verdicts = sort_out(counted(run.judgements(), "reading judgements"), baseline, comparison.canaries)
    lengths = win_by_length(comparison, verdicts.outcomes) if judged.valid else ()
    released = published_for(judged.config, judged.split, comparison.rows)
    part = Section(_title(judged.config, run.folder), reports, judged, tuple(lengths), run.manifest, released)
    questions = BrowsePart(
        name=part.title,
        rows=comparison.rows,
        answers={one.name: comparison.answers[one.name] for one in judged.models if one.name in known},
        outcomes=verdicts.outcomes,
        rouge=_by_row(reports),
        kinds={one.name: one.kind for one in comparison.systems},
        series=part.series,
        disputed=_disputed(verdicts),
    )
    return part, questions


def _scored_part(systems: Mapping[str, Sequence[Path]], options: ReportOptions) -> tuple[Section, BrowsePart]:
    from rolellm.rolebench import dataset_fingerprint, load_rolebench

    config = options.config or ""
    rows = rows_of(load_rolebench(config, options.split, data_dir=options.data_dir))
    content = dataset_fingerprint(config, options.data_dir)
    scoring = _score_options(options, config, options.split, content, options.data_dir)
    read: dict[str, Predictions] = {}
    own = {row.id: row.rolegpt for row in rows if row.rolegpt is not None}
    if own and ROLEGPT_NAME not in systems:
        read[ROLEGPT_NAME] = Predictions.from_texts(list(own), list(own.values()))
    read |= {name: read_predictions(paths) for name, paths in systems.items()}
    reports = {name: _score(name, rows, predictions, scoring) for name, predictions in read.items()}
    training = training_rows(scoring)
    scored = {one.id for report in reports.values() for one in report.scores}
    found = markers(rows, scored, scoring, rows_of(training) if training else [])
    reports = {name: with_scale(report, found) for name, report in reports.items()}
    answers = {name: texts_by_row(rows, read[name], report.answers) for name, report in reports.items()}
    kinds = {ROLEGPT_NAME: "baseline"} if ROLEGPT_NAME in read else {}
    # The baseline's own replies are not there for every row.
    by_all = [{one.id for one in report.scores} for name, report in reports.items() if name in systems]
    released = published_for(config, options.split, [row for row in rows if all(row.id in ids for ids in by_all)])
    part = Section(_title(config, None), reports, released=released)
    return part, BrowsePart(part.title, rows, answers, rouge=_by_row(reports), kinds=kinds)


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
    """How Rouge-L is computed for a config."""
    protocol = options.protocol or ("paper" if config in PUBLISHED else "rouge-score")
    return ScoreOptions(
        protocol=cast(Any, protocol),  # checked there
        config=config,
        split=split,
        dataset_fingerprint=fingerprint,
        data_dir=data_dir,
        resamples=options.resamples,
        processes=options.processes,
    )


def _by_row(reports: Mapping[str, ScoreReport]) -> dict[str, dict[str, float]]:
    """Each answer's Rouge-L against its references (not the role-free target)."""
    return {
        name: {one.id: one.value for one in report.scores if one.metric != "RAW"} for name, report in reports.items()
    }


def _disputed(verdicts: Verdicts) -> set[str]:
    """Rows on which the orders or the judges do not agree about a pair; where no pairs were judged, about the best."""
    found = {
        row
        for row, systems in verdicts.pairs.items()
        for pairs in systems.values()
        if len({value for pair in pairs.values() for value in (pair.first, pair.second)}) > 1
    }
    if not verdicts.pairs:
        for row, lists in verdicts.lists.items():
            best = {_best(one) for ranked in lists.values() for one in ranked if one.ranks}
            found |= {row} if len(best) > 1 else set()
    return found


def _best(one: Judgement) -> frozenset[str]:
    """Who is first: several, where they tie, whichever of them was shown first."""
    ranks = one.ranks or ()
    return frozenset(name for name, rank in zip(one.order, ranks, strict=False) if rank == min(ranks))


def _title(config: str | None, folder: Path | None) -> str:
    table = PUBLISHED.get(config or "")
    where = f" ({folder.name})" if folder is not None and folder.name else ""
    return f"{table.title if table else config or 'Judged answers'}{where}"


def _summary(parts: Sequence[Section]) -> str:
    """What was done, in a sentence or two."""
    judged = [part.judged for part in parts if part.judged]
    if not parts:
        return ""
    if not judged:
        return "Answers scored by Rouge-L, with the recipe behind every number."
    *others, last = dict.fromkeys(judge.name for one in judged for judge in one.judges) or ["nobody"]
    who = f"{', '.join(others)} and {last}" if others else last
    canaries = any(model.kind == "canary" for one in judged for model in one.models)
    attackers = " Some of the systems are attackers that do not answer." if canaries else ""
    return f"Answers in character, ranked by {who}, blind to who wrote them and in several orders.{attackers}"


def _part_dict(part: Section) -> dict[str, Any]:
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
