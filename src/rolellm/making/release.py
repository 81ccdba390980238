"""Characters with their questions and replies, put together as a folder in the layout of the RoleBench release."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rolellm.characters.folder import is_outdated, open_character
from rolellm.characters.roles import find_part
from rolellm.characters.scripts.parse import detect_spoken_language
from rolellm.characters.scripts.turns import write_turns
from rolellm.core.errors import DataError, SettingsError
from rolellm.core.files import fill_folder, write_json
from rolellm.core.fingerprint import hash_file, hash_json
from rolellm.core.jsonl import read_json, read_jsonl, write_jsonl
from rolellm.core.records import Language, Profile
from rolellm.core.settings import dump
from rolellm.core.text import find_name, fold, fold_name, make_safe_name
from rolellm.core.typed_json import read_as
from rolellm.data.rolebench.release import Text
from rolellm.data.rolebench.schema import FOLDERS, KIND, MANIFEST
from rolellm.making.instruct.run import KEPT, Question, read_questions
from rolellm.making.respond import REPLIES
from rolellm.making.settings import SplitRule
from rolellm.models.prompts.render import load_system_template
from rolellm.version import __version__

_SUBSETS = ("general", "role_specific")


@dataclass(frozen=True, slots=True)
class Replies:
    """A general instruction with RoleGPT's replies to it.

    Attributes:
        question: The instruction.
        generated: The replies that serve as references; may be empty.
        rolegpt: The one held out as the RoleGPT baseline, where there is one.
        target: The instruction's role-free answer, where it has one.
    """

    question: Text
    generated: tuple[str, ...]
    rolegpt: str | None = None
    target: str | None = None


@dataclass(frozen=True, slots=True)
class RoleData:
    """All that a release needs of one role.

    Attributes:
        character: Who it is.
        questions: Role-specific questions, in the order of their file.
        general: General instructions with replies, in the order of their file.
        baselines: RoleGPT's reply to a role-specific question, by the question folded, where it was asked for.
        receipt: What the manifest says of it: the hash of each file read, by its path within the character's folder;
            the models of each run, by its folder's name; of a card, the system turn of a talk and what follows the last
            message, which training measures.
        outdated: The folders of runs that were made from an earlier profile.
    """

    character: Profile
    questions: tuple[Question, ...] = ()
    general: tuple[Replies, ...] = ()
    baselines: Mapping[str, str] = field(default_factory=dict)
    receipt: Mapping[str, Any] = field(default_factory=dict)
    outdated: Sequence[str] = ()

    @property
    def role(self) -> str:
        """The role's name."""
        return self.character.role


def gather(folder: str | Path) -> RoleData:
    """Read a character's folder, or that of a card: ``instruct*/kept.jsonl`` and ``respond*/replies.jsonl``.

    Both may be absent. A reply to one of the role's own questions is RoleGPT's baseline for it; any other is to a
    general instruction. Where a question repeats, the first one counts.

    Raises:
        DataError: For a folder that holds no character, a run whose file is missing, or a line that is not as those
            commands write it.
    """
    character, root = open_character(folder)
    if root is None:
        return RoleData(character)
    kept, replied = _find_files(root, "instruct", KEPT), _find_files(root, "respond", REPLIES)
    questions: dict[str, Question] = {}
    for question in (question for path in kept for question in read_questions(path)):
        questions.setdefault(fold(question.question), question)
    general: dict[str, Replies] = {}
    baselines: dict[str, str] = {}
    lines = ((path, number, value) for path in replied for number, value in read_jsonl(path))
    for file, number, value in lines:
        replies = read_as(Replies, value, "the line", path=file, line=number)
        key = fold(replies.question)
        if key not in questions:
            general.setdefault(key, replies)
        elif (baseline := replies.rolegpt or next(iter(replies.generated), None)) is not None:
            baselines.setdefault(key, baseline)
    runs = [path.parent for path in (*kept, *replied)]
    manifests = {run.name: read_json(run / MANIFEST) for run in runs if (run / MANIFEST).is_file()}
    receipt: dict[str, Any] = {
        "sources": {path.relative_to(root).as_posix(): hash_file(path) for path in (*kept, *replied)},
        "models": {name: (manifest.get("models") or {}).get("endpoints", []) for name, manifest in manifests.items()},
    }
    part = find_part(root)
    if part.context or part.system or part.after:
        receipt["talk"] = {"system": part.system_turn(load_system_template(character.language)), "after": part.after}
    outdated = [run.name for run in runs if is_outdated(run, character)]
    return RoleData(character, tuple(questions.values()), tuple(general.values()), baselines, receipt, outdated)


