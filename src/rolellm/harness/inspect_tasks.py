"""RoleBench for inspect_ai, which finds this module by its entry point: ``inspect eval rolellm/rolebench``."""

from __future__ import annotations

import math
from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ChatMessageSystem, ChatMessageUser, GenerateConfig
from inspect_ai.scorer import Metric, SampleScore, Score, Scorer, metric, scorer
from inspect_ai.solver import TaskState, generate

from rolellm.core.records import Row
from rolellm.data.rolebench import load_rolebench
from rolellm.harness import tasks
from rolellm.models.prompts.render import make_messages
from rolellm.scoring.score_report import METRICS


@metric
def mean() -> Metric:
    """The mean that ``rolellm score`` reports, to the last bit."""

    # inspect_ai reads the annotation: without it, the function would be given bare scores.
    def compute(scores: list[SampleScore]) -> float:
        return tasks.compute_mean([score.score.as_float() for score in scores])

    return compute


@metric
def avg() -> Metric:
    """The mean of CUS, RAW and SPE; not a number unless the rows have all three."""

    def compute(scores: list[SampleScore]) -> float:
        row_metrics = []
        for score in scores:
            values = score.score.as_dict().items()
            row_metrics.append({name: value for name, value in values if not math.isnan(value)})
        return tasks.average_metrics(row_metrics)

    return compute


@scorer(metrics=[avg(), {name: [mean()] for name in METRICS}], name="rouge")
def score_reply() -> Scorer:
    """Rouge-L of a reply under protocol ``rouge-score``: CUS and RAW, or SPE; not a number where a row has none."""

    async def score(state: TaskState, target: Any) -> Score:
        reply = state.output.completion
        row_metrics = tasks.score_doc(state.metadata, [reply])["avg"]
        value = {name: row_metrics.get(name, math.nan) for name in METRICS}
        return Score(value=value, answer=reply)

    return score


@task
def rolebench(config: str = "instruction-generalization-eng", split: str = "test") -> Task:
    """RoleBench: each row's role in the system message, its question after it.

    Args:
        config: A config of RoleBench, such as ``sample``.
        split: Its split.
    """
    samples = []
    for columns in load_rolebench(config, split):
        row = Row.from_columns(columns)
        system, question = make_messages(row)
        messages = [ChatMessageSystem(content=system["content"]), ChatMessageUser(content=question["content"])]
        references = list(row.references)
        samples.append(Sample(input=messages, target=references, id=row.id, metadata=columns))
    dataset = MemoryDataset(samples, name=f"rolebench/{config}/{split}")
    # As `rolellm generate`.
    decoding = GenerateConfig(temperature=0.0, max_tokens=200)
    return Task(
        dataset=dataset,
        solver=generate(),
        scorer=score_reply(),
        config=decoding,
        metadata={"protocol": "rouge-score"},
    )
