"""A profile in a character's folder: builds it there, with a journal, and takes care of what a person wrote into it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rolellm.construct.character import DIALOGUE, PROFILE, Character, read_character, write_character
from rolellm.construct.profile.build import BuildSettings, build_profile, description_problem, result_hash
from rolellm.construct.profile.knowledge import ask_knowledge, write_knowledge
from rolellm.errors import RecipeError
from rolellm.files import write_json
from rolellm.fingerprint import hash_file
from rolellm.llm.client import Client
from rolellm.llm.model import Model
from rolellm.llm.no_secrets import described
from rolellm.llm.options import RunOptions
from rolellm.llm.tokens import TokenCounter
from rolellm.prompts.retrieval import exchanges
from rolellm.version import __version__

BUILD: Final = "build"
MANIFEST: Final = "manifest.json"
_CARDS: Final = ("card.json", "card.png")


@dataclass(frozen=True, slots=True)
class Asking:
    """Who is asked, and how.

    Attributes:
        models: Of the client; none where nobody is asked.
        options: Of the client.
        counter: Counts tokens; by default an estimate.
    """

    models: Sequence[Model] = ()
    options: RunOptions | None = None
    counter: TokenCounter | None = None


@dataclass(frozen=True, slots=True)
class Built:
    """A profile that was built.

    Attributes:
        character: With all that was made.
        folder: Where it is.
        manifest: What ``build/manifest.json`` says.
        knowledge: The file to read, where the model's knowledge was asked for.
        notes: What a user should know.
    """

    character: Character
    folder: Path
    manifest: dict[str, Any]
    knowledge: Path | None = None
    notes: tuple[str, ...] = ()


def build_folder(
    start: Character,
    folder: str | Path,
    settings: BuildSettings,
    asking: Asking | None = None,
    *,
    card: str | Path | None = None,
    overwrite: bool = False,
) -> Built:
    """Build a profile into a character's folder; replies are kept in its ``build/``.

    Args:
        start: See `build_profile`.
        folder: The character's.
        settings: How.
        asking: Who is asked.
        card: The folder that `start` was read from, where it is another one; its card comes along.
        overwrite: Replace what the folder holds, whoever wrote it.

    Raises:
        RecipeError: When the folder holds another character, or one that was changed by hand.
        RoleLLMError: As `build_profile` and `Client`.
    """
    target, asking = Path(folder), asking or Asking()
    if not overwrite:
        _check(target, start, card)
    known = None
    spent: dict[str, Any] = {}
    if settings.asks:
        with Client(target / BUILD, asking.models, asking.options) as client:
            if settings.check_knowledge:
                answers = ask_knowledge(start, client, script=settings.work, sampling=settings.sampling)
                known = write_knowledge(target, start, answers)
            character = build_profile(start, client, settings, asking.counter)
            spent = client.spent.to_dict()
    else:
        character = build_profile(start, None, settings, asking.counter)
    write_character(character, target)
    _bring_card(card, target)
    manifest = {
        "stage": "build",
        "rolellm": __version__,
        "role": character.role,
        "language": character.language,
        "made": dict(character.made),
        "counts": counts(character),
        "models": [described(model) for model in asking.models] if settings.asks else [],
        "spent": spent,
        "files": {name: hash_file(target / name) for name in (PROFILE, DIALOGUE)},
    }
    write_json(target / BUILD / MANIFEST, manifest)
    return Built(character, target, manifest, known, _notes(start, settings))


def counts(character: Character) -> dict[str, int]:
    """How much there is of a character: turns, the role's own lines, scenes, dialogue pairs, lore."""
    profile = character.profile()
    return {
        "turns": len(character.turns),
        "own_lines": sum(map(profile.owns, character.turns)),
        "scenes": len({turn.scene for turn in character.turns}),
        "pairs": len(exchanges(profile)),
        "lore": len(character.lore),
        "catchphrases": len(character.catchphrases),
    }


def _check(target: Path, start: Character, card: str | Path | None) -> None:
    if not (target / PROFILE).is_file():
        return
    there = read_character(target)
    way = "name another folder, or replace it with --overwrite"
    if there.role != start.role:
        raise RecipeError(f"{target} holds another character, {there.role}; {way}")
    build = there.made.get("build")
    if isinstance(build, dict):
        if build.get("result") != result_hash(there):
            raise RecipeError(
                f"the profile in {target} was changed by hand since it was built; {way}, which loses those changes"
            )
    elif card is None or not target.samefile(card):
        raise RecipeError(
            f"{target} holds {there.role} as it was imported or written; complete it with --from {target}, or {way}"
        )


def _bring_card(card: str | Path | None, target: Path) -> None:
    if card is None or Path(card).samefile(target):
        return
    for name in _CARDS:
        if (Path(card) / name).is_file():
            shutil.copyfile(Path(card) / name, target / name)


def _notes(start: Character, settings: BuildSettings) -> tuple[str, ...]:
    if settings.description is None:
        return ()
    problem = description_problem(start, settings.description)
    return () if problem is None else (f"the description given {problem}; it is taken as it is",)
