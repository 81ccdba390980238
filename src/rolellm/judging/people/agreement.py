"""How far judges agree with people, and people with one another, beyond chance.

Each figure comes with its n and with the interval of a bootstrap over questions. Of all pairs, each is counted in both
directions (a against b, b against a), so that kappa does not depend on how systems are named or sorted; n counts it
once. Both are our choices; the paper has people audit its data, and compares no judge with them.
"""

from __future__ import annotations

import functools
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from rolellm.core.errors import SettingsError
from rolellm.evaluation.score import metric_dict
from rolellm.evaluation.statistics.agreement import agreement_ci, cohen_kappa, fleiss_kappa, spearman
from rolellm.evaluation.statistics.bootstrap import Bootstrap, Sample
from rolellm.judging.aggregate import Verdicts, clusters_of, estimates, sort_out
from rolellm.judging.folder import JudgeRun
from rolellm.judging.parsing import mid_ranks
from rolellm.judging.people.labels import (
    AUDIT_QUESTIONS,
    AuditLabel,
    RankingLabel,
    annotators,
    labelled_systems,
    read_labels,
)
from rolellm.judging.types import Judgement

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


@dataclass(frozen=True, slots=True)
class Rater:
    """What one judge, one person, or a majority of either said.

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


def person_rater(name: str, labels: Sequence[RankingLabel], baseline: str | None) -> Rater:
    """A person, by rankings; skipped rows say nothing."""
    ranks: dict[str, Ranks] = {
        label.row: dict(zip(label.order, label.ranks, strict=True)) for label in labels if label.ranks is not None
    }
    pairs = _signs({row: [of_row] for row, of_row in ranks.items()})
    against: Signs = {
        (row, first if second == baseline else second): sign if second == baseline else -sign
        for (row, first, second), sign in pairs.items()
        if baseline in (first, second)
    }
    return Rater(name, "person", {"baseline": against, "all_pairs": pairs}, ranks)


def judge_rater(name: str, verdicts: Verdicts, names: Sequence[str]) -> Rater:
    """A judge, by its verdicts on the systems named."""
    against: Signs = {
        (row, system): _sign(by_judge[name].mean - 0.5)
        for row, of_row in verdicts.pairs.items()
        for system, by_judge in of_row.items()
        if name in by_judge and system in names
    }
    lists: dict[str, list[Ranks]] = {
        row: found
        for row, by_judge in verdicts.lists.items()
        if (found := [ranks for one in by_judge.get(name, ()) if (ranks := _only(one, names))])
    }
    means = {row: _mean_ranks(found) for row, found in lists.items()}
    return Rater(name, "judge", {"baseline": against, "all_pairs": _signs(lists)}, means)


def together(raters: Sequence[Rater], kind: Literal["jury", "people"]) -> Rater:
    """The majority of several raters; of people, in rows that at least two of them ranked."""
    least = 2 if kind == "people" else 1
    ranks: dict[str, list[Ranks]] = defaultdict(list)
    for one in raters:
        for row, found in one.ranks.items():
            ranks[row].append(found)
    verdicts = {}
    for which in _DIRECTIONS:
        votes = _votes([one.verdicts[which] for one in raters], least)
        verdicts[which] = {key: _most(said) if kind == "people" else _sign(sum(said)) for key, said in votes.items()}
    # Those who ranked a row before another system joined saw other places.
    means = {
        row: _mean_ranks(found)
        for row, found in ranks.items()
        if len(found) >= least and len(set(map(frozenset, found))) == 1
    }
    return Rater(PEOPLE if kind == "people" else JURY, kind, verdicts, means)


def _votes(verdicts: Sequence[Signs], least: int) -> dict[tuple[str, ...], list[int]]:
    found = {key: [signs[key] for signs in verdicts if key in signs] for key in sorted(set().union(*verdicts))}
    return {key: said for key, said in found.items() if len(said) >= least}


def _most(votes: Sequence[int]) -> int:
    counts = Counter(votes).most_common()
    return 0 if len(counts) > 1 and counts[0][1] == counts[1][1] else counts[0][0]


def _signs(lists: Mapping[str, Sequence[Ranks]]) -> dict[tuple[str, ...], int]:
    """Who was ranked above whom in most of a row's lists."""
    lead: dict[tuple[str, ...], int] = defaultdict(int)
    for row, found in lists.items():
        for ranks in found:
            for first, second in combinations(sorted(ranks), 2):
                lead[row, first, second] += _sign(ranks[second] - ranks[first])
    return {key: _sign(votes) for key, votes in lead.items()}


def _only(judgement: Judgement, names: Sequence[str]) -> Ranks:
    """The ranks of those named, from 1 among themselves."""
    found = {name: rank for name, rank in zip(judgement.order, judgement.ranks or (), strict=True) if name in names}
    return dict(zip(found, mid_ranks(tuple(found.values())), strict=True))


