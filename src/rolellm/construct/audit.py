"""What is wrong with a release, or with whatever part of one is there: counts and the lines behind them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rolellm.construct.clean import RULES, broken_rules, is_machine
from rolellm.construct.duplicates import FEWEST, nearest, words_of
from rolellm.core.fingerprint import hash_file
from rolellm.core.records import Language
from rolellm.core.text import HAN, find_name, fold
from rolellm.rolebench.release import Release, split_catchphrases
from rolellm.rolebench.schema import CONFIGS, FOLDERS, Config, SourceFile
from rolellm.rolebench.statistics import TableOne, table_one
from rolellm.runtime.progress import counted

Row = dict[str, Any]
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
class Example:
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
    examples: tuple[Example, ...] = ()


@dataclass(frozen=True, slots=True)
class Audit:
    """The findings, Table 1 as it comes out here, and the problems of rows that could not be read."""

    table: TableOne
    findings: tuple[AuditFinding, ...]
    unread: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """All of it but the examples, ready for JSON."""
        findings = [asdict(finding) for finding in self.findings]
        for finding in findings:
            del finding["examples"]
        return {"findings": findings, "unread": list(self.unread), "table_one": self.table.to_dict()}


@dataclass(frozen=True, slots=True)
class _File:
    """A data file, read once: its rows by line, and the shape of every object in it."""

    source: SourceFile
    rows: dict[int, Row]
    shapes: dict[int, str]

    def hits(self, why: Callable[[Row], str | None]) -> Iterator[Hit]:
        """The rows' questions for which there is something to say."""
        for line, row in self.rows.items():
            said = why(row)
            if said is not None:
                yield line, row["question"], said

    def finding(self, check: str, hits: Iterable[Hit], of: int | None = None) -> AuditFinding:
        found = list(hits)
        some = found[:: max(len(found) // _EXAMPLES, 1)][:_EXAMPLES]
        examples = tuple(Example(line, self.rows.get(line, {}).get("role", ""), text, why) for line, text, why in some)
        count = len(self.rows) if of is None else of
        return AuditFinding(check, self.source.path, len(found), count, tuple(line for line, _, _ in found), examples)


@dataclass(frozen=True, slots=True)
class _Train:
    """What the train files of a config hold: folded texts, each with its first place."""

    roles: set[str] = field(default_factory=set)
    pairs: dict[tuple[str, str], str] = field(default_factory=dict)
    questions: dict[str, str] = field(default_factory=dict)
    answers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, files: Iterable[_File]) -> _Train:
        train = cls()
        for file in files:
            for line, row in file.rows.items():
                place, question = f"{file.source.path}:{line}", fold(row["question"])
                train.roles.add(row["role"])
                train.pairs.setdefault((row["role"], question), place)
                train.questions.setdefault(question, place)
                for text in _answers(file, row):
                    train.answers.setdefault(text, place)
        return train


def _answers(file: _File, row: Row) -> list[str]:
    """A row's replies, folded; one too short to be known by, such as "True.", by its words, NUL and its question."""
    language = file.source.language
    space, asked = "" if language == "zh" else " ", fold(row["question"])

    def known_by(text: str) -> str:
        words = words_of(text, language) if len(text) < _SHORT else []
        return fold(text) if not words or len(words) >= FEWEST else f"{space.join(words)}\0{asked}"

    return [known_by(text) for text in row["generated"]]


def audit(data_dir: str | Path | None = None) -> Audit:
    """Look for faults in a release.

    Args:
        data_dir: The release; by default as for `rolellm.load_rolebench`.

    Raises:
        ReleaseNotFoundError: When there is no release.
    """
    table = table_one(data_dir, skip_bad=True)
    release = Release(table.root, skip_bad=True)
    findings: list[AuditFinding] = []
    tests: list[_File] = []
    for name in _CHECKED:
        config = CONFIGS[name]
        files = [_read(release, file) for file in config.files if (release.root / file.path).is_file()]
        train = _Train.of(file for file in files if file.source.split == "train")
        for file in files:
            same = [other for other in files if other.source.subset == file.source.subset]
            findings += _of_rows(file, same)
            if file.source.split == "test":
                findings += _leaks(config, file, train)
                findings += _of_other_tests(release, file, tests)
                findings += _baselines(release, file)
            findings += _joins(release, file)
            findings += _references(release, file)
        tests += [file for file in files if file.source.split == "test"]
    for language in FOLDERS:
        findings += _names(release, language)
    unread = dict.fromkeys(map(str, release.skipped))
    return Audit(table, tuple(finding for finding in findings if finding.count), tuple(unread))


def _read(release: Release, source: SourceFile) -> _File:
    file = _File(source, {}, {})
    known: dict[str, str] = {}
    for line, value in counted(release.objects(source.path), f"Auditing {source.path}", "rows"):
        shape = ", ".join(f"{name}: {type(value[name]).__name__}" for name in sorted(value))
        file.shapes[line] = known.setdefault(shape, shape)
        row = release.row(source.path, line, value)
        if row is not None:
            file.rows[line] = row
    return file


def _of_rows(file: _File, same: Sequence[_File]) -> Iterator[AuditFinding]:
    """Faults of the rows themselves; what is usual is so in all files of the subset."""
    shapes = Counter(shape for other in same for shape in other.shapes.values())
    usual = shapes.most_common(1)[0][0] if shapes else ""
    yield file.finding(
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
        seen: dict[tuple[str, str], int] = {}
        yield file.finding(
            check,
            (
                (line, row["question"], f"line {first}")
                for line, row in file.rows.items()
                if (first := seen.setdefault((row["role"], key(row["question"])), line)) != line
            ),
        )


def _leaks(config: Config, file: _File, train: _Train) -> Iterator[AuditFinding]:
    """Rows of a test file that the train files of its config hold, too."""
    if not train.roles:
        return
    yield file.finding(
        "(role, question) in train", file.hits(lambda row: train.pairs.get((row["role"], fold(row["question"]))))
    )
    yield from _found_in_train("answer", file, train.answers, lambda row: _answers(file, row))
    if config.name.startswith("role-generalization"):
        # Its instructions are those of train on purpose: what it holds out is the roles.
        yield file.finding(
            "held-out role in train", file.hits(lambda row: row["role"] if row["role"] in train.roles else None)
        )
    else:
        yield from _found_in_train("question", file, train.questions, lambda row: [fold(row["question"])])


def _found_in_train(
    what: str, file: _File, train: dict[str, str], texts: Callable[[Row], list[str]]
) -> Iterator[AuditFinding]:
    """Rows with a folded text that is in train, and others with one that nearly is."""
    asked = {line: texts(row) for line, row in file.rows.items()}
    found = {line: text for line, some in asked.items() for text in reversed(some) if text in train}
    yield file.finding(
        f"{what} in train", ((line, text.partition("\0")[0], train[text]) for line, text in found.items())
    )
    known = [text for text in train if "\0" not in text]
    new = dict.fromkeys(text for line, some in asked.items() if line not in found for text in some if "\0" not in text)
    places = nearest(list(new), known, file.source.language)
    near = {text: places[place] for place, text in enumerate(new) if place in places}
    first = {line: next((text for text in some if text in near), "") for line, some in asked.items()}
    yield file.finding(
        f"{what} nearly in train",
        (
            (line, text, f"{train[known[other]]} ({value:.0%}): {known[other]}")
            for line, text in first.items()
            if text and line not in found
            for other, value in [near[text]]
        ),
    )


def _of_other_tests(release: Release, file: _File, tests: Iterable[_File]) -> Iterator[AuditFinding]:
    """What a test file has in common with that of another config."""
    mine = file.source
    theirs = [other for other in tests if (other.source.subset, other.source.language) == (mine.subset, mine.language)]
    pairs = {
        (row["role"], fold(row["question"])): f"{other.source.path}:{line}"
        for other in theirs
        for line, row in other.rows.items()
    }
    yield file.finding(
        "(role, question) in another test", file.hits(lambda row: pairs.get((row["role"], fold(row["question"]))))
    )
    for other in theirs:
        ours, path = release.root / mine.baseline, release.root / other.source.baseline
        if ours.is_file() and path.is_file() and hash_file(ours) == hash_file(path):
            lines = tuple(line for line, _ in release.objects(ours))
            yield AuditFinding("baseline file is another config's", mine.baseline, len(lines), len(lines), lines)


def _baselines(release: Release, file: _File) -> Iterator[AuditFinding]:
    if not (release.root / file.source.baseline).is_file():
        return
    find = release.baseline(file.source.baseline)

    def shared(row: Row) -> str | None:
        reply = find(row["role"], row["question"])
        return reply if reply in row["generated"] else None

    missing = file.hits(lambda row: "no reply" if find(row["role"], row["question"]) is None else None)
    yield file.finding("baseline missing", missing)
    yield file.finding("baseline among the references", file.hits(shared))


def _joins(release: Release, file: _File) -> Iterator[AuditFinding]:
    """Rows that find no description by their role's name, or no target by their question."""
    described = release.descriptions(file.source.language)
    if described:
        names = {role: find_name(role, described) for role in {row["role"] for row in file.rows.values()}}
        missing = {role: "" for role, name in names.items() if name is None}
        other = {role: name for role, name in names.items() if name not in (None, role)}
        yield file.finding("role without a description", file.hits(lambda row: missing.get(row["role"])))
        yield file.finding("role spelled otherwise in desc.json", file.hits(lambda row: other.get(row["role"])))
    targets = release.targets(file.source.language) if file.source.subset == "general" else {}
    if targets:
        yield file.finding(
            "instruction without a target",
            file.hits(lambda row: None if fold(row["question"]) in targets else "no such instruction"),
        )


def _names(release: Release, language: Language) -> Iterator[AuditFinding]:
    """Names of roles in other places of the release that are not those of the descriptions."""
    described = release.descriptions(language)
    folder = FOLDERS[language]
    places = {f"profiles-{folder}/scripts.json": list(release.json_object(f"profiles-{folder}/scripts.json"))}
    for start in (f"profiles-{folder}/profiles-{folder}-", f"instructions-{folder}/role-specific-"):
        found = release.find(f"{start}*.jsonl")
        places[f"{start}*.jsonl"] = [path.stem.removeprefix(Path(start).name) for path in found]
    for file, names in places.items() if described else ():
        known = {name: find_name(name, described) for name in names if name not in described}
        for check, wrong in (
            ("name not in desc.json", {name: "" for name, other in known.items() if other is None}),
            ("name spelled otherwise in desc.json", {name: other for name, other in known.items() if other}),
        ):
            examples = tuple(Example(0, name, name, other) for name, other in wrong.items())[:_EXAMPLES]
            yield AuditFinding(check, file, len(wrong), len(names), (), examples)


def _references(release: Release, file: _File) -> Iterator[AuditFinding]:
    language = file.source.language
    described = release.descriptions(language)
    found: defaultdict[str, list[Hit]] = defaultdict(list)
    own: dict[str, tuple[bool, list[str]]] = {}
    for line, row in counted(file.rows.items(), f"Reading {file.source.path}", "rows"):
        if row["role"] not in own:
            text = described.get(find_name(row["role"], described) or "")
            own[row["role"]] = is_machine(text, language), split_catchphrases(text or "")[1]
        machine, phrases = own[row["role"]]
        for reply in row["generated"]:
            for breach in broken_rules(reply, language, machine=machine, own=phrases):
                found[RULES[breach.rule]].append((line, reply, breach.found))
            if _is_foreign(reply, language) and not _LANGUAGE.search(row["question"]):
                found["is in the wrong language"].append((line, reply, row["question"]))
    of = sum(len(row["generated"]) for row in file.rows.values())
    for check in (*RULES.values(), "is in the wrong language"):
        yield file.finding(f"reference {check}", found[check], of)


def _is_foreign(text: str, language: Language) -> bool:
    """Whether most letters of a text, what it quotes aside, are of the other language's script."""
    han = len(HAN.findall(text))
    if 2 * han >= len(text) if language == "zh" else not han:
        return False
    text = _QUOTED.sub("", text)
    letters = sum(character.isalpha() for character in text)
    han = len(HAN.findall(text))
    return letters >= _LETTERS and (2 * han > letters if language == "en" else 2 * han < letters)
