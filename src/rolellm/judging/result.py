"""From judgements to a result: win rates, ranks, tests and the judge's own faults, in one JSON object.

Every mean has its interval by a bootstrap over questions (see `rolellm.evaluation.statistics`). What counts as a win, a
rank or a verdict is said in `outcomes`. A figure of which there is nothing is ``None``, never 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, TypeGuard

from rolellm.evaluation.score import metric_dict
from rolellm.evaluation.statistics.bootstrap import Bootstrap
from rolellm.evaluation.statistics.paired import PairedTest, holm, paired_test
from rolellm.judging.aggregate import LEAST_AGREEMENT, Tally
from rolellm.judging.diagnostics import diagnose
from rolellm.judging.folder import DatasetName
from rolellm.judging.listwise import standings
from rolellm.judging.settings import JudgingSettings
from rolellm.judging.types import Comparison, Judgement

Result = Mapping[str, Any]


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
    told = (_unfit(result, tally), _unscored(result), _withheld(result), _canaries(result), _flaws(result))
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
    """A canary's answer is no answer: where it wins, the judge can be won without one."""
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
        for rate, where in ((pairs.get("win_rate"), "pairs"), (lists.get("win_rate"), "lists")):
            if _above(rate, 0.5):
                low, high = rate["ci95"]
                yield (
                    f"{called} wins {rate['mean']:.1%} [{low:.1%}, {high:.1%}] of its {where} against "
                    f"{result['baseline']}: this judge prefers a non-answer, so its verdicts say little about quality"
                )
        if result["baseline"] is None and _above(lists.get("strength"), 0):
            yield (
                f"{called} ranks above the mean of all systems in the lists: this judge prefers a "
                "non-answer, so its verdicts say little about quality"
            )


def _above(estimate: Mapping[str, Any] | None, value: float) -> TypeGuard[Mapping[str, Any]]:
    """Whether a whole interval is above a value; where one question gives none, nothing is certain."""
    return estimate is not None and estimate["ci95"] is not None and bool(estimate["ci95"][0] > value)


def _flaws(result: Result) -> Iterator[str]:
    for judge in result["judges"]:
        if judge["flagged"]:
            yield (
                f"the judge {judge['name']} is of the same model family ({judge['family']}) as "
                f"{', '.join(judge['flagged'])}: judges are known to favor their own"
            )
    for one in result["models"]:
        if one["answered"] < result["rows"]:
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


Values = Mapping[str, float]


def significance(tally: Tally) -> list[dict[str, Any]]:
    """The ``tests`` of a result: every pair of systems under each measure; canaries are left out.

    A difference is that of ``a`` less ``b``, over the rows that both have. The baseline's win rate is .5, against
    itself; so a system tested against it is tested against .5. Holm's correction is over all tests of a measure.
    """
    baseline = tally.verdicts.baseline
    names = [one.name for one in tally.systems if one.kind == "model"]
    wins = {name: tally.values(name, "win") for name in names}
    if baseline is not None:
        names.append(baseline)
        wins[baseline] = {row: 0.5 for values in wins.values() for row in values}
    ranks = {name: tally.values(name, "rank") for name in names}
    return [*_tests("win_rate", wins, tally), *_tests("average_rank", ranks, tally)]


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


def _tests(measure: str, values: Mapping[str, Values], tally: Tally) -> list[dict[str, Any]]:
    tests = []
    for a, b in combinations(values, 2):
        test = paired(values[a], values[b], tally.clusters, tally.settings)
        if test is not None:
            difference = metric_dict(test.difference)
            tests.append({"measure": measure, "a": a, "b": b, "difference": difference, "p": test.p})
    return adjusted(tests)


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
        judges: Each with ``name``, ``prompts``, ``model`` and ``family``.
        settings: Resamples, seed, and how many missing verdicts are too many.
        data: The dataset, to be named with the result.
    """
    tally, data = Tally(comparison, judgements, settings.bootstrap), data or DatasetName()
    flagged = [_flagged(judge, comparison) for judge in judges]
    diagnostics, name_effects = diagnose(tally, settings.max_unscored)
    result = {
        "config": data.config,
        "split": data.split,
        "rows": len(comparison.rows),
        "questions": len(set(tally.clusters.values())),
        "baseline": tally.verdicts.baseline,
        "judges": flagged,
        "models": standings(tally, flagged, name_effects),
        "tests": significance(tally),
        "diagnostics": diagnostics,
    }
    valid = _is_valid(result, tally)
    return {**result, "valid": valid, "problems": _problems(result, tally, valid=valid)}


def _flagged(judge: Mapping[str, Any], comparison: Comparison) -> dict[str, Any]:
    """A judge with the systems of its own family, whom it may favor; an unknown family is nobody's."""
    family = judge.get("family")
    same = judge.get("flagged", [one.name for one in comparison.systems if family and one.family == family])
    known = {key: judge.get(key) for key in ("name", "prompts", "model", "family")}
    return {**judge, **known, "flagged": same}
