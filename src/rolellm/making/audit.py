"""Faults of a release, or of whatever part of one is there: counts and the lines behind them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from rolellm.characters.reply_rules import RULES, find_breaches, is_machine
from rolellm.core.fingerprint import hash_file
from rolellm.core.progress import track_progress
from rolellm.core.records import Language
from rolellm.core.settings import read_packaged_yaml
from rolellm.core.text import HAN, find_name, fold
from rolellm.data.rolebench.release import Release, split_catchphrases
from rolellm.data.rolebench.schema import CONFIGS, FOLDERS, Config, SourceFile
from rolellm.data.rolebench.statistics import count_table_one
from rolellm.making.duplicates import FEWEST, find_nearest, list_words

Row = dict[str, Any]
Key = TypeVar("Key", bound=Hashable)
#: Of a fault: the line, the text that has it, and what shows it.
Hit = tuple[int, str, str]
_CHECKED = ("instruction-generalization-eng", "role-generalization-eng", "instruction-generalization-zh")
#: Letters that a text needs before its language is judged.
_LETTERS = 12


_QUOTED = re.compile(r"\"[^\"]*\"|“[^”]*”|《[^》]*》|'[^']*'")
#: A question that may ask for another language.
_LANGUAGE = re.compile(
    r"(?i)\b(?:languages?|translat\w*|Chinese|Mandarin|Japanese|Korean)\b|翻译|[英法德俄日韩外西]+[语文]|字母|拼音"
)
#: Characters from which on a reply is not counted to find out whether it is too short to be known by.
_SHORT = 60
#: Examples that are kept of a finding, at even distances.
_EXAMPLES = 20


@dataclass(frozen=True, slots=True)
class FaultExample:
    """One place where a fault is.

    Attributes:
        line: Its line in the file; 0 for a name of a file or of a JSON object.
        role: The role there.
        text: The question, reply or name.
        why: What shows the fault: the words found, or the line that is the same.
    """

    line: int
    role: str
    text: str
    why: str


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One fault of one file.

    Attributes:
        check: What was looked for.
        file: The file, relative to the release.
        count: How many rows have the fault; of checks on references, how many references; of names, how many names.
        of: Out of how many.
        lines: The line numbers of those rows.
        examples: Some of them, to look at.
    """

    check: str
    file: str
    count: int
    of: int
    lines: tuple[int, ...]
    examples: tuple[FaultExample, ...] = ()


@cache
def load_consequences() -> dict[str, dict[str, str]]:
    """Map each severity, gravest first, to what its checks' faults mean for who uses the release."""
    severities: dict[str, dict[str, str]] = read_packaged_yaml("rolellm.making", "audit.yaml")
    return severities


@dataclass(frozen=True, slots=True)
class Audit:
    """The findings, Table 1 as it comes out here, and the problems of rows that could not be read."""

    table: dict[str, Any]
    findings: tuple[AuditFinding, ...]
    unread: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return all of it but the examples, ready for JSON."""
        findings = [asdict(finding) for finding in self.findings]
        for finding in findings:
            del finding["examples"]
        return {"findings": findings, "unread": list(self.unread), "table_one": self.table}


@dataclass(frozen=True, slots=True)
class _File:
    """A data file, read once: its rows by line, and the shape of every object in it."""

    source: SourceFile
    rows: dict[int, Row]
    shapes: dict[int, str]

    def check(self, name: str, why: Callable[[Row], str | None]) -> AuditFinding:
        """Find the rows that have a fault, for each of which `why` says what shows it."""
        reasons = ((line, row["question"], why(row)) for line, row in self.rows.items())
        return self.make_finding(name, ((line, question, why) for line, question, why in reasons if why is not None))

    def make_finding(self, check: str, hits: Iterable[Hit], of: int | None = None) -> AuditFinding:
        listed = list(hits)
        samples = listed[:: max(len(listed) // _EXAMPLES, 1)][:_EXAMPLES]
        examples = tuple(
            FaultExample(line, self.rows.get(line, {}).get("role", ""), text, why) for line, text, why in samples
        )
        count = len(self.rows) if of is None else of
        return AuditFinding(check, self.source.path, len(listed), count, tuple(line for line, _, _ in listed), examples)


def _locate(files: Iterable[_File], list_keys: Callable[[_File, Row], Iterable[Key]]) -> dict[Key, str]:
    """Map the keys of all rows to the first place of each."""
    places: dict[Key, str] = {}
    for file in files:
        for line, row in file.rows.items():
            for key in list_keys(file, row):
                places.setdefault(key, f"{file.source.path}:{line}")
    return places


def _key_pair(_: _File, row: Row) -> list[tuple[str, str]]:
    return [(row["role"], fold(row["question"]))]


def _key_question(_: _File, row: Row) -> list[str]:
    return [fold(row["question"])]


def _key_answers(file: _File, row: Row) -> list[str]:
    """List a row's replies, folded; one too short to be known by, like "True.", as its words, NUL and its question."""
    language = file.source.language
    space, question = "" if language == "zh" else " ", fold(row["question"])

    def make_key(text: str) -> str:
        words = list_words(text, language) if len(text) < _SHORT else []
        return fold(text) if not words or len(words) >= FEWEST else f"{space.join(words)}\0{question}"

    return [make_key(text) for text in row["generated"]]


