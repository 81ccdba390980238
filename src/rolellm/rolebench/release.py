"""Reads the release's own files, whatever part of them is there, and says where one is not as published."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rolellm.core.errors import DataError, ReleaseFormatError
from rolellm.core.jsonl import read_jsonl
from rolellm.core.records import Language
from rolellm.core.text import fold, half_in, squash
from rolellm.rolebench.schema import FOLDERS, Config, SourceFile

_QUOTED = re.compile(r"[\"“]([^\"”]+)[\"”]")
_CATCHPHRASES = re.compile(r"[Yy]our catchphrases? (?:is|are)\b.*$|你的口头禅.*$", re.DOTALL)


@dataclass(slots=True)
class Release:
    """A local copy of the release, or part of one.

    Attributes:
        root: Its folder.
        skip_bad: Collect bad rows in :attr:`skipped` rather than stop at the first.
        skipped: What was set aside, as errors that know their file and line.
    """

    root: Path
    skip_bad: bool = False
    skipped: list[DataError] = field(default_factory=list)

    def find(self, patterns: list[str]) -> list[Path]:
        """The files that match any of these glob patterns, sorted; parts of the layout that are absent give none."""
        return sorted({path for pattern in patterns for path in self.root.glob(pattern) if path.is_file()})

    def objects(self, path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
        """The objects of one JSON Lines file, with their line numbers.

        Args:
            path: Relative to the root, as the layout has it; or a file that `find` found.

        Raises:
            ReleaseFormatError: When the file is empty or a line is broken (unless bad rows are skipped).
        """
        file = path if isinstance(path, Path) else self.root / path
        count = 0
        known = len(self.skipped)
        try:
            for number, value in read_jsonl(file, bad=self.skipped if self.skip_bad else None):
                count += 1
                half = half_in(json.dumps(value, ensure_ascii=False))
                if half is None:
                    yield number, value
                else:
                    self._refuse(half, file, number)
        except DataError as error:
            raise ReleaseFormatError(f"{error.problem}. {_SKIP_HINT}", path=error.path, line=error.line) from error
        if count == 0 and len(self.skipped) == known:
            self._refuse("the file is empty; expected one JSON object a line", file, None)

    def rows(self, path: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """The rows of one data or baseline file, checked and with ``type`` made one entry a reply.

        Yields:
            The line number, and ``{"role", "question", "generated": list[str], "type": list[str]}``.

        Raises:
            ReleaseFormatError: At the first row that is not as published (unless bad rows are skipped).
        """
        for number, value in self.objects(path):
            problem = _row_problem(value)
            if problem:
                self._refuse(problem, self.root / path, number)
                continue
            kinds = value.get("type", [])
            if isinstance(kinds, str):
                kinds = [kinds] * len(value["generated"])
            yield number, {**value, "type": kinds}

    def _refuse(self, problem: str, path: Path, line: int | None) -> None:
        if self.skip_bad:
            self.skipped.append(ReleaseFormatError(problem, path=path, line=line))
        else:
            raise ReleaseFormatError(f"{problem}. {_SKIP_HINT}", path=path, line=line)

    def json_object(self, path: str) -> dict[str, str]:
        """A JSON file that maps names to texts (descriptions, script names); empty when it is not there.

        Raises:
            ReleaseFormatError: When it is there and is not such an object.
        """
        file = self.root / path
        if not file.is_file():
            return {}
        try:
            value = json.loads(file.read_text(encoding="utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise ReleaseFormatError(f"not valid JSON ({error})", path=file) from error
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            raise ReleaseFormatError("expected one JSON object of texts by role name", path=file)
        half = half_in(*value, *value.values())
        if half:
            raise ReleaseFormatError(half, path=file)
        return value

    def descriptions(self, language: Language) -> dict[str, str]:
        """Second-person description by role, catchphrases included."""
        return self.json_object(f"profiles-{FOLDERS[language]}/desc.json")

    def general_instructions(self, language: Language) -> Iterator[tuple[int, str, str]]:
        """The general instructions with their role-free targets: line number, instruction, target."""
        for path in self.find([f"instructions-{FOLDERS[language]}/instructions-general*.jsonl"]):
            for number, value in self.objects(path):
                pair = value.get("instruction"), value.get("target")
                if isinstance(pair[0], str) and isinstance(pair[1], str):
                    yield number, pair[0], pair[1]
                else:
                    self._refuse("expected the texts `instruction` and `target`", path, number)

    def targets(self, language: Language) -> dict[str, str]:
        """Role-free target by folded instruction text; the first one counts where an instruction repeats."""
        found: dict[str, str] = {}
        for _, instruction, target in self.general_instructions(language):
            found.setdefault(fold(instruction), target)
        return found

    def baseline(self, path: str) -> Baseline:
        """The released RoleGPT replies of one file; of none when the file is not there."""
        replies = Baseline()
        if (self.root / path).is_file():
            for _, row in self.rows(path):
                replies.add(row["role"], row["question"], row["generated"][0])
        return replies


class Baseline:
    """RoleGPT's replies by (role, question): exact first, else with white space around the question left out."""

    def __init__(self) -> None:
        self._exact: dict[tuple[str, str], str] = {}
        self._trimmed: dict[tuple[str, str], str] = {}

    def add(self, role: str, question: str, reply: str) -> None:
        """Take a reply in; the first one counts where a question repeats."""
        self._exact.setdefault((role, question), reply)
        self._trimmed.setdefault((role, question.strip()), reply)

    def get(self, role: str, question: str) -> str | None:
        """The reply to a question, if there is one."""
        found = self._exact.get((role, question))
        return self._trimmed.get((role, question.strip())) if found is None else found


