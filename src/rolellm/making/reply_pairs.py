"""Pairs of replies for DPO: one record, and what a data set and Context-Instruct prefer.

Each source is a function that yields a `ReplyPair` for each preference. `rolellm.judging.answer_pairs` has those of
judges and votes, `rolellm.preferences` those of breaks of character and swipes, and what becomes of all of them.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from rapidfuzz import process
from rapidfuzz.distance import Indel

from rolellm.characters.folder import PROFILE, read_character
from rolellm.characters.roles import Part
from rolellm.core.records import Language, Profile, Row
from rolellm.core.text import fold
from rolellm.making.duplicates import list_words
from rolellm.making.instruct.run import DROPPED, KEPT
from rolellm.models.prompts.render import OPENING, load_system_template, make_messages
from rolellm.runs import Run

#: Similarity of two replies' words from which on a pair teaches next to nothing (our choice).
SAME: Final = 0.7
#: Width of the bins of the log ratio of lengths in which gaps count as equal; below half of it there is none (our
#: choice).
LENGTH_BIN: Final = 0.1
#: Words, in Chinese characters, that a reply to an instruction needs to show a role (our choice): "Would." shows none.
_FEWEST: Final[Mapping[Language, int]] = {"en": 6, "zh": 10}
#: Similarity of two questions from which on an answer to one is taken for a bad answer to the other (our choice).
_SAME_QUESTION: Final = 0.9
#: Other roles, drawn by lot, among whose replies the one nearest in length is rejected (our choice).
_OTHER_ROLES: Final = 4
#: Filters of Context-Instruct that turn an answer down for what it claims.
_UNGROUNDED: Final = ("grounding", "confidence")
#: Characters of a talk before a reply that its prompt keeps (our choice): 2,048 tokens hold them and a description.
_HISTORY: Final = 3000


@dataclass(frozen=True, slots=True)
class ReplyPair:
    """A preference.

    Attributes:
        source: ``plain``, ``role``, ``grounded``, ``breaks``, ``judge``, ``votes`` or ``swipes``.
        id: The row, turn or message that it comes from.
        role: Who replies.
        language: ``en`` or ``zh``.
        prompt: Messages, the system turn first, up to what is replied to.
        chosen: The reply that is preferred.
        rejected: The other one.
        after: A card's instructions at the end of the prompt.
    """

    source: str
    id: str
    role: str
    language: Language
    prompt: tuple[Mapping[str, str], ...]
    chosen: str
    rejected: str
    after: str = ""

    @property
    def question(self) -> str:
        """What is replied to."""
        return self.prompt[-1]["content"].removesuffix(self.after)

    @property
    def sheet(self) -> Profile:
        """The role, with all that the prompt says of it."""
        return Profile(self.role, self.language, description=self.prompt[0]["content"])

    @property
    def log_ratio(self) -> float:
        """The natural logarithm of the chosen reply's length over the rejected one's, in characters."""
        return math.log(len(self.chosen) / len(self.rejected))

    def to_dict(self) -> dict[str, Any]:
        """Return a line of ``pairs.jsonl``: TRL's columns in its conversational format, and where the pair is from."""
        replies = {name: [{"role": "assistant", "content": getattr(self, name)}] for name in ("chosen", "rejected")}
        names = {name: getattr(self, name) for name in ("id", "source", "role", "language")}
        return {**names, "prompt": [dict(message) for message in self.prompt], **replies}


def pair_plain(rows: Iterable[Row]) -> Iterator[ReplyPair]:
    """Prefer a role's reply to the role-free answer of the same question."""
    for row in rows:
        if row.raw_reference and row.references:
            yield pair_row("plain", row, *match_replies(row.references, [row.raw_reference], row.language))


