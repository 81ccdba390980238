"""Which role does a reply sound like? A meter without a language model, which always says how often it is right itself.

For each language, a linear classifier over characters and words learns the roles from their references to general
instructions, which say nothing about a role (role-specific questions give it away by content), less what a reply
repeats of its instruction. The instructions are dealt into five folds, and a reply is judged by the classifier that has
seen no reply to its instruction, whoever wrote it. So the meter is as good on references as it can be expected to be on
new replies, and what a model reaches is read against that. Each fold's probabilities are calibrated, by one
temperature, on the other folds.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rolellm.core.errors import DataError, require
from rolellm.core.fingerprint import hash_json
from rolellm.core.progress import track_progress
from rolellm.core.records import Language, Row
from rolellm.core.text import fold
from rolellm.scoring.matching import MatchFinding, match_predictions
from rolellm.scoring.predictions import read_predictions
from rolellm.scoring.rows import read_dataset_rows
from rolellm.scoring.statistics.intervals import SHARE, ClusteredSample, encode_interval, estimate_interval

FOLDS: Final = 5
#: What is counted by language, in runs of least and most; see dev/measurements.md for what else was tried.
VIEWS: Final[Mapping[Language, Mapping[str, tuple[int, int]]]] = {
    "en": {"char": (3, 4), "word": (1, 2)},
    "zh": {"char": (1, 3)},
}
COST: Final = 0.1
#: References that a language's meter learns from, at most; what more would bring is in dev/measurements.md.
MOST: Final = 40_000
#: The same for a meter that is a reward, which stays in memory.
MOST_LEARNED: Final = 20_000
#: Of the curve from a lead, in the classifier's units, to a share (our choice).
_STEEPNESS: Final = 2.0
_BINS: Final = 10
_LONG_WORD: Final = re.compile(r"\w{4,}")
#: Between which a temperature's logarithm is looked for: roles that are always told apart have no best one.
_TEMPERATURES: Final = (-4.0, 4.0)

Floats = npt.NDArray[np.float64]


#: What a word of a reply is: marks and signs count, for they are style.
WORD: Final = r"\w+|[^\w\s]"


def mask_repeats(text: str, question: str, language: Language) -> str:
    """The text between ``^`` and ``$``, with ``#`` for what it repeats of the question.

    That is a word of four letters or more; in Chinese, a pair of characters.

    >>> mask_repeats("Arr, London be the capital!", "What is the capital of England?", "en")
    '^Arr, London be the #!$'
    >>> mask_repeats("俺老孙以为首都是北京", "中国的首都是哪里", "zh")
    '^俺老孙以为#北京$'
    """
    if language == "en":
        repeated_words = set(_LONG_WORD.findall(question.lower()))
        return f"^{_LONG_WORD.sub(lambda word: '#' if word[0].lower() in repeated_words else word[0], text.strip())}$"
    pairs = set(pairwise(question))
    hidden = {at + step for at, pair in enumerate(pairwise(text)) if pair in pairs for step in (0, 1)}
    masked = "".join("#" if at in hidden else character for at, character in enumerate(text))
    return f"^{re.sub('#+', '#', masked).strip()}$"


class StyleReply(NamedTuple):
    """A reply, who gave it or was to be played, and the instruction, folded."""

    role: str
    question: str
    text: str


def measure_style(rows: Sequence[Row], answers: Mapping[str, str]) -> dict[str, Any]:
    """Measure how well roles can be told apart by their replies, and how far a model's replies sound like theirs.

    Args:
        rows: What the meter learns from, and the rows that the model answered.
        answers: Row id to the model's reply; may be empty.

    Returns:
        The settings, and by language a ``meter`` with its own accuracy and, where there are answers, ``replies``; the
        same figures for both (see docs/scoring.md).

    Raises:
        MissingExtraError: Without scikit-learn.
        DataError: When no language has two roles with references, or no answer is to a row that can be measured.
    """
    require("sklearn", extra="style")
    languages = sorted({row.language for row in rows})
    parts = {name: [row for row in rows if row.language == name] for name in languages}
    measured = {name: _measure_language(part, answers) for name, part in parts.items()}
    by_language = {name: figures for name, figures in measured.items() if figures is not None}
    if not by_language:
        raise DataError("too few references; the meter needs two roles with replies to several instructions each")
    if answers and not any(figures.get("replies") for figures in by_language.values()):
        raise DataError("no reply answers a row that the meter can measure")
    return {"settings": {"views": VIEWS, "C": COST, "folds": FOLDS, "most": MOST}, "languages": by_language}


def measure_file_style(files: Sequence[Path], config: str, split: str, data_dir: Path | None) -> dict[str, Any]:
    """`measure_style` of predictions in files, by a meter that learns from all splits of a config that are here.

    Args:
        files: Predictions for the split, as for `rolellm.score`; with none, the meter alone is measured.
        config: The dataset's config.
        split: The split that the predictions answer.
        data_dir: A local copy of the release.
    """
    from rolellm.data.rolebench import dataset_fingerprint, load_rolebench

    splits = load_rolebench(config, data_dir=data_dir)
    every = [row for table in splits.values() for row in read_dataset_rows(table)]
    answers: dict[str, str] = {}
    findings: tuple[MatchFinding, ...] = ()
    if files:
        rows = read_dataset_rows(load_rolebench(config, split, data_dir=data_dir))
        read = read_predictions(list(files))
        joined = match_predictions(rows, read, where=f"{config}/{split}")
        findings = joined.findings
        answers = read.map_texts(rows, joined.answers)
    return {
        "config": config,
        "split": split,
        "dataset": dataset_fingerprint(config, data_dir),
        **measure_style(every, answers),
        "warnings": [finding.text for finding in findings if finding.refused],
    }


def _measure_language(rows: Sequence[Row], answers: Mapping[str, str]) -> dict[str, Any] | None:
    """One language; ``None`` where it has too few roles or instructions."""
    subset = "general" if any(row.subset == "general" and row.references for row in rows) else "role_specific"
    rows = [row for row in rows if row.subset == subset]
    distinct = {
        StyleReply(row.role, fold(row.question), text) for row in rows for text in row.references if text.strip()
    }
    references = sorted(sorted(distinct, key=hash_json)[:MOST])
    roles = sorted({reply.role for reply in references})
    unseen = [len({reply.role for reply in references if _get_fold(reply) != part}) for part in range(FOLDS)]
    if len(roles) < 2 or min(unseen) < len(roles):
        return None
    replies = [StyleReply(row.role, fold(row.question), answers[row.id]) for row in rows if row.id in answers]
    replies = [reply for reply in replies if reply.role in roles]
    chances = _estimate_role_probabilities(references, replies, roles, rows[0].language)
    roles_by_question: dict[str, set[str]] = defaultdict(set)
    for reply in references:
        roles_by_question[reply.question].add(reply.role)
    meter = _compute_figures(references, chances[: len(references)], roles, roles_by_question)
    result = {"subset": subset, "roles": roles, "meter": meter}
    if replies:
        result["replies"] = _compute_figures(replies, chances[len(references) :], roles, roles_by_question)
    return result


class StyleMeter:
    """A meter that learns once, from all instructions, and also tells role-free answers from the roles; for rewards.

    A reply to an instruction that it learned from gains nothing by its content where several roles answer the same
    instructions. It should not be read as a measure: `measure_style` keeps instructions apart.

    Args:
        rows: What it learns from: references and role-free answers, general ones where there are any.
        language: Only rows in this language count.

    Attributes:
        voices: The roles, and ``""`` for role-free answers.

    Raises:
        MissingExtraError: Without scikit-learn.
        DataError: When there are not two voices.
    """

    def __init__(self, rows: Sequence[Row], language: Language) -> None:
        require("sklearn", extra="style")
        from sklearn.svm import LinearSVC

        rows = [row for row in rows if row.language == language and row.references]
        rows = [row for row in rows if row.subset == "general"] or rows
        replies = {StyleReply(row.role, fold(row.question), text) for row in rows for text in row.references}
        plain = {StyleReply("", fold(row.question), row.raw_reference or "") for row in rows}
        learned = [
            reply
            for part in (replies, plain)
            for reply in sorted((reply for reply in part if reply.text.strip()), key=hash_json)[:MOST_LEARNED]
        ]
        self.voices: list[str] = sorted({reply.role for reply in learned})
        if len(self.voices) < 2:
            raise DataError(
                "the style reward needs two voices to tell apart: two roles, or a role and `raw_reference` (language: "
                f"{language})"
            )
        self._language, self._vectors = language, _build_vectorizer(language)
        features = self._vectors.fit_transform(self._mask(learned))
        machine = LinearSVC(C=COST, random_state=0, class_weight="balanced")
        machine.fit(features, [self.voices.index(reply.role) for reply in learned])
        # Half as wide as the machine's own: a call of 64 replies takes a tenth less.
        self._weights, self._offsets = machine.coef_.T.astype(np.float32, order="C"), machine.intercept_

    def _mask(self, replies: Sequence[StyleReply]) -> list[str]:
        return [mask_repeats(reply.text, reply.question, self._language) for reply in replies]

    def measure(self, replies: Sequence[StyleReply]) -> list[float]:
        """The lead of each reply's own voice over the next best, as a share from 0 to 1; above 0.5 it is the first.

        Args:
            replies: Of roles that it learned.
        """
        if not replies:
            return []
        margins = self._vectors.transform(self._mask(replies)) @ self._weights + self._offsets
        # Of two voices there is one margin.
        margins = margins if margins.shape[1] > 1 else np.concatenate([-margins, margins], axis=1)
        at = np.arange(len(replies)), np.array([self.voices.index(reply.role) for reply in replies])
        own = margins[at].copy()
        margins[at] = -np.inf
        return list(map(float, 1 / (1 + np.exp(-_STEEPNESS * (own - margins.max(axis=1))))))


def _get_fold(reply: StyleReply) -> int:
    return int(hashlib.sha256(reply.question.encode("utf-8", "replace")).hexdigest(), 16) % FOLDS


def _estimate_role_probabilities(
    references: Sequence[StyleReply], replies: Sequence[StyleReply], roles: Sequence[str], language: Language
) -> Floats:
    """The probability of each role for each reference and reply, of shape (both, roles), by unseen instructions."""
    from scipy.optimize import minimize_scalar
    from scipy.special import log_softmax, softmax
    from sklearn.svm import LinearSVC

    every = [*references, *replies]
    texts = np.array([mask_repeats(reply.text, reply.question, language) for reply in every], object)
    parts = np.array([_get_fold(reply) for reply in every])
    own = np.array([roles.index(reply.role) for reply in every])
    first = np.arange(len(every)) < len(references)
    margins = np.zeros((len(every), len(roles)))
    for part in track_progress(np.unique(parts), "style meter"):
        is_training = first & (parts != part)
        vectors = _build_vectorizer(language)
        machine = LinearSVC(C=COST, random_state=0).fit(vectors.fit_transform(texts[is_training]), own[is_training])
        judged = machine.decision_function(vectors.transform(texts[parts == part]))
        # Of two classes there is one margin.
        margins[parts == part] = judged if judged.ndim == 2 else np.stack([-judged, judged], axis=1)
    probabilities = np.zeros_like(margins)
    for part in np.unique(parts):
        is_calibration = first & (parts != part)
        lines, right = margins[is_calibration], own[is_calibration]

        def compute_loss(scale: float, lines: Floats = lines, right: npt.NDArray[Any] = right) -> float:
            return -float(log_softmax(np.exp(scale) * lines, axis=1)[np.arange(len(right)), right].mean())

        scale = np.exp(minimize_scalar(compute_loss, bounds=_TEMPERATURES).x)
        probabilities[parts == part] = softmax(scale * margins[parts == part], axis=1)
    return probabilities


def _build_vectorizer(language: Language) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_union

    more: dict[str, Any] = {"char": {}, "word": {"token_pattern": WORD}}
    views = VIEWS[language].items()
    same: Any = {"sublinear_tf": True, "min_df": 2, "dtype": np.float32}
    return make_union(*(TfidfVectorizer(analyzer=kind, ngram_range=size, **same, **more[kind]) for kind, size in views))


def _compute_figures(
    replies: Sequence[StyleReply],
    chances: Floats,
    roles: Sequence[str],
    roles_by_question: Mapping[str, set[str]],
) -> dict[str, Any]:
    own = np.array([roles.index(reply.role) for reply in replies])
    mine = chances[np.arange(len(own)), own]
    rank = (chances > mine[:, None]).sum(axis=1)
    first, sure = chances.argmax(axis=1), chances.max(axis=1)
    pairs = [
        (reply, (1 + np.sign(mine[at] - chances[at, roles.index(other_role)])) / 2)
        for at, reply in enumerate(replies)
        for other_role in roles_by_question.get(reply.question, set()) - {reply.role}
    ]
    confusion = {role: Counter(roles[at] for at in first[own == number]) for number, role in enumerate(roles)}

    def estimate_figure(
        values: Sequence[Any], measured_replies: Sequence[StyleReply] = replies
    ) -> dict[str, Any] | None:
        columns = [reply.question for reply in measured_replies], [reply.role for reply in measured_replies]
        return encode_interval(estimate_interval(ClusteredSample(list(map(float, values)), *columns), SHARE))

    return {
        "top1": estimate_figure(rank == 0),
        "top5": estimate_figure(rank < 5),
        "chance": 1 / len(roles),
        "own_probability": estimate_figure(mine),
        "same_instruction": estimate_figure([right for _, right in pairs], [reply for reply, _ in pairs]),
        "ece": _compute_calibration_error(sure, first == own),
        "by_role": {
            role: {
                "top1": estimate_figure((rank == 0)[own == at], [reply for reply in replies if reply.role == role]),
                "own_probability": float(mine[own == at].mean()),
            }
            for at, role in enumerate(roles)
            if (own == at).any()
        },
        "confusion": {role: dict(counts.most_common()) for role, counts in confusion.items() if counts},
    }


def _compute_calibration_error(sure: Floats, right: npt.NDArray[np.bool_]) -> float:
    """Expected calibration error: confidence minus accuracy in bins of equal width, weighted by their replies."""
    bins = np.minimum((sure * _BINS).astype(int), _BINS - 1)
    gaps = np.bincount(bins, weights=sure - right, minlength=_BINS)
    return float(np.abs(gaps).sum() / len(sure))
