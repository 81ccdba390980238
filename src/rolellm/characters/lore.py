"""Keys that call up an entry of lore, as SillyTavern reads them.

A key of the form ``/pattern/flags`` is a regular expression, which only its flags change; any other is plain text.
Secondary keys narrow that down. So it is in SillyTavern, whatever the entry's ``use_regex`` says:
https://github.com/SillyTavern/SillyTavern/blob/ba6f7b7a98cf7a5eaf4f0e81da9779a9a668ced4/public/scripts/world-info.js#L243
(plain keys and whole words), ``#L2231`` (patterns), ``#L3924`` (secondary keys). Its settings as installed ignore case
and look for whole words, and so do we (``default/content/settings.json`` there).

Patterns come with cards, which come from anywhere, so RE2 runs them: it compiles within a limit on memory and searches
in time that grows with the text alone. It has no look-around and no back-references.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Iterable
from typing import Any

from rolellm.core.errors import require
from rolellm.core.records import Lore
from rolellm.core.text import fold, replace_surrogates

#: Maximum bytes of a compiled pattern, about 10,000 instructions: the worst takes 0.7 s on 20,000 characters.
_MEMORY = 1 << 18
_PATTERN = re.compile(r"/(.+?)/([dgimsuvy]*)", re.DOTALL)
_BARE_SLASH = re.compile(r"(?<!\\)/")
# A character by its number, as JavaScript writes it.
_CODE_POINT = re.compile(r"(?<!\\)((?:\\\\)*)\\u(?:([0-9a-fA-F]{4})|\{([0-9a-fA-F]{1,6})\})")


def find_keys(lore: Lore, text: str) -> tuple[str, ...]:
    """The keys of an entry that call it up in a text; none where its secondary keys do not allow it.

    >>> find_keys(Lore("…", ("crow", "/ra+ven/i"), secondary_keys=("king",)), "The King has a raaven!")
    ('/ra+ven/i',)

    Raises:
        MissingExtraError: When a key is a pattern, and ``re2`` is not installed.
    """

    def matches(key: str) -> bool:
        return matches_key(key, text, case_sensitive=lore.case_sensitive, whole_words=lore.whole_words)

    keys = tuple(filter(matches, lore.keys))
    if not keys or not lore.secondary_keys:
        return keys
    second = list(map(matches, lore.secondary_keys))
    is_called = any(second) if lore.logic.endswith("any") else all(second)
    if is_called == lore.logic.startswith("not"):
        return ()
    return keys


def matches_key(key: str, text: str, *, case_sensitive: bool = False, whole_words: bool = True) -> bool:
    """Tell whether a key is in a text: as a whole word where it is one word, for "art" is not in "start".

    >>> matches_key("art", "Where do we start?"), matches_key("Crow", "O crow!"), matches_key("/cr[ao]w/", "O crow!")
    (False, True, True)
    """
    pattern = compile_key(key)
    if pattern is not None:
        return pattern.search(replace_surrogates(text)) is not None
    key, text = " ".join(key.split()), " ".join(text.split())
    if not case_sensitive:
        key, text = fold(key), fold(text)
    if not key or key not in text:
        return False
    if not whole_words or " " in key:
        return True
    # What is no ASCII letter or digit bounds a word: Chinese has no other bounds.
    return re.search(rf"(?<!\w){re.escape(key)}(?!\w)", text, re.ASCII) is not None


def compile_key(key: str) -> Any:
    """Compile a key that is a regular expression; ``None`` for a plain one, and for one that RE2 refuses."""
    pattern = _compile(key)
    return None if isinstance(pattern, str) else pattern


def list_refused_keys(keys: Iterable[str]) -> list[str]:
    """List the patterns among keys that RE2 refuses, each with its reason; none where ``re2`` is not installed."""
    refused: list[str] = []
    if importlib.util.find_spec("re2") is None:
        return refused
    for key in dict.fromkeys(keys):
        reason = _compile(key)
        if isinstance(reason, str):
            refused.append(f"{key[:60]} ({reason})")
    return refused


@functools.lru_cache(maxsize=1000)
def _compile(key: str) -> Any:
    """Compile a key: ``None`` for a plain one, such as one with a bare slash within; the reason why RE2 refuses it."""
    parts = _PATTERN.fullmatch(key)
    if parts is None or _BARE_SLASH.search(parts[1]):
        return None
    require("re2", extra="llm")
    import re2

    options = re2.Options()
    options.max_mem, options.log_errors = _MEMORY, False
    # Nobody asks what a group matched, and a thousand groups cost megabytes.
    options.never_capture = True
    pattern = replace_surrogates(parts[1])
    pattern = _CODE_POINT.sub(lambda code: rf"{code[1]}\x{{{code[2] or code[3]}}}", pattern)
    flags = "".join(sorted(set(parts[2]) & set("ims")))
    if flags:
        pattern = f"(?{flags}){pattern}"
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        return str(error.args[0].decode(errors="replace"))[:100]
