"""The page's server: on 127.0.0.1 only, and only for the page that it serves.

Other programs of this machine and other pages in the same browser are kept out by four things: an address that nobody
can guess (a random token in its path), a ``Host`` that must be this server's own (so that no outside name can be
pointed here), labels taken as JSON from a page of this very origin only, and a policy that lets the page load nothing
else.
"""

from __future__ import annotations

import json
import os
import secrets
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any, Final

from rolellm.core.errors import DataError, SettingsError
from rolellm.core.files import NO_ROOM
from rolellm.core.interrupts import handle_signals
from rolellm.reporting.labelling.tasks import LabelTask

HOST: Final = "127.0.0.1"
#: Bytes of a label that are read; the longest ranking takes 300.
MAX_BODY: Final = 1 << 14
# A browser may open a connection and say nothing.
_PATIENCE = 30.0
_JSON = "application/json"
_SCRIPTS: Final = ("page.js", "ranking.js", "audit.js")
_ASSETS: Final = {"page.html": "html", "page.css": "css", **dict.fromkeys(_SCRIPTS, "javascript")}
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}


def explain_port(port: int, error: OSError) -> SettingsError:
    """Make the error for a port that cannot be had."""
    reason = os.strerror(error.errno) if error.errno else error
    return SettingsError(f"port {port} is not available ({reason}); omit --port to use any free port")


class _RefusedError(Exception):
    """A request that is not carried out: the status of the answer, and the problem in words."""


class LabelServer(ThreadingHTTPServer):
    """A server of one task.

    Args:
        task: What is labelled.
        commands: What to run once all is labelled, as the page shows it then.
        port: 0 for any that is free.

    Attributes:
        url: Where the page is.

    Raises:
        SettingsError: When the port cannot be had.
    """

    daemon_threads = True

    def __init__(self, task: LabelTask, commands: Mapping[str, str], *, port: int = 0) -> None:
        self.task = task
        self.commands = commands
        self.token = secrets.token_urlsafe(16)
        folder = resources.files("rolellm.reporting.labelling")
        self.assets = {
            file.removeprefix("page.html"): (folder.joinpath(file).read_bytes(), f"text/{kind}; charset=utf-8")
            for file, kind in _ASSETS.items()
        }
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise explain_port(port, error) from error
        self.hosts = frozenset({f"{HOST}:{self.server_port}", f"localhost:{self.server_port}"})
        self.url = f"http://{HOST}:{self.server_port}/{self.token}/"

    def server_bind(self) -> None:
        """Bind without looking this machine's name up, which can take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a browser that hung up."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


@contextmanager
def serving(task: LabelTask, commands: Mapping[str, str], *, port: int = 0) -> Iterator[LabelServer]:
    """Serve a task from a thread of its own while the block runs; a label being written then is waited for.

    Raises:
        SettingsError: When the port cannot be had.
    """
    server = LabelServer(task, commands, port=port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        task.close()


@contextmanager
def stop_request() -> Iterator[Callable[[], None]]:
    """Let a request to stop interrupt nothing within the block.

    To be called in the main thread, which alone hears signals.

    Yields:
        Waits for a request; returns at once where there was one already.
    """
    requests: list[int] = []

    def wait() -> None:
        # A lock or an event would miss a signal that comes as one begins to wait, or block.
        while not requests:
            time.sleep(0.1)

    with handle_signals(lambda number, _: requests.append(number)):
        yield wait


class _Handler(BaseHTTPRequestHandler):
    server: LabelServer
    timeout = _PATIENCE

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def version_string(self) -> str:
        return "rolellm"

    def log_message(self, *_: Any) -> None:
        """Log nothing: the terminal is for the address and the end."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse a malformed request, or one with a method that is not served."""
        status = HTTPStatus(code)
        self._refuse(status, message or explain or status.phrase)
        self.close_connection = True

    def _answer(self, work: Any) -> None:
        try:
            if self.headers.get("Host", "") not in self.server.hosts:
                raise _RefusedError(HTTPStatus.FORBIDDEN, "unknown host; open the address printed in the terminal")
            self._send(HTTPStatus.OK, *work())
        except _RefusedError as refused:
            self._refuse(*refused.args)
        except IndexError:
            self._refuse(HTTPStatus.NOT_FOUND, "no such item in this sample")
        except DataError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))

    def _name(self) -> str:
        """Return what is asked for, below the token."""
        _, token, name = (*self.path.split("/", 2), "", "")[:3]
        if not secrets.compare_digest(token.encode(), self.server.token.encode()):
            raise _RefusedError(HTTPStatus.NOT_FOUND, "not found; open the address printed in the terminal")
        return name

    def _get(self) -> tuple[bytes, str]:
        name = self._name()
        if name in self.server.assets:
            return self.server.assets[name]
        if name == "state":
            return _encode_json(self._state()), _JSON
        item, _, number = name.partition("/")
        if item != "item":
            raise _RefusedError(HTTPStatus.NOT_FOUND, "not found")
        return _encode_json(self.server.task.item(_parse_number(number))), _JSON

    def _post(self) -> tuple[bytes, str]:
        if self._name() != "label":
            raise _RefusedError(HTTPStatus.NOT_FOUND, "not found")
        if self.headers.get("Origin", "") != f"http://{self.headers['Host']}":
            raise _RefusedError(HTTPStatus.FORBIDDEN, "labels are accepted only from this server's own page")
        if self.headers.get_content_type() != _JSON:
            raise _RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"send the label as {_JSON}")
        try:
            self.server.task.save(self._body())
        except OSError as error:
            if error.errno in NO_ROOM:
                problem = "the disk is full; free some space and save again"
                raise _RefusedError(HTTPStatus.INSUFFICIENT_STORAGE, problem) from error
            problem = f"the label could not be written ({error.strerror or type(error).__name__}); save again"
            raise _RefusedError(HTTPStatus.INTERNAL_SERVER_ERROR, problem) from error
        return _encode_json(self._state()), _JSON

    def _body(self) -> dict[str, Any]:
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit():
            raise _RefusedError(HTTPStatus.LENGTH_REQUIRED, "the label has no length (Content-Length missing)")
        if len(length) > 9 or int(length) > MAX_BODY:
            raise _RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the label is too long")
        try:
            value = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError) as error:
            raise DataError("not JSON") from error
        if not isinstance(value, dict):
            raise DataError("a label is a JSON object")
        return value

    def _state(self) -> dict[str, Any]:
        task = self.server.task
        statuses = task.statuses()
        return {
            "kind": task.kind,
            "annotator": task.annotator,
            "statuses": statuses,
            # A folder's name may say who takes part.
            "commands": None if "open" in statuses else dict(self.server.commands),
        }

    def _refuse(self, status: HTTPStatus, problem: str) -> None:
        self._send(status, _encode_json({"problem": problem}), _JSON)

    def _send(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, "Content-Type": kind, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _encode_json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode("ascii")


def _parse_number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else -1
