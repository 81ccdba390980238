"""From judgements to a result: win rates, ranks, paired tests, faults of the judging, what a reader must know first.

`rolellm.judging.verdicts` defines a win, a rank and a verdict. Every mean has its intervals (see
`rolellm.scoring.statistics.intervals`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, groupby
from statistics import linear_regression
from typing import Any, Final

from rolellm.judging.records import Comparison, DatasetName, Judgement
from rolellm.judging.result import (
    Diagnostics,
    JudgedBy,
    JudgingResult,
    Listwise,
    Pairwise,
    SystemFigures,
    SystemTest,
    Unscored,
)
from rolellm.judging.settings import JudgingSettings
from rolellm.judging.verdicts import DESIGNS, LEAST_AGREEMENT, RowValues, Tally, compute_sign
from rolellm.scoring.statistics.agreement import compute_fleiss_kappa
from rolellm.scoring.statistics.intervals import NONE, Interval, adjust_p_values
from rolellm.scoring.statistics.logistic_fits import fit_length_control

#: The fewest rows on which a canary that wins less than half, but not for sure, counts against a judge.
LEAST_LOSSES: Final = 20


def summarize_judgements(
    comparison: Comparison,
    judgements: Sequence[Judgement],
    judges: Sequence[JudgedBy],
    settings: JudgingSettings,
    dataset: DatasetName | None = None,
) -> JudgingResult:
    """Compute the result of a judging run.

    Args:
        comparison: Rows, systems and answers.
        judgements: In any order, with and without a verdict.
        judges: The judge models.
        settings: The largest share of missing verdicts.
        dataset: The dataset to name in the result.
    """
    tally = Tally(comparison, judgements)
    dataset = dataset or DatasetName()
    figures = tuple(_build_figures(tally, judges))
    tests = tuple(compare_systems(tally))
    diagnostics = measure_diagnostics(tally, settings.max_unscored)
    result = JudgingResult(
        tuple(judges),
        figures,
        tests,
        diagnostics,
        valid=_is_valid(figures, diagnostics),
        config=dataset.config,
        split=dataset.split,
        baseline=tally.verdicts.baseline,
        rows=len(comparison.rows),
        questions=len(set(tally.questions.values())),
    )
    return replace(result, problems=tuple(_describe_problems(result)))


def _build_figures(tally: Tally, judges: Sequence[JudgedBy]) -> Iterator[SystemFigures]:
    """Build the figures of each system, in the comparison's order."""
    for system in tally.comparison.systems:
        name = system.name
        pairwise = None
        if tally.values(name, "win") or name in tally.withheld:
            pairwise = _measure_pairs(tally, name)
        own_judges = [judge.name for judge in judges if name in judge.flagged]
        yield SystemFigures(
            name,
            system.kind,
            system.model,
            system.family,
            tuple(own_judges),
            len(tally.lengths[name]),
            pairwise,
            _measure_lists(tally, name),
        )


def _measure_pairs(tally: Tally, name: str) -> Pairwise:
    agreement: RowValues = []
    values_by_judge: dict[str, RowValues] = {}
    for pair in tally.verdicts.pairs:
        if pair.system == name:
            agreement.append((pair.row, float(pair.agrees)))
            values = values_by_judge.setdefault(pair.judge, [])
            values.append((pair.row, pair.mean))
    consistency = tally.estimate(agreement)
    if name in tally.withheld:
        return Pairwise(consistency=consistency)
    win_rates = tally.values(name, "win")
    rows, wins = list(win_rates), list(win_rates.values())
    lengths = tally.select_lengths(name, rows)
    base_lengths = tally.select_lengths(tally.verdicts.baseline, rows)
    control = fit_length_control(wins, lengths, base_lengths, *tally.look_up(rows))
    rates_by_judge = {judge: tally.estimate(values) for judge, values in sorted(values_by_judge.items())}
    return Pairwise(
        tally.estimate(win_rates.items()),
        control.rate,
        control.problem,
        consistency,
        tally.estimate_roles(win_rates),
        rates_by_judge,
    )


def _measure_lists(tally: Tally, name: str) -> Listwise | None:
    ranks = tally.values(name, "rank")
    if not ranks:
        return None
    bounds = tally.get_rank_bounds(name)
    above = tally.estimate(tally.values(name, "above").items())
    return Listwise(tally.estimate(ranks.items(), bounds), above)


