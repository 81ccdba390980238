"""Faults of a release, or of whatever part of one is there: its schema, exact leaks, and baselines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rolellm.core.errors import DataError
from rolellm.core.fingerprint import hash_file
from rolellm.core.progress import track_progress
from rolellm.core.result import Result
from rolellm.core.table import Table
from rolellm.core.text import fold
from rolellm.data.rolebench.release import Release
from rolellm.data.rolebench.schema import CONFIGS, Config, SourceFile
from rolellm.data.rolebench.statistics import locate_any

_AUDITED = ("instruction-generalization-eng", "role-generalization-eng", "instruction-generalization-zh")
Row = dict[str, Any]
#: Lists what two rows may share.
ListKeys = Callable[[Row], Sequence[str]]


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One fault of one file.

    Attributes:
        check: What was looked for.
        file: The file, relative to the release.
        count: How many rows have the fault.
        of: Out of how many.
        lines: The line numbers of those rows.
    """

    check: str
    file: str
    count: int
    of: int
    lines: tuple[int, ...]


@dataclass(frozen=True, slots=True, repr=False)
class Audit(Result):
    """Faults of a release, those of most rows first.

    Attributes:
        findings: Each fault of each file.
        unread: Problems of rows that could not be read.
        root: The release.
    """

    findings: tuple[AuditFinding, ...]
    unread: tuple[str, ...]
    root: Path

    def tables(self) -> tuple[Table]:
        """Build the table of faults."""
        rows = []
        for finding in self.findings:
            first_lines = ", ".join(map(str, finding.lines[:3]))
            rows.append((finding.file, finding.check, finding.count, finding.of, first_lines))
        heads = ("file", "fault", "count", "of", "first lines")
        return (Table.from_rows(f"Faults of {self.root}", heads, rows),)

    def remarks(self) -> list[str]:
        """Name what was not read."""
        return [f"not read: {problem}" for problem in self.unread]


@dataclass(frozen=True, slots=True)
class _File:
    """A data file, read once: its rows by line, and the shape of every object in it."""

    source: SourceFile
    rows: dict[int, Row]
    shapes: dict[int, str]

    @property
    def is_test(self) -> bool:
        return self.source.split == "test"

    def check(self, name: str, has_fault: Callable[[Row], bool]) -> AuditFinding:
        """Find the rows that have a fault."""
        return self.make_finding(name, (line for line, row in self.rows.items() if has_fault(row)))

    def make_finding(self, check: str, lines: Iterable[int]) -> AuditFinding:
        """Make a finding of the lines that have a fault."""
        listed = tuple(lines)
        return AuditFinding(check, self.source.path, len(listed), len(self.rows), listed)


def audit_release(data_dir: str | Path | None = None) -> Audit:
    """Look for faults in a release.

    Args:
        data_dir: The release; by default as for `rolellm.load_rolebench`.

    Raises:
        ReleaseNotFoundError: When there is no release.
    """
    root = locate_any(data_dir).root
    skipped: list[DataError] = []
    release = Release(root, skipped)
    findings: list[AuditFinding] = []
    tests: list[_File] = []
    for name in _AUDITED:
        config = CONFIGS[name]
        present = [file for file in config.files if (release.root / file.path).is_file()]
        files = [_read(release, file) for file in present]
        findings += _check_schemas(files)
        train_rows = [row for file in files if not file.is_test for row in file.rows.values()]
        config_tests = [file for file in files if file.is_test]
        for file in files:
            findings.append(_find_duplicates(file))
        for file in config_tests:
            findings += _find_leaks(config, file, train_rows)
            findings += _compare_tests(release, file, tests)
            findings += _check_baselines(release, file)
        tests += config_tests
    faults = [finding for finding in findings if finding.count]
    # The worst is what most rows have.
    faults.sort(key=lambda finding: -finding.count / finding.of)
    unread = dict.fromkeys(map(str, skipped))
    return Audit(tuple(faults), tuple(unread), root)


