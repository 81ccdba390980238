"""How far judges agree with people, and people with one another, beyond chance.

Each figure comes with its n and with the interval of a bootstrap over questions. Of all pairs, each is counted in both
directions (a against b, b against a), so that kappa does not depend on how systems are named or sorted; n counts it
once. Both are our choices; the paper has people audit its data, and compares no judge with them.
"""

from __future__ import annotations

import functools
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Final, Literal, TypeVar, cast

import numpy as np
import numpy.typing as npt

from rolellm.core.errors import SettingsError
from rolellm.evaluation.score import metric_dict
from rolellm.evaluation.statistics.agreement import agreement_ci, cohen_kappa, fleiss_kappa, spearman
from rolellm.evaluation.statistics.bootstrap import Bootstrap, Interval, bootstrap_ci, share_ends
from rolellm.judging.aggregate import Verdicts, clusters_of, sort_out
from rolellm.judging.folder import JudgeRun
from rolellm.judging.parsing import mid_ranks
from rolellm.judging.people.labels import (
    AUDIT_QUESTIONS,
    AuditLabel,
    RankingLabel,
    auditors,
    labelled_systems,
    rankers,
    read_audit,
    read_rankings,
)
from rolellm.judging.types import Judgement

# --- The audit by people: what share of answers does what is asked, shows the style, and is correct


#: What the paper's people found of its data set's own replies, for the same three questions.
PAPER: Final[Mapping[str, float]] = {"instruction": 1.0, "style": 0.84, "correct": 0.77}


def audit_summary(run: JudgeRun, clusters: Mapping[str, int], settings: Bootstrap) -> dict[str, Any] | None:
    """What people said in the audit of a run.

    Args:
        run: The judging run.
        clusters: Row id to its question.
        settings: Of every bootstrap.

    Returns:
        ``None`` where nobody audited; else ``paper`` (its shares), ``annotators`` (labelled and skipped),
        ``systems`` (name to question to the share of yes, all people's answers counted alike, with ``cannot_tell``
        counted and left out of it), and ``agreement`` (each two people's Cohen's kappa, question by question).

    Raises:
        DataError: For labels that are none, or not of this run's answers.
    """
    found = {name: read_audit(run, name) for name in auditors(run.folder)}
    found = {name: labels for name, labels in found.items() if labels}
    if not found:
        return None
    said = {name: {key: label for key, label in labels.items() if not label.skipped} for name, labels in found.items()}
    everything = [label for labels in said.values() for label in labels.values()]
    names = sorted({label.system for label in everything})
    return {
        "paper": dict(PAPER),
        "annotators": [
            {"name": name, "labelled": len(said[name]), "skipped": len(labels) - len(said[name])}
            for name, labels in found.items()
        ],
        "systems": {
            name: {
                question: _share([one for one in everything if one.system == name], question, clusters, settings)
                for question in AUDIT_QUESTIONS
            }
            for name in names
        },
        "agreement": [
            {
                "a": one,
                "b": other,
                "kappa": {
                    question: _audit_kappa(said[one], said[other], question, clusters, settings) for question in PAPER
                },
            }
            for one, other in combinations(said, 2)
        ],
    }


def _share(
    labels: Sequence[AuditLabel], question: str, clusters: Mapping[str, int], settings: Bootstrap
) -> dict[str, Any]:
    known = [label for label in labels if getattr(label, question) is not None]
    share = None
    if known:
        yes = [bool(getattr(label, question)) for label in known]
        share = share_interval(yes, [clusters[label.row] for label in known], settings)
    return {"share": metric_dict(share), "cannot_tell": len(labels) - len(known)}


def share_interval(yes: Sequence[bool], questions: Sequence[int], settings: Bootstrap) -> Interval:
    """The share of yes, with the interval of a bootstrap over questions; see `share_ends` where all say the same."""
    values = [float(one) for one in yes]
    found = bootstrap_ci(values, questions, resamples=settings.resamples, seed=settings.seed, level=settings.level)
    return share_ends(found, settings.level)


