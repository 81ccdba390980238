"""The journal of a run: every raw reply, on disk before anything reads it, and every call before it goes out.

A line is a JSON object that ends in a checksum of itself. Three kinds: ``sent`` goes before a call, with the most that
it can cost; ``reply`` is what came back, as it came; ``lost`` says that a call brought no reply. A call that is
``sent`` and nothing else was in flight when a run was killed; what it may have cost counts as spent.

What a kill, a full disk or a flipped bit leaves of a line is set aside in ``journal.damaged`` on opening, and asked
again; every whole line is kept. ``journal.spent`` holds the journal's size and what was spent by then, so that a
journal that was cut or removed gives no money back.

Workers of a run journal in ``shards/NNNN``, and their journals are merged into the run's, once: ``shards/merging``
holds the size of the run's journal before that, to which a killed merge is cut back.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from rolellm.core.files import NO_ROOM, open_atomic
from rolellm.core.locks import lock_folder
from rolellm.core.text import format_count
from rolellm.llm.model import Json
from rolellm.llm.openai_format import encode_body

_SUM = re.compile(rb',"sum":"([0-9a-f]{16})"\}\n')
# Bytes of a line's end, from the comma before the checksum on.
_END = 27


def encode_record(value: Json) -> bytes:
    """A record as its line: JSON that ends in the checksum of what is before it."""
    body = encode_body(value)[:-1]
    return body + b',"sum":"' + _compute_checksum(body) + b'"}\n'


def _compute_checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=8).hexdigest().encode("ascii")


def parse_record(line: bytes) -> Json | None:
    """Parse a line, with its newline; ``None`` if it is damaged."""
    match = _SUM.fullmatch(line[-_END:])
    if match is None or match.group(1) != _compute_checksum(line[:-_END]):
        return None
    value: Json = json.loads(line)
    return value


JOURNAL = "journal.jsonl"
DAMAGED = "journal.damaged"
SPENT = "journal.spent"
#: The folder of the workers' journals.
SHARDS = "shards"
_MERGING = "merging"
# The key of a record for what was spent on calls whose own records are gone.
_GONE = "0" * 64
# US dollars; less than this is a rounding error of a sum.
_DUST = 1e-9


class JournalFullError(Exception):
    """The disk is full; what was written before is whole.

    Attributes:
        path: The journal.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(f"the disk of {path} is full")
        self.path = path


