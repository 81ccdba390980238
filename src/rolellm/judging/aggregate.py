"""From single judgements to what each row came to: who won against the baseline, and who was ranked where.

The rules, our choices where no source is named:

- A pair is judged in both orders, and counts as the mean of the two: 1 for a win of the system over the baseline,
  .5 for a tie, 0 for a loss. A pair of which one order has no verdict counts in nothing: alone, the other order would
  bring the judge's position bias back in. Such pairs are counted.
- A pair that is judged by odds is won by the answer that both orders together give the better odds: a liking for one
  place adds as much to either answer, and cancels out.
- One judge: its mean counts. Several: each votes win, tie or loss (a mean above, at or below .5), and there is a win
  where more vote win than loss, a loss where more vote loss, else a tie. A vote for a tie counts for neither.
- A system's rank in a row is the mean of its ranks over the rotations that a judge saw, then over the judges. Ranks
  are among the models: a canary ranked above one of them does not change its rank, or attackers would set the scale.
- A judgement made with the names shown is a probe of the names' effect, and counts in no outcome.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeVar

from rolellm.core.records import Row
from rolellm.core.text import fold
from rolellm.evaluation.score import metric_dict
from rolellm.evaluation.statistics.bootstrap import Bootstrap, Interval, Sample, bootstrap_stratum, share_ends
from rolellm.judging.types import Comparison, Design, Judgement, category

#: The least share of pairs whose two orders have to agree (our choice). Wins, ties and losses drawn by lot, at whatever
#: odds, agree in a third or more: with less, the place decides more than the answers do.
LEAST_AGREEMENT = 1 / 3
DESIGNS: tuple[Design, ...] = ("pairwise", "listwise")


@dataclass(frozen=True, slots=True)
class RowOutcome:
    """What the judges made of one system's answer to one row.

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


@dataclass(frozen=True, slots=True)
class Pair:
    """One judge's verdict on a system against the baseline, from both orders: 1 a win, .5 a tie, 0 a loss.

    Attributes:
        first: With the system's answer shown first.
        second: With it shown second.
        lead: Judged by odds: the system's log odds over the baseline, summed over both orders.
    """

    first: float
    second: float
    lead: float | None = None

    @property
    def mean(self) -> float:
        """What the pair counts as."""
        if self.lead is not None:
            return 0.5 + math.copysign(0.5, self.lead) if self.lead else 0.5
        return (self.first + self.second) / 2

    @property
    def agrees(self) -> bool:
        """Whether the order changed nothing."""
        return self.first == self.second


def _rank(one: Judgement, name: str, aside: Collection[str]) -> float | None:
    """1, and 1 more for each one ranked above, half for each tie; those aside are not counted."""
    if one.ranks is None or name not in one.order:
        return None
    return 1 + sum(1 - (above(one, name, other) or 0) for other in one.order if other != name and other not in aside)


