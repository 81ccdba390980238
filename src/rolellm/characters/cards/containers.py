"""What a card's JSON comes in: a PNG, or the zip that is called CHARX.

In a PNG it is base64 in a ``tEXt`` chunk named ``chara`` (V1, V2) or ``ccv3`` (V3); chunks as in
https://www.w3.org/TR/png-3/, names as in the specifications named in `rolellm.characters.cards.card`. Only chunk
headers, checksums and these texts are read: pixels and compressed texts are never unpacked, so a file can need no more
memory than one card may have, whatever its header claims. In a CHARX it is ``card.json``, and the assets next to it are
copied and never read:
https://github.com/kwaroran/character-card-spec-v3/blob/f3a86af019fbd99f788f7a1155f399655b34ab35/SPEC_V3.md#charx
"""

from __future__ import annotations

import base64
import binascii
import os
import shutil
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from rolellm.core.errors import CardError
from rolellm.core.files import open_atomic_binary

SIGNATURE = b"\x89PNG\r\n\x1a\n"
KEYWORDS = ("ccv3", "chara")
#: The longest card, in bytes of JSON; our choice. A book of 100,000 entries has a third of it.
MAX_CARD = 32 * 2**20
#: The largest file and the most chunks; our choice, far above any picture.
MAX_FILE = 256 * 2**20
MAX_CHUNKS = 100_000

_PIECE = 2**20
_TEXTS = (b"tEXt", b"zTXt", b"iTXt")
_LONGEST_KEYWORD = 79


class Chunk(NamedTuple):
    """A chunk's type, where its data begin in the file, how long they are, and their first bytes."""

    kind: bytes
    start: int
    length: int
    prefix: bytes

    @property
    def keyword(self) -> str:
        """The keyword of a text chunk, in lower case, as its readers compare it; nothing of other chunks."""
        if self.kind not in _TEXTS or b"\0" not in self.prefix:
            return ""
        return self.prefix[: self.prefix.index(b"\0")].decode("latin-1").lower()


def read_png(path: str | Path) -> tuple[dict[str, bytes], list[str]]:
    """Find the cards of a PNG or APNG.

    Returns:
        By keyword, the JSON, that of V3 first; of several chunks of one keyword the first. And what a user should know.

    Raises:
        CardError: When the file is damaged (cut off, wrong length, wrong checksum), is over the limits, or has no card.
    """
    cards: dict[str, bytes] = {}
    broken: dict[str, str] = {}
    compressed, repeated = [], 0
    with Path(path).open("rb") as stream:
        for chunk in _read_chunks(stream, path):
            if chunk.keyword not in KEYWORDS:
                continue
            if chunk.kind != b"tEXt":
                compressed.append(chunk.kind.decode("ascii"))
            elif chunk.keyword in cards or chunk.keyword in broken:
                repeated += 1
            else:
                try:
                    cards[chunk.keyword] = _decode_card(stream, chunk)
                except CardError as error:
                    broken[chunk.keyword] = error.problem
    if not cards and broken:
        raise CardError("; ".join(f"its `{name}` chunk {why}" for name, why in broken.items()), path=path)
    if compressed and not cards:
        raise CardError(
            f"its card is in a {compressed[0]} chunk, which is never decompressed; the specifications require tEXt",
            path=path,
        )
    if not cards:
        raise CardError("a picture without a card: it has no tEXt chunk named chara or ccv3", path=path)
    notes = [f"{repeated} more card chunks of the same name were ignored; the first one was read"] if repeated else []
    by_keyword = {name: cards[name] for name in KEYWORDS if name in cards}
    notes += [
        f"its `{name}` chunk {why}; the `{next(iter(by_keyword))}` chunk was read" for name, why in broken.items()
    ]
    return by_keyword, notes


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
        with Path(picture).open("rb") as stream:
            for chunk in _read_chunks(stream, picture):
                if chunk.keyword in KEYWORDS:
                    out.write(texts.pop(chunk.keyword, b""))
                    continue
                if chunk.kind == b"IEND":
                    out.writelines(texts.values())
                stream.seek(chunk.start - 8)
                remaining = chunk.length + 12
                while remaining:
                    piece = stream.read(min(remaining, _PIECE))
                    out.write(piece)
                    remaining -= len(piece)


