"""What scoring is asked for and what it hands back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from rolellm.errors import RecipeError
from rolellm.evaluation.breakdown import Metric, RowScore, Summary, metric_dict, summary_dict
from rolellm.evaluation.contamination import Contamination
from rolellm.evaluation.matching import Finding, Matching
from rolellm.evaluation.statistics import Bootstrap
from rolellm.evaluation.tokenizers import TOKENIZERS, resolve_tokenizer


@dataclass(frozen=True, slots=True)
class ScoreOptions:
    """How to score, and what is being scored.

    Attributes:
        protocol: ``rouge-score`` (highest F1) or ``paper`` (highest recall, as the published tables).
        tokenizer: A tokenizer's name; by default the protocol's own for each row's language.
        config: The data set's config; named with the score, and checked against the predictions' sidecar.
        split: Its split, likewise.
        dataset_fingerprint: Its content hash, likewise; by default a hash of the rows themselves.
        missing: ``skip`` leaves rows without a prediction out, ``zero`` counts them as 0.
        strict: Refuse predictions whose join to the rows leaves anything open, or whose model was trained on the rows.
        resamples: Of the bootstrap.
        seed: Of the bootstrap.
        processes: Processes that compute Rouge-L.
    """

    protocol: str = "rouge-score"
    tokenizer: str | None = None
    config: str | None = None
    split: str | None = None
    dataset_fingerprint: str | None = None
    missing: Literal["skip", "zero"] = "skip"
    strict: bool = False
    resamples: int = 2000
    seed: int = 0
    processes: int = 1

    def __post_init__(self) -> None:
        languages = TOKENIZERS.get(self.protocol, {"en": ()})
        known = next((name for name in languages if self.tokenizer in languages[name]), "en")
        resolve_tokenizer(self.protocol, known, self.tokenizer)
        if self.missing not in ("skip", "zero"):
            raise RecipeError(f"unknown way to treat missing predictions {self.missing!r}; known: skip, zero")
        _ = self.bootstrap  # refuses bad settings now, before any work

    @property
    def bootstrap(self) -> Bootstrap:
        """Settings of the intervals, which are 95 % ones throughout."""
        return Bootstrap(self.resamples, self.seed)

    def of_data(self, dataset_fingerprint: str) -> ScoreOptions:
        """The same options, naming the data set's content."""
        return replace(self, dataset_fingerprint=dataset_fingerprint)

    @property
    def where(self) -> str:
        """Config and split in words."""
        return "/".join(part for part in (self.config, self.split) if part) or "the data set"


@dataclass(frozen=True, slots=True)
class ScoreReport:
    """Everything that scoring found.

    Attributes:
        options: How it was scored.
        metrics: ``CUS``, ``RAW``, ``SPE`` and ``avg``; ``None`` where there are no rows, and avg without all three.
        by_role: The same for each role, in order of appearance.
        by_language: The same for each language, where there are several.
        by_kind: SPE by the type of a row's references (``script_agnostic``, ``script_based``, ``mixed``).
        subset_rows: For each subset, its rows and how many of them were answered.
        matching: The join of predictions to rows.
        findings: What a reader must know about it; to be shown with the score.
        contamination: Which of the rows the model was trained on; ``None`` where nothing is known of its training.
        metrics_clean: The metrics of the rows that are known not to be; ``None`` where no row is known to be.
        fingerprint: What the score depends on, with a ``hash``.
        scores: Row by row.
    """

    options: ScoreOptions
    metrics: Summary
    by_role: dict[str, Summary]
    by_language: dict[str, Summary]
    by_kind: dict[str, Summary]
    subset_rows: dict[str, tuple[int, int]]
    matching: Matching
    findings: tuple[Finding, ...]
    contamination: Contamination | None
    metrics_clean: Summary | None
    fingerprint: dict[str, Any]
    scores: tuple[RowScore, ...]

    def to_dict(self, *, rows: bool = False) -> dict[str, Any]:
        """The contract's JSON object, extended by breakdowns, counts and findings.

        Args:
            rows: Add ``rows``: the score of each row under each metric.
        """
        result = {
            "protocol": self.options.protocol,
            "config": self.options.config,
            "split": self.options.split,
            "metrics": summary_dict(self.metrics),
            "unmatched": {
                "predictions": len(self.matching.unmatched_predictions),
                "rows": len(self.matching.unmatched_rows),
            },
            "contamination": self._contamination(),
            "fingerprint": self.fingerprint,
            "by_role": {role: summary_dict(summary) for role, summary in self.by_role.items()},
            "by_subset": self._subsets(),
            "counts": self.counts(),
            "warnings": [str(finding) for finding in self.findings],
        }
        if self.by_language:
            result["by_language"] = {name: summary_dict(summary) for name, summary in self.by_language.items()}
        return {**result, "rows": [score.to_dict() for score in self.scores]} if rows else result

    def counts(self) -> dict[str, Any]:
        """How many rows were matched how, and how many predictions or rows each finding touches."""
        found = {finding.kind: finding.count for finding in self.findings}
        return {"matched_by": dict(self.matching.matched_by), **found}

    def _contamination(self) -> dict[str, Any] | None:
        if self.contamination is None:
            return None
        clean = None if self.metrics_clean is None else summary_dict(self.metrics_clean)
        return {**self.contamination.to_dict(), "unknown": self.contamination.unknown, "metrics_clean": clean}

    def _subsets(self) -> dict[str, Any]:
        measured: dict[str, tuple[Metric, ...]] = {"general": ("CUS", "RAW"), "role_specific": ("SPE",)}
        result: dict[str, Any] = {}
        for subset, (total, answered) in self.subset_rows.items():
            result[subset] = {"rows": total, "answered": answered}
            result[subset] |= {metric: metric_dict(self.metrics[metric]) for metric in measured[subset]}
        if self.by_kind:
            kinds = {kind: metric_dict(summary["SPE"]) for kind, summary in self.by_kind.items()}
            result["role_specific"]["by_reference_type"] = kinds
        return result
