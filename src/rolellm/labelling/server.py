"""The page's server: on 127.0.0.1 only, and for nobody but the page that it serves.

Other programs of this machine and other pages in the same browser are kept out by four things: an address that nobody
can guess (a random token in its path), a ``Host`` that must be this server's own (so that no outside name can be
pointed here), labels taken as JSON from a page of this very origin only, and a policy that lets the page load nothing
else.
"""

from __future__ import annotations

import json
import secrets
import socketserver
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any, Final

from rolellm.core.errors import SettingsError
from rolellm.core.files import NO_ROOM
from rolellm.labelling.tasks import BadLabelError, Task

HOST: Final = "127.0.0.1"
#: Bytes of a label that are read; the longest ranking takes 300.
MAX_BODY: Final = 1 << 14
# A browser may open a connection and say nothing.
_PATIENCE = 30.0
_JSON = "application/json"
_ASSETS: Final = {
    "": ("page.html", "text/html; charset=utf-8"),
    "page.css": ("page.css", "text/css; charset=utf-8"),
    "page.js": ("page.js", "text/javascript; charset=utf-8"),
    "ranking.js": ("ranking.js", "text/javascript; charset=utf-8"),
    "audit.js": ("audit.js", "text/javascript; charset=utf-8"),
}
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


class _RefusedError(Exception):
    """A request that is not carried out."""

    def __init__(self, status: HTTPStatus, problem: str) -> None:
        super().__init__(problem)
        self.status = status
        self.problem = problem


class LabelServer(ThreadingHTTPServer):
    """Serves one task.

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

    def __init__(self, task: Task[Any], commands: Mapping[str, str], *, port: int = 0) -> None:
        self.task = task
        self.commands = commands
        self.token = secrets.token_urlsafe(16)
        folder = resources.files("rolellm.labelling")
        self.assets = {name: (folder.joinpath(file).read_bytes(), kind) for name, (file, kind) in _ASSETS.items()}
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            reason = error.strerror or error
            raise SettingsError(f"port {port} cannot be had ({reason}); leave --port out for any free one") from error
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
def serving(task: Task[Any], commands: Mapping[str, str], *, port: int = 0) -> Iterator[LabelServer]:
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
        """Say nothing: the terminal is for the address and the end."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse what is no request, or one of a method that is not served."""
        status = HTTPStatus(code)
        self._send(status, _encoded({"problem": message or explain or status.phrase}), _JSON)
        self.close_connection = True

    def _answer(self, work: Any) -> None:
        try:
            if self.headers.get("Host", "") not in self.server.hosts:
                raise _RefusedError(HTTPStatus.FORBIDDEN, "this address is not served here")
            content, kind = work()
        except _RefusedError as refused:
            self._send(refused.status, _encoded({"problem": refused.problem}), _JSON)
        else:
            self._send(HTTPStatus.OK, content, kind)

    def _name(self) -> str:
        """What is asked for, below the token."""
        _, token, name = (*self.path.split("/", 2), "", "")[:3]
        if not secrets.compare_digest(token.encode(), self.server.token.encode()):
            raise _RefusedError(HTTPStatus.NOT_FOUND, "nothing is here; open the address printed in the terminal")
        return name

    def _get(self) -> tuple[bytes, str]:
        name = self._name()
        if name in self.server.assets:
            return self.server.assets[name]
        if name == "state":
            return _encoded(self._state()), _JSON
        item, _, number = name.partition("/")
        if item != "item":
            raise _RefusedError(HTTPStatus.NOT_FOUND, "nothing is here")
        try:
            return _encoded(self.server.task.item(_number(number))), _JSON
        except IndexError as error:
            raise _RefusedError(HTTPStatus.NOT_FOUND, "no such item in this sample") from error

    def _post(self) -> tuple[bytes, str]:
        if self._name() != "label":
            raise _RefusedError(HTTPStatus.NOT_FOUND, "nothing is here")
        if self.headers.get("Origin", "") != f"http://{self.headers['Host']}":
            raise _RefusedError(HTTPStatus.FORBIDDEN, "labels are taken from this server's own page only")
        if self.headers.get_content_type() != _JSON:
            raise _RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"a label is sent as {_JSON}")
        value = self._body()
        number = value.get("item")
        try:
            if not isinstance(number, int) or isinstance(number, bool):
                raise BadLabelError("item is a number")
            self.server.task.save(number, value)
        except IndexError as error:
            raise _RefusedError(HTTPStatus.NOT_FOUND, "no such item in this sample") from error
        except BadLabelError as error:
            raise _RefusedError(HTTPStatus.BAD_REQUEST, str(error)) from error
        except OSError as error:
            raise _not_kept(error) from error
        return _encoded(self._state()), _JSON

    def _body(self) -> dict[str, Any]:
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit():
            raise _RefusedError(HTTPStatus.LENGTH_REQUIRED, "how long is the label?")
        if len(length) > 9 or int(length) > MAX_BODY:
            raise _RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "no label is that long")
        try:
            value = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError) as error:
            raise _RefusedError(HTTPStatus.BAD_REQUEST, "not JSON") from error
        if not isinstance(value, dict):
            raise _RefusedError(HTTPStatus.BAD_REQUEST, "a label is a JSON object")
        return value

    def _state(self) -> dict[str, Any]:
        task = self.server.task
        statuses = task.statuses()
        finished = "open" not in statuses
        return {
            "kind": task.kind,
            "annotator": task.annotator,
            "statuses": statuses,
            # A folder's name may say who takes part.
            "commands": dict(self.server.commands) if finished else None,
        }

    def _send(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, "Content-Type": kind, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _encoded(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode("ascii")


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else -1


def _not_kept(error: OSError) -> _RefusedError:
    if error.errno in NO_ROOM:
        return _RefusedError(HTTPStatus.INSUFFICIENT_STORAGE, "no room left on the disk; make some and save again")
    reason = error.strerror or type(error).__name__
    return _RefusedError(HTTPStatus.INTERNAL_SERVER_ERROR, f"the label could not be written ({reason}); save again")