def _mean_ranks(lists: Sequence[Ranks]) -> Ranks:
    found: dict[str, list[float]] = defaultdict(list)
    for name, rank in (item for ranks in lists for item in ranks.items()):
        found[name].append(rank)
    return {name: sum(ranks) / len(ranks) for name, ranks in found.items()}


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def agreement(run: JudgeRun, settings: Bootstrap | None = None) -> dict[str, Any]:
    """Compare all that people said of a run with its judges, and with one another.

    Args:
        run: With labels.
        settings: Of every bootstrap.

    Returns:
        A JSON object: ``rows`` that anybody ranked, ``baseline``, ``annotators`` (with the share of ties among the
        pairs that they ranked), ``judge_human`` and ``human_human`` (see `Agreement.compare`), ``fleiss_kappa`` of
        three or more people, ``audit`` (see `Agreement.audit`; null where nobody audited), ``warnings``.

    Raises:
        SettingsError: When nobody labelled anything.
        DataError: For damaged labels, or labels of other answers than this run's.
    """
    names = labelled_systems(run.comparison)
    baseline = None if run.comparison.baseline is None else run.comparison.baseline.name
    measured = Agreement(clusters_of(run.comparison.rows), settings or Bootstrap())
    rankers, auditors = (annotators(run.folder, kind) for kind in (RankingLabel, AuditLabel))
    labels = {name: found for name in rankers if (found := list(read_labels(run, name, RankingLabel).values()))}
    audits = {name: said for name in auditors if (said := read_labels(run, name, AuditLabel))}
    if not labels and not audits:
        begin = f"rolellm label {shlex.quote(str(run.folder))} --annotator NAME"
        raise SettingsError(f"nobody has labelled anything yet; begin with: {begin}")
    people = [person_rater(name, found, baseline) for name, found in labels.items()]
    judges = []
    if people:
        verdicts = sort_out(run.judgements(), baseline, run.comparison.canaries)
        known = sorted({name for of_design in verdicts.judges.values() for name in of_design})
        judges = [judge_rater(name, verdicts, names) for name in known]
    human = [*people, together(people, "people")] if len(people) > 1 else people
    jury = [*judges, together(judges, "jury")] if len(judges) > 1 else judges
    compared = {
        "judge_human": [measured.compare(one, other) for one in jury for other in human],
        "human_human": [measured.compare(one, other) for one, other in combinations(people, 2)],
    }
    return {
        "run": str(run.folder),
        "rows": len(set().union(*(one.ranks for one in people))),
        "baseline": baseline,
        "annotators": [measured.annotator(one, labels[one.name]) for one in people],
        **compared,
        "fleiss_kappa": measured.fleiss(people) if len(people) > 2 else None,
        "audit": measured.audit(audits) if audits else None,
        "warnings": [
            f"{one['a']} and {one['b']} share {one['rows']} rows; with fewer than {ENOUGH_ROWS}, agreement says little"
            for found in compared.values()
            for one in found
            if one["rows"] < ENOUGH_ROWS
        ],
    }


