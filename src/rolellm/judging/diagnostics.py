"""What is wrong with the judging itself: missing verdicts, position and length bias, attacks, disagreement."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from statistics import linear_regression
from typing import Any

import numpy as np
import numpy.typing as npt

from rolellm.evaluation.score import metric_dict
from rolellm.evaluation.statistics.agreement import agreement_ci, fleiss_kappa
from rolellm.evaluation.statistics.length import length_control
from rolellm.judging.aggregate import DESIGNS, Pair, Tally, above, list_above
from rolellm.judging.types import Judgement


def length_effect(tally: Tally) -> dict[str, Any]:
    """How often the longer of two answers wins, and the weight of length in the length-controlled win rate.

    Over the pairs of models; a canary is short or long by design, and loses for another reason. The weight is fitted to
    the pairs of all models at once, so it also holds what better models owe to answers that are longer.
    """
    baseline = tally.verdicts.baseline
    if baseline is None:
        return {"longer_preferred": None, "coefficient": None}
    models = [one.name for one in tally.comparison.systems if one.kind == "model"]
    found = [
        (row, win, tally.lengths[name][row], tally.lengths[baseline][row])
        for name in models
        for row, win in tally.values(name, "win").items()
    ]
    longer = [(row, win if mine > theirs else 1 - win) for row, win, mine, theirs in found if mine != theirs]
    coefficient = None
    if found:
        rows, wins, mine, theirs = (list(column) for column in zip(*found, strict=True))
        coefficient = length_control(wins, mine, theirs, [tally.clusters[row] for row in rows], tally.settings)
    return {
        "longer_preferred": tally.estimate(tally.joined(longer), shares=True),
        "coefficient": coefficient and metric_dict(coefficient.coefficient),
    }


def name_effect(tally: Tally) -> tuple[dict[str, Any] | None, dict[str, dict[str, Any] | None]]:
    """What showing the names changed: over all probes, and each system's win with its name less that without.

    A probe is held against the same judge's verdict on the same answers in the same order, names masked; one without
    such a verdict counts in nothing.

    Returns:
        The ``name`` of the diagnostics (``None`` where nothing was probed), and system to effect.
    """
    masked = {_shown(one): one for one in tally.judgements if not one.named and one.ranks is not None}
    probes = sorted(
        (one for one in tally.judgements if one.named and one.ranks is not None and _shown(one) in masked), key=_shown
    )
    if not any(one.named for one in tally.judgements):
        return None, {}
    baseline = tally.verdicts.baseline
    gains: dict[str, list[tuple[str, float]]] = {}
    for one in probes:
        for name in one.order if one.design == "pairwise" and baseline is not None else ():
            before, after = (above(found, name, baseline or "") for found in (masked[_shown(one)], one))
            if name != baseline and before is not None and after is not None:
                gains.setdefault(name, []).append((one.row, after - before))
    effects = tally.estimates({name: tally.joined(found) for name, found in gains.items()})
    changed = tally.joined((one.row, float(one.ranks != masked[_shown(one)].ranks)) for one in probes)
    by_model = {one.name: effects[one.name] for one in tally.comparison.systems if one.name in effects}
    return {"probes": len(probes), "changed": tally.estimate(changed, shares=True), "by_model": by_model}, effects


def _shown(one: Judgement) -> tuple[str, str, str, tuple[str, ...]]:
    return one.row, one.judge, one.design, one.order


def _pairs(tally: Tally) -> Iterator[tuple[str, Iterable[Pair]]]:
    """Each row's pairs of one system, by all judges."""
    for row in tally.comparison.rows:
        for by_judge in tally.verdicts.pairs.get(row.id, {}).values():
            yield row.id, by_judge.values()


