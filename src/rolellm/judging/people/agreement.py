"""How far judges agree with people, and people with one another, beyond chance.

Each figure comes with its n and its intervals; only the correlation of systems' average ranks has none, since a few
systems have too few orders for one. Of all pairs, each is counted in both directions (a against b, b against a), so
that kappa does not depend on how systems are named or sorted; n counts it once. Both are our choices; the paper has
people audit its data, and compares no judge with them.
"""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Final, Literal

import numpy as np

from rolellm.core.errors import SettingsError
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
from rolellm.scoring.statistics.intervals import Interval, encode_interval

#: What the paper's people found of its data set's own replies, for the same three questions.
PAPER: Final[Mapping[str, float]] = {"instruction": 1.0, "style": 0.84, "correct": 0.77}
#: Rows that two should have labelled both; with fewer, an interval is so wide that it says little (our choice).
ENOUGH_ROWS: Final = 30
JURY = "majority of judges"
PEOPLE = "majority of people"
# Verdicts against the baseline have a direction; those of any two systems count in both.
_DIRECTIONS: Mapping[str, tuple[int, ...]] = {"baseline": (1,), "all_pairs": (1, -1)}

Ranks = Mapping[str, float]
Signs = Mapping[tuple[str, ...], int]
Metric = dict[str, Any] | None
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
    verdicts: Mapping[str, Signs]
    ranks: Mapping[str, Ranks]

    @property
    def rows(self) -> set[str]:
        """Ids of the rows of which it said anything."""
        return {key[0] for signs in self.verdicts.values() for key in signs} | set(self.ranks)


def build_person_rater(name: str, labels: Sequence[RankingLabel], baseline: str | None) -> Rater:
    """A person, by rankings; skipped rows say nothing."""
    ranks: dict[str, Ranks] = {
        label.row: dict(zip(label.order, label.ranks, strict=True)) for label in labels if label.ranks is not None
    }
    pairs = _compare_ranks({row: [of_row] for row, of_row in ranks.items()})
    against: Signs = {
        (row, first if second == baseline else second): sign if second == baseline else -sign
        for (row, first, second), sign in pairs.items()
        if baseline in (first, second)
    }
    return Rater(name, "person", {"baseline": against, "all_pairs": pairs}, ranks)


def build_judge_rater(name: str, verdicts: Verdicts, names: Sequence[str]) -> Rater:
    """A judge, by its verdicts on the systems named."""
    against: Signs = {
        (pair.row, pair.system): compute_sign(pair.mean - 0.5)
        for pair in verdicts.pairs
        if pair.judge == name and pair.system in names
    }
    lists: dict[str, list[Ranks]] = defaultdict(list)
    for judgement in verdicts.lists:
        if judgement.judge == name and (ranks := _select_ranks(judgement, names)):
            lists[judgement.row].append(ranks)
    means = {row: _compute_mean_ranks(row_ranks) for row, row_ranks in lists.items()}
    return Rater(name, "judge", {"baseline": against, "all_pairs": _compare_ranks(lists)}, means)


def combine_raters(raters: Sequence[Rater], kind: Literal["jury", "people"]) -> Rater:
    """The majority of several raters; of people, in rows that at least two of them ranked."""
    least = 2 if kind == "people" else 1
    ranks: dict[str, list[Ranks]] = defaultdict(list)
    for rater in raters:
        for row, row_ranks in rater.ranks.items():
            ranks[row].append(row_ranks)
    verdicts = {}
    for which in _DIRECTIONS:
        votes = _collect_votes([rater.verdicts[which] for rater in raters], least)
        verdicts[which] = {
            key: _pick_most_frequent(item_votes) if kind == "people" else compute_sign(sum(item_votes))
            for key, item_votes in votes.items()
        }
    # Those who ranked a row before another system joined saw other places.
    means = {
        row: _compute_mean_ranks(row_ranks)
        for row, row_ranks in ranks.items()
        if len(row_ranks) >= least and len(set(map(frozenset, row_ranks))) == 1
    }
    return Rater(PEOPLE if kind == "people" else JURY, kind, verdicts, means)


def _collect_votes(verdicts: Sequence[Signs], least: int) -> dict[tuple[str, ...], list[int]]:
    votes = {key: [signs[key] for signs in verdicts if key in signs] for key in sorted(set().union(*verdicts))}
    return {key: item_votes for key, item_votes in votes.items() if len(item_votes) >= least}


def _pick_most_frequent(votes: Sequence[int]) -> int:
    counts = Counter(votes).most_common()
    return 0 if len(counts) > 1 and counts[0][1] == counts[1][1] else counts[0][0]