def _find_files(root: Path, prefix: str, name: str) -> list[Path]:
    """Find the file of each run of a kind."""
    runs = sorted({path.parent for file in (name, MANIFEST) for path in root.glob(f"{prefix}*/{file}")})
    for run in runs:
        if not (run / name).is_file():
            raise DataError(
                f"{name} is missing; rerun `rolellm {prefix}`, which takes finished replies from the journal", path=run
            )
    return [run / name for run in runs]


def select_held_out_questions(rule: SplitRule, questions: Iterable[str]) -> frozenset[str]:
    """Select the questions to hold out, folded; none where there is only one."""
    folded = sorted({fold(question) for question in questions})
    return frozenset(_draw_names(rule.seed, "question", folded, rule.test_share))


def select_held_out_roles(rule: SplitRule, roles: Collection[str]) -> frozenset[str]:
    """Select the roles to hold out: those named, or drawn; none where there is only one role.

    Raises:
        SettingsError: When a named role is unknown, or no role would be left to train on.
    """
    named = {find_name(name, roles) or name for name in rule.held_out}
    if named and not named < {*roles}:
        raise SettingsError(
            f"cannot hold out {', '.join(sorted(named))}; hold out some, but not all, of the English roles, which "
            f"alone can be held out: {', '.join(sorted(roles)) or 'none'}"
        )
    return frozenset(named or _draw_names(rule.seed, "role", sorted(roles), rule.role_share))


def _draw_names(seed: int, kind: str, names: list[str], share: float) -> list[str]:
    if len(names) < 2:
        return []
    # At least one on each side.
    count = min(max(math.floor(share * len(names) + 0.5), 1), len(names) - 1)
    return sorted(names, key=lambda name: hash_json([seed, kind, name]))[:count]


#: The config that loads a language's rows, split by instruction.
INSTRUCTION_CONFIGS: Mapping[Language, str] = {
    "en": "instruction-generalization-eng",
    "zh": "instruction-generalization-zh",
}


