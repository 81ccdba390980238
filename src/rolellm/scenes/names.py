"""Names of characters in a text: whole, or by a word that no other's name has, such as Dobbs of Constable Dobbs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain
from typing import Final

#: What a turn's note says where it had another's lines, or name.
SPOKE_FOR: Final = "spoke for"
#: A word of a name that can stand for it: not "of", and not "The".
_NAME_WORD: Final = re.compile(r"\b(?!The\b)[^\Wa-z_]\w+")
#: A line's head in a play: a title, a name, an act, a colon.
_HEAD: Final = r"[\s*]*(?:[A-Za-z]{{1,4}}\.\s+)?(?:{})[\s*]*(?P<act>\([^)]*\)|\[[^]]*\])?[\s*]*[:：][\s*]*"


@lru_cache
def _list_forms(names: tuple[str, ...]) -> str:
    """List the forms of names as a pattern, with a group for each; whole names in any case, words as they are."""
    words_by_name = {name: _NAME_WORD.findall(name) for name in names}
    counts = Counter(chain.from_iterable(map(set, words_by_name.values())))
    groups = []
    # Longer ones first: one name may begin with another.
    for number, name in sorted(enumerate(names), key=lambda item: -len(item[1])):
        own_words = [word for word in words_by_name[name] if counts[word] == 1]
        forms = "|".join([f"(?i:{re.escape(name)})", *map(re.escape, own_words)])
        groups.append(f"(?P<name{number}>{forms})")
    return "|".join(groups)


def _read_name(match: re.Match[str], names: Iterable[str]) -> str:
    return next(name for number, name in enumerate(names) if match[f"name{number}"] is not None)


def find_names(text: str, names: Iterable[str]) -> Iterator[str]:
    """Find whom a text names, in order.

    >>> list(find_names("Dobbs! Is marta quill here?", ["Constable Dobbs", "Marta Quill"]))
    ['Constable Dobbs', 'Marta Quill']
    """
    names = tuple(names)
    # Chinese has no spaces, so only a letter of English next to it makes it part of a longer word.
    for match in re.finditer(rf"(?<![a-zA-Z])(?:{_list_forms(names)})(?![a-zA-Z])", text):
        yield _read_name(match, names)


def find_only_named(text: str, names: Iterable[str]) -> str:
    """Find the one character whom a text names; empty for none or more.

    >>> find_only_named("The threats of Lear sound hollow.", ["King Lear", "The Fool"])
    'King Lear'
    """
    named = {*find_names(text, names)}
    return named.pop() if len(named) == 1 else ""


def keep_own_lines(text: str, speaker: str, names: Iterable[str]) -> tuple[str, str]:
    r"""Take the names out of a turn that is written like a play, and cut it where another character's lines begin.

    A turn that begins with another's name is still the speaker's: models that read a script often put the wrong one.

    >>> keep_own_lines("Othello: Who is there?\nIago: Me, my lord.", "Othello", ["Othello", "Iago"])
    ('Who is there?', 'spoke for Iago')

    Returns:
        What is left, and for whom it spoke; empty for nobody.
    """
    names = tuple(names)
    pattern = _HEAD.format(_list_forms(names))
    head = re.compile(pattern)
    # Chinese begins them in the middle of a line, too.
    text = re.sub(rf"(?<=[。！？”」』）])(?={pattern})", "\n", text)
    kept: list[str] = []
    note = ""
    for line in text.split("\n"):
        match = head.match(line)
        if match is None:
            kept.append(line)
            continue
        name = _read_name(match, names)
        if name != speaker:
            note = f"{SPOKE_FOR} {name}"
            if any(map(str.strip, kept)):
                break
        act = match["act"] or ""
        own = line[match.end() :]
        kept.append(f"{act} {own}".strip())
    return "\n".join(kept).strip() or text, note
