"""Pairs of replies for DPO from answers that judges or people ranked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from rolellm.judging.people.labels import RankingLabel, list_annotators, read_labels
from rolellm.judging.records import JudgeRun
from rolellm.making.reply_pairs import ReplyPair, pair_row

#: A row's id, systems in the order in which they were shown, and their ranks.
Ranking = tuple[str, Sequence[str], Sequence[float]]


def pair_judged(run: JudgeRun) -> Iterator[ReplyPair]:
    """Prefer the answer that all judges put first, in both orders; canaries take no part."""
    rankings = [
        (judgement.row, judgement.order, judgement.ranks)
        for judgement in run.judgements()
        if judgement.ranks is not None
    ]
    yield from _pair_answers("judge", run, rankings, in_both_orders=True)


def pair_votes(run: JudgeRun) -> Iterator[ReplyPair]:
    """Prefer the answer that people put first, on the page of ``rolellm chat`` or of ``rolellm label``."""
    rankings: list[Ranking] = []
    for annotator in list_annotators(run.folder, RankingLabel):
        for label in read_labels(run, annotator, RankingLabel).values():
            if label.ranks is not None:
                rankings.append((label.row, label.order, label.ranks))
    yield from _pair_answers("votes", run, rankings)


def _pair_answers(
    source: str, run: JudgeRun, rankings: Iterable[Ranking], *, in_both_orders: bool = False
) -> Iterator[ReplyPair]:
    """Pair the answers to a row on which all rankings agree.

    Args:
        source: The pairs' source.
        run: The run with the rows and answers.
        rankings: The rankings.
        in_both_orders: Whether each of the two answers must have been shown before the other.
    """
    comparison = run.comparison
    rows = {row.id: row for row in comparison.rows}
    for (row_id, names), verdicts in _collect_verdicts(rankings).items():
        winners = {winner for winner, _ in verdicts}
        first_shown = {shown for _, shown in verdicts}
        row = rows[row_id]
        # A vote on two roles says nothing of either.
        is_one_role = row.role_description is not None or " / " not in row.role
        if len(winners) > 1 or winners == {None} or not comparison.canaries.isdisjoint(names) or not is_one_role:
            continue
        if in_both_orders and len(first_shown) < 2:
            continue
        (winner,) = winners
        chosen, rejected = (comparison.answers[name][row_id] for name in sorted(names, key=lambda name: name != winner))
        yield pair_row(source, replace(row, id=f"{run.folder.name}/{row_id}"), chosen, rejected)


def _collect_verdicts(rankings: Iterable[Ranking]) -> dict[tuple[str, frozenset[str]], set[tuple[str | None, str]]]:
    """Collect the verdicts on every two answers to a row: the winner, ``None`` for a tie, and the one shown first."""
    verdicts: dict[tuple[str, frozenset[str]], set[tuple[str | None, str]]] = defaultdict(set)
    for row_id, order, ranks in rankings:
        for (first, first_rank), (second, second_rank) in combinations(zip(order, ranks, strict=True), 2):
            winner = None
            if first_rank != second_rank:
                winner = first if first_rank < second_rank else second
            verdicts[row_id, frozenset((first, second))].add((winner, first))
    return verdicts
