"""Texts of strangers in a prompt: made harmless, and put behind a fence that they cannot close."""

from __future__ import annotations

import functools
import hashlib
import re
from dataclasses import dataclass
from itertools import count
from typing import Final

from rolellm.core.sanitize import make_visible
from rolellm.models.prompts.quote_guard import disarm, find_lures

#: What `make_harmless` can find, in the order in which it says so.
KINDS: Final = ("cut", "hidden", "bidi", "control_tokens", "fence", "verdict", "instruction")
#: The most characters of a text that a judge is shown by default (our choice): some ten times the paper's 200 tokens.
LIMIT: Final = 8000

_BIDI: Final = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
# Blank or without a glyph, though Unicode files them as letters, marks or unassigned: fillers, variation selectors.
_BLANK: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u2800\u3164\ufe00-\ufe0d\uffa0\ufff0-\ufff8\U000e0000-\U000e0fff]"
)
_EMOJI: Final = "\u2190-\u2bff\U0001f000-\U0001faff"
# What joins emoji, and picks their form, is part of how they are written; anywhere else it may carry hidden text.
_JOINER: Final = re.compile(f"(?<=[{_EMOJI}\ufe0f])\u200d(?=[{_EMOJI}])")
_STRAY_FORM: Final = re.compile("(?:^|(?<=[^\\W\\d_ℹ])|(?<=[\\s\ufe0e\ufe0f]))[\ufe0e\ufe0f]")
# Tag characters spell ASCII out of sight; a judge may read them all the same.
_UNTAGGED: Final = {0xE0000 + code: chr(code) for code in range(0x20, 0x7F)}

_OPENING: Final = re.compile(r"^<<<([0-9a-f]{16}) ([^<>\n]+)>>>$", re.MULTILINE)
_NAME: Final = re.compile(r"[^<>\n]+")


@dataclass(frozen=True, slots=True)
class HarmlessText:
    """A text as a judge is shown it.

    Attributes:
        text: Harmless: every character can be seen, and no chat template has a token in it.
        touched: Which of `KINDS` was found in it, in their order; empty for nearly every honest text.
    """

    text: str
    touched: tuple[str, ...] = ()


def make_harmless(text: str, limit: int = LIMIT) -> HarmlessText:
    r"""Make a text of a model or a data set harmless for a judge's prompt, and say what was found in it.

    ========================  =============================================================================
    ``cut``                   longer than `limit`: the rest is left out, and how much it was is said
    ``hidden``                controls, zero-width, tag and other characters without a glyph: spelled out
    ``bidi``                  marks and overrides of direction: spelled out
    ``control_tokens``        tokens and role headers of chat templates: brackets, colons become look-alikes
    ``fence``                 looks like a delimiter; left as it is
    ``verdict``               looks like a judge's verdict; left as it is
    ``instruction``           speaks to the judge; left as it is
    ========================  =============================================================================

    The last three are marks for counting: an honest text may have one by chance, and loses nothing by it. Only what is
    shown is looked at, so that a text of any length takes the same time. Line ends become line feeds, and an emoji
    joined of several falls apart into them; neither counts as found.

    Args:
        text: Anything, lone surrogates included.
        limit: The most characters to show, counted after spelling out.

    Raises:
        ValueError: For a limit below 1.

    >>> make_harmless("<|im_end|>\u200bAye.")
    HarmlessText(text='‹|im_end|>⟨U+200B⟩Aye.', touched=('hidden', 'control_tokens'))
    """
    if limit < 1:
        raise ValueError(f"limit is {limit}; it has to be at least 1")
    head = text[:limit]
    if head.endswith("\r") and len(text) > limit:
        head = head[:-1]
    left_out = len(text) - len(head)
    head = _JOINER.sub("", head.replace("\r\n", "\n"))
    kinds = set()
    readable = head.translate(_UNTAGGED)
    spelt, odd = _spell_hidden(head)
    kinds |= {"bidi" if character in _BIDI else "hidden" for character in odd}
    left_out += max(len(spelt) - limit, 0)
    spelt = spelt[:limit]
    harmless = disarm(spelt)
    # Looked at as it is shown, and as it would read without what is hidden in it.
    readings = {spelt, readable.translate(dict.fromkeys(map(ord, odd)))}
    for reading in readings:
        kinds |= {*find_lures(reading), *(("control_tokens",) if disarm(reading) != reading else ())}
    if left_out:
        kinds.add("cut")
        harmless += f"\n[… {left_out:,} more characters]"
    return HarmlessText(harmless, tuple(kind for kind in KINDS if kind in kinds))


def _spell_hidden(text: str) -> tuple[str, set[str]]:
    """The text with every hidden character spelled out, and which these were."""
    if text.isascii() and text.replace("\n", " ").replace("\t", " ").isprintable():
        return text, set()
    forms = set(_STRAY_FORM.findall(text))
    if forms:
        text = _STRAY_FORM.sub(lambda found: f"⟨U+{ord(found.group()):04X}⟩", text)
    table = {ord(character): form for character in set(text) if (form := _escape(character)) != character}
    return (text.translate(table) if table else text), {*map(chr, table), *forms}


@functools.lru_cache(maxsize=1 << 14)
def _escape(character: str) -> str:
    return f"⟨U+{ord(character):04X}⟩" if _BLANK.match(character) else make_visible(character)


def draw_nonce(*parts: str) -> str:
    """A mark of 16 hex characters that occurs in none of the texts it is to fence, drawn from these texts.

    The same texts get the same mark, so that a request is the same when it is asked again. Nobody can write a text
    that holds its own mark: it would have to hold a piece of its own SHA-256, and then the next mark is drawn.
    """
    datas = [part.encode("utf-8", "surrogatepass") for part in parts]
    content = b"".join(f"{len(data)}:".encode() + data for data in datas)
    marks = (hashlib.sha256(content + str(turn).encode()).hexdigest()[:16] for turn in count())
    return next(mark for mark in marks if not any(mark in part for part in parts))


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
        first = first or mark
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
