"""How far judges agree with people, and people with one another, beyond chance.

Each figure comes with its n and its intervals; only the correlation of systems' average ranks has none, since a few
systems have too few orders for one. Of all pairs, each is counted in both directions (a against b, b against a), so
that kappa does not depend on how systems are named or sorted; n counts it once. The paper has people audit its data,
and compares no judge with them.
"""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final, Literal

import numpy as np

from rolellm.core.errors import SettingsError
from rolellm.core.result import Result
from rolellm.core.sanitize import label as shorten
from rolellm.core.table import ABSENT, Table, TableRow
from rolellm.judging.people.labels import (
    AUDIT_QUESTIONS,
    AuditLabel,
    Label,
    RankingLabel,
    list_annotators,
    list_labelled_systems,
    read_labels,
)
from rolellm.judging.records import Judgement, JudgeRun, compute_mid_ranks
from rolellm.judging.verdicts import RowClusters, Verdicts, compute_sign, sort_verdicts
from rolellm.scoring.statistics.agreement import (
    CorrectedAgreement,
    compute_cohen_kappa,
    compute_fleiss_kappa,
    compute_krippendorff_alpha,
    compute_spearman,
)
from rolellm.scoring.statistics.intervals import Interval, Measured

#: What the paper's people found of its data set's own replies, for the same three questions.
PAPER: Final[Mapping[str, float]] = {"instruction": 1.0, "style": 0.84, "correct": 0.77}
#: Rows that two should have labelled both: with 30, the interval of a kappa of 0.4 is 0.5 wide.
ENOUGH_ROWS: Final = 30
JURY = "majority of judges"
PEOPLE = "majority of people"
Which = Literal["baseline", "all_pairs"]
# Verdicts against the baseline have a direction; those of any two systems count in both.
_DIRECTIONS: Final[Mapping[Which, tuple[int, ...]]] = {"baseline": (1,), "all_pairs": (1, -1)}
#: Characters of a name in a table.
_NAME: Final = 40

Ranks = Mapping[str, float]
Signs = Mapping[tuple[str, ...], int]
#: The verdicts on each item.
Votes = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Rater:
    """One judge, one person, or a majority of either, and what they said.

    Attributes:
        name: The judge's or the annotator's.
        kind: Which of the four it is.
        verdicts: 1 better, 0 tie, -1 worse. Under ``baseline``, of a system against the baseline by (row, system);
            under ``all_pairs``, of the first of two systems against the second by (row, first, second), names sorted.
        ranks: Row id to system to rank, from 1 (best); means where a rater ranked several times.
    """

    name: str
    kind: Literal["judge", "jury", "person", "people"]
    verdicts: Mapping[Which, Signs]
    ranks: Mapping[str, Ranks]

    @property
    def rows(self) -> set[str]:
        """Ids of the rows of which it said anything."""
        rows = set(self.ranks)
        for signs in self.verdicts.values():
            rows.update(key[0] for key in signs)
        return rows


def build_person_rater(name: str, labels: Sequence[RankingLabel], baseline: str | None) -> Rater:
    """Build the rater of a person's rankings; skipped rows say nothing."""
    ranks: dict[str, Ranks] = {}
    for label in labels:
        if label.ranks is not None:
            ranks[label.row] = dict(zip(label.order, label.ranks, strict=True))
    pairs = _compare_ranks({row: [row_ranks] for row, row_ranks in ranks.items()})
    against: dict[tuple[str, ...], int] = {}
    for (row, first, second), sign in pairs.items():
        if second == baseline:
            against[row, first] = sign
        elif first == baseline:
            against[row, second] = -sign
    return Rater(name, "person", {"baseline": against, "all_pairs": pairs}, ranks)


def build_judge_rater(name: str, verdicts: Verdicts, names: Sequence[str]) -> Rater:
    """Build the rater of a judge's verdicts on the systems named."""
    against: dict[tuple[str, ...], int] = {}
    for pair in verdicts.pairs:
        if pair.judge == name and pair.system in names:
            against[pair.row, pair.system] = compute_sign(pair.mean - 0.5)
    lists: dict[str, list[Ranks]] = defaultdict(list)
    for judgement in verdicts.lists:
        ranks = _select_ranks(judgement, names)
        if judgement.judge == name and ranks:
            lists[judgement.row].append(ranks)
    means = {row: _compute_mean_ranks(row_ranks) for row, row_ranks in lists.items()}
    return Rater(name, "judge", {"baseline": against, "all_pairs": _compare_ranks(lists)}, means)


