"""A character, from its script or card to a data set: stages 1 to 3 as one object.

::

    hamlet = Character.from_script("hamlet.txt", role="Hamlet").build(llm).instruct(llm).respond(llm, general)
    hamlet.to_dataset()
    hamlet.save("hamlet")
"""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolellm.construct.attribution import parse_folder
from rolellm.construct.cards.folder import export_card, import_card
from rolellm.construct.context_instruct.run import instruct_folder
from rolellm.construct.profile.folder import build_folder, counts, defects, start_sheet
from rolellm.construct.release import INSTRUCTION_CONFIGS, gather, write_release
from rolellm.construct.rolegpt.respond import instructions_of, language_note, respond_folder
from rolellm.construct.scripts.parse import asked_names, parsed_for, read_script
from rolellm.construct.scripts.reading import Format
from rolellm.construct.settings import BuildSettings, InstructSettings, RespondSettings, SplitRule, settings_from
from rolellm.construct.sheet import CARD, Sheet, check_free, is_outdated, plain_fields, read_sheet, write_sheet
from rolellm.core.errors import SettingsError, StoppedShortError
from rolellm.core.fingerprint import hash_file
from rolellm.core.records import Language
from rolellm.core.text import safe_name
from rolellm.llm.client import FAILED
from rolellm.llm.llm import LLM
from rolellm.rolebench.release import Release, config_splits, iter_rows
from rolellm.rolebench.schema import get_config, schema_of
from rolellm.runtime.progress import Progress

if TYPE_CHECKING:
    from datasets import DatasetDict

_STAGES = ("build", "instruct", "respond")


