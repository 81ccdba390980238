"""A card as a character: what becomes what.

``description`` and ``personality`` become the description, word for word: ``rolellm role build`` puts it in the second
person. ``first_mes`` and each alternate greeting open a scene of their own, after the ``scenario`` as narration; each
block of ``mes_example`` is a scene, and so is example talk in the description (as in Ali:Chat); each enabled entry of
the lorebook is one of lore. All else stays in the card.

Lore stands where SillyTavern would put it into a prompt: before the character, after it, around example talk, at the
author's note, then in the chat, the deepest first; within each place by ``insertion_order``. See its
https://github.com/SillyTavern/SillyTavern/blob/ba6f7b7a98cf7a5eaf4f0e81da9779a9a668ced4/public/scripts/world-info.js#L4519
(the fields of an entry) and ``#L4123`` (the order).
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from typing import Any, get_args

from rolellm.construct.cards.card import Card, Entry, first_notes
from rolellm.construct.scripts.parse import detect_language
from rolellm.construct.sheet import Logic, Lore, Sheet
from rolellm.core.errors import CardError, SettingsError
from rolellm.core.fingerprint import hash_bytes
from rolellm.core.records import Language, Turn
from rolellm.core.text import number_of

NARRATOR = "narrator"

_COMMENT = r"\{\{//(?:\{\{[^{}]*\}\}|(?!\{\{|\}\}).)*\}\}"
_PLACEHOLDER = re.compile(r"(?is)\{\{(char|user)\}\}|<(bot|char|user)>|" + _COMMENT)
_MACRO = re.compile(r"<%|\{\{(?!(?:char|user|original)\}\}|//)\s*[^\s:{}|]{1,30}", re.IGNORECASE)
_START = re.compile(r"^[ \t]*<START>", re.IGNORECASE | re.MULTILINE)
_ASKS = re.compile(r"[ \t]*(?:\{\{user\}\}|<user>)[ \t]*[:：]", re.IGNORECASE)
_USERS: dict[Language, tuple[str, str]] = {"en": ("User", "Visitor"), "zh": ("用户", "访客")}


@dataclass(frozen=True, slots=True)
class Names:
    """Who is who in a card.

    Attributes:
        role: The speaker of what the character says.
        char: What ``{{char}}`` becomes.
        user: The speaker of what is said to it, and what ``{{user}}`` becomes.
        labels: What else a line of the character may begin with, such as its name in the card.
    """

    role: str
    char: str
    user: str
    labels: tuple[str, ...] = ()


def user_name(language: Language, role: str) -> str:
    """A name for whoever talks to a role, which is not the role's own."""
    first, second = _USERS[language]
    return second if role.casefold() == first.casefold() else first


def fill(text: str, names: Names) -> str:
    """Put names in the place of the placeholders, once, and take comments out.

    >>> fill("<BOT> greets{{// twice}} {{User}} {{7*7}}", Names("Fox", "Fox", "{{char}}"))
    'Fox greets {{char}} {{7*7}}'
    """

    def name(found: re.Match[str]) -> str:
        who = (found[1] or found[2] or "").lower()
        return names.user if who == "user" else names.char if who else ""

    return _PLACEHOLDER.sub(name, text)


def refill(text: str, old: str, names: Names) -> str:
    """A changed text with the placeholders and comments of the old one, but for those in what was changed.

    >>> refill("Fox greets User. Fox is red.", "<BOT> greets {{user}}. {{char}} is gray.", Names("Fox", "Fox", "User"))
    '<BOT> greets {{user}}. {{char}} is red.'
    """
    known = "|".join((_PLACEHOLDER.pattern.removeprefix("(?is)"), re.escape(names.char), re.escape(names.user)))
    parts = re.compile(rf"(?is)(?:{_COMMENT})*(?:{known}|[a-z0-9]+|.|\Z)")
    before, after = ([found[0] for found in parts.finditer(one)] for one in (old, text))
    told, now = ([fill(part, names) for part in one] for one in (before, after))
    kept: list[str] = []
    for what, start, end, first, last in SequenceMatcher(None, told, now).get_opcodes():
        comments = re.findall(rf"(?s){_COMMENT}", "".join(before[start:end]))
        kept += before[start:end] if what == "equal" else [*comments, *after[first:last]]
    return "".join(kept)