def _audit_kappa(
    one: Mapping[tuple[str, ...], AuditLabel],
    other: Mapping[tuple[str, ...], AuditLabel],
    question: str,
    clusters: Mapping[str, int],
    settings: Bootstrap,
) -> dict[str, Any] | None:
    both = [(getattr(one[key], question), getattr(other[key], question), key) for key in sorted(one.keys() & other)]
    both = [item for item in both if None not in item[:2]]
    if not both:
        return None
    columns = [[item[side] for item in both] for side in (0, 1)]
    return metric_dict(agreement_ci(cohen_kappa, columns, [clusters[key[0]] for _, _, key in both], settings))


# --- Judges and people brought to one form, so that any two of them can be held side by side


Kind = Literal["judge", "jury", "person", "people"]
#: 1 better, 0 tie, -1 worse: of a system against the baseline by (row, system).
Baseline = Mapping[tuple[str, str], int]
#: The same of the first of two systems against the second, by (row, first, second), names sorted.
Pairs = Mapping[tuple[str, str, str], int]

_Key = TypeVar("_Key", bound=tuple[Any, ...])
_Rule = Callable[[Sequence[int]], int]

JURY = "majority of judges"
PEOPLE = "majority of people"


@dataclass(frozen=True, slots=True)
class Rater:
    """What one judge, one person, or a majority of either said.

    Attributes:
        name: The judge's or the annotator's.
        kind: Which of the four it is.
        baseline: Verdicts against the baseline.
        pairs: Verdicts on all pairs.
        ranks: Row id to system to rank, from 1 (best); means where a rater ranked several times.
    """

    name: str
    kind: Kind
    baseline: Baseline = field(default_factory=dict)
    pairs: Pairs = field(default_factory=dict)
    ranks: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def rows(self) -> set[str]:
        """Ids of the rows of which it said anything."""
        return {row for row, _ in self.baseline} | {row for row, _, _ in self.pairs} | set(self.ranks)


def person(name: str, labels: Sequence[RankingLabel], baseline: str | None) -> Rater:
    """A person, by rankings; skipped rows say nothing."""
    ranks = {label.row: dict(zip(label.order, label.ranks, strict=True)) for label in labels if label.ranks is not None}
    return Rater(name, "person", _against(ranks, baseline), _all_pairs(ranks), ranks)


def judge(name: str, verdicts: Verdicts, names: Sequence[str]) -> Rater:
    """A judge, by its verdicts on the systems named."""
    baseline = {
        (row, system): _sign(by_judge[name].mean - 0.5)
        for row, of_row in verdicts.pairs.items()
        for system, by_judge in of_row.items()
        if name in by_judge and system in names
    }
    pairs: dict[tuple[str, str, str], int] = {}
    ranks: dict[str, Mapping[str, float]] = {}
    for row, by_judge in verdicts.lists.items():
        lists = [found for one in by_judge.get(name, ()) if (found := _only(one, names))]
        if lists:
            pairs |= {(row, *pair): verdict for pair, verdict in _over_lists(lists).items()}
            ranks[row] = _mean_ranks(lists)
    return Rater(name, "judge", baseline, pairs, ranks)


def together(raters: Sequence[Rater], kind: Literal["jury", "people"]) -> Rater:
    """The majority of several raters; of people, in rows that at least two of them ranked."""
    people = kind == "people"
    least, rule = (2, _most) if people else (1, _lead)
    ranks: dict[str, list[Mapping[str, float]]] = defaultdict(list)
    for one in raters:
        for row, found in one.ranks.items():
            ranks[row].append(found)
    return Rater(
        PEOPLE if people else JURY,
        kind,
        _majority([one.baseline for one in raters], least, rule),
        _majority([one.pairs for one in raters], least, rule),
        # Those who ranked a row before another system joined saw other places.
        {
            row: _mean_ranks(found)
            for row, found in ranks.items()
            if len(found) >= least and len(set(map(frozenset, found))) == 1
        },
    )


