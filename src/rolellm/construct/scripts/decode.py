"""Bytes of a script as text: by the encoding named, else by byte order mark, as UTF-8, or by what they look like.

Guessing is charset-normalizer's part, among the encodings that English and Chinese scripts come in; over all it knows,
it takes short Chinese texts for Korean and English ones for Estonian.
"""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Final

from rolellm.errors import ScriptError

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