def _in_pairs(tally: Tally) -> dict[str, Any] | None:
    """Both orders of a pair show the better answer first as often as second: what is left is position bias.

    ``first_preferred``: share of judgements that prefer the answer shown first, ties half; .5 means no bias.
    """
    pairs = [(row, pair) for row, found in _pairs(tally) for pair in found]
    if not pairs:
        return None
    found = tally.estimates(
        {
            "first_preferred": tally.joined((row, (pair.first + 1 - pair.second) / 2) for row, pair in pairs),
            "consistency": tally.joined((row, float(pair.agrees)) for row, pair in pairs),
        },
        shares=True,
    )
    # To tell a canary from an answer is easy.
    models = [
        (row, by_judge)
        for row, by_name in tally.verdicts.pairs.items()
        for name, by_judge in by_name.items()
        if name not in tally.comparison.canaries
    ]
    agreed = {
        judge: tally.joined(
            (row, float(of[judge].agrees)) for row, of in models if judge in of and of[judge].lead is None
        )
        for judge in tally.verdicts.judges["pairwise"]
    }
    return {**found, "by_judge": tally.estimates(agreed, shares=True)}


def _in_lists(tally: Tally) -> dict[str, Any] | None:
    """How the place in a list goes with the rank given there.

    ``mean_rank_by_place`` is over the lists of the most frequent length (of two such, the longer). ``slope`` is how
    much the rank grows with each place further down, by least squares in each list of two and more, and then the mean
    of that: 0 means no bias, and above 0 the judge prefers what it reads first.
    """
    lists = [
        (row.id, one.ranks)
        for row in tally.comparison.rows
        for found in tally.verdicts.lists.get(row.id, {}).values()
        for one in found
        if one.ranks is not None and len(one.ranks) > 1
    ]
    if not lists:
        return None
    lengths = Counter(len(ranks) for _, ranks in lists)
    usual = max(lengths, key=lambda length: (lengths[length], length))
    ranks = np.array([ranks for _, ranks in lists if len(ranks) == usual])
    means = [math.fsum(column) / len(column) for column in ranks.T.tolist()]
    slope = tally.joined((row, linear_regression(range(len(ranks)), ranks).slope) for row, ranks in lists)
    return {"mean_rank_by_place": means, "slope": tally.estimate(slope)}


# What a reason quotes of a reply is another each time, and would make a line of its own of every missing verdict.
_QUOTED = re.compile(r"""(?<!\w)(?:'(?:\\.|[^'\\]){9,}'|"(?:\\.|[^"\\]){9,}")""", re.DOTALL)


def diagnose(tally: Tally, limit: float) -> tuple[dict[str, Any], dict[str, dict[str, Any] | None]]:
    """The ``diagnostics`` of a result, and each system's name effect.

    Args:
        tally: What was judged.
        limit: Share of judgements without a verdict above which a run is not valid.
    """
    names, effects = name_effect(tally)
    counts = Counter("named" if one.named else one.design for one in tally.judgements)
    return {
        "judgements": {kind: counts[kind] for kind in (*DESIGNS, "named")},
        "unscored": _unscored(tally, limit),
        "canaries": _canaries(tally),
        "position": {"pairwise": _in_pairs(tally), "listwise": _in_lists(tally)},
        "length": length_effect(tally),
        "name": names,
        "attacks": _attacks(tally),
        "jury": _jury(tally),
    }, effects


def _unscored(tally: Tally, limit: float) -> dict[str, Any]:
    """Judgements without a verdict, probes too; and the pairs that count in nothing for lack of an order's verdict.

    Pairs with a canary, and lists whose verdict was copied from one, are counted in ``canaries`` instead.
    """
    canaries = tally.comparison.canaries
    systems = [
        one
        for one in tally.judgements
        if one.copied not in canaries and not (one.design == "pairwise" and canaries.intersection(one.order))
    ]
    missing, total = [one for one in systems if one.ranks is None], len(systems)
    return {
        "count": len(missing),
        "of": total,
        "share": len(missing) / total if total else None,
        "limit": limit,
        "by_reason": _counted(_QUOTED.sub("…", one.unscored or "no reason kept") for one in missing),
        "by_judge": _counted(one.judge for one in missing),
        "incomplete_pairs": tally.verdicts.incomplete,
    }


