"""A card as a character, and a character as a card V3: what becomes what.

``description`` and ``personality`` become the description, word for word: ``rolellm role build`` puts it in the second
person. ``first_mes`` and each alternate greeting open a scene of their own, after the ``scenario`` as narration; each
block of ``mes_example`` is a scene; each enabled entry of the lorebook is one of lore. All else stays in the card. A
character that is written as a card changes only those fields of its card that it no longer agrees with.

Lore is in the order of ``insertion_order``; all of it goes to one place in a prompt. An entry has the fields of
https://github.com/SillyTavern/SillyTavern/blob/ba6f7b7a98cf7a5eaf4f0e81da9779a9a668ced4/public/scripts/world-info.js#L4519
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from rolellm.characters.cards.card import V1_FIELDS, Card, limit_notes
from rolellm.characters.lore import compile_key, list_refused_keys
from rolellm.characters.scripts.parse import detect_language
from rolellm.core.errors import CardError, RoleLLMError, SettingsError
from rolellm.core.fingerprint import hash_bytes
from rolellm.core.records import Language, Logic, Lore, Profile, Turn
from rolellm.core.text import format_count, join_names
from rolellm.models.prompts.retrieval import find_exchanges

#: The longest name of a role, in characters.
MAX_NAME = 200
LOGICS: tuple[Logic, ...] = get_args(Logic)
_NARRATOR = "narrator"
_USERS: dict[Language, tuple[str, str]] = {"en": ("User", "Visitor"), "zh": ("用户", "访客")}

_COMMENT = r"\{\{//(?:\{\{[^{}]*\}\}|(?!\{\{|\}\}).)*\}\}"
_PLACEHOLDER = re.compile(r"(?is)\{\{(char|user)\}\}|<(bot|char|user)>|" + _COMMENT)
_START = re.compile(r"^[ \t]*<START>", re.IGNORECASE | re.MULTILINE)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SURROGATES = re.compile("[\ud800-\udfff]")
_DECORATORS = re.compile(r"\s*(?:@@[^\n]*(?:\n\s*|\Z))+")
_HIDDEN = frozenset({"Cc", "Cf", "Cs"})
_MAX_CREDIT = 200


@dataclass(frozen=True, slots=True)
class CardNames:
    """The names that a card's placeholders and labels mean.

    Attributes:
        role: The speaker of the character's lines.
        char: The text for ``{{char}}``.
        user: The speaker of the lines said to it, and the text for ``{{user}}``.
        labels: Other names that a line of the character may begin with, such as its name in the card.
    """

    role: str
    char: str
    user: str
    labels: tuple[str, ...] = ()


def choose_user_name(language: Language, role: str) -> str:
    """Name whoever talks to a role, differently from the role."""
    first, second = _USERS[language]
    if role.casefold() == first.casefold():
        return second
    return first


def fill(text: str, names: CardNames) -> str:
    """Replace placeholders by names, once, and remove comments.

    >>> fill("<BOT> greets{{// twice}} {{User}} {{7*7}}", CardNames("Fox", "Fox", "{{char}}"))
    'Fox greets {{char}} {{7*7}}'
    """

    def name(match: re.Match[str]) -> str:
        kind = match[1] or match[2]
        if not kind:
            return ""
        if kind.lower() == "user":
            return names.user
        return names.char

    return _PLACEHOLDER.sub(name, text)


def split_blocks(text: str) -> list[str]:
    """Split example talk into its blocks, without ``<START>``; text before the first is one, too."""
    return [block for block in _START.split(text) if block.strip()]


def join_blocks(texts: Sequence[str]) -> str:
    """Join blocks to the text of ``mes_example``."""
    blocks: list[str] = []
    for text in texts:
        if not text[:1].isspace():
            text = f"\n{text}"
        blocks.append(f"<START>{text.removesuffix(chr(10))}\n")
    return "".join(blocks).rstrip("\n")


def parse_block(block: str, names: CardNames, scene: int) -> list[Turn]:
    """Parse a block as turns; text before the first speaker is narration."""
    labels = list(_compile_label(names).finditer(block))
    ends = [match.start() for match in labels[1:]] + [len(block)]
    opening = block
    if labels:
        opening = block[: labels[0].start()]
    turns = [Turn(_NARRATOR, fill(opening, names).strip(), "narration", scene)]
    for match, end in zip(labels, ends, strict=False):
        speaker = names.role if match["role"] else names.user
        content = fill(block[match.end() : end], names).strip()
        turns.append(Turn(speaker, content, "speech", scene))
    return [turn for turn in turns if turn.content]


def format_block(turns: Iterable[Turn], names: CardNames) -> str:
    """Format turns of one scene as a block, which `parse_block` reads again.

    Everyone but the role speaks as ``{{user}}``: a card knows no third. Narration comes at the beginning only.
    """
    label = _compile_label(names).pattern.removeprefix("^")
    label_breaks = re.compile(rf"\n(?={label}|[ \t]*<START>)", re.IGNORECASE)
    lines: list[str] = []
    for turn in turns:
        content = label_breaks.sub(" ", turn.content)
        if turn.kind == "speech":
            speaker = "{{char}}" if turn.speaker == names.role else "{{user}}"
            lines.append(f"{speaker}: {content}")
        elif turn.kind == "narration" and not lines:
            lines.append(content)
    return "\n" + "\n".join(lines) + "\n"


def _compile_label(names: CardNames) -> re.Pattern[str]:
    own_names = filter(None, (names.role, names.char, *names.labels))
    own = "|".join(map(re.escape, dict.fromkeys(own_names)))
    role = rf"\{{\{{char\}}\}}|<bot>|<char>|{own}"
    user = rf"\{{\{{user\}}\}}|<user>|you|{re.escape(names.user)}"
    return re.compile(rf"^[ \t]*(?:(?P<role>{role})|(?P<user>{user}))[ \t]*[:：]", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CardReading:
    """A card read as a character, with the origin of each part.

    Attributes:
        character: The character.
        names: The names in the card.
        examples: The scenes of example talk.
        lore: For each item of lore, the index of its entry in the book.
        notes: Notes for the user.
    """

    character: Profile
    names: CardNames
    examples: tuple[int, ...] = ()
    lore: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


def read_as_character(
    card: Card,
    *,
    role: str | None = None,
    language: Language | None = None,
    file: str | None = None,
    user: str = "",
) -> CardReading:
    """Make a character of a card.

    Args:
        card: The card.
        role: A name in place of the card's.
        language: By default Chinese where the card's texts are mostly Chinese, else English.
        file: The name of the file it is from.
        user: The name for ``{{user}}``; by default as `choose_user_name` has it.

    Raises:
        CardError: When the card's name is empty or over `MAX_NAME` characters, and no other is given.
        SettingsError: When the name given is empty or too long, or for another language.
    """
    if language not in (None, *_USERS):
        raise SettingsError(f"no prompts in the language {language!r}; use en or zh")
    notes = list(card.notes)
    names, language = _choose_names(card, role, language, notes)
    if user:
        names = replace(names, user=user)
    turns, examples = _read_turns(card, names, notes)
    lore, entries = _read_lore(card, names, notes)
    texts = filter(None, (clean_text(card.description), clean_text(card.personality)))
    description = fill("\n\n".join(texts), names)
    if not description:
        notes.append("it has neither description nor personality; write one with `rolellm role build`")
    if card.assets:
        notes.append(f"{format_count(len(card.assets), 'asset')} kept in the card; none was fetched")
    limited = limit_notes(notes)
    aliases = dict.fromkeys(alias for alias in names.labels if alias != names.role)
    given_name = None if role is None else names.role
    card_hash = hash_bytes(card.text.encode("utf-8"))
    creator = clean_text(card.creator)[:_MAX_CREDIT]
    card_version = clean_text(card.character_version)[:_MAX_CREDIT]
    origin = {
        "spec": card.spec,
        "sha256": card_hash,
        # By these two an export reads the card again as it was read here, and so finds what was changed since.
        "given_name": given_name,
        "language": language,
        "creator": creator,
        "character_version": card_version,
        "description": "the card's description and personality, word for word; not yet in the second person",
        "notes": list(limited),
    }
    script = clean_text(file or "") or None
    character = Profile(
        role=names.role,
        language=language,
        turns=tuple(turns),
        description=description or None,
        lore=lore,
        aliases=tuple(aliases),
        script=script,
        made={"card": origin},
    )
    return CardReading(character, names, examples, entries, limited)


def clean_text(text: str) -> str:
    """Clean a card's text: LF at line ends, no control characters, no half surrogate pairs, trimmed."""
    text = _CONTROLS.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    return _SURROGATES.sub("\ufffd", text).strip()


