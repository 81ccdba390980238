"""Scores predictions on RoleBench: CUS, RAW, SPE and avg with intervals, breakdowns, and the recipe behind them.

>>> rows = [{"role": "Puck", "subset": "role_specific", "question": "Who?", "references": ["A merry wanderer."]}]
>>> report = score(["A wanderer."], rows)
>>> report.metrics["SPE"].mean, report.metrics["CUS"]
(0.8, None)
"""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, PlainValidator

from rolellm.core.errors import DataError, PredictionError, RoleLLMError, SettingsError
from rolellm.core.fingerprint import hash_json
from rolellm.core.records import Language, Row
from rolellm.core.settings import read
from rolellm.core.shown import Shown
from rolellm.core.text import fold
from rolellm.core.typed_json import read_as
from rolellm.evaluation.contamination import Contamination, scored_rows
from rolellm.evaluation.matching import Finding, Matching, match
from rolellm.evaluation.predictions import Predictions, hash_texts, is_paths, predictions_for, read_predictions
from rolellm.evaluation.rouge import TOKENIZERS, RougeScore, iter_rouge_l, resolve_tokenizer
from rolellm.evaluation.rows import provenance, rows_of
from rolellm.evaluation.settings import ScoreOptions
from rolellm.evaluation.statistics.bootstrap import (
    LEVEL,
    Bootstrap,
    Interval,
    Sample,
    Stratum,
    bootstrap_stratum,
    mean_of_means,
)
from rolellm.runtime.progress import Progress
from rolellm.version import __version__

Metric = Literal["CUS", "RAW", "SPE"]
METRICS: tuple[Metric, ...] = ("CUS", "RAW", "SPE")
# CUS and RAW are the same predictions to the same questions, so they are drawn together; SPE has questions of its own.
_STRATA: tuple[tuple[Metric, ...], ...] = (("CUS", "RAW"), ("SPE",))

#: Far above any score, rank or length: what is read back and drawn must have a scale.
_MOST = 1e9


@dataclass(frozen=True, slots=True)
class RowScore:
    """The score of one prediction on one row under one metric.

    Attributes:
        id: The row's.
        role: The row's.
        language: The row's.
        subset: The row's.
        kind: ``script_based``, ``script_agnostic``, or ``mixed`` where a row's references are of both types; ``None``
            where they have no type, as in general rows.
        question: Folded: rows with the same one form a cluster.
        metric: ``CUS``, ``RAW`` or ``SPE``.
        value: What counts: recall under ``paper``, F1 under ``rouge-score``.
        precision: Against the chosen reference.
        recall: Against the chosen reference.
        f1: Against the chosen reference.
        reference: Index of the chosen reference; ``None`` for a row that was not answered and counts as 0.
    """

    id: str
    role: str
    language: str
    subset: str
    kind: str | None
    question: str
    metric: Metric
    value: float
    precision: float
    recall: float
    f1: float
    reference: int | None


def summarize(scores: Iterable[RowScore], bootstrap: Bootstrap) -> Summary:
    """CUS, RAW, SPE and avg of row scores; ``None`` for a metric that has no row, and for avg without all three."""
    by_metric: defaultdict[Metric, list[RowScore]] = defaultdict(list)
    for score in scores:
        by_metric[score.metric].append(score)
    summary: Summary = dict.fromkeys((*METRICS, "avg"))
    strata: list[Stratum] = []
    for key, names in enumerate(_STRATA):
        present = [metric for metric in names if by_metric[metric]]
        if present:
            found = (by_metric[metric] for metric in present)
            samples = [Sample([one.value for one in part], [one.question for one in part]) for part in found]
            stratum = bootstrap_stratum(samples, bootstrap, key=key)
            summary.update(zip(present, stratum.intervals, strict=True))
            strata.append(stratum)
    if all(summary[metric] is not None for metric in METRICS):
        summary["avg"] = mean_of_means(strata)
    return summary


def summarize_by(
    scores: Sequence[RowScore], key: Callable[[RowScore], str | None], bootstrap: Bootstrap
) -> dict[str, Summary]:
    """A summary for each value of a key, in order of appearance; scores whose key is ``None`` are left out."""
    groups: dict[str, list[RowScore]] = defaultdict(list)
    for score in scores:
        name = key(score)
        if name is not None:
            groups[name].append(score)
    return {name: summarize(group, bootstrap) for name, group in groups.items()}


