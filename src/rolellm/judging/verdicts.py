"""From single judgements to the outcome of each row: who won against the baseline, and who was ranked where.

The rules:

- A pair is judged in both orders, and counts as the mean of the two: 1 for a win of the system over the baseline,
  .5 for a tie, 0 for a loss. A pair of which one order has no verdict counts in nothing: alone, the other order would
  bring the judge's position bias back in. Such pairs are counted.
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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean
from typing import Final, Literal, NamedTuple

from rolellm.core.records import Row
from rolellm.core.text import fold
from rolellm.judging.records import Comparison, Design, Judgement, get_category
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
        incomplete: Pairs of a row, a system and a judge that lack the verdict of an order, and so count in nothing.
    """

    baseline: str | None
    canaries: Collection[str]
    judges: Mapping[Design, Sequence[str]]
    pairs: Sequence[PairVerdict]
    lists: Sequence[Judgement]
    reasons: Mapping[tuple[str, str], Sequence[str]]
    incomplete: int

    @cached_property
    def lists_by_row(self) -> Mapping[str, Sequence[Judgement]]:
        """The scored lists of each row."""
        lists: dict[str, list[Judgement]] = defaultdict(list)
        for judgement in self.lists:
            lists[judgement.row].append(judgement)
        return lists

    @cached_property
    def outcomes(self) -> dict[str, dict[str, RowOutcome]]:
        """Row id to system to outcome, for all systems in any judgement of the row."""
        means: dict[tuple[str, str], list[float]] = defaultdict(list)
        for pair in self.pairs:
            means[pair.row, pair.system].append(pair.mean)
        outcomes: dict[str, dict[str, RowOutcome]] = defaultdict(dict)
        for row, name in self.reasons:
            outcomes[row][name] = self._compute_outcome(row, name, means.get((row, name), ()))
        return outcomes

    def _compute_outcome(self, row: str, name: str, means: Sequence[float]) -> RowOutcome:
        lists = self.lists_by_row.get(row, ())
        win, above = None, None
        if means:
            win = vote_majority(means, jury=len(self.judges["pairwise"]) > 1)
        if self.baseline is not None and self.baseline != name:
            above = share_above(lists, name, self.baseline)
        rank = _average_over_judges(lists, lambda judgement: _rank_system(judgement, name, self.canaries))
        return RowOutcome(win, rank, tuple(self.reasons[row, name]), above)

    @cached_property
    def undecided(self) -> dict[Design, list[str]]:
        """Judges that tie everything they are shown, canaries included, and so say nothing."""
        pairs: dict[str, set[float]] = defaultdict(set)
        for pair in self.pairs:
            pairs[pair.judge] |= {pair.first, pair.second}
        lists: dict[str, set[int]] = defaultdict(set)
        for judgement in self.lists:
            lists[judgement.judge].add(len(set(judgement.ranks or ())))
        return {
            "pairwise": [judge for judge, values in pairs.items() if values == {0.5}],
            "listwise": [judge for judge, counts in lists.items() if counts == {1}],
        }


def _rank_system(judgement: Judgement, name: str, canaries: Collection[str]) -> float | None:
    """Rank a system: 1, and 1 more for each one ranked above, half for each tie; canaries are not counted."""
    if judgement.ranks is None or name not in judgement.order:
        return None
    own_rank = judgement.ranks[judgement.order.index(name)]
    rank = 1.0
    for rival, rival_rank in zip(judgement.order, judgement.ranks, strict=True):
        if rival != name and rival not in canaries:
            rank += (1 + compute_sign(own_rank - rival_rank)) / 2
    return rank


def rank_above(judgement: Judgement, name: str, rival: str) -> float | None:
    """Tell whether one system was ranked above another: 1, .5 for a tie, 0; ``None`` without a verdict on both.

    >>> rank_above(Judgement("r", "j", "pairwise", ("a", "b"), (1.0, 2.0)), "b", "a")
    0.0
    """
    if judgement.ranks is None or name not in judgement.order or rival not in judgement.order:
        return None
    own_rank = judgement.ranks[judgement.order.index(name)]
    rival_rank = judgement.ranks[judgement.order.index(rival)]
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


