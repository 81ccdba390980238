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

from rolellm.construct.cards.png import MAX_CARD, MAX_CHUNKS, MAX_FILE
from rolellm.core.errors import CardError
from rolellm.core.files import whole_binary_file

CARD = "card.json"
_WAY = "export it again as CHARX, PNG or JSON"


def read_charx(path: str | Path) -> bytes:
    """The JSON of a CHARX.

    Raises:
        CardError: When it is damaged, encrypted, over the limits, or has no ``card.json``.
    """
    with _opened(path) as archive:
        return archive.read(CARD)


def write_charx(path: str | Path, text: str, base: str | Path | None = None) -> None:
    """Write a CHARX, complete or not at all.

    Args:
        path: The file; may be the base's own.
        text: The card's JSON.
        base: A CHARX whose other files come along, in their order.

    Raises:
        CardError: When the base is not a sound CHARX.
    """
    with whole_binary_file(path) as out, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        if base is None:
            # With a date of its own, the same card would be another file each time.
            made.writestr(zipfile.ZipInfo(CARD), text)
            return
        with _opened(base) as archive:
            for item in archive.infolist():
                if item.filename == CARD:
                    made.writestr(item, text)
                    continue
                with archive.open(item) as source, made.open(item, "w") as copy:
                    shutil.copyfileobj(source, copy)


@contextmanager
def _opened(path: str | Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            items = {item.filename: item for item in archive.infolist()}
            if CARD not in items:
                raise CardError(f"a zip without {CARD}, so not a CHARX; {_WAY}", path=path)
            if any(item.flag_bits & 1 for item in items.values()):
                raise CardError(f"its files are encrypted; {_WAY}, without a password", path=path)
            files, size = len(archive.infolist()), sum(item.file_size for item in archive.infolist())
            own = items[CARD].file_size
            if own > MAX_CARD or size > MAX_FILE or files > MAX_CHUNKS:
                raise CardError(
                    f"{files:,} files of {size:,} bytes, {own:,} of them in {CARD}; a CHARX may have {MAX_CHUNKS:,}, "
                    f"{MAX_FILE:,} and {MAX_CARD:,}; remove some of its assets",
                    path=path,
                )
            yield archive
    except (zipfile.BadZipFile, NotImplementedError, EOFError, zlib.error) as error:
        raise CardError(f"damaged, or not a zip as CHARX is ({error}); {_WAY}", path=path) from error
