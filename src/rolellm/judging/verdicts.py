"""From single judgements to the outcome of each row: who won against the baseline, and who was ranked where.

The rules:

- A pair is judged in both orders, and counts as the mean of the two: 1 for a win of the system over the baseline,
  .5 for a tie, 0 for a loss. A pair of which one order has no verdict counts in nothing: alone, the other order would
  bring the judge's position bias back in.
- A verdict that was copied from a canary's answer is that canary's win; one copied from another answer is none.
- A pair that is judged by odds is won by the answer that both orders together give the better odds: a preference for
  one position adds as much to either answer, and cancels out.
- One judge: its mean counts. Several: each votes win, tie or loss (a mean above, at or below .5), and there is a win
  where more vote win than loss, a loss where more vote loss, else a tie. A vote for a tie counts for neither.
- A system's rank in a row is the mean of its ranks over the rotations that a judge saw, then over the judges. Ranks
  are among the models: a canary ranked above one of them does not change its rank, or attackers would set the scale.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from statistics import fmean
from typing import Final, Literal, NamedTuple

from rolellm.core.records import Row
from rolellm.core.text import fold
from rolellm.judging.records import Comparison, Design, Judgement
from rolellm.scoring.statistics.intervals import (
    SHARE,
    ClusteredSample,
    Ends,
    Interval,
    PairedTest,
    compare_pairs,
    estimate_interval,
)

#: The least share of pairs whose two orders have to agree. Wins, ties and losses drawn by lot, at whatever
#: odds, agree in a third or more: with less, the position decides more than the answers do.
LEAST_AGREEMENT: Final = 1 / 3
DESIGNS: Final[tuple[Design, ...]] = ("pairwise", "listwise")
Field = Literal["win", "rank", "above"]
#: Values with their row ids, several a row.
RowValues = list[tuple[str, float]]
#: A pair's verdict and odds, by whether the system's answer was shown first.
ByOrder = dict[bool, tuple[float, float | None]]


class RowOutcome(NamedTuple):
    """The outcome of one system's answer to one row.

    Attributes:
        win: Against the baseline in pairs: 1 a win, .5 a tie, 0 a loss, and between them where the orders or the judge
            disagree; ``None`` where no pair has both orders, and for the baseline itself.
        rank: Mean rank in the lists, from 1 (best); ``None`` where no list was scored.
        reasons: The judges' reasons for this answer, by judge, design and order.
        above: Share of the lists in which it was ranked above the baseline, ties half; ``None`` without such lists.
    """

    win: float | None = None
    rank: float | None = None
    reasons: tuple[str, ...] = ()
    above: float | None = None


class PairVerdict(NamedTuple):
    """One judge's verdict on a system against the baseline, from both orders: 1 a win, .5 a tie, 0 a loss.

    Attributes:
        row: The row's id.
        system: The system's name.
        judge: The judge's name.
        first: With the system's answer shown first.
        second: With it shown second.
        lead: Judged by odds: the system's log odds over the baseline, summed over both orders.
    """

    row: str
    system: str
    judge: str
    first: float
    second: float
    lead: float | None = None

    @property
    def mean(self) -> float:
        """The value of the pair."""
        if self.lead is None:
            return (self.first + self.second) / 2
        return (1 + compute_sign(self.lead)) / 2

    @property
    def agrees(self) -> bool:
        """True if both orders have the same verdict."""
        return self.first == self.second


@dataclass(frozen=True)
class Verdicts:
    """Judgements that count: the same in whatever order they came.

    Attributes:
        baseline: The system that pairs are against.
        canaries: Systems against which no other is ranked.
        judges: The judges of each design, with and without a verdict, sorted.
        pairs: The verdicts on pairs, by row.
        lists: The scored lists, by row.
        reasons: The reasons given, by row id and each system in any judgement of it, sorted.
    """

    baseline: str | None
    canaries: Collection[str]
    judges: Mapping[Design, Sequence[str]]
    pairs: Sequence[PairVerdict]
    lists: Sequence[Judgement]
    reasons: Mapping[tuple[str, str], Sequence[str]]

    @cached_property
    def outcomes(self) -> dict[str, dict[str, RowOutcome]]:
        """Row id to system to outcome, for all systems in any judgement of the row."""
        means: dict[tuple[str, str], list[float]] = defaultdict(list)
        for pair in self.pairs:
            means[pair.row, pair.system].append(pair.mean)
        lists: dict[str, list[Judgement]] = defaultdict(list)
        for judgement in self.lists:
            lists[judgement.row].append(judgement)
        has_jury = len(self.judges["pairwise"]) > 1
        outcomes: dict[str, dict[str, RowOutcome]] = defaultdict(dict)
        for (row, name), reasons in self.reasons.items():
            win, above = None, None
            if (row, name) in means:
                win = vote_majority(means[row, name], jury=has_jury)
            if self.baseline not in (None, name):
                measure = partial(rank_above, name=name, rival=self.baseline)
                above = _average_over_judges(lists[row], measure)
            measure = partial(_rank_system, name=name, canaries=self.canaries)
            rank = _average_over_judges(lists[row], measure)
            outcomes[row][name] = RowOutcome(win, rank, tuple(reasons), above)
        return outcomes


def _rank_system(judgement: Judgement, name: str, canaries: Collection[str]) -> float | None:
    """Rank a system: 1, and 1 more for each one ranked above, half for each tie; canaries are not counted."""
    order, ranks = judgement.order, judgement.ranks
    if ranks is None or name not in order:
        return None
    own_rank = ranks[order.index(name)]
    rank = 1.0
    for rival, rival_rank in zip(order, ranks, strict=True):
        if rival != name and rival not in canaries:
            rank += (1 + compute_sign(own_rank - rival_rank)) / 2
    return rank


def rank_above(judgement: Judgement, name: str, rival: str) -> float | None:
    """Tell whether one system was ranked above another: 1, .5 for a tie, 0; ``None`` without a verdict on both.

    >>> rank_above(Judgement("r", "j", "pairwise", ("a", "b"), (1.0, 2.0)), "b", "a")
    0.0
    """
    order, ranks = judgement.order, judgement.ranks
    if ranks is None or name not in order or rival not in order:
        return None
    own_rank = ranks[order.index(name)]
    rival_rank = ranks[order.index(rival)]
    return (1 + compute_sign(rival_rank - own_rank)) / 2


def compute_sign(value: float) -> int:
    """Return 1, 0 or -1."""
    return (value > 0) - (value < 0)


def vote_majority(means: Sequence[float], *, jury: bool) -> float:
    """Make one verdict of several judges' means, at least one.

    Args:
        means: Each in 0 to 1; above .5 a win.
        jury: Whether the run has several judges, even where only one had a verdict; one judge's mean is taken as it is.
    """
    if not jury:
        return fmean(means)
    votes = [compute_sign(mean - 0.5) for mean in means]
    return (1 + compute_sign(sum(votes))) / 2


def sort_verdicts(judgements: Iterable[Judgement], baseline: str | None, canaries: Collection[str] = ()) -> Verdicts:
    """Bring the judgements of each pair and list together."""
    votes: dict[tuple[str, str, str], ByOrder] = defaultdict(dict)
    lists: list[Judgement] = []
    reasons: dict[tuple[str, str], list[str]] = {}
    judges: dict[Design, set[str]] = {design: set() for design in DESIGNS}
    for judgement in sorted(judgements, key=_get_sort_key):
        row, order = judgement.row, judgement.order
        judges[judgement.design].add(judgement.judge)
        for name in sorted(order):
            reasons.setdefault((row, name), [])
        for name, reason in _iter_reasons(judgement, baseline):
            reasons[row, name].append(reason)
        if judgement.design == "pairwise":
            is_first = order[0] != baseline
            system = order[0] if is_first else order[1]
            by_order = votes[row, system, judgement.judge]
            verdict = _read_verdict(judgement, system, baseline, canaries)
            lead = judgement.lead
            if lead is not None and not is_first:
                lead = -lead
            if verdict is not None:
                by_order[is_first] = (verdict, lead)
        elif judgement.ranks is not None:
            lists.append(judgement)
    pairs = []
    for key, by_order in votes.items():
        if len(by_order) == 2:
            first, first_lead = by_order[True]
            second, second_lead = by_order[False]
            lead = None
            if first_lead is not None and second_lead is not None:
                lead = first_lead + second_lead
            pairs.append(PairVerdict(*key, first, second, lead))
    sorted_judges = {design: sorted(names) for design, names in judges.items()}
    return Verdicts(baseline, frozenset(canaries), sorted_judges, pairs, lists, reasons)


def _read_verdict(judgement: Judgement, system: str, baseline: str | None, canaries: Collection[str]) -> float | None:
    """Read the verdict on a pair: 1 a win of the system, .5 a tie, 0 a loss."""
    if judgement.copied in canaries:
        # A judge that repeats a canary's verdict obeys it, whatever that verdict says.
        return 1.0
    if baseline is None:
        return None
    return rank_above(judgement, system, baseline)


def _iter_reasons(judgement: Judgement, baseline: str | None) -> Iterator[tuple[str, str]]:
    """Yield each reason with its system; the one reason of a pair speaks of A and B, so their names are added."""
    order, reasons = judgement.order, judgement.reasons
    names = ""
    if judgement.design == "pairwise" and len(reasons) == 1:
        names = f" (A is {order[0]}, B is {order[1]})"
        order = tuple(name for name in order if name != baseline)
    for name, reason in zip(order, reasons, strict=False):
        if reason:
            yield name, f"{reason}{names}"


def _average_over_judges(lists: Sequence[Judgement], measure: Callable[[Judgement], float | None]) -> float | None:
    """Average over a row's lists of each judge, then over the judges; ``None`` where no list has a value."""
    values: dict[str, list[float]] = defaultdict(list)
    for judgement in lists:
        value = measure(judgement)
        if value is not None:
            values[judgement.judge].append(value)
    if not values:
        return None
    return fmean(map(fmean, values.values()))