def _read(release: Release, source: SourceFile) -> _File:
    file = _File(source, {}, {})
    for line, value in track_progress(release.read_objects(source.path), f"Auditing {source.path}", "rows"):
        types = [f"{name}: {type(content).__name__}" for name, content in value.items()]
        file.shapes[line] = ", ".join(sorted(types))
        row = release.read_row(source.path, line, value)
        if row is not None:
            file.rows[line] = row
    return file


def _check_schemas(files: Sequence[_File]) -> Iterator[AuditFinding]:
    """Find the rows whose columns or types are not those of most rows of the subset."""
    counts: dict[str, Counter[str]] = {}
    for file in files:
        counts.setdefault(file.source.subset, Counter()).update(file.shapes.values())
    for file in files:
        ((usual, _),) = counts[file.source.subset].most_common(1) or [("", 0)]
        odd_lines = [line for line, shape in file.shapes.items() if shape != usual]
        yield file.make_finding("inconsistent schema", odd_lines)


def _find_duplicates(file: _File) -> AuditFinding:
    keys: set[str] = set()
    lines = []
    for line, row in file.rows.items():
        (key,) = _key_pair(row)
        if key in keys:
            lines.append(line)
        keys.add(key)
    return file.make_finding("duplicate (role, question)", lines)


def _find_leaks(config: Config, file: _File, train_rows: Sequence[Row]) -> Iterator[AuditFinding]:
    """Find rows of a test file that the train files of its config hold, too."""
    # The instructions of role generalization are those of train on purpose: what it holds out is the roles.
    is_by_role = config.name.startswith("role-")
    held_out = ("held-out role", _key_role) if is_by_role else ("question", _key_question)
    checks: list[tuple[str, ListKeys]] = [("(role, question)", _key_pair), held_out]
    # "True." answers many general instructions.
    if file.source.subset == "role_specific":
        checks.append(("answer", _key_answers))
    for label, list_keys in checks:
        yield _find_shared(f"{label} in train", file, train_rows, list_keys)


def _find_shared(check: str, file: _File, rows: Iterable[Row], list_keys: ListKeys) -> AuditFinding:
    """Find the rows of a file that share a key with one of other rows."""
    keys = {key for row in rows for key in list_keys(row)}
    return file.check(check, lambda row: not keys.isdisjoint(list_keys(row)))


def _key_role(row: Row) -> tuple[str]:
    return (row["role"],)


def _key_question(row: Row) -> tuple[str]:
    return (fold(row["question"]),)


def _key_pair(row: Row) -> tuple[str]:
    return (f"{row['role']}\0{fold(row['question'])}",)


def _key_answers(row: Row) -> list[str]:
    return [fold(answer) for answer in row["generated"]]


def _compare_tests(release: Release, file: _File, tests: Iterable[_File]) -> Iterator[AuditFinding]:
    """Find what a test file has in common with that of another config."""
    source = file.source
    kind = (source.subset, source.language)
    siblings = [test for test in tests if (test.source.subset, test.source.language) == kind]
    rows = [row for test in siblings for row in test.rows.values()]
    yield _find_shared("(role, question) in another test", file, rows, _key_pair)
    baseline = release.root / source.baseline
    for test in siblings:
        path = release.root / test.source.baseline
        if baseline.is_file() and path.is_file() and hash_file(baseline) == hash_file(path):
            lines = tuple(line for line, _ in release.read_objects(baseline))
            yield AuditFinding("baseline file is another config's", source.baseline, len(lines), len(lines), lines)


def _check_baselines(release: Release, file: _File) -> Iterator[AuditFinding]:
    if not (release.root / file.source.baseline).is_file():
        return
    find_reply = release.load_baseline(file.source.baseline)
    yield file.check("baseline missing", lambda row: find_reply(row["role"], row["question"]) is None)
    yield file.check(
        "baseline among the references", lambda row: find_reply(row["role"], row["question"]) in row["generated"]
    )
