"""Example talk in cards: blocks that begin with ``<START>``, lines that begin with who speaks, and the placeholders.

``{{char}}``, ``<BOT>`` and ``<CHAR>`` stand for the character, ``{{user}}`` and ``<USER>`` for whoever talks to it, in
any case (V1 and V3). They are filled in one pass, so that nothing in a name is filled again; any other template syntax
is text like all text. Who else speaks in a block is not told apart from what the last speaker says: that is how the
applications read it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rolellm.records import Language, Turn

NARRATOR = "narrator"

_PLACEHOLDER = re.compile(r"\{\{(char|user)\}\}|<(bot|char|user)>", re.IGNORECASE)
_START = re.compile(r"^[ \t]*<START>", re.IGNORECASE | re.MULTILINE)
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
    """Put names in the place of the placeholders, once.

    >>> fill("<BOT> greets {{User}} {{7*7}}", Names("Fox", "Fox", "{{char}}"))
    'Fox greets {{char}} {{7*7}}'
    """

    def name(found: re.Match[str]) -> str:
        return names.user if (found[1] or found[2]).lower() == "user" else names.char

    return _PLACEHOLDER.sub(name, text)


def blocks(text: str) -> list[str]:
    """The blocks of example talk, without ``<START>``; what stands before the first is one, too."""
    return [block for block in _START.split(text) if block.strip()]


def turns_of(block: str, names: Names, scene: int) -> list[Turn]:
    """The turns of a block; what stands before the first speaker is told, not said."""
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

    Everyone but the role speaks as ``{{user}}``: a card knows no third. Narration stands at the beginning only.
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
    return "".join(f"<START>{text if text.endswith(chr(10)) else text + chr(10)}" for text in texts).rstrip("\n")


def _label(names: Names) -> re.Pattern[str]:
    own = "|".join(re.escape(name) for name in dict.fromkeys((names.role, names.char, *names.labels)) if name)
    role = rf"\{{\{{char\}}\}}|<bot>|<char>|{own}"
    user = rf"\{{\{{user\}}\}}|<user>|{re.escape(names.user)}"
    return re.compile(rf"^[ \t]*(?:(?P<role>{role})|(?P<user>{user}))[ \t]*[:：]", re.IGNORECASE | re.MULTILINE)