def blocks(text: str) -> list[str]:
    """The blocks of example talk, without ``<START>``; anything before the first is one, too."""
    return [block for block in _START.split(text) if block.strip()]


def talk_in(text: str, names: Names) -> tuple[str, list[str]]:
    r"""A description without the example talk in it, and the blocks of that talk, as Ali:Chat has them.

    Talk begins at ``<START>`` or where the user speaks. It ends at a line in brackets (a PList), or where after a blank
    line nobody speaks. Without a line of the role it is none.

    >>> talk_in("A fox.\n{{user}}: Why?\n{{char}}: Why not?\n\nLives here.", Names("Fox", "Fox", "User"))
    ('A fox.\n\nLives here.', ['{{user}}: Why?\n{{char}}: Why not?\n'])
    """
    label = _label(names)
    parts: list[tuple[bool, list[str]]] = [(False, [])]
    for line in text.split("\n"):
        talking, before = parts[-1]
        if _START.match(line) or (not talking and _ASKS.match(line)):
            parts.append((True, []))
        elif talking and (
            line.lstrip().startswith("[") or (line.strip() and not before[-1].strip() and not label.match(line))
        ):
            parts.append((False, []))
        parts[-1][1].append(line)
    told: list[str] = []
    talk: list[str] = []
    for talking, lines in parts:
        block = _START.sub("", "\n".join(lines), count=1)
        if talking and any(turn.speaker == names.role for turn in turns_of(block, names, 0)):
            talk.append(block)
            told.append("")
        else:
            told += lines
    return (re.sub(r"\n{3,}", "\n\n", "\n".join(told)).strip(), talk) if talk else (text, talk)


def turns_of(block: str, names: Names, scene: int) -> list[Turn]:
    """The turns of a block; anything before the first speaker is narration."""
    label = _label(names)
    found = list(label.finditer(block))
    ends = [match.start() for match in found[1:]] + [len(block)]
    told = block[: found[0].start()] if found else block
    turns = [Turn(NARRATOR, fill(told, names).strip(), "narration", scene)]
    for match, end in zip(found, ends, strict=False):
        speaker = names.role if match["role"] else names.user
        turns.append(Turn(speaker, fill(block[match.end() : end], names).strip(), "speech", scene))
    return [turn for turn in turns if turn.content]


def block_of(turns: Iterable[Turn], names: Names) -> str:
    """Turns of one scene as a block, which `turns_of` reads again.

    Everyone but the role speaks as ``{{user}}``: a card knows no third. Narration comes at the beginning only.
    """
    begins = re.compile(rf"\n(?={_label(names).pattern[1:]}|[ \t]*<START>)", re.IGNORECASE)
    lines: list[str] = []
    for turn in turns:
        content = begins.sub(" ", turn.content)
        if turn.kind == "speech":
            lines.append(f"{{{{{'char' if turn.speaker == names.role else 'user'}}}}}: {content}")
        elif turn.kind == "narration" and not lines:
            lines.append(content)
    return "\n" + "\n".join(lines) + "\n"


def joined(texts: Sequence[str]) -> str:
    """Blocks as the text of ``mes_example``."""
    apart = (text if text[:1].isspace() else f"\n{text}" for text in texts)
    return "".join(f"<START>{text if text.endswith(chr(10)) else text + chr(10)}" for text in apart).rstrip("\n")


def _label(names: Names) -> re.Pattern[str]:
    own = "|".join(re.escape(name) for name in dict.fromkeys((names.role, names.char, *names.labels)) if name)
    role = rf"\{{\{{char\}}\}}|<bot>|<char>|{own}"
    user = rf"\{{\{{user\}}\}}|<user>|you|{re.escape(names.user)}"
    return re.compile(rf"^[ \t]*(?:(?P<role>{role})|(?P<user>{user}))[ \t]*[:：]", re.IGNORECASE | re.MULTILINE)


#: The longest name of a role, in characters; our choice.
MAX_NAME = 200
FIRST = -1

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SURROGATES = re.compile("[\ud800-\udfff]")
_DECORATORS = re.compile(r"\s*(?:@@[^\n]*(?:\n\s*|\Z))+")
_HIDDEN = frozenset({"Cc", "Cf", "Cs"})
_SAID = 200
LOGICS: tuple[Logic, ...] = get_args(Logic)
#: SillyTavern's positions in the order of a prompt: before and after the character, before and after example talk, the
#: author's note above and below, in the chat at a depth.
_POSITIONS = (0, 1, 5, 6, 2, 3, 4)
_AT_DEPTH, _DEPTH = 4, 4