def audit_release(data_dir: str | Path | None = None) -> Audit:
    """Look for faults in a release.

    Args:
        data_dir: The release; by default as for `rolellm.load_rolebench`.

    Raises:
        ReleaseNotFoundError: When there is no release.
    """
    table = count_table_one(data_dir, skip_bad=True)
    release = Release(Path(table["root"]), skip_bad=True)
    findings: list[AuditFinding] = []
    tests: list[_File] = []
    for name in _CHECKED:
        config = CONFIGS[name]
        files = [_read(release, file) for file in config.files if (release.root / file.path).is_file()]
        train = [file for file in files if file.source.split == "train"]
        for file in files:
            same = [sibling for sibling in files if sibling.source.subset == file.source.subset]
            findings += _check_rows(file, same)
            if file.source.split == "test":
                findings += _check_leaks(config, file, train)
                findings += _compare_tests(release, file, tests)
                findings += _check_baselines(release, file)
            findings += _check_joins(release, file)
            findings += _check_references(release, file)
        tests += [file for file in files if file.source.split == "test"]
    for language in FOLDERS:
        findings += _check_names(release, language)
    unread = dict.fromkeys(map(str, release.skipped))
    order = [check for checks in load_consequences().values() for check in checks]
    findings = sorted((finding for finding in findings if finding.count), key=lambda one: order.index(one.check))
    return Audit(table, tuple(findings), tuple(unread))


def _read(release: Release, source: SourceFile) -> _File:
    file = _File(source, {}, {})
    interned: dict[str, str] = {}
    for line, value in track_progress(release.read_objects(source.path), f"Auditing {source.path}", "rows"):
        shape = ", ".join(f"{name}: {type(value[name]).__name__}" for name in sorted(value))
        file.shapes[line] = interned.setdefault(shape, shape)
        row = release.read_row(source.path, line, value)
        if row is not None:
            file.rows[line] = row
    return file


def _check_rows(file: _File, same: Sequence[_File]) -> Iterator[AuditFinding]:
    """Find faults of the rows themselves; what is usual is so in all files of the subset."""
    shapes = Counter(shape for sibling in same for shape in sibling.shapes.values())
    usual = shapes.most_common(1)[0][0] if shapes else ""
    yield file.make_finding(
        "inconsistent schema",
        (
            (line, file.rows.get(line, {}).get("question", ""), f"{shape}; usual: {usual}")
            for line, shape in file.shapes.items()
            if shape != usual
        ),
    )
    for check, key in (
        ("duplicate (role, question)", str),
        ("duplicate, white space stripped", str.strip),
        ("duplicate, normalized", fold),
    ):
        first_lines: dict[tuple[str, str], int] = {}
        yield file.make_finding(
            check,
            (
                (line, row["question"], f"line {first}")
                for line, row in file.rows.items()
                if (first := first_lines.setdefault((row["role"], key(row["question"])), line)) != line
            ),
        )


def _check_leaks(config: Config, file: _File, train: Sequence[_File]) -> Iterator[AuditFinding]:
    """Find rows of a test file that the train files of its config hold, too."""
    if not any(train_file.rows for train_file in train):
        return
    pairs = _locate(train, _key_pair)
    yield file.check("(role, question) in train", lambda row: pairs.get(_key_pair(file, row)[0]))
    yield from _check_texts("answer", file, train, _key_answers)
    if config.name.startswith("role-generalization"):
        # Its instructions are those of train on purpose: what it holds out is the roles.
        roles = {row["role"] for train_file in train for row in train_file.rows.values()}
        yield file.check("held-out role in train", lambda row: row["role"] if row["role"] in roles else None)
    else:
        yield from _check_texts("question", file, train, _key_question)


def _check_texts(
    label: str, file: _File, train: Sequence[_File], list_keys: Callable[[_File, Row], list[str]]
) -> Iterator[AuditFinding]:
    """Find rows with a folded text that is in train, and others with one that nearly is."""
    places = _locate(train, list_keys)
    texts_by_line = {line: list_keys(file, row) for line, row in file.rows.items()}
    matches = {line: next((text for text in texts if text in places), None) for line, texts in texts_by_line.items()}
    yield file.make_finding(
        f"{label} in train",
        ((line, text.partition("\0")[0], places[text]) for line, text in matches.items() if text is not None),
    )
    train_texts = [text for text in places if "\0" not in text]
    new = list(
        dict.fromkeys(
            text for line, texts in texts_by_line.items() if matches[line] is None for text in texts if "\0" not in text
        )
    )
    nearest = find_nearest(new, train_texts, file.source.language)
    near = {new[index]: (train_texts[neighbor], value) for index, (neighbor, value) in nearest.items()}
    first = {
        line: next((text for text in texts if text in near), None)
        for line, texts in texts_by_line.items()
        if matches[line] is None
    }
    yield file.make_finding(
        f"{label} nearly in train",
        (
            (line, text, f"{places[near[text][0]]} ({near[text][1]:.0%}): {near[text][0]}")
            for line, text in first.items()
            if text is not None
        ),
    )


