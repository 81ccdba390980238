"""The best of each side: TRL's settings are tried on a few replies, then all are measured on the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rocit_data import draw
from rocit_runs import Job, Setting, Speed, measure_ours, measure_trl, trl_trainer

from rolellm.rocit.packing.examples import Examples
from rolellm.rocit.packing.plan import plan
from rolellm.rocit.packing.tree import pack

LOG = Console(stderr=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured.

    Attributes:
        replies: Replies an optimiser step.
        steps: Optimiser steps that are timed, after one that is not.
        roles: Groups of one role each that a step's replies come in.
        budgets: Pack budgets of ours, in tokens.
        rows: TRL's settings to try row by row.
        packs: TRL's settings to try with packing.
        probe: Replies an optimiser step while settings are tried.
        seed: For the rows.
    """

    replies: int
    steps: int
    roles: int
    budgets: tuple[int, ...]
    rows: tuple[Setting, ...]
    packs: tuple[Setting, ...]
    probe: int
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Compared:
    """What was measured.

    Attributes:
        ours: By pack budget.
        row_by_row: Ours without shared prefixes; ``None`` where it was left out.
        trl_rows: TRL's best row by row.
        trl_packed: TRL's best packing.
        settings: The settings of these two.
        examples: What all of them trained on.
        tried: Replies a second of every setting that was tried, or why it failed.
    """

    ours: dict[int, Speed]
    row_by_row: Speed | None
    trl_rows: Speed
    trl_packed: Speed
    settings: tuple[Setting, Setting]
    examples: Examples
    tried: dict[str, float | str]

    @property
    def best(self) -> int:
        """Our fastest budget."""
        return max(self.ours, key=lambda budget: self.ours[budget].rate)

    def ratios(self) -> dict[str, float]:
        """Ours at its fastest budget over TRL."""
        rate = self.ours[self.best].rate
        return {"trl_rows": rate / self.trl_rows.rate, "trl_packed": rate / self.trl_packed.rate}

    @property
    def speeds(self) -> dict[str, Speed]:
        """All of them, named for people."""
        named = {f"shared prefix, {budget}": speed for budget, speed in self.ours.items()}
        if self.row_by_row is not None:
            named["ours row by row"] = self.row_by_row
        return named | {"TRL row by row": self.trl_rows, "TRL packed": self.trl_packed}

    def figures(self) -> dict[str, Any]:
        """What a result says of it."""
        return {
            "replies_a_second": {name: speed.rate for name, speed in self.speeds.items()},
            "lowest_and_highest": {name: [min(one.rates), max(one.rates)] for name, one in self.speeds.items()},
            "tokens_a_reply": {name: speed.tokens for name, speed in self.speeds.items()},
            "best_budget": self.best,
            "trl_settings": [str(setting) for setting in self.settings],
            "trl_tried": self.tried,
        }


def compare(job: Job, wanted: Plan, row_by_row: bool = True) -> Compared:
    """Measure all sides; ours before and after the rivals, so that a machine that slows down shows.

    Args:
        job: Its examples are drawn from, its training has the replies and roles of a step.
        wanted: What to measure.
        row_by_row: Measure ours without shared prefixes, too.
    """
    drawn = draw(job.examples, wanted.roles * (wanted.steps + 1), wanted.replies // wanted.roles, wanted.seed)
    training = replace(
        job.training,
        per_device_train_batch_size=wanted.replies,
        gradient_accumulation_steps=1,
        roles_per_step=wanted.roles,
    )
    here = replace(job, examples=drawn, training=training)
    tried: dict[str, float | str] = {}
    rows, packs = (_fastest(job, wanted, settings, tried) for settings in (wanted.rows, wanted.packs))

    def ours() -> dict[int, Speed]:
        return {one: _shown(f"ours, packs of {one}", measure_ours(_packed(here, one))) for one in wanted.budgets}

    first = ours()
    trl_rows = _shown(f"TRL, {rows}", measure_trl(here, rows))
    trl_packed = _shown(f"TRL, {packs}", measure_trl(here, packs))
    plain = _shown("ours, row by row", measure_ours(_unpacked(here, rows.rows))) if row_by_row else None
    second = ours()
    both = {budget: first[budget].and_also(second[budget]) for budget in first}
    return Compared(both, plain, trl_rows, trl_packed, (rows, packs), drawn, tried)


def _packed(job: Job, budget: int) -> Job:
    return replace(job, training=replace(job.training, shared_prefix=True, pack_tokens=budget))


def _unpacked(job: Job, rows: int) -> Job:
    training = job.training
    passes = training.per_device_train_batch_size // rows
    return replace(
        job,
        training=replace(
            training, shared_prefix=False, per_device_train_batch_size=rows, gradient_accumulation_steps=passes
        ),
    )


def _fastest(job: Job, wanted: Plan, settings: Sequence[Setting], tried: dict[str, float | str]) -> Setting:
    drawn = draw(job.examples, 3, wanted.probe, wanted.seed + 1)
    here = replace(
        job,
        examples=drawn,
        training=replace(job.training, per_device_train_batch_size=wanted.probe, gradient_accumulation_steps=1),
    )
    rates: dict[Setting, float] = {}
    for setting in settings:
        if setting.pack is not None and setting.pack < int(job.examples.lengths.max()):
            continue  # It would cut replies off.
        try:
            rates[setting] = tried[str(setting)] = _shown(f"trying TRL, {setting}", measure_trl(here, setting)).rate
        except (RuntimeError, ValueError, ImportError) as error:  # Out of memory, or an attention that is not there.
            tried[str(setting)] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            LOG.print(f"TRL, {setting}: {tried[str(setting)]}")
    if not rates:
        raise RuntimeError(f"no setting of TRL works here: {tried}")
    return max(rates, key=lambda setting: rates[setting])


def _shown(name: str, speed: Speed) -> Speed:
    LOG.print(f"{name}: {speed.rate:.1f} replies/s")
    return speed


def token_counts(job: Job, wanted: Plan, setting: Setting) -> dict[str, Any]:
    """Tokens of one pass over all examples: padded as TRL's own batches are, unpadded, and in our packs by budget."""
    with trl_trainer(job, setting) as trainer:
        padded = sum(batch["input_ids"].numel() for batch in trainer.get_train_dataloader())
    counts = {"padded": padded, "unpadded": int(job.examples.lengths.sum())}
    for budget in wanted.budgets:
        training = replace(
            job.training, per_device_train_batch_size=wanted.replies, roles_per_step=wanted.roles, pack_tokens=budget
        )
        passes = plan(job.examples, training)
        trees = (pack(job.examples, passes[number].tolist()) for number in range(len(passes)))
        counts[f"packs of {budget}"] = sum(len(tree.ids) for tree in trees)
    return counts
