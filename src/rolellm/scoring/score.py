"""Scores predictions on RoleBench: CUS, RAW, SPE and avg with intervals, breakdowns, and the recipe behind them.

>>> rows = [{"role": "Puck", "subset": "role_specific", "question": "Who?", "references": ["A merry wanderer."]}]
>>> report = score(["A wanderer."], rows)
>>> report.metrics["SPE"].mean, report.metrics["CUS"]
(0.8, None)
"""

from __future__ import annotations

import warnings
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from operator import attrgetter
from typing import Any, NamedTuple

from rolellm.core.errors import DataError, PredictionError, RoleLLMError, SettingsError
from rolellm.core.fingerprint import hash_json
from rolellm.core.progress import open_bar
from rolellm.core.records import Language, Row
from rolellm.core.settings import read, suggest_keywords
from rolellm.core.text import fold
from rolellm.scoring.contamination import Contamination, find_contamination
from rolellm.scoring.floors import KINDS, Markers, add_scale, draw_marker_replies
from rolellm.scoring.predictions import (
    MatchFinding,
    Matching,
    Predictions,
    complete_source,
    hash_predictions,
    is_paths,
    make_predictions,
    match_predictions,
    read_predictions,
)
from rolellm.scoring.rouge import TOKENIZERS, RougeScore, iter_rouge_l, resolve_tokenizer
from rolellm.scoring.rows import get_provenance, read_dataset_rows
from rolellm.scoring.score_report import (
    Metric,
    RowScore,
    ScoreReport,
    get_reference_kind,
    summarize_by,
    summarize_scores,
)
from rolellm.scoring.settings import ScoreOptions
from rolellm.scoring.statistics.intervals import LEVEL
from rolellm.version import __version__

VALUE_FIELD = {"rouge-score": "f1", "paper": "recall"}
#: What a sidecar tells and no score depends on.
_UNSCORED = ("contamination", "base", "parameters", "date")


def build_fingerprint(
    rows: Sequence[Row], predictions: Predictions, options: ScoreOptions, tokenizers: Mapping[Language, str]
) -> dict[str, Any]:
    """The fingerprint of a score, with a ``hash`` over all of it but the files' names.

    Args:
        rows: What was scored against.
        predictions: What was scored.
        options: How.
        tokenizers: The tokenizer used for each language.
    """
    from rolellm.data.rolebench.source import find_own_manifest

    value = VALUE_FIELD[options.protocol]
    fingerprint = options.dataset_fingerprint or hash_rows(rows)
    dataset = {"config": options.config, "split": options.split, "rows": len(rows), "fingerprint": fingerprint}
    if options.config and find_own_manifest(options.data_dir):
        dataset["own"] = True
    files = []
    for file in predictions.files:
        # What is known of the model's training, its size and the date change no score, and are told next to it.
        generation = file.meta and {key: item for key, item in file.meta.items() if key not in _UNSCORED}
        files.append({"sha256": file.sha256, "generation": generation})
    versions = {name: version(name) for name in ("rapidfuzz", "rjieba", "numpy")}
    recipe: dict[str, Any] = {
        "protocol": options.protocol,
        "value": value,
        "tokenizer": dict(tokenizers),
        "reference_choice": f"the reference with the highest {value}",
        "average": "mean over rows",
        "interval": {"method": "Student's t, cluster jackknife over questions", "level": LEVEL},
        "dataset": dataset,
        "predictions": files or [{"sha256": hash_predictions(predictions.items), "generation": None}],
        "versions": {"rolellm": __version__, **versions},
    }
    digest = hash_json(recipe)
    # Only now, so that a file may be renamed and its scores keep their hash.
    for entry, file in zip(files, predictions.files, strict=True):
        entry["file"] = file.path.name
    return {**recipe, "hash": digest}


def hash_rows(rows: Sequence[Row]) -> str:
    """A content hash of rows, for rows that come without the fingerprint of a data set."""
    hashes = []
    for row in rows:
        hashes.append(hash_json([row.id, row.role, row.question, *row.references, row.raw_reference]))
    return hash_json(hashes)


