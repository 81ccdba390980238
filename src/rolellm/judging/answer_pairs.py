"""Pairs of replies for DPO from answers that judges or people ranked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from rolellm.judging.people.labels import RankingLabel, list_annotators, read_labels
from rolellm.judging.records import JudgeRun
from rolellm.judging.verdicts import compute_sign
from rolellm.making.reply_pairs import ReplyPair, pair_row


def pair_judged(run: JudgeRun) -> Iterator[ReplyPair]:
    """Prefer the answer that all judges put first, in both orders; canaries take no part."""
    judgements = run.judgements()
    verdicts = ((one.row, one.order, one.ranks) for one in judgements if one.ranks is not None)
    yield from _pair_answers("judge", run, verdicts, in_both_orders=True)


def pair_votes(run: JudgeRun) -> Iterator[ReplyPair]:
    """Prefer the answer that people put first, on the page of ``rolellm chat`` or of ``rolellm label``."""
    people = (read_labels(run, name, RankingLabel).values() for name in list_annotators(run.folder, RankingLabel))
    ranked = ((label.row, label.order, label.ranks) for labels in people for label in labels if label.ranks is not None)
    yield from _pair_answers("votes", run, ranked)


def _pair_answers(
    source: str,
    run: JudgeRun,
    rankings: Iterable[tuple[str, Sequence[str], Sequence[float]]],
    *,
    in_both_orders: bool = False,
) -> Iterator[ReplyPair]:
    """Pair the answers to a row on which all rankings agree.

    Args:
        source: The pairs' source.
        run: The run with the rows and answers.
        rankings: A row's id, systems in the order in which they were shown, and their ranks.
        in_both_orders: Whether each of the two answers must have been shown before the other.
    """
    comparison = run.comparison
    verdicts: dict[tuple[str, str, str], set[tuple[bool, int]]] = defaultdict(set)
    for row_id, order, ranks in rankings:
        for (name, rank), (other, other_rank) in combinations(zip(order, ranks, strict=True), 2):
            is_sorted = name < other
            sign = compute_sign(other_rank - rank) * (1 if is_sorted else -1)
            verdicts[row_id, min(name, other), max(name, other)].add((is_sorted, sign))
    rows = {row.id: row for row in comparison.rows}
    for (row_id, first, second), values in verdicts.items():
        signs = {sign for _, sign in values}
        row = rows[row_id]
        # A vote on two roles says nothing of either.
        is_one_role = row.role_description is not None or " / " not in row.role
        if len(signs) > 1 or signs == {0} or {first, second} & comparison.canaries or not is_one_role:
            continue
        if in_both_orders and len(values) < 2:
            continue
        winner, loser = (first, second) if signs == {1} else (second, first)
        chosen, rejected = (comparison.answers[name][row_id] for name in (winner, loser))
        yield pair_row(source, replace(row, id=f"{run.folder.name}/{row_id}"), chosen, rejected)