@dataclass(frozen=True)
class Verdicts:
    """Judgements sorted out: the same in whatever order they came.

    Attributes:
        baseline: Whom pairs are against.
        judges: For each design, its judges, with and without a verdict, sorted.
        pairs: Row id, system, judge: the verdict from both orders.
        lists: Row id, judge: the scored lists.
        seen: Row id to all who took part in any judgement of it, with or without a verdict.
        reasons: (row id, system) to the reasons given.
        incomplete: Pairs of a row, a system and a judge that lack the verdict of an order, and so count in nothing.
        aside: The canaries, against whom no other system is ranked.
    """

    baseline: str | None
    judges: Mapping[Design, Sequence[str]]
    pairs: Mapping[str, Mapping[str, Mapping[str, Pair]]]
    lists: Mapping[str, Mapping[str, Sequence[Judgement]]]
    seen: Mapping[str, Sequence[str]]
    reasons: Mapping[tuple[str, str], Sequence[str]]
    incomplete: int
    aside: frozenset[str] = frozenset()

    @cached_property
    def outcomes(self) -> dict[str, dict[str, RowOutcome]]:
        """Row id to system to outcome, for all who took part in any judgement of the row."""
        return {row: {name: self._outcome(row, name) for name in names} for row, names in self.seen.items()}

    def _outcome(self, row: str, name: str) -> RowOutcome:
        pairs, lists = self.pairs.get(row, {}).get(name, {}), self.lists.get(row, {})
        jury, baseline = len(self.judges["pairwise"]) > 1, self.baseline
        return RowOutcome(
            win=majority([pair.mean for pair in pairs.values()], jury=jury) if pairs else None,
            rank=_over_judges(lists, lambda one: _rank(one, name, self.aside)),
            reasons=tuple(self.reasons.get((row, name), ())),
            above=None if baseline in (None, name) else list_above(lists, name, baseline or ""),
        )

    @cached_property
    def undecided(self) -> dict[Design, list[str]]:
        """Judges that tie everything they are shown, canaries included, and so say nothing."""
        pairs: dict[str, set[tuple[float, float]]] = defaultdict(set)
        for by_judge in (one for by_name in self.pairs.values() for one in by_name.values()):
            for judge, pair in by_judge.items():
                pairs[judge].add((pair.first, pair.second))
        lists: dict[str, set[int]] = defaultdict(set)
        for of_row in self.lists.values():
            for judge, found in of_row.items():
                lists[judge].update(len(set(one.ranks or ())) for one in found)
        return {
            "pairwise": [judge for judge, said in pairs.items() if said == {(0.5, 0.5)}],
            "listwise": [judge for judge, places in lists.items() if places == {1}],
        }


def above(judgement: Judgement, name: str, other: str) -> float | None:
    """Whether one system was ranked above another: 1, .5 for a tie, 0; ``None`` without a verdict on both.

    >>> above(Judgement("r", "j", "pairwise", ("a", "b"), (1.0, 2.0)), "b", "a")
    0.0
    """
    if judgement.ranks is None or name not in judgement.order or other not in judgement.order:
        return None
    mine, theirs = (judgement.ranks[judgement.order.index(one)] for one in (name, other))
    return 0.5 if mine == theirs else float(mine < theirs)


def majority(means: Sequence[float], *, jury: bool) -> float:
    """One verdict of several judges' means, at least one.

    Args:
        means: Each in 0 to 1; above .5 a win.
        jury: Whether the run has several judges, even where only one had a verdict; one judge's mean is taken as it is.
    """
    if not jury:
        return math.fsum(means) / len(means)
    lead = sum(mean > 0.5 for mean in means) - sum(mean < 0.5 for mean in means)
    return 0.5 if lead == 0 else float(lead > 0)


def sort_out(judgements: Iterable[Judgement], baseline: str | None, aside: Collection[str] = ()) -> Verdicts:
    """Bring the judgements of each pair and list together; probes with names are left out."""
    ordered = sorted((one for one in judgements if not one.named), key=_place)
    orders: dict[tuple[str, str, str], tuple[list[float], list[float]]] = {}
    leads: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    lists: dict[str, dict[str, list[Judgement]]] = defaultdict(lambda: defaultdict(list))
    seen: dict[str, dict[str, None]] = defaultdict(dict)
    reasons: dict[tuple[str, str], list[str]] = defaultdict(list)
    for one in ordered:
        seen[one.row].update(dict.fromkeys(one.order))
        for name, reason in _reasons(one, baseline):
            reasons[one.row, name].append(reason)
        if one.design == "listwise":
            if one.ranks is not None:
                lists[one.row][one.judge].append(one)
            continue
        system = one.order[1] if one.order[0] == baseline else one.order[0]
        found = orders.setdefault((one.row, system, one.judge), ([], []))
        verdict = None if baseline is None else above(one, system, baseline)
        if verdict is not None:
            found[one.order[0] == baseline].append(verdict)
            if one.lead is not None:
                leads[one.row, system, one.judge].append(one.lead if one.order[0] == system else -one.lead)
    pairs: dict[str, dict[str, dict[str, Pair]]] = defaultdict(lambda: defaultdict(dict))
    incomplete = 0
    for (row, system, judge), (first, second) in orders.items():
        if first and second:
            known = leads.get((row, system, judge))
            lead = math.fsum(known) if known else None
            pairs[row][system][judge] = Pair(_mean(first), _mean(second), lead)
        else:
            incomplete += 1
    judges: dict[Design, list[str]] = {
        design: sorted({one.judge for one in ordered if one.design == design}) for design in DESIGNS
    }
    names = {row: tuple(sorted(found)) for row, found in seen.items()}
    return Verdicts(baseline, judges, pairs, lists, names, reasons, incomplete, frozenset(aside))


