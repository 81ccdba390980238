"""Shares and differences corrected for a decider that errs: how often their intervals hold the truth."""

from __future__ import annotations

import numpy as np
import pytest

from rolellm.scoring.statistics.intervals import ClusteredSample, compare_pairs, estimate_proportion
from rolellm.scoring.statistics.misclassification import Accuracy


@pytest.mark.parametrize(
    ("base", "tuned", "recall", "alarms", "planted"),
    [
        pytest.param(0.9, 0.7, 0.85, 0.05, 48, id="rules"),
        pytest.param(0.6, 0.4, 0.9, 0.1, 24, id="few planted"),
        pytest.param(0.5, 0.5, 0.7, 0.2, 48, id="no change, weak guard"),
    ],
)
def test_intervals_hold_the_truth_as_often_as_they_say(
    base: float, tuned: float, recall: float, alarms: float, planted: int
) -> None:
    """200 runs: 36 prompts, each with its own chance to be refused, three samples, a decider that errs."""
    random, held = np.random.default_rng(5), {"share": 0, "corrected": 0, "observed": 0, "recall": 0}
    prompts = np.repeat(np.arange(36), 3).tolist()
    for _ in range(200):
        replies = []
        for share in (base, tuned):
            chance = np.repeat(random.beta(8 * share, 8 * (1 - share), 36), 3)
            truth = random.random(108) < chance
            replies.append(np.where(truth, random.random(108) < recall, random.random(108) < alarms).astype(float))
        accuracy = Accuracy(
            int(random.binomial(planted, recall)), planted, int(random.binomial(planted, alarms)), planted
        )
        difference = compare_pairs(replies[1].tolist(), replies[0].tolist(), prompts).difference
        truths = {"share": tuned, "corrected": tuned - base, "observed": (tuned - base) * (recall - alarms)}
        intervals = {
            "share": accuracy.correct_share(ClusteredSample(replies[1].tolist(), prompts)),
            "corrected": accuracy.correct_difference(difference),
            "observed": difference,
            "recall": accuracy.recall,
        }
        for name, truth in {**truths, "recall": recall}.items():
            interval = intervals[name]
            held[name] += interval.ends[0] <= truth <= interval.ends[1]
    # Wilson's interval of a few planted replies is a step function of the count: it may hold more.
    assert all(0.93 <= count / 200 <= (0.99 if name == "recall" else 0.97) for name, count in held.items()), held


def test_a_perfect_decider_changes_little() -> None:
    accuracy = Accuracy(500, 500, 0, 500)
    sample = ClusteredSample([1.0] * 60 + [0.0] * 40, range(100))
    corrected = accuracy.correct_share(sample)
    assert corrected is not None and corrected.mean == 0.6
    assert corrected.ends == pytest.approx(estimate_proportion(60, 100).ends, abs=0.02)


@pytest.mark.parametrize(
    ("accuracy", "informative"),
    [
        pytest.param(Accuracy(12, 24, 12, 24), False, id="coin"),
        pytest.param(Accuracy(14, 24, 10, 24), False, id="not clearly better"),
        pytest.param(Accuracy(2, 24, 20, 24), False, id="the wrong way round"),
        pytest.param(Accuracy(20, 24, 2, 24), True, id="better"),
    ],
)
def test_a_decider_no_better_than_chance_corrects_nothing(accuracy: Accuracy, informative: bool) -> None:
    assert accuracy.is_informative is informative
    sample = ClusteredSample([1.0, 0.0] * 10, range(20))
    difference = compare_pairs([1.0, 0.0] * 10, [0.0, 0.0] * 10, range(20)).difference
    assert (accuracy.correct_share(sample) is not None) is informative
    assert (accuracy.correct_difference(difference) is not None) is informative
