"""Near-duplicates: BM25 similarity, as the paper used to thin out instructions, or MinHash (Broder 1997).

Question words stay in ("who found the jam" is not "where did you find the jam"), so this does not share the stop words
of `rolellm.prompts.retrieval`. Both ways look for pairs by an index; neither compares all with all in Python.
"""

from __future__ import annotations

import functools
import re
import unicodedata
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
from rapidfuzz.distance import Levenshtein

from rolellm.construct.settings import SIMILARITY, Method
from rolellm.core.errors import require
from rolellm.core.records import Language
from rolellm.core.text import chinese_words, fold

_WORD: Final = re.compile(r"\w+(?:'\w+)?")
_BANDS, _ROWS = 32, 4
# Edits: tuned on planted ones, see `benchmarks/audit.py`. Pairs of words alone are rare, so three of them are a band.
_EDIT_BANDS, _EDIT_ROWS, _EDITED, _A_BAND = 32, 3, 0.2, 2
_CHUNK = 256
_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)

FEWEST: Final = 5
"""Words from which on a text is looked for with edits in it; a shorter one says too little to be known by."""

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
    if method == "minhash":
        near = _by_minhash(questions, language)
    else:
        near = _by_bm25([] if method == "exact" else _words(questions, language), least)
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
    cut = chinese_words() if language == "zh" else functools.partial(words_of, language=language)
    return [cut(question) for question in questions]


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


def nearest(texts: Sequence[str], among: Sequence[str], language: Language) -> dict[int, tuple[int, float]]:
    """Which texts are another one with light edits: case, punctuation, or about one word in ten.

    A text that is as near to a second one is none: it fills in a frame that several share ("What is the opposite of
    hot?"). Time and memory grow with the number of texts, however alike they are: of those that share a band of hashes
    with a text, only the first `_A_BAND` are compared with it.

    Args:
        texts: Those to look up. Of under `FEWEST` words (in Chinese: characters), only case and punctuation may differ.
        among: Where to look.
        language: ``en`` or ``zh``.

    Returns:
        Of each such text's place, the place of the nearest, and their similarity: 1 less the share of words that an
        edit of one into the other changes.
    """
    ours, theirs = (_edit_keys(some, language) for some in (texts, among))
    near: dict[int, set[int]] = defaultdict(set)
    for band in range(1 + _EDIT_BANDS):
        here, there = (np.flatnonzero(keys[:, band]) for keys in (ours, theirs))
        for _ in range(_A_BAND):
            values, first = np.unique(theirs[there, band], return_index=True)
            if not len(values):
                break
            at = np.searchsorted(values, ours[here, band]).clip(max=len(values) - 1)
            same = values[at] == ours[here, band]
            for place, other in zip(here[same].tolist(), there[first[at]][same].tolist(), strict=True):
                near[place].add(other)
            there = np.delete(there, first)
    found = {}
    for place, others in near.items():
        mine = words_of(texts[place], language)
        edits: dict[tuple[float, tuple[str, ...]], int] = {}
        for other in sorted(others, reverse=True):
            words = tuple(words_of(among[other], language))
            edits[Levenshtein.distance(mine, words) / max(len(mine), len(words)), words] = other
        least, *more = sorted(edits)
        if least[0] <= _EDITED and not any(share == least[0] for share, _ in more):
            found[place] = edits[least], 1 - least[0]
    return found


def _edit_keys(texts: Sequence[str], language: Language) -> npt.NDArray[np.uint64]:
    """Of each text a key of all its words, and one of each band of hashes of their pairs; 0 where there is none."""
    keys = np.zeros((len(texts), 1 + _EDIT_BANDS), np.uint64)
    for start in range(0, len(texts), _CHUNK):
        units = [words_of(text, language) for text in texts[start : start + _CHUNK]]
        keys[start : start + len(units), 0] = [zlib.crc32(" ".join(item).encode()) << 1 | bool(item) for item in units]
        long = [place for place, item in enumerate(units) if len(item) >= FEWEST]
        if long:
            places = np.array(long) + start
            keys[places, 1:] = _band_keys([_pairs(units[place]) for place in long], _EDIT_BANDS, _EDIT_ROWS)
    return keys


def _by_minhash(questions: Sequence[str], language: Language) -> Near:
    units = [words_of(question, language) for question in questions]
    # Single words keep one changed word in a long question from counting twice.
    shingles = [frozenset((*item, *pairwise(item))) for item in units]
    keys: dict[int, list[tuple[int, int]]] = {}
    buckets: dict[tuple[int, int], list[int]] = defaultdict(list)
    for place, item in enumerate(units):
        if item:
            (bands,) = _band_keys([np.concatenate([_codes(item), _pairs(item)])], _BANDS, _ROWS)
            keys[place] = list(enumerate(bands.tolist()))
            for band in keys[place]:
                buckets[band].append(place)

    def near(place: int) -> Iterable[tuple[int, float]]:
        mine = shingles[place]
        for other in {other for band in keys.get(place, ()) for other in buckets[band] if other < place}:
            yield other, len(mine & shingles[other]) / len(mine | shingles[other])

    return near


def words_of(text: str, language: Language) -> list[str]:
    """A text's words; in Chinese, its characters. Case, punctuation and white space are gone."""
    if language == "zh":
        return [character for character in unicodedata.normalize("NFKC", text).lower() if character.isalnum()]
    return _WORD.findall(text.casefold().replace("’", "'"))


@functools.lru_cache(maxsize=1 << 17)
def _code(unit: str) -> int:
    return zlib.crc32(unit.encode())


def _codes(units: Sequence[str]) -> npt.NDArray[np.uint64]:
    return np.fromiter(map(_code, units), np.uint64, len(units))


def _pairs(units: Sequence[str]) -> npt.NDArray[np.uint64]:
    codes = _codes(units)
    return codes[:-1] * _SPREAD + codes[1:]


def _band_keys(shingles: Sequence[npt.NDArray[np.uint64]], bands: int, rows: int) -> npt.NDArray[np.uint64]:
    """MinHash: of each set (none empty) a key a band, the same for two sets with their Jaccard similarity to the rows.

    The hashes are multiply-shift: the upper half of a product with an odd number, modulo 2 to the 64.
    """
    draw = np.random.default_rng(20231001)
    factor, shift = (draw.integers(0, 1 << 64, (bands * rows, 1), np.uint64) | np.uint64(1) for _ in range(2))
    starts = np.cumsum([0, *map(len, shingles[:-1])])
    hashes = (factor * np.concatenate(shingles) + shift) >> np.uint64(32)
    least = np.minimum.reduceat(hashes, starts, axis=1).reshape(bands, rows, -1)
    keys: npt.NDArray[np.uint64] = (least * factor[:rows]).sum(axis=1).T | np.uint64(1)
    # Never 0.
    return keys