def combine_judges(raters: Sequence[Rater]) -> Rater:
    """Combine judges to the majority of their verdicts; as many for as against are a tie."""
    return _combine_raters(JURY, "jury", raters, 1, lambda votes: compute_sign(sum(votes)))


def combine_people(raters: Sequence[Rater]) -> Rater:
    """Combine people to their most frequent verdicts, in rows that at least two of them ranked."""
    return _combine_raters(PEOPLE, "people", raters, 2, _pick_most_frequent)


def _combine_raters(
    name: str,
    kind: Literal["jury", "people"],
    raters: Sequence[Rater],
    least: int,
    combine: Callable[[Sequence[int]], int],
) -> Rater:
    ranks: dict[str, list[Ranks]] = defaultdict(list)
    for rater in raters:
        for row, row_ranks in rater.ranks.items():
            ranks[row].append(row_ranks)
    means: dict[str, Ranks] = {}
    for row, row_ranks_list in ranks.items():
        # Those who ranked a row before another system joined saw other places.
        systems = {frozenset(row_ranks) for row_ranks in row_ranks_list}
        if len(row_ranks_list) >= least and len(systems) == 1:
            means[row] = _compute_mean_ranks(row_ranks_list)
    verdicts: dict[Which, Signs] = {}
    for which in _DIRECTIONS:
        votes = _collect_votes([rater.verdicts[which] for rater in raters], least)
        verdicts[which] = {key: combine(item_votes) for key, item_votes in votes.items()}
    return Rater(name, kind, verdicts, means)


def _collect_votes(verdicts: Sequence[Signs], least: int) -> dict[tuple[str, ...], list[int]]:
    votes: dict[tuple[str, ...], list[int]] = {}
    for key in sorted(set().union(*verdicts)):
        item_votes = [signs[key] for signs in verdicts if key in signs]
        if len(item_votes) >= least:
            votes[key] = item_votes
    return votes


def _pick_most_frequent(votes: Sequence[int]) -> int:
    counts = Counter(votes).most_common()
    is_tie = len(counts) > 1 and counts[0][1] == counts[1][1]
    return 0 if is_tie else counts[0][0]


def _compare_ranks(lists: Mapping[str, Sequence[Ranks]]) -> dict[tuple[str, ...], int]:
    """Compare which system was ranked above which in most of a row's lists."""
    lead: dict[tuple[str, ...], int] = defaultdict(int)
    for row, row_lists in lists.items():
        for ranks in row_lists:
            for first, second in combinations(sorted(ranks), 2):
                lead[row, first, second] += compute_sign(ranks[second] - ranks[first])
    return {key: compute_sign(votes) for key, votes in lead.items()}


def _select_ranks(judgement: Judgement, names: Sequence[str]) -> Ranks:
    """Select the ranks of those named, from 1 among themselves."""
    ranks: dict[str, float] = {}
    for name, rank in zip(judgement.order, judgement.ranks or (), strict=judgement.ranks is not None):
        if name in names:
            ranks[name] = rank
    return dict(zip(ranks, compute_mid_ranks(tuple(ranks.values())), strict=True))


def _compute_mean_ranks(lists: Sequence[Ranks]) -> Ranks:
    ranks_by_name: dict[str, list[float]] = defaultdict(list)
    for ranks in lists:
        for name, rank in ranks.items():
            ranks_by_name[name].append(rank)
    return {name: sum(ranks) / len(ranks) for name, ranks in ranks_by_name.items()}


@dataclass(frozen=True, slots=True)
class Kappas:
    """How far two raters agree on verdicts.

    Attributes:
        kappa: Cohen's, of better, tie and worse.
        weighted_kappa: Cohen's, with a tie between the others.
        same: The share of verdicts that are the same.
    """

    kappa: Measured
    weighted_kappa: Measured
    same: Measured


