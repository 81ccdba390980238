"""What evaluation harnesses log, read as predictions and as what made them.

lm-evaluation-harness writes ``samples_TASK_DATE.jsonl`` with ``--log_samples``, next to ``results_DATE.json``;
inspect_ai writes one JSON file with ``--log-format json``; lighteval writes
``details/MODEL/DATE/details_TASK_DATE.parquet`` with ``--save-details``, and ``results/MODEL/results_DATE.json``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rolellm.core.errors import DataError, PredictionError
from rolellm.core.foreign import read_parquet
from rolellm.core.jsonl import read_json, read_jsonl

#: The columns of lighteval's details that are read.
_DETAILS: Final = ("doc.specific.id", "model_response.text", "model_response.text_post_processed")


def read_logged(path: Path, bad: list[DataError]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The objects of a file of predictions, or those that a harness logged.

    Args:
        path: JSON Lines, a log of inspect_ai, or the details of lighteval.
        bad: Where broken lines go, as errors that know their line.

    Yields:
        The line number (where there are no lines, the sample's), counted from 1, and the object.

    Raises:
        PredictionError: For a log of inspect_ai in its packed format, and for what holds no replies.
    """
    if path.suffix == ".eval":
        raise PredictionError(
            "a packed log of inspect_ai; write it as JSON with `inspect log convert --to json`", path=path
        )
    if path.suffix == ".parquet":
        yield from _read_details(path)
        return
    if path.suffix == ".json":
        log = read_json(path)
        if "config_general" in log:
            raise PredictionError(
                "results of lighteval, which hold no replies; give the details that --save-details writes", path=path
            )
        with _name_format("a log of inspect_ai", path):
            for number, sample in enumerate(log.get("samples") or (), start=1):
                yield number, {"id": sample.get("id"), "prediction": sample.get("output", {}).get("completion")}
        return
    for line, value in read_jsonl(path, bad=bad):
        doc, replies = value.get("doc"), value.get("filtered_resps")
        if isinstance(doc, dict) and isinstance(replies, list) and replies:
            yield line, {"id": doc.get("id"), "prediction": replies[0]}
        else:
            yield line, value


def _read_details(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with _name_format("the details of a RoleBench task of lighteval", path):
        for number, row in enumerate(read_parquet(path, _DETAILS), start=1):
            response = row["model_response"]
            # Where lighteval takes a model's reasoning out, it scores what is left.
            replies = response.get("text_post_processed") or response["text"]
            yield number, {"id": row["doc"]["specific"]["id"], "prediction": replies[0]}


@contextmanager
def _name_format(format_name: str, path: Path) -> Iterator[None]:
    """Name a file whose values are not where a harness writes them."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, IndexError) as error:
        raise PredictionError(
            f"not {format_name}: its values are not where that harness writes them", path=path
        ) from error
    except PredictionError:
        raise
    except DataError as error:
        raise PredictionError(error.problem, path=path) from error


def read_log_meta(path: Path) -> dict[str, Any] | None:
    """Read how the replies of a harness's log were made, with a sidecar's keys; ``None`` where that is not known.

    Raises:
        PredictionError: When the log, or the results that lie next to the samples, are not what that harness writes.
    """
    with _name_format("a harness's log, or the results next to it are not", path):
        return _read_known_meta(path)


def _read_known_meta(path: Path) -> dict[str, Any] | None:
    if path.suffix == ".json":
        log = read_json(path).get("eval", {})
        return {
            "config": log.get("task_args", {}).get("config"),
            "split": log.get("task_args", {}).get("split"),
            "model": log.get("model"),
            "date": _read_date(log.get("created")),
            "decoding": {**log.get("model_args", {}), **log.get("model_generate_config", {})},
            "versions": log.get("packages"),
        }
    if path.suffix == ".parquet":
        return _read_details_meta(path)
    task, _, date = path.stem.removeprefix("samples_").rpartition("_")
    results = path.with_name(f"results_{date}.json")
    if not path.name.startswith("samples_") or not results.is_file():
        return None
    log = read_json(results)
    config = log.get("configs", {}).get(task, {})
    return {
        "config": config.get("dataset_name"),
        "split": config.get("test_split"),
        "model": log.get("model_name"),
        "parameters": (log.get("config") or {}).get("model_num_parameters"),
        "date": _read_date(date),
        "prompt": {key: log.get(key) for key in ("chat_template_sha", "system_instruction")},
        "decoding": config.get("generation_kwargs"),
        "versions": {"lm_eval": log.get("lm_eval_version"), "transformers": log.get("transformers_version")},
    }


def _read_date(time: Any) -> str | None:
    """Read the day of a time as harnesses write it, at the beginning; ``None`` for something else."""
    day = re.match(r"\d{4}-\d\d-\d\d(?=T|$)", str(time))
    return day and day[0]


def _read_details_meta(path: Path) -> dict[str, Any] | None:
    task, _, date = path.stem.removeprefix("details_").rpartition("_")
    # A model's name may have any number of folders, and any names.
    run_folder = path.parent.parent
    roots = [root for root in (run_folder, *run_folder.parents) if root.name == "details"]
    candidates = (root.with_name("results") / run_folder.relative_to(root) / f"results_{date}.json" for root in roots)
    results = next((candidate for candidate in candidates if candidate.is_file()), None)
    if results is None:
        return None
    log = read_json(results)
    config, model = log.get("config_tasks", {}).get(task, {}), log.get("config_general", {}).get("model_config", {})
    parameters = model.get("generation_parameters") or {}
    decoding = {"max_new_tokens": config.get("generation_size")}
    decoding |= {key: value for key, value in parameters.items() if value is not None}
    prompt = {key: model.get(key) for key in ("system_prompt", "override_chat_template", "add_special_tokens")}
    splits = [*config.get("evaluation_splits", ()), None]
    return {
        "config": config.get("hf_subset"),
        "split": splits[0],
        "model": model.get("model_name"),
        "date": _read_date(date),
        "prompt": prompt,
        "decoding": decoding,
    }
