"""In which orders answers are shown: every pair in both, every list in rotations of one drawn by content.

What is drawn is drawn from the row's id and the names, not from a stream of random numbers: other rows, another
system or another order of the data change nothing about it, so a run that grows asks only for what is new.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rolellm.core.errors import SettingsError
from rolellm.core.fingerprint import hash_json
from rolellm.judging.judge_models import Judge
from rolellm.judging.settings import JudgingSettings
from rolellm.judging.types import Comparison

#: What answers are called; a list has no more of them.
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


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


def planned(comparison: Comparison, judges: Sequence[Judge], settings: JudgingSettings) -> list[Ask]:
    """Every verdict to ask for, row by row, so that what rows share is asked together.

    A pair is asked for where the system and the baseline both answered; a list where every system but canaries did.

    Raises:
        SettingsError: When pairs are to be judged and there is no baseline, or lists of more answers than there are
            letters; and where no verdict can be asked for at all.
    """
    for judge in judges:
        _check(comparison, judge)
    probed = _probed(comparison, settings)
    asks = [
        Ask(index, judge, order, named)
        for index, row in enumerate(comparison.rows)
        for judge in judges
        for order, named in _orders(comparison, judge, settings, row.id, probe=row.id in probed)
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
    if judge.design == "listwise" and found > len(LETTERS):
        raise SettingsError(
            f"{found} systems are more than a list holds ({len(LETTERS)}); judge pairs: --judge role-pair"
        )


def _orders(
    comparison: Comparison, judge: Judge, settings: JudgingSettings, row: str, *, probe: bool
) -> Iterator[tuple[tuple[str, ...], bool]]:
    """The orders in which a judge sees a row, and whether it sees the names."""
    there = [one for one in comparison.systems if row in comparison.answers[one.name]]
    baseline = comparison.baseline
    if judge.design == "listwise":
        if sum(one.kind != "canary" for one in there) == sum(one.kind != "canary" for one in comparison.systems):
            yield from ((order, False) for order in rotated([one.name for one in there], settings, row))
    elif baseline is not None and baseline in there:
        for one in there:
            if one is not baseline:
                # Probes follow the masked pair: the texts are the same, which servers cache.
                for named in (False, True) if probe and one.kind != "canary" else (False,):
                    yield (one.name, baseline.name), named
                    yield (baseline.name, one.name), named


def rotated(names: Sequence[str], settings: JudgingSettings, row_id: str) -> list[tuple[str, ...]]:
    """The orders in which a row's list is shown: one drawn by content, then that turned by equal steps."""
    first = sorted(names, key=lambda name: hash_json([settings.seed, row_id, name]))
    turns = min(settings.rotations, len(first))
    steps = [turn * len(first) // turns for turn in range(turns)]
    return [tuple(first[step:] + first[:step]) for step in steps]


def _probed(comparison: Comparison, settings: JudgingSettings) -> frozenset[str]:
    """Rows for the probe of names, of those that have a pair to show them with."""
    if comparison.baseline is None:
        return frozenset()
    models = [comparison.answers[one.name] for one in comparison.systems if one.kind == "model"]
    paired = [row for row in comparison.answers[comparison.baseline.name] if any(row in given for given in models)]
    known = {row.id for row in comparison.rows}
    ranked = sorted((hash_json(["names", settings.seed, row]), row) for row in known.intersection(paired))
    return frozenset(name for _, name in ranked[: settings.name_probe])
