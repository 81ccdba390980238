"""Whether longer answers win: win rates by how long an answer is beside the baseline's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from rolellm.core.text import fold
from rolellm.evaluation.statistics import Bootstrap, bootstrap_ci, share_ends
from rolellm.judging.aggregate import RowOutcome
from rolellm.judging.types import Contest
from rolellm.report.scores import Estimate

_BINS = (
    (0.5, "under half as long"),
    (0.8, "½ to ⅘ as long"),
    (1.25, "about as long"),
    (2.0, "1¼ to 2 times as long"),
    (float("inf"), "over twice as long"),
)
"""Upper ends of the ratio of characters (our choice; the same on both sides of 1), with words for each."""


_LEVEL = Bootstrap().level


def win_by_length(contest: Contest, outcomes: Mapping[str, Mapping[str, RowOutcome]]) -> list[tuple[str, Estimate]]:
    """Mean outcome of pairs by the answer's length over the baseline's, in characters; bins without a pair are absent.

    All models count, canaries do not: their length is their maker's. Intervals by a bootstrap over questions.

    Args:
        contest: Rows, contestants and answers.
        outcomes: Row id to contestant to outcome.
    """
    baseline = contest.baseline
    if baseline is None:
        return []
    models = [one.name for one in contest.contestants if one.kind == "model"]
    values: dict[str, list[float]] = defaultdict(list)
    clusters: dict[str, list[str]] = defaultdict(list)
    for row in contest.rows:
        base = contest.answers[baseline.name].get(row.id)
        for name in models:
            outcome, answer = outcomes.get(row.id, {}).get(name), contest.answers[name].get(row.id)
            if base is None or answer is None or outcome is None or outcome.win is None:
                continue
            words = _words(len(answer), len(base))
            values[words].append(outcome.win)
            clusters[words].append(fold(row.question))
    found = []
    for _, words in _BINS:
        if values[words]:
            mean = share_ends(bootstrap_ci(values[words], clusters[words]), _LEVEL)
            ends = None if mean.low is None or mean.high is None else (mean.low, mean.high)
            found.append((words, Estimate(mean.mean, ends, mean.n)))
    return found


def _words(length: int, base: int) -> str:
    """The bin of a ratio; beside an empty answer every other is longer, and two empty ones are as long."""
    ratio = length / base if base else 1.0 if length == 0 else float("inf")
    return next(words for upper, words in _BINS if ratio < upper or upper == float("inf"))