class CharacterWarning(UserWarning):
    """A stage made less than was asked for, or took something as it is."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Character(Sheet):
    """A character and the folder that it lives in.

    Every stage works in that folder, keeps each reply in a journal there and returns the character as it is then.
    After an interruption the same call continues where it stopped. Until `save`, the folder is a temporary one, which
    the character shows.

    Attributes:
        folder: The character's folder; ``None`` before the first stage.
    """

    folder: Path | None = None

    @classmethod
    def from_script(
        cls,
        path: str | Path,
        *,
        role: str,
        aliases: Sequence[str] = (),
        format: Format | None = None,
        language: Language | None = None,
        columns: Mapping[str, str] | None = None,
        llm: Any = None,
        out: str | Path | None = None,
    ) -> Character:
        """Read a character from a script: a play, screenplay, transcript, chat log, novel, subtitles or a table.

        Args:
            path: The script; or its turns as ``rolellm role parse`` writes them (``.jsonl``).
            role: The character's name.
            aliases: Other names that the script has for it.
            format: The script's format; detected by default.
            language: ``en`` or ``zh``; detected by default.
            columns: Of a table, by what they hold, such as ``{"speaker": "name", "text": "line"}``.
            llm: The model that finds who speaks a novel's quotations: a settings file, ``rolellm.LLM(…)``, or a model.
            out: The folder that keeps the model's replies; by default a temporary one.

        Raises:
            ScriptError: When the script cannot be read, or the role never speaks; names who does.

        Warns:
            CharacterWarning: When another speaker may be the role, too.
        """
        if Path(path).suffix == ".jsonl" and not columns:
            return cls._of(start_sheet(path, role, language=language, aliases=aliases), None)
        with Progress(f"reading {path}"):
            asked = asked_names(role, aliases)
            reading = read_script(path, asked, format=format, language=language, columns=columns)
        if llm is None:
            parsed = parsed_for(asked, reading)
        else:
            folder = Path(out or tempfile.mkdtemp(prefix="rolellm-attribution-"))
            with _resumed_by(f"rolellm.Character.from_script(…, llm=llm, out={str(folder)!r})"):
                parsed, _ = parse_folder(asked, reading, folder, _llm(llm))
        names = [name for name, count in parsed.own.items() if count]
        if parsed.proposals:
            found = "; ".join(f"{one.name} ({one.reason})" for one in parsed.proposals)
            _warn(f"other speakers may be {role}, too: {found}. To confirm one, pass it in aliases=[…]")
        sheet = start_sheet(
            parsed.turns, role, language=parsed.language, aliases=[*aliases, *names], script=Path(path).stem
        )
        return cls._of(sheet, None, made={"source": {"file": Path(path).name, "sha256": hash_file(path)}})

    @classmethod
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
            reading = import_card(path, folder, role=role, language=language)
        except BaseException:
            shutil.rmtree(folder)
            raise
        return cls._of(reading.character, folder)

    @classmethod
    def load(cls, folder: str | Path) -> Character:
        """Load a character's folder.

        Raises:
            DataError: When there is no ``profile.json``, or it cannot be read.
        """
        return cls._of(read_sheet(folder), Path(folder))

    @classmethod
    def _of(cls, sheet: Sheet, folder: Path | None, **changed: Any) -> Character:
        values = {item.name: getattr(sheet, item.name) for item in fields(Sheet)}
        return cls(**{**values, **changed}, folder=folder)

    def build(self, llm: Any = None, *, overwrite: bool = False, **settings: Any) -> Character:
        """Stage 1: describe the character in the second person, and pick its catchphrases.

        Args:
            llm: The model to ask: a settings file, ``rolellm.LLM(…)``, or a model. Needed unless the settings give
                a description and ask for no catchphrases.
            overwrite: Replace a profile that was changed by hand since it was built.
            settings: Fields of `rolellm.construct.settings.BuildSettings`.

        Raises:
            RoleLLMError: See `rolellm.construct.profile.build_profile`.
        """
        chosen, folder = settings_from(BuildSettings, settings), self._home()
        with self._resumable("build(llm)"):
            built = build_folder(self, folder, chosen, llm and _llm(llm), card=folder, overwrite=overwrite)
        _warn(*built.notes)
        return self._of(built.character, folder)

    def instruct(self, llm: Any, *, out: str | Path | None = None, **settings: Any) -> Character:
        """Stage 2, Context-Instruct: make role-specific questions with answers, and filter them.

        Args:
            llm: The model to ask: a settings file, ``rolellm.LLM(…)``, or a model.
            out: The run's folder; by default ``instruct`` in the character's.
            settings: Fields of `rolellm.construct.settings.InstructSettings` and `FilterSettings`.

        Raises:
            RoleLLMError: See `rolellm.construct.context_instruct.context_instruct`.
        """
        chosen, folder = settings_from(InstructSettings, settings), self._home()
        with self._resumable("instruct(llm)"):
            result, _ = instruct_folder(self, Path(out or folder / "instruct"), chosen, _llm(llm))
        _warn(result.shortfall)
        return self

    def respond(
        self, llm: Any, instructions: Any, *, out: str | Path | None = None, limit: int | None = None, **settings: Any
    ) -> Character:
        """Stage 3, RoleGPT: answer instructions in the character's voice, several times each.

        Args:
            llm: The model to ask: a settings file, ``rolellm.LLM(…)``, or a model.
            instructions: A JSON Lines file, a list of texts, or a `datasets.Dataset` with a column ``instruction``
                or ``question``.
            out: The run's folder; by default ``respond`` in the character's.
            limit: Use only the first N instructions.
            settings: Fields of `rolellm.construct.settings.RespondSettings`.

        Raises:
            DataError: For instructions that cannot be read.
            RoleLLMError: See `rolellm.construct.rolegpt.respond.respond`.
        """
        chosen, folder = settings_from(RespondSettings, settings), self._home()
        asked, run = instructions_of(instructions, self.role, limit), Path(out or folder / "respond")
        _warn(language_note(self, asked.asked))
        with self._resumable("respond(llm, instructions)"):
            _, summary = respond_folder(self, asked, run, chosen, _llm(llm))
        if summary["missing"]:
            _warn(f"{summary['missing']:,} replies are missing; {run / FAILED} says why")
        return self

    def to_dataset(self, **rule: Any) -> DatasetDict:
        """The character's rows, general and role-specific, with the columns of RoleBench.

        Args:
            rule: Fields of `rolellm.construct.settings.SplitRule`, such as ``test_share`` and ``seed``; the split is
                the one that ``rolellm role release`` makes.

        Returns:
            A `datasets.DatasetDict` with ``train`` and, from two questions on, ``test``.

        Raises:
            DataError: When there are no questions and no replies yet.
        """
        from datasets import Dataset, DatasetDict, Features

        config = get_config(INSTRUCTION_CONFIGS[self.language])
        features = Features.from_arrow_schema(schema_of(config))
        with tempfile.TemporaryDirectory(prefix="rolellm-") as scratch:
            root = write_release([gather(self._home())], Path(scratch) / "release", settings_from(SplitRule, rule)).out
            release = Release(root)
            return DatasetDict(
                {
                    split: Dataset.from_list(list(iter_rows(release, config, split)), features=features)
                    for split in config_splits(release, config)
                }
            )

    def to_card(self, path: str | Path, **options: Any) -> Path:
        """Write the character as a card.

        Args:
            path: The file, ``.json``, ``.png`` or ``.charx``.
            options: ``spec`` (``v2`` or ``v3``), ``picture`` and ``overwrite``, see
                `rolellm.construct.cards.export_card`.

        Returns:
            The file's path.

        Warns:
            CharacterWarning: For what the card lacks, such as lines that found no room.
        """
        _warn(*export_card(self._home(), path, **options).notes)
        return Path(path)

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Character:
        """Copy the character's folder, runs and journals included; from then on the character lives in the copy.

        Args:
            folder: The new folder.
            overwrite: Replace the character that the folder holds.

        Raises:
            SettingsError: When the folder is not empty and may not be replaced, or cannot be written.
        """
        target, home = Path(folder), self._home()
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
        """What there is of the character, its defects, and the state of each stage.

        A stage is ``done``, ``begun``, ``outdated`` (made from an earlier profile), or null.
        """
        folder = self.folder
        known = {name: value for name, value in plain_fields(self).items() if name != "made"}
        return {
            **known,
            "folder": None if folder is None else str(folder),
            "counts": counts(self),
            "defects": defects(self),
            "stages": {name: None if folder is None else _state(folder / name, self) for name in _STAGES},
            "card": folder is not None and (folder / CARD).is_file(),
        }

    def __repr__(self) -> str:
        done = [name for name, state in self.to_dict()["stages"].items() if state]
        where = "not in a folder yet" if self.folder is None else repr(str(self.folder))
        return f"<Character {self.role!r}: {len(self.turns):,} turns; {', '.join(done) or 'no stage yet'}; {where}>"

    def _repr_html_(self) -> str:
        shown = self.to_dict()
        counted = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in shown["counts"].items())
        stages = ", ".join(f"{name}: {state or 'not yet'}" for name, state in shown["stages"].items())
        rows = {
            "Description": self.description or "none yet",
            "Catchphrases": " / ".join(self.catchphrases) or "none",
            "Script": counted,
            "Stages": stages,
            "Folder": shown["folder"] or "none yet",
        }
        cells = "".join(f"<tr><th>{name}</th><td>{escape(text)}</td></tr>" for name, text in rows.items())
        return f"<table><caption>{escape(self.role)}</caption>{cells}</table>"

    def _home(self) -> Path:
        """The character's folder; a temporary one where there is none yet."""
        if self.folder is not None:
            return self.folder
        folder = Path(tempfile.mkdtemp(prefix=f"rolellm-{safe_name(self.role)[:40]}-"))
        object.__setattr__(self, "folder", write_sheet(self, folder))
        return folder

    def _resumable(self, call: str) -> AbstractContextManager[None]:
        """Have a stage that stops short name the call that continues."""
        return _resumed_by(f"rolellm.Character.load({str(self.folder)!r}).{call}")


@contextmanager
def _resumed_by(call: str) -> Iterator[None]:
    try:
        yield
    except StoppedShortError as error:
        raise error.resumed_by(call) from error


def _llm(given: Any) -> LLM:
    from rolellm.construct.scripted import scripted_model

    return LLM.of(given, {"quotes": scripted_model})


def _state(folder: Path, character: Sheet) -> str | None:
    if (folder / "manifest.json").is_file():
        return "outdated" if is_outdated(folder, character) else "done"
    return "begun" if (folder / "journal.jsonl").is_file() else None


def _warn(*notes: str | None) -> None:
    for note in filter(None, notes):
        warnings.warn(note, CharacterWarning, stacklevel=3)
