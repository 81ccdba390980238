"""Near-duplicates among questions: BM25 similarity, as the paper used to thin out instructions, or MinHash.

Question words stay in ("who found the jam" is not "where did you find the jam"), so this does not share the stop words
of `rolellm.prompts.retrieval`. Both ways look for pairs by an index; neither compares all with all in Python.
"""

from __future__ import annotations

import functools
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from rolellm.construct.settings import SIMILARITY, Method
from rolellm.core.errors import require
from rolellm.core.records import Language
from rolellm.core.text import chinese_words, fold

_WORD: Final = re.compile(r"\w+(?:'\w+)?")
_HASHES: Final = 128
_ROWS: Final = 4
_PRIME: Final = np.uint64((1 << 31) - 1)

#: For a place, the earlier places that come near it, each with how near.
Near = Callable[[int], Iterable[tuple[int, float]]]


def repeats(
    questions: Sequence[str],
    language: Language,
    method: Method | Literal["exact"] = "bm25",
    similarity: float | None = None,
) -> dict[int, tuple[int, float]]:
    """Which questions repeat one that is kept, in the order given: the first of its like is kept.

    Args:
        questions: Texts; what decides between likes is their order.
        language: ``en`` or ``zh``.
        method: ``bm25``: the score of one text as a query for the other over its score for itself, in both directions,
            the lower one counting. ``minhash``: Jaccard similarity of words and word pairs (in Chinese, of characters
            and their pairs) among candidates that locality-sensitive hashing finds. ``exact``: equal but for case
            and white space, as with the others.
        similarity: From which on it is a repeat; by default `SIMILARITY`.

    Returns:
        Of each repeated question's place the place of the kept one that it is nearest to, and the similarity.

    Raises:
        MissingExtraError: With ``bm25``, where ``bm25s`` is not installed.
    """
    least = SIMILARITY.get(method, 1.0) if similarity is None else similarity
    words = [] if method == "exact" else _words(questions, language)
    near = _by_minhash(words, language) if method == "minhash" else _by_bm25(words, least)
    kept: set[int] = set()
    first: dict[str, int] = {}
    found: dict[int, tuple[int, float]] = {}
    for place, question in enumerate(questions):
        same = first.setdefault(fold(question), place)
        if same != place:
            found[place] = (found[same][0] if same in found else same, 1.0)
            continue
        alike = [(value, -other) for other, value in near(place) if other in kept and value >= least]
        if alike:
            value, other = max(alike)
            found[place] = (-other, min(value, 1.0))
        else:
            kept.add(place)
    return found


def _words(questions: Sequence[str], language: Language) -> list[list[str]]:
    if language == "zh":
        cut = chinese_words()
        return [cut(question) for question in questions]
    return [_WORD.findall(question.casefold().replace("’", "'")) for question in questions]


def _by_bm25(words: Sequence[Sequence[str]], least: float) -> Near:
    if not any(words):
        return lambda _: ()
    require("bm25s", extra="llm")
    import bm25s

    index = bm25s.BM25()
    index.index([list(item) for item in words], create_empty_token=False, show_progress=False)

    @functools.lru_cache(maxsize=256)
    def scores(place: int) -> npt.NDArray[np.float32]:
        """Of every text for this one as the query, over its own score."""
        found: npt.NDArray[np.float32] = index.get_scores_from_ids(index.get_tokens_ids(list(words[place])))
        own = float(found[place])
        return found / own if own > 0 else np.zeros_like(found)

    def near(place: int) -> Iterable[tuple[int, float]]:
        ahead = scores(place)[:place]
        for other in np.flatnonzero(ahead >= least):
            yield int(other), min(float(ahead[other]), float(scores(int(other))[place]))

    return near


def _by_minhash(words: Sequence[Sequence[str]], language: Language) -> Near:
    draw = np.random.default_rng(20231001)
    factor, shift = (draw.integers(low, int(_PRIME), (_HASHES, 1), np.uint64) for low in (1, 0))
    shingles = [_shingles(item, language) for item in words]
    bands: list[list[tuple[int, bytes]]] = [[] for _ in shingles]
    buckets: dict[tuple[int, bytes], list[int]] = defaultdict(list)
    for place, item in enumerate(shingles):
        if not item:
            continue
        # Below 2 to the 31st each, so that a product fits into 64 bits.
        values = np.fromiter(item, np.uint64) % _PRIME
        signature = ((factor * values + shift) % _PRIME).min(axis=1)
        bands[place] = [(row, signature[row : row + _ROWS].tobytes()) for row in range(0, _HASHES, _ROWS)]
        for band in bands[place]:
            buckets[band].append(place)

    def near(place: int) -> Iterable[tuple[int, float]]:
        mine = shingles[place]
        for other in {other for band in bands[place] for other in buckets[band] if other < place}:
            yield other, len(mine & shingles[other]) / len(mine | shingles[other])

    return near


def _shingles(words: Sequence[str], language: Language) -> frozenset[int]:
    units = list("".join(words)) if language == "zh" else list(words)
    # Single words keep one changed word in a long question from counting twice.
    parts = {*units, *(f"{one} {two}" for one, two in pairwise(units))}
    return frozenset(zlib.crc32(part.encode("utf-8")) for part in parts)
