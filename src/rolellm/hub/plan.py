"""What a push has to change: the files of a folder against those of a revision on the Hub."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolellm.errors import HubError
from rolellm.fingerprint import hash_bytes, hash_file
from rolellm.hub.readme import merge_card, read_card

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoFile

README = "README.md"
RECORD = ".rolellm.json"
"""Kept in each repository: which of its files are ours, and the front matter that we wrote."""


class Content:
    """A file to publish: one on disk, or bytes made here.

    Args:
        source: The file or the bytes.
    """

    def __init__(self, source: Path | bytes) -> None:
        self.source = source
        self.size = len(source) if isinstance(source, bytes) else source.stat().st_size

    @cached_property
    def sha256(self) -> str:
        """What the Hub calls a large file by, in hex; computed once, however often a push is tried."""
        return hash_bytes(self.source) if isinstance(self.source, bytes) else hash_file(self.source)

    @cached_property
    def blob_id(self) -> str:
        """What git calls a small file by, in hex."""
        content = self.source if isinstance(self.source, bytes) else self.source.read_bytes()
        return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()

    def equals(self, there: RepoFile) -> bool:
        """Whether the file on the Hub is the same, without fetching it."""
        if there.size != self.size:
            return False
        return there.lfs.sha256 == self.sha256 if there.lfs else there.blob_id == self.blob_id


@dataclass(frozen=True, slots=True)
class Record:
    """What we wrote into a repository the last time.

    Attributes:
        files: The paths, without the README.
        card: The README's front matter, as far as it was ours.
    """

    files: frozenset[str] = frozenset()
    card: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, content: str) -> Record:
        """Read what `to_bytes` wrote.

        Raises:
            HubError: When it is something else.
        """
        try:
            values = json.loads(content)
            return cls(frozenset(values["files"]), dict(values["card"]))
        except (ValueError, KeyError, TypeError) as error:
            raise HubError(f"{RECORD} in the repository is not what rolellm wrote; delete it there first") from error

    def to_bytes(self) -> bytes:
        """The record as it is kept."""
        value = {"format": 1, "files": sorted(self.files), "card": self.card}
        return (json.dumps(value, ensure_ascii=False, indent=2) + "\n").encode("utf-8")


@dataclass(frozen=True, slots=True)
class There:
    """A revision on the Hub.

    Attributes:
        head: Its commit.
        files: Its files, by path.
        readme: Its README, to the letter.
        record: What we wrote there before; ``None`` where we never did.
    """

    head: str
    files: Mapping[str, RepoFile]
    readme: str | None
    record: Record | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What has to change.

    Attributes:
        send: Contents that are new or differ, by path.
        remove: Files that we wrote before and that are not among these any more.
    """

    send: Mapping[str, Content]
    remove: tuple[str, ...]

    @property
    def empty(self) -> bool:
        """Whether everything is there already."""
        return not self.send and not self.remove


class Folder:
    """The folder to publish.

    Args:
        path: The folder; ``README.md`` in it is our card.

    Raises:
        HubError: When there is nothing in it, or its card has bad front matter.
    """

    def __init__(self, path: Path) -> None:
        files = {file.relative_to(path).as_posix(): file for file in sorted(path.rglob("*")) if file.is_file()}
        if not files:
            raise HubError(f"{path} holds nothing to publish")
        self.contents = {name: Content(file) for name, file in files.items() if name not in (README, RECORD)}
        self.card = read_card(files[README].read_text(encoding="utf-8")) if README in files else None

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes by path of all there is, our card as it would go to an empty repository."""
        sizes = {name: content.size for name, content in self.contents.items()}
        if self.card is not None:
            sizes[README] = len(merge_card(self.card, None, {}).encode("utf-8"))
        return dict(sorted(sizes.items()))

    def plan(self, there: There, *, overwrite: bool) -> Plan:
        """What makes a revision hold this folder.

        Args:
            there: The revision.
            overwrite: Replace files of the same name that we did not write.

        Raises:
            HubError: When there are such files, and they may not be replaced.
        """
        before = there.record or Record()
        wanted = dict(self.contents)
        changed = {name for name in wanted if name not in there.files or not wanted[name].equals(there.files[name])}
        foreign = sorted(name for name in changed if name in there.files and name not in before.files)
        if foreign and not overwrite:
            raise HubError(
                f"the repository holds {_named(foreign)} that rolellm did not write; name another repository, or "
                "replace them with --overwrite (they stay in its history)"
            )
        wanted[RECORD] = Content(Record(frozenset(self.contents), self.card.data if self.card else {}).to_bytes())
        if self.card is not None:
            wanted[README] = Content(merge_card(self.card, there.readme, before.card).encode("utf-8"))
        own = {README, RECORD} & wanted.keys()
        changed |= {name for name in own if name not in there.files or not wanted[name].equals(there.files[name])}
        gone = sorted(name for name in before.files if name not in wanted and name in there.files)
        return Plan({name: wanted[name] for name in sorted(changed)}, tuple(gone))


def _named(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more files" if len(names) > 3 else "")
