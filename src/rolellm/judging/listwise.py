"""Each system's figures: win rate in pairs, rank and strength in lists, by role, category and judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rolellm.evaluation.score import metric_dict
from rolellm.evaluation.statistics.bootstrap import Sample
from rolellm.evaluation.statistics.length import LengthControl, length_control
from rolellm.evaluation.statistics.paired import sign_test
from rolellm.evaluation.statistics.ranking import bradley_terry_ci
from rolellm.judging.aggregate import Tally, list_above

Judges = Sequence[Mapping[str, Any]]


def standings(tally: Tally, judges: Judges, name_effects: Mapping[str, dict[str, Any] | None]) -> list[dict[str, Any]]:
    """The ``models`` of a result, in the comparison's order.

    Args:
        tally: What was judged.
        judges: Each with ``name`` and ``flagged``, the systems of its own family.
        name_effects: System to what the probes found.
    """
    answers = tally.comparison.answers
    characters = tally.estimates({name: tally.joined(lengths.items()) for name, lengths in tally.lengths.items()})
    pairwise, listwise = _pairwise(tally, name_effects), _listwise(tally)
    return [
        {
            "name": one.name,
            "kind": one.kind,
            "model": one.model,
            "family": one.family,
            "self_judged_by": [judge["name"] for judge in judges if one.name in judge["flagged"]],
            "answered": sum(row.id in answers[one.name] for row in tally.comparison.rows),
            "characters": characters[one.name],
            "pairwise": pairwise.get(one.name),
            "listwise": listwise.get(one.name),
        }
        for one in tally.systems
    ]


def length_controlled(tally: Tally, name: str) -> LengthControl:
    """A system's win rate with the effect of its answers' lengths taken out; it has a win in one row at least."""
    wins, baseline = tally.values(name, "win"), tally.verdicts.baseline
    lengths, others = tally.lengths[name], tally.lengths[baseline or ""]
    return length_control(
        list(wins.values()),
        [lengths[row] for row in wins],
        [others[row] for row in wins],
        [tally.clusters[row] for row in wins],
        tally.settings,
    )


def _pairwise(tally: Tally, name_effects: Mapping[str, dict[str, Any] | None]) -> dict[str, dict[str, Any]]:
    names = [one.name for one in tally.systems if tally.values(one.name, "win") or one.name in tally.withheld]
    wins = {name: tally.values(name, "win") for name in names}
    samples: dict[tuple[str, ...], Sample] = {}
    for name, values in wins.items():
        samples["win_rate", name] = tally.joined(values.items())
        pairs = [
            (row.id, judge, pair)
            for row in tally.comparison.rows
            for judge, pair in tally.verdicts.pairs.get(row.id, {}).get(name, {}).items()
        ]
        samples["consistency", name] = tally.joined((row, float(pair.agrees)) for row, _, pair in pairs)
        for judge in tally.verdicts.judges["pairwise"] if values else ():
            by_judge = [(row, pair.mean) for row, its, pair in pairs if its == judge]
            samples["judge", name, judge] = tally.joined(by_judge)
    found = tally.estimates(samples, shares=True)
    places = tally.by_place(wins, shares=True)
    return {
        name: {
            "win_rate": found["win_rate", name],
            **_shares(tally, values),
            **_length(tally, name),
            "consistency": found["consistency", name],
            **places[name],
            "by_judge": {
                judge: estimate
                for judge in tally.verdicts.judges["pairwise"]
                if (estimate := found.get(("judge", name, judge))) is not None
            },
            "name_effect": name_effects.get(name),
        }
        for name, values in wins.items()
    }


def _shares(tally: Tally, wins: Mapping[str, float]) -> dict[str, float | None]:
    """Shares of rows won, tied and lost, and a sign test over questions.

    The test asks of each question, not of each row, whether it was won: rows that share a question are not independent.
    """
    if not wins:
        return dict.fromkeys(("wins", "ties", "losses", "sign_test_p"))
    by_question: dict[int, float] = {}
    for row, win in wins.items():
        question = tally.clusters[row]
        by_question[question] = by_question.get(question, 0.0) + win - 0.5
    won, lost = (sum(win > 0.5 for win in wins.values()), sum(win < 0.5 for win in wins.values()))
    return {
        "wins": won / len(wins),
        "ties": (len(wins) - won - lost) / len(wins),
        "losses": lost / len(wins),
        "sign_test_p": sign_test(
            sum(lead > _ZERO for lead in by_question.values()), sum(lead < -_ZERO for lead in by_question.values())
        ),
    }


# Sums of thirds (three judges' means) need not come out at 0 to the last bit.
_ZERO = 1e-9


def _length(tally: Tally, name: str) -> dict[str, Any]:
    if name in tally.withheld:
        tied = tally.verdicts.undecided["pairwise"] and "the judge ties every pair"
        problem = tied or "both orders agree in too few pairs"
        return {"lc_win_rate": None, "length_coefficient": None, "length_problem": problem}
    control = length_controlled(tally, name)
    return {
        "lc_win_rate": metric_dict(control.rate),
        "length_coefficient": metric_dict(control.coefficient),
        "length_problem": control.problem,
    }


def _listwise(tally: Tally) -> dict[str, dict[str, Any]]:
    ranks = {one.name: values for one in tally.systems if (values := tally.values(one.name, "rank"))}
    if not ranks:
        return {}
    means = tally.estimates({name: tally.joined(values.items()) for name, values in ranks.items()})
    above = tally.estimates({name: tally.joined(tally.values(name, "above").items()) for name in ranks}, shares=True)
    places, strengths = tally.by_place(ranks), _strengths(tally, list(ranks))
    return {
        name: {
            "average_rank": means[name],
            "win_rate": above[name],
            "strength": strengths[name],
            **places[name],
        }
        for name in ranks
    }


def _strengths(tally: Tally, names: Sequence[str]) -> dict[str, dict[str, Any] | None]:
    """Bradley-Terry strengths from all pairs that the lists rank, each row counting once a pair.

    The models are fitted without the canaries, and each canary with the models alone, so that attackers change nobody.
    """
    aside = tally.comparison.canaries
    models = [name for name in names if name not in aside]
    found = _fitted(tally, models)
    for name in names:
        if name in aside:
            found[name] = _fitted(tally, [*models, name])[name]
    return found


def _fitted(tally: Tally, names: Sequence[str]) -> dict[str, dict[str, Any] | None]:
    if len(names) < 2:
        return dict.fromkeys(names)
    tables = pair_tables(tally, names)
    baseline = tally.verdicts.baseline
    against = names.index(baseline) if baseline in names else None
    try:
        intervals = bradley_terry_ci(tables, tally.settings, against=against)
    except ValueError:
        # No chain of lists connects all of them, so nothing says who is stronger.
        return dict.fromkeys(names)
    return {name: metric_dict(interval) for name, interval in zip(names, intervals, strict=True)}


def pair_tables(tally: Tally, names: Sequence[str]) -> npt.NDArray[np.float64]:
    """Shape (questions, k, k): in how many rows of a question one of k systems was ranked above another.

    A row in which lists or judges disagree counts as the share of them; questions without a list are left out.
    """
    tables: dict[int, npt.NDArray[np.float64]] = {}
    for row in tally.comparison.rows:
        lists = tally.verdicts.lists.get(row.id)
        if not lists:
            continue
        table = tables.setdefault(tally.clusters[row.id], np.zeros((len(names), len(names))))
        for a, name in enumerate(names):
            for b in range(a + 1, len(names)):
                share = list_above(lists, name, names[b])
                if share is not None:
                    table[a, b] += share
                    table[b, a] += 1 - share
    return np.stack([tables[question] for question in sorted(tables)])
