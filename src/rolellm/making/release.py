"""Characters with their questions and replies, put together as a folder in the layout of the RoleBench release."""

from __future__ import annotations

import math
import shlex
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rolellm.characters.folder import is_outdated, open_character
from rolellm.characters.roles import find_part
from rolellm.characters.scripts.turns import write_turns
from rolellm.core.errors import DataError, SettingsError
from rolellm.core.files import fill_folder, write_json
from rolellm.core.fingerprint import hash_file, hash_json
from rolellm.core.jsonl import read_json, read_jsonl, write_jsonl
from rolellm.core.records import Language, Profile
from rolellm.core.result import Result
from rolellm.core.settings import dump
from rolellm.core.table import Table
from rolellm.core.text import find_name, fold, fold_name, make_safe_name
from rolellm.core.typed_json import read_as
from rolellm.data.rolebench.release import Text
from rolellm.data.rolebench.schema import FOLDERS, KIND, MANIFEST
from rolellm.making.instruct.run import KEPT, Question, read_questions
from rolellm.making.respond import REPLIES
from rolellm.making.settings import SplitRule
from rolellm.models.prompts.render import load_system_template
from rolellm.version import __version__

#: The share of roles that is held out where none is named.
_ROLE_SHARE = 0.1
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
    kept_files = _find_files(root, "instruct", KEPT)
    reply_files = _find_files(root, "respond", REPLIES)
    questions: dict[str, Question] = {}
    for path in kept_files:
        for question in read_questions(path):
            questions.setdefault(fold(question.question), question)
    general: dict[str, Replies] = {}
    baselines: dict[str, str] = {}
    for path in reply_files:
        for number, value in read_jsonl(path):
            replies = read_as(Replies, value, "the line", path=path, line=number)
            key = fold(replies.question)
            baseline = replies.rolegpt or next(iter(replies.generated), None)
            if key not in questions:
                general.setdefault(key, replies)
            elif baseline is not None:
                baselines.setdefault(key, baseline)
    files = [*kept_files, *reply_files]
    models = {}
    for run in (path.parent for path in files):
        if (run / MANIFEST).is_file():
            models_of_run = read_json(run / MANIFEST).get("models") or {}
            models[run.name] = models_of_run.get("endpoints", [])
    sources = {path.relative_to(root).as_posix(): hash_file(path) for path in files}
    receipt: dict[str, Any] = {"sources": sources, "models": models}
    part = find_part(root)
    if part.context or part.system or part.after:
        receipt["talk"] = {"system": part.system_turn(load_system_template(character.language)), "after": part.after}
    outdated = [path.parent.name for path in files if is_outdated(path.parent, character)]
    return RoleData(character, tuple(questions.values()), tuple(general.values()), baselines, receipt, outdated)


def _find_files(root: Path, prefix: str, name: str) -> list[Path]:
    """Find the file of each run of a kind."""
    files = [*root.glob(f"{prefix}*/{name}")]
    files += root.glob(f"{prefix}*/{MANIFEST}")
    runs = sorted({path.parent for path in files})
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
        names = ", ".join(sorted(named))
        candidates = ", ".join(sorted(roles)) or "none"
        raise SettingsError(
            f"cannot hold out {names}; hold out some, but not all, of the English roles, which alone can be held out: "
            f"{candidates}"
        )
    return frozenset(named or _draw_names(rule.seed, "role", sorted(roles), _ROLE_SHARE))


def _draw_names(seed: int, kind: str, names: list[str], share: float) -> list[str]:
    if len(names) < 2:
        return []
    rounded = math.floor(share * len(names) + 0.5)
    # At least one on each side.
    count = min(max(rounded, 1), len(names) - 1)
    return sorted(names, key=lambda name: hash_json([seed, kind, name]))[:count]


#: The config that loads a language's rows, split by instruction.
INSTRUCTION_CONFIGS: Mapping[Language, str] = {
    "en": "instruction-generalization-eng",
    "zh": "instruction-generalization-zh",
}


