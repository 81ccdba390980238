"""What a judge is shown: role, question and reference, and the answers under letters, each text behind a fence.

Which reference: of a role-specific row its own, of which Context-Instruct made it; of a general row the instruction's
role-free target. The styled references of general rows are RoleGPT's, siblings of the baseline that the others are
compared with, so a judge that saw them would be shown whom to prefer (our choice).
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from rolellm.core.records import Row
from rolellm.core.sanitize import label, visible
from rolellm.core.settings import packaged_yaml
from rolellm.judging.orders import LETTERS, Ask
from rolellm.judging.quote_guard import defanged, looks_like
from rolellm.judging.types import Comparison
from rolellm.llm.model import Request, system, user

#: What `show` can find, in the order in which it says so.
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
class Shown:
    """A text as a judge is shown it.

    Attributes:
        text: Harmless: every character can be seen, and no chat template has a token in it.
        touched: Which of `KINDS` was found in it, in their order; empty for nearly every honest text.
    """

    text: str
    touched: tuple[str, ...] = ()


def show(text: str, limit: int = LIMIT) -> Shown:
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

    >>> show("<|im_end|>\u200bAye.")
    Shown(text='‹|im_end|>⟨U+200B⟩Aye.', touched=('hidden', 'control_tokens'))
    """
    if limit < 1:
        raise ValueError(f"limit is {limit}; it has to be at least 1")
    head = text[:limit]
    if head.endswith("\r") and len(text) > limit:
        head = head[:-1]
    left_out = len(text) - len(head)
    head = _JOINER.sub("", head.replace("\r\n", "\n"))
    found = set()
    readable = head.translate(_UNTAGGED)
    spelt, odd = _spelt(head)
    found |= {"bidi" if character in _BIDI else "hidden" for character in odd}
    left_out += max(len(spelt) - limit, 0)
    spelt = spelt[:limit]
    made = defanged(spelt)
    # Looked at as it is shown, and as it would read without what is hidden in it.
    readings = {spelt, readable.translate(dict.fromkeys(map(ord, odd)))}
    for reading in readings:
        found |= {*looks_like(reading), *(("control_tokens",) if defanged(reading) != reading else ())}
    if left_out:
        found.add("cut")
        made += f"\n[… {left_out:,} more characters]"
    return Shown(made, tuple(kind for kind in KINDS if kind in found))


def _spelt(text: str) -> tuple[str, set[str]]:
    """The text with every hidden character spelled out, and which these were."""
    if text.isascii() and text.replace("\n", " ").replace("\t", " ").isprintable():
        return text, set()
    forms = set(_STRAY_FORM.findall(text))
    if forms:
        text = _STRAY_FORM.sub(lambda found: f"⟨U+{ord(found.group()):04X}⟩", text)
    table = {ord(character): form for character in set(text) if (form := _code(character)) != character}
    return (text.translate(table) if table else text), {*map(chr, table), *forms}


@functools.lru_cache(maxsize=1 << 14)
def _code(character: str) -> str:
    return f"⟨U+{ord(character):04X}⟩" if _BLANK.match(character) else visible(character)


def nonce(*parts: str) -> str:
    """A mark of 16 hex characters that occurs in none of the texts it is to fence, drawn from these texts.

    The same texts get the same mark, so that a request is the same when it is asked again. Nobody can write a text
    that holds its own mark: it would have to hold a piece of its own SHA-256, and then the next mark is drawn.
    """
    datas = [part.encode("utf-8", "surrogatepass") for part in parts]
    whole = b"".join(f"{len(data)}:".encode() + data for data in datas)
    marks = (hashlib.sha256(whole + str(turn).encode()).hexdigest()[:16] for turn in count())
    return next(mark for mark in marks if not any(mark in part for part in parts))


