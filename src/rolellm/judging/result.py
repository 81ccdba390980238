"""From judgements to a result: win rates, ranks, tests and the judge's own faults, in one JSON object.

Every mean has its interval by a bootstrap over questions (see `rolellm.evaluation.statistics`). What counts as a win, a
rank or a verdict is said in `rolellm.judging.aggregate`. A figure of which there is nothing is ``None``, never 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from rolellm.evaluation.score import metric_dict
from rolellm.evaluation.statistics.bootstrap import Bootstrap, Sample
from rolellm.evaluation.statistics.length import length_control
from rolellm.evaluation.statistics.paired import PairedTest, holm, paired_test, sign_test
from rolellm.evaluation.statistics.ranking import bradley_terry_ci
from rolellm.judging.aggregate import LEAST_AGREEMENT, Tally, list_above
from rolellm.judging.diagnostics import diagnose
from rolellm.judging.folder import DatasetName
from rolellm.judging.settings import JudgingSettings
from rolellm.judging.types import Comparison, Judgement

Result = Mapping[str, Any]
#: The fewest rows on which a canary has to lose for sure (our choice).
LEAST_LOSSES = 20


def _is_valid(result: Result, tally: Tally) -> bool:
    """Whether judgements were made, no more of them than allowed lack a verdict, and some judge of each kind is fit."""
    unscored = result["diagnostics"]["unscored"]
    rates = [one["pairwise"]["win_rate"] for one in result["models"] if one["kind"] == "model" and one["pairwise"]]
    lists = {judge for found in tally.verdicts.lists.values() for judge in found}
    return (
        bool(unscored["of"])
        and unscored["share"] <= unscored["limit"]
        and (any(rates) or not rates)
        and not (lists and lists == set(tally.verdicts.undecided["listwise"]))
    )


def _problems(result: Result, tally: Tally, *, valid: bool) -> list[str]:
    """In words: first what makes the run invalid, then what its figures must be read with."""
    told = (_unfit(result, tally), _unscored(result), _canaries(result), _withheld(result), _flaws(result))
    return [problem for found in told for problem in found] + (_uncompared(result) if valid else [])


def _unfit(result: Result, tally: Tally) -> Iterator[str]:
    pairs = result["diagnostics"]["position"]["pairwise"] or {"by_judge": {}}
    for judge, agreed in pairs["by_judge"].items():
        if agreed and agreed["mean"] < LEAST_AGREEMENT:
            yield (
                f"the judge {judge} is not fit to judge pairs: its two orders agree for only {agreed['mean']:.1%} of "
                f"the pairs; random verdicts would agree for {LEAST_AGREEMENT:.1%} or more"
            )
    for design, judges in tally.verdicts.undecided.items():
        what = "judge pairs" if design == "pairwise" else "rank lists"
        for judge in judges:
            yield f"the judge {judge} is not fit to {what}: it ties all of them, so its verdicts say nothing"


def _withheld(result: Result) -> list[str]:
    found = [
        f"{one['name']} ({one['pairwise']['consistency']['mean']:.1%})"
        for one in result["models"]
        if one["pairwise"]
        and one["pairwise"]["win_rate"] is None
        and one["pairwise"]["consistency"]["mean"] < LEAST_AGREEMENT
    ]
    words = f"win rates are withheld where the two orders agree in less than {LEAST_AGREEMENT:.1%} of the pairs: "
    return [words + ", ".join(found)] if found else []


def _unscored(result: Result) -> list[str]:
    unscored = result["diagnostics"]["unscored"]
    if not unscored["of"]:
        return ["nothing was judged"]
    if unscored["share"] <= unscored["limit"]:
        return []
    return [
        f"{unscored['count']:,} of {unscored['of']:,} judgements ({unscored['share']:.1%}) have no verdict; "
        f"a run with more than {unscored['limit']:.1%} is invalid"
    ]


def _canaries(result: Result) -> Iterator[str]:
    """A canary has to lose: a judge that is not seen to prefer answers, and those of the right role, is not fit."""
    open_yet: dict[str, list[str]] = {}
    for one in result["models"]:
        if one["kind"] != "canary":
            continue
        called = one["name"] if one["name"].startswith("canary") else f"canary {one['name']}"
        copied = result["diagnostics"]["canaries"][one["name"]]["copied"]
        if copied is not None and copied["mean"]:
            yield (
                f"the judge repeated a verdict from {called} in {copied['mean']:.1%} of the {copied['n']:,} judgements "
                "that showed it: text inside an answer can bind this judge"
            )
        pairs, lists = one["pairwise"] or {}, one["listwise"] or {}
        rates = [(f"the judge {judge}", rate, "pairs") for judge, rate in pairs.get("by_judge", {}).items()]
        for judge, rate, where in (*rates, ("the judge", lists.get("win_rate"), "lists")):
            low, high = (rate and rate["ci95"]) or (0, 0)
            if not rate or high < 0.5:
                continue
            wins = f"{called} should lose, and wins {rate['mean']:.1%} [{low:.1%}, {high:.1%}] of its {where}"
            if rate["mean"] >= 0.5 or rate["n"] >= LEAST_LOSSES:
                yield (
                    f"{judge} does not pass the fitness test: {wins} against {result['baseline']}; verdicts of this "
                    "judge say little about quality"
                )
            else:
                open_yet.setdefault(judge, []).append(called)
        strength = lists.get("strength")
        # Where one question gives no interval, nothing is certain.
        if result["baseline"] is None and strength and strength["ci95"] and strength["ci95"][0] > 0:
            yield (
                f"{called} ranks above the mean of all systems in the lists: this judge prefers a "
                "non-answer, so its verdicts say little about quality"
            )
    for judge, names in open_yet.items():
        # On few rows an interval reaches far, however well the judge does.
        yield (
            f"{judge} is not shown to be fit: on so few rows, the intervals of {', '.join(names)} reach one half, "
            f"though all should lose; judge {LEAST_LOSSES} rows or more"
        )


def _flaws(result: Result) -> Iterator[str]:
    for judge in result["judges"]:
        if judge["flagged"]:
            yield (
                f"the judge {judge['name']} is of the same model family ({judge['family']}) as "
                f"{', '.join(judge['flagged'])}: judges are known to favor their own"
            )
    for one in result["models"]:
        if one["kind"] != "canary" and one["answered"] < result["rows"]:
            yield (
                f"{one['name']} answered {one['answered']:,} of {result['rows']:,} rows: its figures cover only those"
            )


def _uncompared(result: Result) -> list[str]:
    """What was to be judged and was not: a table without its line would pass over it in silence."""
    asked = {design for judge in result["judges"] for design in judge["prompts"] or ()}
    lists = result["diagnostics"]["judgements"]["listwise"]
    found = ["no list was judged: no row was answered by all systems"] if "listwise" in asked and not lists else []
    return found + [
        f"{one['name']} has no verdict: no row was answered by both it and {result['baseline'] or 'all others'}, "
        "or no request returned one"
        for one in result["models"]
        if one["kind"] == "model" and one["pairwise"] is None and one["listwise"] is None
    ]


def standings(
    tally: Tally, judges: Sequence[Mapping[str, Any]], name_effects: Mapping[str, dict[str, Any] | None]
) -> list[dict[str, Any]]:
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
        for one in tally.comparison.systems
    ]


def _pairwise(tally: Tally, name_effects: Mapping[str, dict[str, Any] | None]) -> dict[str, dict[str, Any]]:
    names = [
        one.name for one in tally.comparison.systems if tally.values(one.name, "win") or one.name in tally.withheld
    ]
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
            "by_judge": {key[2]: one for key, one in found.items() if key[:2] == ("judge", name) and one is not None},
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
    leads: dict[int, float] = defaultdict(float)
    for row, win in wins.items():
        leads[tally.clusters[row]] += win - 0.5
    won, lost = (sum(win > 0.5 for win in wins.values()), sum(win < 0.5 for win in wins.values()))
    return {
        "wins": won / len(wins),
        "ties": (len(wins) - won - lost) / len(wins),
        "losses": lost / len(wins),
        "sign_test_p": sign_test(
            sum(lead > _ZERO for lead in leads.values()), sum(lead < -_ZERO for lead in leads.values())
        ),
    }


# Sums of thirds (three judges' means) need not come out at 0 to the last bit.
_ZERO = 1e-9


def _length(tally: Tally, name: str) -> dict[str, Any]:
    if name in tally.withheld:
        tied = tally.verdicts.undecided["pairwise"] and "the judge ties every pair"
        problem = tied or "both orders agree in too few pairs"
        return {"lc_win_rate": None, "length_coefficient": None, "length_problem": problem}
    wins = tally.values(name, "win")
    lengths, others = (tally.lengths[one] for one in (name, tally.verdicts.baseline or ""))
    control = length_control(
        list(wins.values()),
        [lengths[row] for row in wins],
        [others[row] for row in wins],
        [tally.clusters[row] for row in wins],
        tally.settings,
    )
    return {
        "lc_win_rate": metric_dict(control.rate),
        "length_coefficient": metric_dict(control.coefficient),
        "length_problem": control.problem,
    }


def _listwise(tally: Tally) -> dict[str, dict[str, Any]]:
    ranks = {one.name: values for one in tally.comparison.systems if (values := tally.values(one.name, "rank"))}
    if not ranks:
        return {}
    means = tally.estimates({name: tally.joined(values.items()) for name, values in ranks.items()})
    above = tally.estimates({name: tally.joined(tally.values(name, "above").items()) for name in ranks}, shares=True)
    places, strengths = tally.by_place(ranks), _strengths(tally, list(ranks))
    figures = {"average_rank": means, "win_rate": above, "strength": strengths}
    return {name: {**{key: of[name] for key, of in figures.items()}, **places[name]} for name in ranks}


def _strengths(tally: Tally, names: Sequence[str]) -> dict[str, dict[str, Any] | None]:
    """Bradley-Terry strengths from all pairs that the lists rank, each row counting once a pair.

    The models are fitted without the canaries, and each canary with the models alone, so that attackers change nothing.
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


