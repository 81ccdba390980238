"""The role to play: a character's folder, a card, or a role of RoleBench, with what a card says of how to play it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rolellm.characters.cards.card import Card, load_card
from rolellm.characters.cards.convert import (
    CardNames,
    CardReading,
    choose_user_name,
    clean_name,
    clean_text,
    fill,
    read_as_character,
)
from rolellm.characters.folder import CARD, open_character
from rolellm.core.errors import ReleaseNotFoundError, SettingsError
from rolellm.core.records import Profile
from rolellm.core.settings import describe_alternatives
from rolellm.core.text import find_name, fold
from rolellm.data.rolebench.release import Release
from rolellm.data.rolebench.schema import SAMPLE, get_config
from rolellm.data.rolebench.source import ENVIRONMENT, Source, locate
from rolellm.models.prompts.render import Template, format_turn, load_template

#: The turns in which lore's keys are looked for, where a card does not say: SillyTavern's own default.
_SCANNED = 2
#: How many turns from the end a depth prompt goes, where a card does not say: SillyTavern's own default.
_DEPTH = 4
#: Characters of an unknown name that nearer ones are looked for by.
_LONGEST = 200


@dataclass(frozen=True, slots=True)
class Part:
    """A role, and how it is played.

    Attributes:
        sheet: The role.
        greetings: What it may say first: the card's greeting, then the alternate ones.
        system: What a card puts in the place of our instruction, with ``{{original}}`` for ours; empty for nothing.
        context: Circumstances and example talk, as the system turn has them after the description.
        after: Instructions after the last message.
        scanned: The last turns in which lore's keys are looked for.
        depth_prompt: A card's instructions within the talk.
        depth: The number of turns after them.
        user: The name of whoever talks to it; empty for the default.
        persona: Who that is.
        card: The card that all this is from.
    """

    sheet: Profile
    greetings: tuple[str, ...] = ()
    system: str = ""
    context: tuple[str, ...] = ()
    after: str = ""
    scanned: int = _SCANNED
    depth_prompt: str = ""
    depth: int = _DEPTH
    user: str = ""
    persona: str = ""
    card: Card | None = field(default=None, repr=False)

    @property
    def user_name(self) -> str:
        """The name for ``{{user}}``."""
        return self.user or choose_user_name(self.sheet.language, self.sheet.role)

    def with_user(self, name: str, persona: str = "") -> Part:
        """The same role, played to somebody: its card's ``{{user}}`` is that name.

        Raises:
            SettingsError: For a name that is empty or the role's own.
        """
        user = clean_name(name)
        if not user or fold(user) in map(fold, self.sheet.names):
            raise SettingsError(f"you cannot talk to {self.sheet.role} as {name!r}; choose another name (--me)")
        sheet = self.sheet
        persona = fill(clean_text(persona), CardNames(sheet.role, sheet.role, user))
        if self.card is None:
            return replace(self, user=user, persona=persona)
        before = _read_card(sheet, self.card, self.user_name).character
        after = _read_card(sheet, self.card, user).character
        # What was written since the card was imported stays.
        if sheet.description == before.description:
            sheet = replace(sheet, description=after.description)
        if sheet.lore == before.lore:
            sheet = replace(sheet, lore=after.lore)
        return replace(_read_card_part(sheet, self.card, user), persona=persona)

    def system_turn(self, template: Template, text: str | None = None, more: str = "") -> str:
        """The system turn of a talk: our instruction, or the card's in its place, then what else is told.

        Args:
            template: Our instruction.
            text: The same for this role, with lore after it.
            more: Goes last.
        """
        role, description = self.sheet.role, self.sheet.full_description or ""
        instruction = template.fill(role=role, description=description)
        if text is None:
            text = instruction
        if self.system:
            original = template.fill(role=role, description="")
            own_instruction = self.system.replace("{{original}}", original)
            lore = text.removeprefix(instruction)
            text = f"{own_instruction}\n\n{description}{lore}"
        persona = ""
        if self.persona:
            persona = load_template(self.sheet.language, "play_persona").fill(user=self.user_name, persona=self.persona)
        return "\n\n".join(filter(None, (text, persona, *self.context, more)))


def find_part(role: Any) -> Part:
    """Find a role.

    Args:
        role: A character's folder, a card's file, the name of a role of RoleBench (in any case), or a
            `rolellm.Character`.

    Raises:
        SettingsError: For a name that is nothing of that; gives the nearest names.
        DataError: For a folder or a card that cannot be read.
    """
    if isinstance(role, Part):
        return role
    if isinstance(role, Profile):
        return _with_card(role, getattr(role, "folder", None))
    if Path(role).exists():
        sheet, folder = open_character(role)
        if folder is None:
            return _read_card_part(sheet, load_card(role))
        return _with_card(sheet, folder)
    roles = load_rolebench_roles()
    name = find_name(str(role), roles)
    if name is None:
        names = describe_alternatives(str(role)[:_LONGEST], roles)
        if len(_find_releases()) == 1:
            names += (
                f"; of RoleBench only the sample is here: for all roles, set ${ENVIRONMENT} to a copy of the release"
            )
        raise SettingsError(f"no role {role!r}: not a folder, a card, or a role of RoleBench{names}")
    return Part(roles[name])


def load_rolebench_roles() -> Mapping[str, Profile]:
    """The roles of RoleBench with their descriptions, and those of the embedded sample that it does not have.

    Raises:
        ReleaseNotFoundError: When ``$ROLEBENCH_DIR`` is not a release.
    """
    # The description as released, catchphrases included, is what models are tuned with.
    profiles: dict[str, Profile] = {}
    for source in _find_releases():
        for language in get_config("roles").languages:
            for role, text in Release(source.root).read_descriptions(language).items():
                profiles[role] = Profile(role, language, description=text)
    return profiles


def _find_releases() -> list[Source]:
    """The embedded sample and, where it is at hand, RoleBench."""
    sources = [locate(get_config(SAMPLE))]
    try:
        sources.append(locate(get_config("roles")))
    except ReleaseNotFoundError:
        if os.environ.get(ENVIRONMENT):
            raise
    return sources


def _with_card(sheet: Profile, folder: Path | None) -> Part:
    if folder is None or not (folder / CARD).is_file():
        return Part(sheet)
    return _read_card_part(sheet, load_card(folder / CARD))


def _read_card(sheet: Profile, card: Card, user: str) -> CardReading:
    role = None if clean_name(card.name) == sheet.role else sheet.role
    return read_as_character(card, role=role, language=sheet.language, user=user)


def _read_card_part(sheet: Profile, card: Card, user: str = "") -> Part:
    """Read how a card says to play it."""
    reading = _read_card(sheet, card, user)

    def read_field(text: str) -> str:
        return fill(clean_text(text), reading.names).strip()

    examples: dict[int, list[str]] = {}
    for turn in reading.character.turns:
        if turn.scene in reading.examples:
            line = format_turn(turn, sheet.language, is_full=True)
            examples.setdefault(turn.scene, []).append(line)
    context = []
    scenario = read_field(card.scenario)
    if scenario:
        context.append(load_template(sheet.language, "play_scenario").fill(scenario=scenario))
    if examples:
        talk = "\n\n".join("\n".join(lines) for lines in examples.values())
        context.append(load_template(sheet.language, "play_examples").fill(role=sheet.role, examples=talk))
    book = card.data.get("character_book")
    depth = book.get("scan_depth") if isinstance(book, dict) else None
    if not isinstance(depth, int) or not 0 < depth <= 1000:
        depth = _SCANNED
    note = card.extensions.get("depth_prompt")
    if not isinstance(note, dict) or not isinstance(note.get("prompt"), str):
        note = {"prompt": ""}
    note_depth = note.get("depth")
    greetings = map(read_field, (card.first_mes, *card.alternate_greetings))
    return Part(
        sheet,
        greetings=tuple(filter(None, greetings)),
        system=read_field(card.system_prompt),
        context=tuple(context),
        # The library adds nothing there itself.
        after=read_field(card.post_history_instructions).replace("{{original}}", "").strip(),
        scanned=depth,
        depth_prompt=read_field(note["prompt"]),
        depth=note_depth if isinstance(note_depth, int) else _DEPTH,
        user=user,
        card=card,
    )
