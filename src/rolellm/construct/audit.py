"""What is wrong with a release, or with whatever part of one is there: counts and the lines behind them."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rolellm.construct.clean import RULES, broken_rules, is_machine
from rolellm.core.records import Language
from rolellm.core.text import HAN, find_name, fold
from rolellm.rolebench.release import Release, split_catchphrases
from rolellm.rolebench.schema import CONFIGS, Config, SourceFile
from rolellm.rolebench.statistics import TableOne, table_one

Row = dict[str, Any]
Numbered = list[tuple[int, Row]]
_CHECKED = ("instruction-generalization-eng", "role-generalization-eng", "instruction-generalization-zh")
#: Letters that a text needs before its language is judged.
_LETTERS = 12


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One fault of one file.

    Attributes:
        check: What was looked for.
        file: The file, relative to the release.
        count: How many rows have the fault; of checks on references, how many references.
        of: Out of how many.
        lines: The line numbers of those rows.
    """

    check: str
    file: str
    count: int
    of: int
    lines: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Audit:
    """The findings, Table 1 as it comes out here, and the problems of rows that could not be read."""

    table: TableOne
    findings: tuple[AuditFinding, ...]
    unread: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        findings = [asdict(finding) for finding in self.findings]
        return {"findings": findings, "unread": list(self.unread), "table_one": self.table.to_dict()}


def audit(data_dir: str | Path | None = None) -> Audit:
    """Look for faults in a release.

    Args:
        data_dir: The release; by default as for `rolellm.load_rolebench`.
    """
    table = table_one(data_dir)
    release = Release(table.root, skip_bad=True)
    findings = [
        finding
        for name in _CHECKED
        for file in CONFIGS[name].files
        if (release.root / file.path).is_file()
        for finding in _audit_file(release, CONFIGS[name], file)
        if finding.count
    ]
    unread = dict.fromkeys(map(str, release.skipped))
    return Audit(table, tuple(findings), tuple(unread))


def _audit_file(release: Release, config: Config, file: SourceFile) -> Iterable[AuditFinding]:
    rows = list(release.rows(file.path))

    def finding(check: str, lines: Iterable[int], of: int = len(rows)) -> AuditFinding:
        found = tuple(lines)
        return AuditFinding(check, file.path, len(found), of, found)

    def where(check: str, wrong: Callable[[Row], bool]) -> AuditFinding:
        return finding(check, (number for number, row in rows if wrong(row)))

    shapes = {number: _shape(value) for number, value in release.objects(file.path)}
    usual = Counter(shapes.values()).most_common(1)[0][0] if shapes else None
    yield finding("ragged schema", (number for number, shape in shapes.items() if shape != usual))
    yield finding("duplicate (role, question)", _repeated(rows, lambda row: (row["role"], row["question"])))
    yield finding(
        "duplicate, white space stripped", _repeated(rows, lambda row: (row["role"], row["question"].strip()))
    )
    yield finding("duplicate, normalized", _repeated(rows, lambda row: (row["role"], fold(row["question"]))))
    if file.split == "test":
        yield from _leaks(release, config, file, where)
    if file.split == "test" and (release.root / file.baseline).is_file():
        baseline = release.baseline(file.baseline)
        replies = {number: baseline(row["role"], row["question"]) for number, row in rows}
        yield finding("baseline missing", (number for number, _ in rows if replies[number] is None))
        found = (number for number, row in rows if replies[number] in row["generated"])
        yield finding("baseline among the references", found)
    described = release.descriptions(file.language)
    if described:
        yield where("role without a description", lambda row: find_name(row["role"], described) is None)
        yield where("role spelled otherwise in desc.json", lambda row: row["role"] not in described)
    targets = release.targets(file.language) if file.subset == "general" else {}
    if targets:
        yield where("instruction without a target", lambda row: fold(row["question"]) not in targets)
    yield from _references(rows, file.language, described, finding)


def _leaks(
    release: Release, config: Config, file: SourceFile, where: Callable[[str, Callable[[Row], bool]], AuditFinding]
) -> Iterable[AuditFinding]:
    """Rows of a test file that the train files of its config hold, too."""
    pairs: set[bytes] = set()
    questions: set[bytes] = set()
    answers: set[bytes] = set()
    roles: set[str] = set()
    for other in config.files:
        if other.split == "train" and (release.root / other.path).is_file():
            for _, row in release.rows(other.path):
                pairs.add(_key(row["role"], row["question"]))
                questions.add(_key(row["question"]))
                answers.update(map(_key, row["generated"]))
                roles.add(row["role"])
    if not roles:
        return
    yield where("(role, question) in train", lambda row: _key(row["role"], row["question"]) in pairs)
    yield where("answer in train", lambda row: any(_key(text) in answers for text in row["generated"]))
    if config.name.startswith("role-generalization"):
        # Its instructions are those of train on purpose: what it holds out is the roles.
        yield where("held-out role in train", lambda row: row["role"] in roles)
    else:
        yield where("question in train", lambda row: _key(row["question"]) in questions)


def _references(
    rows: Numbered, language: Language, described: dict[str, str], finding: Callable[..., AuditFinding]
) -> Iterable[AuditFinding]:
    found: defaultdict[str, list[int]] = defaultdict(list)
    own: dict[str, tuple[bool, list[str]]] = {}
    for number, row in rows:
        if row["role"] not in own:
            text = described.get(find_name(row["role"], described) or "")
            own[row["role"]] = is_machine(text, language), split_catchphrases(text or "")[1]
        machine, phrases = own[row["role"]]
        for reply in row["generated"]:
            for breach in broken_rules(reply, language, machine=machine, own=phrases):
                found[RULES[breach.rule]].append(number)
            if _is_foreign(reply, language):
                found["is in the wrong language"].append(number)
    of = sum(len(row["generated"]) for _, row in rows)
    for check in (*RULES.values(), "is in the wrong language"):
        yield finding(f"reference {check}", found[check], of)


def _is_foreign(text: str, language: Language) -> bool:
    """Whether most letters of a text are of the other language's script."""
    letters = sum(character.isalpha() for character in text)
    han = len(HAN.findall(text))
    return letters >= _LETTERS and (2 * han > letters if language == "en" else 2 * han < letters)


def _shape(value: Row) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, type(item).__name__) for name, item in value.items()))


def _key(*texts: str) -> bytes:
    return hashlib.blake2b("\0".join(map(fold, texts)).encode(), digest_size=16).digest()


def _repeated(rows: Numbered, key: Callable[[Row], object]) -> Iterable[int]:
    """The lines whose key an earlier line has."""
    seen: set[object] = set()
    for number, row in rows:
        if key(row) in seen:
            yield number
        seen.add(key(row))