def _majority(verdicts: Sequence[Mapping[_Key, int]], least: int, rule: _Rule) -> dict[_Key, int]:
    votes: dict[_Key, list[int]] = defaultdict(list)
    for found in verdicts:
        for key, verdict in found.items():
            votes[key].append(verdict)
    return {key: rule(said) for key, said in votes.items() if len(said) >= least}


def _lead(votes: Sequence[int]) -> int:
    return _sign(sum(votes))


def _most(votes: Sequence[int]) -> int:
    counts = Counter(votes).most_common()
    return 0 if len(counts) > 1 and counts[0][1] == counts[1][1] else counts[0][0]


def _against(ranks: Mapping[str, Mapping[str, float]], baseline: str | None) -> dict[tuple[str, str], int]:
    return {
        (row, name): _sign(of_row[baseline] - rank)
        for row, of_row in ranks.items()
        if baseline is not None and baseline in of_row
        for name, rank in of_row.items()
        if name != baseline
    }


def _all_pairs(ranks: Mapping[str, Mapping[str, float]]) -> dict[tuple[str, str, str], int]:
    return {
        (row, first, second): _sign(of_row[second] - of_row[first])
        for row, of_row in ranks.items()
        for first, second in combinations(sorted(of_row), 2)
    }


def _only(judgement: Judgement, names: Sequence[str]) -> dict[str, float]:
    """The ranks of those named, from 1 among themselves."""
    found = [(name, rank) for name, rank in zip(judgement.order, judgement.ranks or (), strict=True) if name in names]
    return dict(zip((name for name, _ in found), mid_ranks(tuple(rank for _, rank in found)), strict=True))


def _over_lists(lists: Sequence[Mapping[str, float]]) -> dict[tuple[str, str], int]:
    votes: dict[tuple[str, str], int] = defaultdict(int)
    for ranks in lists:
        for first, second in combinations(sorted(ranks), 2):
            votes[first, second] += _sign(ranks[second] - ranks[first])
    return {pair: _sign(vote) for pair, vote in votes.items()}


