"""Files and the Batch API of `local_llm`."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import parse_qs

from llm_faults import Answer, failed

_HALF = 0.5
_MOST_LINES = 50_000


class Owner(Protocol):
    """What a batch needs of the server."""

    settings: Any
    counts: Any

    def complete(self, content: bytes, headers: dict[str, str], share: float = 1.0) -> Answer:
        """Answer a request for a completion."""


@dataclass
class Batch:
    """A batch and when it was made; `found` is what is told of it once it is over."""

    shown: dict[str, Any]
    made: float
    cancelled: bool = False
    found: dict[str, Any] | None = None


class Batches:
    """Files and batches of one server, in memory."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.files: dict[str, tuple[str, bytes]] = {}
        self.batches: dict[str, Batch] = {}

    def route(self, method: str, path: str, query: str, headers: dict[str, str], body: bytes) -> Answer | None:
        """The answer to a request, if it is about files or batches."""
        found = re.fullmatch(r"/v1/(files|batches)(?:/([\w-]+)(?:/(content|cancel))?)?", path)
        if found is None:
            return None
        kind, name, deed = found.groups()
        if kind == "files":
            return self._files(method, name, deed, headers, body)
        if name is not None and name not in self.batches:
            return failed(404, f"no batch {name}")
        if method == "POST" and name is None:
            return self._create(json.loads(body))
        if method == "GET" and name is None:
            return self._list(parse_qs(query))
        if method == "POST" and deed == "cancel":
            self.batches[name].cancelled = True
        return _object(self._state(name))

    def _files(self, method: str, name: str | None, deed: str | None, headers: dict[str, str], body: bytes) -> Answer:
        if method == "POST" and name is None:
            return self._upload(headers, body)
        if name not in self.files:
            return failed(404, f"no file {name}")
        if method == "DELETE":
            del self.files[name]
            return _object({"id": name, "object": "file", "deleted": True})
        if deed == "content":
            return Answer(200, self.files[name][1], {"Content-Type": "application/octet-stream"}, paid=False)
        return _object(self._file(name))

    def _upload(self, headers: dict[str, str], body: bytes) -> Answer:
        boundary = re.search(r'boundary="?([^";]+)', headers.get("content-type", ""))
        if boundary is None:
            return failed(400, "not a form")
        for part in body.split(b"--" + boundary[1].encode()):
            head, _, content = part.partition(b"\r\n\r\n")
            filename = re.search(rb'name="file".*?filename="([^"]*)"', head)
            if filename is not None:
                return _object(self._file(self._keep(filename[1].decode(), content.removesuffix(b"\r\n"))))
        return failed(400, "no file in the form")

    def _keep(self, filename: str, content: bytes) -> str:
        name = f"file-{len(self.files) + 1}"
        self.files[name] = filename, content
        return name

    def _file(self, name: str) -> dict[str, Any]:
        filename, content = self.files[name]
        plain = {"object": "file", "purpose": "batch", "created_at": 0, "status": "processed"}
        return {"id": name, "bytes": len(content), "filename": filename, **plain}

    def _create(self, asked: dict[str, Any]) -> Answer:
        if asked["input_file_id"] not in self.files:
            return failed(400, f"no file {asked['input_file_id']}")
        name = f"batch_{len(self.batches) + 1}"
        lines = self.files[asked["input_file_id"]][1].splitlines()
        shown = {
            "id": name,
            "object": "batch",
            "endpoint": asked["endpoint"],
            "input_file_id": asked["input_file_id"],
            "completion_window": asked["completion_window"],
            "created_at": int(time.time()),
            "metadata": asked.get("metadata"),
            "errors": None,
            "output_file_id": None,
            "error_file_id": None,
            "request_counts": {"total": len(lines), "completed": 0, "failed": 0},
        }
        self.batches[name] = Batch(shown, time.monotonic())
        return _object(self._state(name))

    def _list(self, query: dict[str, list[str]]) -> Answer:
        names = list(reversed(self.batches))
        if "after" in query:
            names = names[names.index(query["after"][0]) + 1 :]
        limit = int(query.get("limit", ["20"])[0])
        data = [self._state(name) for name in names[:limit]]
        more = {"first_id": names[0] if names else None, "last_id": data[-1]["id"] if data else None}
        return _object({"object": "list", "data": data, "has_more": len(names) > limit, **more})

    def _state(self, name: str) -> dict[str, Any]:
        batch = self.batches[name]
        if batch.found is not None:
            return batch.found
        seconds = self.owner.settings.batch_seconds
        passed = time.monotonic() - batch.made
        if passed < seconds and not batch.cancelled:
            total = batch.shown["request_counts"]["total"]
            done = {"total": total, "completed": int(total * passed / seconds), "failed": 0}
            status = "validating" if passed < seconds / 4 else "in_progress"
            return {**batch.shown, "status": status, "request_counts": done}
        batch.found = self._finish(batch, "cancelled" if batch.cancelled else self.owner.settings.batch_end)
        return batch.found

    def _finish(self, batch: Batch, end: str) -> dict[str, Any]:
        lines = self.files[batch.shown["input_file_id"]][1].splitlines()
        problem = self._problem(lines)
        if end == "failed" or problem is not None:
            fault = {"code": "invalid", "message": problem or "The file is not valid", "line": 1, "param": None}
            return {**batch.shown, "status": "failed", "errors": {"object": "list", "data": [fault]}}
        asked = [json.loads(line) for line in lines]
        answered = asked if end == "completed" else asked[: len(asked) // 2]
        done = [self._line(item) for item in answered]
        left = [_expired(item, end) for item in asked[len(answered) :]]
        good = [line for line in done if line["response"]["status_code"] == 200]
        bad = [line for line in done if line["response"]["status_code"] != 200] + left
        counts = {"total": len(asked), "completed": len(good), "failed": len(bad)}
        files = {"output_file_id": self._output("output", good), "error_file_id": self._output("error", bad)}
        return {**batch.shown, "status": end, "request_counts": counts, **files}

    def _problem(self, lines: list[bytes]) -> str | None:
        names = [json.loads(line)["custom_id"] for line in lines]
        if len(set(names)) < len(names):
            return "a custom_id comes twice"
        return f"more than {_MOST_LINES} lines" if len(names) > _MOST_LINES else None

    def _line(self, item: dict[str, Any]) -> dict[str, Any]:
        answer = self.owner.complete(json.dumps(item["body"]).encode(), {}, _HALF)
        self.owner.counts.batched += 1
        try:
            body = json.loads(answer.body)
        except (ValueError, RecursionError):
            body = {"error": {"message": "no answer"}}
        response = {"status_code": answer.status, "request_id": "req", "body": body}
        return {
            "id": f"batch_req_{item['custom_id']}",
            "custom_id": item["custom_id"],
            "response": response,
            "error": None,
        }

    def _output(self, kind: str, lines: Iterable[dict[str, Any]]) -> str | None:
        content = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        # Half a surrogate pair has no UTF-8.
        return self._keep(f"{kind}.jsonl", content.encode(errors="backslashreplace")) if content else None


def _expired(item: dict[str, Any], end: str) -> dict[str, Any]:
    error = {"code": f"batch_{end}", "message": "This request could not be executed before the batch ended."}
    return {"id": f"batch_req_{item['custom_id']}", "custom_id": item["custom_id"], "response": None, "error": error}


def _object(value: Any) -> Answer:
    return Answer(200, json.dumps(value).encode(), paid=False)