@dataclass(frozen=True)
class Agreement:
    """Measures of agreement, each with its interval.

    Attributes:
        clusters: Row id to its question.
        settings: Of every bootstrap.
    """

    clusters: Mapping[str, int]
    settings: Bootstrap

    def compare(self, one: Rater, other: Rater) -> dict[str, Any]:
        """How far a judge or a person agrees with a person.

        Returns:
            ``a``, ``b`` and their kinds; ``rows`` of which both said something; ``baseline`` and ``all_pairs``, each
            with Cohen's ``kappa`` of better, tie and worse and the share that is the ``same``, or null where they share
            none; ``spearman_rows``, the mean over rows of the correlation of ranks, and ``spearman_models``, the
            correlation of systems' average ranks, both null with fewer than three systems.
        """
        # With two systems, a rank correlation says no more than who won.
        ranked = {
            row: (list(map(ranks.__getitem__, sorted(ranks))), list(map(other.ranks[row].__getitem__, sorted(ranks))))
            for row, ranks in sorted(one.ranks.items())
            if len(ranks) > 2 and ranks.keys() == other.ranks.get(row, {}).keys()
        }
        by_row = {row: value for row, both in ranked.items() if (value := spearman(*both)) is not None}
        # Averages are over the same systems, those of the widest rows.
        names = max((sorted(one.ranks[row]) for row in ranked), key=len, default=[])
        alike = [row for row in ranked if sorted(one.ranks[row]) == names]
        columns = [np.array([ranked[row][side] for row in alike]) for side in (0, 1)]
        return {
            "a": one.name,
            "a_kind": one.kind,
            "b": other.name,
            "b_kind": other.kind,
            "rows": len(one.rows & other.rows),
            **{which: self._kappa(one.verdicts[which], other.verdicts[which], which) for which in _DIRECTIONS},
            "spearman_rows": self._mean(by_row.values(), by_row),
            "spearman_models": self._ci(_average_ranks, columns, alike),
        }

    def annotator(self, who: Rater, labels: Sequence[RankingLabel]) -> dict[str, Any]:
        """How much a person labelled, and how decidedly."""
        pairs = who.verdicts["all_pairs"]
        seconds = [label.seconds for label in labels if not label.skipped]
        return {
            "name": who.name,
            "labelled": len(seconds),
            "skipped": len(labels) - len(seconds),
            "ties": self._mean([float(sign == 0) for sign in pairs.values()], [key[0] for key in pairs], shares=True),
            "median_seconds": float(np.median(seconds)) if seconds else None,
        }

    def fleiss(self, people: Sequence[Rater]) -> dict[str, Metric]:
        """Fleiss' kappa of several people, against the baseline and over all pairs."""
        found = {}
        for which, directions in _DIRECTIONS.items():
            votes = _votes([one.verdicts[which] for one in people], 2)
            counts = [
                [[said.count(way * verdict) for verdict in (1, 0, -1)] for way in directions] for said in votes.values()
            ]
            found[which] = self._ci(_fleiss_both_ways, [np.array(counts)], [key[0] for key in votes])
        return found

    def audit(self, audits: Mapping[str, Mapping[tuple[str, ...], AuditLabel]]) -> dict[str, Any]:
        """What people said in the audit of a run.

        Returns:
            ``paper`` (its shares), ``annotators`` (labelled and skipped), ``systems`` (name to question to the share of
            yes, all people's answers counted alike, with ``cannot_tell`` counted and left out of it), and
            ``agreement`` (each two people's Cohen's kappa, question by question).
        """
        said = {name: {key: one for key, one in found.items() if not one.skipped} for name, found in audits.items()}
        everything: dict[str, list[AuditLabel]] = defaultdict(list)
        for one in (one for labels in said.values() for one in labels.values()):
            everything[one.system].append(one)
        return {
            "paper": dict(PAPER),
            "annotators": [
                {"name": name, "labelled": len(said[name]), "skipped": len(found) - len(said[name])}
                for name, found in audits.items()
            ],
            "systems": {
                name: {question: self._yes(labels, question) for question in AUDIT_QUESTIONS}
                for name, labels in sorted(everything.items())
            },
            "agreement": [
                {
                    "a": a,
                    "b": b,
                    "kappa": {question: self._audit_kappa(said[a], said[b], question) for question in PAPER},
                }
                for a, b in combinations(said, 2)
            ],
        }

    def _yes(self, labels: Sequence[AuditLabel], question: str) -> dict[str, Any]:
        known = [(float(yes), one.row) for one in labels if (yes := getattr(one, question)) is not None]
        share = self._mean([yes for yes, _ in known], [row for _, row in known], shares=True)
        return {"share": share, "cannot_tell": len(labels) - len(known)}

    def _audit_kappa(
        self, one: Mapping[tuple[str, ...], AuditLabel], other: Mapping[tuple[str, ...], AuditLabel], question: str
    ) -> Metric:
        both = [
            (key[0], getattr(one[key], question), getattr(other[key], question)) for key in sorted(one.keys() & other)
        ]
        both = [item for item in both if None not in item]
        return self._ci(cohen_kappa, [[item[side] for item in both] for side in (1, 2)], [row for row, *_ in both])

    def _kappa(self, first: Signs, second: Signs, which: str) -> dict[str, Metric] | None:
        shared = sorted(first.keys() & second.keys())
        rows = [key[0] for key in shared]
        columns = [np.outer([said[key] for key in shared], _DIRECTIONS[which]) for said in (first, second)]
        same = [float(first[key] == second[key]) for key in shared]
        return {"kappa": self._ci(_cohen, columns, rows), "same": self._mean(same, rows)} if shared else None

    def _ci(self, measure: Callable[..., float | None], columns: Sequence[Any], rows: Sequence[str]) -> Metric:
        if not rows:
            return None
        return metric_dict(agreement_ci(measure, columns, [self.clusters[row] for row in rows], self.settings))

    def _mean(self, values: Iterable[float], rows: Iterable[str], *, shares: bool = False) -> Metric:
        sample = Sample(list(values), [self.clusters[row] for row in rows])
        return estimates({"": sample}, self.settings, shares=shares)[""]


def _cohen(first: npt.NDArray[np.int64], second: npt.NDArray[np.int64]) -> float | None:
    return cohen_kappa(first.ravel().tolist(), second.ravel().tolist())


def _average_ranks(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> float | None:
    # Averages that are equal on paper differ by the order in which they were summed.
    averages = [np.round(ranks.mean(axis=0), 9).tolist() for ranks in (first, second)]
    return _of_ranks(*map(mid_ranks, averages))


@functools.lru_cache(maxsize=1 << 14)
def _of_ranks(first: tuple[float, ...], second: tuple[float, ...]) -> float | None:
    # Thousands of resamples come to a few dozen orders.
    return spearman(first, second)


def _fleiss_both_ways(counts: npt.NDArray[np.int64]) -> float | None:
    return fleiss_kappa(counts.reshape(-1, 3))
