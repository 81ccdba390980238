"""The replies that evaluation harnesses log, read as predictions.

lm-evaluation-harness writes ``samples_TASK_DATE.jsonl`` with ``--log_samples``; inspect_ai writes one JSON file with
``--log-format json``; lighteval writes ``details/MODEL/DATE/details_TASK_DATE.parquet`` with ``--save-details``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rolellm.core.errors import PredictionError
from rolellm.core.foreign import read_parquet
from rolellm.core.jsonl import read_json, read_jsonl

#: The columns of lighteval's details that are read.
_DETAILS: Final = ("doc.specific.id", "model_response.text", "model_response.text_post_processed")


def read_logged(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The objects of a file of predictions, or those that a harness logged.

    Args:
        path: JSON Lines, a log of inspect_ai, or the details of lighteval.

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
        yield from _read_inspect_log(path)
        return
    for line, value in read_jsonl(path):
        doc = value.get("doc")
        replies = value.get("filtered_resps")
        if isinstance(doc, dict) and isinstance(replies, list) and replies:
            value = {"id": doc.get("id"), "prediction": replies[0]}
        yield line, value


def _read_inspect_log(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    log = read_json(path)
    if "config_general" in log:
        raise PredictionError(
            "results of lighteval, which hold no replies; give the details that --save-details writes", path=path
        )
    with _name_format("a log of inspect_ai", path):
        for number, sample in enumerate(log.get("samples") or (), start=1):
            reply = sample.get("output", {}).get("completion")
            yield number, {"id": sample.get("id"), "prediction": reply}


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
