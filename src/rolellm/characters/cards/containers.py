"""What a card's JSON comes in: a PNG, or the zip that is called CHARX.

In a PNG it is base64 in a ``tEXt`` chunk named ``chara`` (V1, V2) or ``ccv3`` (V3); chunks as in
https://www.w3.org/TR/png-3/, names as in the specifications named in `rolellm.characters.cards.card`. Pixels and
compressed texts are never unpacked, so a file needs no more memory than its own size, whatever its header claims. In a
CHARX it is ``card.json``, and the assets next to it are copied and never read:
https://github.com/kwaroran/character-card-spec-v3/blob/f3a86af019fbd99f788f7a1155f399655b34ab35/SPEC_V3.md#charx
"""

from __future__ import annotations

import base64
import binascii
import shutil
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rolellm.core.errors import CardError
from rolellm.core.files import open_atomic_binary
from rolellm.core.foreign import read_limited

SIGNATURE = b"\x89PNG\r\n\x1a\n"
KEYWORDS = ("ccv3", "chara")
#: The longest card, in bytes of JSON; our choice. A book of 100,000 entries has a third of it.
MAX_CARD = 32 * 2**20
#: The largest file and the most chunks; our choice, far above any picture.
MAX_FILE = 256 * 2**20
MAX_CHUNKS = 100_000

_TEXTS = (b"tEXt", b"zTXt", b"iTXt")


class Chunk(NamedTuple):
    """A chunk of a PNG: its type, its bytes with length and checksum, and its keyword if it is a text.

    Readers compare keywords in lower case.
    """

    kind: bytes
    raw: memoryview
    keyword: str

    @property
    def text(self) -> memoryview:
        """What follows the keyword."""
        return self.raw[9 + len(self.keyword) : -4]


def read_png(path: str | Path) -> tuple[dict[str, bytes], list[str]]:
    """Find the cards of a PNG or APNG.

    Returns:
        By keyword, the JSON, that of V3 first; of several chunks of one keyword the first. And what a user should know.

    Raises:
        CardError: When the file is damaged (cut off, wrong length, wrong checksum), is over the limits, or has no card.
    """
    chunks: dict[str, Chunk] = {}
    cards: dict[str, bytes] = {}
    problems: list[str] = []
    repeated = 0
    for chunk in _read_chunks(path):
        if chunk.keyword in KEYWORDS:
            repeated += chunk.keyword in chunks
            if chunk.keyword not in chunks or chunks[chunk.keyword].kind != b"tEXt":
                chunks[chunk.keyword] = chunk
    for keyword in KEYWORDS:
        try:
            if keyword in chunks:
                cards[keyword] = _decode_card(chunks[keyword])
        except CardError as error:
            problems.append(f"its `{keyword}` chunk {error.problem}")
    if not cards:
        problem = "; ".join(problems) or "a picture without a card: it has no tEXt chunk named chara or ccv3"
        raise CardError(problem, path=path)
    notes = [f"{repeated} more card chunks of the same name were ignored; the first one was read"] if repeated else []
    return cards, [*notes, *(f"{problem}; the `{next(iter(cards))}` chunk was read" for problem in problems)]


def write_png(path: str | Path, cards: Mapping[str, str], picture: str | Path | None = None) -> None:
    """Write a PNG with cards, complete or not at all.

    Args:
        path: The file; may be the picture's own.
        cards: By keyword (``ccv3``, ``chara``), the JSON.
        picture: A PNG or APNG. Its chunks are copied as they are and in their order, a card in the place of the one
            that it replaces, else last; what follows its end is not copied. Without one, a small grey picture.

    Raises:
        CardError: When the picture is damaged or not a PNG.
    """
    texts = {
        keyword: _pack_chunk(b"tEXt", keyword.encode("latin-1") + b"\0" + base64.b64encode(text.encode("utf-8")))
        for keyword, text in cards.items()
    }
    with open_atomic_binary(path) as out:
        out.write(SIGNATURE)
        if picture is None:
            # A grey picture of 400 by 600 points, the shape that the applications show cards in.
            out.write(_pack_chunk(b"IHDR", struct.pack(">IIBBBBB", 400, 600, 8, 0, 0, 0, 0)))
            out.write(_pack_chunk(b"IDAT", zlib.compress((b"\0" + b"\xc8" * 400) * 600, 9)))
            out.writelines([*texts.values(), _pack_chunk(b"IEND", b"")])
            return
        for chunk in _read_chunks(picture):
            if chunk.kind == b"IEND":
                out.writelines(texts.values())
            out.write(texts.pop(chunk.keyword, b"") if chunk.keyword in KEYWORDS else chunk.raw)