@dataclass(frozen=True, slots=True)
class Reading:
    """A card read as a character, and where each part of it came from.

    Attributes:
        character: What the card says.
        names: Who is who in it.
        greetings: By scene, which alternate greeting it is; `FIRST` for ``first_mes``.
        examples: By scene, the block of ``mes_example``, its placeholders not filled.
        described: By scene, talk in the description or the personality, its placeholders not filled.
        lore: For each item of lore, the place of its entry in the book, and its decorators (V3).
        notes: What a user should know.
    """

    character: Sheet
    names: Names
    greetings: Mapping[int, int] = field(default_factory=dict)
    examples: Mapping[int, str] = field(default_factory=dict)
    described: Mapping[int, str] = field(default_factory=dict)
    lore: tuple[tuple[int, str], ...] = ()
    notes: tuple[str, ...] = ()


def read_as_character(
    card: Card, *, role: str | None = None, language: Language | None = None, file: str | None = None
) -> Reading:
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
    name = _name(card, role, notes)
    if language is None:
        parts = (card.description, card.personality, card.first_mes, card.mes_example)
        language = detect_language(" ".join(part[:20_000] for part in parts))
        notes.append(f"no language was given; by its texts the card is taken for {language}")
    own, nickname = clean_name(card.name[:MAX_NAME]), clean_name(card.nickname)
    if len(nickname) > MAX_NAME:
        notes.append(f"the nickname has {len(nickname):,} characters; it stays in the card but is not used")
        nickname = ""
    char = name if role is not None else nickname or name
    names = Names(name, char, user_name(language, name), tuple(other for other in (own, nickname) if other))
    turns, greetings, examples = _turns(card, names, notes)
    lore, places = _lore(card, names, notes)
    split = [talk_in(plain(text), names) for text in (card.description, card.personality)]
    first = max((turn.scene for turn in turns), default=-1) + 1
    talk = [block for _, blocks in split for block in blocks]
    turns += [turn for scene, block in enumerate(talk, start=first) for turn in turns_of(block, names, scene)]
    described = {scene: block.strip() for scene, block in enumerate(talk, start=first)}
    description = fill("\n\n".join(filter(None, (told for told, _ in split))), names)
    if talk:
        notes.append(f"example talk in the description was made into scenes ({len(talk):,})")
    if not description:
        notes.append("it has neither description nor personality; write one with `rolellm role build`")
    prompts = (description, card.system_prompt, card.post_history_instructions)
    told = "\n".join((*prompts, *(turn.content for turn in turns), *(item.content for item in lore)))
    if macros := list(dict.fromkeys(f"{found[0]}…" for found in _MACRO.finditer(told))):
        notes.append(f"macros are not run, and stay as text in prompts: {', '.join(macros[:8])}")
    if card.assets:
        notes.append(f"{number_of(len(card.assets), 'asset')} kept in the card; none was fetched")
    character = Sheet(
        role=name,
        language=language,
        turns=tuple(turns),
        description=description or None,
        lore=lore,
        aliases=tuple(dict.fromkeys(other for other in (own, nickname) if other and other != name)),
        script=plain(file) if file else None,
    )
    made = {"card": _made(card, character, role, first_notes(notes))}
    return Reading(replace(character, made=made), names, greetings, examples, described, places, first_notes(notes))


def plain(text: str) -> str:
    """A card's text as a character's: LF at line ends, no control characters, no halves of surrogate pairs, trimmed."""
    text = _CONTROLS.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    return _SURROGATES.sub("\ufffd", text).strip()


def clean_name(name: str) -> str:
    r"""A name on one line, without what a reader would not see: control, bidi, zero-width and other such characters.

    >>> clean_name(" A\u202eda\n\x1b[1m Fenn ")
    'Ada [1m Fenn'
    """
    one_line = " ".join(name.split())
    return " ".join("".join(sign for sign in one_line if unicodedata.category(sign) not in _HIDDEN).split())


