"""The parts of RoleBench that a harness needs: the role's system message, a reply's Rouge-L, and the means of it.

Naming this module makes a harness import `rolellm`, so that ``datasets`` knows the name ``rolebench``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from rolellm.core.records import Row
from rolellm.core.result import Result
from rolellm.models.prompts.render import make_messages
from rolellm.scoring.score import score_replies
from rolellm.scoring.score_report import METRICS


def get_tasks_folder() -> Path:
    """Return the folder that ``lm_eval --include_path`` takes."""
    return Path(str(resources.files("rolellm.harness"))) / "lm_eval"


@dataclass(frozen=True, slots=True, repr=False)
class TasksFolder(Result):
    """The folder of the tasks of lm-evaluation-harness.

    Attributes:
        include_path: The folder.
    """

    include_path: Path

    def remarks(self) -> tuple[str]:
        """Return the folder alone, so that a shell can put it into ``lm_eval``'s command."""
        return (str(self.include_path),)


def with_system(dataset: Any) -> Any:
    """Add the column ``system``, which puts the role in the prompt as ``rolellm generate`` does, to a dataset."""
    texts = []
    for columns in dataset:
        system, _ = make_messages(Row.from_columns(columns))
        texts.append(system["content"])
    return dataset.add_column("system", texts)


def score_doc(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, Any]:
    """Score the reply to one row under protocol ``rouge-score``, as ``process_results`` of lm-evaluation-harness.

    Args:
        doc: The row, by column.
        results: The reply, alone in a list.

    Returns:
        The metrics that the row has, each from 0 to 1: ``CUS`` and maybe ``RAW``, or ``SPE``; and under ``avg`` all of
        them, for `average_metrics`.
    """
    scores = score_replies([(Row.from_columns(doc), results[0])])
    metrics: dict[str, float] = {score.metric: score.value for score in scores}
    return {**metrics, "avg": metrics}


def compute_mean(values: Sequence[float]) -> float:
    """Return the mean that ``rolellm score`` reports, to the last bit; not a number where there is no value."""
    if values:
        return math.fsum(values) / len(values)
    return math.nan


def average_metrics(row_metrics: Iterable[Mapping[str, float]]) -> float:
    """Return the mean of CUS, RAW and SPE over rows; not a number unless the rows have all three."""
    values: dict[str, list[float]] = {metric: [] for metric in METRICS}
    for row in row_metrics:
        for metric, value in row.items():
            values[metric].append(value)
    # Weighted before they are added, as the report does it.
    weight = 1 / len(METRICS)
    return math.fsum(compute_mean(column) * weight for column in values.values())