def _read_chunks(stream: BinaryIO, path: str | Path) -> Iterator[Chunk]:
    """The chunks up to IEND, each with its checksum verified; the caller may seek in the stream between two of them."""
    size = os.fstat(stream.fileno()).st_size
    if size > MAX_FILE:
        raise CardError(f"{size:,} bytes; a card's picture may have {MAX_FILE:,}", path=path)
    if stream.read(len(SIGNATURE)) != SIGNATURE:
        raise CardError("not a PNG: it does not begin as one", path=path)
    offset = len(SIGNATURE)
    for number in range(MAX_CHUNKS):
        stream.seek(offset)
        header = stream.read(8)
        if len(header) < 8:
            raise CardError(f"cut off: it ends at byte {size:,}, before its last chunk (IEND)", path=path)
        length, kind = struct.unpack(">I4s", header)
        if not (kind.isalpha() and kind.isascii()):
            raise CardError(f"damaged at byte {offset:,}: expected a chunk's type, found {kind!r}", path=path)
        if number == 0 and (kind, length) != (b"IHDR", 13):
            raise CardError(f"damaged: expected the chunk IHDR first, found {kind!r} of {length:,} bytes", path=path)
        if offset + 12 + length > size:
            raise CardError(
                f"cut off or damaged: the chunk {kind.decode()} at byte {offset:,} says it has {length:,} bytes, "
                f"{max(0, size - offset - 12):,} follow",
                path=path,
            )
        checksum, remaining, prefix = zlib.crc32(kind), length, b""
        while remaining:
            piece = stream.read(min(remaining, _PIECE))
            if not piece:
                raise CardError("the file shrank while it was being read", path=path)
            prefix = prefix or piece[: _LONGEST_KEYWORD + 1]
            checksum = zlib.crc32(piece, checksum)
            remaining -= len(piece)
        if stream.read(4) != checksum.to_bytes(4, "big"):
            raise CardError(f"damaged: the chunk {kind.decode()} at byte {offset:,} has a wrong checksum", path=path)
        yield Chunk(kind, offset + 8, length, prefix)
        if kind == b"IEND":
            return
        offset += 12 + length
    raise CardError(f"over {MAX_CHUNKS:,} chunks, which no real picture has", path=path)


def _decode_card(stream: BinaryIO, chunk: Chunk) -> bytes:
    skip = len(chunk.keyword) + 1
    if (chunk.length - skip) * 3 // 4 > MAX_CARD:
        raise CardError(f"has {chunk.length:,} bytes of base64; a card may have {MAX_CARD:,} bytes of JSON")
    stream.seek(chunk.start + skip)
    text = stream.read(chunk.length - skip)
    try:
        # Some writers break the lines of base64.
        return base64.b64decode(text.translate(None, b" \t\r\n"), validate=True)
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
        if Path(path).stat().st_size > MAX_FILE:
            raise CardError(f"over {MAX_FILE:,} bytes; remove some of its assets", path=path)
        with zipfile.ZipFile(path) as archive:
            items = {item.filename: item for item in archive.infolist()}
            if _CARD not in items:
                raise CardError(f"a zip without {_CARD}, so not a CHARX; {_WAY}", path=path)
            if any(item.flag_bits & 1 for item in items.values()):
                raise CardError(f"its files are encrypted; {_WAY}, without a password", path=path)
            # Python unpacks others at once, whatever comes out of a few bytes.
            if any(item.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for item in items.values()):
                raise CardError(f"its files are packed in a way that CHARX does not use; {_WAY}", path=path)
            files, size = len(archive.infolist()), sum(item.file_size for item in archive.infolist())
            card_size = items[_CARD].file_size
            if card_size > MAX_CARD or size > MAX_FILE or files > MAX_CHUNKS:
                raise CardError(
                    f"{files:,} files of {size:,} bytes, {card_size:,} of them in {_CARD}; a CHARX may have "
                    f"{MAX_CHUNKS:,}, {MAX_FILE:,} and {MAX_CARD:,}; remove some of its assets",
                    path=path,
                )
            yield archive
    except (zipfile.BadZipFile, NotImplementedError, EOFError, zlib.error) as error:
        raise CardError(f"damaged, or not a zip as CHARX is ({error}); {_WAY}", path=path) from error
