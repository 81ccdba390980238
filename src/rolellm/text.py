"""Small text operations that several floors share: folding for joins, and safe file names."""

from __future__ import annotations

import re
import unicodedata

_UNSAFE = re.compile(r"[^\w.-]+")


def fold(text: str) -> str:
    r"""Fold white space and case, so that two spellings of one instruction compare equal.

    >>> fold("  Name a\n Colour ")
    'name a colour'
    """
    return " ".join(text.split()).casefold()


def safe_name(name: str, *, fallback: str = "unnamed") -> str:
    """Turn any name into a file name: letters, digits, ``.``, ``_`` and ``-`` only, never a path.

    >>> safe_name("../Dr. Frank/N-Furter")
    'Dr._Frank_N-Furter'
    """
    cleaned = _UNSAFE.sub("_", unicodedata.normalize("NFC", name)).strip("._")
    return cleaned[:100] or fallback