def metric_dict(interval: Interval | None) -> dict[str, Any] | None:
    """One metric as the contract's JSON object; ``ci95`` is null where one question alone cannot tell."""
    if interval is None:
        return None
    ends = None if interval.low is None else [interval.low, interval.high]
    return {"mean": interval.mean, "ci95": ends, "n": interval.n, "questions": interval.clusters}


def summary_dict(summary: Summary) -> dict[str, Any]:
    """CUS, RAW, SPE and avg as JSON objects or null; the average has no ``n`` of its own."""
    result: dict[str, Any] = {metric: metric_dict(summary[metric]) for metric in METRICS}
    average = metric_dict(summary["avg"])
    return {**result, "avg": average and {"mean": average["mean"], "ci95": average["ci95"]}}


def read_metric(value: Any) -> Interval | None:
    """What `metric_dict` wrote.

    Raises:
        ValueError: When the value has another shape, or a number in it is not finite.
    """
    if value is None or isinstance(value, Interval):
        return value
    try:
        mean, ends = float(value["mean"]), value.get("ci95")
        low, high = (None, None) if ends is None else map(float, ends)
        n, clusters = (int(value.get(key) or 0) for key in ("n", "questions"))
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError('expected {"mean", "ci95", "n"} or null') from error
    if not all(abs(number) <= _MOST for number in (mean, low or 0, high or 0)):
        raise ValueError(f"a score must be finite and at most {_MOST:g}; a metric without rows is null")
    return Interval(mean, low, high, n, clusters)


Measured = Annotated[Interval | None, PlainValidator(read_metric)]
#: CUS, RAW, SPE and avg; in JSON, a metric that is left out is ``None``.
Summary = Annotated[
    dict[str, Measured],
    BeforeValidator(lambda given: {**dict.fromkeys((*METRICS, "avg")), **given} if isinstance(given, dict) else given),
]


@dataclass(frozen=True, slots=True)
class Unmatched:
    """How many predictions answer no row, and how many rows have no prediction."""

    predictions: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Marker:
    """What replies that no model gave to the question score.

    Attributes:
        kind: ``floor``, ``baseline`` or ``ceiling``.
        metrics: Like those of the report, on those of its rows for which there is such a reply.
    """

    kind: str
    metrics: Summary


@dataclass(frozen=True, slots=True)
class Position:
    """Where a model is between a floor and the ceiling, on the rows that have both.

    Attributes:
        floor: The name of the highest floor.
        low: That floor's mean.
        model: The model's.
        high: The ceiling's.
        share: Of the way from floor to ceiling: 0 at the floor, 1 at the ceiling; ``None`` where there is no way.
    """

    floor: str
    low: float
    model: float
    high: float
    share: Measured = None


