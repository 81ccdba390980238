"""The prompts of the paper's ablation: lines of the role's script, found by BM25 for each question, for a profile.

In the paper (arXiv 2310.00746) RoleLLaMA carries a role's description in the system instruction; its ablation shows the
top 5 dialogue pairs by BM25 instead. What counts as a pair, the wording, and the order (best first) are our choice.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rolellm.core.records import UNKNOWN, Language, Profile, Row, Turn
from rolellm.core.text import load_bm25s, load_chinese_tokenizer
from rolellm.models.prompts.render import DescriptionPrompts, format_turn

_BLOCK: Final = 1024


class TextIndex:
    """Ranks texts by how much of a query is in them.

    Args:
        texts: What is looked through, in an order that decides between equals.
        language: Of texts and queries: ``en`` or ``zh``.
        extra: The extra of this package that is named where ``bm25s`` is not installed.

    Raises:
        MissingExtraError: Without ``bm25s``.
    """

    def __init__(self, texts: Sequence[str], language: Language, *, extra: str = "train") -> None:
        bm25s = load_bm25s(extra=extra)
        self._count = len(texts)
        #: The words of a text that count, in order, repeats included.
        self.words = _make_splitter(language)
        self._index: Any = None
        vocabulary: dict[str, int] = defaultdict(itertools.count().__next__)
        cut: list[list[int]] = []
        for text in texts:
            cut.append([vocabulary[word] for word in self.words(text)])
        # The package cannot index texts among which there is not one word.
        if vocabulary:
            self._index = bm25s.BM25()
            self._index.index((cut, dict(vocabulary)), create_empty_token=False, show_progress=False)

    def __len__(self) -> int:
        return self._count

    def scores(self, query: str) -> npt.NDArray[np.float32]:
        """Each text's score, ``(texts,)``: 0 for one that shares no word with the query, above 0 for the others.

        A word that the query repeats counts each time.
        """
        if self._index is None:
            return np.zeros(self._count, np.float32)
        word_ids = self._index.get_tokens_ids(self.words(query))
        scores: npt.NDArray[np.float32] = self._index.get_scores_from_ids(word_ids)
        return scores

    def rank(self, query: str, count: int) -> list[int]:
        """The places of the best texts, best first, equals in their own order; fewer only where there are fewer texts.

        A query that shares no word with any text so gives the first ones.

        Args:
            query: Any text.
            count: How many.
        """
        return [int(number) for number in _rank_scores(self.scores(query), count)]


def _rank_scores(scores: npt.NDArray[np.float32], count: int) -> npt.NDArray[np.intp]:
    """The places of the highest scores, highest first, equals in their own order; scores are 0 or more.

    Most texts are ruled out without sorting them: each of the `count` best blocks has one text as good as the worst of
    those blocks' best, so nothing below that can be among the best `count` texts.
    """
    count = max(count, 0)
    whole_blocks = len(scores) // _BLOCK
    blocks = scores[: whole_blocks * _BLOCK].reshape(-1, _BLOCK).max(axis=1)
    candidates = np.arange(len(scores))
    if 0 < count <= whole_blocks:
        bound = np.partition(blocks, -count)[-count]
        if bound > 0:
            candidates = np.flatnonzero(scores >= bound)
    order = np.argsort(-scores[candidates], kind="stable")
    return candidates[order[:count]]


def _make_splitter(language: Language) -> Callable[[str], list[str]]:
    """Make what gives the words of a text that count."""
    from bm25s.stopwords import STOPWORDS_CHINESE, STOPWORDS_EN_PLUS

    if language == "zh":
        # A Chinese word may be one character long.
        cut, stop = load_chinese_tokenizer(), frozenset(STOPWORDS_CHINESE)
        return lambda text: [word for word in cut(text) if word not in stop]
    find_words, stop = re.compile(r"\b\w\w+\b").findall, frozenset(STOPWORDS_EN_PLUS)
    return lambda text: [word for word in find_words(text.lower()) if word not in stop]


RETRIEVED = 5
"""How many exchanges the paper shows."""
_PARTED = 40


@dataclass(frozen=True, slots=True)
class Exchange:
    """A role's line, and what came right before it in the scene: someone else's line, or else narration."""

    before: Turn
    line: Turn

    @property
    def text(self) -> str:
        """Both texts, which a question is compared with."""
        return f"{self.before.content}\n{self.line.content}"

    def format(self, language: Language, *, is_full: bool = False) -> str:
        """Both as a prompt shows them, a line each; shortened unless `is_full`."""
        before = format_turn(self.before, language, is_full=is_full)
        line = format_turn(self.line, language, is_full=is_full)
        return f"{before}\n{line}"


def join_parted_turns(turns: Iterable[Turn], language: Language) -> list[Turn]:
    """Turns, with those put together again that a stage direction or a ``said he`` parts in the source.

    They are of one speaker and one scene, nobody speaks in between, and at most `_PARTED` characters of the source lie
    between them (our choice); without places in a source nothing is put together. What parted them is left out.
    """
    lines: list[Turn] = []
    last: int | None = None
    gap = "" if language == "zh" else " "
    for turn in turns:
        if turn.kind != "speech":
            lines.append(turn)
            continue
        joined = turn
        if last is not None and _is_continued(lines[last], turn):
            before = lines[last]
            joined = replace(before, content=f"{before.content}{gap}{turn.content}", end=turn.end)
            del lines[last:]
        last = len(lines)
        lines.append(joined)
    return lines


def _is_continued(before: Turn, turn: Turn) -> bool:
    if before.speaker != turn.speaker or turn.speaker == UNKNOWN or before.scene != turn.scene:
        return False
    has_places = before.start >= 0 and turn.start >= 0
    return has_places and 0 <= turn.start - before.end <= _PARTED


def find_exchanges(profile: Profile) -> list[Exchange]:
    """The exchanges of a role, in the order of the script.

    Narration between a line and its answer is passed over, and so is every direction. A line that opens its scene, or
    follows the role's own, answers nothing and is in none. What a word or two of the narrator's parts, such as
    ``said he``, is one line.
    """
    pairs: list[Exchange] = []
    before: Turn | None = None
    for turn in join_parted_turns(profile.turns, profile.language):
        if before is not None and before.scene != turn.scene:
            before = None
        if not profile.owns(turn):
            is_first_told = turn.kind == "narration" and (before is None or before.kind == "narration")
            if turn.kind == "speech" or is_first_told:
                before = turn
        elif before is not None:
            pairs.append(Exchange(before, turn))
            before = None
    return pairs


class RetrievalPrompts(DescriptionPrompts):
    """Makes the messages that ask a row's question of its role, with exchanges found for that question.

    The exchanges replace the description in the system turn, best first. A role without a profile, or
    whose profile has no exchange, is asked without any, so that no row is lost.

    Args:
        profiles: The roles' scripts, as from `rolellm.data.rolebench.release.load_profiles` with the rows' roles.
        count: The most exchanges in a prompt.
        path: A system instruction of the user's own, see `rolellm.models.prompts.render.load_system_template`.

    Raises:
        SettingsError: For an unusable template.
        MissingExtraError: Without ``bm25s``, which the extra ``train`` brings.
    """

    def __init__(self, profiles: Iterable[Profile], *, count: int = RETRIEVED, path: str | Path | None = None) -> None:
        super().__init__(path, retrieval=True)
        self._count = count
        self._roles: dict[tuple[Language, str], tuple[list[Exchange], TextIndex]] = {}
        for profile in profiles:
            exchanges = find_exchanges(profile)
            if exchanges:
                index = TextIndex([exchange.text for exchange in exchanges], profile.language)
                self._roles[profile.language, profile.role] = exchanges, index

    def find_examples(self, row: Row) -> list[Exchange]:
        """The exchanges that a row's prompt shows, best first."""
        if (row.language, row.role) not in self._roles:
            return []
        exchanges, index = self._roles[row.language, row.role]
        return [exchanges[number] for number in index.rank(row.question, self._count)]

    def __call__(self, row: Row) -> list[dict[str, str]]:
        """One system turn, one user turn, as `rolellm.models.prompts.render.make_messages` makes them."""
        examples = "\n\n".join(item.format(row.language) for item in self.find_examples(row))
        system = self.templates[row.language].fill(role=row.role, examples=examples)
        return [
            {"role": "system", "content": system},
            {"role": "user", "content": row.question},
        ]
