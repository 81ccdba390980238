"""Near-duplicates: BM25 similarity, as the paper used to thin out instructions, or MinHash (Broder 1997).

Question words stay in ("who found the jam" is not "where did you find the jam"), so this does not share the stop words
of `rolellm.models.prompts.retrieval`. Both ways look for pairs by an index; neither compares all with all in Python.
"""

from __future__ import annotations

import functools
import re
import unicodedata
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, pairwise
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
from rapidfuzz.distance import Levenshtein

from rolellm.core.records import Language
from rolellm.core.text import fold, load_bm25s, load_chinese_tokenizer
from rolellm.making.settings import SIMILARITY, Method

_WORD: Final = re.compile(r"\w+(?:'\w+)?")
_MARKS: Final = re.compile(r"[\W_]+")
_BANDS, _ROWS = 32, 4
# Edits: tuned on planted ones, see `benchmarks/audit.py`. Pairs of words alone are rare, so three of them are a band.
_EDIT_BANDS, _EDIT_ROWS, _EDITED, _A_BAND = 32, 3, 0.2, 2
_CHUNK = 256
# What parts clauses, but no numbers and abbreviations.
_STOP: Final = re.compile(r"[,.;:!?](?![a-z0-9])|[。、\n—–]|--")
# What clauses in another order count, in words; and the neighbors that moving a run of words parts.
_REORDERED, _JOINTS = 0.1, 3
_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)

FEWEST: Final = 5
"""Words from which on a text is looked for with edits in it; a shorter one says too little to be known by."""

#: For a place, the earlier places that come near it, each with how near.
Near = Callable[[int], Iterable[tuple[int, float]]]


