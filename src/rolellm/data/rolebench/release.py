"""Reads the release's own files, whatever part of them is there, and says where one is not as published.

The roles' structured dialogue is in ``profiles-eng/profiles-eng-{role}.jsonl`` and its Chinese twin; some roles have no
such file. A row is ``{"role", "content", "act_id", "diag_id"}``. ``role`` names the speaker; narration goes by a name
such as scene or narrator. A scene is a run of rows with one ``act_id``, in which ``diag_id`` counts the turns: so it is
in the embedded sample, and so we read the release, which does not say.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, Strict, StringConstraints

from rolellm.core.errors import DataError, ReleaseNotFoundError
from rolellm.core.jsonl import read_json, read_jsonl
from rolellm.core.records import Language, Profile, Subset, Turn, TurnKind
from rolellm.core.text import find_name, find_surrogate, fold, fold_name, join_names, make_safe_name
from rolellm.core.typed_json import read_as
from rolellm.data.rolebench.schema import FOLDERS, SAMPLE, Config, SourceFile, get_config
from rolellm.data.rolebench.source import MissingFilesWarning, Source, locate
from rolellm.data.rolebench.twins import get_world_names, make_twin

#: A text that is not blank.
Text = Annotated[str, StringConstraints(pattern=r"\S")]
_QUOTED = re.compile(r"[\"“]([^\"”]+)[\"”]")
_CATCHPHRASES = re.compile(r"[Yy]our catchphrases? (?:is|are)\b.*$|你的口头禅.*$", re.DOTALL)


@dataclass(slots=True)
class _Published:
    """A row as published."""

    role: Text
    question: Text
    generated: Annotated[list[str], Field(min_length=1)]
    type: list[str] | str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.type, list) and len(self.type) != len(self.generated):
            raise ValueError(f"expected one `type` a reply ({len(self.generated)}), found {len(self.type)}")


@dataclass(slots=True)
class Release:
    """A local copy of the release, or part of one.

    Attributes:
        root: Its folder.
        skipped: Collects the problems of bad rows, which know their file and line; ``None`` stops at the first.
        left_out: Rows by role that a ``-anonymous`` config left out, for the role has no reviewed names.
    """

    root: Path
    skipped: list[DataError] | None = None
    left_out: Counter[str] = field(default_factory=Counter)

    def find(self, pattern: str) -> list[Path]:
        """The files that match a glob pattern, sorted; parts of the layout that are absent give none."""
        return sorted(path for path in self.root.glob(pattern) if path.is_file())

    def read_objects(self, path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
        """The objects of one JSON Lines file, with their line numbers.

        Args:
            path: Relative to the root, as the layout has it; or a file that `find` found.

        Raises:
            DataError: When the file is empty or a line is broken (unless these are collected).
        """
        file = path if isinstance(path, Path) else self.root / path
        is_empty = True
        try:
            for number, value in read_jsonl(file, bad=self.skipped):
                is_empty = False
                half = find_surrogate(json.dumps(value, ensure_ascii=False))
                if half is None:
                    yield number, value
                else:
                    self._refuse(half, file, number)
        except DataError as error:
            raise DataError(f"{error.problem}. {_ADVICE}", path=error.path, line=error.line) from error
        if is_empty:
            self._refuse("the file is empty; expected one JSON object a line", file, None)

    def read_rows(self, path: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """The rows of one data or baseline file, checked and with ``type`` made one entry a reply.

        Yields:
            The line number, and ``{"role", "question", "generated": list[str], "type": list[str]}``.

        Raises:
            DataError: At the first row that is not as published (unless these are collected).
        """
        for number, value in self.read_objects(path):
            row = self.read_row(path, number, value)
            if row is not None:
                yield number, row

    def read_row(self, path: str, line: int, value: dict[str, Any]) -> dict[str, Any] | None:
        """One of the objects of a data or baseline file as `rows` yields it; nothing of a bad one.

        Raises:
            DataError: When it is not as published (unless these are collected).
        """
        try:
            kinds = read_as(_Published, value, "the row").type or []
        except DataError as error:
            self._refuse(error.problem, self.root / path, line)
            return None
        if isinstance(kinds, str):
            kinds = [kinds] * len(value["generated"])
        return {**value, "type": kinds}

    def _refuse(self, problem: str, path: Path, line: int | None) -> None:
        if self.skipped is None:
            raise DataError(f"{problem}. {_ADVICE}", path=path, line=line)
        self.skipped.append(DataError(problem, path=path, line=line))

    def read_json_object(self, path: str) -> dict[str, str]:
        """A JSON file that maps names to texts (descriptions, script names); empty when it is not there.

        Raises:
            DataError: When it is there and is not such an object.
        """
        file = self.root / path
        if not file.is_file():
            return {}
        try:
            value = read_as(dict[str, str], read_json(file), "texts by role name")
            half = find_surrogate(*value, *value.values())
            if half is not None:
                raise DataError(half)
        except DataError as error:
            raise DataError(error.problem, path=file) from error
        return value

    def read_descriptions(self, language: Language) -> dict[str, str]:
        """Second-person description by role, catchphrases included."""
        return self.read_json_object(f"profiles-{FOLDERS[language]}/desc.json")

    def read_general_instructions(self, language: Language) -> Iterator[tuple[int, str, str]]:
        """The general instructions with their role-free targets: line number, instruction, target."""
        for path in self.find(f"instructions-{FOLDERS[language]}/instructions-general*.jsonl"):
            for number, value in self.read_objects(path):
                instruction = value.get("instruction")
                target = value.get("target")
                if isinstance(instruction, str) and isinstance(target, str):
                    yield number, instruction, target
                else:
                    self._refuse("expected the texts `instruction` and `target`", path, number)

    def read_targets(self, language: Language) -> dict[str, str]:
        """Role-free target by folded instruction text; the first one counts where an instruction repeats."""
        by_instruction: dict[str, str] = {}
        for _, instruction, target in self.read_general_instructions(language):
            by_instruction.setdefault(fold(instruction), target)
        return by_instruction

    def load_baseline(self, path: str) -> Callable[[str, str], str | None]:
        """Finds the released RoleGPT reply of one file by (role, question): exact, else without white space around it.

        The first one counts where a question repeats; of a file that is not there, none is found.
        """
        exact: dict[tuple[str, str], str] = {}
        trimmed: dict[tuple[str, str], str] = {}
        if (self.root / path).is_file():
            for _, row in self.read_rows(path):
                role = row["role"]
                question = row["question"]
                reply = row["generated"][0]
                exact.setdefault((role, question), reply)
                trimmed.setdefault((role, question.strip()), reply)

        def find_reply(role: str, question: str) -> str | None:
            return exact.get((role, question), trimmed.get((role, question.strip())))

        return find_reply


_ADVICE = "Fix it; `rolellm data audit` lists all such rows"


def split_catchphrases(description: str) -> tuple[str, list[str]]:
    """Part a released description into the description proper and its catchphrases.

    >>> split_catchphrases('A fox. Your catchphrases are: "Aha!" / "Not yet."')
    ('A fox.', ['Aha!', 'Not yet.'])
    """
    match = _CATCHPHRASES.search(description)
    if match is None:
        return description.strip(), []
    catchphrases = _QUOTED.findall(match.group())
    return description[: match.start()].strip(), [item.strip() for item in catchphrases]


def list_splits(release: Release, config: Config) -> list[str]:
    """The splits for which at least one data file is there, in order."""
    if not config.files:
        return ["train"]
    splits = set()
    for file in config.files:
        if (release.root / file.path).is_file():
            splits.add(file.split)
    return sorted(splits, reverse=True)


def iter_rows(release: Release, config: Config, split: str) -> Iterator[dict[str, Any]]:
    """The rows of one split, in the order of the release, as dictionaries of the schema's columns.

    Args:
        release: Where to read.
        config: Which rows; ``-strict`` configs leave out what the name says is held out, ``-anonymous`` ones
            replace names.
        split: ``train`` or ``test``; the tables ``roles`` and ``instructions`` have only ``train``.
    """
    if config.name == "roles":
        yield from _read_roles(release, config)
    elif config.name == "instructions":
        yield from _read_instructions(release, config)
    elif config.anonymous:
        yield from _read_twins(release, config, split)
    elif config.held_out is None:
        yield from _read_joined(release, config, split)
    else:
        yield from _read_strict(release, config, split)


def _read_strict(release: Release, config: Config, split: str) -> Iterator[dict[str, Any]]:
    """Rows of a ``-strict`` config.

    Test keeps each question once a role (white space aside). Train loses every row whose question (or role) is in
    test, so test rows, and scores on them, stay comparable with the released baseline.
    """
    if split == "test":
        keys: set[str] = set()
        for row in _read_joined(release, config, split):
            key = _hash_parts(row["role"], row["question"].strip())
            if key not in keys:
                yield row
            keys.add(key)
        return

    def read_key(row: Mapping[str, Any]) -> str:
        return row["role"] if config.held_out == "role" else fold(row["question"])

    held_out: set[str] = set()
    for file in config.files:
        if file.split == "test" and (release.root / file.path).is_file():
            held_out.update(read_key(row) for _, row in release.read_rows(file.path))
    for row in _read_joined(release, config, split):
        if read_key(row) not in held_out:
            yield row


def _read_twins(release: Release, config: Config, split: str) -> Iterator[dict[str, Any]]:
    for row in _read_joined(release, config, split):
        twin = make_twin(row)
        if twin is not None:
            yield twin
        elif get_world_names(row["role"], row["language"]) is None:
            release.left_out[row["role"]] += 1


def _read_joined(release: Release, config: Config, split: str) -> Iterator[dict[str, Any]]:
    counts: Counter[str] = Counter()
    for file in config.files:
        if file.split == split and (release.root / file.path).is_file():
            yield from _read_file_rows(release, file, counts)


def _read_file_rows(release: Release, file: SourceFile, counts: Counter[str]) -> Iterator[dict[str, Any]]:
    find_baseline = release.load_baseline(file.baseline)
    descriptions = release.read_descriptions(file.language)
    targets = {}
    if file.subset == "general":
        targets = release.read_targets(file.language)

    @functools.cache
    def find_description(role: str) -> str | None:
        return descriptions.get(find_name(role, descriptions) or "")

    for _, row in release.read_rows(file.path):
        role = row["role"]
        question = row["question"]
        # Survives re-builds and reordering.
        key = f"{file.subset}-{file.split}-{_hash_parts(role, question)}"
        yield {
            "id": _number_key(counts, key),
            "role": role,
            "language": file.language,
            "subset": file.subset,
            "question": question,
            "references": row["generated"],
            "reference_types": row["type"],
            "raw_reference": targets.get(fold(question)),
            "rolegpt": find_baseline(role, question),
            "role_description": find_description(role),
        }


def _hash_parts(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _number_key(counts: Counter[str], key: str) -> str:
    """The key, with a number at its end from the second time on."""
    counts[key] += 1
    if counts[key] == 1:
        return key
    return f"{key}-{counts[key]}"


def _read_roles(release: Release, config: Config) -> Iterator[dict[str, Any]]:
    for language in config.languages:
        scripts = release.read_json_object(f"profiles-{FOLDERS[language]}/scripts.json")
        for role, text in release.read_descriptions(language).items():
            description, catchphrases = split_catchphrases(text)
            yield {
                "role": role,
                "language": language,
                "description": description,
                "catchphrases": catchphrases,
                "script": scripts.get(role),
            }


def _read_instructions(release: Release, config: Config) -> Iterator[dict[str, Any]]:
    counts: Counter[str] = Counter()
    for language in config.languages:
        for subset, role, value in _iterate_instructions(release, language):
            texts = {name: _format_text(value.get(name)) for name in ("instruction", "answer", "type", "metrics")}
            parts: list[str] = [subset, language]
            if role is not None:
                parts.append(role)
            parts.append(texts["instruction"] or "")
            key = f"{subset}-{_hash_parts(*parts)}"
            yield {
                "id": _number_key(counts, key),
                "language": language,
                "subset": subset,
                "role": role,
                "instruction": texts["instruction"],
                "target": texts["answer"],
                "type": texts["type"],
                "confidence": texts["metrics"],
            }


def _iterate_instructions(
    release: Release, language: Language
) -> Iterator[tuple[Subset, str | None, Mapping[str, Any]]]:
    for _, instruction, target in release.read_general_instructions(language):
        yield "general", None, {"instruction": instruction, "answer": target}
    for path in release.find(f"instructions-{FOLDERS[language]}/role-specific-*.jsonl"):
        for _, value in release.read_objects(path):
            yield "role_specific", path.stem.removeprefix("role-specific-"), value


def _format_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return str(value)


# The release's own "scene" and "narrator"; the others are our guess at what else a script may call them.
_NARRATION = frozenset({"scene", "narrator", "narration", "background", "旁白", "场景", "背景", "叙述"})
_DIRECTION = frozenset({"stage direction", "stage directions", "direction", "舞台提示", "舞台指示"})
_NAMED = 10


@dataclass(slots=True)
class _Line:
    role: Text
    content: str
    act_id: Annotated[int, Strict()] | str


def load_profiles(
    config: str | None = None, data_dir: str | Path | None = None, *, roles: Iterable[str] | None = None
) -> list[Profile]:
    """Load the roles that have script dialogue from where `rolellm.data.rolebench.source.locate` finds the release.

    A role is found by its name or, failing that, by the name's letters and digits. Roles that no file is for, or that
    say nothing in theirs, are left out with a warning that names them.

    Args:
        config: A configuration of the data set; its languages count.
        data_dir: A local copy of the release; else ``$ROLEBENCH_DIR``, else the Hub. The config ``sample`` needs none.
        roles: Only these; by default all that have a description.

    Returns:
        One profile a role, by language, then in the order of ``roles`` (by default the release's).

    Raises:
        SettingsError: For an unknown config.
        ReleaseNotFoundError: When there is no release, or it has dialogue of none of the roles.
        DataError: At a row that is not as published; names file and line.
    """
    files = _get_profile_files(config)
    source = locate(files, data_dir)
    named_roles = None
    if roles is not None:
        named_roles = list(dict.fromkeys(roles))
    profiles: list[Profile] = []
    missing: dict[str, None] = {}
    for language in files.languages:
        descriptions = Release(source.root).read_descriptions(language)
        paths = _find_dialogue_files(source, language)
        for role in descriptions if named_roles is None else named_roles:
            path = paths.get(find_name(role, paths) or make_safe_name(role))
            turns = () if path is None else _read_turns(path, role)
            description = descriptions.get(find_name(role, descriptions) or "")
            profile = Profile(role, language, turns, description)
            if any(map(profile.owns, turns)):
                profiles.append(profile)
            else:
                missing[role] = None
    without = [role for role in missing if all(profile.role != role for profile in profiles)]
    if not profiles:
        raise ReleaseNotFoundError(_describe_missing(files, without), path=source.root)
    if without:
        skipped = f"{len(without)} roles, which are skipped: {join_names(without, _NAMED)}"
        text = f"rolebench {files.name!r}: no script dialogue in {source.root} of {skipped}"
        warnings.warn(text, MissingFilesWarning, stacklevel=2)
    return profiles


def hash_profiles(config: str | None = None, data_dir: str | Path | None = None) -> str:
    """The content hash of a config's descriptions and dialogue: the same files give the same value on any machine.

    Raises:
        ReleaseNotFoundError: When there is no release with any of them.
    """
    files = _get_profile_files(config)
    return locate(files, data_dir).fingerprint(files)


def _get_profile_files(config: str | None) -> Config:
    """The profiles that belong to a config, found, fetched and hashed as its rows are."""
    return replace(get_config(config), files=(), held_out=None, is_dialogue=True)


def _find_dialogue_files(source: Source, language: Language) -> dict[str, Path]:
    prefix = f"profiles-{FOLDERS[language]}"
    paths = Release(source.root).find(f"{prefix}/{prefix}-*.jsonl")
    return {path.stem.removeprefix(f"{prefix}-"): path for path in paths}


def read_dialogue(path: str | Path, role: str | None) -> Iterator[Turn]:
    """The turns of one file of structured dialogue, in order; a blank row says nothing, but its scene counts.

    Args:
        path: A file of the release's layout.
        role: Whose speeches carry its name to the letter; without one, every name stays as it is.

    Raises:
        DataError: At a row that is not as published; names file and line.
    """
    scene = -1
    act = object()
    for number, value in read_jsonl(path):
        line = read_as(_Line, value, "the turn", path=path, line=number)
        half = find_surrogate(line.role, line.content)
        if half is not None:
            raise DataError(half, path=path, line=number)
        if line.act_id != act:
            scene += 1
            act = line.act_id
        speaker = line.role.strip()
        content = line.content.strip()
        # The role comes first: a narrator may be a role, too.
        if content and role is not None and is_role(speaker, role):
            yield Turn(role, content, "speech", scene)
        elif content:
            yield Turn(speaker, content, get_turn_kind(speaker) or "speech", scene)


def _read_turns(path: Path, role: str) -> tuple[Turn, ...]:
    try:
        return tuple(read_dialogue(path, role))
    except DataError as error:
        raise DataError(
            f"{error.problem}. Fix the line, or leave the role out", path=error.path, line=error.line
        ) from error


def is_role(speaker: str, role: str) -> bool:
    """Tell whether a speaker is a role: the same name, or the same letters and digits."""
    folded = fold_name(speaker)
    return speaker == role or (folded != "" and folded == fold_name(role))


def get_turn_kind(speaker: str) -> TurnKind | None:
    """The kind of turn that goes by a name such as ``narrator`` or ``stage direction``; nothing for a name that speaks.

    >>> get_turn_kind("Narrator")
    'narration'
    """
    name = fold(speaker)
    if name in _DIRECTION:
        return "direction"
    return "narration" if name in _NARRATION else None


def _describe_missing(files: Config, without: list[str]) -> str:
    expected = [pattern for pattern in files.patterns() if pattern.endswith(".jsonl")]
    return (
        f"no script dialogue of {join_names(without, _NAMED) or 'any role'}; expected at least one of "
        f"{', '.join(expected)}, in which the role of that name speaks. The release on the Hub has them; a partial "
        f"copy may not; the config {SAMPLE!r} brings its own"
    )
