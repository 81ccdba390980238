"""What evaluation harnesses log, read as predictions and as what made them.

lm-evaluation-harness writes ``samples_TASK_DATE.jsonl`` with ``--log_samples``, next to ``results_DATE.json``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rolellm.core.jsonl import read_json


def logged_reply(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """A logged sample of lm-evaluation-harness as a prediction; any other object as it is."""
    doc, replies = value.get("doc"), value.get("filtered_resps")
    if isinstance(doc, dict) and isinstance(replies, list) and replies:
        return {"id": doc.get("id"), "prediction": replies[0]}
    return value


def log_meta(path: Path) -> dict[str, Any] | None:
    """How the replies of a harness's log were made, with the keys of a sidecar; ``None`` where that is not known.

    Raises:
        DataError: When the results that lie next to the samples are not a JSON object.
    """
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
