"""Scores as a model card shows them: read from what ``rolellm score --json`` printed, never without their recipe."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rolellm.errors import DataError
from rolellm.rolebench.schema import REPO_ID, SAMPLE

METRICS = ("CUS", "RAW", "SPE", "avg")


@dataclass(frozen=True, slots=True)
class CardScore:
    """The scores of one part of the data under one protocol.

    Attributes:
        protocol: ``rouge-score`` or ``paper``.
        config: The data set's config.
        split: Its split.
        metrics: ``mean``, ``ci95`` and ``n`` by metric; ``None`` where there were no rows.
        fingerprint: What the score depends on, with its ``hash``.
        contamination: What is known of rows that were trained on.
        unanswered: Rows without a prediction.
        warnings: What scoring had to say.
    """

    protocol: str
    config: str
    split: str
    metrics: dict[str, dict[str, Any] | None]
    fingerprint: dict[str, Any]
    contamination: dict[str, Any] | None
    unanswered: int
    warnings: tuple[str, ...]

    @property
    def where(self) -> str:
        """Config and split."""
        return f"{self.config}/{self.split}"

    @property
    def hash(self) -> str:
        """The hash of the fingerprint."""
        return str(self.fingerprint["hash"])

    @property
    def missing(self) -> list[str]:
        """Metrics that no row measures."""
        return [name for name in METRICS if self.metrics.get(name) is None]

    @property
    def notes(self) -> list[str]:
        """What a reader has to know of them."""
        recipe = self.fingerprint
        tokenizers = ", ".join(sorted(set(recipe["tokenizer"].values())))
        notes = [f"{recipe['value']} of {recipe['reference_choice']}, tokenizer {tokenizers}"]
        notes += [_decoding(item.get("generation")) for item in recipe["predictions"]]
        if self.unanswered:
            treated = "count as 0" if recipe.get("missing") == "zero" else "are left out"
            notes.append(f"{self.unanswered} rows without an answer {treated}")
        if self.contamination is None:
            notes.append("whether its rows were trained on was not recorded")
        elif self.contamination.get("contaminated"):
            notes.append(f"{self.contamination['contaminated']} of {self.contamination['rows']} rows were trained on")
        # Not their text: some of them name files, which mean nothing elsewhere.
        if self.warnings:
            notes.append(f"scoring gave {len(self.warnings)} warning{'s' if len(self.warnings) > 1 else ''}")
        return list(dict.fromkeys(notes))

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Cells for a table: data, protocol, metric, mean, interval, rows."""
        for name in METRICS:
            found = self.metrics.get(name)
            if found is None:
                yield (f"`{self.where}`", self.protocol, name, "–", "–", "0")
                continue
            low_high = found.get("ci95")
            interval = f"{low_high[0]:.4f} to {low_high[1]:.4f}" if low_high else "–"
            rows = f"{found['n']:,}" if "n" in found else "–"
            yield (f"`{self.where}`", self.protocol, name, f"{found['mean']:.4f}", interval, rows)

    def eval_results(self) -> list[Any]:
        """The same for the card's ``model-index``, as ``huggingface_hub.EvalResult``."""
        from huggingface_hub import EvalResult

        own = self.config == SAMPLE
        found = []
        for name in METRICS:
            metric = self.metrics.get(name)
            if metric is None:
                continue
            details: dict[str, Any] = {key: metric[key] for key in ("ci95", "n") if key in metric}
            found.append(
                EvalResult(
                    task_type="text-generation",
                    dataset_type="rolellm-sample" if own else REPO_ID,
                    dataset_name="the sample in rolellm" if own else "RoleBench",
                    dataset_config=self.config,
                    dataset_split=self.split,
                    dataset_args={"fingerprint": self.fingerprint["dataset"]["fingerprint"]},
                    metric_type="rouge",
                    metric_name=f"{name} (Rouge-L {self.fingerprint['value']}, protocol {self.protocol})",
                    metric_value=metric["mean"],
                    metric_args={**details, "fingerprint": self.hash},
                )
            )
        return found


def read_scores(path: Path) -> CardScore:
    """Read what ``rolellm score --json`` printed into a file.

    Raises:
        DataError: When it is something else; names the file.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        metrics = {name: _metric(value["metrics"].get(name)) for name in METRICS}
        fingerprint = value["fingerprint"]
        needed = [fingerprint[key] for key in ("hash", "value", "reference_choice")]
        if not all(isinstance(item, str) for item in [*needed, fingerprint["dataset"]["fingerprint"]]):
            raise TypeError("its fingerprint is incomplete")
        if not all(isinstance(item, dict) for item in fingerprint["predictions"]):
            raise TypeError("its fingerprint does not name the predictions")
        return CardScore(
            protocol=str(value["protocol"]),
            config=str(value["config"]),
            split=str(value["split"]),
            metrics=metrics,
            fingerprint={**fingerprint, "tokenizer": dict(fingerprint["tokenizer"])},
            contamination=value.get("contamination"),
            unanswered=int(value["unmatched"]["rows"]),
            warnings=tuple(value.get("warnings", ())),
        )
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", path=path) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"is not what `rolellm score --json` prints ({type(error).__name__}: {error})", path=path
        ) from error


def _decoding(generation: Any) -> str:
    """How answers were decoded, and by which model, as far as the file beside them says."""
    decoding = generation.get("decoding") if isinstance(generation, dict) else None
    if not isinstance(decoding, dict):
        return "how the answers were made was not recorded"
    settings = ", ".join(f"{key} {value}" for key, value in decoding.items())
    model = generation.get("adapter_hash") or generation.get("model_hash")
    prompt = generation.get("prompt")
    form = f", prompt form {prompt['form']}" if isinstance(prompt, dict) and "form" in prompt else ""
    return f"answers of the model with content hash {str(model)[:12]} by {settings}{form}"


def _metric(value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    found: dict[str, Any] = {"mean": float(value["mean"])}
    if value.get("ci95") is not None:
        low, high = value["ci95"]
        found["ci95"] = [float(low), float(high)]
    return found | ({"n": int(value["n"])} if "n" in value else {})