def _get_sort_key(judgement: Judgement) -> tuple[str, str, str, tuple[str, ...], tuple[float, ...], str]:
    return judgement.row, judgement.judge, judgement.design, judgement.order, judgement.ranks or (), judgement.key


class RowClusters:
    """Rows by question and role: what the intervals of their values depend on.

    Attributes:
        questions: Row id to the number of its question, folded; by the questions' order, not the rows'.
        roles: Row id to role.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        rows = list(rows)
        self.roles = {row.id: row.role for row in rows}
        folded = {row.id: row.dialogue or fold(row.question) or row.id for row in rows}
        distinct = sorted(set(folded.values()))
        numbers = {question: number for number, question in enumerate(distinct)}
        self.questions = {row: numbers[question] for row, question in folded.items()}

    def look_up(self, rows: Sequence[str]) -> tuple[list[int], list[str]]:
        """Return the questions and the roles of rows by their ids."""
        questions = [self.questions[row] for row in rows]
        return questions, [self.roles[row] for row in rows]

    def estimate(self, values: Iterable[tuple[str, float]], bounds: Ends = SHARE) -> Interval | None:
        """Estimate the mean of values with their row ids, several a row; see `estimate_interval`."""
        rows, numbers = [], []
        for row, number in values:
            rows.append(row)
            numbers.append(number)
        return estimate_interval(ClusteredSample(numbers, *self.look_up(rows)), bounds)

    def compare_values(
        self, first: Mapping[str, float], second: Mapping[str, float], most: float = math.inf
    ) -> PairedTest | None:
        """Test two sets of values by row id, over the rows that both have; ``None`` where there are none."""
        rows = [row for row in first if row in second]
        if not rows:
            return None
        first_values = [first[row] for row in rows]
        second_values = [second[row] for row in rows]
        return compare_pairs(first_values, second_values, *self.look_up(rows), most=most)


class Tally(RowClusters):
    """A comparison with its verdicts.

    Attributes:
        comparison: Rows, systems and answers.
        judgements: All of them.
    """

    def __init__(self, comparison: Comparison, judgements: Sequence[Judgement]) -> None:
        super().__init__(comparison.rows)
        self.comparison, self.judgements = comparison, judgements

    @cached_property
    def verdicts(self) -> Verdicts:
        """The judgements that count, by row."""
        return sort_verdicts(self.judgements, self.comparison.baseline, self.comparison.canaries)

    @cached_property
    def lengths(self) -> dict[str, dict[str, int]]:
        """System to row id to the characters of its answer."""
        lengths = {}
        for name, texts in self.comparison.answers.items():
            lengths[name] = {row: len(text) for row, text in texts.items()}
        return lengths

    def select_lengths(self, name: str | None, rows: Iterable[str]) -> list[int]:
        """Return the characters of a system's answers to some rows."""
        lengths = self.lengths[name or ""]
        return [lengths[row] for row in rows]

    def values(self, name: str, field: Field) -> dict[str, float]:
        """Return one field of a system's outcomes by row id, in the comparison's order; no wins that are `withheld`."""
        values: dict[str, float] = {}
        if field == "win" and name in self.withheld:
            return values
        for row in self.comparison.rows:
            outcome = self.verdicts.outcomes.get(row.id, {}).get(name)
            value = getattr(outcome, field, None)
            if value is not None:
                values[row.id] = value
        return values

    def get_rank_bounds(self, name: str) -> Ends:
        """Return the best and the worst rank that a system can have: among all but the canaries, and itself."""
        ranked = {system.name for system in self.comparison.systems} - self.comparison.canaries
        return 1.0, float(len(ranked | {name}))

    def estimate_roles(self, values: Mapping[str, float]) -> dict[str, Interval | None]:
        """Estimate the means by role of values by row id; roles without a value are left out."""
        by_role: dict[str, RowValues] = defaultdict(list)
        for row in self.comparison.rows:
            if row.id in values:
                by_role[row.role].append((row.id, values[row.id]))
        return {role: self.estimate(items) for role, items in by_role.items()}

    @cached_property
    def withheld(self) -> frozenset[str]:
        """Systems whose orders agree in too few pairs (the others are half a win each, so ½ would look certain)."""
        agreement: dict[str, list[bool]] = defaultdict(list)
        for pair in self.verdicts.pairs:
            values = agreement[pair.system]
            # Pairs that are judged by odds need not agree.
            if pair.lead is None:
                values.append(pair.agrees)
        names = [name for name, pairs in agreement.items() if sum(pairs) < LEAST_AGREEMENT * len(pairs)]
        return frozenset(names)
