"""Faults of the judging itself: missing verdicts, position and length bias, canaries, disagreement."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, groupby
from statistics import fmean, linear_regression

from rolellm.judging.result import Diagnostics, Unscored
from rolellm.judging.verdicts import DESIGNS, Tally, compute_sign, share_above
from rolellm.scoring.statistics.agreement import compute_fleiss_kappa
from rolellm.scoring.statistics.intervals import NONE, Interval
from rolellm.scoring.statistics.logistic_fits import fit_length_control

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
    positions, slope = _measure_list_positions(tally)
    return Diagnostics(
        judgements={design: counts[design] for design in DESIGNS},
        unscored=_count_unscored(tally, limit),
        canaries=_measure_canaries(tally),
        biases={
            **_measure_pair_positions(tally),
            "rank_slope": slope,
            **measure_length_effect(tally),
            "fleiss_kappa": _measure_jury_agreement(tally),
        },
        consistency_by_judge=_measure_consistency(tally),
        mean_rank_by_position=positions,
    )


def measure_length_effect(tally: Tally) -> Biases:
    """Measure how often the longer of two answers wins, and the weight of length in the length-controlled win rate.

    Over the pairs of models; a canary is short or long by design, and loses for another reason. The weight is fitted to
    the pairs of all models at once, so it also holds what better models owe to answers that are longer.
    """
    rows: list[str] = []
    wins: list[float] = []
    lengths: list[int] = []
    base_lengths: list[int] = []
    longer: list[tuple[str, float]] = []
    for system in tally.comparison.systems:
        if system.kind != "model" or tally.verdicts.baseline is None:
            continue
        own, base = tally.lengths[system.name], tally.lengths[tally.verdicts.baseline]
        for row, win in tally.values(system.name, "win").items():
            rows.append(row)
            wins.append(win)
            lengths.append(own[row])
            base_lengths.append(base[row])
            if own[row] != base[row]:
                longer.append((row, win if own[row] > base[row] else 1 - win))
    coefficient = None
    if rows:
        coefficient = fit_length_control(wins, lengths, base_lengths, *tally.look_up(rows)).coefficient
    return {"longer_preferred": tally.estimate(longer), "length_coefficient": coefficient}


def _measure_pair_positions(tally: Tally) -> Biases:
    """Measure position bias: both orders of a pair show the better answer first as often as second.

    ``first_preferred``: share of judgements that prefer the answer shown first, ties half; .5 means no bias.
    """
    pairs = tally.verdicts.pairs
    first_preferred = [(pair.row, (pair.first + 1 - pair.second) / 2) for pair in pairs]
    return {
        "first_preferred": tally.estimate(first_preferred),
        "consistency": tally.estimate((pair.row, float(pair.agrees)) for pair in pairs),
    }


def _measure_consistency(tally: Tally) -> Biases:
    """Measure each judge's consistency on models: to tell a canary from an answer is easy."""
    if not tally.verdicts.pairs:
        return {}
    canaries = tally.comparison.canaries
    judges = tally.verdicts.judges["pairwise"]
    agreement: dict[str, list[tuple[str, float]]] = {judge: [] for judge in judges}
    for pair in tally.verdicts.pairs:
        # Pairs that are judged by odds need not agree.
        if pair.lead is None and pair.system not in canaries:
            agreement[pair.judge].append((pair.row, float(pair.agrees)))
    return {judge: tally.estimate(values) for judge, values in agreement.items()}


def _measure_list_positions(tally: Tally) -> tuple[tuple[float, ...], Interval | None]:
    """Measure how the position in a list goes with the rank given there.

    Returns:
        Mean ranks by position, over the lists of the most frequent length (of two such, the longer). How much the rank
        grows with each position further down, by least squares in each list of two and more, and then the mean of that:
        0 means no bias, and above 0 the judge prefers what it reads first.
    """
    lists: dict[int, list[Sequence[float]]] = defaultdict(list)
    slopes: list[tuple[str, float]] = []
    for judgement in tally.verdicts.lists:
        ranks = judgement.ranks or ()
        if len(ranks) > 1:
            lists[len(ranks)].append(ranks)
            slopes.append((judgement.row, linear_regression(range(len(ranks)), ranks).slope))
    most_frequent = max(lists, key=lambda length: (len(lists[length]), length), default=0)
    ranks_by_position = zip(*lists[most_frequent], strict=True)
    return tuple(map(fmean, ranks_by_position)), tally.estimate(slopes, NONE)