@dataclass(frozen=True, slots=True)
class Scale:
    """What a score is read between; see `rolellm.evaluation.floors`.

    Attributes:
        markers: Floors, baseline and ceiling by name.
        position: Where the model is, by metric; ``None`` where a metric has no floor or no ceiling.
        notes: Which floors or ceilings are absent, and why.
    """

    markers: dict[str, Marker]
    position: dict[str, Position | None]
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Where the model is, in words."""
        known = {metric: one for metric, one in self.position.items() if one}
        shares = [
            f"{metric} {100 * one.share.mean:.0f} % {one.share.brackets(0, 100)} from “{one.floor}”, n={one.share.n}"
            if one.share
            else f"{metric}: “{one.floor}” scores as high as the ceiling, or cannot be told from it"
            for metric, one in known.items()
        ]
        shares += [f"{metric} unknown" for metric in self.position if metric not in known]
        return f"From the highest floor (0 %) to the ceiling (100 %): {'; '.join(shares)}"


@dataclass(frozen=True, slots=True, repr=False)
class ScoreReport(Shown):
    """Everything that scoring found; one that was read back from JSON lacks what concerns single rows.

    Attributes:
        options: How it was scored.
        metrics: ``CUS``, ``RAW``, ``SPE`` and ``avg``; ``None`` where there are no rows, and avg without all three.
        by_role: The same for each role, in order of appearance.
        by_language: The same for each language, where there are several.
        by_kind: SPE by the type of a row's references (``script_agnostic``, ``script_based``, ``mixed``).
        metrics_clean: The metrics of the rows that the model is known not to be trained on; ``None`` where no row is
            known to be one that it was trained on.
        scale: Floors and ceiling, and where the model is between them; ``None`` where nobody asked for them.
        unmatched: What the join of predictions to rows left over.
        warnings: What a reader must know about it; to be shown with the score.
        fingerprint: What the score depends on, with a ``hash``.
        value: The JSON object that all of this comes from.
        findings: The warnings with their counts; empty in a report that was read back.
        answers: For each row, the index of its prediction or ``None``; likewise.
        scores: Row by row; likewise.
        rows: All rows that were scored against; likewise.
    """

    options: ScoreOptions
    metrics: Summary
    by_role: dict[str, Summary] = field(default_factory=dict)
    by_language: dict[str, Summary] = field(default_factory=dict)
    by_kind: dict[str, Measured] = field(default_factory=dict)
    metrics_clean: Summary | None = None
    scale: Scale | None = None
    unmatched: Unmatched = Unmatched()
    warnings: tuple[str, ...] = ()
    fingerprint: dict[str, Any] = field(default_factory=dict)
    value: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    answers: tuple[int | None, ...] = ()
    scores: tuple[RowScore, ...] = ()
    rows: tuple[Row, ...] = ()

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> ScoreReport:
        """What `to_dict` wrote, such as the output of ``rolellm score --json``; single rows are not read.

        Raises:
            DataError: When the value is not a score report; names the first place that does not fit.
        """
        try:
            recipe = value.get("fingerprint", {})
            given = {key: value.get(key) for key in ("protocol", "config", "split")} | {
                "missing": recipe.get("missing")
            }
            given |= {key: recipe.get("interval", {}).get(key) for key in ("resamples", "seed")}
            given["dataset_fingerprint"] = recipe.get("dataset", {}).get("fingerprint")
            found = {
                "options": read(ScoreOptions, given),
                "by_kind": value.get("by_subset", {}).get("role_specific", {}).get("by_reference_type", {}),
                "metrics_clean": (value.get("contamination") or {}).get("metrics_clean"),
                "rows": (),
            }
            return replace(read_as(cls, {**value, **found}, "the report"), value=value)
        except (AttributeError, TypeError, ValueError) as error:
            raise DataError(f"not a score report, as `rolellm score --json` prints it: {error}") from error

    def to_dict(self, *, rows: bool = False) -> dict[str, Any]:
        """The object that ``rolellm score --json`` prints.

        Args:
            rows: Add ``rows``: the score of each row under each metric.
        """
        return {**self.value, **({"rows": [asdict(score) for score in self.scores]} if rows else {})}

    @property
    def parts(self) -> dict[str, Summary]:
        """The lines of a table: all rows, those not trained on, languages, types of references, floors and ceiling."""
        parts = {"all rows": self.metrics}
        parts |= {"rows not trained on": self.metrics_clean} if self.metrics_clean else {}
        parts |= {f"language {name}": summary for name, summary in self.by_language.items()}
        # Role-specific rows have only SPE.
        parts |= {kind: {"SPE": metric} for kind, metric in self.by_kind.items()}
        markers = self.scale.markers if self.scale else {}
        return parts | {f"{one.kind}: {name}": one.metrics for name, one in markers.items()}

    @property
    def recipe(self) -> str:
        """How it was scored, in a line to print under a table."""
        found = self.fingerprint
        tokenizers = ", ".join(dict.fromkeys(found["tokenizer"].values()))
        return (
            f"protocol {self.options.protocol} ({found['value']}, {found['reference_choice']}), tokenizer "
            f"{tokenizers}, {self.options.where}, fingerprint {found['hash'][:12]}"
        )

    @property
    def caption(self) -> str:
        """The recipe, where the model is between floor and ceiling, and which of these are absent."""
        scale = (self.scale.text, *self.scale.notes) if self.scale else ()
        return ". ".join([self.recipe, *scale])

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame`` with the columns ``part``, ``metric``, ``mean``, ``low``, ``high`` and ``n``.

        Parts are those of `parts`, then the roles as ``role NAME``; metrics without rows are left out.
        """
        import pandas

        parts = self.parts | {f"role {name}": summary for name, summary in self.by_role.items()}
        lines = [
            {"part": part, "metric": metric, "mean": one.mean, "low": one.low, "high": one.high, "n": one.n}
            for part, summary in parts.items()
            for metric, one in summary.items()
            if one is not None
        ]
        return pandas.DataFrame(lines, columns=["part", "metric", "mean", "low", "high", "n"])

    def _table(self) -> tuple[Any, str, tuple[str, ...]]:
        from pandas import DataFrame

        cells = {name: [_cell(part.get(name)) for part in self.parts.values()] for name in (*METRICS, "avg")}
        caption = f"Rouge-L × 100, with 95 % intervals; {self.caption}"
        return DataFrame(cells, index=list(self.parts)), caption, self.warnings