@dataclass(frozen=True, slots=True)
class RaterAgreement:
    """How far a judge or a person agrees with a person.

    Attributes:
        a: The first rater.
        a_kind: Its kind.
        b: The second.
        b_kind: Its kind.
        rows: Number of rows of which both said something.
        baseline: On verdicts against the baseline; ``None`` where they share none.
        all_pairs: On verdicts on any two systems.
        spearman_rows: The mean over rows of the correlation of ranks; ``None`` with fewer than three systems.
        spearman_models: The correlation of systems' average ranks.
    """

    a: str
    a_kind: str
    b: str
    b_kind: str
    rows: int
    baseline: Kappas | None
    all_pairs: Kappas | None
    spearman_rows: Measured
    spearman_models: Measured

    @property
    def name(self) -> str:
        """Both names."""
        return f"{shorten(self.a, _NAME)} / {shorten(self.b, _NAME)}"


@dataclass(frozen=True, slots=True)
class LabelCount:
    """How much a person labelled.

    Attributes:
        name: The annotator.
        labelled: Number of labels.
        skipped: Number of skipped items.
    """

    name: str
    labelled: int
    skipped: int

    @classmethod
    def of(cls, name: str, labels: Sequence[Label]) -> LabelCount:
        """Count labels."""
        skipped = sum(label.skipped for label in labels)
        return cls(name, len(labels) - skipped, skipped)


@dataclass(frozen=True, slots=True)
class AuditShare:
    """What people said to one question about one system.

    Attributes:
        share: The share of yes, all people's answers counted alike.
        cannot_tell: Number of answers left out of it.
    """

    share: Measured
    cannot_tell: int


@dataclass(frozen=True, slots=True)
class AuditSummary:
    """What people said in the audit of a run.

    Attributes:
        paper: The paper's shares.
        annotators: Who audited.
        systems: System to question to what was said.
    """

    paper: dict[str, float]
    annotators: tuple[LabelCount, ...]
    systems: dict[str, dict[str, AuditShare]]


@dataclass(frozen=True, slots=True, repr=False)
class AgreementResult(Result):
    """What people said of a run, compared with its judges and with one another.

    Attributes:
        run: The run's folder.
        rows: Number of rows that anybody ranked.
        baseline: The run's.
        annotators: Who ranked.
        judge_human: Judges against people.
        human_human: People against people.
        fleiss_kappa: Of three or more people, against the baseline and over all pairs.
        krippendorff_alpha: The same, with a tie between a win and a loss.
        audit: ``None`` where nobody audited.
        warnings: Pairs that share few rows.
    """

    run: str
    rows: int
    baseline: str | None
    annotators: tuple[LabelCount, ...]
    judge_human: tuple[RaterAgreement, ...]
    human_human: tuple[RaterAgreement, ...]
    fleiss_kappa: dict[Which, Measured] | None
    krippendorff_alpha: dict[Which, Measured] | None
    audit: AuditSummary | None
    warnings: tuple[str, ...]

    def notes(self) -> list[str]:
        """Return which figures rest on few rows."""
        return [f"warning: {warning}" for warning in self.warnings]

    def tables(self) -> list[Table]:
        """Build the tables of what there is: agreements, the audit, and who ranked."""
        tables = []
        if self.judge_human:
            tables.append(_build_agreement_table("Judges against people, beyond chance", self.judge_human))
        if self.human_human:
            tables.append(_build_agreement_table("People against people, beyond chance", self.human_human))
        if self.fleiss_kappa is not None and self.krippendorff_alpha is not None:
            rows = [
                ("Fleiss' kappa", *self.fleiss_kappa.values()),
                ("Krippendorff's alpha, ordinal", *self.krippendorff_alpha.values()),
            ]
            table = Table.from_rows("All people", ("", "against the baseline", "all pairs"), rows)
            tables.append(replace(table, digits=2))
        if self.audit is not None:
            tables.append(_build_audit_table(self.audit))
        if self.annotators:
            counts = [(shorten(one.name, _NAME), one.labelled, one.skipped) for one in self.annotators]
            tables.append(Table.from_rows("Who ranked", ("Person", "rows", "skipped"), counts))
        return tables


def _build_agreement_table(title: str, agreements: Iterable[RaterAgreement]) -> Table:
    rows = []
    for pair in agreements:
        kappas = [None if kappas is None else kappas.kappa for kappas in (pair.baseline, pair.all_pairs)]
        rows.append(TableRow((pair.name,), (pair.rows, *kappas, pair.spearman_rows, pair.spearman_models)))
    columns = ("rows", "kappa, against the baseline", "kappa, all pairs", "Spearman, rows", "Spearman, systems")
    return Table(title, ("",), columns, tuple(rows), digits=2)