def clean_name(name: str) -> str:
    r"""Put a name on one line, without characters that a reader would not see: control, bidi, zero-width and the like.

    >>> clean_name(" A\u202eda\n\x1b[1m Fenn ")
    'Ada [1m Fenn'
    """
    one_line = " ".join(name.split())
    visible = "".join(sign for sign in one_line if unicodedata.category(sign) not in _HIDDEN)
    return " ".join(visible.split())


def _choose_names(
    card: Card, role: str | None, language: Language | None, notes: list[str]
) -> tuple[CardNames, Language]:
    """Choose the names in a card, and its language, by which its user is named; note what is not as in the card."""
    name = _check_name(card, role, notes)
    if language is None:
        texts = (card.description, card.personality, card.first_mes, card.mes_example)
        language = detect_language(" ".join(text[:20_000] for text in texts))
        notes.append(f"no language was given; by its texts the card is taken for {language}")
    own = clean_name(card.name[:MAX_NAME])
    nickname = clean_name(card.nickname)
    if len(nickname) > MAX_NAME:
        notes.append(f"the nickname has {len(nickname):,} characters; it stays in the card but is not used")
        nickname = ""
    char = name
    if role is None and nickname:
        char = nickname
    labels = tuple(filter(None, (own, nickname)))
    return CardNames(name, char, choose_user_name(language, name), labels), language