def _cell(metric: Interval | None) -> str:
    if metric is None:
        return "–"
    count = f"n={metric.n}" if metric.n else ""
    return " ".join(filter(None, (f"{100 * metric.mean:.2f}", metric.brackets(2, 100), count)))


VALUE_FIELD = {"rouge-score": "f1", "paper": "recall"}


def fingerprint(
    rows: Sequence[Row], predictions: Predictions, options: ScoreOptions, tokenizers: Mapping[Language, str]
) -> dict[str, Any]:
    """The fingerprint of a score, with a ``hash`` over all of it but the files' names.

    Args:
        rows: What was scored against.
        predictions: What was scored.
        options: How.
        tokenizers: The tokenizer used for each language.
    """
    from rolellm.rolebench.source import own_manifest

    recipe: dict[str, Any] = {
        "protocol": options.protocol,
        "value": VALUE_FIELD[options.protocol],
        "tokenizer": dict(tokenizers),
        "reference_choice": f"the reference with the highest {VALUE_FIELD[options.protocol]}",
        "average": "mean over rows",
        "missing": options.missing,
        "interval": {
            "method": "percentile bootstrap over questions",
            "level": LEVEL,
            "resamples": options.resamples,
            "seed": options.seed,
        },
        "dataset": {
            "config": options.config,
            "split": options.split,
            **({"own": True} if options.config and own_manifest(options.data_dir) else {}),
            "fingerprint": options.dataset_fingerprint or rows_hash(rows),
            "rows": len(rows),
        },
        # What is known of the model's training changes no score, and is told next to it.
        "predictions": [
            {
                "sha256": file.sha256,
                "generation": file.meta and {key: one for key, one in file.meta.items() if key != "contamination"},
            }
            for file in predictions.files
        ]
        or [{"sha256": hash_texts(predictions.items), "generation": None}],
        "versions": {"rolellm": __version__} | {name: version(name) for name in ("rapidfuzz", "jieba", "numpy")},
    }
    digest = hash_json(recipe)
    # Only now, so that a file may be renamed and its scores keep their hash.
    for entry, file in zip(recipe["predictions"], predictions.files, strict=False):
        entry["file"] = file.path.name
    return {**recipe, "hash": digest}


def rows_hash(rows: Sequence[Row]) -> str:
    """A content hash of rows, for rows that come without the fingerprint of a data set."""
    return hash_json([hash_json([row.id, row.role, row.question, *row.references, row.raw_reference]) for row in rows])


def _sidecar_findings(predictions: Predictions, options: ScoreOptions) -> Iterator[Finding]:
    """What the sidecars say that does not fit what is scored: another config, split or state of the data."""
    for file in predictions.files:
        differing = [
            f"{key} {said}, not {wanted}"
            for key in ("config", "split", "dataset_fingerprint")
            if None not in (wanted := getattr(options, key), said := (file.meta or {}).get(key)) and said != wanted
        ]
        if differing:
            text = f"{file.path} was generated for another part or state of the data: {', '.join(differing)}"
            yield Finding("made_for_other_data", file.count, text, ())