def _count_unscored(tally: Tally, limit: float) -> Unscored:
    """Count judgements without a verdict, and the pairs that count in nothing for lack of one.

    Pairs with a canary, and lists whose verdict was copied from one, are counted in ``canaries`` instead.
    """
    canaries = tally.comparison.canaries
    total = 0
    missing = []
    for judgement in tally.judgements:
        is_of_canary = judgement.design == "pairwise" and not canaries.isdisjoint(judgement.order)
        if is_of_canary or judgement.copied in canaries:
            continue
        total += 1
        if judgement.ranks is None:
            missing.append(judgement)
    reasons = [_QUOTED.sub("…", judgement.unscored or "no reason kept") for judgement in missing]
    return Unscored(
        len(missing),
        total,
        len(missing) / total if total else None,
        limit,
        by_reason=_count_words(reasons),
        by_judge=_count_words(judgement.judge for judgement in missing),
        incomplete_pairs=tally.verdicts.incomplete,
    )


def _count_words(words: Iterable[str]) -> dict[str, int]:
    """Count words, most frequent first; equals by name, so that the judgements' order changes nothing."""
    return dict(sorted(Counter(words).items(), key=lambda item: (-item[1], item[0])))


def _measure_canaries(tally: Tally) -> dict[str, Biases]:
    """Measure the effect of each canary on the judges: shares of the judgements that show it."""
    effects = {}
    for name in sorted(tally.comparison.canaries):
        judgements = [judgement for judgement in tally.judgements if name in judgement.order]
        copied = [(judgement.row, float(judgement.copied == name)) for judgement in judgements]
        unscored = [(judgement.row, float(judgement.ranks is None)) for judgement in judgements]
        effects[name] = {"copied": tally.estimate(copied), "unscored": tally.estimate(unscored)}
    return effects


def _measure_jury_agreement(tally: Tally) -> Interval | None:
    """Measure how far several judges agree beyond chance on win, tie or loss: in pairs, or else in lists.

    In lists, any two systems of a row are an item, and either may be called the winner: chance is that of judges
    who prefer the one as often as the other. Items with one judge's vote alone say nothing and are left out.
    """
    has_jury = len(tally.verdicts.judges["pairwise"]) > 1
    rows: list[str] = []
    votes: list[list[int]] = []
    for row, means in _iter_pair_votes(tally) if has_jury else _iter_list_votes(tally):
        if len(means) > 1:
            rows.append(row)
            votes.append([compute_sign(mean - 0.5) for mean in means])
    if not rows:
        return None
    agreement = compute_fleiss_kappa(votes)
    if not has_jury:
        # Seen from both sides, so that the systems' order changes nothing.
        mirrored = [[-vote for vote in signs] for signs in votes]
        agreement = replace(agreement, chance=compute_fleiss_kappa([*votes, *mirrored]).chance)
    return agreement.estimate(*tally.look_up(rows))


def _iter_pair_votes(tally: Tally) -> Iterator[tuple[str, Sequence[float]]]:
    ordered = sorted(tally.verdicts.pairs)
    for (row, _), pairs in groupby(ordered, key=lambda pair: (pair.row, pair.system)):
        yield row, [pair.mean for pair in pairs]


def _iter_list_votes(tally: Tally) -> Iterator[tuple[str, Sequence[float]]]:
    systems = [system.name for system in tally.comparison.systems]
    for row, lists in tally.verdicts.lists_by_row.items():
        # The lists of a row are sorted by judge.
        by_judge = [list(judged) for _, judged in groupby(lists, key=lambda judgement: judgement.judge)]
        for first, second in combinations(systems, 2):
            shares = [share_above(judged, first, second) for judged in by_judge]
            yield row, [share for share in shares if share is not None]