def _check_name(card: Card, role: str | None, notes: list[str]) -> str:
    raw = card.name
    advice = "give it one: rolellm role card CARD --out FOLDER --set role=NAME"
    error: type[RoleLLMError] = CardError
    if role is not None:
        raw = role
        error = SettingsError
        advice = "give another with --set role=NAME"
    name = clean_name(raw[: 10 * MAX_NAME])
    if not name:
        raise error(f"the name is empty or has no visible character; {advice}")
    if len(raw) > MAX_NAME:
        raise error(f"the name has {len(raw):,} characters, expected at most {MAX_NAME}; {advice}")
    if name != raw:
        notes.append(f"invisible characters and extra spaces were removed from the name {ascii(raw)[:80]}")
    return name


def _read_turns(card: Card, names: CardNames, notes: list[str]) -> tuple[list[Turn], tuple[int, ...]]:
    turns: list[Turn] = []
    scenario = fill(clean_text(card.scenario), names)
    if scenario:
        turns.append(Turn(_NARRATOR, scenario, "narration", 0))
    scene = 0
    for greeting in (card.first_mes, *card.alternate_greetings):
        content = fill(clean_text(greeting), names).strip()
        if content:
            turns.append(Turn(names.role, content, "speech", scene))
            scene += 1
    if scenario and not scene:
        scene += 1
    first_example = scene
    silent = 0
    for block in split_blocks(clean_text(card.mes_example)):
        block_turns = parse_block(block, names, scene)
        if block_turns:
            turns += block_turns
            scene += 1
            silent += all(turn.speaker != names.role for turn in block_turns)
    if silent:
        notes.append(
            f"no line begins with {{{{char}}}}: or the name in {format_count(silent, 'block')} of mes_example: "
            "read as narration"
        )
    return turns, tuple(range(first_example, scene))


def _read_lore(card: Card, names: CardNames, notes: list[str]) -> tuple[tuple[Lore, ...], tuple[int, ...]]:
    items: list[Lore] = []
    indices: list[int] = []
    skipped: Counter[str] = Counter()
    for index, entry in sorted(enumerate(card.entries), key=lambda item: item[1].get("insertion_order", 0)):
        text = entry.get("content", "")
        # Lines that begin with @@, which V3 has, and applications read in any card.
        opening = _DECORATORS.match(text)
        decorators = opening[0] if opening else ""
        flags = decorators.split()
        content = fill(clean_text(text[len(decorators) :]), names).strip()
        is_activated = "@@activate" in flags
        if not entry.get("enabled", True) or ("@@dont_activate" in flags and not is_activated):
            skipped["disabled"] += 1
        elif not content:
            skipped["without content"] += 1
        else:
            lore = _read_entry(entry, content, names)
            items.append(replace(lore, constant=lore.constant or is_activated))
            indices.append(index)
    for reason, count in sorted(skipped.items()):
        notes.append(f"lorebook entries {reason}: {count:,} of {len(card.entries):,}; kept in the card")
    keys: list[str] = []
    for lore in items:
        keys += [*lore.keys, *lore.secondary_keys]
    refused = list_refused_keys(keys)
    if refused:
        notes.append(
            f"lore keys that are read as plain text: {join_names(refused)}. A pattern needs RE2's syntax, which has no "
            "look-arounds and no back-references"
        )
    return tuple(items), tuple(indices)