def _read_chunks(path: str | Path) -> Iterator[Chunk]:
    """The chunks up to IEND, each with its checksum verified."""
    data = memoryview(read_limited(path, MAX_FILE, error=CardError))
    if data[: len(SIGNATURE)] != SIGNATURE:
        raise CardError("not a PNG: it does not begin as one", path=path)
    start, kind = len(SIGNATURE), b""
    for _ in range(MAX_CHUNKS):
        length, kind = struct.unpack(">I4s", data[start : start + 8]) if start + 8 <= len(data) else (0, b"")
        end = start + 12 + length
        is_sound = end <= len(data) and kind.isalpha() and (start > len(SIGNATURE) or (kind, length) == (b"IHDR", 13))
        if not is_sound or zlib.crc32(data[start + 4 : end - 4]) != int.from_bytes(data[end - 4 : end], "big"):
            raise CardError(f"cut off or damaged: there is no valid chunk at byte {start:,}", path=path)
        keyword, is_text, _ = bytes(data[start + 8 : min(end - 4, start + 88)]).partition(b"\0")
        yield Chunk(kind, data[start:end], keyword.decode("latin-1").lower() if is_text and kind in _TEXTS else "")
        if kind == b"IEND":
            return
        start = end
    raise CardError(f"over {MAX_CHUNKS:,} chunks, which no real picture has", path=path)


def _decode_card(chunk: Chunk) -> bytes:
    if chunk.kind != b"tEXt":
        raise CardError(f"is {chunk.kind.decode()}, which is never decompressed; the specifications require tEXt")
    if len(chunk.text) * 3 // 4 > MAX_CARD:
        raise CardError(f"has {len(chunk.text):,} bytes of base64; a card may have {MAX_CARD:,} bytes of JSON")
    try:
        # Some writers break the lines of base64.
        return base64.b64decode(bytes(chunk.text).translate(None, b" \t\r\n"), validate=True)
    except binascii.Error as error:
        raise CardError(f"is not base64 ({error})") from error


def _pack_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


_CARD = "card.json"
_WAY = "export it again as CHARX, PNG or JSON"


def read_charx(path: str | Path) -> bytes:
    """The JSON of a CHARX.

    Raises:
        CardError: When it is damaged, encrypted, over the limits, or has no ``card.json``.
    """
    with _open_charx(path) as archive, archive.open(_CARD) as stream:
        # With a bound: what the zip says of the size need not be so.
        card = stream.read(MAX_CARD + 1)
    if len(card) > MAX_CARD:
        raise CardError(f"its {_CARD} has over {MAX_CARD:,} bytes; {_WAY}", path=path)
    return card


def write_charx(path: str | Path, text: str, base: str | Path | None = None) -> None:
    """Write a CHARX, complete or not at all.

    Args:
        path: The file; may be the base's own.
        text: The card's JSON.
        base: A CHARX whose other files come along, in their order.

    Raises:
        CardError: When the base is not a sound CHARX.
    """
    with open_atomic_binary(path) as out, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        if base is None:
            # With a date of its own, the same card would be another file each time.
            archive.writestr(zipfile.ZipInfo(_CARD), text)
            return
        with _open_charx(base) as base_archive:
            for item in base_archive.infolist():
                if item.filename == _CARD:
                    archive.writestr(item, text)
                    continue
                with base_archive.open(item) as source, archive.open(item, "w") as copy:
                    shutil.copyfileobj(source, copy)


@contextmanager
def _open_charx(path: str | Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            items = archive.infolist()
            card = next((item for item in items if item.filename == _CARD), None)
            if card is None:
                raise CardError(f"a zip without {_CARD}, so not a CHARX; {_WAY}", path=path)
            # Python unpacks other kinds at once, whatever comes out of a few bytes.
            kinds = {(item.flag_bits & 1, item.compress_type) for item in items}
            if kinds - {(0, zipfile.ZIP_STORED), (0, zipfile.ZIP_DEFLATED)}:
                raise CardError(
                    f"its files are encrypted or packed in a way that CHARX does not use; {_WAY}", path=path
                )
            size = sum(item.file_size for item in items)
            if card.file_size > MAX_CARD or size > MAX_FILE or len(items) > MAX_CHUNKS:
                raise CardError(
                    f"over {MAX_FILE:,} bytes, {MAX_CHUNKS:,} files or {MAX_CARD:,} bytes of {_CARD}; remove some of "
                    "its assets",
                    path=path,
                )
            yield archive
    except (zipfile.BadZipFile, NotImplementedError, EOFError, zlib.error) as error:
        raise CardError(f"damaged, or not a zip as CHARX is ({error}); {_WAY}", path=path) from error