def compare_systems(tally: Tally) -> Iterator[SystemTest]:
    """Test every pair of systems under each measure; canaries are left out.

    The difference is over the rows that both have. The baseline's win rate is .5, against itself; so a system tested
    against it is tested against .5. Holm's correction is over all tests of a measure.
    """
    baseline = tally.verdicts.baseline
    names = [system.name for system in tally.comparison.systems if system.kind == "model"]
    wins = {name: tally.values(name, "win") for name in names}
    if baseline is not None:
        names.append(baseline)
        rows = set().union(*wins.values())
        wins[baseline] = dict.fromkeys(rows, 0.5)
    ranks = {name: tally.values(name, "rank") for name in names}
    yield from _test_pairs(tally, "win_rate", wins)
    yield from _test_pairs(tally, "average_rank", ranks)


def _test_pairs(tally: Tally, measure: str, values: Mapping[str, Mapping[str, float]]) -> list[SystemTest]:
    """Test every two systems by their values; p by Holm is over all of these tests."""
    tests = []
    most = 1.0 if measure == "win_rate" else len(values) - 1.0
    for first, second in combinations(values, 2):
        paired = tally.compare_values(values[first], values[second], most)
        if paired is not None:
            difference, p, p_new_roles = paired
            tests.append(SystemTest(measure, first, second, difference, p, p_new_roles=p_new_roles))
    tests = _adjust_tests(tests, "p", "p_adjusted")
    return _adjust_tests(tests, "p_new_roles", "p_adjusted_new_roles")


def _adjust_tests(tests: list[SystemTest], name: str, adjusted_name: str) -> list[SystemTest]:
    """Add a p by Holm to tests, where all of them have one."""
    p_values = [getattr(test, name) for test in tests]
    if None in p_values:
        return tests
    adjusted: list[SystemTest] = []
    for test, p in zip(tests, adjust_p_values(p_values), strict=True):
        change: Any = {adjusted_name: p}
        adjusted.append(replace(test, **change))
    return adjusted


def _is_valid(figures: Sequence[SystemFigures], diagnostics: Diagnostics) -> bool:
    """Check that judgements were made, not too many lack a verdict, and a win rate is not withheld."""
    if not diagnostics.unscored.of or _lacks_verdicts(diagnostics.unscored):
        return False
    pairs = [model.pairwise for model in figures if model.kind == "model" and model.pairwise]
    return not pairs or any(figures.win_rate for figures in pairs)


def _lacks_verdicts(unscored: Unscored) -> bool:
    return (unscored.share or 0) > (unscored.limit or 0)


def _describe_problems(result: JudgingResult) -> Iterator[str]:
    """Say in words first what makes the run invalid, then what its figures must be read with."""
    least = f"{LEAST_AGREEMENT:.1%}"
    for judge, agreement in result.diagnostics.consistency_by_judge.items():
        if agreement and agreement.mean < LEAST_AGREEMENT:
            share = f"its two orders agree for only {agreement.mean:.1%} of the pairs"
            random = f"random verdicts would agree for {least} or more"
            yield f"the judge {judge} is not fit to judge pairs: {share}; {random}"
    unscored = result.diagnostics.unscored
    if not unscored.of:
        yield "nothing was judged"
    elif _lacks_verdicts(unscored):
        yield f"the run is invalid: {unscored.describe()}"
    yield from _describe_canaries(result)
    withheld = []
    for model in result.models:
        if model.pairwise is None or model.pairwise.win_rate is not None:
            continue
        consistency = model.pairwise.consistency
        if consistency is not None and consistency.mean < LEAST_AGREEMENT:
            withheld.append(f"{model.name} ({consistency.mean:.1%})")
    if withheld:
        names = ", ".join(withheld)
        yield f"win rates are withheld where the two orders agree in less than {least} of the pairs: {names}"
    for judge_model in result.judges:
        if judge_model.flagged:
            family = f"the judge {judge_model.name} is of the same model family ({judge_model.family})"
            yield f"{family} as {', '.join(judge_model.flagged)}: judges are known to favor their own"
    for model in result.models:
        if model.kind != "canary" and model.answered < result.rows:
            counts = f"{model.answered:,} of {result.rows:,} rows"
            yield f"{model.name} answered {counts}: its figures cover only those"
    if result.valid:
        yield from _describe_gaps(result)


