"""What batches a run's folder has: ``batches.json``, and in ``batches/`` the requests of those on their way."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from rolellm.errors import DataError
from rolellm.files import write_json
from rolellm.jsonl import read_jsonl
from rolellm.llm.wire import Structured

STATE = "batches.json"
FOLDER = "batches"


@dataclass(slots=True)
class Batch:
    """A batch, as `batches.json` has it.

    Attributes:
        name: Of its file, and what it is found by at the server.
        count: How many requests are in it.
        form: In which its schemas are asked for.
        file: The id of its file at the server, once it is there.
        id: Its id at the server, once it is made.
        status: As the server last said.
        collected: Whether all that came of it was handed on.
    """

    name: str
    count: int
    form: Structured
    file: str | None = None
    id: str | None = None
    status: str = "new"
    collected: bool = False


class BatchState:
    """The batches of one folder, read from it where it has any.

    Args:
        folder: The run's folder; the caller holds its lock.

    Attributes:
        run: What all batches of this folder carry at the server.
        batches: All of them, in the order in which they were made.

    Raises:
        DataError: For a state file that is no such thing, or that names requests which are not there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = uuid.uuid4().hex
        self.batches: list[Batch] = []
        self._load()

    @property
    def open(self) -> list[Batch]:
        """Those not yet collected."""
        return [batch for batch in self.batches if not batch.collected]

    def underway(self) -> frozenset[str]:
        """The custom ids of all requests in them (see `rolellm.llm.batch_lines.BatchItem`)."""
        return frozenset(name for batch in self.open for name in self.ids(batch))

    def ids(self, batch: Batch) -> Iterator[str]:
        """The custom ids of a batch's requests."""
        for _, line in read_jsonl(self.path(batch)):
            yield line["custom_id"]

    def path(self, batch: Batch) -> Path:
        """The file of a batch's requests; gone once it is collected."""
        return self.folder / FOLDER / f"{batch.name}.jsonl"

    def save(self) -> None:
        """Write the state, complete or not at all."""
        write_json(self.folder / STATE, {"run": self.run, "batches": [asdict(batch) for batch in self.batches]})

    def _load(self) -> None:
        path = self.folder / STATE
        if not path.is_file():
            return
        try:
            state = json.loads(path.read_bytes())
            self.run, self.batches = str(state["run"]), [Batch(**batch) for batch in state["batches"]]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError("not a record of batches; move it away to begin anew", path=path) from error
        for lost in (file for batch in self.open if not (file := self.path(batch)).is_file()):
            raise DataError(f"names a batch whose requests are not at {lost}; put that file back", path=path)
