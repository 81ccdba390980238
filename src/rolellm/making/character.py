"""A character, from its script or card to a data set: stages 1 to 3 as one object.

::

    hamlet = Character.from_script("hamlet.txt", role="Hamlet").build(llm).instruct(llm).respond(llm, general)
    hamlet.to_dataset()
    hamlet.save("hamlet")
"""

from __future__ import annotations

import shlex
import shutil
import tempfile
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolellm.characters.folder import (
    check_free,
    dump_fields,
    export_card,
    import_card,
    is_outdated,
    open_character,
    read_character,
    write_character,
)
from rolellm.characters.scripts.parse import clean_names, read_script, select_role
from rolellm.characters.scripts.reading import Format
from rolellm.characters.scripts.turns import holds_turns
from rolellm.core.errors import RoleLLMWarning, SettingsError, StoppedShortError
from rolellm.core.fingerprint import hash_file
from rolellm.core.folders import use_working_folder
from rolellm.core.records import Language, Profile
from rolellm.core.result import Result
from rolellm.core.sanitize import label
from rolellm.core.settings import read, suggest_keywords
from rolellm.core.table import Table
from rolellm.core.text import make_safe_name
from rolellm.data.rolebench.release import Release, iter_rows, list_splits
from rolellm.data.rolebench.schema import get_config, get_schema
from rolellm.llm.client import FAILED
from rolellm.making.attribution import Attribute
from rolellm.making.instruct.run import Instruct
from rolellm.making.profile.build import BuildProfile, build_folder, count_parts, list_defects
from rolellm.making.profile.start import start_sheet
from rolellm.making.release import INSTRUCTION_CONFIGS, gather, write_release
from rolellm.making.respond import Respond, describe_language_mismatch, read_instructions
from rolellm.making.scripted import load_llm
from rolellm.making.settings import BuildSettings, InstructSettings, RespondSettings, SplitRule
from rolellm.runs import run_step

if TYPE_CHECKING:
    from datasets import DatasetDict

