"""BM25 over short texts, English or Chinese, with an order that is the same on every machine.

Scores are those of the package ``bm25s`` under its defaults (Lucene's variant, k1 1.5, b 0.75). The order is ours, for
that package leaves ties to chance. So is what counts as a word: in English a run of two or more letters and digits, in
Chinese a word as jieba cuts it; in lower case, and unless it is among the package's stop words.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rolellm.extras import require
from rolellm.records import Language
from rolellm.text import chinese_words

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
        require("bm25s", extra=extra)
        self._count = len(texts)
        self._words = _cutter(language)
        self._index = None
        vocabulary: dict[str, int] = defaultdict(itertools.count().__next__)
        cut = [[vocabulary[word] for word in self._words(text)] for text in texts]
        # The package cannot index texts among which there is not one word.
        if vocabulary:
            self._index = _indexed(cut, dict(vocabulary))

    def __len__(self) -> int:
        return self._count

    def scores(self, query: str) -> npt.NDArray[np.float32]:
        """Each text's score, ``(texts,)``: 0 for one that shares no word with the query, above 0 for the others.

        A word that stands in the query twice counts twice.
        """
        if self._index is None:
            return np.zeros(self._count, np.float32)
        known = self._index.get_tokens_ids(self.words(query))
        scores: npt.NDArray[np.float32] = self._index.get_scores_from_ids(known)
        return scores

    def top(self, query: str, count: int) -> list[int]:
        """The places of the best texts, best first, equals in their own order; fewer only where there are fewer texts.

        A query that shares no word with any text so gives the first ones.

        Args:
            query: Any text.
            count: How many.
        """
        return [int(place) for place in _best(self.scores(query), count)]

    def words(self, text: str) -> list[str]:
        """The words of a text that count, in its order; one that stands there twice is listed twice."""
        return self._words(text)


def _best(scores: npt.NDArray[np.float32], count: int) -> npt.NDArray[np.intp]:
    """The places of the highest scores, highest first, equals in their own order; scores are 0 or more.

    Most texts are ruled out without sorting them: each of the `count` best blocks has one text as good as the worst of
    those blocks' best, so nothing below that can be among the best `count` texts.
    """
    count = min(count, len(scores))
    whole = len(scores) // _BLOCK * _BLOCK
    if count <= 0 or whole // _BLOCK < count:
        return np.argsort(-scores, kind="stable")[: max(count, 0)]
    bound = np.partition(scores[:whole].reshape(-1, _BLOCK).max(axis=1), -count)[-count]
    if bound <= 0:
        found = np.flatnonzero(scores)
        if len(found) < count:
            # Every place up to this one is in, or stands before the last that is.
            first = np.flatnonzero(scores[: count + len(found)] == 0)
            found = np.concatenate([found, first[: count - len(found)]])
    else:
        found = np.flatnonzero(scores >= bound)
    best: npt.NDArray[np.intp] = found[np.lexsort((found, -scores[found]))][:count]
    return best


def _cutter(language: Language) -> Callable[[str], list[str]]:
    """What gives the words of a text that count."""
    from bm25s.stopwords import STOPWORDS_CHINESE, STOPWORDS_EN_PLUS

    stop = frozenset(STOPWORDS_EN_PLUS if language == "en" else STOPWORDS_CHINESE)
    if language == "zh":
        # A Chinese word may be one character long.
        cut = chinese_words()
        return lambda text: [word for word in cut(text) if word not in stop]
    found = re.compile(r"\b\w\w+\b").findall
    return lambda text: [word for word in found(text.lower()) if word not in stop]


def _indexed(cut: list[list[int]], vocabulary: dict[str, int]) -> Any:
    """The package's index of texts as numbers of words, all of it computed at once instead of text by text.

    The package documents this way in; its scores come out the same to the last bit.
    """
    import bm25s

    class Index(bm25s.BM25):  # type: ignore[misc]
        def build_index_from_ids(self, unique_token_ids: Any, corpus_token_ids: Any, **_: Any) -> dict[str, Any]:
            lengths = np.array([len(words) for words in corpus_token_ids])
            words = np.fromiter(itertools.chain.from_iterable(corpus_token_ids), np.int64, int(lengths.sum()))
            texts = np.repeat(np.arange(len(lengths)), lengths)
            pairs, counts = np.unique(words << 32 | texts, return_counts=True)
            of, word = (pairs & 0xFFFFFFFF).astype(self.int_dtype), pairs >> 32
            holders = np.bincount(word, minlength=len(unique_token_ids))
            rarity = [math.log(1 + (len(lengths) - held + 0.5) / (held + 0.5)) for held in holders.tolist()]
            # Rounded to single precision where the package does.
            weights = np.array(rarity, self.dtype)[word].astype(np.float64)
            norms = self.k1 * ((1 - self.b) + self.b * lengths / lengths.mean())
            self.nonoccurrence_array = None
            return {
                "data": (weights * (counts / (norms[of] + counts))).astype(self.dtype),
                "indices": of,
                "indptr": np.concatenate(([0], np.cumsum(holders))),
                "num_docs": len(lengths),
            }

    index = Index()
    index.index((cut, vocabulary), create_empty_token=False, show_progress=False)
    return index
