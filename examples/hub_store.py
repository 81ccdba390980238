"""What `local_hub` keeps on disk: repositories with their whole history, and file contents by their SHA-256.

``objects/`` holds the contents, ``repos/`` one JSON file a repository: whether it is private, its branches (name to
commit), and its commits by id, each with parent, title, date and files (path to `Item`). So every revision stays there
to be loaded.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict


class Item(TypedDict):
    """A file in a commit: bytes, its content's name, git's id, and whether git has a pointer in its place (LFS)."""

    size: int
    sha256: str
    oid: str
    lfs: bool


class RefusedError(Exception):
    """A request that is answered with an error status; ``code`` is what the Hub's client tells errors apart by."""

    def __init__(self, status: int, message: str, code: str | None = None, **more: Any) -> None:
        super().__init__(message)
        self.status = status
        self.headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
        self.body = {"error": message, **more}


class Store:
    """Repositories in a folder.

    Args:
        folder: Where they are kept; made when it is not there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.RLock()

    def content(self, sha256: str) -> Path:
        """Where a content lies, whether it is there or not."""
        return self._folder / "objects" / sha256

    def keep(self, content: bytes) -> str:
        """Keep a content; return its SHA-256 in hex."""
        sha256 = hashlib.sha256(content).hexdigest()
        _replace(self.content(sha256), content)
        return sha256

    def _file(self, kind: str, repo: str) -> Path:
        return self._folder / "repos" / kind / f"{repo}.json"

    def read(self, kind: str, repo: str) -> dict[str, Any]:
        """The state of a repository; ``kind`` is ``model`` or ``dataset``, ``repo`` is ``owner/name``."""
        try:
            state: dict[str, Any] = json.loads(self._file(kind, repo).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RefusedError(404, "Repository not found", "RepoNotFound") from None
        return state

    def _write(self, kind: str, repo: str, state: dict[str, Any]) -> None:
        _replace(self._file(kind, repo), json.dumps(state).encode())

    def files(self, kind: str, repo: str, revision: str) -> dict[str, Item]:
        """The files of a revision, by path."""
        state = self.read(kind, repo)
        files: dict[str, Item] = state["commits"][resolved(state, revision)]["files"]
        return files

    def create(self, kind: str, repo: str, *, private: bool, files: dict[str, bytes]) -> None:
        """Make a repository with a first commit."""
        with self._lock:
            if self._file(kind, repo).exists():
                raise RefusedError(409, f"You already created this {kind} repo")
            state = {"private": private, "branches": {}, "commits": {}}
            _add_commit(state, "main", "initial commit", {path: self._regular(data) for path, data in files.items()})
            self._write(kind, repo, state)

    def delete(self, kind: str, repo: str) -> None:
        """Take a repository away; contents stay, since others may share them."""
        self._file(kind, repo).unlink(missing_ok=True)

    def branch(self, kind: str, repo: str, name: str, start: str) -> None:
        """Make a branch that begins at a revision."""
        with self._lock:
            state = self.read(kind, repo)
            if name in state["branches"]:
                raise RefusedError(409, f"Reference already exists: {name}")
            state["branches"][name] = resolved(state, start)
            self._write(kind, repo, state)

    def commit(self, kind: str, repo: str, branch: str, lines: Iterable[dict[str, Any]]) -> str:
        """Carry out a commit, all of it or nothing; return its id.

        Args:
            kind: ``model`` or ``dataset``.
            repo: ``owner/name``.
            branch: What it goes on.
            lines: As the client sends them: a header, then a change each.
        """
        header, *changes = lines
        with self._lock:
            state = self.read(kind, repo)
            head = state["branches"].get(branch)
            if head is None:
                raise RefusedError(404, f"Invalid rev id: {branch}", "RevisionNotFound")
            if header["value"].get("parentCommit", head) != head:
                raise RefusedError(412, "A commit has happened since. Please refresh and try again.")
            files = dict(state["commits"][head]["files"])
            for change in changes:
                self._change(files, change["key"], change["value"])
            oid = _add_commit(state, branch, header["value"]["summary"], files)
            self._write(kind, repo, state)
        return oid

    def _change(self, files: dict[str, Item], key: str, value: dict[str, Any]) -> None:
        path = value["path"].rstrip("/")
        if key == "file":
            files[path] = self._regular(value["content"])
        elif key == "lfsFile":
            content = self.content(value["oid"])
            if not content.is_file():
                raise RefusedError(400, f"{path}: its content was not uploaded")
            pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{value['oid']}\n".encode()
            files[path] = Item(size=content.stat().st_size, sha256=value["oid"], oid=blob_id(pointer), lfs=True)
        else:
            gone = [name for name in files if name == path or (key == "deletedFolder" and name.startswith(f"{path}/"))]
            if not gone:
                raise RefusedError(404, f"A file with this name doesn't exist: {path}", "EntryNotFound")
            for name in gone:
                del files[name]

    def _regular(self, content: bytes) -> Item:
        return Item(size=len(content), sha256=self.keep(content), oid=blob_id(content), lfs=False)


def resolved(state: dict[str, Any], revision: str) -> str:
    """The commit that a branch, a commit's id or the start of one stands for."""
    matches = [oid for oid in state["commits"] if len(revision) >= 7 and oid.startswith(revision)]
    found: str | None = state["branches"].get(revision) or next(iter(matches), None)
    if found is None:
        raise RefusedError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
    return found


def blob_id(content: bytes) -> str:
    """Git's id of a content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def listing(files: dict[str, Item], path: str | None, *, deep: bool) -> list[dict[str, Any]]:
    """What is in a folder, folders first, as the Hub's API describes it."""
    top = f"{path}/" if path else ""
    inside = {name.removeprefix(top): item for name, item in files.items() if name.startswith(top)}
    folders = {str(parent) for name in inside for parent in Path(name).parents if deep or len(parent.parts) == 1}
    listed = [folder(top + name) for name in sorted(folders - {"."})]
    return listed + [described(top + name, item) for name, item in inside.items() if deep or "/" not in name]


def described(path: str, item: Item) -> dict[str, Any]:
    """A file as the Hub's API describes it."""
    lfs = {"oid": item["sha256"], "sha256": item["sha256"], "size": item["size"], "pointerSize": 134}
    found = {"type": "file", "path": path, "size": item["size"], "oid": item["oid"]}
    return {**found, "lfs": lfs} if item["lfs"] else found


def folder(path: str) -> dict[str, Any]:
    """A folder as the Hub's API describes it."""
    return {"type": "directory", "path": path, "oid": blob_id(path.encode())}


def _add_commit(state: dict[str, Any], branch: str, title: str, files: dict[str, Item]) -> str:
    date = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    record = {"parent": state["branches"].get(branch), "title": title, "date": date, "files": files}
    oid = hashlib.sha1(json.dumps(record).encode(), usedforsecurity=False).hexdigest()
    state["commits"][oid] = record
    state["branches"][branch] = oid
    return oid


def _replace(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.{threading.get_ident()}.part")
    partial.write_bytes(content)
    partial.replace(file)