def _file_findings(predictions: Predictions) -> Iterator[Finding]:
    """What was done about lines of the files: bad ones set aside, and replies beyond the first left out."""
    for file in predictions.files:
        if file.bad:
            text = f"bad lines of {file.path}, set aside in {file.bad_path}: {len(file.bad):,}"
            examples = tuple(f"line {error.line}: {error.problem}" for error in file.bad[:3])
            yield Finding("bad_lines", len(file.bad), text, examples, refused=False)
        if file.several:
            text = f"lines of {file.path} with several replies, of which the first is scored: {file.several:,}"
            yield Finding("several_generated", file.several, text, (), refused=False)


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
        floors: Whether to score floors and a ceiling, too; see `rolellm.evaluation.floors`.
        options: Fields of `rolellm.evaluation.settings.ScoreOptions`, such as ``tokenizer`` or ``strict``.

    Raises:
        SettingsError: For an unknown option or value, or a dataset without the needed columns.
        PredictionError: When no prediction answers a row, or under ``strict``, when anything about the join is open or
            the model was trained on a row.
    """
    chosen = read(ScoreOptions, {"protocol": protocol, **options})
    files, table = None, predictions if dataset is None else dataset
    if is_paths(predictions):
        files = read_predictions(predictions, skip_bad=chosen.skip_bad)
        if dataset is None:
            from rolellm.rolebench import load_rolebench

            chosen = _made_for(files, chosen)
            table = load_rolebench(chosen.config, chosen.split, data_dir=chosen.data_dir)
            training = training if training is not None or not floors else training_rows(chosen)
    if isinstance(predictions, Sequence) and not predictions:
        raise DataError("no predictions to score")
    is_table = isinstance(predictions, Mapping) or any(
        hasattr(predictions, name) for name in ("column_names", "columns")
    )
    if table is predictions and not is_table and not any(isinstance(item, Mapping) for item in predictions):
        raise SettingsError("texts alone cannot be scored; pass the rows that they answer as dataset=…")
    rows = rows_of(table, needed=("references",))
    bare = next((number for number, row in enumerate(rows) if not row.references), None)
    if bare is not None:
        raise DataError(f"row {bare} has no reference: give at least one, or leave the row out")
    found = provenance(table)
    chosen = replace(chosen, config=chosen.config or found.get("config"), split=chosen.split or found.get("split"))
    if found and files is None and training is None and floors:
        training = training_rows(chosen)
    given = predictions_for(predictions, rows, own=table is predictions) if files is None else files
    report = score_rows(rows, given, chosen)
    if not floors:
        return report
    from rolellm.evaluation.floors import markers, with_scale

    scored = {item.id for item in report.scores}
    known = rows_of(training) if training else []
    return with_scale(report, markers(rows, scored, chosen, known))


def training_rows(options: ScoreOptions) -> Any:
    """The training rows of a config; ``None`` where the release here has none, or where they are what is scored."""
    from rolellm.rolebench import load_rolebench

    if (options.split or "").startswith("train"):
        return None
    with warnings.catch_warnings():
        # What is missing was said when the scored split was loaded.
        warnings.simplefilter("ignore")
        try:
            found = load_rolebench(options.config, "train", data_dir=options.data_dir)
        except RoleLLMError:
            return None
    return found.select_columns(["id", "role", "language", "subset", "question", "references"])


def _made_for(predictions: Predictions, options: ScoreOptions) -> ScoreOptions:
    """The options, naming the split that files of predictions were made for where they do not name one."""
    meta = next((file.meta for file in predictions.files if file.meta and file.meta.get("config")), {})
    config = options.config or meta.get("config")
    if config is None:
        named = ", ".join(str(file.path) for file in predictions.files)
        raise SettingsError(f"{named}: which config do these replies answer? Name it: --config, or config= in Python")
    from rolellm.rolebench import dataset_fingerprint

    content = options.dataset_fingerprint or dataset_fingerprint(config, options.data_dir)
    split = options.split or meta.get("split") or "test"
    return replace(options, config=config, split=split, dataset_fingerprint=content)


def score_rows(
    rows: Sequence[Row], predictions: Predictions, options: ScoreOptions | None = None, *, label: str = "scoring"
) -> ScoreReport:
    """Score predictions against rows; `score` without the reading.

    Args:
        rows: All rows of the split, so that those without a prediction are known.
        predictions: From `rolellm.evaluation.predictions.read_predictions`, or from memory.
        options: How to score; by default protocol ``rouge-score``.
        label: What the progress bar says.

    Raises:
        PredictionError: When no prediction answers any row, or under ``strict`` when the join leaves anything open or a
            row was trained on.
    """
    options = options or ScoreOptions()
    matching = match(rows, predictions, where=options.where)
    contamination = scored_rows(rows, predictions, matching, options.config)
    findings = _findings(matching, predictions, options, contamination)
    refused = [str(finding) for finding in findings if finding.refused]
    if options.strict and refused:
        raise PredictionError("refused, as asked by strict: " + "; ".join(refused))
    tokenizers = _tokenizers(rows, options)
    scores = tuple(_row_scores(list(_jobs(rows, predictions, matching, options)), tokenizers, options, label))
    metrics = summarize(scores, options)
    by_role = summarize_by(scores, lambda item: item.role, options)
    value = {
        "protocol": options.protocol,
        "config": options.config,
        "split": options.split,
        "metrics": summary_dict(metrics),
        "unmatched": {"predictions": len(matching.unmatched_predictions), "rows": len(matching.unmatched_rows)},
        "contamination": _contamination(scores, contamination, options),
        "fingerprint": fingerprint(rows, predictions, options, tokenizers),
        "by_role": {role: summary_dict(summary) for role, summary in by_role.items()},
        "by_subset": _subsets(rows, matching, metrics, summarize_by(scores, lambda item: item.kind, options)),
        "counts": {"matched_by": matching.matched_by, **{finding.kind: finding.count for finding in findings}},
        "warnings": [str(finding) for finding in findings],
    }
    if len(tokenizers) > 1:
        by_language = summarize_by(scores, lambda item: item.language, options)
        value["by_language"] = {name: summary_dict(summary) for name, summary in by_language.items()}
    report = ScoreReport.from_dict(value)
    return replace(
        report, options=options, findings=findings, answers=matching.answers, scores=scores, rows=tuple(rows)
    )


def _findings(
    matching: Matching, predictions: Predictions, options: ScoreOptions, contamination: Contamination | None
) -> tuple[Finding, ...]:
    zero = options.missing == "zero"
    treated = "they count as 0" if zero else "they are left out, and the score is that of the others alone"
    trained = None if contamination is None else contamination.finding(options.where)
    findings = [
        *_sidecar_findings(predictions, options),
        *([] if trained is None else [trained]),
        *matching.findings,
        *_file_findings(predictions),
    ]
    return tuple(
        replace(item, text=f"{item.text}; {treated}", refused=not zero) if item.kind == "unmatched_rows" else item
        for item in findings
    )


def _contamination(
    scores: Sequence[RowScore], found: Contamination | None, bootstrap: Bootstrap
) -> dict[str, Any] | None:
    """What is known of the model's training, with the metrics of the other rows where it was trained on some."""
    if found is None:
        return None
    clean = {row.id for row in found.rows} - {row.id for row in found.contaminated}
    metrics = summarize((item for item in scores if item.id in clean), bootstrap) if found.contaminated else None
    return {**found.to_dict(), "unknown": found.unknown, "metrics_clean": metrics and summary_dict(metrics)}


