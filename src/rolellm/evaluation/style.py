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
from rolellm.core.records import Language, Row
from rolellm.core.text import fold
from rolellm.evaluation.matching import Finding, match
from rolellm.evaluation.predictions import read_predictions
from rolellm.evaluation.rows import rows_of
from rolellm.evaluation.score import metric_dict
from rolellm.evaluation.settings import Bootstrap
from rolellm.evaluation.statistics.bootstrap import Sample, bootstrap_stratum, share_ends
from rolellm.runtime.progress import counted

FOLDS: Final = 5
#: What is counted by language, in runs of least and most; see docs/style_meter.md for what else was tried.
VIEWS: Final[Mapping[Language, Mapping[str, tuple[int, int]]]] = {
    "en": {"char": (1, 4), "word": (1, 2)},
    "zh": {"char": (1, 3)},
}
COST: Final = 0.1
#: References that a language's meter learns from, at most; what more would bring is in docs/style_meter.md.
MOST: Final = 40_000
_BINS: Final = 10
_LONG_WORD: Final = re.compile(r"\w{4,}")
#: Between which a temperature's logarithm is looked for: roles that are always told apart have no best one.
_TEMPERATURES: Final = (-4.0, 4.0)

Floats = npt.NDArray[np.float64]


#: What a word of a reply is: marks and signs count, for they are style.
WORD: Final = r"\w+|[^\w\s]"


def masked(text: str, question: str, language: Language) -> str:
    """The text between ``^`` and ``$``, with ``#`` for what it repeats of the question.

    That is a word of four letters or more; in Chinese, a pair of characters.

    >>> masked("Arr, London be the capital!", "What is the capital of England?", "en")
    '^Arr, London be the #!$'
    >>> masked("俺老孙以为首都是北京", "中国的首都是哪里", "zh")
    '^俺老孙以为#北京$'
    """
    if language == "en":
        asked = set(_LONG_WORD.findall(question.lower()))
        return f"^{_LONG_WORD.sub(lambda word: '#' if word[0].lower() in asked else word[0], text.strip())}$"
    pairs = set(pairwise(question))
    hidden = {at + step for at, pair in enumerate(pairwise(text)) if pair in pairs for step in (0, 1)}
    return f"^{re.sub('#+', '#', ''.join('#' if at in hidden else one for at, one in enumerate(text))).strip()}$"


class Reply(NamedTuple):
    """A reply, who gave it or was to be played, and the instruction, folded."""

    role: str
    question: str
    text: str


def style(rows: Sequence[Row], answers: Mapping[str, str], bootstrap: Bootstrap) -> dict[str, Any]:
    """Measure how well roles can be told apart by their replies, and how far a model's replies sound like theirs.

    Args:
        rows: What the meter learns from, and the rows that the model answered.
        answers: Row id to the model's reply; may be empty.
        bootstrap: Of the intervals, over questions.

    Returns:
        The settings, and by language a ``meter`` with its own accuracy and, where there are answers, ``replies``; the
        same figures for both (see docs/style_meter.md).

    Raises:
        MissingExtraError: Without scikit-learn.
        DataError: When no language has two roles with references, or no answer is to a row that can be measured.
    """
    require("sklearn", extra="style")
    languages = sorted({row.language for row in rows})
    parts = {name: [row for row in rows if row.language == name] for name in languages}
    found = {name: _measure(part, answers, bootstrap) for name, part in parts.items()}
    known = {name: one for name, one in found.items() if one is not None}
    if not known:
        raise DataError("too few references; the meter needs two roles with replies to several instructions each")
    if answers and not any(one.get("replies") for one in known.values()):
        raise DataError("no reply answers a row that the meter can measure")
    return {"settings": {"views": VIEWS, "C": COST, "folds": FOLDS, "most": MOST}, "languages": known}


def style_of(
    files: Sequence[Path], config: str, split: str, data_dir: Path | None, bootstrap: Bootstrap
) -> dict[str, Any]:
    """`style` of predictions in files, by a meter that learns from all splits of a config that are here.

    Args:
        files: Predictions for the split, as for `rolellm.score`; with none, the meter alone is measured.
        config: The dataset's config.
        split: The split that the predictions answer.
        data_dir: A local copy of the release.
        bootstrap: Of the intervals.
    """
    from rolellm.rolebench import dataset_fingerprint, load_rolebench

    splits = load_rolebench(config, data_dir=data_dir)
    every = [row for one in splits.values() for row in rows_of(one)]
    answers: dict[str, str] = {}
    findings: tuple[Finding, ...] = ()
    if files:
        rows = rows_of(load_rolebench(config, split, data_dir=data_dir))
        read = read_predictions(list(files))
        joined = match(rows, read, where=f"{config}/{split}")
        findings = joined.findings
        answers = {
            row.id: read.items[at].prediction for row, at in zip(rows, joined.answers, strict=True) if at is not None
        }
    return {
        "config": config,
        "split": split,
        "dataset": dataset_fingerprint(config, data_dir),
        **style(every, answers, bootstrap),
        "warnings": [finding.text for finding in findings if finding.refused],
    }


