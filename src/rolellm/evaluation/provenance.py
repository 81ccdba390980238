"""What a score must name to be worth anything: recipe, data, predictions and versions (the fingerprint)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from rolellm.evaluation.matching import Finding
from rolellm.evaluation.predictions import Predictions
from rolellm.fingerprint import hash_bytes, hash_json
from rolellm.records import Language, Row

if TYPE_CHECKING:
    from rolellm.evaluation.scorecard import ScoreOptions

_REFERENCE_CHOICE = {
    "rouge-score": "the reference with the highest f1",
    "paper": "the reference with the highest recall",
}
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
    recipe: dict[str, Any] = {
        "protocol": options.protocol,
        "value": VALUE_FIELD[options.protocol],
        "tokenizer": dict(tokenizers),
        "reference_choice": _REFERENCE_CHOICE[options.protocol],
        "average": "mean over rows",
        "missing": options.missing,
        "interval": {
            "method": "percentile bootstrap over questions",
            "level": options.bootstrap.level,
            "resamples": options.resamples,
            "seed": options.seed,
        },
        "dataset": {
            "config": options.config,
            "split": options.split,
            "fingerprint": options.dataset_fingerprint or rows_hash(rows),
            "rows": len(rows),
        },
        "predictions": [{"sha256": file.sha256, "generation": _generation(file.meta)} for file in predictions.files]
        or [{"sha256": _texts_hash(predictions), "generation": None}],
        "versions": {name: _version(name) for name in ("rolellm", "rapidfuzz", "jieba", "numpy")},
    }
    digest = hash_json(recipe)
    # Only now, so that a file may be renamed and its scores keep their hash.
    for entry, file in zip(recipe["predictions"], predictions.files, strict=False):
        entry["file"] = file.path.name
    return {**recipe, "hash": digest}


def _generation(meta: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A sidecar without what it knows of the model's training, which changes no score and stands beside it."""
    return None if meta is None else {key: value for key, value in meta.items() if key != "contamination"}


def rows_hash(rows: Sequence[Row]) -> str:
    """A content hash of rows, for rows that come without the fingerprint of a data set."""
    return hash_json([hash_json([row.id, row.role, row.question, *row.references, row.raw_reference]) for row in rows])


def _texts_hash(predictions: Predictions) -> str:
    texts = [[item.id, item.role, item.question, item.prediction] for item in predictions.items]
    # Escaped: a model's text may hold half a surrogate pair, which UTF-8 cannot.
    return hash_bytes(json.dumps(texts).encode("ascii"))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def sidecar_findings(predictions: Predictions, options: ScoreOptions) -> list[Finding]:
    """What the sidecars say that does not fit what is scored: another config, split or state of the data."""
    findings = []
    expected = {
        "config": options.config,
        "split": options.split,
        "dataset_fingerprint": options.dataset_fingerprint,
    }
    for file in predictions.files:
        said = {key: (file.meta or {}).get(key) for key in expected}
        differing = [key for key, value in expected.items() if None not in (value, said[key]) and said[key] != value]
        if differing:
            words = ", ".join(f"{key} {said[key]}, not {expected[key]}" for key in differing)
            text = f"{file.path} was generated for another part or state of the data: {words}"
            findings.append(Finding("made_for_other_data", file.count, text, ()))
    return findings


def file_findings(predictions: Predictions) -> list[Finding]:
    """What was done about lines of the files: bad ones set aside, and replies beyond the first left out."""
    findings = []
    for file in predictions.files:
        if file.bad:
            text = f"bad lines of {file.path}, set aside in {file.bad_path}: {len(file.bad):,}"
            examples = tuple(f"line {error.line}: {error.problem}" for error in file.bad[:3])
            findings.append(Finding("bad_lines", len(file.bad), text, examples, refused=False))
        if file.several:
            text = f"lines of {file.path} with several replies, of which the first is scored: {file.several:,}"
            findings.append(Finding("several_generated", file.several, text, (), refused=False))
    return findings