def _mean_ranks(lists: Sequence[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, list[float]] = defaultdict(list)
    for ranks in lists:
        for name, rank in ranks.items():
            found[name].append(rank)
    return {name: sum(ranks) / len(ranks) for name, ranks in found.items()}


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


# --- How far judges agree with people, and people with one another, beyond chance


#: Rows that two should have labelled both; with fewer, an interval is so wide that it says little (our choice).
ENOUGH_ROWS: Final = 30
#: Systems from which on a rank correlation says more than who won.
_LEAST_RANKED: Final = 3

Estimate = dict[str, Any]
Clusters = Mapping[str, int]
_DEFAULT = Bootstrap()


def agreement(run: JudgeRun, settings: Bootstrap = _DEFAULT) -> dict[str, Any]:
    """Hold all that people said of a run beside its judges, and beside one another.

    Args:
        run: With labels.
        settings: Of every bootstrap.

    Returns:
        A JSON object: ``rows`` that anybody ranked, ``baseline``, ``annotators`` (with the share of ties among the
        pairs that they ranked), ``judge_human`` and ``human_human`` (see `compare_raters`), ``fleiss_kappa`` of three
        or more people, ``audit`` (see `audit_summary`; null where nobody audited), ``warnings``.

    Raises:
        SettingsError: When nobody labelled anything.
        DataError: For labels that are none, or not of this run's answers.
    """
    names = labelled_systems(run.comparison)
    baseline = None if run.comparison.baseline is None else run.comparison.baseline.name
    clusters = clusters_of(run.comparison.rows)
    labels = {name: list(read_rankings(run, name).values()) for name in rankers(run.folder)}
    labels = {name: found for name, found in labels.items() if found}
    audit = audit_summary(run, clusters, settings)
    if not labels and audit is None:
        begin = f"rolellm label {shlex.quote(str(run.folder))} --annotator NAME"
        raise SettingsError(f"nobody has labelled anything yet; begin with: {begin}")
    people = [person(name, found, baseline) for name, found in labels.items()]
    verdicts = sort_out(run.judgements(), baseline, run.comparison.canaries) if people else None
    judges = []
    if verdicts:
        judges = [judge(name, verdicts, names) for name in sorted({n for of in verdicts.judges.values() for n in of})]
    human = [*people, together(people, "people")] if len(people) > 1 else people
    jury = [*judges, together(judges, "jury")] if len(judges) > 1 else judges
    judge_human = [compare_raters(one, other, clusters, settings) for one in jury for other in human]
    human_human = [compare_raters(one, other, clusters, settings) for one, other in combinations(people, 2)]
    return {
        "run": str(run.folder),
        "rows": len(set().union(*(one.ranks for one in people))),
        "baseline": baseline,
        "annotators": [_annotator(one, labels[one.name], clusters, settings) for one in people],
        "judge_human": judge_human,
        "human_human": human_human,
        "fleiss_kappa": _fleiss(people, clusters, settings) if len(people) > 2 else None,
        "audit": audit,
        "warnings": _warnings([*judge_human, *human_human]),
    }


def compare_raters(one: Rater, other: Rater, clusters: Clusters, settings: Bootstrap = _DEFAULT) -> dict[str, Any]:
    """How far two raters agree.

    Args:
        one: A judge or a person.
        other: A person.
        clusters: Row id to its question.
        settings: Of every bootstrap.

    Returns:
        ``a``, ``b`` and their kinds; ``rows`` of which both said something; ``baseline`` and ``all_pairs``, each with
        Cohen's ``kappa`` of better, tie and worse and the share that is the ``same``, or null where they share none;
        ``spearman_rows``, the mean over rows of the correlation of ranks, and ``spearman_models``, the correlation of
        systems' average ranks, both null with fewer than three systems.
    """
    rows = sorted(
        row for row in one.ranks.keys() & other.ranks.keys() if one.ranks[row].keys() == other.ranks[row].keys()
    )
    rows = [row for row in rows if len(one.ranks[row]) >= _LEAST_RANKED]
    return {
        "a": one.name,
        "a_kind": one.kind,
        "b": other.name,
        "b_kind": other.kind,
        "rows": len(one.rows & other.rows),
        "baseline": _kappa(one.baseline, other.baseline, clusters, settings, directions=(1,)),
        "all_pairs": _kappa(one.pairs, other.pairs, clusters, settings, directions=(1, -1)),
        "spearman_rows": _spearman_rows(one, other, rows, clusters, settings),
        "spearman_models": _spearman_models(one, other, rows, clusters, settings),
    }


def _kappa(
    first: Mapping[Any, int],
    second: Mapping[Any, int],
    clusters: Clusters,
    settings: Bootstrap,
    *,
    directions: tuple[int, ...],
) -> dict[str, Estimate | None] | None:
    shared = sorted(first.keys() & second.keys())
    if not shared:
        return None
    columns: list[Any] = [np.outer([said[key] for key in shared], directions) for said in (first, second)]
    questions = [clusters[key[0]] for key in shared]
    same = [float(first[key] == second[key]) for key in shared]
    return {
        "kappa": _estimate(agreement_ci(_cohen, columns, questions, settings)),
        "same": _estimate(_mean(same, questions, settings)),
    }


def _cohen(first: npt.NDArray[np.int64], second: npt.NDArray[np.int64]) -> float | None:
    return cohen_kappa(first.ravel().tolist(), second.ravel().tolist())


def _spearman_rows(
    one: Rater, other: Rater, rows: Sequence[str], clusters: Clusters, settings: Bootstrap
) -> Estimate | None:
    found = [(row, spearman(*_beside(one, other, row))) for row in rows]
    known = [(row, value) for row, value in found if value is not None]
    if not known:
        return None
    return _estimate(_mean([value for _, value in known], [clusters[row] for row, _ in known], settings))


def _spearman_models(
    one: Rater, other: Rater, rows: Sequence[str], clusters: Clusters, settings: Bootstrap
) -> Estimate | None:
    # Averages are over the same systems, those of the widest rows.
    names = max((sorted(one.ranks[row]) for row in rows), key=len, default=[])
    rows = [row for row in rows if sorted(one.ranks[row]) == names]
    if not rows:
        return None
    columns: list[Any] = [
        np.array([[rater.ranks[row][name] for name in names] for row in rows]) for rater in (one, other)
    ]
    return _estimate(agreement_ci(_average_ranks, columns, [clusters[row] for row in rows], settings))


def _average_ranks(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> float | None:
    # Averages that are equal on paper differ by the order in which they were summed.
    averages = [np.round(ranks.mean(axis=0), 9).tolist() for ranks in (first, second)]
    return _of_ranks(*map(mid_ranks, averages))


@functools.lru_cache(maxsize=1 << 14)
def _of_ranks(first: tuple[float, ...], second: tuple[float, ...]) -> float | None:
    # Thousands of resamples come to a few dozen orders.
    return spearman(first, second)


def _beside(one: Rater, other: Rater, row: str) -> tuple[list[float], list[float]]:
    names = sorted(one.ranks[row])
    return [one.ranks[row][name] for name in names], [other.ranks[row][name] for name in names]


def _annotator(who: Rater, labels: Sequence[RankingLabel], clusters: Clusters, settings: Bootstrap) -> dict[str, Any]:
    ties = [verdict == 0 for verdict in who.pairs.values()]
    seconds = [label.seconds for label in labels if not label.skipped]
    questions = [clusters[row] for row, _, _ in who.pairs]
    return {
        "name": who.name,
        "labelled": len(seconds),
        "skipped": len(labels) - len(seconds),
        "ties": _estimate(share_interval(ties, questions, settings)) if ties else None,
        "median_seconds": float(np.median(seconds)) if seconds else None,
    }


def _fleiss(people: Sequence[Rater], clusters: Clusters, settings: Bootstrap) -> dict[str, Estimate | None]:
    return {
        "baseline": _fleiss_of([one.baseline for one in people], clusters, settings, directions=(1,)),
        "all_pairs": _fleiss_of([one.pairs for one in people], clusters, settings, directions=(1, -1)),
    }


def _fleiss_of(
    verdicts: Sequence[Mapping[Any, int]], clusters: Clusters, settings: Bootstrap, *, directions: tuple[int, ...]
) -> Estimate | None:
    said = {key: [found[key] for found in verdicts if key in found] for key in sorted(set().union(*verdicts))}
    said = {key: votes for key, votes in said.items() if len(votes) > 1}
    if not said:
        return None
    counts = [[[votes.count(way * verdict) for verdict in (1, 0, -1)] for way in directions] for votes in said.values()]
    table: Any = np.array(counts)
    questions = [clusters[key[0]] for key in said]
    return _estimate(agreement_ci(_fleiss_both_ways, [table], questions, settings))


def _fleiss_both_ways(counts: npt.NDArray[np.int64]) -> float | None:
    return fleiss_kappa(counts.reshape(-1, 3))


def _mean(values: Sequence[float], questions: Sequence[int], settings: Bootstrap) -> Interval:
    return bootstrap_ci(values, questions, resamples=settings.resamples, seed=settings.seed, level=settings.level)


def _estimate(interval: Interval | None) -> Estimate | None:
    return metric_dict(interval)


def _warnings(comparisons: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        f"{one['a']} and {one['b']} share {one['rows']} rows; with fewer than {ENOUGH_ROWS}, agreement says little"
        for one in comparisons
        if cast(int, one["rows"]) < ENOUGH_ROWS
    ]