def _compare_ranks(lists: Mapping[str, Sequence[Ranks]]) -> dict[tuple[str, ...], int]:
    """Compare which system was ranked above which in most of a row's lists."""
    lead: dict[tuple[str, ...], int] = defaultdict(int)
    for row, row_lists in lists.items():
        for ranks in row_lists:
            for first, second in combinations(sorted(ranks), 2):
                lead[row, first, second] += compute_sign(ranks[second] - ranks[first])
    return {key: compute_sign(votes) for key, votes in lead.items()}


def _select_ranks(judgement: Judgement, names: Sequence[str]) -> Ranks:
    """The ranks of those named, from 1 among themselves."""
    ranks = {name: rank for name, rank in zip(judgement.order, judgement.ranks or (), strict=True) if name in names}
    return dict(zip(ranks, compute_mid_ranks(tuple(ranks.values())), strict=True))


def _compute_mean_ranks(lists: Sequence[Ranks]) -> Ranks:
    ranks_by_name: dict[str, list[float]] = defaultdict(list)
    for name, rank in (item for ranks in lists for item in ranks.items()):
        ranks_by_name[name].append(rank)
    return {name: sum(ranks) / len(ranks) for name, ranks in ranks_by_name.items()}


def measure_agreement(run: JudgeRun) -> dict[str, Any]:
    """Compare all that people said of a run with its judges, and with one another.

    Args:
        run: With labels.

    Returns:
        A JSON object: ``rows`` that anybody ranked, ``baseline``, ``annotators`` (rows ``labelled`` and ``skipped``),
        ``judge_human`` and ``human_human`` (see `AgreementMeasures.compare`), ``fleiss_kappa`` and
        ``krippendorff_alpha`` (with a tie between a win and a loss) of three or more people, ``audit`` (see
        `AgreementMeasures.summarize_audit`; null where nobody audited), ``warnings``.

    Raises:
        SettingsError: When nobody labelled anything.
        DataError: For damaged labels, or labels of other answers than this run's.
    """
    names = list_labelled_systems(run.comparison)
    baseline = run.comparison.baseline
    measured = AgreementMeasures(run.comparison.rows)
    rankers, auditors = (list_annotators(run.folder, kind) for kind in (RankingLabel, AuditLabel))
    labels = {name: items for name in rankers if (items := list(read_labels(run, name, RankingLabel).values()))}
    audits = {name: answers for name in auditors if (answers := read_labels(run, name, AuditLabel))}
    if not labels and not audits:
        begin = f"rolellm label {shlex.quote(str(run.folder))} --annotator NAME"
        raise SettingsError(f"nobody has labelled anything yet; begin with: {begin}")
    people = [build_person_rater(name, items, baseline) for name, items in labels.items()]
    judges = []
    if people:
        verdicts = sort_verdicts(run.judgements(), baseline, run.comparison.canaries)
        judge_names = sorted({name for of_design in verdicts.judges.values() for name in of_design})
        judges = [build_judge_rater(name, verdicts, names) for name in judge_names]
    human = [*people, combine_raters(people, "people")] if len(people) > 1 else people
    jury = [*judges, combine_raters(judges, "jury")] if len(judges) > 1 else judges
    compared = {
        "judge_human": [measured.compare(first, second) for first in jury for second in human],
        "human_human": [measured.compare(first, second) for first, second in combinations(people, 2)],
    }
    return {
        "run": str(run.folder),
        "rows": len(set().union(*(first.ranks for first in people))),
        "baseline": baseline,
        "annotators": [_count_labels(name, items) for name, items in labels.items()],
        **compared,
        "fleiss_kappa": measured.measure_people(people, compute_fleiss_kappa) if len(people) > 2 else None,
        "krippendorff_alpha": measured.measure_people(people, compute_krippendorff_alpha) if len(people) > 2 else None,
        "audit": measured.summarize_audit(audits) if audits else None,
        "warnings": [
            f"{pair['a']} and {pair['b']} share {pair['rows']} rows; "
            f"with fewer than {ENOUGH_ROWS}, agreement says little"
            for pairs in compared.values()
            for pair in pairs
            if pair["rows"] < ENOUGH_ROWS
        ],
    }


def _count_labels(name: str, labels: Sequence[Label]) -> dict[str, Any]:
    skipped = sum(label.skipped for label in labels)
    return {"name": name, "labelled": len(labels) - skipped, "skipped": skipped}


