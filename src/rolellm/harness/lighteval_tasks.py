"""RoleBench for lighteval, whose ``--custom-tasks`` takes this module's name.

Its prompts have one system message for all rows, so that the role is in the user's message here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from lighteval.metrics.metrics_sample import SampleLevelComputation
from lighteval.metrics.utils.metric_utils import SampleLevelMetricGrouping
from lighteval.models.model_output import ModelResponse
from lighteval.tasks.lighteval_task import LightevalTaskConfig
from lighteval.tasks.requests import Doc, SamplingMethod

from rolellm.core.records import Row
from rolellm.harness import tasks
from rolellm.models.prompts.render import make_messages
from rolellm.scoring.score_report import METRICS


class RougeL(SampleLevelComputation):  # type: ignore[misc]  # mypy does not see lighteval
    """Rouge-L of a reply under protocol ``rouge-score``."""

    def compute(self, doc: Doc, model_response: ModelResponse, **_: Any) -> dict[str, Any]:
        """Return the metrics that the row has, as `rolellm.harness.tasks.score_doc`."""
        return tasks.score_doc(doc.specific, model_response.final_text)


def _make_aggregation(name: str) -> Callable[[Any], dict[str, float]]:
    aggregate: Callable[[Any], float] = tasks.compute_mean
    if name == "avg":
        aggregate = tasks.average_metrics
    # lighteval computes no standard error for what is a dict: its own takes rows for independent.
    return lambda values: {name: aggregate(values)}


_NAMES: Final = (*METRICS, "avg")
ROUGE: Final = SampleLevelMetricGrouping(
    metric_name=list(_NAMES),
    higher_is_better=dict.fromkeys(_NAMES, True),
    category=SamplingMethod.GENERATIVE,
    sample_level_fn=RougeL(),
    corpus_level_fn={name: _make_aggregation(name) for name in _NAMES},
)


def prompt(columns: Mapping[str, Any], task: str) -> Doc:
    """Return a row as lighteval takes it: role and question in one message, and the row, by column, in ``specific``."""
    row = Row.from_columns(columns)
    query = "\n\n".join(message["content"] for message in make_messages(row))
    # It adds keys of its own to the columns.
    specific = {name: value for name, value in columns.items() if not name.startswith("__")}
    references = list(row.references)
    indices = list(range(len(references)))
    return Doc(query, references, indices, specific=specific, task_name=task)


def _make_task(config: str) -> LightevalTaskConfig:
    task_name = config.replace("-", "_")
    return LightevalTaskConfig(
        name=f"rolebench_{task_name}",
        prompt_function=prompt,
        hf_repo="rolebench",
        hf_subset=config,
        metrics=[ROUGE],
        evaluation_splits=["test"],
        # As `rolellm generate`.
        generation_size=200,
        version=1,
    )


_CONFIGS: Final = (
    "instruction-generalization-eng",
    "role-generalization-eng",
    "instruction-generalization-zh",
    "sample",
)
TASKS_TABLE: Final = [_make_task(config) for config in _CONFIGS]


def run_lighteval() -> None:
    """Run ``lighteval`` without the tasks that ship with it.

    To import them, lighteval 0.13.0 fetches a file from GitHub, and calls ``huggingface_hub`` as its version 2 cannot
    be called.
    """
    from lighteval.__main__ import app
    from lighteval.tasks.registry import Registry

    for name in ("_load_from_files", "_load_from_subdirs"):
        setattr(Registry, name, staticmethod(lambda *_: {}))
    app()


if __name__ == "__main__":
    run_lighteval()