def find_repeats(
    questions: Sequence[str],
    language: Language,
    method: Method | Literal["exact"] = "bm25",
    similarity: float | None = None,
) -> dict[int, tuple[int, float]]:
    """Find the questions that repeat one that is kept, in the order given: the first of its like is kept.

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
        find_near = _index_minhash(questions, language)
    else:
        find_near = _index_bm25([] if method == "exact" else _split_questions(questions, language), least)
    kept_positions: set[int] = set()
    first: dict[str, int] = {}
    matches: dict[int, tuple[int, float]] = {}
    for position, question in enumerate(questions):
        same = first.setdefault(fold(question), position)
        if same != position:
            matches[position] = (matches[same][0] if same in matches else same, 1.0)
            continue
        alike = [
            (value, -earlier) for earlier, value in find_near(position) if earlier in kept_positions and value >= least
        ]
        if alike:
            value, earlier = max(alike)
            matches[position] = (-earlier, min(value, 1.0))
        else:
            kept_positions.add(position)
    return matches


def _split_questions(questions: Sequence[str], language: Language) -> list[list[str]]:
    cut = load_chinese_tokenizer() if language == "zh" else functools.partial(list_words, language=language)
    return [cut(question) for question in questions]


def _index_bm25(words: Sequence[Sequence[str]], least: float) -> Near:
    if not any(words):
        return lambda _: ()
    index = load_bm25s(extra="llm").BM25()
    index.index([list(item) for item in words], create_empty_token=False, show_progress=False)

    @functools.lru_cache(maxsize=256)
    def score_all(position: int) -> npt.NDArray[np.float32]:
        """Score every text for this one as the query, over its own score."""
        raw_scores: npt.NDArray[np.float32] = index.get_scores_from_ids(index.get_tokens_ids(list(words[position])))
        own = float(raw_scores[position])
        return raw_scores / own if own > 0 else np.zeros_like(raw_scores)

    def find_near(position: int) -> Iterable[tuple[int, float]]:
        ahead = score_all(position)[:position]
        for earlier in np.flatnonzero(ahead >= least):
            yield int(earlier), min(float(ahead[earlier]), float(score_all(int(earlier))[position]))

    return find_near


def find_nearest(texts: Sequence[str], among: Sequence[str], language: Language) -> dict[int, tuple[int, float]]:
    """Find the texts that are another one with light edits.

    Light are case, punctuation, traditional characters, about one word in ten, and an address or clause that moved.

    A text that is as near to a second one is none: it fills in a frame that several share ("What is the opposite of
    hot?"). Time and memory grow with the number of texts, however alike they are: of those that share a band of hashes
    with a text, only the first `_A_BAND` are compared with it.

    Args:
        texts: Those to look up. If under `FEWEST` words (in Chinese: characters), none may differ.
        among: Where to look.
        language: ``en`` or ``zh``.

    Returns:
        Of each such text's place, the place of the nearest, and their similarity: 1 less the share of words that an
        edit of one into the other changes, where moving a run of them counts as one.
    """
    text_keys, among_keys = (_compute_edit_keys(sequence, language) for sequence in (texts, among))
    near: dict[int, set[int]] = defaultdict(set)
    for band in range(text_keys.shape[1]):
        text_positions, among_positions = (np.flatnonzero(keys[:, band]) for keys in (text_keys, among_keys))
        for _ in range(_A_BAND):
            values, first = np.unique(among_keys[among_positions, band], return_index=True)
            if not len(values):
                break
            at = np.searchsorted(values, text_keys[text_positions, band]).clip(max=len(values) - 1)
            same = values[at] == text_keys[text_positions, band]
            for position, candidate in zip(
                text_positions[same].tolist(), among_positions[first[at]][same].tolist(), strict=True
            ):
                near[position].add(candidate)
            among_positions = np.delete(among_positions, first)
    closest = {}
    for position, candidates in near.items():
        mine = list_words(texts[position], language)
        edits: dict[tuple[float, tuple[str, ...]], int] = {}
        for candidate in sorted(candidates, reverse=True):
            words = list_words(among[candidate], language)
            edits[_measure_change(texts[position], mine, among[candidate], words, language), tuple(words)] = candidate
        least, *more = sorted(edits)
        if least[0] <= _EDITED and not any(share == least[0] for share, _ in more):
            closest[position] = edits[least], 1 - least[0]
    return closest


def _measure_change(text: str, words: list[str], other_text: str, their_words: list[str], language: Language) -> float:
    """Return the share of a text's words that an edit into another changes; moving a run of words counts as one."""
    longest = max(len(words), len(their_words))
    most = int(_EDITED * longest)
    changed: float = Levenshtein.distance(words, their_words, score_cutoff=most)
    if changed <= min(1, most) or len({*words} ^ {*their_words}) > 2 * most:
        return changed / longest
    # Clauses may be in any order, but of two texts the one in the same order is nearer.
    by_clause, by_their_clause = (
        list(chain(*sorted(_split_clauses(version, language)))) for version in (text, other_text)
    )
    changed = min(changed, Levenshtein.distance(by_clause, by_their_clause, score_cutoff=most) + _REORDERED)
    # A run of words that moved leaves all but three neighbors next to each other, and a replaced word all but two.
    replaced = longest - (Counter(words) & Counter(their_words)).total()
    neighbors = (Counter(pairwise(words)) & Counter(pairwise(their_words))).total()
    if longest - 1 - neighbors <= _JOINTS + 2 * replaced and 2 * neighbors >= longest:
        changed = min(changed, 1 + 2 * replaced)
    return changed / longest


def _compute_edit_keys(texts: Sequence[str], language: Language) -> npt.NDArray[np.uint64]:
    """Compute keys of each text: of its words in order and in none, and of each band of hashes of their pairs.

    A key is 0 where there is none.
    """
    keys = np.zeros((len(texts), 2 + _EDIT_BANDS), np.uint64)
    for start in range(0, len(texts), _CHUNK):
        units = [list_words(text, language) for text in texts[start : start + _CHUNK]]
        for column, ordered in enumerate((units, map(sorted, units))):
            keys[start : start + len(units), column] = [
                zlib.crc32(" ".join(item).encode()) << 1 | bool(item) for item in ordered
            ]
        long = [position for position, item in enumerate(units) if len(item) >= FEWEST]
        if long:
            positions = np.array(long) + start
            keys[positions, 2:] = _compute_band_keys(
                [_hash_pairs(units[position]) for position in long], _EDIT_BANDS, _EDIT_ROWS
            )
    return keys


def _index_minhash(questions: Sequence[str], language: Language) -> Near:
    units = [list_words(question, language) for question in questions]
    # Single words keep one changed word in a long question from counting twice.
    shingles = [frozenset((*item, *pairwise(item))) for item in units]
    keys: dict[int, list[tuple[int, int]]] = {}
    buckets: dict[tuple[int, int], list[int]] = defaultdict(list)
    for position, item in enumerate(units):
        if item:
            (bands,) = _compute_band_keys([np.concatenate([_hash_units(item), _hash_pairs(item)])], _BANDS, _ROWS)
            keys[position] = list(enumerate(bands.tolist()))
            for band in keys[position]:
                buckets[band].append(position)

    def find_near(position: int) -> Iterable[tuple[int, float]]:
        mine = shingles[position]
        for earlier in {earlier for band in keys.get(position, ()) for earlier in buckets[band] if earlier < position}:
            yield earlier, len(mine & shingles[earlier]) / len(mine | shingles[earlier])

    return find_near


def list_words(text: str, language: Language) -> list[str]:
    """Split a text into words; in Chinese, characters. Case, punctuation, white space and traditional forms go."""
    return _split_words(_normalize(text, language), language)


def _split_clauses(text: str, language: Language) -> list[list[str]]:
    """Split a text into the words of each clause."""
    return [words for clause in _STOP.split(_normalize(text, language)) if (words := _split_words(clause, language))]


def _normalize(text: str, language: Language) -> str:
    if language == "zh":
        return _load_converter()(unicodedata.normalize("NFKC", text).lower())
    return text.casefold().replace("’", "'")


def _split_words(plain: str, language: Language) -> list[str]:
    return list(_MARKS.sub("", plain)) if language == "zh" else _WORD.findall(plain)


@functools.cache
def _load_converter() -> Callable[[str], str]:
    """Return a function that replaces traditional characters by simplified ones."""
    import opencc

    convert: Callable[[str], str] = opencc.OpenCC("t2s").convert
    return convert


@functools.lru_cache(maxsize=1 << 17)
def _hash_unit(unit: str) -> int:
    return zlib.crc32(unit.encode())


def _hash_units(units: Sequence[str]) -> npt.NDArray[np.uint64]:
    return np.fromiter(map(_hash_unit, units), np.uint64, len(units))


def _hash_pairs(units: Sequence[str]) -> npt.NDArray[np.uint64]:
    codes = _hash_units(units)
    return codes[:-1] * _SPREAD + codes[1:]


def _compute_band_keys(shingles: Sequence[npt.NDArray[np.uint64]], bands: int, rows: int) -> npt.NDArray[np.uint64]:
    """Compute MinHash keys, one per band of each set (none empty).

    The key is the same for two sets with the probability of their Jaccard similarity to the power of `rows`. The
    hashes are multiply-shift: the upper half of a product with an odd number, modulo 2 to the 64.
    """
    draw = np.random.default_rng(20231001)
    factor, shift = (draw.integers(0, 1 << 64, (bands * rows, 1), np.uint64) | np.uint64(1) for _ in range(2))
    starts = np.cumsum([0, *map(len, shingles[:-1])])
    hashes = (factor * np.concatenate(shingles) + shift) >> np.uint64(32)
    least = np.minimum.reduceat(hashes, starts, axis=1).reshape(bands, rows, -1)
    keys: npt.NDArray[np.uint64] = (least * factor[:rows]).sum(axis=1).T | np.uint64(1)
    # Never 0.
    return keys
