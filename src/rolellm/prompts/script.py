"""How turns of a script read inside a prompt: ``Name: text`` for speech, brackets for narration. The form is ours."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Final

from rolellm.records import Language, Turn

#: What stands in for a line of someone else, by language: where the role opens a scene, and where it goes on.
OPENING: Final = MappingProxyType({"en": "(You speak first.)", "zh": "（你先开口。）"})
ONWARD: Final = MappingProxyType({"en": "(You go on.)", "zh": "（你接着说。）"})

#: Characters of a turn that a prompt shows (our choice): a speech of two pages would leave no room for anything else.
LONGEST: Final = 400

_COLON: Final = MappingProxyType({"en": ": ", "zh": "："})
_BRACKETS: Final = MappingProxyType({"en": ("(", ")"), "zh": ("（", "）")})
_BRACKETED: Final = ("()", "[]", "（）", "【】", "［］")
_CUT_WORD: Final = re.compile(r"\s\S{0,30}\Z")


def shorten(text: str) -> str:
    """A text of up to `LONGEST` characters as it is; of a longer one the beginning, to the end of a word, and "…"."""
    if len(text) <= LONGEST:
        return text
    return _CUT_WORD.sub("", text[: LONGEST - 1]).rstrip() + "…"


def script_line(turn: Turn, language: Language, *, whole: bool = False) -> str:
    """A turn, shortened unless `whole`, with its speaker's name; narration stands in brackets, once, without a name.

    >>> script_line(Turn("King", "A fine day."), "en")
    'King: A fine day.'
    """
    text = turn.content
    if turn.kind == "speech":
        return f"{turn.speaker}{_COLON[language]}{text if whole else shorten(text)}"
    if text[:1] + text[-1:] in _BRACKETED:
        text = text[1:-1].strip()
    opening, closing = _BRACKETS[language]
    return f"{opening}{text if whole else shorten(text)}{closing}"
