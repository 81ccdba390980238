"""A local server that speaks the part of the Hub's HTTP API that fetching a data set needs."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

COMMIT = "a57ed54f" + "0" * 32


class FakeHub:
    """Serves one data set repository from a folder; `requested` lists what was fetched, in order."""

    def __init__(self, folder: Path, repo_id: str) -> None:
        self.folder = folder
        self.repo_id = repo_id
        self.requested: list[str] = []
        self.failing = False
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def files(self) -> list[str]:
        return sorted(p.relative_to(self.folder).as_posix() for p in self.folder.rglob("*") if p.is_file())

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body for a path."""
        if self.failing:
            return 503, {}, b"down for tests"
        info = f"/api/datasets/{self.repo_id}"
        if path.startswith(f"{info}/tree/"):
            entries = [self._entry(name) for name in self.files()]
            return 200, {"Content-Type": "application/json"}, json.dumps(entries).encode()
        if path.startswith(info):
            body = {
                "id": self.repo_id,
                "sha": COMMIT,
                "private": False,
                "tags": [],
                "downloads": 0,
                "likes": 0,
                "siblings": [{"rfilename": name} for name in self.files()],
            }
            return 200, {"Content-Type": "application/json"}, json.dumps(body).encode()
        name = path.removeprefix(f"/datasets/{self.repo_id}/resolve/").partition("/")[2]
        file = self.folder / name
        if not name or not file.is_file():
            return 404, {"X-Error-Code": "EntryNotFound"}, b""
        content = file.read_bytes()
        etag = hashlib.sha1(content, usedforsecurity=False).hexdigest()
        return 200, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}, content

    def _entry(self, name: str) -> dict[str, object]:
        content = (self.folder / name).read_bytes()
        oid = hashlib.sha1(content, usedforsecurity=False).hexdigest()
        return {"type": "file", "path": name, "size": len(content), "oid": oid}


def _handler(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _reply(self, with_body: bool) -> None:
            path = unquote(urlsplit(self.path).path)
            status, headers, body = hub.answer(path)
            if with_body and "/resolve/" in path:
                hub.requested.append(path.partition("/resolve/")[2].partition("/")[2])
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def do_GET(self) -> None:
            self._reply(with_body=True)

        def do_HEAD(self) -> None:
            self._reply(with_body=False)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@pytest.fixture
def fake_hub() -> Iterator[Callable[[Path], FakeHub]]:
    """Starts a local Hub that serves a release folder as `ZenMoore/RoleBench`."""
    hubs: list[FakeHub] = []

    def start(folder: Path) -> FakeHub:
        hubs.append(FakeHub(folder, "ZenMoore/RoleBench"))
        return hubs[-1]

    yield start
    for hub in hubs:
        hub.server.shutdown()
        hub.server.server_close()
