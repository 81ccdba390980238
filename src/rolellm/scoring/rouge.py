"""Rouge-L under two protocols. A figure without its recipe says nothing, so each has its own name.

``rouge-score``
    What Google's ``rouge_score`` 0.1.2 computes without stemmer: the longest common subsequence of all words, and the
    F1 of the reference that gives the highest F1 (as its ``score_multi``). Chinese, whose text that package drops, is
    cut by a tokenizer of our choice; see :mod:`rolellm.scoring.rouge`.

``paper``
    What the paper's tables hold (recomputed from the released baseline): PyPI's ``rouge`` 1.0.1, ``rouge-l``, and the
    *recall* of the reference that gives the highest recall. That package cuts sentences at every ".", compares *sets*
    of words, and takes the union of the sentences' longest common subsequences. Chinese characters are joined by spaces
    first.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Annotated, Any, Final, NamedTuple

from pydantic import Field
from rapidfuzz.distance import LCSseq

from rolellm.core.errors import DataError, SettingsError
from rolellm.core.settings import describe_alternatives, suggest_keywords
from rolellm.core.text import load_chinese_tokenizer
from rolellm.core.typed_json import read_as

Sentences = Sequence[Sequence[str]]


def count_union_lcs(hypothesis: Sentences, reference: Sentences, common: AbstractSet[str]) -> int:
    """Count the distinct words in the union of the LCS of all pairs of sentences.

    Args:
        hypothesis: The words of each sentence.
        reference: The words of each sentence.
        common: The words that both have.

    Returns:
        The size of the union, at most ``len(common)``. Time is proportional to the words of the reference times the
        number of hypothesis sentences, each step being integer work on as many bits as the hypothesis has common words.
    """
    columns, spans = _assign_bits(hypothesis, common)
    everywhere = sum(spans)
    missing = everywhere
    for sentence in reference:
        rows, reach = _fill_table(sentence, columns, everywhere)
        missing = _walk_back(rows, spans, reach, missing)
        if not missing:
            break
    return sum(not bits & missing for bits in columns.values())


def _assign_bits(hypothesis: Sentences, common: AbstractSet[str]) -> tuple[dict[str, int], list[int]]:
    """Give every occurrence of a common word a bit; return the bits of each word, and those of each sentence."""
    columns = dict.fromkeys(common, 0)
    spans = []
    bit = 1
    for sentence in hypothesis:
        first = bit
        for word in filter(common.__contains__, sentence):
            columns[word] |= bit
            bit <<= 1
        if bit != first:
            spans.append(bit - first)
            bit <<= 1
    return columns, spans


def _fill_table(sentence: Iterable[str], columns: dict[str, int], everywhere: int) -> tuple[list[tuple[int, int]], int]:
    """Fill the tables of one reference sentence with all hypothesis sentences.

    Returns:
        A row a common word, from the last to the first, as (columns that match, columns that rise); and all columns
        that match in any row.
    """
    rows = []
    flat = everywhere
    reach = 0
    for match in map(columns.get, sentence):
        if match:
            reach |= match
            carried = flat & match
            flat = ((flat + carried) | (flat ^ carried)) & everywhere
            rows.append((match, everywhere ^ flat))
    rows.reverse()
    return rows, reach


def _walk_back(rows: Iterable[tuple[int, int]], spans: Iterable[int], reach: int, missing: int) -> int:
    """Walk each table back from its last cell and strike the words that are met off ``missing``."""
    for span in spans:
        if not reach & span & missing:
            continue
        below = span
        for match, rises in rows:
            reachable = rises & below
            if not reachable:
                break
            stop = 1 << (reachable.bit_length() - 1)
            if match & stop:
                below &= stop - 1
                if match & missing:
                    missing ^= match
                    if not missing & reach & below:
                        break
            else:
                below &= (stop << 1) - 1
    return missing


Tokenize = Callable[[str], list[str] | list[bytes]]

#: Protocol, then language, to the names of the tokenizers that it can be computed over; the first is the default.
TOKENIZERS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "rouge-score": {"en": ("rouge_score",), "zh": ("jieba", "characters")},
    "paper": {"en": ("whitespace",), "zh": ("spaced-characters",)},
}

_LANGUAGES: Final = {"en": "English", "zh": "Chinese"}
_HAN = r"\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_CHARACTERS = re.compile(rf"[{_HAN}]|[^\W_{_HAN}]+")
_ASCII_WORDS: Final = bytes(byte if chr(byte) in "abcdefghijklmnopqrstuvwxyz0123456789" else 32 for byte in range(256))


def resolve_tokenizer(protocol: str, language: str, tokenizer: str | None = None) -> str:
    """Check a choice of protocol, language and tokenizer, and name the tokenizer that it comes to.

    Args:
        protocol: ``rouge-score`` or ``paper``.
        language: ``en`` or ``zh``.
        tokenizer: A name out of the module's table; None takes the default.

    Returns:
        The tokenizer's name, to be printed with every figure.

    Raises:
        SettingsError: (a ``ValueError``) On an unknown name; lists the valid ones and the nearest.

    >>> resolve_tokenizer("rouge-score", "zh")
    'jieba'
    """
    _check("protocol", protocol, TOKENIZERS)
    _check("language", language, _LANGUAGES)
    names = TOKENIZERS[protocol][language]
    if tokenizer is None:
        return names[0]
    _check(f"tokenizer for {_LANGUAGES[language]} under protocol {protocol!r}", tokenizer, names)
    return tokenizer


def _check(kind: str, value: str, valid: Iterable[str]) -> None:
    names = list(valid)
    if value in names:
        return
    raise SettingsError(f"unknown {kind}: {value!r}{describe_alternatives(str(value), names)}")


@functools.cache
def get_tokenizer(name: str) -> Tokenize:
    """The function behind a tokenizer of protocol ``rouge-score``: text in, list of tokens out.

    Args:
        name: ``rouge_score``, ``jieba`` or ``characters``.

    Returns:
        A function; ``jieba``'s dictionary is loaded on the first call for it.

    Raises:
        SettingsError: On any other name.
    """
    if name == "jieba":
        # References are cut once for a model and for the floors next to it.
        return functools.lru_cache(1 << 14)(load_chinese_tokenizer())
    tokenizers: dict[str, Tokenize] = {"rouge_score": tokenize_rouge_score, "characters": tokenize_characters}
    _check("tokenizer", name, ["jieba", *tokenizers])
    return tokenizers[name]


def tokenize_rouge_score(text: str) -> list[bytes]:
    """Lower-cased runs of a-z and 0-9, as ``rouge_score`` 0.1.2 finds them without a stemmer.

    Tokens are bytes: one table look-up a byte is twice as fast as that package's regular expression, and every byte of
    a non-ASCII character falls to white space, as the character does there.

    >>> tokenize_rouge_score("It's 3 o'clock, naïf!")
    [b'it', b's', b'3', b'o', b'clock', b'na', b'f']
    """
    return text.lower().encode("utf-8", "replace").translate(_ASCII_WORDS).split()


def tokenize_characters(text: str) -> list[str]:
    """Chinese characters one by one; other letters and digits in runs; punctuation and symbols dropped.

    >>> tokenize_characters("我有2台 iPhone。")
    ['我', '有', '2', '台', 'iphone']
    """
    return _CHARACTERS.findall(unicodedata.normalize("NFKC", text).lower())


_References = list[Annotated[list[str], Field(min_length=1)]]


class RougeScore(NamedTuple):
    """Rouge-L of one prediction against the reference that was chosen for it.

    Attributes:
        precision: 0 to 1.
        recall: 0 to 1; the score that protocol ``paper`` reports.
        f1: 0 to 1; the score that protocol ``rouge-score`` reports.
        reference: The chosen reference's index; the first of equals.
    """

    precision: float
    recall: float
    f1: float
    reference: int


@suggest_keywords()
def rouge_l(
    predictions: Iterable[str],
    references: Iterable[str | Sequence[str]],
    *,
    language: str = "en",
    protocol: str = "rouge-score",
    tokenizer: str | None = None,
) -> list[RougeScore]:
    """Score each prediction against its references by Rouge-L.

    A text without tokens (empty, or nothing but full stops) scores 0 on either side. For protocol ``paper`` that is our
    choice, since PyPI's ``rouge`` raises there; for the other it is what ``rouge_score`` does.

    Args:
        predictions: One text a row.
        references: One text a row, or a list of texts.
        language: ``en`` or ``zh``.
        protocol: ``rouge-score`` (choose the reference of highest F1) or ``paper`` (of highest recall); see the module.
        tokenizer: A name out of :data:`~rolellm.scoring.rouge.TOKENIZERS`; None takes the protocol's default
            for the language.

    Returns:
        One score a row, in order.

    Raises:
        DataError: (a ``ValueError``) When the numbers of rows differ, a row has no reference, or something is not a
            text; names the row, counted from 0.
        SettingsError: (a ``ValueError``) On an unknown protocol, language or tokenizer.

    >>> rouge_l(["the raven sits still"], [["a raven", "the raven never sits"]])
    [RougeScore(precision=0.75, recall=0.75, f1=0.75, reference=1)]
    """
    name = resolve_tokenizer(protocol, language, tokenizer)
    return list(iter_rouge_l(predictions, references, protocol, name))


def iter_rouge_l(
    predictions: Iterable[str], references: Iterable[str | Sequence[str]], protocol: str, tokenizer: str
) -> Iterator[RougeScore]:
    """Like :func:`rouge_l`, but hands out the scores as they are ready, for instance to a progress bar.

    All input is checked before this returns; ``tokenizer`` is what `resolve_tokenizer` returned.
    """
    texts = read_as(list[str], _make_list(predictions), "the list of predictions")
    lists = _make_list(references)
    if isinstance(lists, list):
        lists = [[reference] if isinstance(reference, str) else reference for reference in lists]
    lists = read_as(_References, lists, "the list of references")
    if len(texts) != len(lists):
        raise DataError(f"{len(texts)} predictions but {len(lists)} rows of references: one row for each")
    if protocol == "paper":
        space = " ".join if tokenizer == "spaced-characters" else str
        choose: Callable[[str, Sequence[str]], RougeScore] = functools.partial(_choose_by_recall, space)
    else:
        choose = functools.partial(_choose_by_f1, get_tokenizer(tokenizer))
    return map(choose, texts, lists)


def _make_list(values: object) -> Any:
    return values if isinstance(values, str | bytes) or not isinstance(values, Iterable) else list(values)


def _choose_by_f1(tokenize: Tokenize, prediction: str, references: Sequence[str]) -> RougeScore:
    """Highest F1; the operations and their order are ``rouge_score``'s, so that the last bit agrees."""
    predicted = tokenize(prediction)
    best = RougeScore(0.0, 0.0, 0.0, 0)
    for index, reference in enumerate(references):
        expected = tokenize(reference)
        # rapidfuzz compares tokens by their 64-bit hashes: fast, and a collision is not to be expected.
        length = LCSseq.similarity(predicted, expected)
        if length:
            precision = length / len(predicted)
            recall = length / len(expected)
            f1 = 2 * precision * recall / (precision + recall)
            if f1 > best.f1:
                best = RougeScore(precision, recall, f1, index)
    return best


def _split_sentences(text: str) -> Sentences:
    """Cut a text as PyPI's ``rouge`` does: a piece of mere white space becomes a sentence of one empty word."""
    return [piece.split() or [""] for piece in text.split(".") if piece]


def _choose_by_recall(space: Callable[[str], str], prediction: str, references: Sequence[str]) -> RougeScore:
    hypothesis = _split_sentences(space(prediction))
    words: set[str] = set().union(*hypothesis)
    best = RougeScore(0.0, 0.0, 0.0, 0)
    for index, reference in enumerate(references):
        sentences = _split_sentences(space(reference))
        expected: set[str] = set().union(*sentences)
        common = words & expected
        # The union holds common words only: a reference that cannot exceed the best so far needs no walk.
        if not common or len(common) / len(expected) <= best.recall:
            continue
        overlap = count_union_lcs(hypothesis, sentences, common)
        recall = overlap / len(expected)
        if recall > best.recall:
            precision = overlap / len(words)
            # The small term is the package's guard against division by zero.
            f1 = 2.0 * ((precision * recall) / (precision + recall + 1e-8))
            best = RougeScore(precision, recall, f1, index)
    return best
