"""Rouge-L under two protocols. A figure without its recipe says nothing, so each has its own name.

``rouge-score``
    What Google's ``rouge_score`` 0.1.2 computes without stemmer: the longest common subsequence of all words, and the
    F1 of the reference that gives the highest F1 (as its ``score_multi``). Chinese, whose text that package drops, is
    cut by a tokenizer of our choice; see :mod:`rolellm.evaluation.tokenizers`.

``paper``
    What the paper's tables hold (recomputed from the released baseline): PyPI's ``rouge`` 1.0.1, ``rouge-l``, and the
    *recall* of the reference that gives the highest recall. That package cuts sentences at every ".", compares *sets*
    of words, and takes the union of the sentences' longest common subsequences. Chinese characters are joined by spaces
    first.
"""

from __future__ import annotations

import functools
import itertools
import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rapidfuzz.distance import LCSseq

from rolellm.errors import DataError, RecipeError
from rolellm.evaluation.lcs import Sentences, count_union_lcs
from rolellm.evaluation.parallel import map_chunks
from rolellm.evaluation.tokenizers import Tokenize, get_tokenizer, resolve_tokenizer

T = TypeVar("T")

#: precision, recall, f1, index of the chosen reference: what travels between processes.
_Values = tuple[float, float, float, int]


@dataclass(frozen=True, slots=True)
class RougeScore:
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


def rouge_l(
    predictions: Iterable[str],
    references: Iterable[str | Sequence[str]],
    *,
    language: str = "en",
    protocol: str = "rouge-score",
    tokenizer: str | None = None,
    processes: int = 1,
) -> list[RougeScore]:
    """Score each prediction against its references by Rouge-L.

    A text without tokens (empty, or nothing but full stops) scores 0 on either side. For protocol ``paper`` that is our
    choice, since PyPI's ``rouge`` raises there; for the other it is what ``rouge_score`` does.

    Args:
        predictions: One text a row.
        references: One text a row, or a list of texts.
        language: ``en`` or ``zh``.
        protocol: ``rouge-score`` (choose the reference of highest F1) or ``paper`` (of highest recall); see the module.
        tokenizer: A name out of :data:`~rolellm.evaluation.tokenizers.TOKENIZERS`; None takes the protocol's default
            for the language.
        processes: How many processes share the rows, this one included. The scores are the same.

    Returns:
        One score a row, in order.

    Raises:
        DataError: (a ``ValueError``) When the numbers of rows differ, a row has no reference, or something is not a
            text; names the row, counted from 0.
        RecipeError: (a ``ValueError``) On an unknown protocol, language or tokenizer, or less than one process.

    >>> rouge_l(["the raven sits still"], [["a raven", "the raven never sits"]])
    [RougeScore(precision=0.75, recall=0.75, f1=0.75, reference=1)]
    """
    scores = iter_rouge_l(
        predictions, references, language=language, protocol=protocol, tokenizer=tokenizer, processes=processes
    )
    return list(scores)


def iter_rouge_l(
    predictions: Iterable[str],
    references: Iterable[str | Sequence[str]],
    *,
    language: str = "en",
    protocol: str = "rouge-score",
    tokenizer: str | None = None,
    processes: int = 1,
) -> Iterator[RougeScore]:
    """Like :func:`rouge_l`, but hands out the scores as they are ready, for instance to a progress bar.

    All input is checked before this returns.
    """
    name = resolve_tokenizer(protocol, language, tokenizer)
    if not isinstance(processes, int) or processes < 1:
        raise RecipeError(f"processes must be a whole number of at least 1, found {processes!r}")
    texts = _as_rows("predictions", predictions)
    lists = _as_rows("references", references)
    _check_rows(texts, lists)
    if name == "jieba":
        # Loaded before the work is shared out, so that forked processes share the dictionary.
        get_tokenizer(name)
    score = functools.partial(_score_rows, protocol, name)
    values: Iterator[_Values] = map_chunks(score, texts, lists, processes=processes)
    return itertools.starmap(RougeScore, values)


