"""What a harness needs of RoleBench: the role's system message, a reply's Rouge-L, and the means of it.

Naming this module makes a harness import `rolellm`, so that ``datasets`` knows the name ``rolebench``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from rolellm.core.records import Row
from rolellm.evaluation.score import METRICS, reply_scores
from rolellm.prompts.render import prompt_messages


def tasks_folder() -> Path:
    """The folder that ``lm_eval --include_path`` takes."""
    return Path(str(resources.files("rolellm.harness"))) / "lm_eval"


def with_system(dataset: Any) -> Any:
    """Add the column ``system``, which puts the role in the prompt as ``rolellm generate`` does, to a dataset."""
    messages = (prompt_messages(Row.from_columns(columns)) for columns in dataset)
    return dataset.add_column("system", [system["content"] for system, _ in messages])


def score_doc(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, Any]:
    """Score the reply to one row under protocol ``rouge-score``, as ``process_results`` of lm-evaluation-harness.

    Args:
        doc: The row, by column.
        results: The reply, alone in a list.

    Returns:
        The metrics that the row has, each from 0 to 1: ``CUS`` and maybe ``RAW``, or ``SPE``; and under ``avg`` all of
        them, for `average`.
    """
    found: dict[str, float] = {one.metric: one.value for one in reply_scores(Row.from_columns(doc), results[0])}
    return {**found, "avg": found}


def mean(values: Sequence[float]) -> float:
    """The mean that ``rolellm score`` reports, to the last bit; not a number where there is no value."""
    return math.fsum(values) / len(values) if values else math.nan


def average(found: Iterable[Mapping[str, float]]) -> float:
    """The mean of CUS, RAW and SPE over rows; not a number unless the rows have all three."""
    rows = list(found)
    return mean([mean([row[metric] for row in rows if metric in row]) for metric in METRICS])
