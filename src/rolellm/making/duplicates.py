"""Near-duplicates by BM25 similarity, as the paper used it to thin out instructions.

Question words stay in ("who found the jam" is not "where did you find the jam"), so this does not share the stop words
of `rolellm.models.prompts.retrieval`.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from rolellm.core.records import Language
from rolellm.core.text import fold, load_bm25s, load_chinese_tokenizer

_WORD: Final = re.compile(r"\w+(?:'\w+)?")
_MARKS: Final = re.compile(r"[\W_]+")


def find_repeats(texts: Sequence[str], language: Language, similarity: float) -> dict[int, tuple[int, float]]:
    """Find the texts that repeat one that is kept, in the order given: the first of its like is kept.

    Similarity is the score of one text as a query for the other over its score for itself, in both directions, the
    lower one counting.

    Args:
        texts: What decides between likes is their order.
        language: ``en`` or ``zh``.
        similarity: From which on it is a repeat.

    Returns:
        Of each repeated text's place the place of the kept one that it is nearest to, and the similarity.

    Raises:
        MissingExtraError: Where ``bm25s`` is not installed.
    """
    scorer = _Scorer(texts, language)
    kept_positions: set[int] = set()
    first: dict[str, int] = {}
    matches: dict[int, tuple[int, float]] = {}
    for position, text in enumerate(texts):
        same = first.setdefault(fold(text), position)
        if same != position:
            kept, _ = matches.get(same, (same, 1.0))
            matches[position] = kept, 1.0
            continue
        near = scorer.find_near(position, similarity)
        alike = [(value, -earlier) for earlier, value in near if earlier in kept_positions]
        if alike:
            value, earlier = max(alike)
            matches[position] = -earlier, min(value, 1.0)
        else:
            kept_positions.add(position)
    return matches


class _Scorer:
    """BM25 scores of texts for each other."""

    def __init__(self, texts: Sequence[str], language: Language) -> None:
        cut = load_chinese_tokenizer() if language == "zh" else functools.partial(list_words, language=language)
        self._words = [list(cut(text)) for text in texts]
        self._index = None
        if any(self._words):
            self._index = load_bm25s(extra="llm").BM25()
            self._index.index(self._words, create_empty_token=False, show_progress=False)
        self._score_all = functools.lru_cache(maxsize=256)(self._compute_scores)

    def find_near(self, position: int, similarity: float) -> Iterator[tuple[int, float]]:
        """Find the earlier texts that are near one, each with how near."""
        if self._index is None:
            return
        ahead = self._score_all(position)[:position]
        for earlier in np.flatnonzero(ahead >= similarity).tolist():
            back = self._score_all(earlier)[position]
            if back >= similarity:
                yield earlier, float(min(ahead[earlier], back))

    def _compute_scores(self, position: int) -> npt.NDArray[np.float32]:
        """Score every text for one as the query, over its own score."""
        assert self._index is not None
        query = self._index.get_tokens_ids(self._words[position])
        scores: npt.NDArray[np.float32] = self._index.get_scores_from_ids(query)
        own = float(scores[position])
        if own <= 0:
            return np.zeros_like(scores)
        return scores / own


def list_words(text: str, language: Language) -> list[str]:
    """Split a text into words; in Chinese, characters. Case, punctuation and white space go."""
    if language == "zh":
        return list(_MARKS.sub("", unicodedata.normalize("NFKC", text).lower()))
    return _WORD.findall(text.casefold().replace("’", "'"))