def _read_entry(entry: Mapping[str, Any], content: str, names: CardNames) -> Lore:
    def read_keys(field: str) -> tuple[str, ...]:
        keys = [fill(clean_text(key), names).strip() for key in entry.get(field, ())]
        return tuple(filter(None, keys))

    extensions = entry.get("extensions", {})
    logic = extensions.get("selectiveLogic")
    if not isinstance(logic, int) or not 0 <= logic < len(LOGICS):
        logic = 0
    case = extensions.get("case_sensitive")
    if case is None:
        case = entry.get("case_sensitive", False)
    name = entry.get("name") or entry.get("comment", "")
    keys = read_keys("keys")
    note_name = clean_name(fill(name, names))
    secondary_keys = read_keys("secondary_keys") if entry.get("selective") else ()
    return Lore(
        content,
        keys,
        note_name,
        secondary_keys,
        LOGICS[logic],
        constant=entry.get("constant", False),
        case_sensitive=case is True,
        whole_words=extensions.get("match_whole_words") is not False,
    )


#: How much new example talk is written into a card, in characters, and the longest scene that is taken whole, in turns:
#: applications put all of it into each prompt.
EXAMPLES = 6_000
WHOLE_SCENE = 12
_MAX_ORDER = 1_000_000
#: The fields that V3 requires, with their empty values.
_REQUIRED: Mapping[str, Any] = {
    **dict.fromkeys((*V1_FIELDS, "creator_notes", "system_prompt", "post_history_instructions"), ""),
    "alternate_greetings": [],
    "tags": [],
    "creator": "",
    "character_version": "",
    "extensions": {},
    "group_only_greetings": [],
}


@dataclass(frozen=True, slots=True)
class ExportedCard:
    """A character as a card V3.

    Attributes:
        value: The card's object.
        changed: The fields that differ from the card that the character came from; empty of a new card.
        notes: Notes for the user.
    """

    value: Mapping[str, Any] = field(repr=False)
    changed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def export_character(character: Profile, card: Card | None = None) -> ExportedCard:
    """Write a character as a card V3.

    Args:
        character: The character.
        card: The card that it came from. Its fields stay, but for those that differ from the character.

    Raises:
        CardError: When the card cannot be read as a character.
    """
    notes: list[str] = []
    if card is None:
        raw: Mapping[str, Any] = {}
        old: Mapping[str, Any] = {}
        changes = _make_fields(character, notes)
    else:
        raw = {} if card.spec == "v1" else card.raw
        old = card.data
        changes = _find_changes(character, card, notes)
    # SillyTavern writes the fields of V1 a second time, next to `data`.
    copies = {name: value for name, value in changes.items() if name in raw}
    data = {**_REQUIRED, **old, **changes}
    book = data.get("character_book")
    if book and isinstance(book.get("entries"), list):
        entries = [{"use_regex": False, **entry} for entry in book["entries"]]
        data["character_book"] = {**book, "entries": entries}
    value = {**raw, **copies, "spec": "chara_card_v3", "spec_version": "3.0", "data": data}
    changed = () if card is None else tuple(changes)
    return ExportedCard(value, changed, tuple(notes))


def _make_fields(character: Profile, notes: list[str]) -> dict[str, Any]:
    role = character.role
    names = CardNames(role, role, choose_user_name(character.language, role))
    scenes = _group_scenes(character.turns)
    texts, lines = _select_examples(scenes, character, names)
    description = character.full_description or character.background or ""
    fields: dict[str, Any] = {"name": role, "description": description, "mes_example": join_blocks(texts)}
    if character.lore:
        entries = [_make_entry(item, order) for order, item in enumerate(character.lore)]
        fields["character_book"] = {"extensions": {}, "entries": entries}
    notes.append("first_mes is empty: the character has no greeting; applications show one, so write it")
    if not description:
        notes.append("description is empty: make one with `rolellm role build`")
    own = sum(map(character.owns, character.turns))
    notes.append(f"mes_example has {lines:,} of the role's {format_count(own, 'line')}")
    return fields


