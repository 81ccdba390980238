"""Scoring of plain lists, as the `evaluate` module gets them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from rolellm.core.errors import DataError
from rolellm.scoring.score import score
from rolellm.scoring.score_report import ScoreReport


def check_lists(predictions: Sequence[object], references: Sequence[object]) -> None:
    """Refuse lists that ``evaluate`` would stumble over, or silently turn into other texts.

    Raises:
        DataError: (a ``ValueError``) On no predictions, lists of different lengths, or references some of which are
            texts and others lists of texts.
    """
    if not len(predictions):
        raise DataError("no predictions to score")
    if len(predictions) != len(references):
        raise DataError(
            f"{len(predictions)} predictions but {len(references)} references; each prediction needs its own"
        )
    is_first_text = isinstance(references[0], str)
    for number, reference in enumerate(references):
        if isinstance(reference, str) != is_first_text:
            kinds = ("a text", "a list") if is_first_text else ("a list", "a text")
            raise DataError(
                f"the reference of row 0 is {kinds[0]}, but that of row {number} {kinds[1]}; give texts alone, or "
                "lists alone"
            )


def score_columns(
    predictions: Sequence[str], columns: Mapping[str, Sequence[Any] | str | None], **options: Any
) -> ScoreReport:
    """Score predictions held in memory exactly as ``rolellm score`` scores a file.

    Args:
        predictions: One text a row.
        columns: ``references`` and any other columns of RoleBench, each as long as the predictions; one text stands
            for all rows, and ``None`` for no such column. Without ``subset`` all rows count as general.
        options: As for `rolellm.score`.

    Raises:
        DataError: (a ``ValueError``) On no predictions, lists of another length, or a row without references.
        SettingsError: (a ``ValueError``) On an unknown protocol, language or tokenizer.
    """
    count = len(predictions)
    if columns.get("raw_reference") is not None and columns.get("subset") is None:
        raise DataError("raw_references without subsets: RAW is measured on general rows, so say which those are")
    lists: dict[str, Any] = dict(columns)
    for name, values in columns.items():
        if isinstance(values, str):
            lists[name] = [values] * count
    return score(list(predictions), zip_columns(count, lists), floors=False, **options)


def zip_columns(count: int, columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Make rows of columns; one that is ``None`` is left out.

    Raises:
        DataError: (a ``ValueError``) On a column that is not a list, or has another length; names it.
    """
    lists = {name: values for name, values in columns.items() if values is not None}
    for name, values in lists.items():
        if isinstance(values, str | bytes) or not hasattr(values, "__len__"):
            raise DataError(f"{name}: expected a list, one value a row, found {type(values).__name__}")
        if len(values) != count:
            raise DataError(f"{count} predictions but {len(values)} values of {name}; each row needs its own")
    return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]


def compute_column_means(report: ScoreReport) -> dict[str, float | int]:
    """Rouge-L of every row against its own references: means of the value that counts and of its parts, and n."""
    scores = [item for item in report.scores if item.metric != "RAW"]
    names = {"rougeL": "value", "precision": "precision", "recall": "recall", "f1": "f1"}
    means: dict[str, float | int] = {}
    for name, field in names.items():
        means[name] = fmean(getattr(item, field) for item in scores)
    return means | {"n": len(scores)}
