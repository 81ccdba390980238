"""In which orders answers are shown: every pair in both, every list in rotations of one drawn by content.

What is drawn is drawn from the row's id and the names, not from a stream of random numbers: other rows, another
system or another order of the data change nothing about it, so a run that grows asks only for what is new.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rolellm.core.errors import SettingsError
from rolellm.core.fingerprint import hash_json
from rolellm.core.records import Row
from rolellm.judging.judge_models import Judge
from rolellm.judging.types import Comparison

#: Answers in one list at most: each has a letter.
MOST_ANSWERS = 26
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class Design:
    """Which orders are asked for.

    Attributes:
        rotations: How often a list is shown, each time turned further, so that answers change places (our choice: 2).
            As many as there are systems put each answer in each place once.
        name_probe: Rows for which pairs are judged a second time with the names shown (our choice: 50); 0 for none.
        seed: Another seed draws other orders, and other rows for the probe.
    """

    rotations: int = 2
    name_probe: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rotations < 1:
            raise SettingsError(f"rotations must be at least 1, not {self.rotations}")
        if self.name_probe < 0:
            raise SettingsError(f"name_probe must be 0 or more rows, not {self.name_probe}")


@dataclass(frozen=True, slots=True)
class Ask:
    """One verdict to ask for.

    Attributes:
        row: Index of the row.
        judge: Who is asked.
        order: Names of the systems, as shown.
        named: Whether their names are shown.
    """

    row: int
    judge: Judge
    order: tuple[str, ...]
    named: bool = False


def planned(comparison: Comparison, judges: Sequence[Judge], design: Design) -> list[Ask]:
    """Every verdict to ask for, row by row, so that what rows share is asked together.

    A pair is asked for where the system and the baseline both answered; a list where every system did.

    Raises:
        SettingsError: When pairs are to be judged and there is no baseline, lists of fewer than two answers, or of more
            than have letters; and where no verdict can be asked for at all.
    """
    for judge in judges:
        _check(comparison, judge)
    probed = _probed(comparison, design)
    asks = [
        ask
        for index, row in enumerate(comparison.rows)
        for ask in _of_row(comparison, judges, design, index, row, probed)
    ]
    if not asks:
        raise SettingsError("nothing to judge: no list or pair has all its answers; give more predictions")
    return asks


def _check(comparison: Comparison, judge: Judge) -> None:
    found = len(comparison.systems)
    if judge.design == "pairwise" and comparison.baseline is None:
        raise SettingsError(
            f"{judge.settings.name} compares with a baseline, and this run has none; name one with --baseline"
        )
    if found < 2:
        raise SettingsError("nothing to compare with; give more predictions, or a baseline with --baseline")
    if judge.design == "listwise" and found > MOST_ANSWERS:
        raise SettingsError(
            f"{found} systems are more than a list holds ({MOST_ANSWERS}); judge pairs: --judge role-pair"
        )


def _of_row(
    comparison: Comparison, judges: Sequence[Judge], design: Design, index: int, row: Row, probed: frozenset[str]
) -> Iterator[Ask]:
    there = [one for one in comparison.systems if row.id in comparison.answers[one.name]]
    baseline = comparison.baseline
    for judge in judges:
        if judge.design == "listwise":
            if len(there) == len(comparison.systems):
                for order in rotated([one.name for one in there], design, row.id):
                    yield Ask(index, judge, order)
        elif baseline is not None and baseline in there:
            for one in there:
                if one is not baseline:
                    # Probes beside the masked pair: the texts are the same, which servers cache.
                    for named in (False, True) if row.id in probed and one.kind != "canary" else (False,):
                        yield Ask(index, judge, (one.name, baseline.name), named)
                        yield Ask(index, judge, (baseline.name, one.name), named)


def rotated(names: Sequence[str], design: Design, row_id: str) -> list[tuple[str, ...]]:
    """The orders in which a row's list is shown: one drawn by content, then that turned by equal steps."""
    first = sorted(names, key=lambda name: hash_json([design.seed, row_id, name]))
    turns = min(design.rotations, len(first))
    steps = [turn * len(first) // turns for turn in range(turns)]
    return [tuple(first[step:] + first[:step]) for step in steps]


def _probed(comparison: Comparison, design: Design) -> frozenset[str]:
    """Rows for the probe of names, of those that have a pair to show them with."""
    baseline = comparison.baseline
    models = [one.name for one in comparison.systems if one.kind == "model"]
    if baseline is None:
        return frozenset()
    paired = [
        row.id
        for row in comparison.rows
        if row.id in comparison.answers[baseline.name] and any(row.id in comparison.answers[name] for name in models)
    ]
    ranked = sorted((hash_json(["names", design.seed, row]), row) for row in paired)
    return frozenset(name for _, name in ranked[: design.name_probe])