class Journal:
    """The journal in a run's folder; opening it reads what is there.

    Args:
        folder: The run's folder; the caller holds its lock.

    Attributes:
        spent: US dollars that all replies cost.
        unknown: US dollars that calls without an end may have cost.
        damaged: How many pieces were set aside on opening.
        missing: US dollars, in `spent` too, for which there were no records any more on opening.
        closed: Whether it can be used no more.

    Raises:
        JournalFullError: When the disk has no room to set aside what is damaged.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / JOURNAL
        self.spent = 0.0
        self.unknown = 0.0
        self.damaged = 0
        self.missing = 0.0
        self.closed = False
        # Where the replies under each key are in the file: offset and length.
        self._replies: dict[bytes, list[tuple[int, int]]] = {}
        self._open: dict[bytes, list[float]] = {}
        self.path.touch()
        with suppress(FileNotFoundError):
            # A merge that was killed begins anew.
            before = int((folder / SHARDS / _MERGING).read_text("ascii"))
            os.truncate(self.path, min(before, self.path.stat().st_size))
        size, total = _read_mark(folder / SPENT)
        missing = total - self._load(size)
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._mark = os.open(folder / SPENT, os.O_WRONLY | os.O_CREAT, 0o644)
        self._size = self._synced = os.fstat(self._file).st_size
        try:
            if missing > _DUST:
                self.missing = missing
                self.record_lost(_GONE, 0, "spent on calls whose records are gone", missing)
            self._write_total()
        except (OSError, JournalFullError):
            self.close()
            raise

    @property
    def harm(self) -> str:
        """A message about what was lost before opening; empty for nothing."""
        damages = []
        if self.damaged:
            damages.append(f"{format_count(self.damaged, 'damaged line')} set aside in {DAMAGED}")
        if self.missing:
            damages.append(f"calls that cost {self.missing:.2g} US dollars have no records anymore but still count")
        if not damages:
            return ""
        where = f"the journal in {self.path.parent} lost replies, which are requested and paid for again"
        return f"{where}: {'; '.join(damages)}"

    def __len__(self) -> int:
        """Count the replies."""
        return sum(map(len, self._replies.values()))

    @property
    def cost(self) -> float:
        """US dollars so far, calls without an end counted in full."""
        return self.spent + self.unknown

    def read_replies(self, keys: Sequence[str]) -> Iterator[tuple[int, Json]]:
        """The raw replies under any of these keys as they came, each with its key's place in `keys`."""
        spans = []
        for index, key in enumerate(keys):
            for offset, length in self._replies.get(bytes.fromhex(key), ()):
                spans.append((offset, length, index))
        for offset, length, index in sorted(spans):
            record = json.loads(os.pread(self._file, length, offset))
            yield index, record["raw"]

    def count(self, key: str) -> int:
        """Count the replies under a key."""
        return len(self._replies.get(bytes.fromhex(key), ()))

    def get_worst_open(self, key: str) -> float:
        """The most that the last call under a key of which no end is known can cost; 0 where there is none."""
        return self._open.get(bytes.fromhex(key), [0.0])[-1]

    def record_sent(self, key: str, attempt: int, model: str, worst: float) -> None:
        """Note that a call goes out.

        Raises:
            JournalFullError: When there is no room; the call must not go out then.
        """
        self._put({"key": key, "attempt": attempt, "kind": "sent", "model": model, "worst": worst})

    def reply(self, key: str, attempt: int, raw: Json, cost: float, facts: Json) -> None:
        """Keep a raw reply.

        Args:
            key: Of the request.
            attempt: Counted from 1.
            raw: As it came.
            cost: In US dollars.
            facts: What else to keep next to it, such as the model and the prompt's hash.

        Raises:
            JournalFullError: When the disk is full; the call then counts as one that may have cost the most.
        """
        self._put({"key": key, "attempt": attempt, "kind": "reply", **facts, "cost": cost, "raw": raw})

    def record_lost(self, key: str, attempt: int, reason: str, cost: float) -> None:
        """Note that a call brought no reply, and what it may have cost.

        Raises:
            JournalFullError: When there is no room; the call then counts as one that may have cost the most.
        """
        self._put({"key": key, "attempt": attempt, "kind": "lost", "reason": reason, "cost": cost})

    def merge(self) -> int:
        """Take in what the run's workers journaled, every record once, whatever stops it.

        Returns:
            How many calls that were.

        Raises:
            JournalFullError: When there is no room; the workers' journals stay, and so does this one.
            RunInUseError: When a worker is still at it.
        """
        folder, start = self.path.parent / SHARDS, self._size
        if not folder.is_dir():
            return 0
        shards = sorted(path.parent for path in folder.glob(f"*/{JOURNAL}"))
        with ExitStack() as locks, self._raise_when_full():
            for shard in shards:
                locks.enter_context(lock_folder(shard))
            with open_atomic(folder / _MERGING) as stream:
                stream.write(str(start))
            try:
                for shard in shards:
                    with (shard / JOURNAL).open("rb") as lines:
                        for line in filter(parse_record, lines):
                            self._append(line)
                self.sync()
            except BaseException:
                os.ftruncate(self._file, start)
                self._size = start
                (folder / _MERGING).unlink()
                raise
        merged = self.path.parent / f"{SHARDS}.merged"
        shutil.rmtree(merged, ignore_errors=True)
        folder.rename(merged)
        shutil.rmtree(merged, ignore_errors=True)
        calls = 0
        with self.path.open("rb") as lines:
            lines.seek(start)
            for line in lines:
                value = json.loads(line)
                self._note(value, start, len(line))
                start += len(line)
                calls += value["kind"] == "sent"
        self._write_total()
        return calls

    def sync(self) -> None:
        """Have the system put all of it on the disk; against power cuts, for a killed process loses nothing anyhow.

        Raises:
            JournalFullError: When the disk is full, which network file systems say only now.
        """
        size = self._size
        with self._raise_when_full():
            os.fsync(self._file)
        self._synced = size

    def close(self) -> None:
        """Put all of it on the disk and close."""
        if self._size != self._synced:
            with suppress(OSError, JournalFullError):
                self.sync()
        self.closed = True
        os.close(self._file)
        os.close(self._mark)

    def _put(self, value: Json) -> None:
        """Write a record and count it."""
        line, offset = encode_record(value), self._size
        with self._raise_when_full():
            self._append(line)
        self._note(value, offset, len(line))
        self._write_total()

    @contextmanager
    def _raise_when_full(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            raise JournalFullError(self.path) from error

    def _append(self, line: bytes) -> None:
        written = 0
        try:
            while written < len(line):
                written += os.write(self._file, line[written:])
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(line)

    def _write_total(self) -> None:
        if not self.cost:
            return
        # In place and of one length, so that a kill leaves it whole. A full disk has room for what is there already.
        with suppress(OSError):
            os.pwrite(self._mark, f"{self._size:20d} {self.cost:24.17g}\n".encode(), 0)

    def _note(self, value: Json, offset: int, length: int) -> None:
        key = bytes.fromhex(value["key"])
        if value["kind"] == "sent":
            self._open.setdefault(key, []).append(value["worst"])
            self.unknown += value["worst"]
            return
        if value["kind"] == "reply":
            self._replies.setdefault(key, []).append((offset, length))
        self.spent += value["cost"]
        worst_costs = self._open.get(key)
        if not worst_costs:
            return
        self.unknown -= worst_costs.pop()
        if not worst_costs:
            del self._open[key]
        if not self._open:
            # What is left of adding and taking away is a rounding error.
            self.unknown = 0.0

    def _load(self, size: int) -> float:
        """Note every record, and set aside what is none; US dollars by the records of the first `size` bytes."""
        self._replies.clear()
        self._open.clear()
        self.spent = self.unknown = known_total = 0.0
        offset = 0
        with self.path.open("rb") as stream:
            for line in stream:
                value = parse_record(line)
                if value is None:
                    with self._raise_when_full():
                        self._repair_file()
                    return self._load(size)
                self._note(value, offset, len(line))
                offset += len(line)
                if offset <= size:
                    known_total = self.spent + self.unknown
        return known_total

    def _repair_file(self) -> None:
        """Write the journal again without the lines that are damaged, which go into a file of their own."""
        mended = self.path.with_suffix(".mended")
        with self.path.open("rb") as old, mended.open("wb") as new, (self.path.parent / DAMAGED).open("ab") as aside:
            for line in old:
                if parse_record(line) is not None:
                    new.write(line)
                elif line.strip(b"\n"):
                    aside.write(line.removesuffix(b"\n") + b"\n")
                    self.damaged += 1
            new.flush()
            os.fsync(new.fileno())
            os.fsync(aside.fileno())
        mended.replace(self.path)


def _read_mark(path: Path) -> tuple[int, float]:
    """The size of a journal, and US dollars spent by then; zeros where the file is missing or damaged."""
    with suppress(OSError, ValueError):
        size, total = path.read_bytes()[:64].split()
        if 0 <= float(total) < math.inf:
            return int(size), float(total)
    return 0, 0.0