def pair_roles(rows: Iterable[Row]) -> Iterator[ReplyPair]:
    """Prefer a role's own reply to another role's reply to the same question."""
    by_question: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row.references:
            by_question[row.language, fold(row.question)].append(row)
    for group in by_question.values():
        for row in group:
            others = [other for other in group if other.role != row.role]
            # By content, so that other rows move nothing.
            drawn = random.Random(f"{row.role}\0{row.question}").sample(others, min(_OTHER_ROLES, len(others)))
            if replies := [reply for other in drawn for reply in other.references]:
                yield pair_row("role", row, *match_replies(row.references, replies, row.language, row.raw_reference))


def pair_row(source: str, row: Row, chosen: str, rejected: str) -> ReplyPair:
    """Pair two replies to a row of RoleBench."""
    return ReplyPair(source, row.id, row.role, row.language, tuple(make_messages(row)), chosen, rejected)


def match_replies(
    chosen: Sequence[str], rejected: Sequence[str], language: Language, plain: str | None = None
) -> tuple[str, str]:
    """Choose a reply of each side: as near in length as can be and, of those, the two that differ most.

    The nearest alone is mostly the one with the least of the role in it. The chosen one should differ from a plain
    answer, too, or another role's style would be what is rejected.
    """
    first, second = ([text for text in texts if is_long(text, language)] or texts for texts in (chosen, rejected))
    likeness = {text: compare_replies(text, plain, language) if plain else 0.0 for text in first}
    first = [text for text in first if likeness[text] < SAME] or first
    choices: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for one, other in product(first, second):
        choices[round(abs(math.log((len(one) + 1) / (len(other) + 1))) / LENGTH_BIN)].append((one, other))

    def rate(pair: tuple[str, str]) -> float:
        return likeness[pair[0]] + compare_replies(*pair, language=language)

    best = [min(choices[size], key=rate) for size in sorted(choices)]
    return next((pair for pair in best if compare_replies(pair[0], pair[1], language) < SAME), best[0])


def compare_replies(reply: str, other: str, language: Language) -> float:
    """The similarity of two replies' words, in Chinese characters, from 0 to 1."""
    return float(Indel.normalized_similarity(list_words(reply, language), list_words(other, language)))


def is_long(text: str, language: Language) -> bool:
    """Tell whether a reply has room to show a role."""
    return len(list_words(text, language)) >= _FEWEST[language]


def pair_grounded(run: Run[Any]) -> Iterator[ReplyPair]:
    """Prefer an answer of ``rolellm instruct`` that passed its filters to one that was turned down for what it claims.

    Both have to answer the same question, or nearly.
    """
    role, language = str(run.summary["role"]), run.manifest["language"]
    home = run.folder.resolve().parent
    part = Part(read_character(home)) if (home / PROFILE).is_file() else Part(Profile(role, language))
    kept = run.records(KEPT)
    questions = [fold(line["question"]) for line in kept]
    for line in run.records(DROPPED):
        if line["receipt"]["filter"]["by"] not in _UNGROUNDED:
            continue
        similarity = Indel.normalized_similarity
        match = process.extractOne(fold(line["question"]), questions, scorer=similarity, score_cutoff=_SAME_QUESTION)
        if match is not None:
            better = kept[match[2]]
            prompt = make_pair_prompt(part, [{"role": "user", "content": better["question"]}])
            row_id = f"{role}/{better['id']}"
            yield ReplyPair("grounded", row_id, role, part.sheet.language, prompt, better["answer"], line["answer"])


def make_pair_prompt(part: Part, turns: Sequence[Mapping[str, str]]) -> tuple[Mapping[str, str], ...]:
    """The system turn of a role, and as much of the end of a talk as `_HISTORY` allows, from a user's turn on."""
    sheet, first, room = part.sheet, len(turns) - 1, _HISTORY - len(turns[-1]["content"])
    while first > 0 and (room := room - len(turns[first - 1]["content"])) >= 0:
        first -= 1
    recent = list(turns[first:])
    if recent[0]["role"] != "user":
        recent = [{"role": "user", "content": OPENING[sheet.language]}, *recent] if first == 0 else recent[1:]
    system = part.system_turn(load_system_template(sheet.language))
    return {"role": "system", "content": system}, *recent