def _find_sidecar_conflicts(predictions: Predictions, options: ScoreOptions) -> Iterator[MatchFinding]:
    """Find sidecars of another config, split or state of the data than is scored."""
    for file in predictions.files:
        meta = file.meta or {}
        differing = []
        for key in ("config", "split", "dataset_fingerprint"):
            expected = getattr(options, key)
            recorded = meta.get(key)
            if None not in (expected, recorded) and recorded != expected:
                differing.append(f"{key} {recorded}, not {expected}")
        if differing:
            text = f"{file.path} was generated for another part or state of the data: {', '.join(differing)}"
            yield MatchFinding("made_for_other_data", file.count, text, ())


def _find_further_replies(predictions: Predictions) -> Iterator[MatchFinding]:
    """Report replies beyond the first that were left out."""
    for file in predictions.files:
        if file.several:
            text = f"lines of {file.path} with several replies, of which the first is scored: {file.several:,}"
            yield MatchFinding("several_generated", file.several, text, (), refused=False)


@suggest_keywords(ScoreOptions)
def score(
    predictions: Any,
    dataset: Any = None,
    *,
    protocol: str = "rouge-score",
    training: Any = None,
    floors: bool = True,
    **options: Any,
) -> ScoreReport:
    """Score predictions by Rouge-L: CUS, RAW, SPE and their mean, with 95 % intervals and the recipe behind them.

    Args:
        predictions: What `rolellm.generate` returned; any ``datasets.Dataset`` with the column ``prediction``; one or
            more files of predictions; or a list of texts, one per row of ``dataset``.
        dataset: The rows: ``references`` and, where present, ``id``, ``role``, ``question``, ``subset``,
            ``raw_reference`` and ``language``. By default the rows of ``predictions`` itself; for files that
            ``rolellm generate`` wrote, the split that they answer.
        protocol: ``rouge-score`` (F1), or ``paper`` (recall, as in the published tables).
        training: Training rows, like those of ``dataset``, for the floors; by default those of the config, for files
            alone and for a dataset that was loaded as RoleBench.
        floors: Whether to score floors and a reference, too; see `rolellm.scoring.floors`.
        options: Fields of `rolellm.scoring.settings.ScoreOptions`, such as ``tokenizer`` or ``strict``.

    Raises:
        SettingsError: For an unknown option or value, or a dataset without the needed columns.
        PredictionError: When no prediction answers a row, or under ``strict``, when anything about the join is open or
            the model was trained on a row.
    """
    chosen = read(ScoreOptions, {"protocol": protocol, **options})
    files = read_predictions(predictions) if is_paths(predictions) else None
    table = predictions if dataset is None else dataset
    if files is not None and dataset is None:
        chosen, table = _load_answered_rows(files, chosen)
    rows = _read_references(predictions, table)
    provenance = get_provenance(table)
    config = chosen.config or provenance.get("config")
    split = chosen.split or provenance.get("split")
    chosen = replace(chosen, config=config, split=split)
    answers = files or make_predictions(predictions, rows, own=table is predictions)
    report = score_rows(rows, answers, chosen)
    if not floors:
        return report
    is_release = bool(provenance) if files is None else dataset is None
    if training is None and is_release:
        training = load_training_rows(chosen)
    training_rows = read_dataset_rows(training) if training else []
    scored_ids = {item.id for item in report.scores}
    return add_scale(report, score_markers(rows, scored_ids, chosen, training_rows))


def _load_answered_rows(files: Predictions, options: ScoreOptions) -> tuple[ScoreOptions, Any]:
    """Load the split that files of predictions answer; name it in the options."""
    from rolellm.data.rolebench import dataset_fingerprint, load_rolebench

    paths = [file.path for file in files.files]
    config, split, data_dir = complete_source(paths, options.config, options.split, options.data_dir)
    fingerprint = options.dataset_fingerprint or dataset_fingerprint(config, data_dir)
    options = replace(options, config=config, split=split, data_dir=data_dir, dataset_fingerprint=fingerprint)
    return options, load_rolebench(config, split, data_dir=data_dir)