def _find_changes(character: Profile, card: Card, notes: list[str]) -> dict[str, Any]:
    """Find the card's fields that its character no longer agrees with, each with its new value."""
    reading = _read_as_imported(character, card)
    original = reading.character
    changes: dict[str, Any] = {}
    if character.role != original.role:
        changes["name"] = character.role
    description = character.full_description or character.background or ""
    if description != (original.full_description or ""):
        changes["description"] = description
        if card.personality:
            changes["personality"] = ""
    # The role may have been given another name since.
    scenes = _group_scenes(character.turns, {character.role: original.role})
    old_scenes = _group_scenes(original.turns)
    added = [turns for turns in scenes if turns not in old_scenes]
    if added:
        blocks, lines = _select_examples(added, replace(character, role=original.role), reading.names)
        changes["mes_example"] = "\n".join(filter(None, (card.mes_example, join_blocks(blocks))))
        notes.append(f"{format_count(lines, 'line')} of new scenes added to mes_example")
    if character.lore != original.lore:
        changes["character_book"] = _change_book(character, card, reading)
    return changes


def _read_as_imported(character: Profile, card: Card) -> CardReading:
    """Read the card as it was read when it was imported, by the character's record of that."""
    origin = character.made.get("card")
    if not isinstance(origin, Mapping):
        origin = {}
    name = origin.get("given_name")
    language = origin.get("language")
    if not isinstance(name, str):
        is_usable = clean_name(card.name[:MAX_NAME]) and len(card.name) <= MAX_NAME
        name = None if is_usable else character.role
    if language not in _USERS:
        language = character.language
    return read_as_character(card, role=name, language=language)


def _select_examples(scenes: Iterable[list[Turn]], character: Profile, names: CardNames) -> tuple[list[str], int]:
    """Select blocks of example talk within the budget, and count the role's lines in them."""
    blocks: list[str] = []
    budget = EXAMPLES
    lines = 0
    for turns in scenes:
        if not any(map(character.owns, turns)):
            continue
        parts: Sequence[Sequence[Turn]] = [turns]
        if len(turns) > WHOLE_SCENE:
            scene = replace(character, turns=tuple(turns))
            parts = [(exchange.before, exchange.line) for exchange in find_exchanges(scene)]
        for part in parts:
            block = format_block(part, names)
            if len(block) <= budget:
                blocks.append(block)
                budget -= len(block)
                lines += sum(map(character.owns, part))
    return blocks, lines


def _group_scenes(turns: Iterable[Turn], names: Mapping[str, str] | None = None) -> list[list[Turn]]:
    """Group turns by scene, without their places in a script, and with speakers renamed where given."""
    scenes: dict[int, list[Turn]] = {}
    for turn in turns:
        speaker = (names or {}).get(turn.speaker, turn.speaker)
        scene = scenes.setdefault(turn.scene, [])
        scene.append(Turn(speaker, turn.content, turn.kind))
    return list(scenes.values())


def _change_book(character: Profile, card: Card, reading: CardReading) -> dict[str, Any]:
    """Give the card's lorebook with the character's lore: entries that are as they were stay, as do disabled ones."""
    book = card.data.get("character_book") or {"extensions": {}}
    old_entries = book.get("entries") or []
    originals = dict(zip(reading.character.lore, reading.lore, strict=True))
    entries = [entry for index, entry in enumerate(old_entries) if index not in reading.lore]
    last = max((entry.get("insertion_order", 0) for entry in card.entries), default=-1)
    order = int(min(last, _MAX_ORDER)) + 1
    for item in character.lore:
        if item in originals:
            entries.append(old_entries[originals[item]])
        else:
            entries.append(_make_entry(item, order))
            order += 1
    return {**book, "entries": entries}


def _make_entry(lore: Lore, order: int) -> dict[str, Any]:
    """Make an entry by V2 and V3."""
    keys = list(lore.keys)
    if not keys and lore.name and not lore.constant:
        # Without keys nothing would ever call it up, so its name has to.
        keys = [lore.name]
    settings = {
        "selectiveLogic": LOGICS.index(lore.logic),
        "case_sensitive": lore.case_sensitive,
        "match_whole_words": lore.whole_words,
    }
    return {
        "enabled": True,
        "insertion_order": order,
        "keys": keys,
        "content": lore.content,
        "extensions": settings,
        "use_regex": any(map(compile_key, keys)),
        "name": lore.name,
        "secondary_keys": list(lore.secondary_keys),
        "selective": bool(lore.secondary_keys),
        "constant": lore.constant,
    }