def _build_audit_table(audit: AuditSummary) -> Table:
    rows = []
    for name, answers in audit.systems.items():
        shares = [answers[question].share for question in audit.paper]
        rows.append(TableRow((shorten(name, _NAME),), (*shares, answers["correct"].cannot_tell)))
    paper = [Interval(share) for share in audit.paper.values()]
    rows.append(TableRow(("the paper's people, on its references",), (*paper, ABSENT)))
    columns = ("answers the instruction, yes %", "reflects the style, yes %", "is correct, yes %", "cannot tell")
    return Table("The paper's three questions", ("Audit",), columns, tuple(rows))


def measure_agreement(run: JudgeRun) -> AgreementResult:
    """Compare all that people said of a run with its judges, and with one another.

    Args:
        run: With labels.

    Raises:
        SettingsError: When nobody labelled anything.
        DataError: For damaged labels, or labels of other answers than this run's.
    """
    baseline = run.comparison.baseline
    measures = AgreementMeasures(run.comparison.rows)
    labels: dict[str, list[RankingLabel]] = {}
    for name in list_annotators(run.folder, RankingLabel):
        rankings = read_labels(run, name, RankingLabel)
        if rankings:
            labels[name] = list(rankings.values())
    audits: dict[str, list[AuditLabel]] = {}
    for name in list_annotators(run.folder, AuditLabel):
        answers = read_labels(run, name, AuditLabel)
        if answers:
            audits[name] = list(answers.values())
    if not labels and not audits:
        begin = f"rolellm label {shlex.quote(str(run.folder))} --annotator NAME"
        raise SettingsError(f"nobody has labelled anything yet; begin with: {begin}")
    people = [build_person_rater(name, items, baseline) for name, items in labels.items()]
    judges = _build_judges(run) if people else []
    jury = [*judges, combine_judges(judges)] if len(judges) > 1 else judges
    everybody = [*people, combine_people(people)] if len(people) > 1 else people
    judge_human = tuple(measures.compare(judge, person) for judge in jury for person in everybody)
    human_human = tuple(measures.compare(first, second) for first, second in combinations(people, 2))
    warnings = []
    for pair in (*judge_human, *human_human):
        if pair.rows < ENOUGH_ROWS:
            few = f"with fewer than {ENOUGH_ROWS}, agreement says little"
            warnings.append(f"{pair.a} and {pair.b} share {pair.rows} rows; {few}")
    alike: dict[str, dict[Which, Measured] | None] = {"fleiss_kappa": None, "krippendorff_alpha": None}
    if len(people) > 2:
        alike["fleiss_kappa"] = measures.measure_people(people, compute_fleiss_kappa)
        alike["krippendorff_alpha"] = measures.measure_people(people, compute_krippendorff_alpha)
    ranked_rows = set().union(*(person.ranks for person in people))
    return AgreementResult(
        run=str(run.folder),
        rows=len(ranked_rows),
        baseline=baseline,
        annotators=tuple(LabelCount.of(name, items) for name, items in labels.items()),
        judge_human=judge_human,
        human_human=human_human,
        **alike,
        audit=measures.summarize_audit(audits) if audits else None,
        warnings=tuple(warnings),
    )


def _build_judges(run: JudgeRun) -> list[Rater]:
    comparison = run.comparison
    names = list_labelled_systems(comparison)
    verdicts = sort_verdicts(run.judgements(), comparison.baseline, comparison.canaries)
    judge_names = {name for design_judges in verdicts.judges.values() for name in design_judges}
    return [build_judge_rater(name, verdicts, names) for name in sorted(judge_names)]


