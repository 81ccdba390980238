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
class VerdictRequest:
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


def plan_verdicts(comparison: Comparison, judges: Sequence[Judge], settings: JudgingSettings) -> list[VerdictRequest]:
    """Every verdict to ask for, row by row, so that what rows share is asked together.

    A pair is asked for where the system and the baseline both answered; a list where every system but canaries did.

    Raises:
        SettingsError: When pairs are to be judged and there is no baseline, or lists of more answers than there are
            letters; and where no verdict can be asked for at all.
    """
    for judge in judges:
        _check(comparison, judge)
    probed = _select_probes(comparison, settings)
    asks = [
        VerdictRequest(index, judge, order, named)
        for index, row in enumerate(comparison.rows)
        for judge in judges
        for order, named in _iter_orders(comparison, judge, settings, row.id, probe=row.id in probed)
    ]
    if not asks:
        raise SettingsError("nothing to judge: no list or pair has all its answers; give more predictions")
    return asks


def _check(comparison: Comparison, judge: Judge) -> None:
    system_count = len(comparison.systems)
    if judge.design == "pairwise" and comparison.baseline is None:
        raise SettingsError(
            f"{judge.settings.name} compares with a baseline, and this run has none; name one with --baseline"
        )
    if judge.design == "listwise" and system_count > len(LETTERS):
        raise SettingsError(
            f"{system_count} systems are more than a list holds ({len(LETTERS)}); judge pairs: --judge role-pair"
        )


def _iter_orders(
    comparison: Comparison, judge: Judge, settings: JudgingSettings, row: str, *, probe: bool
) -> Iterator[tuple[tuple[str, ...], bool]]:
    """The orders in which a judge sees a row, and whether it sees the names."""
    names = [name for name, texts in comparison.answers.items() if row in texts]
    baseline, canaries = comparison.baseline, comparison.canaries
    if judge.design == "listwise":
        if comparison.answers.keys() - canaries <= set(names):
            yield from ((order, False) for order in rotate_orders(names, settings, row))
    elif baseline is not None and baseline in names:
        for name in names:
            if name != baseline:
                # Probes follow the masked pair: the texts are the same, which servers cache.
                for named in (False, True) if probe and name not in canaries else (False,):
                    yield (name, baseline), named
                    yield (baseline, name), named


def rotate_orders(names: Sequence[str], settings: JudgingSettings, row_id: str) -> list[tuple[str, ...]]:
    """The orders in which a row's list is shown: one drawn by content, then that turned by equal steps."""
    first = sorted(names, key=lambda name: hash_json([settings.seed, row_id, name]))
    turns = min(settings.rotations, len(first))
    steps = [turn * len(first) // turns for turn in range(turns)]
    return [tuple(first[step:] + first[:step]) for step in steps]


def _select_probes(comparison: Comparison, settings: JudgingSettings) -> frozenset[str]:
    """Rows for the probe of names, of those that have a pair to show them with."""
    if comparison.baseline is None:
        return frozenset()
    models = [comparison.answers[system.name] for system in comparison.systems if system.kind == "model"]
    paired = [row for row in comparison.answers[comparison.baseline] if any(row in answers for answers in models)]
    row_ids = {row.id for row in comparison.rows}
    ranked = sorted((hash_json(["names", settings.seed, row]), row) for row in row_ids.intersection(paired))
    return frozenset(name for _, name in ranked[: settings.name_probe])