def _subsets(
    rows: Sequence[Row], matching: Matching, metrics: Summary, by_kind: Mapping[str, Summary]
) -> dict[str, dict[str, Any]]:
    total, answered = Counter(row.subset for row in rows), Counter[str]()
    for row, answer in zip(rows, matching.answers, strict=True):
        answered[row.subset] += answer is not None
    measured: dict[str, tuple[Metric, ...]] = {"general": ("CUS", "RAW"), "role_specific": ("SPE",)}
    found: dict[str, dict[str, Any]] = {
        subset: {"rows": count, "answered": answered[subset]}
        | {metric: metric_dict(metrics[metric]) for metric in measured[subset]}
        for subset, count in sorted(total.items())
    }
    if by_kind:
        found["role_specific"]["by_reference_type"] = {kind: metric_dict(one["SPE"]) for kind, one in by_kind.items()}
    return found


class _Job(NamedTuple):
    """One prediction (``None``: not answered) against the references of one metric."""

    row: Row
    metric: Metric
    text: str | None
    references: list[str]


def _jobs(rows: Sequence[Row], predictions: Predictions, matching: Matching, options: ScoreOptions) -> Iterator[_Job]:
    for row, answer in zip(rows, matching.answers, strict=True):
        text = None if answer is None else predictions.items[answer].prediction
        if text is None and options.missing == "skip":
            continue
        yield from _jobs_of(row, text)


