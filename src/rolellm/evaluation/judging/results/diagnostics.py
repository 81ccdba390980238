"""What is wrong with the judging itself: missing verdicts, a taste for a place or a length, attacks, disagreement."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rolellm.evaluation.breakdown import metric_dict
from rolellm.evaluation.judging.results.effects import length_effect, name_effect, position_effect
from rolellm.evaluation.judging.results.outcomes import DESIGNS, list_above
from rolellm.evaluation.judging.results.tally import Estimate, Tally
from rolellm.evaluation.statistics import agreement_ci, fleiss_kappa

# What a reason quotes of a reply is another each time, and would make a line of its own of every missing verdict.
_QUOTED = re.compile(r"""(?<!\w)(?:'(?:\\.|[^'\\]){9,}'|"(?:\\.|[^"\\]){9,}")""", re.DOTALL)


def diagnose(tally: Tally, limit: float) -> tuple[dict[str, Any], dict[str, Estimate | None]]:
    """The ``diagnostics`` of a result, and each contestant's name effect.

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
        "position": position_effect(tally),
        "length": length_effect(tally),
        "name": names,
        "attacks": _attacks(tally),
        "jury": _jury(tally),
    }, effects


def _unscored(tally: Tally, limit: float) -> dict[str, Any]:
    """Judgements without a verdict, probes too; and the pairs that count in nothing for lack of an order's verdict.

    A canary's pairs, and lists whose verdict was copied from one, are no system's: they are in ``canaries``.
    """
    canaries = tally.contest.canaries
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


def _canaries(tally: Tally) -> dict[str, dict[str, Estimate | None]]:
    """What each canary did to the judges: shares of the judgements that show it."""
    found = {}
    for name in sorted(tally.contest.canaries):
        shown = [one for one in tally.judgements if name in one.order]
        copied = tally.joined((one.row, float(one.copied == name)) for one in shown)
        unscored = tally.joined((one.row, float(one.ranks is None)) for one in shown)
        found[name] = tally.estimates({"copied": copied, "unscored": unscored}, shares=True)
    return found


def _counted(words: Iterable[str]) -> dict[str, int]:
    """Most frequent first; equals by name, so that the judgements' order changes nothing."""
    return dict(sorted(Counter(words).items(), key=lambda item: (-item[1], item[0])))


def _attacks(tally: Tally) -> dict[str, dict[str, dict[str, Any]]]:
    """Contestant, kind of attack or change: how many answers and judgements, and the win rate of those rows.

    The win rate is that of pairs; where none were judged, that of lists.
    """
    rows: dict[tuple[str, str], Counter[str]] = {}
    for one in tally.judgements:
        if not one.named:
            for name, kinds in one.touched.items():
                for kind in kinds:
                    rows.setdefault((name, kind), Counter())[one.row] += 1
    samples = {}
    for (name, kind), touched in rows.items():
        outcomes = tally.values(name, "win") or tally.values(name, "above")
        samples[name, kind] = tally.sample({row: win for row, win in outcomes.items() if row in touched})
    found = tally.estimates(samples, shares=True)
    return {
        one.name: {
            kind: {
                "answers": len(rows[name, kind]),
                "judgements": rows[name, kind].total(),
                "win_rate": found[name, kind],
            }
            for name, kind in sorted(rows)
            if name == one.name
        }
        for one in tally.contestants
        if any(name == one.name for name, _ in rows)
    }


def _jury(tally: Tally) -> dict[str, Any] | None:
    """How far several judges agree beyond chance on win, tie or loss: in pairs, or else in lists.

    In lists, any two contestants of a row are an item, and either may be called the winner: chance is that of judges
    who prefer the one as often as the other. Items with one judge's vote alone say nothing and are left out.
    """
    pairwise, listwise = (len(tally.verdicts.judges[design]) for design in DESIGNS)
    if max(pairwise, listwise) < 2:
        return None
    votes = list(_pair_votes(tally) if pairwise > 1 else _list_votes(tally))
    items = [(row, counts) for row, means in votes if sum(counts := _counts(means)) > 1]
    kappa = None
    if items:
        table: Any = np.array([counts for _, counts in items])
        measure = fleiss_kappa if pairwise > 1 else _either_way
        kappa = agreement_ci(measure, [table], [tally.clusters[row] for row, _ in items], tally.settings)
    return {"fleiss_kappa": metric_dict(kappa), "judges": pairwise if pairwise > 1 else listwise}


def _either_way(counts: npt.NDArray[np.int64]) -> float | None:
    """Fleiss' kappa with each item seen from both sides, so that the contestants' order changes nothing."""
    return fleiss_kappa(np.concatenate([counts, counts[:, ::-1]]))


Votes = Iterable[tuple[str, list[float]]]


def _pair_votes(tally: Tally) -> Votes:
    for row in tally.contest.rows:
        for by_judge in tally.verdicts.pairs.get(row.id, {}).values():
            yield row.id, [pair.mean for pair in by_judge.values()]


def _list_votes(tally: Tally) -> Votes:
    names = [one.name for one in tally.contestants]
    for row in tally.contest.rows:
        lists: Mapping[str, Any] = tally.verdicts.lists.get(row.id, {})
        for at, name in enumerate(names):
            for other in names[at + 1 :]:
                means = [list_above({judge: found}, name, other) for judge, found in lists.items()]
                yield row.id, [mean for mean in means if mean is not None]


def _counts(means: list[float]) -> tuple[int, int, int]:
    wins, losses = sum(mean > 0.5 for mean in means), sum(mean < 0.5 for mean in means)
    return wins, len(means) - wins - losses, losses
