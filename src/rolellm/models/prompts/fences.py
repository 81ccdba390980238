"""Texts of strangers in a prompt: made harmless, and put behind a fence that they cannot close."""

from __future__ import annotations

import functools
import hashlib
import re
from itertools import count
from typing import Final

from rolellm.core.sanitize import make_visible
from rolellm.models.prompts.quote_guard import disarm

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
    return f"{harmless}\n[… {left_out:,} more characters]" if left_out else harmless


def _spell_hidden(text: str) -> str:
    """Spell out every hidden character of a text."""
    if text.isascii() and text.replace("\n", " ").replace("\t", " ").isprintable():
        return text
    text = _STRAY_FORM.sub(lambda match: f"⟨U+{ord(match.group()):04X}⟩", text)
    return text.translate({ord(character): _escape(character) for character in set(text)})


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