def _jobs_of(row: Row, text: str | None) -> Iterator[_Job]:
    # Rows that were judged as plain lists may have no reference.
    if row.references:
        yield _Job(row, "CUS" if row.subset == "general" else "SPE", text, list(row.references))
    if row.subset == "general" and row.raw_reference and row.raw_reference.strip():
        yield _Job(row, "RAW", text, [row.raw_reference])


def reply_scores(row: Row, text: str, options: ScoreOptions | None = None) -> list[RowScore]:
    """Score one reply on one row, under each metric that the row has.

    Args:
        row: With its references.
        text: The reply.
        options: How; by default protocol ``rouge-score``. The tokenizer counts for rows of its language.
    """
    return list(row_scores([(row, text)], options or ScoreOptions()))


def row_scores(replies: Sequence[tuple[Row, str]], options: ScoreOptions, label: str = "") -> tuple[RowScore, ...]:
    """Score replies, each on its row under each metric that the row has.

    Args:
        replies: Rows with their references, each with a reply.
        options: How. The tokenizer counts for rows of its language.
        label: What the progress bar says; by default there is none.
    """
    jobs = [job for row, text in replies for job in _jobs_of(row, text)]
    return tuple(_row_scores(jobs, _tokenizers([row for row, _ in replies], options), options, label))


def _tokenizers(rows: Sequence[Row], options: ScoreOptions) -> dict[Language, str]:
    """The tokenizer for each language of the rows: the one asked for where it is made for that language."""
    languages = sorted({row.language for row in rows})
    asked, known = options.tokenizer, TOKENIZERS[options.protocol]
    mixed = len(languages) > 1 and any(asked in known[language] for language in languages)
    wanted = {name: asked if not mixed or asked in known[name] else None for name in languages}
    return {name: resolve_tokenizer(options.protocol, name, tokenizer) for name, tokenizer in wanted.items()}


def _row_scores(
    jobs: Sequence[_Job], tokenizers: Mapping[Language, str], options: ScoreOptions, label: str
) -> Iterator[RowScore]:
    rouge: dict[int, RougeScore] = {}
    with Progress(label, len(jobs), unit="pairs", show=bool(label)) as bar:
        for language, tokenizer in tokenizers.items():
            numbers = [n for n, job in enumerate(jobs) if job.row.language == language and job.text is not None]
            texts, references = [jobs[n].text or "" for n in numbers], [jobs[n].references for n in numbers]
            found = iter_rouge_l(texts, references, options.protocol, tokenizer, options.processes)
            for number, value in zip(numbers, found, strict=True):
                rouge[number] = value
                bar.advance()
    for number, job in enumerate(jobs):
        yield _row_score(job, rouge.get(number), VALUE_FIELD[options.protocol])


def _row_score(job: _Job, rouge: RougeScore | None, field: str) -> RowScore:
    row, kinds = job.row, set(job.row.reference_types)
    unanswered = {**dict.fromkeys(RougeScore._fields, 0.0), "reference": None}
    found: dict[str, Any] = unanswered if rouge is None else rouge._asdict()
    return RowScore(
        id=row.id,
        role=row.role,
        language=row.language,
        subset=row.subset,
        kind=None if not kinds else kinds.pop() if len(kinds) == 1 else "mixed",
        # Rows without a question are no repetitions of each other.
        question=fold(row.question) or row.id,
        metric=job.metric,
        value=found[field],
        **found,
    )