def _read_references(predictions: Any, table: Any) -> list[Row]:
    """Read the rows with references that predictions answer."""
    if isinstance(predictions, Sequence) and not predictions:
        raise DataError("no predictions to score")
    if table is predictions and isinstance(predictions, list | tuple) and not isinstance(predictions[0], Mapping):
        raise SettingsError("texts alone cannot be scored; pass the rows that they answer as dataset=…")
    rows = read_dataset_rows(table, needed=("references",))
    for number, row in enumerate(rows):
        if not row.references:
            raise DataError(f"row {number} has no reference: give at least one, or leave the row out")
    return rows


def load_training_rows(options: ScoreOptions) -> Any:
    """The training rows of a config; ``None`` where the release here has none, or where they are what is scored."""
    from rolellm.data.rolebench import load_rolebench

    if (options.split or "").startswith("train"):
        return None
    with warnings.catch_warnings():
        # What is missing was said when the scored split was loaded.
        warnings.simplefilter("ignore")
        try:
            table = load_rolebench(options.config, "train", data_dir=options.data_dir)
        except RoleLLMError:
            return None
    return table.select_columns(["id", "role", "language", "subset", "question", "references"])


def score_rows(
    rows: Sequence[Row], predictions: Predictions, options: ScoreOptions | None = None, *, label: str = "scoring"
) -> ScoreReport:
    """Score predictions against rows; `score` without the reading.

    Args:
        rows: All rows of the split, so that those without a prediction are known.
        predictions: From `rolellm.scoring.predictions.read_predictions`, or from memory.
        options: How to score; by default protocol ``rouge-score``.
        label: What the progress bar says.

    Raises:
        PredictionError: When no prediction answers any row, or under ``strict`` when the join leaves anything open or a
            row was trained on.
    """
    options = options or ScoreOptions()
    matching = match_predictions(rows, predictions, where=options.where)
    contamination = find_contamination(rows, predictions, matching, options.config)
    findings = _collect_findings(matching, predictions, options, contamination)
    refused = [str(finding) for finding in findings if finding.refused]
    if options.strict and refused:
        raise PredictionError("refused, as asked by strict: " + "; ".join(refused))
    tokenizers = _choose_tokenizers(rows, options)
    jobs = list(_list_jobs(rows, predictions, matching))
    scores = tuple(_score_jobs(jobs, tokenizers, options, label))
    clean = None
    trained_on = None
    if contamination:
        trained_on = {**contamination.to_dict(), "unknown": contamination.unknown}
        contaminated_ids = {row.id for row in contamination.contaminated}
        clean_ids = {row.id for row in contamination.rows} - contaminated_ids
        if contaminated_ids:
            clean = summarize_scores(score for score in scores if score.id in clean_ids)
    by_kind = summarize_by(scores, attrgetter("kind"))
    by_language = summarize_by(scores, attrgetter("language"))
    return ScoreReport(
        options=options,
        metrics=summarize_scores(scores),
        unmatched={"predictions": len(matching.unmatched_predictions), "rows": len(matching.unmatched_rows)},
        contamination=trained_on,
        metrics_clean=clean,
        fingerprint=build_fingerprint(rows, predictions, options, tokenizers),
        by_role=summarize_by(scores, attrgetter("role")),
        by_language=by_language if len(tokenizers) > 1 else {},
        by_reference_type={kind: summary["SPE"] for kind, summary in by_kind.items()},
        counts={finding.kind: finding.count for finding in findings},
        warnings=tuple(map(str, findings)),
        findings=findings,
        answers=matching.answers,
        scores=scores,
        rows=tuple(rows),
    )


def _collect_findings(
    matching: Matching, predictions: Predictions, options: ScoreOptions, contamination: Contamination | None
) -> tuple[MatchFinding, ...]:
    findings = list(_find_sidecar_conflicts(predictions, options))
    trained = contamination.describe(options.where) if contamination else None
    if trained:
        findings.append(trained)
    for finding in matching.findings:
        if finding.kind == "unmatched_rows":
            text = f"{finding.text}; they are left out, and the score is that of the others alone"
            finding = replace(finding, text=text)
        findings.append(finding)
    return (*findings, *_find_further_replies(predictions))