def _measure(rows: Sequence[Row], answers: Mapping[str, str], bootstrap: Bootstrap) -> dict[str, Any] | None:
    """One language; ``None`` where it has too few roles or instructions."""
    subset = "general" if any(row.subset == "general" and row.references for row in rows) else "role_specific"
    rows = [row for row in rows if row.subset == subset]
    known = {Reply(row.role, fold(row.question), text) for row in rows for text in row.references if text.strip()}
    references = sorted(sorted(known, key=hash_json)[:MOST])
    roles = sorted({one.role for one in references})
    unseen = [len({one.role for one in references if _fold_of(one) != part}) for part in range(FOLDS)]
    if len(roles) < 2 or min(unseen) < len(roles):
        return None
    replies = [Reply(row.role, fold(row.question), answers[row.id]) for row in rows if row.id in answers]
    replies = [one for one in replies if one.role in roles]
    chances = _chances(references, replies, roles, rows[0].language)
    asked: dict[str, set[str]] = defaultdict(set)
    for one in references:
        asked[one.question].add(one.role)
    meter = _figures(references, chances[: len(references)], roles, asked, bootstrap)
    made = {"subset": subset, "roles": roles, "meter": meter}
    if replies:
        made["replies"] = _figures(replies, chances[len(references) :], roles, asked, bootstrap)
    return made


def _fold_of(reply: Reply) -> int:
    return int(hashlib.sha256(reply.question.encode("utf-8", "replace")).hexdigest(), 16) % FOLDS


def _chances(references: Sequence[Reply], replies: Sequence[Reply], roles: Sequence[str], language: Language) -> Floats:
    """The probability of each role for each reference and reply, of shape (both, roles), by unseen instructions."""
    from scipy.optimize import minimize_scalar
    from scipy.special import log_softmax, softmax
    from sklearn.svm import LinearSVC

    every = [*references, *replies]
    texts = np.array([masked(one.text, one.question, language) for one in every], object)
    parts = np.array([_fold_of(one) for one in every])
    own = np.array([roles.index(one.role) for one in every])
    first = np.arange(len(every)) < len(references)
    margins = np.zeros((len(every), len(roles)))
    for part in counted(np.unique(parts), "style meter"):
        seen = first & (parts != part)
        vectors = _vectors(language)
        machine = LinearSVC(C=COST, random_state=0).fit(vectors.fit_transform(texts[seen]), own[seen])
        judged = machine.decision_function(vectors.transform(texts[parts == part]))
        # Of two classes there is one margin.
        margins[parts == part] = judged if judged.ndim == 2 else np.stack([-judged, judged], axis=1)
    found = np.zeros_like(margins)
    for part in np.unique(parts):
        others = first & (parts != part)
        lines, right = margins[others], own[others]

        def loss(scale: float, lines: Floats = lines, right: npt.NDArray[Any] = right) -> float:
            return -float(log_softmax(np.exp(scale) * lines, axis=1)[np.arange(len(right)), right].mean())

        scale = np.exp(minimize_scalar(loss, bounds=_TEMPERATURES).x)
        found[parts == part] = softmax(scale * margins[parts == part], axis=1)
    return found


def _vectors(language: Language) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_union

    more: dict[str, Any] = {"char": {}, "word": {"token_pattern": WORD}}
    views = VIEWS[language].items()
    same: Any = {"sublinear_tf": True, "min_df": 2, "dtype": np.float32}
    return make_union(*(TfidfVectorizer(analyzer=kind, ngram_range=size, **same, **more[kind]) for kind, size in views))


def _figures(
    replies: Sequence[Reply],
    chances: Floats,
    roles: Sequence[str],
    asked: Mapping[str, set[str]],
    bootstrap: Bootstrap,
) -> dict[str, Any]:
    own = np.array([roles.index(one.role) for one in replies])
    mine = chances[np.arange(len(own)), own]
    rank = (chances > mine[:, None]).sum(axis=1)
    first, sure = chances.argmax(axis=1), chances.max(axis=1)
    pairs = [
        (one, (1 + np.sign(mine[at] - chances[at, roles.index(other)])) / 2)
        for at, one in enumerate(replies)
        for other in asked.get(one.question, set()) - {one.role}
    ]
    confusion = {role: Counter(roles[at] for at in first[own == number]) for number, role in enumerate(roles)}

    def share(values: Sequence[Any], given: Sequence[Reply] = replies) -> dict[str, Any] | None:
        sample = Sample([float(value) for value in values], [one.question for one in given])
        return metric_dict(share_ends(bootstrap_stratum([sample], bootstrap).intervals[0])) if len(values) else None

    return {
        "top1": share(rank == 0),
        "top5": share(rank < 5),
        "chance": 1 / len(roles),
        "own_probability": share(mine),
        "same_instruction": share([right for _, right in pairs], [one for one, _ in pairs]),
        "ece": _calibration_error(sure, first == own),
        "by_role": {
            role: {
                "top1": share((rank == 0)[own == at], [one for one in replies if one.role == role]),
                "own_probability": float(mine[own == at].mean()),
            }
            for at, role in enumerate(roles)
            if (own == at).any()
        },
        "confusion": {role: dict(counts.most_common()) for role, counts in confusion.items() if counts},
    }


def _calibration_error(sure: Floats, right: npt.NDArray[np.bool_]) -> float:
    """Expected calibration error: confidence minus accuracy in bins of equal width, weighted by their replies."""
    bins = np.minimum((sure * _BINS).astype(int), _BINS - 1)
    gaps = np.bincount(bins, weights=sure - right, minlength=_BINS)
    return float(np.abs(gaps).sum() / len(sure))