def _canaries(tally: Tally) -> dict[str, dict[str, dict[str, Any] | None]]:
    """What each canary did to the judges: shares of the judgements that show it."""
    found = {}
    for name in sorted(tally.comparison.canaries):
        shown = [one for one in tally.judgements if name in one.order]
        copied = tally.joined((one.row, float(one.copied == name)) for one in shown)
        unscored = tally.joined((one.row, float(one.ranks is None)) for one in shown)
        found[name] = tally.estimates({"copied": copied, "unscored": unscored}, shares=True)
    return found


def _counted(words: Iterable[str]) -> dict[str, int]:
    """Most frequent first; equals by name, so that the judgements' order changes nothing."""
    return dict(sorted(Counter(words).items(), key=lambda item: (-item[1], item[0])))


def _attacks(tally: Tally) -> dict[str, dict[str, dict[str, Any]]]:
    """System, kind of attack or change: how many answers and judgements, and the win rate of those rows.

    The win rate is that of pairs; where none were judged, that of lists.
    """
    touched: dict[str, dict[str, Counter[str]]] = {one.name: {} for one in tally.comparison.systems}
    for one in (one for one in tally.judgements if not one.named):
        for name, kind in ((name, kind) for name, kinds in one.touched.items() for kind in kinds):
            touched[name].setdefault(kind, Counter())[one.row] += 1
    samples = {}
    for name, kinds in touched.items():
        outcomes = tally.values(name, "win") or tally.values(name, "above")
        for kind, rows in kinds.items():
            samples[name, kind] = tally.joined((row, win) for row, win in outcomes.items() if row in rows)
    found = tally.estimates(samples, shares=True)
    return {
        name: {
            kind: {"answers": len(rows), "judgements": rows.total(), "win_rate": found[name, kind]}
            for kind, rows in sorted(kinds.items())
        }
        for name, kinds in touched.items()
        if kinds
    }


def _jury(tally: Tally) -> dict[str, Any] | None:
    """How far several judges agree beyond chance on win, tie or loss: in pairs, or else in lists.

    In lists, any two systems of a row are an item, and either may be called the winner: chance is that of judges
    who prefer the one as often as the other. Items with one judge's vote alone say nothing and are left out.
    """
    pairwise, listwise = (len(tally.verdicts.judges[design]) for design in DESIGNS)
    if max(pairwise, listwise) < 2:
        return None
    in_pairs = ((row, [pair.mean for pair in found]) for row, found in _pairs(tally))
    votes = list(in_pairs if pairwise > 1 else _list_votes(tally))
    items = [(row, counts) for row, means in votes if sum(counts := _counts(means)) > 1]
    kappa = None
    if items:
        table: Any = np.array([counts for _, counts in items])
        measure = fleiss_kappa if pairwise > 1 else _either_way
        kappa = agreement_ci(measure, [table], [tally.clusters[row] for row, _ in items], tally.settings)
    return {"fleiss_kappa": metric_dict(kappa), "judges": pairwise if pairwise > 1 else listwise}


def _either_way(counts: npt.NDArray[np.int64]) -> float | None:
    """Fleiss' kappa with each item seen from both sides, so that the systems' order changes nothing."""
    return fleiss_kappa(np.concatenate([counts, counts[:, ::-1]]))


Votes = Iterable[tuple[str, list[float]]]


def _list_votes(tally: Tally) -> Votes:
    names = [one.name for one in tally.comparison.systems]
    for row in tally.comparison.rows:
        lists: Mapping[str, Any] = tally.verdicts.lists.get(row.id, {})
        for at, name in enumerate(names):
            for other in names[at + 1 :]:
                means = [list_above({judge: found}, name, other) for judge, found in lists.items()]
                yield row.id, [mean for mean in means if mean is not None]


def _counts(means: list[float]) -> tuple[int, int, int]:
    wins, losses = sum(mean > 0.5 for mean in means), sum(mean < 0.5 for mean in means)
    return wins, len(means) - wins - losses, losses