_STAGES = ("build", "instruct", "respond")
# What is shown of a character: entries of lore, and characters of a line.
_MOST_LORE, _WIDTH = 8, 60


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Character(Result, Profile):
    """A character and the folder that it lives in.

    Every stage works in that folder, keeps each reply in a journal there and returns the character as it is then.
    After an interruption the same call continues where it stopped. Until `save`, the folder is a temporary one, which
    the character shows.

    Attributes:
        folder: The character's folder; ``None`` before the first stage.
    """

    folder: Path | None = None

    @classmethod
    @suggest_keywords()
    def from_script(
        cls,
        path: str | Path,
        *,
        role: str,
        aliases: Sequence[str] = (),
        format: Format | None = None,
        language: Language | None = None,
        encoding: str | None = None,
        columns: Mapping[str, str] | None = None,
        llm: Any = None,
        out: str | Path | None = None,
    ) -> Character:
        """Read a character from a script: a play, screenplay, transcript, novel, subtitles or a table.

        Args:
            path: The script; or its turns as ``rolellm role parse`` writes them (``.jsonl``).
            role: The character's name.
            aliases: Other names that the script has for it.
            format: The script's format; detected by default.
            language: ``en`` or ``zh``; detected by default.
            encoding: Text encoding, such as gb18030; detected by default.
            columns: Of a table, by what they hold, such as ``{"speaker": "name", "text": "line"}``.
            llm: The model that finds who speaks a novel's quotations: a settings file, ``rolellm.LLM(…)``, or a model.
            out: The folder that keeps the model's replies; by default a temporary one.

        Raises:
            ScriptError: When the script cannot be read, or the role never speaks; names who does.
        """
        if not columns and Path(path).is_file() and holds_turns(Path(path)):
            return cls._wrap_profile(start_sheet(path, role, language=language, aliases=aliases), None)
        role_names = clean_names(role, aliases)
        reading = read_script(path, role_names, format=format, language=language, encoding=encoding, columns=columns)
        if llm is None:
            parsed = select_role(role_names, reading)
        else:
            with (
                use_working_folder("attribution", out) as folder,
                _attach_command(f"rolellm.Character.from_script(…, llm=llm, out={str(folder)!r})"),
            ):
                parsed = run_step(Attribute(reading, role_names), load_llm(llm), folder).result.script
        names = [name for name, count in parsed.own.items() if count]
        other_names = [*aliases, *names]
        title = Path(path).stem
        sheet = start_sheet(parsed.turns, role, language=parsed.hints.language, aliases=other_names, script=title)
        source = {"file": Path(path).name, "sha256": hash_file(path)}
        return cls._wrap_profile(sheet, None, made={"source": source})

    @classmethod
    @suggest_keywords()
    def from_card(cls, path: str | Path, *, role: str | None = None, language: Language | None = None) -> Character:
        """Read a character card: V1, V2 or V3; JSON, PNG or CHARX.

        Args:
            path: The card.
            role: A name in place of the card's.
            language: ``en`` or ``zh``; detected by default.

        Raises:
            CardError: When the card cannot be read.
        """
        folder = Path(tempfile.mkdtemp(prefix="rolellm-card-"))
        try:
            import_card(path, folder, role=role, language=language)
        except BaseException:
            shutil.rmtree(folder)
            raise
        return cls._wrap_profile(read_character(folder), folder)

    @classmethod
    def load(cls, folder: str | Path) -> Character:
        """Load a character's folder, or that of a card; a card without one is read as by `from_card`.

        Raises:
            DataError: When there is no ``profile.json``, or it cannot be read.
        """
        sheet, home = open_character(folder)
        if home is None:
            return cls.from_card(folder)
        return cls._wrap_profile(sheet, home)

    @classmethod
    def _wrap_profile(cls, sheet: Profile, folder: Path | None, **changed: Any) -> Character:
        values = {item.name: getattr(sheet, item.name) for item in fields(Profile)}
        return cls(**{**values, **changed}, folder=folder)

    @suggest_keywords(BuildSettings)
    def build(self, llm: Any = None, *, overwrite: bool = False, **settings: Any) -> Character:
        """Stage 1: describe the character in the second person, and pick its catchphrases.

        Args:
            llm: The model to ask: a settings file, ``rolellm.LLM(…)``, or a model. Needed unless the settings give
                a description and ask for no catchphrases.
            overwrite: Replace a profile that was changed by hand since it was built.
            settings: Fields of `rolellm.making.settings.BuildSettings`.

        Raises:
            RoleLLMError: See `rolellm.making.profile.build.build_folder`.
        """
        chosen = read(BuildSettings, settings)
        folder = self._ensure_folder()
        with self._attach_resume_call("build(llm)"):
            step = BuildProfile(self, chosen, folder)
            run = build_folder(step, llm and load_llm(llm), card=folder, overwrite=overwrite)
        _warn(*run.summary["notes"])
        return self._wrap_profile(run.result, folder)

    @suggest_keywords(InstructSettings)
    def instruct(self, llm: Any, *, out: str | Path | None = None, **settings: Any) -> Character:
        """Stage 2, Context-Instruct: make role-specific questions with answers, and filter them.

        Args:
            llm: The model to ask: a settings file, ``rolellm.LLM(…)``, or a model.
            out: The run's folder; by default ``instruct`` in the character's.
            settings: Fields of `rolellm.making.settings.InstructSettings`.

        Raises:
            RoleLLMError: See `rolellm.making.instruct.context_instruct`.
        """
        chosen = read(InstructSettings, settings)
        folder = self._ensure_folder()
        with self._attach_resume_call("instruct(llm)"):
            run = run_step(Instruct(self, chosen), load_llm(llm), out or folder / "instruct")
        _warn(run.result.shortfall)
        return self

    @suggest_keywords(RespondSettings)
    def respond(
        self, llm: Any, instructions: Any, *, out: str | Path | None = None, limit: int | None = None, **settings: Any
    ) -> Character:
        """Stage 3, RoleGPT: answer instructions in the character's voice, several times each.

        Args:
            llm: The model to ask: a settings file, ``rolellm.LLM(…)``, or a model.
            instructions: A file (JSON Lines, JSON, CSV, Parquet), a list of texts, a `datasets.Dataset`, or ``sample``;
                see `rolellm.making.respond.read_instructions`.
            out: The run's folder; by default ``respond`` in the character's.
            limit: Use only the first N instructions.
            settings: Fields of `rolellm.making.settings.RespondSettings`.

        Raises:
            DataError: For instructions that cannot be read.
            RoleLLMError: See `rolellm.making.respond.respond`.
        """
        chosen = read(RespondSettings, settings)
        folder = self._ensure_folder()
        instruction_set = read_instructions(instructions, self, limit)
        _warn(describe_language_mismatch(self, instruction_set.asked))
        with self._attach_resume_call("respond(llm, instructions)"):
            step = Respond(self, instruction_set, chosen)
            run = run_step(step, load_llm(llm), out or folder / "respond")
        if run.failed:
            _warn(f"{run.failed:,} replies are missing; {run.folder / FAILED} says why")
        return self

    @suggest_keywords(SplitRule)
    def to_dataset(self, **rule: Any) -> DatasetDict:
        """Return the character's rows, general and role-specific, with the columns of RoleBench.

        Args:
            rule: Fields of `rolellm.making.settings.SplitRule`, such as ``test_share`` and ``seed``; the split is
                the one that ``rolellm role release`` makes.

        Returns:
            A `datasets.DatasetDict` with ``train`` and, from two questions on, ``test``.

        Raises:
            DataError: When there are no questions and no replies yet.
        """
        from datasets import Dataset, DatasetDict, Features

        config = get_config(INSTRUCTION_CONFIGS[self.language])
        features = Features.from_arrow_schema(get_schema(config))
        splits = DatasetDict()
        material = gather(self._ensure_folder())
        split_rule = read(SplitRule, rule)
        with tempfile.TemporaryDirectory(prefix="rolellm-") as scratch:
            written = write_release([material], Path(scratch) / "release", split_rule)
            release = Release(written.out)
            for split in list_splits(release, config):
                rows = list(iter_rows(release, config, split))
                splits[split] = Dataset.from_list(rows, features=features)
        return splits

    @suggest_keywords()
    def to_card(self, path: str | Path, *, image: str | Path | None = None, overwrite: bool = False) -> Path:
        """Write the character as a card V3.

        Args:
            path: The file, ``.json``, ``.png`` or ``.charx``.
            image: A PNG to put the card into; by default the one it came in, or a plain one.
            overwrite: Replace a file that is there.

        Returns:
            The file's path.

        Warns:
            RoleLLMWarning: For what the card lacks, such as lines that found no room.
        """
        written = export_card(self._ensure_folder(), path, picture=image, overwrite=overwrite)
        _warn(*written.warnings)
        return Path(path)

    @suggest_keywords()
    def save(self, folder: str | Path, *, overwrite: bool = False) -> Character:
        """Copy the character's folder, runs and journals included; from then on the character lives in the copy.

        Args:
            folder: The new folder.
            overwrite: Replace the character that the folder holds.

        Raises:
            SettingsError: When the folder is not empty and may not be replaced, or cannot be written.
        """
        target = Path(folder)
        home = self._ensure_folder()
        if target.exists() and target.samefile(home):
            return self
        check_free(target, overwrite)
        shutil.rmtree(target, ignore_errors=True)
        try:
            shutil.copytree(home, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.lock"))
        except OSError as error:
            raise SettingsError(
                f"{target} cannot be written ({error.strerror or error}); choose another folder"
            ) from error
        object.__setattr__(self, "folder", target)
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return the character's fields, its defects, the state of each stage, and notes on its card.

        A stage is ``done``, ``begun``, ``outdated`` (made from an earlier profile), or null.
        """
        overview = dump_fields(self)
        del overview["made"]
        stages = dict.fromkeys(_STAGES)
        if self.folder is not None:
            overview["folder"] = str(self.folder)
            stages = {name: _get_stage_state(self.folder / name, self) for name in _STAGES}
        overview |= {"counts": count_parts(self), "defects": list_defects(self), "stages": stages}
        return {**overview, "notes": (self.made.get("card") or {}).get("notes", [])}

    def tables(self) -> tuple[Table]:
        """Build the table of the character's parts and stages."""
        overview = self.to_dict()
        aliases = ", ".join(self.aliases) or "–"
        script = label(self.script or "–", _WIDTH)
        rows: list[tuple[str, str | int]] = [
            ("language", self.language),
            ("script", script),
            ("also called", label(aliases, _WIDTH)),
        ]
        rows += [(name.replace("_", " "), count) for name, count in overview["counts"].items()]
        rows += [(name, state or "not yet") for name, state in overview["stages"].items()]
        rows.append(("folder", overview.get("folder", "none yet")))
        return (Table.from_rows(label(self.role, _WIDTH), ("", ""), rows),)

    def notes(self) -> list[str]:
        """Return what there is to know of the card that it was made of."""
        return [f"note: {note}" for note in self.to_dict()["notes"]]

    def remarks(self) -> list[str]:
        """Return the description, the catchphrases, what is wrong with them, and the lore."""
        sections = {
            "Description": [self.description or "none; rolellm role build writes one"],
            "Catchphrases": [*self.catchphrases] or ["none"],
            "Defects": [],
            "Lore": [],
        }
        for field, defects in list_defects(self).items():
            sections["Defects"] += [f"{field}: {defect}" for defect in defects]
        for item in self.lore[:_MOST_LORE]:
            name = label(item.name or ", ".join(item.keys) or "–", _WIDTH // 2)
            sections["Lore"].append(f"{name}: {label(item.content, _WIDTH)}")
        if len(self.lore) > _MOST_LORE:
            sections["Lore"].append(f"and {len(self.lore) - _MOST_LORE:,} more")
        remarks = []
        for title, lines in sections.items():
            if lines:
                indented = textwrap.indent("\n".join(lines), "  ")
                remarks.append(f"{title}\n{indented}")
        return remarks

    @property
    def continues_with(self) -> list[str]:
        """The first stage, where it was not done."""
        if self.folder is None or self.to_dict()["stages"]["build"]:
            return []
        return [shlex.join(["rolellm", "role", "build", str(self.folder)])]

    def _ensure_folder(self) -> Path:
        """Return the character's folder; create a temporary one if it has none."""
        if self.folder is not None:
            return self.folder
        folder = Path(tempfile.mkdtemp(prefix=f"rolellm-{make_safe_name(self.role)[:40]}-"))
        object.__setattr__(self, "folder", write_character(self, folder))
        return folder

    def _attach_resume_call(self, call: str) -> AbstractContextManager[None]:
        """Have a stage that stops short name the call that continues."""
        return _attach_command(f"rolellm.Character.load({str(self.folder)!r}).{call}")


@contextmanager
def _attach_command(call: str) -> Iterator[None]:
    try:
        yield
    except StoppedShortError as error:
        raise error.name_command(call) from error


def _get_stage_state(folder: Path, character: Profile) -> str | None:
    if (folder / "manifest.json").is_file():
        return "outdated" if is_outdated(folder, character) else "done"
    return "begun" if (folder / "journal.jsonl").is_file() else None


def _warn(*notes: str | None) -> None:
    for note in filter(None, notes):
        warnings.warn(note, RoleLLMWarning, stacklevel=3)
