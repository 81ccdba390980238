"""RoleBench for inspect_ai, which finds this module by its entry point: ``inspect eval rolellm/rolebench``."""

from __future__ import annotations

import math
from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ChatMessageSystem, ChatMessageUser, GenerateConfig, get_model
from inspect_ai.scorer import Metric, SampleScore, Score, Scorer, metric, scorer
from inspect_ai.solver import TaskState, generate

from rolellm.core.errors import PredictionError
from rolellm.core.records import Row
from rolellm.core.settings import read
from rolellm.data.rolebench import load_rolebench
from rolellm.harness import tasks
from rolellm.judging.judge_models import load_judges
from rolellm.judging.requests import accept_verdicts, plan_verdicts
from rolellm.judging.run import build_requests
from rolellm.judging.settings import JudgingSettings
from rolellm.judging.systems import make_comparison
from rolellm.llm.model import Reply, UnacceptableError, Usage
from rolellm.models.prompts.render import make_messages
from rolellm.scoring.predictions import Predictions
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
            metrics = score.score.as_dict()
            row_metrics.append({name: value for name, value in metrics.items() if not math.isnan(value)})
        return tasks.average_metrics(row_metrics)

    return compute


@scorer(metrics=[avg(), {name: [mean()] for name in METRICS}], name="rouge")
def score_reply() -> Scorer:
    """Rouge-L of a reply under protocol ``rouge-score``: CUS and RAW, or SPE; not a number where a row has none."""

    async def score(state: TaskState, target: Any) -> Score:
        reply = state.output.completion
        metrics = tasks.score_doc(state.metadata, [reply])["avg"]
        return Score(value={name: metrics.get(name, math.nan) for name in METRICS}, answer=reply)

    return score


@scorer(metrics=[mean()], name="judge")
def grade_reply() -> Scorer:
    """Ask the model in the role ``grader`` if it prefers a reply to RoleGPT's: 1, 0, or 0.5 where it does not say.

    It is asked twice, with the answers in both orders, as by ``rolellm judge --judge role-pair``, and the score is the
    mean. Without two verdicts, or without RoleGPT's reply, the row is not scored.
    """
    settings = read(JudgingSettings, {"judges": ("role-pair",), "canaries": False})
    judges = load_judges(["role-pair"])
    accept = accept_verdicts({model.settings.parser: model for model in judges})

    async def score(state: TaskState, target: Any) -> Score:
        # The evaluated model must not grade itself, which it would do by default.
        grader = get_model(role="grader", required=True)
        row = Row.from_columns(state.metadata)
        predictions = {"reply": Predictions.pair_texts([row.id], [state.output.completion])}
        try:
            comparison, _ = make_comparison([row], predictions, settings)
        except PredictionError as error:
            return Score(value=math.nan, reason="scoring_failed", explanation=str(error))
        asks = plan_verdicts(comparison, judges)
        points = []
        for ask, request in zip(asks, build_requests(comparison, asks), strict=True):
            messages = [_MESSAGES[message.role](content=message.content) for message in request.messages]
            config = GenerateConfig(temperature=request.sampling.temperature, max_tokens=request.sampling.max_tokens)
            text = (await grader.generate(messages, config=config)).completion
            try:
                verdict = accept(request, Reply(text, "stop", Usage(0, 0), grader.name, grader.name, {}))
            except UnacceptableError as error:
                return Score(value=math.nan, reason="grader_failed", explanation=f"{error}: {text}")
            if verdict.ranks is None:
                return Score(value=math.nan, reason="grader_failed", explanation=f"repeats {verdict.copied}: {text}")
            # Of two answers: rank 1 is a win, 2 a loss, 1.5 a tie.
            points.append(2 - verdict.ranks[ask.order.index("reply")])
        return Score(value=tasks.compute_mean(points), answer=state.output.completion)

    return score


_MESSAGES = {"system": ChatMessageSystem, "user": ChatMessageUser}


@task
def rolebench(config: str = "instruction-generalization-eng", split: str = "test", judged: bool = False) -> Task:
    """RoleBench: each row's role in the system message, its question after it.

    Args:
        config: A config of RoleBench, such as ``sample``.
        split: Its split.
        judged: Also have the model in the role ``grader`` compare each reply with RoleGPT's.
    """
    samples = []
    for columns in load_rolebench(config, split):
        row = Row.from_columns(columns)
        system, question = make_messages(row)
        messages = [ChatMessageSystem(content=system["content"]), ChatMessageUser(content=question["content"])]
        samples.append(Sample(input=messages, target=list(row.references), id=row.id, metadata=columns))
    return Task(
        dataset=MemoryDataset(samples, name=f"rolebench/{config}/{split}"),
        solver=generate(),
        scorer=[score_reply(), grade_reply()] if judged else score_reply(),
        # As `rolellm generate`.
        config=GenerateConfig(temperature=0.0, max_tokens=200),
        metadata={"protocol": "rouge-score"},
    )
