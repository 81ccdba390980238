"""JSON out of a model's reply, whatever stands around it, in time linear in the reply's length.

A reply is read as one JSON text where it is one. Else the first whole value of the kind wanted is taken, from where a
fence marked ``json`` opens or else from the beginning; never an inner piece of a value that is broken.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, NoReturn

from rolellm.llm.model import UnacceptableError

# --- Where a JSON value lies in a text, found in one pass without recursion; the text may be anything


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


# --- JSON out of a model's reply, whatever stands around it, in time linear in the reply's length


Kind = Literal["object", "list"]

#: The longest reply that is read, in characters (our choice): five times what 32,000 tokens of English come to.
LONGEST = 500_000
# A reply whose false starts add up to more than this many times its length is given up.
_EFFORT = 4
_DIGITS = 300
_SHOWN = 60

_KINDS: tuple[Kind, ...] = ("object", "list")
_START = re.compile(r"[{\[]")
_FENCE = re.compile(r"```json", re.IGNORECASE)
_THOUGHT = "</think>"
_HALF = re.compile("[\ud800-\udfff]")
_ESCAPED_HALF = re.compile(r"\\u[dD][89a-fA-F]")


class Parsed(NamedTuple):
    """A JSON value, and what had to be looked past to read it.

    Attributes:
        value: Of dicts, lists, texts, numbers, booleans and ``None``; numbers are finite, texts have a UTF-8
            form.
        notes: In words, such as ``"left out 2 trailing commas"``; empty for a reply that is nothing but JSON.
    """

    value: Any
    notes: tuple[str, ...]


class Items(NamedTuple):
    """The whole items of a list that may break off.

    Attributes:
        items: In order.
        note: What is missing, in words; ``None`` where the list is whole.
    """

    items: list[Any]
    note: str | None


def json_of(text: str, kind: Kind | None = None) -> Any:
    r"""The JSON value in a model's reply, whatever stands around it.

    Args:
        text: The reply.
        kind: Pass over whole values of the other kind; ``[1]`` in prose is no list that was asked for.

    Raises:
        UnacceptableError: With the kind ``malformed``; says where the JSON breaks off or goes wrong.

    >>> json_of('Sure! Here it is:\n```json\n{"name": "Ahab", "ships": ["Pequod",]}\n```\nAnything else?')
    {'name': 'Ahab', 'ships': ['Pequod']}
    """
    return read_json(text, kind).value


def read_json(text: str, kind: Kind | None = None) -> Parsed:
    """As `json_of`, with notes on what was looked past.

    Raises:
        UnacceptableError: With the kind ``malformed``.
    """
    notes: list[str] = []
    text = _trimmed(text)
    try:
        # Most replies are JSON and nothing else.
        value = _whole_text(text, kind, notes)
    except ValueError:
        notes.clear()
        text = _without_thoughts(text, notes)
        found = _found(text, kind)
        value = _load(text, found, notes)
        if text[: found.start].strip() or text[found.end :].strip():
            notes.append("left out the text around the JSON")
        if _look(text, found.end, kind).status == "whole":
            notes.append("took the first of several JSON values")
    return Parsed(value, tuple(notes))


def items_of(text: str, key: str) -> Items:
    """The items of a list in a reply; of one that breaks off or goes wrong, those that are whole before that place.

    Args:
        text: The reply.
        key: The list is under this key of an object, or it is the whole value.

    Raises:
        UnacceptableError: With the kind ``malformed``, for a reply without such a list or one whole item of it.

    >>> items_of('{"pairs": [{"q": "Who?"}, {"q": "Whe', "pairs")
    Items(items=[{'q': 'Who?'}], note='the JSON is cut off: kept the 1 whole item of pairs before')
    """
    problem = None
    for kind in _KINDS:
        try:
            value = json_of(text, kind)
        except UnacceptableError as error:
            problem = problem or error
            salvaged = _salvaged(_without_thoughts(_trimmed(text), []), kind, key)
            if salvaged is not None:
                return salvaged
            continue
        listed = value if kind == "list" else value.get(key)
        if isinstance(listed, list):
            return Items(listed, None)
        problem = _malformed(f"expected a list under {key}, found {_named(value)}")
    raise problem or _malformed(f"no list under {key}")


def _salvaged(text: str, kind: Kind, key: str) -> Items | None:
    broken = _look(text, _fence(text), kind, key)
    if not broken.items or broken.status not in ("cut", "broken"):
        return None
    items = [_load(text, Scan(start, end=end, commas=broken.commas), []) for start, end in broken.items]
    what = "is cut off" if broken.status == "cut" else f"goes wrong at character {broken.end}"
    return Items(items, f"the JSON {what}: kept the {len(items)} whole item{'s' * (len(items) > 1)} of {key} before")


def _trimmed(text: str) -> str:
    if len(text) > LONGEST:
        raise _malformed(f"the reply has {len(text):,} characters; at most {LONGEST:,} are read")
    return text.strip().removeprefix("\ufeff").strip()


def _without_thoughts(text: str, notes: list[str]) -> str:
    """The text after the thoughts that reasoning models put before an answer; those may hold drafts of it."""
    before, mark, after = text.rpartition(_THOUGHT)
    if not mark:
        return text
    notes.append(f"left out {len(before):,} characters of thoughts")
    return after


def _fence(text: str) -> int:
    """Where to start looking: within the first fence that is marked as JSON, where there is one."""
    fence = _FENCE.search(text)
    return fence.end() if fence is not None and _START.search(text, fence.end()) else 0


def _whole_text(text: str, kind: Kind | None, notes: list[str]) -> Any:
    if text.count("{") + text.count("[") > DEEPEST and scan(text, 0).status != "whole":
        raise ValueError
    value = _decode(text, notes, strict=True)
    if kind is not None and not isinstance(value, dict if kind == "object" else list):
        raise ValueError
    return value


def _found(text: str, kind: Kind | None) -> Scan:
    found = _look(text, _fence(text), kind)
    if found.status != "whole":
        raise _malformed(_complaint(text, found, kind))
    return found


def _look(text: str, at: int, kind: Kind | None, key: str | None = None) -> Scan:
    """The first whole value of a kind; else the one that broke off, or the last that was no JSON at all."""
    effort = _EFFORT * len(text)
    last = Scan(-1)
    while (start := _START.search(text, at)) is not None:
        last = scan(text, start.start(), key)
        fits = kind is None or (text[last.start] == "{") == (kind == "object")
        effort -= last.end - last.start
        if last.status == "whole":
            if fits:
                return last
            last.status, at = "other", last.end
        elif last.status == "deep" or (last.begun and (fits or last.nested)) or effort < 0:
            break
        else:
            at = last.end if last.begun else last.start + 1
    return last


def _complaint(text: str, found: Scan, kind: Kind | None) -> str:
    if found.status == "other":
        return "expected {}, found {}".format(*("an object", "a list") if kind == "object" else ("a list", "an object"))
    if found.status == "deep":
        return f"the JSON is nested more than {DEEPEST} levels deep"
    if found.start < 0 or not found.begun:
        return (
            f"there is no JSON in the reply, which opens with {_cut(text, _SHOWN)!r}" if text else "the reply is empty"
        )
    if found.status == "cut":
        return "the JSON is cut off"
    return f"the JSON goes wrong at character {found.end}: {text[found.end : found.end + _SHOWN].strip()!r}"


def _load(text: str, found: Scan, notes: list[str]) -> Any:
    """The value at a place, trailing commas left out."""
    commas = [place for place in found.commas if found.start <= place < found.end]
    edges = [found.start, *(edge for place in commas for edge in (place, place + 1)), found.end]
    plain = "".join(text[start:end] for start, end in zip(edges[::2], edges[1::2], strict=True))
    if commas:
        notes.append(f"left out {len(commas)} trailing comma{'s' * (len(commas) > 1)}")
    try:
        try:
            return _decode(plain, notes, strict=True)
        except json.JSONDecodeError:
            value = _decode(plain, notes, strict=False)
            notes.append("took line breaks or control characters in a text as they are")
            return value
    except ValueError as error:
        raise _malformed(f"the JSON cannot be read: {_cut(str(error), 2 * _SHOWN)}") from error


def _decode(text: str, notes: list[str], *, strict: bool) -> Any:
    """The value of a JSON text whose nesting has been looked at.

    Raises:
        ValueError: When it is not JSON, or has a number that is none or that nothing could hold.
    """
    doubled = []

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            doubled.append(len(pairs) - len(made))
        return made

    value = json.loads(
        text,
        strict=strict,
        object_pairs_hook=members,
        parse_constant=_refuse,
        parse_int=_whole_number,
        parse_float=_finite,
    )
    if doubled:
        notes.append(f"took the last of keys written twice ({sum(doubled)})")
    if _HALF.search(text) or _ESCAPED_HALF.search(text):
        # No file can hold half a surrogate pair.
        value = _mended(value)
    return value


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        return _HALF.sub("\ufffd", value)
    if isinstance(value, list):
        return [_mended(item) for item in value]
    return {_mended(key): _mended(item) for key, item in value.items()} if isinstance(value, dict) else value


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _refuse(_cut(digits, _SHOWN))


def _whole_number(digits: str) -> int:
    return int(digits) if len(digits) <= _DIGITS else _refuse(f"a row of {len(digits):,} digits")


def _named(value: Any) -> str:
    return (
        "a list" if isinstance(value, list) else f"an object with {', '.join(map(repr, list(value)[:8])) or 'no keys'}"
    )


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"


def _malformed(reason: str) -> UnacceptableError:
    return UnacceptableError(reason, "malformed")