def _as_rows(what: str, given: Iterable[T]) -> list[T]:
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise DataError(f"{what} must be a list with one entry a row, found {_shown(given)}")
    return list(given)


def _check_rows(predictions: Sequence[object], references: Sequence[object]) -> None:
    if len(predictions) != len(references):
        raise DataError(f"{len(predictions)} predictions but {len(references)} rows of references: one row for each")
    for index, (prediction, given) in enumerate(zip(predictions, references, strict=True)):
        if not isinstance(prediction, str):
            raise DataError(f"prediction {index} must be a text, found {_shown(prediction)}")
        if isinstance(given, str):
            continue
        if not isinstance(given, Sequence) or isinstance(given, bytes):
            raise DataError(f"references of row {index} must be a text or a list of texts, found {_shown(given)}")
        if not given:
            raise DataError(f"row {index} has no reference: give at least one, or leave the row out")
        for reference in given:
            if not isinstance(reference, str):
                raise DataError(f"references of row {index} must be texts, found {_shown(reference)}")


def _shown(value: object) -> str:
    return f"{type(value).__name__}: {reprlib.repr(value)}"


def _score_rows(
    protocol: str, tokenizer: str, predictions: Sequence[str], references: Sequence[str | Sequence[str]]
) -> list[_Values]:
    """Score a chunk of checked rows. At module level, so that it can be sent to another process."""
    lists = [(given,) if isinstance(given, str) else given for given in references]
    if protocol == "paper":
        cut = _sentences_of_characters if tokenizer == "spaced-characters" else _sentences
        return [_best_by_recall(*row, cut) for row in zip(predictions, lists, strict=True)]
    tokenize = get_tokenizer(tokenizer)
    return [_best_by_f1(*row, tokenize) for row in zip(predictions, lists, strict=True)]


def _best_by_f1(prediction: str, references: Sequence[str], tokenize: Tokenize) -> _Values:
    """Highest F1; the operations and their order are ``rouge_score``'s, so that the last bit agrees."""
    predicted = tokenize(prediction)
    best: _Values = (0.0, 0.0, 0.0, 0)
    for index, reference in enumerate(references):
        expected = tokenize(reference)
        # rapidfuzz compares tokens by their 64-bit hashes: fast, and a collision is not to be expected.
        length = LCSseq.similarity(predicted, expected)
        if length:
            precision, recall = length / len(predicted), length / len(expected)
            f1 = 2 * precision * recall / (precision + recall)
            if f1 > best[2]:
                best = (precision, recall, f1, index)
    return best


def _sentences(text: str) -> Sentences:
    """Cut a text as PyPI's ``rouge`` does: a piece of mere white space becomes a sentence of one empty word."""
    return [piece.split() or [""] for piece in text.split(".") if piece]


def _sentences_of_characters(text: str) -> Sentences:
    return _sentences(" ".join(text))


def _best_by_recall(prediction: str, references: Sequence[str], cut: Callable[[str], Sentences]) -> _Values:
    hypothesis = cut(prediction)
    words: set[str] = set().union(*hypothesis)
    best: _Values = (0.0, 0.0, 0.0, 0)
    for index, reference in enumerate(references):
        sentences = cut(reference)
        expected: set[str] = set().union(*sentences)
        common = words & expected
        # The union holds common words only: a reference that cannot exceed the best so far needs no walk.
        if not common or len(common) / len(expected) <= best[1]:
            continue
        overlap = count_union_lcs(hypothesis, sentences, common)
        recall = overlap / len(expected)
        if recall > best[1]:
            precision = overlap / len(words)
            # The small term is the package's guard against division by zero.
            best = (precision, recall, 2.0 * ((precision * recall) / (precision + recall + 1e-8)), index)
    return best