def is_beaten(rate: Interval) -> bool:
    """Tell whether a planted loser loses for sure: the whole interval of its win rate lies below one half."""
    return rate.ends is not None and rate.ends[1] < 0.5


def is_shown_fit(result: JudgingResult) -> bool:
    """Tell whether a run is valid and each judge is shown to be fit, by its certificate or by this run's canaries."""
    if not result.valid:
        return False
    canaries = [model for model in result.judged("pairwise") if model.kind == "canary"]
    for judge in result.judges:
        certificate = judge.certificate or ""
        if certificate.startswith("fit ("):
            continue
        if not canaries or certificate.startswith(("unfit", "undecided")):
            return False
        for canary in canaries:
            rate = canary.group("by_judge").get(judge.name)
            if rate is None or not is_beaten(rate):
                return False
    return True


def _describe_canaries(result: JudgingResult) -> Iterator[str]:
    """Say where a canary does not lose: a judge that does not prefer answers of the right role is not fit."""
    undecided: dict[str, list[str]] = {}
    ranked = [model for model in result.judged("listwise") if model.kind == "model"]
    middle = 1 + len(ranked) / 2
    for model in result.models:
        if model.kind != "canary":
            continue
        copied = result.diagnostics.copied[model.name]
        if copied is not None and copied.mean:
            share = f"{copied.mean:.1%} of the {copied.n:,} judgements that showed it"
            obeys = "text inside an answer can bind this judge"
            yield f"the judge repeated a verdict from {model.name} in {share}: {obeys}"
        for judge, rate, form in _list_canary_rates(model):
            if rate.ends is None or is_beaten(rate):
                continue
            if rate.mean < 0.5 and rate.n < LEAST_LOSSES:
                undecided.setdefault(judge, []).append(model.name)
                continue
            share = f"{100 * rate.mean:.1f} % {rate.format_ends(1, 100)}"
            wins = f"{model.name} should lose, and wins {share} of its {form} against {result.baseline}"
            yield f"{judge} prefers planted losers: {wins}; verdicts of this judge say little about quality"
        # Where one question gives no interval, nothing is certain.
        rank = model.listwise and model.listwise.average_rank
        if result.baseline is None and rank and rank.ends and rank.ends[1] < middle:
            reason = "this judge prefers a non-answer, so its verdicts say little about quality"
            yield f"{model.name} ranks above the mean of all systems in the lists: {reason}"
    for judge, names in undecided.items():
        # On few rows an interval reaches far, however well the judge does.
        reason = f"on so few rows, the intervals of {', '.join(names)} reach one half, though all should lose"
        yield f"{judge} is not shown to be fit: {reason}; judge {LEAST_LOSSES} rows or more"


def _list_canary_rates(canary: SystemFigures) -> Iterator[tuple[str, Interval, str]]:
    """Yield a canary's win rates: by judge in pairs, then in lists; each with the judge and what it judged."""
    for name, rate in canary.group("by_judge").items():
        yield f"the judge {name}", rate, "pairs"
    list_rate = canary.measures()["list_win_rate"]
    if list_rate is not None:
        yield "the judge", list_rate, "lists"


def _describe_gaps(result: JudgingResult) -> Iterator[str]:
    """Name what was to be judged and was not: a table without its line would pass over it in silence."""
    designs = {design for judge in result.judges for design in judge.prompts}
    if "listwise" in designs and not result.diagnostics.judgements["listwise"]:
        yield "no list was judged: no row was answered by all systems"
    for model in result.models:
        if model.kind == "model" and model.pairwise is None and model.listwise is None:
            rivals = f"both it and {result.baseline or 'all others'}"
            yield f"{model.name} has no verdict: no row was answered by {rivals}, or no request returned one"


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
    for judgement in tally.judgements:
        if judgement.copied in canaries:
            continue
        if judgement.design == "pairwise" and not canaries.isdisjoint(judgement.order):
            continue
        total += 1
        if judgement.ranks is None:
            reasons[_QUOTED.sub("…", judgement.unscored or "no reason kept")] += 1
    count = reasons.total()
    share = count / total if total else None
    # Most frequent first; equals by name, so that the judgements' order changes nothing.
    by_reason = dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0])))
    return Unscored(count, total, share, limit, by_reason)


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
