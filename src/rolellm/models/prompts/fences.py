"""Texts of strangers in a prompt: made harmless, and put behind a fence that they cannot close.

Control tokens of chat templates are looked for in a copy in which look-alikes are folded to ASCII one for one
(full-width letters, styled letters), so that a match can be carried back to the text. The patterns are in
`quote_guard.yaml`.
"""

from __future__ import annotations

import functools
import hashlib
import re
import unicodedata
from itertools import count
from typing import Final

from rolellm.core.sanitize import make_visible
from rolellm.core.settings import read_packaged_yaml

#: The most characters of a text that a judge is shown by default: some ten times the paper's 200 tokens.
LIMIT: Final = 8000

# Blank or without a glyph, though Unicode files them as letters, marks or unassigned: fillers, variation selectors.
_BLANK: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u2800\u3164\ufe00-\ufe0d\uffa0\ufff0-\ufff8\U000e0000-\U000e0fff]"
)
_EMOJI: Final = "\u2190-\u2bff\U0001f000-\U0001faff"
# What joins emoji, and picks their form, is part of how they are written; anywhere else it may carry hidden text.
_JOINER: Final = re.compile(f"(?<=[{_EMOJI}\ufe0f])\u200d(?=[{_EMOJI}])")
_STRAY_FORM: Final = re.compile("(?:^|(?<=[^\\W\\d_ℹ])|(?<=[\\s\ufe0e\ufe0f]))[\ufe0e\ufe0f]")

_OPENING: Final = re.compile(r"^<<<([0-9a-f]{16}) ([^<>\n]+)>>>$", re.MULTILINE)
_NAME: Final = re.compile(r"[^<>\n]+")


def make_harmless(text: str, limit: int = LIMIT) -> str:
    r"""Make a text of a model or a data set harmless for a judge's prompt.

    Every character can be seen afterwards: controls, marks of direction, zero-width, tag and other characters without a
    glyph are spelled out. No chat template has a token in it: brackets and colons of control tokens and role headers
    become look-alikes. Line ends become line feeds, and an emoji joined of several falls apart into them.

    Only what is shown is looked at, so that a text of any length takes the same time; what is longer is cut, and how
    much is left out is said.

    Args:
        text: Anything, lone surrogates included.
        limit: The most characters to show, counted after spelling out.

    Raises:
        ValueError: For a limit below 1.

    >>> make_harmless("<|im_end|>\u200bAye.")
    '‹|im_end|>⟨U+200B⟩Aye.'
    """
    if limit < 1:
        raise ValueError(f"limit is {limit}; it has to be at least 1")
    head = text[:limit]
    if head.endswith("\r") and len(text) > limit:
        head = head[:-1]
    left_out = len(text) - len(head)
    spelled = _spell_hidden(_JOINER.sub("", head.replace("\r\n", "\n")))
    left_out += max(len(spelled) - limit, 0)
    harmless = disarm(spelled[:limit])
    if left_out:
        harmless += f"\n[… {left_out:,} more characters]"
    return harmless


def _spell_hidden(text: str) -> str:
    """Spell out every hidden character of a text."""
    if text.isascii() and text.replace("\n", " ").replace("\t", " ").isprintable():
        return text
    text = _STRAY_FORM.sub(lambda match: _spell(match.group()), text)
    return text.translate({ord(character): _escape(character) for character in set(text)})


def _spell(character: str) -> str:
    return f"⟨U+{ord(character):04X}⟩"


@functools.lru_cache(maxsize=1 << 14)
def _escape(character: str) -> str:
    return _spell(character) if _BLANK.match(character) else make_visible(character)


def draw_nonce(*parts: str) -> str:
    """A mark of 16 hex characters that occurs in none of the texts it is to fence, drawn from these texts.

    The same texts get the same mark, so that a request is the same when it is asked again. Nobody can write a text
    that holds its own mark: it would have to hold a piece of its own SHA-256, and then the next mark is drawn.
    """
    datas = [part.encode("utf-8", "surrogatepass") for part in parts]
    content = b"".join(f"{len(data)}:".encode() + data for data in datas)
    for turn in count():
        mark = hashlib.sha256(content + str(turn).encode()).hexdigest()[:16]
        if not any(mark in part for part in parts):
            break
    return mark


def fence_text(name: str, text: str, mark: str) -> str:
    """A text between two delimiters, each on a line of its own.

    Args:
        name: What it is, in our words, such as ``answer A``.
        text: What was drawn for with `draw_nonce`.
        mark: The mark.

    Raises:
        ValueError: When the text holds the mark, or the name could be taken for something else.

    >>> print(fence_text("question", "Who goes there?", "0123456789abcdef"))
    <<<0123456789abcdef question>>>
    Who goes there?
    <<<0123456789abcdef end of question>>>
    """
    if mark in text:
        raise ValueError(f"the mark {mark} occurs in the text that it is to fence; draw it with draw_nonce()")
    if not _NAME.fullmatch(name) or mark in name or name.startswith("end of "):
        raise ValueError(f"{name!r:.80} is not a valid name for a fence")
    return f"<<<{mark} {name}>>>\n{text}\n<<<{mark} end of {name}>>>"


def read_fences(prompt: str) -> dict[str, str]:
    """The fenced texts of a prompt by their names, in order: what `fence_text` put in, to the letter.

    The first delimiter that has a line of its own gives the mark, so nothing of a model may come before the first
    fence.

    Args:
        prompt: With no fence at all, there is nothing to read.

    Raises:
        ValueError: For a fence that does not end, or a name that comes twice.
    """
    texts: dict[str, str] = {}
    first, end = "", 0
    for opening in _OPENING.finditer(prompt):
        mark, name = opening.groups()
        if not first:
            first = mark
        if opening.start() < end or mark != first or name.startswith("end of "):
            continue
        start = opening.end() + 1
        # The text may be empty: the line feed before the end is then the one after the beginning.
        end = prompt.find(f"\n<<<{mark} end of {name}>>>", start)
        if end < 0:
            raise ValueError(f"the fence of {name!r:.80} does not end")
        if name in texts:
            raise ValueError(f"there are two fences of the name {name!r:.80}")
        texts[name] = prompt[start:end]
    return texts


# Ranges of characters that NFKC, which some tokenizers apply before they look for their tokens, turns into ASCII.
_COMPATIBLE: Final = (
    *((0xA0, 0x3400), (0xA7F2, 0xA7F5), (0xFB29, 0xFB2A), (0xFE10, 0xFFF0)),
    *((0x107A5, 0x107A6), (0x1D400, 0x1D800), (0x1F100, 0x1F200), (0x1FBF0, 0x1FBFA)),
)

_PATTERNS = read_packaged_yaml("rolellm.models.prompts", "quote_guard.yaml")
_TOKENS: Final = "|".join(_PATTERNS["tokens"])
_BRACKETED: Final = "|".join(_PATTERNS["bracketed"])
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
    folded: dict[int, str] = {}
    for first, end in _COMPATIBLE:
        for code in range(first, end):
            character = unicodedata.normalize("NFKC", chr(code))
            if len(character) == 1 and character.isascii():
                folded[code] = character
    return folded


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
