"""A card as a character: what becomes what.

``description`` and ``personality`` become the description, word for word: ``rolellm role build`` puts it in the second
person. ``first_mes`` and each alternate greeting open a scene of their own, after the ``scenario`` as narration; each
block of ``mes_example`` is a scene, and so is example talk in the description (as in Ali:Chat); each enabled entry of
the lorebook is one of lore. All else stays in the card.

Lore is put where SillyTavern would put it into a prompt: before the character, after it, around example talk, at the
author's note, then in the chat, the deepest first; within each place by ``insertion_order``. See its
https://github.com/SillyTavern/SillyTavern/blob/ba6f7b7a98cf7a5eaf4f0e81da9779a9a668ced4/public/scripts/world-info.js#L4519
(the fields of an entry) and ``#L4123`` (the order).
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any, get_args

from rolellm.characters.cards.card import Card, limit_notes
from rolellm.characters.lore import list_refused_keys
from rolellm.characters.scripts.parse import detect_language
from rolellm.core.errors import CardError, SettingsError
from rolellm.core.fingerprint import hash_bytes
from rolellm.core.records import Language, Logic, Lore, Profile, Turn
from rolellm.core.text import format_count, join_names

#: The longest name of a role, in characters; our choice.
MAX_NAME = 200
FIRST_GREETING = -1
LOGICS: tuple[Logic, ...] = get_args(Logic)
_NARRATOR = "narrator"
_USERS: dict[Language, tuple[str, str]] = {"en": ("User", "Visitor"), "zh": ("用户", "访客")}

_COMMENT = r"\{\{//(?:\{\{[^{}]*\}\}|(?!\{\{|\}\}).)*\}\}"
_PLACEHOLDER = re.compile(r"(?is)\{\{(char|user)\}\}|<(bot|char|user)>|" + _COMMENT)
_MACRO = re.compile(r"<%|\{\{(?!(?:char|user|original)\}\}|//)\s*[^\s:{}|]{1,30}", re.IGNORECASE)
_START = re.compile(r"^[ \t]*<START>", re.IGNORECASE | re.MULTILINE)
_USER_LINE = re.compile(r"[ \t]*(?:\{\{user\}\}|<user>)[ \t]*[:：]", re.IGNORECASE)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SURROGATES = re.compile("[\ud800-\udfff]")
_DECORATORS = re.compile(r"\s*(?:@@[^\n]*(?:\n\s*|\Z))+")
_HIDDEN = frozenset({"Cc", "Cf", "Cs"})
_MAX_CREDIT = 200
#: SillyTavern's positions in the order of a prompt: before and after the character, before and after example talk, the
#: author's note above and below, in the chat at a depth.
_POSITIONS = (0, 1, 5, 6, 2, 3, 4)
_AT_DEPTH, _DEPTH = 4, 4


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
    return second if role.casefold() == first.casefold() else first


def fill(text: str, names: CardNames) -> str:
    """Replace placeholders by names, once, and remove comments.

    >>> fill("<BOT> greets{{// twice}} {{User}} {{7*7}}", CardNames("Fox", "Fox", "{{char}}"))
    'Fox greets {{char}} {{7*7}}'
    """

    def name(match: re.Match[str]) -> str:
        kind = (match[1] or match[2] or "").lower()
        return names.user if kind == "user" else names.char if kind else ""

    return _PLACEHOLDER.sub(name, text)


def refill(text: str, old: str, names: CardNames) -> str:
    """Put the placeholders and comments of an old text into its new version, wherever it did not change.

    >>> refill("Fox greets User. Fox is red.", "<BOT> greets {{user}}. {{char}} is gray.",
    ...        CardNames("Fox", "Fox", "User"))
    '<BOT> greets {{user}}. {{char}} is red.'
    """
    words = "|".join((_PLACEHOLDER.pattern.removeprefix("(?is)"), re.escape(names.char), re.escape(names.user)))
    pattern = re.compile(rf"(?is)(?:{_COMMENT})*(?:{words}|[a-z0-9]+|.|\Z)")
    before, after = ([match[0] for match in pattern.finditer(version)] for version in (old, text))
    old_filled, new_filled = ([fill(part, names) for part in parts] for parts in (before, after))
    pieces: list[str] = []
    for operation, start, end, first, last in SequenceMatcher(None, old_filled, new_filled).get_opcodes():
        comments = re.findall(rf"(?s){_COMMENT}", "".join(before[start:end]))
        pieces += before[start:end] if operation == "equal" else [*comments, *after[first:last]]
    return "".join(pieces)


def split_blocks(text: str) -> list[str]:
    """Split example talk into its blocks, without ``<START>``; text before the first is one, too."""
    return [block for block in _START.split(text) if block.strip()]


def join_blocks(texts: Sequence[str]) -> str:
    """Join blocks to the text of ``mes_example``."""
    apart = (text if text[:1].isspace() else f"\n{text}" for text in texts)
    return "".join(f"<START>{text if text.endswith(chr(10)) else text + chr(10)}" for text in apart).rstrip("\n")


def separate_talk(text: str, names: CardNames) -> tuple[str, list[str]]:
    r"""Separate a description from the blocks of example talk in it, as Ali:Chat has them.

    Talk begins at ``<START>`` or where the user speaks. It ends at a line in brackets (a PList), or where after a blank
    line nobody speaks. Without a line of the role it is none.

    >>> separate_talk("A fox.\n{{user}}: Why?\n{{char}}: Why not?\n\nLives here.", CardNames("Fox", "Fox", "User"))
    ('A fox.\n\nLives here.', ['{{user}}: Why?\n{{char}}: Why not?\n'])
    """
    label = _compile_label(names)
    parts: list[tuple[bool, list[str]]] = [(False, [])]
    for line in text.split("\n"):
        is_talk, before = parts[-1]
        if _START.match(line) or (not is_talk and _USER_LINE.match(line)):
            parts.append((True, []))
        elif is_talk and (
            line.lstrip().startswith("[") or (line.strip() and not before[-1].strip() and not label.match(line))
        ):
            parts.append((False, []))
        parts[-1][1].append(line)
    description: list[str] = []
    talk: list[str] = []
    for is_talk, lines in parts:
        block = _START.sub("", "\n".join(lines), count=1)
        if is_talk and any(turn.speaker == names.role for turn in parse_block(block, names, 0)):
            talk.append(block)
            description.append("")
        else:
            description += lines
    return (re.sub(r"\n{3,}", "\n\n", "\n".join(description)).strip(), talk) if talk else (text, talk)


def parse_block(block: str, names: CardNames, scene: int) -> list[Turn]:
    """Parse a block as turns; text before the first speaker is narration."""
    labels = list(_compile_label(names).finditer(block))
    ends = [match.start() for match in labels[1:]] + [len(block)]
    opening = block[: labels[0].start()] if labels else block
    turns = [Turn(_NARRATOR, fill(opening, names).strip(), "narration", scene)]
    for match, end in zip(labels, ends, strict=False):
        speaker = names.role if match["role"] else names.user
        turns.append(Turn(speaker, fill(block[match.end() : end], names).strip(), "speech", scene))
    return [turn for turn in turns if turn.content]


def format_block(turns: Iterable[Turn], names: CardNames) -> str:
    """Format turns of one scene as a block, which `parse_block` reads again.

    Everyone but the role speaks as ``{{user}}``: a card knows no third. Narration comes at the beginning only.
    """
    label_breaks = re.compile(rf"\n(?={_compile_label(names).pattern[1:]}|[ \t]*<START>)", re.IGNORECASE)
    lines: list[str] = []
    for turn in turns:
        content = label_breaks.sub(" ", turn.content)
        if turn.kind == "speech":
            lines.append(f"{{{{{'char' if turn.speaker == names.role else 'user'}}}}}: {content}")
        elif turn.kind == "narration" and not lines:
            lines.append(content)
    return "\n" + "\n".join(lines) + "\n"


def _compile_label(names: CardNames) -> re.Pattern[str]:
    own = "|".join(re.escape(name) for name in dict.fromkeys((names.role, names.char, *names.labels)) if name)
    role = rf"\{{\{{char\}}\}}|<bot>|<char>|{own}"
    user = rf"\{{\{{user\}}\}}|<user>|you|{re.escape(names.user)}"
    return re.compile(rf"^[ \t]*(?:(?P<role>{role})|(?P<user>{user}))[ \t]*[:：]", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CardReading:
    """A card read as a character, with the origin of each part.

    Attributes:
        character: The character.
        names: The names in the card.
        greetings: By scene, the index of the alternate greeting; `FIRST_GREETING` for ``first_mes``.
        examples: By scene, the block of ``mes_example``, its placeholders not filled.
        embedded: By scene, talk in the description or the personality, its placeholders not filled.
        lore: For each item of lore, the index of its entry in the book, and its decorators (V3).
        notes: Notes for the user.
    """

    character: Profile
    names: CardNames
    greetings: Mapping[int, int] = field(default_factory=dict)
    examples: Mapping[int, str] = field(default_factory=dict)
    embedded: Mapping[int, str] = field(default_factory=dict)
    lore: tuple[tuple[int, str], ...] = ()
    notes: tuple[str, ...] = ()


def read_as_character(
    card: Card, *, role: str | None = None, language: Language | None = None, file: str | None = None
) -> CardReading:
    """Make a character of a card.

    Args:
        card: The card.
        role: A name in place of the card's.
        language: By default Chinese where the card's texts are mostly Chinese, else English.
        file: The name of the file it is from.

    Raises:
        CardError: When the card's name is empty or over `MAX_NAME` characters, and no other is given.
        SettingsError: When the name given is empty or too long, or for another language.
    """
    if language not in (None, *_USERS):
        raise SettingsError(f"no prompts in the language {language!r}; use en or zh")
    notes = list(card.notes)
    names, language = _choose_names(card, role, language, notes)
    turns, greetings, examples = _read_turns(card, names, notes)
    lore, lore_sources = _read_lore(card, names, notes)
    parts = [separate_talk(clean_text(text), names) for text in (card.description, card.personality)]
    blocks = [block for _, talk in parts for block in talk]
    embedded = dict(enumerate(blocks, start=max((turn.scene for turn in turns), default=-1) + 1))
    turns += [turn for scene, block in embedded.items() for turn in parse_block(block, names, scene)]
    description = fill("\n\n".join(filter(None, (text for text, _ in parts))), names)
    if embedded:
        notes.append(f"example talk in the description was made into scenes ({len(embedded):,})")
    if not description:
        notes.append("it has neither description nor personality; write one with `rolellm role build`")
    prompts = (description, card.system_prompt, card.post_history_instructions)
    filled = "\n".join((*prompts, *(turn.content for turn in turns), *(item.content for item in lore)))
    if macros := list(dict.fromkeys(f"{macro[0]}…" for macro in _MACRO.finditer(filled))):
        notes.append(f"macros are not run, and stay as text in prompts: {', '.join(macros[:8])}")
    if card.assets:
        notes.append(f"{format_count(len(card.assets), 'asset')} kept in the card; none was fetched")
    limited = limit_notes(notes)
    origin = {
        "spec": card.spec,
        "sha256": hash_bytes(card.text.encode("utf-8")),
        # By these two an export reads the card again as it was read here, and so finds what was changed since.
        "given_name": None if role is None else names.role,
        "language": language,
        "creator": clean_text(card.creator)[:_MAX_CREDIT],
        "character_version": clean_text(card.character_version)[:_MAX_CREDIT],
        "description": "the card's description and personality, word for word; not yet in the second person",
        "notes": list(limited),
    }
    character = Profile(
        role=names.role,
        language=language,
        turns=tuple(turns),
        description=description or None,
        lore=lore,
        aliases=tuple(dict.fromkeys(alias for alias in names.labels if alias != names.role)),
        script=clean_text(file) if file else None,
        made={"card": origin},
    )
    embedded = {scene: block.strip() for scene, block in embedded.items()}
    return CardReading(character, names, greetings, examples, embedded, lore_sources, limited)


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
    return " ".join("".join(sign for sign in one_line if unicodedata.category(sign) not in _HIDDEN).split())


def _choose_names(
    card: Card, role: str | None, language: Language | None, notes: list[str]
) -> tuple[CardNames, Language]:
    """Choose the names in a card, and its language, by which its user is named; note what is not as in the card."""
    name = _check_name(card, role, notes)
    if language is None:
        texts = (card.description, card.personality, card.first_mes, card.mes_example)
        language = detect_language(" ".join(text[:20_000] for text in texts))
        notes.append(f"no language was given; by its texts the card is taken for {language}")
    own, nickname = clean_name(card.name[:MAX_NAME]), clean_name(card.nickname)
    if len(nickname) > MAX_NAME:
        notes.append(f"the nickname has {len(nickname):,} characters; it stays in the card but is not used")
        nickname = ""
    char = name if role is not None else nickname or name
    labels = tuple(filter(None, (own, nickname)))
    return CardNames(name, char, choose_user_name(language, name), labels), language


def _check_name(card: Card, role: str | None, notes: list[str]) -> str:
    raw = card.name if role is None else role
    error = CardError if role is None else SettingsError
    advice = "give one with --name" if role is None else "give another with --name"
    name = clean_name(raw[: 10 * MAX_NAME])
    if not name:
        raise error(f"the name is empty or has no visible character; {advice}")
    if len(raw) > MAX_NAME:
        raise error(f"the name has {len(raw):,} characters, expected at most {MAX_NAME}; {advice}")
    if name != raw:
        notes.append(f"invisible characters and extra spaces were removed from the name {ascii(raw)[:80]}")
    return name


def _read_turns(card: Card, names: CardNames, notes: list[str]) -> tuple[list[Turn], dict[int, int], dict[int, str]]:
    turns: list[Turn] = []
    greetings: dict[int, int] = {}
    examples: dict[int, str] = {}
    scenario = fill(clean_text(card.scenario), names)
    if scenario:
        turns.append(Turn(_NARRATOR, scenario, "narration", 0))
    scene = 0
    for index, greeting in enumerate((card.first_mes, *card.alternate_greetings), start=FIRST_GREETING):
        content = fill(clean_text(greeting), names).strip()
        if content:
            turns.append(Turn(names.role, content, "speech", scene))
            greetings[scene] = index
            scene += 1
    scene += bool(scenario) and not greetings
    silent = 0
    for block in split_blocks(clean_text(card.mes_example)):
        block_turns = parse_block(block, names, scene)
        if block_turns:
            turns += block_turns
            examples[scene] = block
            scene += 1
            silent += all(turn.speaker != names.role for turn in block_turns)
    if silent:
        notes.append(
            f"no line begins with {{{{char}}}}: or the name in {format_count(silent, 'block')} of mes_example: "
            "read as narration"
        )
    return turns, greetings, examples


def _read_lore(card: Card, names: CardNames, notes: list[str]) -> tuple[tuple[Lore, ...], tuple[tuple[int, str], ...]]:
    items: list[Lore] = []
    sources: list[tuple[int, str]] = []
    skipped: Counter[str] = Counter()
    for index, entry in sorted(enumerate(card.entries), key=lambda item: _rank_entry(item[1])):
        text = entry.get("content", "")
        # Lines that begin with @@, which V3 has, and applications read in any card.
        opening = _DECORATORS.match(text)
        decorators = opening[0] if opening else ""
        content = fill(clean_text(text[len(decorators) :]), names).strip()
        is_activated = "@@activate" in decorators.split()
        if not entry.get("enabled", True) or ("@@dont_activate" in decorators.split() and not is_activated):
            skipped["disabled"] += 1
            continue
        if not content:
            skipped["without content"] += 1
            continue
        keys, secondary_keys = (
            tuple(filter(None, (fill(clean_text(key), names).strip() for key in entry.get(name, ()))))
            for name in ("keys", "secondary_keys")
        )
        extensions = entry.get("extensions", {})
        logic, case, whole_words = map(extensions.get, ("selectiveLogic", "case_sensitive", "match_whole_words"))
        lore = Lore(
            content,
            keys,
            clean_name(fill(entry.get("name") or entry.get("comment", ""), names)),
            secondary_keys if entry.get("selective") else (),
            LOGICS[logic if isinstance(logic, int) and 0 <= logic < len(LOGICS) else 0],
            constant=entry.get("constant", False) or is_activated,
            case_sensitive=entry.get("case_sensitive", False) if case is None else case is True,
            whole_words=whole_words is not False,
        )
        items.append(lore)
        sources.append((index, decorators))
    for reason in ("disabled", "without content"):
        if skipped[reason]:
            notes.append(f"lorebook entries {reason}: {skipped[reason]:,} of {len(card.entries):,}; kept in the card")
    if refused := list_refused_keys(key for lore in items for key in (*lore.keys, *lore.secondary_keys)):
        notes.append(
            f"lore keys that are read as plain text: {join_names(refused)}. A pattern needs RE2's syntax, which has no "
            "look-arounds and no back-references"
        )
    return tuple(items), tuple(sources)


def _rank_entry(entry: Mapping[str, Any]) -> tuple[float, float, float]:
    """Rank an entry among the others by its position in a prompt."""
    extensions = entry.get("extensions", {})
    position, depth = extensions.get("position"), extensions.get("depth")
    if position not in _POSITIONS:
        position = 0 if entry.get("position") == "before_char" else 1
    if position != _AT_DEPTH or not isinstance(depth, int | float):
        depth = _DEPTH
    return _POSITIONS.index(position), -depth, entry.get("insertion_order", 0)
