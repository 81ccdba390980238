"""Reads a script's file: decoded, HTML crumbs and characters that nobody sees taken out, each offset kept."""

from __future__ import annotations

import codecs
import html
import re
from array import array
from html.entities import html5
from pathlib import Path
from typing import Final

import numpy as np

from rolellm.construct.scripts.reading import BLOCK_TAGS, INLINE_TAGS, Source
from rolellm.core.errors import ScriptError

# --- Bytes of a script as text: by the encoding named, else by byte order mark, as UTF-8, or by what they look


_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_GUESSED: Final = ["gb18030", "big5", "cp1252"]
# Supersets with characters that one text in many has; asked later, for they are less telling.
_WIDER: Final = ["big5hkscs", "cp950"]

_FOREIGN: Final = (
    (b"%PDF", "a PDF"),
    (b"PK\x03\x04", "a ZIP archive, as Word and EPUB files are"),
    (b"\xd0\xcf\x11\xe0", "an old Word document"),
    (b"{\\rtf", "an RTF document"),
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"\x1f\x8b", "a gzip archive"),
)
_SAMPLE: Final = 1 << 16
# A share of characters that any text reaches, and hardly any misreading does.
_PLAIN: Final = 0.95
_NAME_IT: Final = "Name its encoding (--encoding), such as gb18030, big5, utf-16 or cp1252; or save it as UTF-8"


def decode(data: bytes, encoding: str | None = None, path: Path | None = None) -> tuple[str, str]:
    """Decode a script, without any error passed over; newlines stay as they are.

    Args:
        data: The whole file.
        encoding: Its encoding, where the user named it.
        path: For messages.

    Returns:
        The text, and the name of the encoding: ``data.decode(name)`` gives that text.

    Raises:
        ScriptError: When it is no text, or not in the encoding named; says what was found.
    """
    if encoding is not None:
        return _named(data, encoding, path), encoding
    for start, kind in _FOREIGN:
        if data.startswith(start):
            raise ScriptError(f"this is {kind}, not a text; save it as plain text first", path=path)
    for mark, name in _MARKS:
        if data.startswith(mark):
            return _named(data, name, path), name
    if b"\0" in data[:_SAMPLE]:
        return _wide(data, path)
    try:
        return data.decode("utf-8"), "utf-8"
    except UnicodeDecodeError as error:
        _refuse_damaged(data, error, path)
    return _guessed(data, path)


def _named(data: bytes, encoding: str, path: Path | None) -> str:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise ScriptError(
            f"not {encoding}: {error.reason} at byte {error.start} (line {_line(data, error.start)}). {_NAME_IT}",
            path=path,
        ) from error
    except (LookupError, ValueError) as error:
        raise ScriptError(f"no text encoding {encoding!r:.60} ({error}). {_NAME_IT}", path=path) from error


def _line(data: bytes, place: int) -> int:
    return data.count(b"\n", 0, place) + 1


def _wide(data: bytes, path: Path | None) -> tuple[str, str]:
    """UTF-16 or UTF-32 without a mark; any other file with zero bytes is no text."""
    for name in ("utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be"):
        try:
            text = data.decode(name)
        except UnicodeDecodeError:
            continue
        if _plain(text[:_SAMPLE]) >= _PLAIN:
            return text, name
    raise ScriptError(
        f"zero bytes, the first at byte {data.index(0)}, and not UTF-16 or UTF-32 either: this is no text file. "
        "Give a plain text, or the encoding if it is one (--encoding)",
        path=path,
    )


def _plain(text: str) -> float:
    """The share of characters that English and Chinese texts are made of."""
    plain = sum(
        character in "\t\n\r\f"
        or " " <= character <= "~"
        or "\u00a0" <= character <= "\u024f"
        or "\u2010" <= character <= "\u206f"
        or "\u3000" <= character <= "\u303f"
        or "\u4e00" <= character <= "\u9fff"
        or "\uff00" <= character <= "\uffef"
        for character in text
    )
    return plain / max(1, len(text))


