"""A Hub on this machine: enough of the Hugging Face Hub's HTTP API for its real client to publish and to load.

    python examples/local_hub.py --dir hub --port 8400

prints the line that points a shell at it; in that shell, `rolellm push`, `load_dataset` and `from_pretrained` work as
they do with the Hub. Any token is accepted, and its bearer may write anywhere: this is a place to try things. Models
and data sets are in the folder, see `hub_store`. Spaces, tags, pull requests and Xet are left out.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import re
import socket
import sys
import threading
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from hub_store import Item, RefusedError, Store, described, folder, listing, resolved

USER = "local"
# What the Hub keeps outside git: these, what is binary, and what is large.
LFS_SUFFIXES = (".arrow", ".bin", ".gz", ".model", ".npy", ".parquet", ".pt", ".safetensors", ".tar", ".zip")
LFS_SIZE = 10 * 1024 * 1024

Query = dict[str, list[str]]

_REPO = r"/api/(?P<kind>model|dataset)s/(?P<repo>[^/]+/[^/]+)"
_GIT = r"/(?:(?P<kind>dataset)s/)?(?P<repo>[^/]+/[^/]+?)"
# Method, path, and the method of `LocalHub` that answers; its name is also the point that `before` is told.
_ROUTES = (
    ("GET", r"/api/whoami-v2", "whoami"),
    ("POST", r"/api/repos/create", "create"),
    ("DELETE", r"/api/repos/delete", "delete"),
    ("POST", r"/api/validate-yaml", "validate"),
    ("GET", _REPO + r"(?:/revision/(?P<revision>[^/]+))?", "info"),
    ("GET", _REPO + r"/tree/(?P<revision>[^/]+)(?:/(?P<path>.*))?", "tree"),
    ("POST", _REPO + r"/paths-info/(?P<revision>[^/]+)", "paths"),
    ("GET", _REPO + r"/refs", "refs"),
    ("GET", _REPO + r"/commits/(?P<revision>[^/]+)", "commits"),
    ("POST", _REPO + r"/branch/(?P<branch>[^/]+)", "branch"),
    ("POST", _REPO + r"/preupload/(?P<revision>[^/]+)", "preupload"),
    ("POST", _REPO + r"/commit/(?P<revision>[^/]+)", "commit"),
    ("POST", _GIT + r"\.git/info/lfs/objects/batch", "lfs_batch"),
    ("PUT", r"/lfs/(?P<sha256>[0-9a-f]{64})", "lfs_upload"),
    ("GET", _GIT + r"/resolve/(?P<revision>[^/]+)/(?P<path>.+)", "resolve"),
)
_OPEN = ("validate", "lfs_batch", "lfs_upload")  # answered without a token
_READING = ("info", "tree", "paths", "refs", "commits", "resolve")  # without one where the repository is public


class DropError(Exception):
    """A request whose connection is cut without an answer; only tests raise it."""


class LocalHub:
    """The server, as a context manager: it answers while the block runs.

    Args:
        folder: Where repositories are kept; made when it is not there.
        port: To listen on; 0 takes one that is free.

    Attributes:
        endpoint: What ``HF_ENDPOINT`` has to be.
        store: The repositories.
    """

    def __init__(self, folder: str | Path, port: int = 0) -> None:
        self.store = Store(Path(folder))
        self.server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> LocalHub:
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def before(self, point: str) -> None:
        """Called before a request is carried out; tests override it to raise `RefusedError` or `DropError`."""

    def after(self, point: str) -> None:
        """Called after a request was carried out and before it is answered; for tests, as `before`."""

    def _url(self, kind: str, repo: str) -> str:
        return f"{self.endpoint}/{'datasets/' if kind == 'dataset' else ''}{repo}"

    # The answers: each takes the parts of the path, the query and the body, and returns JSON, or bytes with headers.

    def whoami(self, **_: Any) -> Any:
        """Who holds the token."""
        return {"type": "user", "name": USER, "fullname": USER, "orgs": [], "auth": {"type": "access_token"}}

    def create(self, body: bytes, **_: Any) -> Any:
        """Make a repository, with the first commit that the Hub gives each."""
        asked = json.loads(body)
        kind, repo = asked.get("type") or "model", f"{asked.get('organization') or USER}/{asked['name']}"
        lines = "".join(f"*{suffix} filter=lfs diff=lfs merge=lfs -text\n" for suffix in LFS_SUFFIXES)
        answer = {"url": self._url(kind, repo), "name": repo}
        try:
            private = asked.get("visibility") == "private"
            self.store.create(kind, repo, private=private, files={".gitattributes": lines.encode()})
        except RefusedError as error:
            error.body |= answer
            raise
        return answer

    def delete(self, body: bytes, **_: Any) -> Any:
        """Take a repository away."""
        asked = json.loads(body)
        self.store.delete(asked.get("type") or "model", f"{asked.get('organization') or USER}/{asked['name']}")
        return {}

    def validate(self, body: bytes, **_: Any) -> Any:
        """Check a card's front matter, only that its license is not empty."""
        if re.search(r"(?m)\A---\n(?:.+\n)*?license: *(''|\"\")? *$", json.loads(body)["content"]):
            problem = '"license" is not allowed to be empty'
            raise RefusedError(400, problem, errors=[{"message": problem}])
        return {"errors": [], "warnings": []}

    def info(self, kind: str, repo: str, revision: str | None, query: Query, **_: Any) -> Any:
        """Describe a revision."""
        state = self.store.read(kind, repo)
        oid = resolved(state, revision or "main")
        siblings: list[dict[str, Any]] = []
        for path, item in sorted(state["commits"][oid]["files"].items()):
            more = {"size": item["size"], "blobId": item["oid"], "lfs": described(path, item).get("lfs")}
            siblings.append({"rfilename": path, **(more if "blobs" in query else {})})
        found = {"id": repo, "sha": oid, "private": state["private"], "gated": False, "disabled": False, "tags": []}
        modified = state["commits"][oid]["date"]
        return {**found, "lastModified": modified, "downloads": 0, "likes": 0, "siblings": siblings}

    def tree(self, kind: str, repo: str, revision: str, path: str | None, query: Query, **_: Any) -> Any:
        """List a folder, in one page."""
        deep = query.get("recursive", [""])[0].lower() == "true"
        found = listing(self.store.files(kind, repo, revision), path, deep=deep)
        if path and not found:
            raise RefusedError(404, f"{path} does not exist on {revision}", "EntryNotFound")
        return found

    def paths(self, kind: str, repo: str, revision: str, body: bytes, **_: Any) -> Any:
        """Describe those of some paths that are there."""
        text = body.decode()
        asked = json.loads(text)["paths"] if text.startswith("{") else parse_qs(text).get("paths", [])
        files = self.store.files(kind, repo, revision)
        folders = [path for path in asked if any(name.startswith(f"{path}/") for name in files)]
        return [described(path, files[path]) for path in asked if path in files] + [folder(path) for path in folders]

    def refs(self, kind: str, repo: str, **_: Any) -> Any:
        """List the branches."""
        heads = self.store.read(kind, repo)["branches"].items()
        branches = [{"name": name, "ref": f"refs/heads/{name}", "targetCommit": oid} for name, oid in heads]
        return {"branches": branches, "converts": [], "tags": []}

    def commits(self, kind: str, repo: str, revision: str, **_: Any) -> Any:
        """List the commits that lead to a revision, the newest first."""
        state = self.store.read(kind, repo)
        oid: str | None = resolved(state, revision)
        found = []
        while oid is not None:
            record = state["commits"][oid]
            said = {"title": record["title"], "message": "", "date": record["date"], "authors": [{"user": USER}]}
            found.append({"id": oid, **said})
            oid = record["parent"]
        return found

    def branch(self, kind: str, repo: str, branch: str, body: bytes, **_: Any) -> Any:
        """Make a branch."""
        self.store.branch(kind, repo, branch, json.loads(body or b"{}").get("startingPoint") or "main")
        return {}

    def preupload(self, kind: str, repo: str, revision: str, body: bytes, **_: Any) -> Any:
        """Say how each file is to be sent, and what lies under its path already."""
        files = self.store.files(kind, repo, revision)
        listed = files.get(".gitignore")
        ignored = self.store.content(listed["sha256"]).read_text().split() if listed else []
        answers = []
        for asked in json.loads(body)["files"]:
            path, binary = asked["path"], b"\0" in base64.b64decode(asked["sample"])
            mode = "lfs" if binary or path.endswith(LFS_SUFFIXES) or asked["size"] > LFS_SIZE else "regular"
            there = files.get(path)
            oid = None if there is None else there["sha256"] if there["lfs"] else there["oid"]
            ignore = any(fnmatch(path, pattern) for pattern in ignored)
            answers.append({"path": path, "uploadMode": mode, "shouldIgnore": ignore, "oid": oid})
        return {"files": answers}

    def commit(self, kind: str, repo: str, revision: str, body: bytes, **_: Any) -> Any:
        """Carry out a commit."""
        lines = [json.loads(line) for line in body.splitlines()]
        for line in lines:
            if line["key"] == "file":
                line["value"]["content"] = base64.b64decode(line["value"]["content"])
        oid = self.store.commit(kind, repo, revision, lines)
        return {"success": True, "commitOid": oid, "commitUrl": f"{self._url(kind, repo)}/commit/{oid}"}

    def lfs_batch(self, body: bytes, **_: Any) -> Any:
        """Say where each content is to be sent, if it is not here."""
        objects = [{"oid": asked["oid"], "size": asked["size"]} for asked in json.loads(body)["objects"]]
        for item in objects:
            if not self.store.content(item["oid"]).is_file():
                item["actions"] = {"upload": {"href": f"{self.endpoint}/lfs/{item['oid']}"}}
        return {"transfer": "basic", "objects": objects}

    def lfs_upload(self, sha256: str, body: bytes, **_: Any) -> Any:
        """Take a content."""
        if hashlib.sha256(body).hexdigest() != sha256:
            raise RefusedError(400, "The content is not what its name says")
        self.store.keep(body)
        return {}

    def resolve(self, kind: str, repo: str, revision: str, path: str, **_: Any) -> Any:
        """Give a file's content."""
        state = self.store.read(kind, repo)
        oid = resolved(state, revision)
        item: Item | None = state["commits"][oid]["files"].get(path)
        if item is None:
            raise RefusedError(404, f"{path} is not in {repo}", "EntryNotFound")
        etag = item["sha256"] if item["lfs"] else item["oid"]
        return self.store.content(item["sha256"]).read_bytes(), {"ETag": f'"{etag}"', "X-Repo-Commit": oid}


