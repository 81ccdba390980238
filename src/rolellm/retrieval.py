"""BM25 over a few hundred short texts, English or Chinese, with an order that is the same on every machine.

Scores are those of the package ``bm25s`` under its defaults (Lucene's variant, k1 1.5, b 0.75). The order is ours, for
that package leaves ties to chance. So is what counts as a word: in English a run of two or more letters and digits, in
Chinese a word as jieba cuts it; in lower case, and unless it is among the package's stop words.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rolellm.extras import require
from rolellm.records import Language
from rolellm.text import chinese_words


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
        import bm25s

        self._count = len(texts)
        self._language: Language = language
        self._index = None
        cut = _words(texts, language)
        # The package cannot index texts among which there is not one word.
        if any(cut):
            self._index = bm25s.BM25()
            self._index.index(cut, create_empty_token=False, show_progress=False)

    def __len__(self) -> int:
        return self._count

    def scores(self, query: str) -> npt.NDArray[np.float32]:
        """Each text's score, ``(texts,)``: 0 for one that shares no word with the query, above 0 for the others.

        A word that stands in the query twice counts twice.
        """
        if self._index is None:
            return np.zeros(self._count, np.float32)
        known = self._index.get_tokens_ids(_words([query], self._language)[0])
        scores: npt.NDArray[np.float32] = self._index.get_scores_from_ids(known)
        return scores

    def top(self, query: str, count: int) -> list[int]:
        """The places of the best texts, best first, equals in their own order; fewer only where there are fewer texts.

        A query that shares no word with any text so gives the first ones.

        Args:
            query: Any text.
            count: How many.
        """
        order = np.argsort(-self.scores(query), kind="stable")
        return [int(place) for place in order[:count]]


def _words(texts: Sequence[str], language: Language) -> list[list[str]]:
    import bm25s

    pattern = r"(?u)\b\w\w+\b"
    if language == "zh":
        # A Chinese word may be one character long. White space parts words that are cut already.
        cut, pattern = chinese_words(), r"\S+"
        texts = [" ".join(cut(text)) for text in texts]
    words: list[list[str]] = bm25s.tokenize(
        list(texts),
        token_pattern=pattern,
        stopwords="english_plus" if language == "en" else "chinese",
        return_ids=False,
        show_progress=False,
    )
    return words