def _refuse_damaged(data: bytes, error: UnicodeDecodeError, path: Path | None) -> None:
    """UTF-8 with a few broken bytes would otherwise be guessed to be something else, and read as nonsense."""
    around = data[max(0, error.start - _SAMPLE) : error.start + _SAMPLE].decode("utf-8", errors="replace")
    bad = around.count("\ufffd")
    good = sum(character > "\x7f" for character in around) - bad
    if good > 20 * bad:
        raise ScriptError(
            f"UTF-8 but for damaged places, the first at byte {error.start} (line {_line(data, error.start)}; "
            f"{error.reason}). Mend or cut it there, or name its encoding (--encoding) if it is another",
            path=path,
        ) from error


def _guessed(data: bytes, path: Path | None) -> tuple[str, str]:
    from charset_normalizer import from_bytes

    for among in (_GUESSED, _WIDER):
        best = from_bytes(data, cp_isolation=among).best()
        if best is not None:
            name = str(best.encoding)
            return _named(data, name, path), name
    # It gives up on a few texts that decode without error; the order is from strict to lenient.
    for name in (*_GUESSED, *_WIDER):
        try:
            text = data.decode(name)
        except UnicodeDecodeError:
            continue
        if _plain(text[:_SAMPLE]) >= _PLAIN:
            return text, name
    raise ScriptError(f"neither UTF-8 nor anything else that was tried ({', '.join(_GUESSED)}). {_NAME_IT}", path=path)


# --- Reads a script's file: decoded, HTML crumbs and characters that nobody sees taken out, each offset kept


_NEWLINES: Final = "\r\x0b\x0c\x85\u2028\u2029"
# Control, format (bidi, zero width, tags) and surrogate characters of Unicode; ranges, for a look-up at import is slow.
_HIDDEN: Final = (
    "\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f"
    "\u202a-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f"
)
_INTERESTING: Final = re.compile(f"[<&{{{_NEWLINES}{_HIDDEN}]")
_HIDDEN_ONE: Final = re.compile(f"[{_HIDDEN}]")

_TAG: Final = re.compile(r"</?([A-Za-z][A-Za-z0-9]{0,15})(?:[\s/.][^<>]{0,1000})?>")
_BREAK: Final = re.compile(r"<br\s{0,3}/?>[ \t]{0,8}(?:\r\n?|\n)?", re.IGNORECASE)
_DECLARATION: Final = re.compile(r"<(?:!DOCTYPE|\?xml)[^<>]{0,500}>", re.IGNORECASE)
_ENTITY: Final = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
_SUBTITLE_CODE: Final = re.compile(r"\{\\[^{}\n]{0,200}\}")
_UNSEEN: Final = frozenset(("script", "style", "head"))

_GUTENBERG_START: Final = re.compile(r"^\*\*\* ?START OF TH(?:E|IS) PROJECT GUTENBERG[^\n]{0,200}\n", re.MULTILINE)
_GUTENBERG_END: Final = re.compile(r"^\*\*\* ?END OF TH(?:E|IS) PROJECT GUTENBERG", re.MULTILINE)
_INTEGER: Final = np.dtype(f"u{array('I').itemsize}")


def read_source(path: str | Path, encoding: str | None = None) -> Source:
    """Read a script's file.

    Args:
        path: The file.
        encoding: Its encoding; by default found out, among UTF-8, UTF-16, UTF-32, GB18030, Big5 and Windows-1252.

    Raises:
        ScriptError: When there is no such file, or it is no text in that encoding.
    """
    file = Path(path)
    try:
        data = file.read_bytes()
    except IsADirectoryError as error:
        raise ScriptError("this is a folder; give the file of the script", path=path) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ScriptError(f"the script cannot be read ({reason}); give an existing file", path=path) from error
    text, name = decode(data, encoding, file)
    return source_of(text, encoding=name, path=file)


def source_of(decoded: str, *, encoding: str = "utf-8", path: Path | None = None) -> Source:
    r"""A text as readers get it; offsets are places in that text.

    Paragraph tags and ``<br>`` become newlines, other tags of pages go, entities become their characters. Project
    Gutenberg's preamble and licence are left out.

    >>> source_of("<p>&ldquo;Hi,&rdquo; he\r\nsaid.</p>").text
    '\n“Hi,” he\nsaid.\n'
    """
    cleaner = _Cleaner(decoded, *_body(decoded))
    cleaner.run()
    return Source(
        text="".join(cleaner.pieces),
        offsets=cleaner.offsets,
        length=len(decoded),
        encoding=encoding,
        path=path,
        wide=cleaner.wide,
        wide_ends=cleaner.wide_ends,
    )


