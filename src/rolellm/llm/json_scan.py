"""Where a JSON value lies in a text, found in one pass without recursion; the text may be anything."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

#: The deepest nesting that is read (our choice); schemas in use have three or four levels.
DEEPEST = 64

_TOKEN = re.compile(
    r"""[ \t\r\n]*+(?:
        (?P<mark>[{}\[\],:])
      | (?P<text>"(?:[^"\\]++|\\.)*+")
      | (?P<word>(?:-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?|true|false|null)(?![\w.+-]))
    )""",
    re.VERBOSE | re.DOTALL,
)
# What may be the beginning of a token at the very end of a text, a closing fence aside.
_UNFINISHED = re.compile(
    r'[ \t\r\n]*+(?:"(?:[^"\\]++|\\.)*+\\?|-?[0-9.eE+-]*+|[a-z]{0,4})[ \t\r\n]*+(?:```[ \t\r\n]*+)?\Z', re.DOTALL
)
_CLOSES = {"{": "}", "[": "]"}

_VALUE, _FIRST_VALUE, _NEXT_VALUE = "value", "first value", "next value"
_FIRST_KEY, _NEXT_KEY, _COLON, _MORE = "first key", "next key", "colon", "more"
_VALUES = (_VALUE, _FIRST_VALUE, _NEXT_VALUE)
# Where a bracket may close: after a value, in an empty container, and after a comma too many.
_ENDS = (_MORE, _FIRST_VALUE, _FIRST_KEY, _NEXT_VALUE, _NEXT_KEY)


@dataclass(slots=True)
class Scan:
    """What lies in a text from an opening bracket on.

    Attributes:
        start: The bracket's place.
        status: ``whole``, ``cut`` (the text ends first), ``broken`` (no JSON from `end` on), ``deep``, or ``other``:
            whole, and of another kind than the one looked for.
        end: Just past the value, or where it stops being one.
        begun: Whether it had a comma or a colon in its place; prose in brackets has not.
        nested: Whether there was a bracket within.
        commas: Places of commas before a closing bracket, which JSON does not have.
        items: Places of the whole items of the list looked for.
    """

    start: int
    status: Literal["whole", "cut", "broken", "deep", "other"] = "broken"
    end: int = 0
    begun: bool = False
    nested: bool = False
    commas: list[int] = field(default_factory=list)
    items: list[tuple[int, int]] = field(default_factory=list)


def scan(text: str, start: int, key: str | None = None) -> Scan:
    """Follow a JSON value from its opening bracket.

    Args:
        text: Any text.
        start: Where an opening bracket stands.
        key: Note the items of the list under this key of the outermost object, or of an outermost list.
    """
    return _Scanner(text, start, None if key is None else f'"{key}"').run()


class _Scanner:
    def __init__(self, text: str, start: int, key: str | None) -> None:
        self.text = text
        self.key = key
        self.found = Scan(start, end=start)
        self.closing: list[str] = []
        self.expect = _VALUE
        self.comma = 0
        self.name = ""
        # The depth of the list looked for, where its item at hand begins, and the last item if it is whole.
        self.listed = 0
        self.item = 0
        self.ready: tuple[int, int] | None = None

    def run(self) -> Scan:
        found, text, match = self.found, self.text, _TOKEN.match
        while True:
            token = match(text, found.end)
            if token is None:
                found.status = "cut" if _UNFINISHED.match(text, found.end) else "broken"
                break
            kind = token.lastgroup
            begin, end = token.span(kind or 0)
            if kind == "mark":
                if not self._mark(text[begin], begin):
                    break
            elif not self._scalar(kind == "text", begin, end):
                break
            found.end = end
            if not self.closing:
                found.status = "whole"
                break
        # What looks like a number may be the first half of one.
        if self.ready is not None and text[self.ready[0]] in '{["':
            self._settle()
        return found

    def _mark(self, mark: str, place: int) -> bool:
        """Take a mark where it may stand; whether it may."""
        if mark in _CLOSES:
            return self.expect in _VALUES and self._open(mark, place)
        if mark == ":":
            self.found.begun = self.found.begun or self.expect == _COLON
            return self._go(self.expect == _COLON, _VALUE)
        if mark == ",":
            if self.expect != _MORE:
                return False
            self.found.begun = True
            self.comma = place
            self._settle()
            return self._go(True, _NEXT_KEY if self.closing[-1] == "}" else _NEXT_VALUE)
        return self._close(mark, place)

    def _open(self, mark: str, place: int) -> bool:
        if len(self.closing) == DEEPEST:
            self.found.status = "deep"
            return False
        self._item_begins(place)
        self.closing.append(_CLOSES[mark])
        depth = len(self.closing)
        self.found.nested = depth > 1 or self.found.nested
        wanted = depth == 1 or (depth == 2 and self.closing[0] == "}" and self.name == self.key)
        if self.key is not None and mark == "[" and wanted:
            self.listed = depth
        return self._go(True, _FIRST_KEY if mark == "{" else _FIRST_VALUE)

    def _close(self, mark: str, place: int) -> bool:
        if self.expect not in _ENDS or self.closing[-1] != mark:
            return False
        if self.expect in (_NEXT_VALUE, _NEXT_KEY):
            self.found.commas.append(self.comma)
        self._settle()
        if len(self.closing) == self.listed:
            self.listed = 0
        self.closing.pop()
        if self.listed and len(self.closing) == self.listed:
            self.ready = (self.item, place + 1)
        return self._go(True, _MORE)

    def _scalar(self, is_text: bool, begin: int, end: int) -> bool:
        if is_text and self.expect in (_FIRST_KEY, _NEXT_KEY):
            if len(self.closing) == 1:
                self.name = self.text[begin:end]
            return self._go(True, _COLON)
        if self.expect not in _VALUES:
            return False
        self._item_begins(begin)
        if self.listed and len(self.closing) == self.listed:
            self.ready = (begin, end)
        return self._go(True, _MORE)

    def _go(self, allowed: bool, expect: str) -> bool:
        if allowed:
            self.expect = expect
        return allowed

    def _item_begins(self, place: int) -> None:
        if self.listed and len(self.closing) == self.listed:
            self.item = place

    def _settle(self) -> None:
        """An item is followed by what ends it."""
        if self.ready is not None:
            self.found.items.append(self.ready)
            self.ready = None