@dataclass(slots=True)
class _PairVotes:
    """The verdicts of one judge on a pair: 1 a win of the system, .5 a tie, 0 a loss.

    Attributes:
        first: With the system's answer shown first.
        second: With it shown second.
        leads: The system's log odds over the baseline.
    """

    first: list[float] = field(default_factory=list)
    second: list[float] = field(default_factory=list)
    leads: list[float] = field(default_factory=list)

    def add(self, judgement: Judgement, system: str, baseline: str | None, canaries: Collection[str]) -> None:
        """Add a judgement; one without a verdict says nothing."""
        verdict = None if baseline is None else rank_above(judgement, system, baseline)
        if judgement.copied in canaries and judgement.copied in judgement.order:
            # A judge that repeats a canary's verdict obeys it, whatever that verdict says.
            verdict = 1.0
        if verdict is None:
            return
        is_first = judgement.order[0] == system
        (self.first if is_first else self.second).append(verdict)
        if judgement.lead is not None:
            self.leads.append(judgement.lead if is_first else -judgement.lead)


def sort_verdicts(judgements: Iterable[Judgement], baseline: str | None, canaries: Collection[str] = ()) -> Verdicts:
    """Bring the judgements of each pair and list together."""
    ordered = sorted(judgements, key=_get_sort_key)
    votes: dict[tuple[str, str, str], _PairVotes] = {}
    lists: list[Judgement] = []
    reasons: dict[tuple[str, str], list[str]] = {}
    judges: dict[Design, set[str]] = {design: set() for design in DESIGNS}
    for judgement in ordered:
        row, order = judgement.row, judgement.order
        judges[judgement.design].add(judgement.judge)
        for name in sorted(order):
            reasons.setdefault((row, name), [])
        for name, reason in _list_reasons(judgement, baseline):
            reasons[row, name].append(reason)
        if judgement.design == "pairwise":
            system = order[1] if order[0] == baseline else order[0]
            pair_votes = votes.setdefault((row, system, judgement.judge), _PairVotes())
            pair_votes.add(judgement, system, baseline, canaries)
        elif judgement.ranks is not None:
            lists.append(judgement)
    pairs = []
    for key, pair_votes in votes.items():
        if pair_votes.first and pair_votes.second:
            lead = math.fsum(pair_votes.leads) if pair_votes.leads else None
            pairs.append(PairVerdict(*key, fmean(pair_votes.first), fmean(pair_votes.second), lead))
    sorted_judges = {design: sorted(names) for design, names in judges.items()}
    incomplete = len(votes) - len(pairs)
    return Verdicts(baseline, frozenset(canaries), sorted_judges, pairs, lists, reasons, incomplete)


def _list_reasons(judgement: Judgement, baseline: str | None) -> list[tuple[str, str]]:
    """Assign each reason to its system; the one reason of a pair speaks of A and B, so their names are added."""
    order, reasons = judgement.order, judgement.reasons
    if judgement.design != "pairwise" or len(reasons) != 1:
        return [(name, reason) for name, reason in zip(order, reasons, strict=False) if reason]
    system = next((name for name in order if name != baseline), order[0])
    names = ", ".join(f"{letter} is {name}" for letter, name in zip("AB", order, strict=False))
    return [(system, f"{reason} ({names})") for reason in reasons if reason]


def share_above(lists: Sequence[Judgement], name: str, rival: str) -> float | None:
    """Average a row's lists in which one was ranked above another, over the lists of each judge, then over the judges.

    ``None`` where no list has both.
    """
    return _average_over_judges(lists, lambda judgement: rank_above(judgement, name, rival))


