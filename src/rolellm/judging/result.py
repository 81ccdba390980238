"""From judgements to a result: win rates, ranks, tests and the judge's own faults, in one JSON object.

Every mean has its interval by a bootstrap over questions (see `rolellm.evaluation.statistics`). What counts as a win, a
rank or a verdict is said in `outcomes`. A figure of which there is nothing is ``None``, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from rolellm.core.errors import SettingsError
from rolellm.evaluation.score import metric_dict
from rolellm.evaluation.statistics import Bootstrap, PairedTest, holm, paired_test
from rolellm.judging.aggregate import LEAST_AGREEMENT, Tally, make_tally
from rolellm.judging.diagnostics import diagnose
from rolellm.judging.listwise import standings
from rolellm.judging.types import Comparison, Judgement

# --- What a reader must know before the figures of a judging run: whether it is valid, and what speaks against it


Result = Mapping[str, Any]


def is_valid(result: Result) -> bool:
    """Whether judgements were made, no more of them than allowed lack a verdict, and orders agree in enough pairs."""
    unscored = result["diagnostics"]["unscored"]
    rates = [one["pairwise"]["win_rate"] for one in result["models"] if one["kind"] == "model" and one["pairwise"]]
    return bool(unscored["of"]) and unscored["share"] <= unscored["limit"] and (any(rates) or not rates)


def problems(result: Result) -> list[str]:
    """In words: first what makes the run invalid, then what its figures must be read with."""
    told = (_unfit, _unscored, _withheld, _canaries, _self_judged, _unanswered, _uncompared)
    return [problem for find in told for problem in find(result)]


def _unfit(result: Result) -> list[str]:
    pairs = result["diagnostics"]["position"]["pairwise"] or {"by_judge": {}}
    return [
        f"the judge {judge} is not fit to judge pairs: its two orders agree for only {agreed['mean']:.1%} of the "
        f"pairs; random verdicts would agree for {LEAST_AGREEMENT:.1%} or more"
        for judge, agreed in pairs["by_judge"].items()
        if agreed and agreed["mean"] < LEAST_AGREEMENT
    ]


def _withheld(result: Result) -> list[str]:
    found = [
        f"{one['name']} ({one['pairwise']['consistency']['mean']:.1%})"
        for one in result["models"]
        if one["pairwise"] and one["pairwise"]["win_rate"] is None
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


def _canaries(result: Result) -> list[str]:
    """A canary's answer is no answer: where it wins, the judge can be won without one."""
    found = []
    for one in result["models"]:
        if one["kind"] != "canary":
            continue
        called = one["name"] if one["name"].startswith("canary") else f"canary {one['name']}"
        copied = result["diagnostics"]["canaries"][one["name"]]["copied"]
        if copied is not None and copied["mean"]:
            found.append(
                f"the judge repeated a verdict from {called} in {copied['mean']:.1%} of the {copied['n']:,} judgements "
                "that showed it: text inside an answer can bind this judge"
            )
        pairs, lists = one["pairwise"] or {}, one["listwise"] or {}
        for estimate, where in ((pairs.get("win_rate"), "pairs"), (lists.get("win_rate"), "lists")):
            if estimate is not None and _low(estimate) > 0.5:
                found.append(
                    f"{called} wins {estimate['mean']:.1%}{_ends(estimate)} of its {where} against "
                    f"{result['baseline']}: this judge prefers a non-answer, so its verdicts say little about quality"
                )
        strength = lists.get("strength")
        if result["baseline"] is None and strength is not None and _low(strength) > 0:
            found.append(
                f"{called} ranks above the mean of all systems in the lists: this judge prefers a "
                "non-answer, so its verdicts say little about quality"
            )
    return found


def _self_judged(result: Result) -> list[str]:
    return [
        f"the judge {judge['name']} is of the same model family ({judge['family']}) as {', '.join(judge['flagged'])}: "
        "judges are known to favor their own"
        for judge in result["judges"]
        if judge["flagged"]
    ]