class _ScoreJob(NamedTuple):
    """One prediction against the references of one metric."""

    row: Row
    metric: Metric
    text: str
    references: list[str]


def _list_jobs(rows: Sequence[Row], predictions: Predictions, matching: Matching) -> Iterator[_ScoreJob]:
    for row, answer in zip(rows, matching.answers, strict=True):
        if answer is not None:
            yield from _list_row_jobs(row, predictions.items[answer].prediction)


def _list_row_jobs(row: Row, text: str) -> Iterator[_ScoreJob]:
    # Rows that were judged as plain lists may have no reference.
    if row.references:
        metric: Metric = "CUS" if row.subset == "general" else "SPE"
        yield _ScoreJob(row, metric, text, list(row.references))
    if row.subset == "general" and row.raw_reference and row.raw_reference.strip():
        yield _ScoreJob(row, "RAW", text, [row.raw_reference])


def score_replies(
    replies: Sequence[tuple[Row, str]], options: ScoreOptions | None = None, label: str = ""
) -> tuple[RowScore, ...]:
    """Score replies, each on its row under each metric that the row has.

    Args:
        replies: Rows with their references, each with a reply.
        options: How; by default protocol ``rouge-score``. The tokenizer counts for rows of its language.
        label: What the progress bar says; by default there is none.
    """
    options = options or ScoreOptions()
    jobs: list[_ScoreJob] = []
    for row, text in replies:
        jobs += _list_row_jobs(row, text)
    tokenizers = _choose_tokenizers([row for row, _ in replies], options)
    return tuple(_score_jobs(jobs, tokenizers, options, label))


def score_markers(
    every: Sequence[Row], scored: Container[str], options: ScoreOptions, training: Sequence[Row]
) -> Markers:
    """Score what a score is read between.

    Args:
        every: All rows of the split; another role's reply may be any of theirs.
        scored: The ids of those that were scored.
        options: How they were scored.
        training: Training rows; may be empty.
    """
    replies, reasons = draw_marker_replies(every, scored, training)
    scores = {name: score_replies(replies[name], options, f"scoring {name}") for name in KINDS}
    return Markers(scores, reasons)


def _choose_tokenizers(rows: Sequence[Row], options: ScoreOptions) -> dict[Language, str]:
    """The tokenizer for each language of the rows: the one asked for where it is made for that language."""
    languages = sorted({row.language for row in rows})
    made_for = [language for language in languages if options.tokenizer in TOKENIZERS[options.protocol][language]]
    tokenizers = {}
    for language in languages:
        # A tokenizer that is made for another language of the rows leaves this one its default.
        is_default = made_for and language not in made_for
        name = None if is_default else options.tokenizer
        tokenizers[language] = resolve_tokenizer(options.protocol, language, name)
    return tokenizers


def _score_jobs(
    jobs: Sequence[_ScoreJob], tokenizers: Mapping[Language, str], options: ScoreOptions, label: str
) -> Iterator[RowScore]:
    rouge: dict[int, RougeScore] = {}
    with open_bar(label, len(jobs), unit="pairs", show=bool(label)) as bar:
        for language, tokenizer in tokenizers.items():
            numbers = []
            texts = []
            references = []
            for number, job in enumerate(jobs):
                if job.row.language == language:
                    numbers.append(number)
                    texts.append(job.text)
                    references.append(job.references)
            rouge_scores = iter_rouge_l(texts, references, options.protocol, tokenizer)
            for number, value in zip(numbers, rouge_scores, strict=True):
                rouge[number] = value
                bar.update()
    field = VALUE_FIELD[options.protocol]
    for number, job in enumerate(jobs):
        yield _make_row_score(job, rouge[number], field)


def _make_row_score(job: _ScoreJob, rouge: RougeScore, field: str) -> RowScore:
    row = job.row
    figures: dict[str, Any] = rouge._asdict()
    return RowScore(
        id=row.id,
        role=row.role,
        language=row.language,
        subset=row.subset,
        kind=get_reference_kind(row),
        # Rows without a question are no repetitions of each other.
        question=row.dialogue or fold(row.question) or row.id,
        metric=job.metric,
        value=figures[field],
        **figures,
    )
