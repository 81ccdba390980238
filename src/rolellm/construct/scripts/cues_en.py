"""The words beside an English quotation: whether they make it speech, and whom they name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rolellm.construct.scripts import words_en as words
from rolellm.construct.scripts.chapters import Paragraph
from rolellm.construct.scripts.names_en import known_name
from rolellm.construct.scripts.quotes import Quotation

_INVERTED = re.compile(
    rf"[\s,—–-]*(?:and\s+)?{words.ADVERBS}(?P<verb>{words.VERB})\s+{words.ADVERBS}(?:{words.SUBJECT})"
)
_STRAIGHT = re.compile(
    rf"[\s,—–-]*(?:and\s+|but\s+)?(?:{words.SUBJECT})(?:,[^,.!?]{{1,60}},)?\s+{words.ADVERBS}(?P<verb>{words.VERB})\b"
)
BEGINNING = re.compile(rf"{words.FIRST_WORDS}(?:{words.SUBJECT})")
_VERB = re.compile(rf"\b{words.VERB}\b")
_BEFORE_VERB = re.compile(
    rf"(?:^|[\s,;—–])(?:{words.SUBJECT})(?:,[^,.!?]{{1,60}},)?\s+{words.ADVERBS}(?P<verb>{words.VERB})\b"
)
_AFTER_COMMA = re.compile(rf",\s+(?:{words.SUBJECT})\s")
LAST_SENTENCE = re.compile(
    r"(?:.*(?<!Mr)(?<!Mrs)(?<!Ms)(?<!Dr)(?<!St)[.!?][’'\")\s]*\s)?(?P<sentence>[^\s].*)$", re.DOTALL
)
_ENDS_IN_VERB = re.compile(rf"\b{words.VERB}$")
# Verbs whose object may be a quoted word: ``he called it``.
_MAY_NAME = re.compile(r"\b(?:called|calls|read|reads|thought|went|told|spoke|noted|sang)$")
_ENDED = tuple(".,!?…—–-;:~")
# A quoted phrase of at most so many words in the middle of a sentence is no speech: our choice.
_WORD_QUOTED = 6


@dataclass(frozen=True, slots=True)
class Cue:
    """Words that say who speaks: a name, or a pronoun that stands for one."""

    name: str | None
    pronoun: str | None
    is_name: bool = False


def is_spoken(text: str, paragraphs: Sequence[Paragraph], quotation: Quotation) -> bool:
    """Whether a quotation is speech: no quoted word, no title, nothing written."""
    if quotation.is_resumed:
        return True
    paragraph = paragraphs[quotation.paragraph]
    said = text[quotation.start : quotation.end].strip()
    before = text[max(paragraph.start, quotation.left - 80) : quotation.left].rstrip()
    after = text[quotation.right : quotation.right + 80]
    if words.WRITTEN.search(before):
        return False
    if not before or before[-1] in ":,.!?;—–-’”\")…'":
        is_whole = said.endswith(_ENDED) or not before or quotation.right >= paragraph.end
        return is_whole or bool(_INVERTED.match(after) or _STRAIGHT.match(after)) or before[-1] in ":,"
    if _ENDS_IN_VERB.search(before) and (said.endswith(_ENDED) or said[:1].isupper()):
        return not _MAY_NAME.search(before) or said.endswith(("!", "?"))
    if len(said.split()) <= _WORD_QUOTED and not said[:1].isupper():
        return False
    return said.endswith(tuple("!?.,—")) and said[:1].isupper() and len(said.split()) > 3


def cue_after(tail: str, ending: str) -> Cue | None:
    """What stands after a quotation: ``said Alice``, ``the Rabbit cried``, ``he asked``."""
    inverted = _INVERTED.match(tail)
    if inverted and not (inverted["verb"] in words.WEAK and ending not in ",!?—–"):
        return cue_of(inverted)
    straight = _STRAIGHT.match(tail)
    if straight and not (ending == "." or (straight["verb"] in words.WEAK and ending not in (",",))):
        return cue_of(straight)
    return None


def cue_before(own: str, *, is_colon: bool) -> Cue | None:
    """What stands before a quotation: ``Alice said``, ``he turned to her and cried``, ``said the King``."""
    found = LAST_SENTENCE.match(own)
    sentence = found["sentence"] if found else own
    verbs = [*_VERB.finditer(sentence)]
    if not verbs and not is_colon:
        return None
    inverted = _INVERTED.match(sentence)
    if inverted and inverted.end() > len(sentence) - 40:
        return cue_of(inverted)
    direct = next(reversed([*_BEFORE_VERB.finditer(sentence)]), None)
    if direct is not None and verbs and direct.end("verb") >= verbs[-1].start():
        return cue_of(direct)
    beginning = BEGINNING.match(sentence)
    if beginning and beginning["name"] and beginning["name"].endswith("ing"):
        # ``Turning to the others, he``: no name, but what its subject does besides.
        beginning = next(reversed([*_AFTER_COMMA.finditer(sentence)]), None)
    return cue_of(beginning) if beginning else None


def cue_of(match: re.Match[str]) -> Cue | None:
    """Whom a match of `words.SUBJECT` names."""
    if match["pronoun"]:
        return Cue(None, match["pronoun"])
    if match["name"]:
        name = known_name(match["name"])
        return Cue(name, None, is_name=True) if name else None
    described = " ".join((match["owned"] or match["described"] or match["somebody"] or "").split())
    if not described or match["owned"]:
        return Cue(described, None) if described else None
    # ``the Rabbit`` is a name, ``the old man`` is none.
    is_name = described[:4] in ("the ", "The ") and described[4].isupper()
    return Cue(described[0].lower() + described[1:], None, is_name)