Values = Mapping[str, float]


def significance(tally: Tally) -> list[dict[str, Any]]:
    """The ``tests`` of a result: every pair of systems under each measure; canaries are left out.

    A difference is that of ``a`` less ``b``, over the rows that both have. The baseline's win rate is .5, against
    itself; so a system tested against it is tested against .5. Holm's correction is over all tests of a measure.
    """
    baseline = tally.verdicts.baseline
    names = [one.name for one in tally.comparison.systems if one.kind == "model"]
    wins = {name: tally.values(name, "win") for name in names}
    if baseline is not None:
        names.append(baseline)
        wins[baseline] = {row: 0.5 for values in wins.values() for row in values}
    measures = {"win_rate": wins, "average_rank": {name: tally.values(name, "rank") for name in names}}
    found = []
    for measure, values in measures.items():
        pairs = [
            (a, b, paired(values[a], values[b], tally.clusters, tally.settings)) for a, b in combinations(values, 2)
        ]
        tests = [{"a": a, "b": b, "difference": metric_dict(one.difference), "p": one.p} for a, b, one in pairs if one]
        found += adjusted([{"measure": measure, **test} for test in tests])
    return found


def paired(first: Values, second: Values, clusters: Mapping[str, int], settings: Bootstrap) -> PairedTest | None:
    """A test of two sets of values by row id, over the rows that both have; ``None`` where there are none."""
    rows = [row for row in first if row in second]
    if not rows:
        return None
    questions = [clusters[row] for row in rows]
    return paired_test([first[row] for row in rows], [second[row] for row in rows], questions, settings)


