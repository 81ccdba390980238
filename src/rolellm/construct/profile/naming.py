"""Finds a role's names in a text: to keep them out of its description, and to find who speaks of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rolellm.construct.character import Character
from rolellm.text import HAN

_RUN: Final = re.compile(r"[^\W_]+")
_ARTICLE: Final = re.compile(r"(?:the|an?)\s+(?=\S)", re.IGNORECASE)
_LATIN_EDGE: Final = ("(?<![A-Za-z0-9_\u00c0-\u024f])", "(?![A-Za-z0-9_\u00c0-\u024f])")
_LEAST_PART: Final = 3
#: Parts of names that name nobody by themselves.
_WORDS: Final = """
the and von van der den del los las one two who what dr mr mrs ms miss sir madam lord lady king queen prince
princess duke duchess count countess baron emperor empress captain colonel major general sergeant lieutenant
commander admiral officer agent doctor professor judge father mother brother sister uncle aunt saint old young
little big great first second third
"""
_COMMON: Final = frozenset(_WORDS.split())


@dataclass(frozen=True, slots=True)
class Names:
    """The names of a role as patterns.

    Attributes:
        listed: The role's name and its aliases, as given.
        patterns: What finds them and, of a name of several words, the words that name the role by themselves.
    """

    listed: tuple[str, ...]
    patterns: tuple[re.Pattern[str], ...]

    def find(self, text: str) -> str | None:
        """The first name in a text, as it stands there; ``None`` where there is none.

        In English a name counts where it begins with a capital: a role called Soldier may be described as a soldier.
        """
        for pattern in self.patterns:
            for hit in pattern.finditer(text):
                if not hit.group()[0].islower():
                    return hit.group()
        return None


def names_of(character: Character) -> Names:
    """The names of a character, its aliases among them, and what of them stands for it alone.

    A word of a name that the script also has in lower case (the ``silver`` of Long John Silver) counts only within a
    sentence, where a capital says that it is a name. Chinese names of one character are passed over: they would be
    found in other words.
    """
    listed = character.names
    whole = [pattern for name in listed if (pattern := _pattern(name)) is not None]
    parts = dict.fromkeys(part for name in listed for part in _parts(name))
    ordinary = _in_lower_case(character, parts)
    anywhere = [part for part in parts if part not in ordinary]
    within = [part for part in parts if part in ordinary]
    patterns = [_joined(whole, "", re.IGNORECASE), _joined(map(_edged, anywhere), "", 0)]
    patterns.append(_joined(map(_edged, within), r"(?<=[^\W_][ ,'’-])|(?<=[^\W_], )", 0))
    return Names(listed, tuple(pattern for pattern in patterns if pattern is not None))


def _pattern(name: str) -> str | None:
    runs = _RUN.findall(_ARTICLE.sub("", name, count=1) if _ARTICLE.match(name) else name)
    if not runs or (len(runs) == 1 and len(runs[0]) < 2 and (HAN.search(runs[0]) or runs[0].lower() in "ai")):
        return None
    return _edged(*runs)


def _edged(*runs: str) -> str:
    """A pattern of words with little between them that has no letter on either side; Chinese has no such sides."""
    before = "" if HAN.match(runs[0]) else _LATIN_EDGE[0]
    after = "" if HAN.match(runs[-1][-1]) else _LATIN_EDGE[1]
    return before + r"[\W_]{0,3}".join(map(re.escape, runs)) + after


def _joined(patterns: Iterable[str], before: str, flags: int) -> re.Pattern[str] | None:
    # The longest first: of aliases that contain each other the whole one is what is found.
    listed = sorted(patterns, key=lambda pattern: (-len(pattern), pattern))
    if not listed:
        return None
    lead = f"(?:{before})" if before else ""
    return re.compile(f"{lead}(?:{'|'.join(listed)})", flags)


def _parts(name: str) -> list[str]:
    runs = _RUN.findall(name)
    if len(runs) < 2:
        return []
    return [
        run if run[1:].islower() or HAN.match(run) else run.capitalize() if run.isupper() else run
        for run in runs
        if (len(run) > 1 if HAN.match(run) else len(run) >= _LEAST_PART)
        and run.casefold() not in _COMMON
        and (run[0].isupper() or HAN.match(run))
    ]


def _in_lower_case(character: Character, parts: Iterable[str]) -> frozenset[str]:
    words = {part.lower(): part for part in parts if not HAN.match(part)}
    if not words:
        return frozenset()
    pattern = re.compile("|".join(map(_edged, sorted(words, key=len, reverse=True))))
    return frozenset(words[found] for turn in character.turns for found in pattern.findall(turn.content))