def _handler(hub: LocalHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            try:
                found = self._carry_out(body)
                content, headers = found if isinstance(found, tuple) else (json.dumps(found).encode(), {})
                self._send(200, content, headers)
            except RefusedError as error:
                self._send(error.status, json.dumps(error.body).encode(), error.headers)
            except DropError:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)

        def _carry_out(self, body: bytes) -> Any:
            url = urlsplit(self.path)
            method = "GET" if self.command == "HEAD" else self.command
            for verb, pattern, point in _ROUTES:
                match = re.fullmatch(pattern, url.path) if verb == method else None
                if match is not None:
                    hub.before(point)
                    parts = {key: part and unquote(part) for key, part in match.groupdict().items()}
                    if "kind" in parts:
                        parts["kind"] = parts["kind"] or "model"
                    self._check_token(point, parts)
                    found = getattr(hub, point)(**parts, query=parse_qs(url.query), body=body)
                    hub.after(point)
                    return found
            raise RefusedError(404, f"no {method} {url.path} here", "EntryNotFound")

        def _check_token(self, point: str, parts: dict[str, Any]) -> None:
            if self.headers.get("Authorization") or point in _OPEN:
                return
            if point not in _READING or hub.store.read(parts["kind"], parts["repo"])["private"]:
                raise RefusedError(401, "Log in first", "RepoNotFound" if point in _READING else None)

        def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
            asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
            if status == 200 and asked:
                first, last = int(asked[1]), min(int(asked[2] or len(content)), len(content) - 1)
                headers = {**headers, "Content-Range": f"bytes {first}-{last}/{len(content)}"}
                status, content = 206, content[first : last + 1]
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", "Accept-Ranges": "bytes", **headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Keep quiet: what went wrong is in the answer."""

    return Handler


def main() -> None:
    """Serve a folder until interrupted."""
    parser = argparse.ArgumentParser(description="A Hub on this machine.")
    parser.add_argument("--dir", type=Path, default=Path("hub"), help="where repositories are kept")
    parser.add_argument("--port", type=int, default=8400, help="to listen on; 0 takes one that is free")
    options = parser.parse_args()
    hub = LocalHub(options.dir, options.port)
    sys.stdout.write(f"export HF_ENDPOINT={hub.endpoint} HF_TOKEN={USER} HF_HUB_DISABLE_XET=1\n")
    sys.stdout.flush()
    try:
        hub.server.serve_forever()
    except KeyboardInterrupt:
        hub.server.server_close()


if __name__ == "__main__":
    main()
