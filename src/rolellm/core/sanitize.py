"""Text from a model or a dataset, made safe to display: invisible characters are spelled out, never obeyed.

Escaping for HTML or SVG is the renderer's part. This is the part that escaping leaves alone (terminal escapes,
direction overrides, zero-width and tag characters, lone surrogates that no file could hold), and Markdown, which cards
and tables share.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size

if TYPE_CHECKING:
    from jinja2 import Environment

# Controls, format characters (bidi, zero width, tags), surrogates, line and paragraph separators.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_MARKDOWN = str.maketrans({mark: f"\\{mark}" for mark in "\\`*_[]<>&|~#!"})


def make_visible(text: str) -> str:
    r"""Spell out every character that a reader would not see or that would steer the display.

    Line feeds and tabs stay, CRLF becomes a line feed; C0 controls become their control pictures, all others their code
    point in angle brackets. A joined emoji falls apart into its members: our choice, as joiners also hide text.

    >>> make_visible("\x1b[31mred")
    '␛[31mred'
    >>> make_visible("abc\u202edef")
    'abc⟨U+202E⟩def'
    """
    # Most texts need nothing, and this is a hundred times quicker: what is printable is none of what is spelled out.
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(map(_make_character_visible, text.replace("\r\n", "\n")))


def _make_character_visible(character: str) -> str:
    if character in "\n\t":
        return character
    code = ord(character)
    # No XML file may hold a noncharacter, and Unicode files them under "unassigned".
    is_noncharacter = code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF
    if not is_noncharacter and unicodedata.category(character) not in _HIDDEN:
        return character
    if code < 0x20:
        return chr(0x2400 + code)
    return f"⟨U+{code:04X}⟩"


def truncate(text: str, limit: int) -> str:
    """Cut a text to at most ``limit`` characters and say how many were left out.

    >>> truncate("abcdef", 4)
    'abcd … [2 more characters]'
    """
    if len(text) <= limit:
        return text
    return f"{text[:limit]} … [{len(text) - limit:,} more characters]"


def measure_width(text: str) -> int:
    """The columns a text takes up: two for a wide (Chinese) character, else one, none for a combining mark.

    >>> measure_width("Li 李")
    5
    """
    return cell_len(text)


def show_on_line(text: str) -> str:
    """A text on one line, every character of it visible."""
    return " ".join(make_visible(text).split())


def label(text: str, columns: int) -> str:
    """A name on one line, at most ``columns`` wide.

    >>> label("Dr. Frank-N-Furter", 10)
    'Dr. Frank…'
    """
    line = show_on_line(text[: 4 * columns])
    if measure_width(line) <= columns and len(text) <= 4 * columns:
        return line
    return set_cell_size(line, columns - 1).rstrip() + "…"


class Markdown(str):
    """Text that is Markdown by our own hand, so that nothing in it needs escaping any more."""

    __slots__ = ()


def escape_markdown(text: str) -> Markdown:
    """Text on one line, with nothing in it that Markdown would obey."""
    return Markdown(show_on_line(text).translate(_MARKDOWN))


def format_code_span(text: str, *, cell: bool = False) -> Markdown:
    """A code span, on one line; as plain text where it holds a backtick.

    Args:
        text: Anything.
        cell: Whether it goes into a table, where a pipe has to be escaped even here.
    """
    line = show_on_line(text)
    if "`" in line or not line:
        return escape_markdown(line)
    if cell:
        line = line.replace("|", r"\|")
    return Markdown(f"`{line}`")


def format_code_block(text: str, language: str = "text") -> Markdown:
    """A fenced block, which no line of the text ends."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return Markdown(f"{fence}{language}\n{make_visible(text)}\n{fence}")


def make_markdown_environment() -> Environment:
    """For templates of Markdown: what is filled in is escaped, unless it is `Markdown` (filters: code, block)."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
        finalize=_finalize,
    )
    environment.filters |= {"code": format_code_span, "block": format_code_block}
    return environment


def _finalize(value: object) -> Markdown:
    return value if isinstance(value, Markdown) else escape_markdown(str(value))