@dataclass(slots=True)
class ReleaseSummary:
    """Summary of a written release.

    Attributes:
        out: The folder.
        configs: Those that load from it.
        rows: Rows by file, relative to the folder.
        held_out: The roles of the role-generalization test split.
        notes: Notes for the user: what is missing, and why.
    """

    out: Path
    configs: list[str] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    held_out: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return one JSON object."""
        return {**asdict(self), "out": str(self.out)}


def write_release(
    roles: Sequence[RoleData], out: str | Path, rule: SplitRule | None = None, *, overwrite: bool = False
) -> ReleaseSummary:
    """Write a release, complete or not at all.

    Args:
        roles: As `rolellm.making.release.gather` reads them; their names must differ.
        out: The folder to write.
        rule: How splits are made.
        overwrite: Replace an earlier release of this kind in the folder.

    Raises:
        SettingsError: For two roles of one name, a role to hold out that is not there, a folder with other files, or
            the folder that one is in.
        DataError: When there is nothing to write.
    """
    target, rule = Path(out), rule or SplitRule()
    _check_names(roles)
    _claim(target, overwrite)
    with fill_folder(target) as root:
        draft = _Draft(root, rule, ReleaseSummary(target))
        for language in FOLDERS:
            if mine := [role for role in roles if role.character.language == language]:
                draft.add(mine, language)
        english = [role for role in roles if role.character.language == "en"]
        draft.add_role_generalization(english)
        if not any(name.startswith("rolebench-") for name in draft.made.rows):
            raise DataError("there is nothing to write: no role has questions or replies; run `rolellm instruct` first")
        _write_manifest(draft, roles)
        if target.exists():
            shutil.rmtree(target)
    return draft.made


def _check_names(roles: Sequence[RoleData]) -> None:
    owners: dict[tuple[str, str], RoleData] = {}
    for role in roles:
        # The reader looks names up by their letters and digits; files carry what of them a file can be called.
        if not fold_name(role.role):
            raise SettingsError(
                f"the role {role.role!r} has no letter or digit, which readers of a release need; rename it"
            )
        for key in (fold_name(role.role), make_safe_name(role.role).casefold()):
            other = owners.setdefault((role.character.language, key), role)
            if other is not role:
                raise SettingsError(
                    f"two roles are called {other.role!r} and {role.role!r}, which a release cannot tell apart; give "
                    "each folder once, or rename one"
                )


def _claim(target: Path, overwrite: bool) -> None:
    if Path.cwd().is_relative_to(target.resolve()):
        raise SettingsError(f"{target} is the current folder or holds it; name a folder in it, such as release")
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    manifest = read_json(target / MANIFEST) if (target / MANIFEST).is_file() else {}
    if manifest.get("kind") != KIND:
        raise SettingsError(f"{target} holds other files, or is a file; name another folder")
    if not overwrite:
        raise SettingsError(f"{target} holds a release already; use --overwrite, or name another folder")
    for path in sorted(target.rglob("*")):
        # It would be lost with the release.
        if path.is_file() and path.relative_to(target).as_posix() not in {MANIFEST, *manifest["sha256"]}:
            raise SettingsError(f"{path} is not part of the release in {target}; move it away, or name another folder")


class _Draft:
    """A release on its way to disk."""

    def __init__(self, root: Path, rule: SplitRule, summary: ReleaseSummary) -> None:
        self.root, self.rule, self.made = root, rule, summary

    def add(self, roles: Sequence[RoleData], language: Language) -> None:
        """Write all that there is of one language, split by question."""
        self._write_profiles(roles, language)
        self._write_instructions(roles, language)
        folder = "rolebench-zh" if language == "zh" else "rolebench-eng/instruction-generalization"
        everywhere = frozenset(fold(item.question) for role in roles for item in role.general)
        own = (item.question for role in roles for item in role.questions if fold(item.question) not in everywhere)
        # A role's question that is a general instruction as well must not be on both sides.
        held_out = select_held_out_questions(self.rule, everywhere) | select_held_out_questions(self.rule, own)
        self._write_split(roles, folder, lambda row: fold(row["question"]) in held_out)
        self.made.configs.append(INSTRUCTION_CONFIGS[language])

    def add_role_generalization(self, roles: Sequence[RoleData]) -> None:
        """Write the English rows once more, split by role, where there are two roles."""
        # A role without rows, where none was named, would be held out for nothing.
        with_rows = [role for role in roles if role.questions or role.general or self.rule.held_out]
        held_out = select_held_out_roles(self.rule, [role.role for role in with_rows])
        if held_out:
            self._write_split(with_rows, "rolebench-eng/role-generalization", lambda row: row["role"] in held_out)
            self.made.held_out = sorted(held_out)
            self.made.configs.append("role-generalization-eng")
        elif roles:
            self.made.notes.append(
                "role generalization needs at least two English roles with questions or replies; none was written"
            )

    def _write_profiles(self, roles: Sequence[RoleData], language: Language) -> None:
        folder = f"profiles-{FOLDERS[language]}"
        described, scripts = dict[str, str](), dict[str, str]()
        for role in roles:
            character = role.character
            self.made.notes += [
                f"{run} of {role.role} was made from an earlier profile, so its rows may not fit the description; "
                "rerun it"
                for run in role.outdated
            ]
            if character.full_description:
                described[role.role] = character.full_description
            else:
                self.made.notes.append(f"no description of {role.role}; `rolellm role build` makes one")
            if character.script:
                scripts[role.role] = character.script
            spoken = detect_spoken_language(" ".join(turn.content for turn in filter(character.owns, character.turns)))
            if spoken not in ("en", "zh", None):
                self.made.notes.append(
                    f"{role.role} seems to speak {spoken!r}; releases are in English or Chinese, and this role is "
                    f"among the {FOLDERS[language]} ones"
                )
            if character.turns:
                name = f"{folder}/{folder}-{make_safe_name(role.role)}.jsonl"
                self.made.rows[name] = write_turns(
                    self.root / name, character.turns, role.role, layout="release", language=language
                )
        write_json(self.root / folder / "desc.json", described)
        if scripts:
            write_json(self.root / folder / "scripts.json", scripts)

    def _write_instructions(self, roles: Sequence[RoleData], language: Language) -> None:
        folder = f"instructions-{FOLDERS[language]}"
        targets: dict[str, dict[str, str]] = {}
        for item in (item for role in roles for item in role.general if item.target is not None):
            targets.setdefault(fold(item.question), {"instruction": item.question, "target": str(item.target)})
        if targets:
            self._write(f"{folder}/instructions-general.jsonl", targets.values())
        for role in roles:
            rows = [
                {"id": index, "instruction": item.question, "metrics": item.confidence}
                | {"answer": item.answer, "type": item.type}
                for index, item in enumerate(role.questions)
            ]
            if rows:
                self._write(f"{folder}/role-specific-{make_safe_name(role.role)}.jsonl", rows)

    def _write_split(
        self, roles: Sequence[RoleData], folder: str, in_test: Callable[[Mapping[str, Any]], bool]
    ) -> None:
        """Write train, test and baseline of both subsets."""
        files: dict[str, list[dict[str, Any]]] = {
            f"{subset}/{name}": [] for name in ("train", "test", "rolegpt_baseline") for subset in _SUBSETS
        }
        for row, subset, baseline in (entry for role in roles for entry in _iterate_rows(role)):
            test = in_test(row)
            files[f"{subset}/{'test' if test else 'train'}"].append(row)
            if test and baseline is not None:
                baseline_row = {"role": row["role"], "question": row["question"], "generated": [baseline]}
                files[f"{subset}/rolegpt_baseline"].append(baseline_row)
        for file, rows in files.items():
            subset, name = file.split("/")
            if rows:
                self._write(f"{folder}/{file}.jsonl", rows)
            elif name != "rolegpt_baseline":
                self.made.notes.append(f"{folder}/{subset} has no {name} rows")

    def _write(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        self.made.rows[name] = write_jsonl(self.root / name, rows)


def _iterate_rows(role: RoleData) -> Iterable[tuple[dict[str, Any], str, str | None]]:
    """Iterate over the role's rows with the subset of each, and RoleGPT's reply where there is one."""
    for item in role.general:
        if item.generated:
            row = {"role": role.role, "question": item.question, "generated": list(item.generated)}
            yield row, "general", item.rolegpt
    for pair in role.questions:
        row = {"role": role.role, "question": pair.question, "generated": [pair.answer], "type": [pair.type]}
        yield row, "role_specific", role.baselines.get(fold(pair.question))


def _write_manifest(draft: _Draft, roles: Sequence[RoleData]) -> None:
    files = sorted(path for path in draft.root.rglob("*") if path.is_file())
    write_json(
        draft.root / MANIFEST,
        {
            "kind": KIND,
            "version": __version__,
            "rule": dump(draft.rule),
            "held_out_roles": draft.made.held_out,
            "configs": draft.made.configs,
            "rows": draft.made.rows,
            "sha256": {path.relative_to(draft.root).as_posix(): hash_file(path) for path in files},
            "roles": [
                {
                    "role": role.role,
                    "language": role.character.language,
                    "questions": len(role.questions),
                    "general": len(role.general),
                    "made": role.character.made,
                    "sources": {},
                    "models": {},
                    **role.receipt,
                }
                for role in roles
            ],
            "notes": draft.made.notes,
        },
    )
