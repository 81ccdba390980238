"""Faults of the judging itself: missing verdicts, position and length bias, canaries, disagreement."""

from __future__ import annotations

import re
from collections import Counter
from itertools import groupby
from statistics import linear_regression

from rolellm.judging.result import Diagnostics, Unscored
from rolellm.judging.verdicts import DESIGNS, RowValues, Tally, compute_sign
from rolellm.scoring.statistics.agreement import compute_fleiss_kappa
from rolellm.scoring.statistics.intervals import NONE, Interval

Biases = dict[str, Interval | None]

# Reasons quote each reply in other words; without the quotations, they can be counted.
_QUOTED = re.compile(r"""(?<!\w)(?:'(?:\\.|[^'\\]){9,}'|"(?:\\.|[^"\\]){9,}")""", re.DOTALL)


def measure_diagnostics(tally: Tally, limit: float) -> Diagnostics:
    """Measure the judges' faults.

    Args:
        tally: The comparison and its judgements.
        limit: Share of judgements without a verdict above which a run is not valid.
    """
    counts = Counter(judgement.design for judgement in tally.judgements)
    biases = {
        **_measure_pair_positions(tally),
        "rank_slope": _measure_rank_slope(tally),
        "longer_preferred": _measure_longer(tally),
        "fleiss_kappa": _measure_jury_agreement(tally),
    }
    return Diagnostics(
        {design: counts[design] for design in DESIGNS},
        _count_unscored(tally, limit),
        _measure_copies(tally),
        biases,
        _measure_consistency(tally),
    )


def _measure_longer(tally: Tally) -> Interval | None:
    """Measure how often the longer of two answers wins; canaries, short or long by design, are left out."""
    base_lengths = tally.lengths.get(tally.verdicts.baseline or "", {})
    longer: RowValues = []
    for system in tally.comparison.systems:
        if system.kind != "model":
            continue
        lengths = tally.lengths[system.name]
        for row, win in tally.values(system.name, "win").items():
            if lengths[row] > base_lengths[row]:
                longer.append((row, win))
            elif lengths[row] < base_lengths[row]:
                longer.append((row, 1 - win))
    return tally.estimate(longer)


def _measure_pair_positions(tally: Tally) -> Biases:
    """Measure position bias: both orders of a pair show the better answer first as often as second.

    ``first_preferred``: share of judgements that prefer the answer shown first, ties half; .5 means no bias.
    """
    first: RowValues = []
    consistency: RowValues = []
    for pair in tally.verdicts.pairs:
        first.append((pair.row, (pair.first + 1 - pair.second) / 2))
        consistency.append((pair.row, float(pair.agrees)))
    return {"first_preferred": tally.estimate(first), "consistency": tally.estimate(consistency)}


def _measure_consistency(tally: Tally) -> Biases:
    """Measure each judge's consistency on models: to tell a canary from an answer is easy."""
    agreement: dict[str, RowValues] = {}
    for pair in tally.verdicts.pairs:
        values = agreement.setdefault(pair.judge, [])
        # Pairs that are judged by odds need not agree.
        if pair.lead is None and pair.system not in tally.comparison.canaries:
            values.append((pair.row, float(pair.agrees)))
    return {judge: tally.estimate(values) for judge, values in sorted(agreement.items())}


def _measure_rank_slope(tally: Tally) -> Interval | None:
    """Measure how much the rank grows with each position further down a list, by least squares in each list.

    0 means no bias, and above 0 the judge prefers what it reads first.
    """
    slopes: RowValues = []
    for judgement in tally.verdicts.lists:
        ranks = judgement.ranks or ()
        if len(ranks) > 1:
            fit = linear_regression(range(len(ranks)), ranks)
            slopes.append((judgement.row, fit.slope))
    return tally.estimate(slopes, NONE)


def _count_unscored(tally: Tally, limit: float) -> Unscored:
    """Count judgements without a verdict, but for pairs with a canary, and lists whose verdict was copied from one."""
    canaries = tally.comparison.canaries
    total = 0
    reasons: Counter[str] = Counter()
    judges: Counter[str] = Counter()
    for judgement in tally.judgements:
        if judgement.copied in canaries:
            continue
        if judgement.design == "pairwise" and not canaries.isdisjoint(judgement.order):
            continue
        total += 1
        if judgement.ranks is None:
            reasons[_QUOTED.sub("…", judgement.unscored or "no reason kept")] += 1
            judges[judgement.judge] += 1
    count = reasons.total()
    share = count / total if total else None
    return Unscored(count, total, share, limit, _sort_counts(reasons), _sort_counts(judges))


def _sort_counts(counts: Counter[str]) -> dict[str, int]:
    """Sort counts, most frequent first; equals by name, so that the judgements' order changes nothing."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _measure_copies(tally: Tally) -> Biases:
    """Measure how often judges copy each canary's verdict, of the judgements that show it."""
    shares = {}
    for name in sorted(tally.comparison.canaries):
        copied: RowValues = []
        for judgement in tally.judgements:
            if name in judgement.order:
                copied.append((judgement.row, float(judgement.copied == name)))
        shares[name] = tally.estimate(copied)
    return shares


def _measure_jury_agreement(tally: Tally) -> Interval | None:
    """Measure how far several judges of pairs agree beyond chance on win, tie or loss.

    Pairs with one judge's vote alone say nothing and are left out.
    """
    rows: list[str] = []
    votes: list[list[int]] = []
    ordered = sorted(tally.verdicts.pairs)
    for (row, _), pairs in groupby(ordered, key=lambda pair: (pair.row, pair.system)):
        signs = [compute_sign(pair.mean - 0.5) for pair in pairs]
        if len(signs) > 1:
            rows.append(row)
            votes.append(signs)
    if not rows:
        return None
    return compute_fleiss_kappa(votes).estimate(*tally.look_up(rows))