def _body(decoded: str) -> tuple[int, int]:
    begun = _GUTENBERG_START.search(decoded)
    start = begun.end() if begun else 0
    ended = _GUTENBERG_END.search(decoded, start)
    return start, ended.start() if ended else len(decoded)


class _Cleaner:
    """Goes over the text once; what stays as it is, is taken over run by run."""

    def __init__(self, decoded: str, start: int, end: int) -> None:
        self.decoded, self.at, self.end = decoded, start, end
        self.pieces: list[str] = []
        self.offsets, self.wide, self.wide_ends = array("I"), array("I"), array("I")
        self._unclosed: set[str] = set()

    def run(self) -> None:
        for match in _INTERESTING.finditer(self.decoded, self.at, self.end):
            place = match.start()
            if place < self.at:
                continue
            crumb = self._crumb(place, match[0])
            if crumb is None:
                continue
            self._keep(place)
            replacement, self.at = crumb
            if replacement:
                self._put(replacement, place)
        self._keep(self.end)
        self.offsets.append(self.end)

    def _keep(self, end: int) -> None:
        if end <= self.at:
            return
        self.pieces.append(self.decoded[self.at : end])
        if end - self.at < 64:
            self.offsets.extend(range(self.at, end))
        else:
            self.offsets.frombytes(np.arange(self.at, end, dtype=_INTEGER).tobytes())
        self.at = end

    def _put(self, replacement: str, place: int) -> None:
        self.pieces.append(replacement)
        for _ in replacement:
            if self.at - place > 1:
                self.wide.append(len(self.offsets))
                self.wide_ends.append(self.at)
            self.offsets.append(place)

    def _crumb(self, place: int, character: str) -> tuple[str, int] | None:
        """What stands for a crumb, and where it ends; nothing where it is text."""
        if character == "<":
            return self._markup(place)
        if character == "&":
            return self._entity(place)
        if character == "{":
            code = _SUBTITLE_CODE.match(self.decoded, place, self.end)
            return ("", code.end()) if code else None
        if character == "\r" and self.decoded.startswith("\n", place + 1):
            return "", place + 1
        return ("\n" if character in _NEWLINES else ""), place + 1

    def _markup(self, place: int) -> tuple[str, int] | None:
        if self.decoded.startswith("<!--", place):
            return self._to("-->", place)
        line = _BREAK.match(self.decoded, place, self.end)
        if line:
            return "\n", line.end()
        tag = _TAG.match(self.decoded, place, self.end)
        if tag is None:
            declaration = _DECLARATION.match(self.decoded, place, self.end)
            return ("", declaration.end()) if declaration else None
        name = tag[1].lower()
        if name in _UNSEEN:
            closed = None if tag[0].startswith("</") else self._to(f"</{name}>", place)
            return closed or ("", tag.end())
        # A voice tag of subtitles says who speaks.
        if name == "v" and not tag[0].startswith("</"):
            return None
        if name in BLOCK_TAGS:
            return "\n", tag.end()
        return ("", tag.end()) if name in INLINE_TAGS else None

    def _to(self, closing: str, place: int) -> tuple[str, int] | None:
        # Looked for once: a text of nothing but openings would be gone through as often as there are openings.
        if closing in self._unclosed:
            return None
        found = self.decoded.find(closing, place, self.end)
        if found < 0:
            self._unclosed.add(closing)
            return None
        return "", found + len(closing)

    def _entity(self, place: int) -> tuple[str, int] | None:
        entity = _ENTITY.match(self.decoded, place, self.end)
        if entity is None:
            return None
        name = entity[0][1:]
        if not name.startswith("#") and name not in html5:
            return None
        character = html.unescape(entity[0])
        if character == "\xa0":
            character = " "
        elif character in _NEWLINES:
            character = "\n"
        return _HIDDEN_ONE.sub("", character), entity.end()
