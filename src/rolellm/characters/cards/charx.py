"""CHARX: a zip with the card as ``card.json`` and its assets, which are copied and never read.

https://github.com/kwaroran/character-card-spec-v3/blob/f3a86af019fbd99f788f7a1155f399655b34ab35/SPEC_V3.md#charx
"""

from __future__ import annotations

import shutil
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rolellm.characters.cards.png import MAX_CARD, MAX_CHUNKS, MAX_FILE
from rolellm.core.errors import CardError
from rolellm.core.files import open_atomic_binary

CARD = "card.json"
_WAY = "export it again as CHARX, PNG or JSON"


def read_charx(path: str | Path) -> bytes:
    """The JSON of a CHARX.

    Raises:
        CardError: When it is damaged, encrypted, over the limits, or has no ``card.json``.
    """
    with _open_charx(path) as archive, archive.open(CARD) as stream:
        # With a bound: what the zip says of the size need not be so.
        card = stream.read(MAX_CARD + 1)
    if len(card) > MAX_CARD:
        raise CardError(f"its {CARD} has over {MAX_CARD:,} bytes; {_WAY}", path=path)
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
            archive.writestr(zipfile.ZipInfo(CARD), text)
            return
        with _open_charx(base) as base_archive:
            for item in base_archive.infolist():
                if item.filename == CARD:
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
            if CARD not in items:
                raise CardError(f"a zip without {CARD}, so not a CHARX; {_WAY}", path=path)
            if any(item.flag_bits & 1 for item in items.values()):
                raise CardError(f"its files are encrypted; {_WAY}, without a password", path=path)
            # Python unpacks others at once, whatever comes out of a few bytes.
            if any(item.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for item in items.values()):
                raise CardError(f"its files are packed in a way that CHARX does not use; {_WAY}", path=path)
            files, size = len(archive.infolist()), sum(item.file_size for item in archive.infolist())
            card_size = items[CARD].file_size
            if card_size > MAX_CARD or size > MAX_FILE or files > MAX_CHUNKS:
                raise CardError(
                    f"{files:,} files of {size:,} bytes, {card_size:,} of them in {CARD}; a CHARX may have "
                    f"{MAX_CHUNKS:,}, {MAX_FILE:,} and {MAX_CARD:,}; remove some of its assets",
                    path=path,
                )
            yield archive
    except (zipfile.BadZipFile, NotImplementedError, EOFError, zlib.error) as error:
        raise CardError(f"damaged, or not a zip as CHARX is ({error}); {_WAY}", path=path) from error
