"""From the release's files to the rows of a config, columns joined and ids given."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from rolellm.records import Language
from rolellm.rolebench.release import Release, split_catchphrases
from rolellm.rolebench.schema import FOLDERS, Config, SourceFile
from rolellm.text import fold, squash


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

    Test keeps each question once a role (white space aside). Train loses every row whose question (or role) stands in
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