def _unanswered(result: Result) -> list[str]:
    return [
        f"{one['name']} answered {one['answered']:,} of {result['rows']:,} rows: its figures cover only those"
        for one in result["models"]
        if one["answered"] < result["rows"]
    ]


def _uncompared(result: Result) -> list[str]:
    """What was to be judged and was not: a table without its line would pass over it in silence."""
    if not is_valid(result):
        return []
    asked = {design for judge in result["judges"] for design in judge["prompts"] or ()}
    lists = result["diagnostics"]["judgements"]["listwise"]
    found = ["no list was judged: no row was answered by all systems"] if "listwise" in asked and not lists else []
    return found + [
        f"{one['name']} has no verdict: no row was answered by both it and {result['baseline'] or 'all others'}, "
        "or no request returned one"
        for one in result["models"]
        if one["kind"] == "model" and one["pairwise"] is None and one["listwise"] is None
    ]


def _low(estimate: Mapping[str, Any]) -> float:
    """The interval's lower end; where one question gives none, nothing is certain."""
    return float("-inf") if estimate["ci95"] is None else float(estimate["ci95"][0])


def _ends(estimate: Mapping[str, Any]) -> str:
    low, high = estimate["ci95"]
    return f" [{low:.1%}, {high:.1%}]"


# --- Which systems differ: paired tests between all of them, corrected for how many tests there are


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


# --- From judgements to a result: win rates, ranks, tests and the judge's own faults, in one JSON object


@dataclass(frozen=True, slots=True)
class ResultOptions:
    """How to summarise, and what was judged.

    Attributes:
        resamples: Of every bootstrap and permutation test.
        seed: Of them.
        max_unscored: Share of judgements without a verdict above which a run is not valid.
        config: The data set's config; named with the result.
        split: Its split, likewise.
    """

    resamples: int = 2000
    seed: int = 0
    max_unscored: float = 0.01
    config: str | None = None
    split: str | None = None

    def __post_init__(self) -> None:
        _ = self.bootstrap  # refuses bad settings now, before any work
        if not 0 <= self.max_unscored <= 1:
            raise SettingsError(f"max_unscored must lie between 0 and 1, not {self.max_unscored}")

    @property
    def bootstrap(self) -> Bootstrap:
        """Settings of the intervals, which are 95 % ones throughout."""
        return Bootstrap(self.resamples, self.seed)


def summarise(
    comparison: Comparison,
    judgements: Sequence[Judgement],
    judges: Sequence[Mapping[str, Any]],
    options: ResultOptions | None = None,
) -> dict[str, Any]:
    """Everything a judging run found, as the contract's JSON object.

    Args:
        comparison: Rows, systems and answers.
        judgements: In any order, those without a verdict too.
        judges: Each with ``name``, ``prompts``, ``model`` and ``family``.
        options: How.

    Raises:
        DataError: For a judgement of a row or a system that the comparison does not have.
    """
    options = options or ResultOptions()
    tally = make_tally(comparison, judgements, options.bootstrap)
    flagged = [_flagged(judge, comparison) for judge in judges]
    diagnostics, name_effects = diagnose(tally, options.max_unscored)
    result = {
        "config": options.config,
        "split": options.split,
        "rows": len(comparison.rows),
        "questions": len(set(tally.clusters.values())),
        "baseline": tally.verdicts.baseline,
        "judges": flagged,
        "models": standings(tally, flagged, name_effects),
        "tests": significance(tally),
        "diagnostics": diagnostics,
    }
    return {**result, "valid": is_valid(result), "problems": problems(result)}


def _flagged(judge: Mapping[str, Any], comparison: Comparison) -> dict[str, Any]:
    """A judge with the systems of its own family, whom it may favour; an unknown family is nobody's."""
    family = judge.get("family")
    same = judge.get("flagged", [one.name for one in comparison.systems if family and one.family == family])
    known = {key: judge.get(key) for key in ("name", "prompts", "model", "family")}
    return {**judge, **known, "flagged": same}
