"""How far judges agree with people, and people with one another, beyond chance.

Each figure comes with its n and its intervals. A verdict is on a system against the baseline, which has a direction, or
on two other systems; of these, each is counted in both directions (a against b, b against a), so that kappa does not
depend on how systems are named or sorted; n counts it once. The paper compares no judge with people.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product, starmap
from typing import Final

from rolellm.core.errors import SettingsError
from rolellm.core.result import Result
from rolellm.core.sanitize import label as shorten
from rolellm.core.table import Table, TableRow
from rolellm.judging.people.labels import (
    Label,
    list_annotators,
    list_labelled_systems,
    read_labels,
)
from rolellm.judging.records import Comparison, Judgement, JudgeRun
from rolellm.judging.verdicts import RowClusters, Verdicts, compute_sign, sort_verdicts
from rolellm.scoring.statistics.agreement import (
    CorrectedAgreement,
    compute_cohen_kappa,
    compute_fleiss_kappa,
)
from rolellm.scoring.statistics.intervals import Interval, Measured

#: Rows that two should have labelled both: with 30, the interval of a kappa of 0.4 is 0.5 wide.
ENOUGH_ROWS: Final = 30
#: Characters of a name in a table.
_NAME: Final = 40

Ranks = Mapping[str, float]
#: By row and two systems, names sorted but for the baseline, which is second: 1 where the first is better, 0 for a tie,
#: -1 where it is worse.
Signs = dict[tuple[str, str, str], int]


@dataclass(frozen=True, slots=True)
class Rater:
    """One judge or one person, with the verdicts given.

    Attributes:
        name: The judge's or the annotator's.
        verdicts: On every two systems of a row.
    """

    name: str
    verdicts: Signs

    @property
    def rows(self) -> set[str]:
        """Ids of the rows with a verdict."""
        return {row for row, _, _ in self.verdicts}


def build_person_rater(name: str, labels: Sequence[Label], baseline: str | None) -> Rater:
    """Build the rater of a person's rankings; skipped rows say nothing."""
    ranks = {label.row: [label.ranks] for label in labels if label.said is not None}
    return Rater(name, _compare_ranks(ranks, baseline))


def build_judge_rater(name: str, verdicts: Verdicts, names: Sequence[str]) -> Rater:
    """Build the rater of a judge's verdicts on the systems named; a pair's verdict counts before that of lists."""
    lists: dict[str, list[Ranks]] = defaultdict(list)
    for judgement in verdicts.lists:
        ranks = _select_ranks(judgement, names)
        if judgement.judge == name and ranks:
            lists[judgement.row].append(ranks)
    signs = _compare_ranks(lists, verdicts.baseline)
    for pair in verdicts.pairs:
        if pair.judge == name and pair.system in names:
            signs[pair.row, pair.system, verdicts.baseline or ""] = compute_sign(pair.mean - 0.5)
    return Rater(name, signs)


def _collect_votes(raters: Sequence[Rater]) -> dict[tuple[str, str, str], list[int]]:
    """Collect the verdicts on what at least two of the raters have a verdict on."""
    votes: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for rater in raters:
        for key, sign in rater.verdicts.items():
            votes[key].append(sign)
    return {key: votes[key] for key in sorted(votes) if len(votes[key]) > 1}


def _compare_ranks(lists: Mapping[str, Sequence[Ranks]], baseline: str | None) -> Signs:
    """Compare which system was ranked above which in most of a row's lists."""
    lead: Signs = defaultdict(int)
    for row, row_lists in lists.items():
        for ranks in row_lists:
            names = sorted(ranks, key=lambda name: (name == baseline, name))
            for first, second in combinations(names, 2):
                difference = ranks[second] - ranks[first]
                lead[row, first, second] += compute_sign(difference)
    return {key: compute_sign(votes) for key, votes in lead.items()}


def _select_ranks(judgement: Judgement, names: Sequence[str]) -> Ranks:
    """Select the ranks of those named."""
    if judgement.ranks is None:
        return {}
    ranks = zip(judgement.order, judgement.ranks, strict=True)
    return {name: rank for name, rank in ranks if name in names}


@dataclass(frozen=True, slots=True)
class RaterAgreement:
    """The agreement of a judge or a person with a person.

    Attributes:
        a: The first rater.
        b: The second.
        rows: Number of rows on which both have a verdict.
        kappa: Cohen's, of better, tie and worse.
    """

    a: str
    b: str
    rows: int
    kappa: Measured


@dataclass(frozen=True, slots=True)
class LabelCount:
    """The number of a person's labels.

    Attributes:
        name: The annotator.
        labelled: Number of labels.
        skipped: Number of skipped items.
    """

    name: str
    labelled: int
    skipped: int