class AgreementMeasures(RowClusters):
    """Measures of agreement, each with its interval."""

    def compare(self, first: Rater, second: Rater) -> RaterAgreement:
        """Compare a judge or a person with a person."""
        # With two systems, a rank correlation says no more than who won.
        orders: dict[str, tuple[list[float], list[float]]] = {}
        for row, ranks in sorted(first.ranks.items()):
            other_ranks = second.ranks.get(row, {})
            if len(ranks) > 2 and ranks.keys() == other_ranks.keys():
                names = sorted(ranks)
                first_order = [ranks[name] for name in names]
                orders[row] = (first_order, [other_ranks[name] for name in names])
        correlations: list[tuple[str, float]] = []
        for row, order in orders.items():
            correlation = compute_spearman(*order)
            if correlation is not None:
                correlations.append((row, correlation))
        return RaterAgreement(
            a=first.name,
            a_kind=first.kind,
            b=second.name,
            b_kind=second.kind,
            rows=len(first.rows & second.rows),
            baseline=self._measure_kappas(first, second, "baseline"),
            all_pairs=self._measure_kappas(first, second, "all_pairs"),
            spearman_rows=self.estimate(correlations, (-1.0, 1.0)),
            spearman_models=self._correlate_systems({row: sorted(first.ranks[row]) for row in orders}, orders),
        )

    def _correlate_systems(
        self, names: Mapping[str, list[str]], orders: Mapping[str, tuple[list[float], list[float]]]
    ) -> Interval | None:
        """Correlate average ranks, over the rows that have most systems."""
        if not orders:
            return None
        widest = max(names.values(), key=len)
        rows = [row for row in orders if names[row] == widest]
        # Averages that are equal on paper differ by the order in which they were summed.
        firsts, seconds = zip(*(orders[row] for row in rows), strict=True)
        correlation = compute_spearman(np.mean(firsts, axis=0).round(9), np.mean(seconds, axis=0).round(9))
        if correlation is None:
            return None
        questions = {self.questions[row] for row in rows}
        return Interval(correlation, n=len(rows), clusters=len(questions))

    def _measure_kappas(self, first: Rater, second: Rater, which: Which) -> Kappas | None:
        first_signs, second_signs = first.verdicts[which], second.verdicts[which]
        keys = sorted(first_signs.keys() & second_signs.keys())
        if not keys:
            return None
        rows, directions = [key[0] for key in keys], _DIRECTIONS[which]
        first_verdicts = _direct([first_signs[key] for key in keys], directions)
        second_verdicts = _direct([second_signs[key] for key in keys], directions)
        kappa = compute_cohen_kappa(first_verdicts, second_verdicts)
        weighted = compute_cohen_kappa(first_verdicts, second_verdicts, weights="linear")
        same = [(key[0], float(first_signs[key] == second_signs[key])) for key in keys]
        return Kappas(
            self._estimate_agreement(kappa, rows, directions),
            self._estimate_agreement(weighted, rows, directions),
            self.estimate(same),
        )

    def measure_people(
        self, people: Sequence[Rater], measure: Callable[[Votes], CorrectedAgreement]
    ) -> dict[Which, Measured]:
        """Measure the agreement of several people, against the baseline and over all pairs."""
        measures: dict[Which, Measured] = {}
        for which, directions in _DIRECTIONS.items():
            votes = _collect_votes([person.verdicts[which] for person in people], 2)
            if not votes:
                measures[which] = None
                continue
            directed: list[list[int]] = []
            for item_votes in votes.values():
                directed += [[way * vote for vote in item_votes] for way in directions]
            rows = [key[0] for key in votes]
            measures[which] = self._estimate_agreement(measure(directed), rows, directions)
        return measures

    def _estimate_agreement(
        self, agreement: CorrectedAgreement, rows: Sequence[str], directions: Sequence[int]
    ) -> Interval | None:
        # Both directions of a pair are one item; only what chance would reach is that of both.
        items = [item // len(directions) for item in agreement.items]
        return replace(agreement, items=items).estimate(*self.look_up(rows))

    def summarize_audit(self, audits: Mapping[str, Sequence[AuditLabel]]) -> AuditSummary:
        """Summarize what people said in the audit of a run."""
        by_system: dict[str, list[AuditLabel]] = defaultdict(list)
        for labels in audits.values():
            for label in labels:
                if not label.skipped:
                    by_system[label.system].append(label)
        systems: dict[str, dict[str, AuditShare]] = {}
        for name in sorted(by_system):
            systems[name] = {question: self._share_yes(by_system[name], question) for question in AUDIT_QUESTIONS}
        annotators = tuple(LabelCount.of(name, labels) for name, labels in audits.items())
        return AuditSummary(dict(PAPER), annotators, systems)

    def _share_yes(self, labels: Sequence[AuditLabel], question: str) -> AuditShare:
        answers: list[tuple[str, float]] = []
        for label in labels:
            answer = getattr(label, question)
            if answer is not None:
                answers.append((label.row, float(answer)))
        return AuditShare(self.estimate(answers), len(labels) - len(answers))


def _direct(signs: Sequence[int], directions: Sequence[int]) -> list[int]:
    return [way * sign for sign in signs for way in directions]