def _reasons(one: Judgement, baseline: str | None) -> list[tuple[str, str]]:
    """Who each reason is about; the one reason of a pair speaks of A and B, so it is told who they were."""
    found = list(zip(one.order, one.reasons, strict=False))
    if one.design == "pairwise" and len(one.reasons) == 1:
        about = next((name for name in one.order if name != baseline), one.order[0])
        told = ", ".join(f"{letter} is {name}" for letter, name in zip("AB", one.order, strict=False))
        found = [(about, f"{reason} ({told})") for reason in one.reasons if reason]
    return [(name, reason) for name, reason in found if reason]


def list_above(lists: Mapping[str, Sequence[Judgement]], name: str, other: str) -> float | None:
    """Share of the lists in which one was ranked above another, over the lists of each judge, then over the judges."""
    return _over_judges(lists, lambda one: above(one, name, other))


def _over_judges(lists: Mapping[str, Sequence[Judgement]], value: Callable[[Judgement], float | None]) -> float | None:
    known = [[found for one in of_judge if (found := value(one)) is not None] for of_judge in lists.values()]
    return _mean([_mean(values) for values in known if values]) if any(known) else None


def _place(one: Judgement) -> tuple[str, str, str, tuple[str, ...], tuple[float, ...], str]:
    return one.row, one.judge, one.design, one.order, one.ranks or (), one.key


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