def _name(card: Card, given: str | None, notes: list[str]) -> str:
    raw = card.name if given is None else given
    error = CardError if given is None else SettingsError
    name = clean_name(raw[: 10 * MAX_NAME])
    way = "give one with --name" if given is None else "give another with --name"
    if not name:
        raise error(f"the name is empty or has no visible character; {way}")
    if len(raw) > MAX_NAME:
        raise error(f"the name has {len(raw):,} characters, expected at most {MAX_NAME}; {way}")
    if name != raw:
        notes.append(f"invisible characters and extra spaces were removed from the name {ascii(raw)[:80]}")
    return name


def _turns(card: Card, names: Names, notes: list[str]) -> tuple[list[Turn], dict[int, int], dict[int, str]]:
    turns: list[Turn] = []
    greetings: dict[int, int] = {}
    examples: dict[int, str] = {}
    scenario = fill(plain(card.scenario), names)
    if scenario:
        turns.append(Turn(NARRATOR, scenario, "narration", 0))
    scene = 0
    for place, greeting in enumerate((card.first_mes, *card.alternate_greetings), start=FIRST):
        content = fill(plain(greeting), names).strip()
        if content:
            turns.append(Turn(names.role, content, "speech", scene))
            greetings[scene] = place
            scene += 1
    scene += bool(scenario) and not greetings
    silent = 0
    for block in blocks(plain(card.mes_example)):
        found = turns_of(block, names, scene)
        if found:
            turns += found
            examples[scene] = block
            scene += 1
            silent += all(turn.speaker != names.role for turn in found)
    if silent:
        notes.append(
            f"no line begins with {{{{char}}}}: or the name in {number_of(silent, 'block')} of mes_example: "
            "read as narration"
        )
    return turns, greetings, examples


def _lore(card: Card, names: Names, notes: list[str]) -> tuple[tuple[Lore, ...], tuple[tuple[int, str], ...]]:
    found: list[tuple[int, str, Lore]] = []
    counts: Counter[str] = Counter()
    for place in sorted(range(len(card.entries)), key=lambda place: _position(card.entries[place])):
        entry = card.entries[place]
        # Lines that begin with @@, which V3 has, and applications read in any card.
        opening = _DECORATORS.match(entry.content)
        decorators = opening[0] if opening else ""
        content = fill(plain(entry.content[len(decorators) :]), names).strip()
        if not entry.enabled or ("@@dont_activate" in decorators.split() and "@@activate" not in decorators.split()):
            counts["disabled"] += 1
            continue
        if not content:
            counts["empty"] += 1
            continue
        keys, more = (
            tuple(filter(None, (fill(plain(key), names).strip() for key in given)))
            for given in (entry.keys, entry.secondary_keys if entry.selective else ())
        )
        logic, case, whole = map(entry.extensions.get, ("selectiveLogic", "case_sensitive", "match_whole_words"))
        lore = Lore(
            content,
            keys,
            clean_name(fill(entry.name, names)),
            more,
            LOGICS[logic if isinstance(logic, int) and 0 <= logic < len(LOGICS) else 0],
            constant=entry.constant or "@@activate" in decorators.split(),
            case_sensitive=bool(entry.case_sensitive) if case is None else case is True,
            whole_words=whole is not False,
        )
        found.append((place, decorators, lore))
    for kind, what in (
        ("disabled", "disabled"),
        ("empty", "without content"),
    ):
        if counts[kind]:
            notes.append(f"lorebook entries {what}: {counts[kind]:,} of {len(card.entries):,}; kept in the card")
    return tuple(lore for _, _, lore in found), tuple((place, decorators) for place, decorators, _ in found)


def _position(entry: Entry) -> tuple[float, float, float]:
    """What decides where an entry stands among the others."""
    position, depth = entry.extensions.get("position"), entry.extensions.get("depth")
    if position not in _POSITIONS:
        position = 0 if entry.position == "before_char" else 1
    if position != _AT_DEPTH or not isinstance(depth, int | float):
        depth = _DEPTH
    return _POSITIONS.index(position), -depth, entry.insertion_order


def _made(card: Card, character: Sheet, given: str | None, notes: tuple[str, ...]) -> dict[str, Any]:
    return {
        "spec": card.spec,
        "sha256": hash_bytes(card.text.encode("utf-8")),
        # By these two an export reads the card again as it was read here, and so finds what was changed since.
        "given_name": None if given is None else character.role,
        "language": character.language,
        "creator": plain(card.creator)[:_SAID],
        "character_version": plain(card.character_version)[:_SAID],
        "description": "the card's description and personality, word for word; not yet in the second person",
        "notes": list(notes),
    }