_SKIP_HINT = "Fix it, or set such rows aside with skip_bad=True (--skip-bad)"


def _row_problem(value: dict[str, Any]) -> str | None:
    for key in ("role", "question"):
        if not isinstance(value.get(key), str) or not value[key].strip():
            return f"expected a text `{key}`, found {_describe(value, key)}"
    replies = value.get("generated")
    if not isinstance(replies, list) or not replies or not all(isinstance(reply, str) for reply in replies):
        return f"expected `generated` to be a list of one or more texts, found {_describe(value, 'generated')}"
    kinds = value.get("type")
    if isinstance(kinds, list):
        if len(kinds) != len(replies) or not all(isinstance(kind, str) for kind in kinds):
            return f"expected one `type` a reply ({len(replies)}), found {_describe(value, 'type')}"
    elif kinds is not None and not isinstance(kinds, str):
        return f"expected `type` to be a text or a list of texts, found {_describe(value, 'type')}"
    return None


def _describe(value: dict[str, Any], key: str) -> str:
    if key not in value:
        return f"none (keys: {', '.join(map(str, value)) or 'none'})"
    text = json.dumps(value[key], ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def split_catchphrases(description: str) -> tuple[str, list[str]]:
    """Part a released description into the description proper and its catchphrases.

    >>> split_catchphrases('A fox. Your catchphrases are: "Aha!" / "Not yet."')
    ('A fox.', ['Aha!', 'Not yet.'])
    """
    match = _CATCHPHRASES.search(description)
    if match is None:
        return description.strip(), []
    return description[: match.start()].strip(), [item.strip() for item in _QUOTED.findall(match.group())]


# --- From the release's files to the rows of a config, columns joined and ids given


def config_splits(release: Release, config: Config) -> list[str]:
    """The splits for which at least one data file is there, in order."""
    if config.is_table:
        return ["train"]
    present = {file.split for file in config.files if (release.root / file.path).is_file()}
    return [split for split in ("train", "test") if split in present]


def iter_rows(release: Release, config: Config, split: str) -> Iterator[dict[str, Any]]:
    """The rows of one split, in the order of the release, as dictionaries of the schema's columns.

    Args:
        release: Where to read.
        config: Which rows; ``-strict`` configs leave out what the name says is held out.
        split: ``train`` or ``test``; the tables ``roles`` and ``instructions`` have only ``train``.
    """
    if config.name == "roles":
        yield from _roles(release, config)
    elif config.name == "instructions":
        yield from _instructions(release, config)
    elif config.held_out is None:
        yield from _joined(release, config, split)
    else:
        yield from _strict(release, config, split)


def _strict(release: Release, config: Config, split: str) -> Iterator[dict[str, Any]]:
    """Rows of a ``-strict`` config (our choice of rule).

    Test keeps each question once a role (white space aside). Train loses every row whose question (or role) is in
    test, so test rows, and scores on them, stay comparable with the released baseline.
    """
    key = (lambda row: row["role"]) if config.held_out == "role" else (lambda row: fold(row["question"]))
    if split == "test":
        seen = _Occurrences()
        for row in _joined(release, config, split):
            if seen.count(_digest(row["role"], row["question"].strip())) == 1:
                yield row
        return
    tests = [file for file in config.files if file.split == "test" and (release.root / file.path).is_file()]
    held_out = {key(row) for file in tests for _, row in Release(release.root, release.skip_bad).rows(file.path)}
    yield from (row for row in _joined(release, config, split) if key(row) not in held_out)


def _joined(release: Release, config: Config, split: str) -> Iterator[dict[str, Any]]:
    counts: defaultdict[str, _Occurrences] = defaultdict(_Occurrences)
    for file in config.files:
        if file.split == split and (release.root / file.path).is_file():
            yield from _file_rows(release, file, counts[file.subset])


def _file_rows(release: Release, file: SourceFile, counts: _Occurrences) -> Iterator[dict[str, Any]]:
    baseline = release.baseline(file.baseline)
    descriptions = _Descriptions(release, file.language)
    targets = release.targets(file.language) if file.subset == "general" else {}
    for _, row in release.rows(file.path):
        role, question = row["role"], row["question"]
        yield {
            "id": row_id(file, role, question, counts.count(_digest(role, question))),
            "role": role,
            "language": file.language,
            "subset": file.subset,
            "question": question,
            "references": row["generated"],
            "reference_types": row["type"],
            "raw_reference": targets.get(fold(question)),
            "rolegpt": baseline.get(role, question),
            "role_description": descriptions.get(role),
        }


def row_id(file: SourceFile, role: str, question: str, occurrence: int = 1) -> str:
    """A row's id: subset, split and a hash of (role, question), so that it survives re-builds and reordering.

    Args:
        file: Where the row stands.
        role: As released.
        question: As released.
        occurrence: 1 for the first row with this (role, question) in the split, 2 for the second, …
    """
    suffix = f"-{occurrence}" if occurrence > 1 else ""
    return f"{file.subset}-{file.split}-{_digest(role, question)}{suffix}"


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


class _Occurrences:
    """Counts digests in 8 bytes each: the texts of a million rows, or Python's own set of numbers, would not fit."""

    _RECENT = 1 << 15

    def __init__(self) -> None:
        self._seen = np.empty(0, np.uint64)
        self._recent: set[int] = set()
        self._repeats: Counter[int] = Counter()

    def count(self, digest: str) -> int:
        """Take in one more; how often it has come by now."""
        number = int(digest, 16)
        place = self._seen.searchsorted(np.uint64(number))
        if number in self._recent or (place < len(self._seen) and int(self._seen[place]) == number):
            self._repeats[number] += 1
        else:
            self._recent.add(number)
            if len(self._recent) == self._RECENT:
                self._seen = np.append(self._seen, np.fromiter(self._recent, np.uint64))
                self._seen.sort()
                self._recent.clear()
        return self._repeats[number] + 1 if number in self._repeats else 1


class _Descriptions:
    """Descriptions by role; a name that differs only in punctuation, spaces or case is still found."""

    def __init__(self, release: Release, language: Language) -> None:
        self._exact = release.descriptions(language)
        self._loose = {squash(role): text for role, text in self._exact.items()}

    def get(self, role: str) -> str | None:
        return self._exact.get(role) or self._loose.get(squash(role))


def _roles(release: Release, config: Config) -> Iterator[dict[str, Any]]:
    for language in config.languages:
        scripts = release.json_object(f"profiles-{FOLDERS[language]}/scripts.json")
        for role, text in release.descriptions(language).items():
            description, catchphrases = split_catchphrases(text)
            yield {
                "role": role,
                "language": language,
                "description": description,
                "catchphrases": catchphrases,
                "script": scripts.get(role),
            }


def _instructions(release: Release, config: Config) -> Iterator[dict[str, Any]]:
    counts = _Occurrences()

    def identify(*parts: str) -> str:
        digest = _digest(*parts)
        count = counts.count(digest)
        return f"{parts[0]}-{digest}" + (f"-{count}" if count > 1 else "")

    for language in config.languages:
        shared = {"language": language, "role": None, "type": None, "confidence": None}
        for _, instruction, target in release.general_instructions(language):
            key = identify("general", language, instruction)
            yield {**shared, "id": key, "subset": "general", "instruction": instruction, "target": target}
        for path in release.find([f"instructions-{FOLDERS[language]}/role-specific-*.jsonl"]):
            role = path.stem.removeprefix("role-specific-")
            for _, value in release.objects(path):
                texts = {name: _text(value.get(name)) for name in ("instruction", "answer", "type", "metrics")}
                yield {
                    "id": identify("role_specific", language, role, texts["instruction"] or ""),
                    "language": language,
                    "subset": "role_specific",
                    "role": role,
                    "instruction": texts["instruction"],
                    "target": texts["answer"],
                    "type": texts["type"],
                    "confidence": texts["metrics"],
                }


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else str(value)