Field = Literal["win", "rank", "above"]
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Tally:
    """A comparison, its verdicts, and how sure to be of them.

    Attributes:
        comparison: Rows, systems and answers.
        judgements: All of them, probes with names too.
        settings: Of every bootstrap.
    """

    comparison: Comparison
    judgements: Sequence[Judgement]
    settings: Bootstrap

    @cached_property
    def verdicts(self) -> Verdicts:
        """Those judgements that count, sorted out."""
        baseline = self.comparison.baseline
        return sort_out(self.judgements, baseline.name if baseline else None, self.comparison.canaries)

    @cached_property
    def clusters(self) -> dict[str, int]:
        """Row id to the number of its question."""
        return clusters_of(self.comparison.rows)

    @cached_property
    def places(self) -> dict[str, dict[str, list[str]]]:
        """``role`` and ``category``: name to the ids of its rows, in order of appearance."""
        found: dict[str, dict[str, list[str]]] = {"role": defaultdict(list), "category": defaultdict(list)}
        for row in self.comparison.rows:
            found["role"][row.role].append(row.id)
            found["category"][category(row)].append(row.id)
        return found

    @cached_property
    def lengths(self) -> dict[str, dict[str, int]]:
        """System to row id to the characters of its answer."""
        answers = self.comparison.answers
        return {
            one.name: {row: len(text) for row, text in answers[one.name].items()} for one in self.comparison.systems
        }

    def values(self, name: str, field: Field) -> dict[str, float]:
        """Row id to one field of a system's outcome, in the comparison's order; without wins that are `withheld`."""
        if field == "win" and name in self.withheld:
            return {}
        outcomes = ((row.id, self.verdicts.outcomes.get(row.id, {}).get(name)) for row in self.comparison.rows)
        return {row: value for row, one in outcomes if one and (value := getattr(one, field)) is not None}

    def joined(self, values: Iterable[tuple[str, float]]) -> Sample:
        """Values with their row ids, several a row, as a sample clustered by question."""
        pairs = list(values)
        return Sample([value for _, value in pairs], [self.clusters[row] for row, _ in pairs])

    def estimates(self, samples: Mapping[Key, Sample], *, shares: bool = False) -> dict[Key, dict[str, Any] | None]:
        """The JSON object of each sample's mean, ``None`` where it has no value."""
        return estimates(samples, self.settings, shares=shares)

    def estimate(self, sample: Sample, *, shares: bool = False) -> dict[str, Any] | None:
        """The same of one sample."""
        return estimates({"": sample}, self.settings, shares=shares)[""]

    def by_place(
        self, values: Mapping[str, Mapping[str, float]], *, shares: bool = False
    ) -> dict[str, dict[str, dict[str, Any]]]:
        """Estimates by role and by category, for several systems at once.

        Args:
            values: System to row id to value.
            shares: Whether the values are shares, from 0 to 1.

        Returns:
            System to ``by_role`` and ``by_category`` to estimates, those without a value left out.
        """
        found: dict[str, dict[str, dict[str, Any]]] = {name: {"by_role": {}, "by_category": {}} for name in values}
        samples = {
            (name, f"by_{kind}", part): self.joined((row, of_rows[row]) for row in rows if row in of_rows)
            for kind, parts in self.places.items()
            for part, rows in parts.items()
            for name, of_rows in values.items()
        }
        for (name, kind, part), estimate in self.estimates(samples, shares=shares).items():
            if estimate is not None:
                found[name][kind][part] = estimate
        return found

    @cached_property
    def withheld(self) -> frozenset[str]:
        """Those whose orders agree in too few pairs (the others are half a win each, so ½ would look certain).

        All of them, where every judge ties everything.
        """
        agreed: dict[str, list[bool]] = defaultdict(list)
        for by_name in self.verdicts.pairs.values():
            for name, by_judge in by_name.items():
                # What is judged by odds need not agree.
                agreed[name] += [pair.agrees for pair in by_judge.values() if pair.lead is None]
        judges = {judge for of in self.verdicts.pairs.values() for by_judge in of.values() for judge in by_judge}
        if judges == set(self.verdicts.undecided["pairwise"]):
            return frozenset(agreed)
        return frozenset(name for name, pairs in agreed.items() if sum(pairs) < LEAST_AGREEMENT * len(pairs))


def clusters_of(rows: Iterable[Row]) -> dict[str, int]:
    """Row id to the number of its question, folded; numbered by the questions' order, not the rows'."""
    questions = {row.id: fold(row.question) or row.id for row in rows}
    numbers = {question: number for number, question in enumerate(sorted(set(questions.values())))}
    return {row: numbers[question] for row, question in questions.items()}


def estimates(
    samples: Mapping[Key, Sample], settings: Bootstrap, *, shares: bool = False
) -> dict[Key, dict[str, Any] | None]:
    """The JSON object of each sample's mean and interval, ``None`` where it has no value.

    Samples over the same questions share their draws, so that equal values have equal intervals; and each interval
    depends on its own sample alone, so that one more system changes no other interval. Shares that are all 0, or all
    1, get exact ends, see `share_ends`.
    """
    found: dict[Key, dict[str, Any] | None] = dict.fromkeys(samples)
    groups: dict[frozenset[Any], list[Key]] = defaultdict(list)
    for key, sample in samples.items():
        if len(sample.values):
            groups[frozenset(sample.clusters)].append(key)
    for keys in groups.values():
        intervals: Sequence[Interval] = bootstrap_stratum([samples[key] for key in keys], settings).intervals
        if shares:
            intervals = [share_ends(interval) for interval in intervals]
        found.update((key, metric_dict(interval)) for key, interval in zip(keys, intervals, strict=True))
    return found
