"""What evaluation harnesses log, read as predictions and as what made them.

lm-evaluation-harness writes ``samples_TASK_DATE.jsonl`` with ``--log_samples``, next to ``results_DATE.json``;
inspect_ai writes one JSON file with ``--log-format json``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rolellm.core.errors import DataError, PredictionError
from rolellm.core.jsonl import read_json, read_jsonl


def read_logged(path: Path, bad: list[DataError]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The objects of a file of predictions, or those that a harness logged.

    Args:
        path: JSON Lines, or a log of inspect_ai.
        bad: Where broken lines go, as errors that know their line.

    Yields:
        The line number (of a log of inspect_ai, the sample's), counted from 1, and the object.

    Raises:
        PredictionError: For a log of inspect_ai in its packed format.
    """
    if path.suffix == ".eval":
        raise PredictionError(
            "a packed log of inspect_ai; write it as JSON with `inspect log convert --to json`", path=path
        )
    if path.suffix == ".json":
        for number, sample in enumerate(read_json(path).get("samples") or (), start=1):
            yield number, {"id": sample.get("id"), "prediction": sample.get("output", {}).get("completion")}
        return
    for line, value in read_jsonl(path, bad=bad):
        doc, replies = value.get("doc"), value.get("filtered_resps")
        if isinstance(doc, dict) and isinstance(replies, list) and replies:
            yield line, {"id": doc.get("id"), "prediction": replies[0]}
        else:
            yield line, value


def log_meta(path: Path) -> dict[str, Any] | None:
    """How the replies of a harness's log were made, with the keys of a sidecar; ``None`` where that is not known.

    Raises:
        DataError: When the log, or the results that lie next to the samples, are not a JSON object.
    """
    if path.suffix == ".json":
        found = read_json(path).get("eval", {})
        return {
            "config": found.get("task_args", {}).get("config"),
            "split": found.get("task_args", {}).get("split"),
            "model": found.get("model"),
            "decoding": {**found.get("model_args", {}), **found.get("model_generate_config", {})},
            "versions": found.get("packages"),
        }
    task, _, date = path.stem.removeprefix("samples_").rpartition("_")
    results = path.with_name(f"results_{date}.json")
    if not path.name.startswith("samples_") or not results.is_file():
        return None
    found = read_json(results)
    config = found.get("configs", {}).get(task, {})
    return {
        "config": config.get("dataset_name"),
        "split": config.get("test_split"),
        "model": found.get("model_name"),
        "prompt": {key: found.get(key) for key in ("chat_template_sha", "system_instruction")},
        "decoding": config.get("generation_kwargs"),
        "versions": {"lm_eval": found.get("lm_eval_version"), "transformers": found.get("transformers_version")},
    }