@dataclass(frozen=True, slots=True, repr=False)
class AgreementResult(Result):
    """People's labels of a run, compared with its judges and with one another.

    Attributes:
        run: The run's folder.
        rows: Number of rows that anybody ranked.
        annotators: Who ranked.
        judge_human: Judges against people.
        human_human: People against people.
        fleiss_kappa: Of three or more people.
    """

    run: str
    rows: int
    annotators: tuple[LabelCount, ...]
    judge_human: tuple[RaterAgreement, ...]
    human_human: tuple[RaterAgreement, ...]
    fleiss_kappa: Measured

    def notes(self) -> list[str]:
        """Return which figures rest on few rows."""
        notes = []
        few = f"with fewer than {ENOUGH_ROWS}, agreement says little"
        for pair in (*self.judge_human, *self.human_human):
            if pair.rows < ENOUGH_ROWS:
                shared = f"{pair.a} and {pair.b} share {pair.rows} rows"
                notes.append(f"warning: {shared}; {few}")
        return notes

    def tables(self) -> list[Table]:
        """Build the tables of what there is: agreements, and who ranked."""
        tables = []
        if self.judge_human:
            tables.append(_build_agreement_table("Judges against people, beyond chance", self.judge_human))
        if self.human_human:
            tables.append(_build_agreement_table("People against people, beyond chance", self.human_human))
        if self.fleiss_kappa is not None:
            row = TableRow(("All people",), (self.fleiss_kappa,))
            tables.append(Table("Three people or more", ("",), ("Fleiss' kappa",), (row,), digits=2))
        counts = []
        for person in self.annotators:
            name = shorten(person.name, _NAME)
            counts.append((name, person.labelled, person.skipped))
        tables.append(Table.from_rows("Who ranked", ("Person", "rows", "skipped"), counts))
        return tables


def _build_agreement_table(title: str, agreements: Iterable[RaterAgreement]) -> Table:
    rows = []
    for pair in agreements:
        first, second = shorten(pair.a, _NAME), shorten(pair.b, _NAME)
        rows.append(TableRow((f"{first} / {second}",), (pair.rows, pair.kappa)))
    return Table(title, ("",), ("rows", "kappa"), tuple(rows), digits=2)


def measure_agreement(run: JudgeRun) -> AgreementResult:
    """Compare all that people said of a run with its judges, and with one another.

    Args:
        run: With labels.

    Raises:
        SettingsError: When nobody labelled anything.
        DataError: For damaged labels, or labels of other answers than this run's.
    """
    labels = _read_all(run)
    baseline = run.comparison.baseline
    people = [build_person_rater(name, items, baseline) for name, items in labels.items()]
    if not labels:
        begin = f"rolellm label {shlex.quote(str(run.folder))} --annotator NAME"
        raise SettingsError(f"nobody has labelled anything yet; begin with: {begin}")
    measures = AgreementMeasures(run.comparison)
    judge_human = starmap(measures.compare, product(_build_judges(run), people))
    human_human = starmap(measures.compare, combinations(people, 2))
    ranked_rows = set().union(*(person.rows for person in people))
    return AgreementResult(
        str(run.folder),
        len(ranked_rows),
        _count_labels(labels),
        tuple(judge_human),
        tuple(human_human),
        measures.measure_kappa(people, compute_fleiss_kappa) if len(people) > 2 else None,
    )


def _read_all(run: JudgeRun) -> dict[str, list[Label]]:
    """Read the labels of each person who ranked anything."""
    labels = {}
    for name in list_annotators(run.folder):
        by_row = read_labels(run, name)
        if by_row:
            labels[name] = list(by_row.values())
    return labels


def _count_labels(labels: Mapping[str, Sequence[Label]]) -> tuple[LabelCount, ...]:
    counts = []
    for name, items in labels.items():
        skipped = sum(label.said is None for label in items)
        counts.append(LabelCount(name, len(items) - skipped, skipped))
    return tuple(counts)


def _build_judges(run: JudgeRun) -> list[Rater]:
    comparison = run.comparison
    names = list_labelled_systems(comparison)
    verdicts = sort_verdicts(run.judgements(), comparison.baseline, comparison.canaries)
    judge_names = {name for design_judges in verdicts.judges.values() for name in design_judges}
    return [build_judge_rater(name, verdicts, names) for name in sorted(judge_names)]


class AgreementMeasures(RowClusters):
    """Measures of agreement on a comparison, each with its interval."""

    def __init__(self, comparison: Comparison) -> None:
        super().__init__(comparison.rows)
        self._baseline = comparison.baseline

    def compare(self, first: Rater, second: Rater) -> RaterAgreement:
        """Compare a judge or a person with a person."""
        rows = len(first.rows & second.rows)
        kappa = self.measure_kappa([first, second], _compute_kappa_of_two)
        return RaterAgreement(first.name, second.name, rows, kappa)

    def measure_kappa(
        self, raters: Sequence[Rater], compute: Callable[[Sequence[Sequence[int]]], CorrectedAgreement]
    ) -> Interval | None:
        """Measure a kappa of raters, over what at least two of them have a verdict on."""
        votes = _collect_votes(raters)
        if not votes:
            return None
        directed: list[list[int]] = []
        # Both directions of a pair are one item; only what chance would reach is that of both.
        items: list[int] = []
        for item, ((_, _, second), signs) in enumerate(votes.items()):
            directed.append(signs)
            items.append(item)
            if second != self._baseline:
                directed.append([-sign for sign in signs])
                items.append(item)
        clusters = self.look_up([row for row, _, _ in votes])
        return replace(compute(directed), items=items).estimate(*clusters)


def _compute_kappa_of_two(ratings: Sequence[Sequence[int]]) -> CorrectedAgreement:
    return compute_cohen_kappa(*zip(*ratings, strict=True))
