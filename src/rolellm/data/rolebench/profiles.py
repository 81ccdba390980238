"""Reads the roles' structured dialogue: ``profiles-eng/profiles-eng-{role}.jsonl`` and its Chinese twin.

A row is ``{"role", "content", "act_id", "diag_id"}``. ``role`` names the speaker; narration goes by a name such as
scene or narrator. A scene is a run of rows with one ``act_id``, in which ``diag_id`` counts the turns: so it is in the
embedded sample, and so we read the release, which does not say. Some roles have no such file.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Strict

from rolellm.core.errors import DataError, ReleaseFormatError, ReleaseNotFoundError
from rolellm.core.jsonl import read_jsonl
from rolellm.core.records import Language, Profile, Turn, TurnKind
from rolellm.core.text import find_name, find_surrogate, fold, fold_name, join_names, make_safe_name
from rolellm.core.typed_json import read_as
from rolellm.data.rolebench.release import Release, Text
from rolellm.data.rolebench.schema import FOLDERS, SAMPLE, Config, get_config
from rolellm.data.rolebench.source import Source, locate

# The release's own "scene" and "narrator"; the others are our guess at what else a script may call them.
_NARRATION = frozenset({"scene", "narrator", "narration", "background", "旁白", "场景", "背景", "叙述"})
_DIRECTION = frozenset({"stage direction", "stage directions", "direction", "舞台提示", "舞台指示"})
_NAMED = 10


@dataclass(slots=True)
class _Line:
    role: Text
    content: str
    act_id: Annotated[int, Strict()] | str


@dataclass(frozen=True, slots=True)
class _ProfileFiles(Config):
    """The profiles that belong to a config, found, fetched and hashed as its rows are."""

    def list_side_files(self) -> list[str]:
        """Glob patterns of the descriptions and the dialogue files."""
        folders = [FOLDERS[language] for language in self.languages]
        return [f"profiles-{name}/{file}" for name in folders for file in ("desc.json", f"profiles-{name}-*.jsonl")]


def load_profiles(
    config: str | None = None, data_dir: str | Path | None = None, *, roles: Iterable[str] | None = None
) -> list[Profile]:
    """Load the roles that have script dialogue from where `rolellm.data.rolebench.source.locate` finds the release.

    A role is found by its name or, failing that, by the name's letters and digits. Roles that no file is for, or that
    say nothing in theirs, are left out with a warning that names them.

    Args:
        config: A configuration of the data set; its languages count.
        data_dir: A local copy of the release; else ``$ROLEBENCH_DIR``, else the Hub. The config ``sample`` needs none.
        roles: Only these; by default all that have a description or a file.

    Returns:
        One profile a role, by language, then in the order of ``roles`` (by default the release's).

    Raises:
        SettingsError: For an unknown config.
        ReleaseNotFoundError: When there is no release, or it has dialogue of none of the roles.
        ReleaseFormatError: At a row that is not as published; names file and line.
    """
    files = _get_profile_files(config)
    source = locate(files, data_dir)
    named_roles = None if roles is None else list(dict.fromkeys(roles))
    profiles: list[Profile] = []
    missing: dict[str, None] = {}
    for language in files.languages:
        descriptions = Release(source.root).read_descriptions(language)
        paths = _find_dialogue_files(source, language)
        filed = [*descriptions, *map(make_safe_name, descriptions)]
        all_roles = [*descriptions, *(role for role in paths if find_name(role, filed) is None)]
        for role in all_roles if named_roles is None else named_roles:
            path = paths.get(find_name(role, paths) or make_safe_name(role))
            turns = () if path is None else _read_turns(path, role)
            profile = Profile(role, language, turns, descriptions.get(find_name(role, descriptions) or ""))
            if any(map(profile.owns, turns)):
                profiles.append(profile)
            else:
                missing[role] = None
    without = [role for role in missing if all(profile.role != role for profile in profiles)]
    if not profiles:
        raise ReleaseNotFoundError(_describe_missing(files, without), path=source.root)
    if without:
        from rolellm.data.rolebench.build import MissingFilesWarning

        text = f"no script dialogue in {source.root} of {len(without)} roles, which are skipped"
        warnings.warn(
            f"rolebench {files.name!r}: {text}: {join_names(without, _NAMED)}", MissingFilesWarning, stacklevel=2
        )
    return profiles


def hash_profiles(config: str | None = None, data_dir: str | Path | None = None) -> str:
    """The content hash of a config's descriptions and dialogue: the same files give the same value on any machine.

    Raises:
        ReleaseNotFoundError: When there is no release with any of them.
    """
    files = _get_profile_files(config)
    return locate(files, data_dir).fingerprint(files)


def _get_profile_files(config: str | None) -> _ProfileFiles:
    chosen = get_config(config)
    return _ProfileFiles(chosen.name, (), chosen.languages)


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
    scene, act = -1, object()
    for number, value in read_jsonl(path):
        line = read_as(_Line, value, "the turn", path=path, line=number)
        if half := find_surrogate(line.role, line.content):
            raise DataError(half, path=path, line=number)
        if line.act_id != act:
            scene, act = scene + 1, line.act_id
        speaker, content = line.role.strip(), line.content.strip()
        # The role comes first: a narrator may be a role, too.
        if content and role is not None and is_role(speaker, role):
            yield Turn(role, content, "speech", scene)
        elif content:
            yield Turn(speaker, content, get_turn_kind(speaker) or "speech", scene)


def _read_turns(path: Path, role: str) -> tuple[Turn, ...]:
    try:
        return tuple(read_dialogue(path, role))
    except DataError as error:
        raise ReleaseFormatError(
            f"{error.problem}. Fix the line, or leave the role out", path=error.path, line=error.line
        ) from error


def is_role(speaker: str, role: str) -> bool:
    """Tell whether a speaker is a role: the same name, or the same letters and digits."""
    return speaker == role or (fold_name(speaker) != "" and fold_name(speaker) == fold_name(role))


def get_turn_kind(speaker: str) -> TurnKind | None:
    """The kind of turn that goes by a name such as ``narrator`` or ``stage direction``; nothing for a name that speaks.

    >>> get_turn_kind("Narrator")
    'narration'
    """
    name = fold(speaker)
    if name in _DIRECTION:
        return "direction"
    return "narration" if name in _NARRATION else None


def _describe_missing(files: _ProfileFiles, without: list[str]) -> str:
    expected = [pattern for pattern in files.patterns() if pattern.endswith(".jsonl")]
    return (
        f"no script dialogue of {join_names(without, _NAMED) or 'any role'}; expected at least one of "
        f"{', '.join(expected)}, in which the role of that name speaks. The release on the Hub has them; a partial "
        f"copy may not; the config {SAMPLE!r} brings its own"
    )