def _compare_tests(release: Release, file: _File, tests: Iterable[_File]) -> Iterator[AuditFinding]:
    """Find what a test file has in common with that of another config."""
    source = file.source
    other_tests = [
        test for test in tests if (test.source.subset, test.source.language) == (source.subset, source.language)
    ]
    pairs = _locate(other_tests, _key_pair)
    yield file.check("(role, question) in another test", lambda row: pairs.get(_key_pair(file, row)[0]))
    for test in other_tests:
        baseline, path = release.root / source.baseline, release.root / test.source.baseline
        if baseline.is_file() and path.is_file() and hash_file(baseline) == hash_file(path):
            lines = tuple(line for line, _ in release.read_objects(baseline))
            yield AuditFinding("baseline file is another config's", source.baseline, len(lines), len(lines), lines)


def _check_baselines(release: Release, file: _File) -> Iterator[AuditFinding]:
    if not (release.root / file.source.baseline).is_file():
        return
    find = release.load_baseline(file.source.baseline)

    def find_shared(row: Row) -> str | None:
        reply = find(row["role"], row["question"])
        return reply if reply in row["generated"] else None

    yield file.check("baseline missing", lambda row: "no reply" if find(row["role"], row["question"]) is None else None)
    yield file.check("baseline among the references", find_shared)


def _check_joins(release: Release, file: _File) -> Iterator[AuditFinding]:
    """Find rows that have no description by their role's name, or no target by their question."""
    described = release.read_descriptions(file.source.language)
    if described:
        names = {role: find_name(role, described) for role in {row["role"] for row in file.rows.values()}}
        missing = {role: "" for role, name in names.items() if name is None}
        spellings = {role: name for role, name in names.items() if name not in (None, role)}
        yield file.check("role without a description", lambda row: missing.get(row["role"]))
        yield file.check("role spelled otherwise in desc.json", lambda row: spellings.get(row["role"]))
    targets = release.read_targets(file.source.language) if file.source.subset == "general" else {}
    if targets:
        yield file.check(
            "instruction without a target",
            lambda row: None if fold(row["question"]) in targets else "no such instruction",
        )


def _check_names(release: Release, language: Language) -> Iterator[AuditFinding]:
    """Find names of roles in other places of the release that are not those of the descriptions."""
    described = release.read_descriptions(language)
    folder = FOLDERS[language]
    names_by_file = {
        f"profiles-{folder}/scripts.json": list(release.read_json_object(f"profiles-{folder}/scripts.json"))
    }
    for start in (f"profiles-{folder}/profiles-{folder}-", f"instructions-{folder}/role-specific-"):
        paths = release.find(f"{start}*.jsonl")
        names_by_file[f"{start}*.jsonl"] = [path.stem.removeprefix(Path(start).name) for path in paths]
    for file, names in names_by_file.items() if described else ():
        resolved = {name: find_name(name, described) for name in names if name not in described}
        missing = {name: "" for name, spelling in resolved.items() if spelling is None}
        misspelled = {name: spelling for name, spelling in resolved.items() if spelling}
        for check, wrong in (("name not in desc.json", missing), ("name spelled otherwise in desc.json", misspelled)):
            examples = tuple(FaultExample(0, name, name, spelling) for name, spelling in wrong.items())[:_EXAMPLES]
            yield AuditFinding(check, file, len(wrong), len(names), (), examples)


def _check_references(release: Release, file: _File) -> Iterator[AuditFinding]:
    language = file.source.language
    described = release.read_descriptions(language)
    hits: defaultdict[str, list[Hit]] = defaultdict(list)
    own: dict[str, tuple[bool, list[str]]] = {}
    for line, row in track_progress(file.rows.items(), f"Reading {file.source.path}", "rows"):
        if row["role"] not in own:
            text = described.get(find_name(row["role"], described) or "")
            own[row["role"]] = is_machine(text, language), split_catchphrases(text or "")[1]
        machine, phrases = own[row["role"]]
        for reply in row["generated"]:
            for rule, words in find_breaches(reply, language, machine=machine, own=phrases).items():
                hits[RULES[rule]].append((line, reply, words))
            if _is_foreign(reply, language) and not _LANGUAGE.search(row["question"]):
                hits["is in the wrong language"].append((line, reply, row["question"]))
    of = sum(len(row["generated"]) for row in file.rows.values())
    for check in (*RULES.values(), "is in the wrong language"):
        yield file.make_finding(f"reference {check}", hits[check], of)


def _is_foreign(text: str, language: Language) -> bool:
    """Tell whether most letters of a text, what it quotes aside, are of the other language's script."""
    han = len(HAN.findall(text))
    if 2 * han >= len(text) if language == "zh" else not han:
        return False
    text = _QUOTED.sub("", text)
    letters = sum(character.isalpha() for character in text)
    han = len(HAN.findall(text))
    return letters >= _LETTERS and (2 * han > letters if language == "en" else 2 * han < letters)
