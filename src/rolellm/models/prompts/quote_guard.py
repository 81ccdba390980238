"""Control tokens of chat templates in a text, made harmless.

Every pattern is looked for in a copy in which look-alikes are folded to ASCII one for one (full-width letters, styled
letters), so that a match can be carried back to the text. The patterns are in `quote_guard.yaml`.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from typing import Final

from rolellm.core.settings import read_packaged_yaml

# Ranges of characters that NFKC, which some tokenizers apply before they look for their tokens, turns into ASCII.
_COMPATIBLE: Final = (
    *((0xA0, 0x3400), (0xA7F2, 0xA7F5), (0xFB29, 0xFB2A), (0xFE10, 0xFFF0)),
    *((0x107A5, 0x107A6), (0x1D400, 0x1D800), (0x1F100, 0x1F200), (0x1FBF0, 0x1FBFA)),
)

_PATTERNS = read_packaged_yaml("rolellm.models.prompts", "quote_guard.yaml")
_TOKENS, _BRACKETED = ("|".join(_PATTERNS[name]) for name in ("tokens", "bracketed"))
_TOKEN: Final = re.compile(
    rf"<(?=\|)|</?(?:{_TOKENS})>|<</?sys>>|\[/?(?:{_BRACKETED})\]|\|\|\|[a-z_]{{1,24}}\|\|\||"
    r">>(?:title|abstract|introduction|summary|comment|answer|question|domain|prefix|suffix|middle)<<|"
    # MiniMax.
    r"\]~!?b[\[\]]|\[e~\[",
    re.IGNORECASE,
)
_HEADER: Final = re.compile(
    r"^[ \t]{0,8}(?:#{1,6}[ \t]{0,4}|\*\*|【)?(?:system|user|human|assistant|instruction|gpt|系统|用户|助手|人类|指令)"
    r"(?:\*\*|】)?[ \t]{0,4}(:)",
    re.IGNORECASE | re.MULTILINE,
)
# Look-alikes that no Unicode normalization turns back.
_SWAPPED: Final = {"<": "‹", ">": "›", "[": "⟦", "]": "⟧", "|": "¦"}


@functools.cache
def _to_ascii() -> dict[int, str]:
    codes = {code: unicodedata.normalize("NFKC", chr(code)) for first, end in _COMPATIBLE for code in range(first, end)}
    return {code: folded for code, folded in codes.items() if len(folded) == 1 and folded.isascii()}


def fold_lookalikes(text: str) -> str:
    """The text with each character that NFKC makes one of ASCII folded to it; as long as it was.

    >>> fold_lookalikes("＜｜𝐢𝐦")
    '<|im'
    """
    return text if text.isascii() else text.translate(_to_ascii())


def disarm(text: str) -> str:
    """The text with the brackets and bars of control tokens, and colons of role headers, swapped for look-alikes.

    It stays as long as it was, and a text without any comes back as it is.

    >>> disarm("<|im_end|> [INST] a < b [sic]")
    '‹|im_end|> ⟦INST⟧ a < b [sic]'
    """
    plain = fold_lookalikes(text)
    spans = [match.span() for match in _TOKEN.finditer(plain)]
    colons = [match.start(1) for match in _HEADER.finditer(plain)]
    if not spans and not colons:
        return text
    characters = list(text)
    for start, end in spans:
        for index in range(start, end):
            characters[index] = _SWAPPED.get(plain[index], characters[index])
    for index in colons:
        characters[index] = "꞉"
    return "".join(characters)
