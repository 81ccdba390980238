"""A run: the folder that a stage leaves, with its manifest, its journal and its records.

``manifest.json`` has the same keys for every kind of run: ``kind``, ``rolellm`` (the version), ``settings``,
``models``, ``summary``, ``requests`` (``asked`` and ``failed``), ``files`` (the SHA-256 of each record file) and
``spent``; next to them, what the stage says of its inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from rolellm.characters.folder import PROFILE
from rolellm.core.errors import DataError, SettingsError
from rolellm.core.jsonl import read_json, read_jsonl
from rolellm.core.result import Result
from rolellm.core.sanitize import make_visible
from rolellm.core.table import Table
from rolellm.core.text import join_names
from rolellm.llm.client import FAILED
from rolellm.llm.journal import JOURNAL

if TYPE_CHECKING:
    import pandas

MANIFEST = "manifest.json"
#: Kinds of runs that a release reads from a character's folder, by the beginning of their names.
_RELEASED: Final = ("instruct", "respond")
R = TypeVar("R")


@dataclass(frozen=True, repr=False)
class Run(Result, Generic[R]):
    """A finished run.

    Attributes:
        folder: The run's folder.
        manifest: The content of its ``manifest.json``.
        result: The stage's own result; only in the process that ran it.
        next_lines: The command lines to go on with that only the caller knows.
    """

    folder: Path
    manifest: Mapping[str, Any]
    result: R = field(kw_only=True, compare=False)
    next_lines: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def open(cls, folder: str | Path) -> Run[None]:
        """Open the folder of a finished run.

        Raises:
            DataError: When the folder has no manifest, or one that is not a run's.
        """
        path = Path(folder) / MANIFEST
        if not path.is_file():
            raise DataError(f"not a finished run: there is no {MANIFEST}", path=folder)
        manifest = read_json(path)
        if not isinstance(manifest.get("kind"), str):
            raise DataError("not the manifest of a run: it has no `kind`", path=path)
        return Run(Path(folder), manifest, result=None)

    @property
    def kind(self) -> str:
        """The stage that made it, such as ``respond``."""
        return str(self.manifest["kind"])

    @property
    def summary(self) -> Mapping[str, Any]:
        """The stage's counts."""
        return self.manifest.get("summary") or {}

    @property
    def asked(self) -> int:
        """Number of requests."""
        return self._count_requests("asked")

    @property
    def failed(self) -> int:
        """Number of requests without an answer; ``failed.jsonl`` lists them."""
        return self._count_requests("failed")

    def _count_requests(self, name: str) -> int:
        counts = self.manifest.get("requests") or {}
        return int(counts.get(name, 0))

    def records(self, name: str | None = None) -> list[dict[str, Any]]:
        """Read one of its record files.

        Args:
            name: The file; by default the first.
        """
        names = [file for file in self.manifest.get("files") or () if file.endswith(".jsonl")]
        if name is None and not names:
            return []
        lines = read_jsonl(self.folder / (name or names[0]))
        return [value for _, value in lines]

    def tables(self) -> Sequence[Table]:
        """Return the result's tables."""
        return self._shown.tables()

    def remarks(self) -> Sequence[str]:
        """Return the result's sentences, what was spent, and where the records are."""
        remarks = [*self._shown.remarks()]
        spent = self.manifest.get("spent")
        if spent and self.asked:
            remarks.append(f"{spent['calls']:,} calls, {spent['from_journal']:,} requests from the journal.")
        names = join_names(self.manifest.get("files") or (), 5)
        return [*remarks, f"In {self.folder}: {names}"] if names else remarks

    def notes(self) -> Sequence[str]:
        """Return the result's notes, and how many requests have no answer."""
        notes = [*self._shown.notes()]
        if self.failed:
            reasons = self.folder / FAILED
            notes.append(f"note: {self.failed:,} of {self.asked:,} requests failed; {reasons} says why")
        return notes

    @property
    def continues_with(self) -> Sequence[str]:
        """The command lines to go on with: the result's, then the caller's."""
        return (*self._shown.continues_with, *self.next_lines)

    def continue_with(self, line: str) -> Run[R]:
        """Add a command line to go on with."""
        return replace(self, next_lines=(*self.next_lines, line))

    @property
    def has_passed(self) -> bool:
        """True if the result has passed."""
        return self._shown.has_passed

    @property
    def page(self) -> Path | None:
        """The result's page, where it has one."""
        return getattr(self.result, "page", None)

    @property
    def _shown(self) -> Result:
        return self.result if isinstance(self.result, Result) else Result()

    def to_dict(self) -> dict[str, Any]:
        """Return what a command prints with ``--json``: the folder, the summary, and what was spent."""
        shared = {name: self.manifest.get(name) for name in ("requests", "spent")}
        return {"out": str(self.folder), "kind": self.kind, **self.summary, **shared}

    def to_pandas(self, name: str | None = None) -> pandas.DataFrame:
        """Read one of its record files as a table; see `records`."""
        import pandas

        return pandas.DataFrame(self.records(name))

    def __repr__(self) -> str:
        answered = self.asked - self.failed
        head = f"<Run {self.kind}: {answered:,} of {self.asked:,} answered; {str(self.folder)!r}>"
        return "\n".join([head, *map(make_visible, self._shown.remarks())])

    def _repr_html_(self) -> str:
        if isinstance(self.result, Result):
            return super()._repr_html_()
        rows = [(name.replace("_", " "), str(value)) for name, value in self.to_dict().items()]
        return Table.from_rows(self.kind, ("", ""), rows).to_html()


def find_runs(folder: str | Path, kind: str | None = None) -> list[Run[None]]:
    """Find the finished runs in a folder and the folders in it, sorted by path.

    Args:
        folder: Where to look.
        kind: Return runs of this kind only.
    """
    runs = []
    top = Path(folder)
    paths = {top / MANIFEST, *top.glob(f"*/{MANIFEST}")}
    for path in sorted(paths):
        try:
            run = Run.open(path.parent)
        except DataError:
            continue
        if kind in (None, run.kind):
            runs.append(run)
    return runs


def check_run_folder(folder: str | Path, kind: str) -> None:
    """Refuse a folder that holds anything but an earlier run of the same kind.

    Args:
        folder: The run's folder; need not exist.
        kind: The kind of run.

    Raises:
        SettingsError: Says what the folder holds; or that a release would not find a run of this name.
    """
    target = Path(folder)
    if target.exists() and not target.is_dir():
        raise SettingsError(f"{folder} is a file; name a folder for this run (--out)")
    contents = _describe_contents(target, kind)
    if contents:
        raise SettingsError(f"{folder} holds {contents}; name another folder for this run (--out)")
    is_found = kind not in _RELEASED or target.name.startswith(kind)
    if not is_found and (target.parent / PROFILE).is_file():
        name = target.with_name(f"{kind}-{target.name}")
        raise SettingsError(f"in a character's folder, a release only finds runs named {kind}…; name it {name} (--out)")


def _describe_contents(folder: Path, kind: str) -> str:
    """Describe what a folder holds besides an earlier run of a kind; empty where there is nothing else."""
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if PROFILE in names:
        return "a character"
    if MANIFEST in names:
        own_kind = read_json(folder / MANIFEST).get("kind")
        if own_kind == kind:
            return ""
        return f"a run of {own_kind!r:.40}" if own_kind else f"another program's {MANIFEST}"
    other_names = [name for name in names if not name.endswith(".lock")]
    if JOURNAL in names or not other_names:
        return ""
    return f"other files ({join_names(other_names, 5)})"
