"""Reads the release's own files, whatever part of them is there, and says where one is not as published."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rolellm.errors import DataError, ReleaseFormatError
from rolellm.jsonl import read_jsonl
from rolellm.records import Language
from rolellm.rolebench.schema import FOLDERS
from rolellm.text import fold, half_in

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


_SKIP_HINT = "Mend it, or set such rows aside with skip_bad=True (--skip-bad)"


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
