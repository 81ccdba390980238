"""Scoring of plain lists, for those who hold predictions and references in memory and no data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rolellm.core.errors import DataError
from rolellm.core.records import Row
from rolellm.evaluation.predictions import Predictions
from rolellm.evaluation.score import ScoreOptions, ScoreReport, score


@dataclass(frozen=True, slots=True)
class Columns:
    """What is known of each row besides its prediction; every list is as long as the predictions.

    Attributes:
        references: One text or a list of texts a row.
        language: ``en`` or ``zh`` for all rows, or one a row.
        subsets: ``general`` or ``role_specific`` a row; needed for CUS, RAW and SPE.
        raw_references: The role-free target of each row, or ``None``; needed for RAW.
        questions: Rows with the same one form a cluster of the bootstrap; by default each row is its own.
        roles: For the breakdown by role.
    """

    references: Sequence[str | Sequence[str]]
    language: str | Sequence[str] = "en"
    subsets: Sequence[str] | None = None
    raw_references: Sequence[str | None] | None = None
    questions: Sequence[str] | None = None
    roles: Sequence[str] | None = None

    def rows(self, count: int) -> list[Row]:
        """Rows of RoleBench made of the lists.

        Args:
            count: How many predictions there are.

        Raises:
            DataError: (a ``ValueError``) On lists of another length, a row without references, or an unknown subset.
        """
        if self.raw_references is not None and self.subsets is None:
            raise DataError("raw_references without subsets: RAW is measured on general rows, so say which those are")
        languages = [self.language] * count if isinstance(self.language, str) else self.language
        columns: dict[str, Sequence[Any]] = {
            "references": self.references,
            "language": languages,
            "subset": self.subsets if self.subsets is not None else ["general"] * count,
            "raw_reference": self.raw_references if self.raw_references is not None else [None] * count,
            "question": self.questions if self.questions is not None else [f"row {n}" for n in range(count)],
            "role": self.roles if self.roles is not None else [""] * count,
        }
        for name, values in columns.items():
            if len(values) != count:
                raise DataError(
                    f"{count} predictions but {len(values)} values of {name}; each prediction needs its own"
                )
        return [
            self._row(number, dict(zip(columns, values, strict=True)))
            for number, values in enumerate(zip(*columns.values(), strict=True))
        ]

    @staticmethod
    def _row(number: int, values: dict[str, Any]) -> Row:
        given = values["references"]
        references = [given] if isinstance(given, str) else list(given or ())
        if not references:
            raise DataError(f"row {number} has no reference: give at least one, or leave the row out")
        if values["subset"] not in ("general", "role_specific"):
            raise DataError(f"row {number} is of subset {values['subset']!r}; known: general, role_specific")
        for name in ("language", "question", "role"):
            if not isinstance(values[name], str):
                raise DataError(f"the {name} of row {number} must be a text, found {type(values[name]).__name__}")
        return Row.from_columns({**values, "id": f"row-{number}", "references": references})


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
    first = isinstance(references[0], str)
    odd = next((number for number, given in enumerate(references) if isinstance(given, str) != first), None)
    if odd is not None:
        kinds = "a text, but that of row {} a list" if first else "a list, but that of row {} a text"
        raise DataError(f"the reference of row 0 is {kinds.format(odd)}; give texts alone, or lists alone")


def score_columns(predictions: Sequence[str], columns: Columns, options: ScoreOptions | None = None) -> ScoreReport:
    """Score predictions held in memory exactly as ``rolellm score`` scores a file.

    Args:
        predictions: One text a row.
        columns: What is known of the rows.
        options: How to score.

    Returns:
        The report; without ``subsets`` all rows count as general, so that ``CUS`` is the mean over all.

    Raises:
        DataError: (a ``ValueError``) On no predictions, lists of another length, a row without references.
        SettingsError: (a ``ValueError``) On an unknown protocol, language or tokenizer.
    """
    if not len(predictions):
        raise DataError("no predictions to score")
    rows = columns.rows(len(predictions))
    return score(rows, Predictions.from_texts([row.id for row in rows], predictions), options)


def column_means(report: ScoreReport) -> dict[str, float | int]:
    """Rouge-L of every row against its own references: means of the value that counts and of its parts, and n."""
    scores = [item for item in report.scores if item.metric != "RAW"]
    return {
        "rougeL": fmean(item.value for item in scores),
        "precision": fmean(item.precision for item in scores),
        "recall": fmean(item.recall for item in scores),
        "f1": fmean(item.f1 for item in scores),
        "n": len(scores),
    }