@dataclass(frozen=True, slots=True, repr=False)
class ReleaseSummary(Result):
    """Summary of a written release.

    Attributes:
        out: The folder.
        configs: Those that load from it.
        rows: Rows by file, relative to the folder.
        held_out: The roles of the role-generalization test split.
        gaps: What is missing, and why.
    """

    out: Path
    configs: tuple[str, ...]
    rows: Mapping[str, int]
    held_out: tuple[str, ...]
    gaps: tuple[str, ...]

    def tables(self) -> tuple[Table]:
        """Build the table of files."""
        return (Table.from_rows(str(self.out), ("file", "rows"), self.rows.items()),)

    def notes(self) -> list[str]:
        """Say what is missing."""
        return [f"note: {gap}" for gap in self.gaps]

    def remarks(self) -> list[str]:
        """Name the roles that are held out, and say how to load each config."""
        remarks = [
            f"Load it in Python with rolellm.load_rolebench({config!r}, data_dir={str(self.out)!r})"
            for config in self.configs
        ]
        if self.held_out:
            remarks.append(f"Held out for role generalization: {', '.join(self.held_out)}")
        return remarks

    @property
    def continues_with(self) -> tuple[str, str]:
        """The command lines that inspect it, and tune a small model on it."""
        data = ("--data-dir", str(self.out))
        train = ("rolellm", "train", "smoke-cpu", *data, "--out", f"{self.out}-run")
        return shlex.join(("rolellm", "data", "audit", *data)), shlex.join(train)


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
    target = Path(out)
    _check_names(roles)
    _claim(target, overwrite)
    with fill_folder(target) as root:
        draft = _Draft(root, rule or SplitRule())
        for language in FOLDERS:
            speakers = [role for role in roles if role.character.language == language]
            if speakers:
                draft.add(speakers, language)
        english = [role for role in roles if role.character.language == "en"]
        draft.add_role_generalization(english)
        if not any(name.startswith("rolebench-") for name in draft.rows):
            raise DataError("there is nothing to write: no role has questions or replies; run `rolellm instruct` first")
        draft.write_manifest(roles)
        if target.exists():
            shutil.rmtree(target)
    return ReleaseSummary(target, tuple(draft.configs), draft.rows, tuple(draft.held_out), tuple(draft.gaps))


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
    manifest = target / MANIFEST
    release = read_json(manifest) if manifest.is_file() else {}
    if release.get("kind") != KIND:
        raise SettingsError(f"{target} holds other files, or is a file; name another folder")
    if not overwrite:
        raise SettingsError(f"{target} holds a release already; use --overwrite, or name another folder")
    own_files = {MANIFEST, *release["sha256"]}
    for path in sorted(target.rglob("*")):
        # It would be lost with the release.
        if path.is_file() and path.relative_to(target).as_posix() not in own_files:
            raise SettingsError(f"{path} is not part of the release in {target}; move it away, or name another folder")