class AgreementMeasures(RowClusters):
    """Measures of agreement, each with its interval."""

    def compare(self, first: Rater, second: Rater) -> dict[str, Any]:
        """Compare a judge or a person with a person: how far they agree.

        Returns:
            ``a``, ``b`` and their kinds; ``rows`` of which both said something; ``baseline`` and ``all_pairs``, each
            with Cohen's ``kappa`` of better, tie and worse, its ``weighted_kappa`` (with a tie between the others), and
            the share that is the ``same``, or null where they share none; ``spearman_rows``, the mean over rows of the
            correlation of ranks, and ``spearman_models``, the correlation of systems' average ranks, both null with
            fewer than three systems.
        """
        # With two systems, a rank correlation says no more than who won.
        ranked = {
            row: (list(map(ranks.__getitem__, sorted(ranks))), list(map(second.ranks[row].__getitem__, sorted(ranks))))
            for row, ranks in sorted(first.ranks.items())
            if len(ranks) > 2 and ranks.keys() == second.ranks.get(row, {}).keys()
        }
        by_row = {
            row: value for row, rank_lists in ranked.items() if (value := compute_spearman(*rank_lists)) is not None
        }
        # Averages are over the same systems, those of the widest rows.
        names = max((sorted(first.ranks[row]) for row in ranked), key=len, default=[])
        alike = [row for row in ranked if sorted(first.ranks[row]) == names]
        # Averages that are equal on paper differ by the order in which they were summed.
        averages = [np.mean([ranked[row][index] for row in alike], axis=0).round(9) for index in (0, 1) if alike]
        rho, questions = compute_spearman(*averages) if alike else None, {self.questions[row] for row in alike}
        between = None if rho is None else Interval(rho, n=len(alike), clusters=len(questions))
        return {
            "a": first.name,
            "a_kind": first.kind,
            "b": second.name,
            "b_kind": second.kind,
            "rows": len(first.rows & second.rows),
            **{
                which: self._measure_kappa(first.verdicts[which], second.verdicts[which], which)
                for which in _DIRECTIONS
            },
            "spearman_rows": encode_interval(self.estimate(by_row.items(), (-1.0, 1.0))),
            "spearman_models": encode_interval(between),
        }

    def measure_people(
        self, people: Sequence[Rater], measure: Callable[[Votes], CorrectedAgreement]
    ) -> dict[str, Metric]:
        """Agreement of several people, against the baseline and over all pairs."""
        measures: dict[str, Metric] = {}
        for which, directions in _DIRECTIONS.items():
            votes = _collect_votes([rater.verdicts[which] for rater in people], 2)
            directed = [[way * vote for vote in item_votes] for item_votes in votes.values() for way in directions]
            measures[which] = (
                self._estimate_agreement(measure(directed), [key[0] for key in votes], len(directions))
                if votes
                else None
            )
        return measures

    def summarize_audit(self, audits: Mapping[str, Mapping[tuple[str, ...], AuditLabel]]) -> dict[str, Any]:
        """Summarize what people said in the audit of a run.

        Returns:
            ``paper`` (its shares), ``annotators`` (labelled and skipped), and ``systems`` (name to question to the
            share of yes, all people's answers counted alike, with ``cannot_tell`` counted and left out of it).
        """
        everything: dict[str, list[AuditLabel]] = defaultdict(list)
        for label in (label for audit_labels in audits.values() for label in audit_labels.values()):
            if not label.skipped:
                everything[label.system].append(label)
        return {
            "paper": dict(PAPER),
            "annotators": [_count_labels(name, [*audit_labels.values()]) for name, audit_labels in audits.items()],
            "systems": {
                name: {question: self._share_yes(labels, question) for question in AUDIT_QUESTIONS}
                for name, labels in sorted(everything.items())
            },
        }

    def _share_yes(self, labels: Sequence[AuditLabel], question: str) -> dict[str, Any]:
        answers = [(label.row, float(yes)) for label in labels if (yes := getattr(label, question)) is not None]
        return {"share": encode_interval(self.estimate(answers)), "cannot_tell": len(labels) - len(answers)}

    def _measure_kappa(self, first: Signs, second: Signs, which: str) -> dict[str, Metric] | None:
        shared = sorted(first.keys() & second.keys())
        if not shared:
            return None
        rows, directions = [key[0] for key in shared], _DIRECTIONS[which]
        first_signs, second_signs = (
            [way * signs[key] for key in shared for way in directions] for signs in (first, second)
        )
        return {
            "kappa": self._estimate_agreement(compute_cohen_kappa(first_signs, second_signs), rows, len(directions)),
            "weighted_kappa": self._estimate_agreement(
                compute_cohen_kappa(first_signs, second_signs, weights="linear"), rows, len(directions)
            ),
            "same": encode_interval(self.estimate((key[0], float(first[key] == second[key])) for key in shared)),
        }

    def _estimate_agreement(self, agreement: CorrectedAgreement, rows: Sequence[str], directions: int = 1) -> Metric:
        # Both directions of a pair are one item; only what chance would reach is that of both.
        once = replace(agreement, items=[item // directions for item in agreement.items])
        return encode_interval(once.estimate(*self.look_up(rows)))