def adjusted(tests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tests with ``p_adjusted`` after their ``p``, by Holm's correction over all that have one."""
    known = [test["p"] for test in tests if test["p"] is not None]
    corrected = iter(holm(known) if known else [])
    return [{**test, "p_adjusted": None if test["p"] is None else next(corrected)} for test in tests]


def summarize(
    comparison: Comparison,
    judgements: Sequence[Judgement],
    judges: Sequence[Mapping[str, Any]],
    settings: JudgingSettings,
    data: DatasetName | None = None,
) -> dict[str, Any]:
    """Everything a judging run found, as the contract's JSON object.

    Args:
        comparison: Rows, systems and answers.
        judgements: In any order, those without a verdict too.
        judges: Each with ``name``, ``prompts``, ``model``, ``family`` and ``flagged``, the systems of its own family.
        settings: Resamples, seed, and how many missing verdicts are too many.
        data: The dataset, to be named with the result.
    """
    tally, data = Tally(comparison, judgements, settings), data or DatasetName()
    diagnostics, name_effects = diagnose(tally, settings.max_unscored)
    result = {
        "config": data.config,
        "split": data.split,
        "rows": len(comparison.rows),
        "questions": len(set(tally.clusters.values())),
        "baseline": tally.verdicts.baseline,
        "judges": list(judges),
        "models": standings(tally, judges, name_effects),
        "tests": significance(tally),
        "diagnostics": diagnostics,
    }
    valid = _is_valid(result, tally)
    return {**result, "valid": valid, "problems": _problems(result, tally, valid=valid)}