class _Draft:
    """A release on its way to disk."""

    def __init__(self, root: Path, rule: SplitRule) -> None:
        self.root = root
        self.rule = rule
        self.configs: list[str] = []
        self.rows: dict[str, int] = {}
        self.held_out: list[str] = []
        self.gaps: list[str] = []

    def add(self, roles: Sequence[RoleData], language: Language) -> None:
        """Write all that there is of one language, split by question."""
        self._write_profiles(roles, language)
        self._write_instructions(roles, language)
        folder = "rolebench-zh" if language == "zh" else "rolebench-eng/instruction-generalization"
        general = {fold(item.question) for role in roles for item in role.general}
        own = {fold(item.question) for role in roles for item in role.questions}
        # A role's question that is a general instruction as well must not be on both sides.
        held_out = select_held_out_questions(self.rule, general) | select_held_out_questions(self.rule, own - general)
        rows = [row for role in roles for row in _iterate_rows(role)]
        is_test = [fold(row.line["question"]) in held_out for row in rows]
        self._write_split(folder, rows, is_test)
        self.configs.append(INSTRUCTION_CONFIGS[language])

    def add_role_generalization(self, roles: Sequence[RoleData]) -> None:
        """Write the English rows once more, split by role, where there are two roles."""
        # A role without rows, where none was named, would be held out for nothing.
        candidates = [role for role in roles if role.questions or role.general or self.rule.held_out]
        held_out = select_held_out_roles(self.rule, [role.role for role in candidates])
        if held_out:
            rows = [row for role in candidates for row in _iterate_rows(role)]
            is_test = [row.line["role"] in held_out for row in rows]
            self._write_split("rolebench-eng/role-generalization", rows, is_test)
            self.held_out = sorted(held_out)
            self.configs.append("role-generalization-eng")
        elif roles:
            self.gaps.append(
                "role generalization needs at least two English roles with questions or replies; none was written"
            )

    def write_manifest(self, roles: Sequence[RoleData]) -> None:
        """Write how the release was made, and the hash of each file."""
        described = []
        for role in roles:
            entry = {
                "role": role.role,
                "language": role.character.language,
                "questions": len(role.questions),
                "general": len(role.general),
                "made": role.character.made,
                "sources": {},
                "models": {},
            }
            described.append({**entry, **role.receipt})
        files = sorted(path for path in self.root.rglob("*") if path.is_file())
        hashes = {path.relative_to(self.root).as_posix(): hash_file(path) for path in files}
        manifest = {
            "kind": KIND,
            "version": __version__,
            "rule": dump(self.rule),
            "held_out_roles": self.held_out,
            "configs": self.configs,
            "rows": self.rows,
            "sha256": hashes,
            "roles": described,
            "notes": self.gaps,
        }
        write_json(self.root / MANIFEST, manifest)

    def _write_profiles(self, roles: Sequence[RoleData], language: Language) -> None:
        folder = f"profiles-{FOLDERS[language]}"
        descriptions: dict[str, str] = {}
        scripts: dict[str, str] = {}
        for role in roles:
            character = role.character
            for run in role.outdated:
                self.gaps.append(
                    f"{run} of {role.role} was made from an earlier profile, so its rows may not fit the description; "
                    "rerun it"
                )
            if character.full_description:
                descriptions[role.role] = character.full_description
            else:
                self.gaps.append(f"no description of {role.role}; `rolellm role build` makes one")
            if character.script:
                scripts[role.role] = character.script
            if character.turns:
                name = f"{folder}/{folder}-{make_safe_name(role.role)}.jsonl"
                path = self.root / name
                self.rows[name] = write_turns(path, character.turns, role.role, layout="release", language=language)
        write_json(self.root / folder / "desc.json", descriptions)
        if scripts:
            write_json(self.root / folder / "scripts.json", scripts)

    def _write_instructions(self, roles: Sequence[RoleData], language: Language) -> None:
        folder = f"instructions-{FOLDERS[language]}"
        targets: dict[str, dict[str, str]] = {}
        for role in roles:
            for item in role.general:
                if item.target is not None:
                    targets.setdefault(fold(item.question), {"instruction": item.question, "target": item.target})
        if targets:
            self._write(f"{folder}/instructions-general.jsonl", targets.values())
        for role in roles:
            rows = []
            for index, pair in enumerate(role.questions):
                row = {
                    "id": index,
                    "instruction": pair.question,
                    "metrics": pair.confidence,
                    "answer": pair.answer,
                    "type": pair.type,
                }
                rows.append(row)
            if rows:
                self._write(f"{folder}/role-specific-{make_safe_name(role.role)}.jsonl", rows)

    def _write_split(self, folder: str, rows: Sequence[_ReleaseRow], is_test: Sequence[bool]) -> None:
        """Write train, test and baseline of both subsets."""
        for subset in _SUBSETS:
            split_rows: dict[str, list[dict[str, Any]]] = {"train": [], "test": [], "rolegpt_baseline": []}
            for row, is_held_out in zip(rows, is_test, strict=True):
                if row.subset != subset:
                    continue
                split_rows["test" if is_held_out else "train"].append(row.line)
                if is_held_out and row.baseline is not None:
                    names = {name: row.line[name] for name in ("role", "question")}
                    split_rows["rolegpt_baseline"].append({**names, "generated": [row.baseline]})
            for name, values in split_rows.items():
                if values:
                    self._write(f"{folder}/{subset}/{name}.jsonl", values)
                elif name != "rolegpt_baseline":
                    self.gaps.append(f"{folder}/{subset} has no {name} rows")

    def _write(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        self.rows[name] = write_jsonl(self.root / name, rows)


class _ReleaseRow(NamedTuple):
    """A row of a data file, and RoleGPT's reply to its question where there is one."""

    subset: str
    line: dict[str, Any]
    baseline: str | None


def _iterate_rows(role: RoleData) -> Iterator[_ReleaseRow]:
    for item in role.general:
        if item.generated:
            line = {"role": role.role, "question": item.question, "generated": list(item.generated)}
            yield _ReleaseRow("general", line, item.rolegpt)
    for pair in role.questions:
        line = {"role": role.role, "question": pair.question, "generated": [pair.answer], "type": [pair.type]}
        yield _ReleaseRow("role_specific", line, role.baselines.get(fold(pair.question)))
