"""What calls up an entry of lore: its keys, as SillyTavern reads them.

A key of the form ``/pattern/flags`` is a regular expression, which only its flags change; any other is plain text.
Secondary keys narrow that down. So it is in SillyTavern, whatever the entry's ``use_regex`` says:
https://github.com/SillyTavern/SillyTavern/blob/ba6f7b7a98cf7a5eaf4f0e81da9779a9a668ced4/public/scripts/world-info.js#L243
(plain keys and whole words), ``#L2231`` (patterns), ``#L3924`` (secondary keys). Its settings as installed ignore case
and look for whole words, and so do we (``default/content/settings.json`` there).

Patterns are run by the package ``regex``, with a limit on time: they come with cards, which come from anywhere.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from rolellm.construct.sheet import Lore
from rolellm.core.errors import SettingsError, require
from rolellm.core.text import fold

#: The longest that one pattern may take on a question, in seconds; a sound one takes a thousandth.
_LIMIT = 1.0
_PATTERN = re.compile(r"/(.+?)/([dgimsuvy]*)", re.DOTALL)
_BARE_SLASH = re.compile(r"(?<!\\)/")


def called_up(lore: Lore, text: str) -> tuple[str, ...]:
    """The keys of an entry that call it up in a text; none where its secondary keys do not allow it.

    >>> called_up(Lore("…", ("crow", "/ra+ven/i"), secondary_keys=("king",)), "The King has a raaven!")
    ('/ra+ven/i',)

    Raises:
        SettingsError: When a pattern takes too long.
        MissingExtraError: When a key is a pattern, and ``regex`` is not installed.
    """

    def found(key: str) -> bool:
        return stands_in(key, text, case_sensitive=lore.case_sensitive, whole_words=lore.whole_words)

    keys = tuple(filter(found, lore.keys))
    if not keys or not lore.secondary_keys:
        return keys
    second = list(map(found, lore.secondary_keys))
    allowed = {"and_any": any(second), "and_all": all(second), "not_any": not any(second), "not_all": not all(second)}
    return keys if allowed[lore.logic] else ()


def stands_in(key: str, text: str, *, case_sensitive: bool = False, whole_words: bool = True) -> bool:
    """Whether a key is in a text: as a whole word where it is one word, for "art" is not in "start".

    >>> stands_in("art", "Where do we start?"), stands_in("Crow", "O crow!"), stands_in("/cr[ao]w/", "O crow!")
    (False, True, True)
    """
    pattern = pattern_of(key)
    if pattern is not None:
        try:
            return pattern.search(text, timeout=_LIMIT) is not None
        except TimeoutError as error:
            raise SettingsError(
                f"the lore key {key[:60]!r} takes over {_LIMIT:.0f} second on one question; "
                "simplify it, or take it out, in profile.json"
            ) from error
    wanted, there = (" ".join(one.split()) if case_sensitive else fold(one) for one in (key, text))
    if not wanted or not whole_words or " " in wanted:
        return bool(wanted) and wanted in there
    # What is no ASCII letter or digit bounds a word: Chinese has no other bounds.
    return wanted in there and re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", there, re.ASCII) is not None


@functools.lru_cache(maxsize=10_000)
def pattern_of(key: str) -> Any:
    """The regular expression that a key is; ``None`` for a plain one, such as one with a bare slash within."""
    found = _PATTERN.fullmatch(key)
    if found is None or _BARE_SLASH.search(found[1]):
        return None
    require("regex", extra="llm")
    import regex

    flags = {"i": regex.IGNORECASE, "m": regex.MULTILINE, "s": regex.DOTALL}
    try:
        return regex.compile(found[1], sum(flags.get(sign, 0) for sign in set(found[2])))
    except (regex.error, RecursionError):
        return None