def _average_over_judges(lists: Sequence[Judgement], measure: Callable[[Judgement], float | None]) -> float | None:
    values: dict[str, list[float]] = defaultdict(list)
    for judgement in lists:
        value = measure(judgement)
        if value is not None:
            values[judgement.judge].append(value)
    return fmean(map(fmean, values.values())) if values else None


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
        folded = {row.id: fold(row.question) or row.id for row in rows}
        numbers = {question: number for number, question in enumerate(sorted(set(folded.values())))}
        self.questions = {row: numbers[question] for row, question in folded.items()}
        self.roles = {row.id: row.role for row in rows}

    def look_up(self, rows: Sequence[str]) -> tuple[list[int], list[str]]:
        """Return the questions and the roles of rows by their ids."""
        return [self.questions[row] for row in rows], [self.roles[row] for row in rows]

    def join_values(self, values: Iterable[tuple[str, float]]) -> ClusteredSample:
        """Join values with their row ids, several a row, to questions and roles."""
        pairs = list(values)
        return ClusteredSample([value for _, value in pairs], *self.look_up([row for row, _ in pairs]))

    def estimate(self, values: Iterable[tuple[str, float]], bounds: Ends = SHARE) -> Interval | None:
        """Estimate the mean of values with their row ids; see `estimate_interval`."""
        return estimate_interval(self.join_values(values), bounds)

    def compare_values(self, first: Mapping[str, float], second: Mapping[str, float]) -> PairedTest | None:
        """Test two sets of values by row id, over the rows that both have; ``None`` where there are none."""
        rows = [row for row in first if row in second]
        if not rows:
            return None
        return compare_pairs([first[row] for row in rows], [second[row] for row in rows], *self.look_up(rows))


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

    def values(self, name: str, field: Field) -> dict[str, float]:
        """Return one field of a system's outcomes by row id, in the comparison's order; no wins that are `withheld`."""
        if field == "win" and name in self.withheld:
            return {}
        values: dict[str, float] = {}
        for row in self.comparison.rows:
            outcome = self.verdicts.outcomes.get(row.id, {}).get(name)
            value = getattr(outcome, field, None)
            if value is not None:
                values[row.id] = value
        return values

    def get_rank_bounds(self, name: str) -> Ends:
        """Return the best and the worst rank that a system can have: among all but the canaries, and itself."""
        rivals = [system.name for system in self.comparison.systems if system.kind != "canary"]
        return 1.0, float(len({*rivals, name}))

    def estimate_groups(self, values: Mapping[str, float], bounds: Ends) -> list[dict[str, Interval | None]]:
        """Estimate means by role, and by category; those without a value are left out.

        Args:
            values: By row id.
            bounds: The lowest and the highest value that there can be.
        """
        by_role: dict[str, list[tuple[str, float]]] = defaultdict(list)
        by_category: dict[str, list[tuple[str, float]]] = defaultdict(list)
        for row in self.comparison.rows:
            if row.id in values:
                by_role[row.role].append((row.id, values[row.id]))
                by_category[get_category(row)].append((row.id, values[row.id]))
        roles = {name: self.estimate(group, bounds) for name, group in by_role.items()}
        categories = {name: self.estimate(group, bounds) for name, group in by_category.items()}
        return [roles, categories]

    @cached_property
    def withheld(self) -> frozenset[str]:
        """Systems whose orders agree in too few pairs (the others are half a win each, so ½ would look certain).

        All of them, where every judge ties everything.
        """
        agreement: dict[str, list[bool]] = defaultdict(list)
        for pair in self.verdicts.pairs:
            values = agreement[pair.system]
            # Pairs that are judged by odds need not agree.
            if pair.lead is None:
                values.append(pair.agrees)
        if {pair.judge for pair in self.verdicts.pairs} == set(self.verdicts.undecided["pairwise"]):
            return frozenset(agreement)
        return frozenset(name for name, pairs in agreement.items() if sum(pairs) < LEAST_AGREEMENT * len(pairs))