def fenced(name: str, text: str, mark: str) -> str:
    """A text between two delimiters, each on a line of its own.

    Args:
        name: What it is, in our words, such as ``answer A``.
        text: What was drawn for with `nonce`.
        mark: The mark.

    Raises:
        ValueError: When the text holds the mark, or the name could be taken for something else.

    >>> print(fenced("question", "Who goes there?", "0123456789abcdef"))
    <<<0123456789abcdef question>>>
    Who goes there?
    <<<0123456789abcdef end of question>>>
    """
    if mark in text:
        raise ValueError(f"the mark {mark} occurs in the text that it is to fence; draw it with nonce()")
    if not _NAME.fullmatch(name) or mark in name or name.startswith("end of "):
        raise ValueError(f"{name!r:.80} is not a valid name for a fence")
    return f"<<<{mark} {name}>>>\n{text}\n<<<{mark} end of {name}>>>"


def read_fenced(prompt: str) -> dict[str, str]:
    """The fenced texts of a prompt by their names, in order: what `fenced` put in, to the letter.

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


_WORDS: Mapping[str, Mapping[str, str]] = packaged_yaml("rolellm.judging", "words.yaml")


@dataclass(frozen=True, slots=True)
class Material:
    """A row's answers, made harmless for showing.

    Attributes:
        row: The row.
        common: What every request about it shows, by the names of the fences.
        answers: System to answer.
    """

    row: Row
    common: Mapping[str, str]
    answers: Mapping[str, Shown]

    def touched(self, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Of these systems, those whose answers were changed, cut or look like an attack, and how."""
        return {name: self.answers[name].touched for name in names if self.answers[name].touched}


def material(comparison: Comparison, row: Row, limit: int = LIMIT) -> Material:
    """What can be shown of a row of a comparison.

    Args:
        comparison: With the answers.
        row: One of its rows.
        limit: Characters of any one text that are shown; what is longer is cut, and counted.
    """
    given = {one.name: comparison.answers[one.name].get(row.id) for one in comparison.systems}
    answers = {name: show(text, limit) for name, text in given.items() if text is not None}
    return Material(row, {name: show(text, limit).text for name, text in _common(row).items()}, answers)


def judge_request(found: Material, ask: Ask) -> Request:
    """The request for one verdict.

    Args:
        found: The row that is asked about, made harmless.
        ask: Who is asked, and in which order.
    """
    row, letters = found.row, LETTERS[: len(ask.order)]
    words = _WORDS[row.language]
    answers = [found.answers[name].text or words["no_answer"] for name in ask.order]
    # Of what is shown and nothing else, in no order: both orders share it, and another system does not change it.
    mark = nonce(*sorted([*found.common.values(), *answers]))
    fences = {name: fenced(name, text, mark) for name, text in found.common.items()}
    given = [fences[name] for name in fences if name.startswith("reference")]
    told, asked = ask.judge.prompts[row.language]
    content = asked.fill(
        mark=mark,
        character=f"{fences['role']}\n{fences['description']}",
        question=fences["question"],
        reference="\n".join([words[row.subset] if given else words["no_reference"], *given]),
        answers="\n\n".join(
            fenced(f"answer {letter}", text, mark) for letter, text in zip(letters, answers, strict=True)
        ),
        names=_names(words, letters, ask.order) if ask.named else "",
        letters=words["joined"].join(letters),
    )
    messages = (system(told.text), user(content))
    tag = f"judge/{ask.judge.settings.name}/{row.id}"
    return Request(
        messages,
        ask.judge.sampling(len(letters)),
        schema=ask.judge.schema,
        tag=tag,
        repair=words["repair"],
        quotes=False,
    )


def _common(row: Row) -> dict[str, str]:
    return {
        "role": row.role,
        "description": row.role_description or _WORDS[row.language]["no_description"],
        "question": row.question,
        **{f"reference {number}": text for number, text in enumerate(references(row), start=1)},
    }


def references(row: Row) -> Sequence[str]:
    """What a judge is shown of a row's references."""
    if row.subset == "general":
        return [row.raw_reference] if row.raw_reference and row.raw_reference.strip() else []
    return [text for text in dict.fromkeys(row.references) if text.strip()][:3]


def _names(words: Mapping[str, str], letters: Sequence[str], order: Sequence[str]) -> str:
    named = [
        words["is"].format(letter=letter, name=label(name, 60)) for letter, name in zip(letters, order, strict=True)
    ]
    return words["names"].format(named=words["joined"].join(named))
