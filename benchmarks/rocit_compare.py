"""The best of each side: TRL's settings are tried on a few replies, then all are measured on the same rows."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from rich.console import Console
from rocit_data import draw
from rocit_flops import fold_examples
from rocit_runs import Job, Setting, Speed, measure_ours, measure_trl, trl_trainer

from rolellm.training.examples import Example
from rolellm.training.recipe import TrainingRecipe
from rolellm.training.schedule import schedule_replies

LOG = Console(stderr=True)
Pass = int | Literal["auto"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured.

    Attributes:
        replies: Replies an optimizer step.
        steps: Optimiser steps that are timed, after one that is not.
        roles: Groups of one role each that a step's replies come in.
        passes: Replies a forward pass of ours; ``auto`` tries what fits.
        rows: TRL's settings to try row by row.
        packs: TRL's settings to try with packing.
        probe: Replies an optimizer step while settings are tried.
        seed: For the rows.
        minutes: What is left when they are over is not tried any more.
        began: When they began, by ``time.monotonic``.
    """

    replies: int
    steps: int
    roles: int
    passes: tuple[Pass, ...]
    rows: tuple[Setting, ...]
    packs: tuple[Setting, ...]
    probe: int
    seed: int = 0
    minutes: float = math.inf
    began: float = 0.0

    def is_late(self, share: float) -> bool:
        """Tell whether a share of the minutes is over."""
        return time.monotonic() - self.began > 60 * share * self.minutes


@dataclass(frozen=True, slots=True)
class Compared:
    """What was measured.

    Attributes:
        ours: By replies a forward pass.
        row_by_row: Ours without shared prefixes; ``None`` where it was left out.
        trl_rows: TRL's best row by row.
        trl_packed: TRL's best packing.
        settings: The settings of these two.
        examples: What all of them trained on.
        tried: Replies a second of every setting that was tried, or why it failed.
    """

    ours: dict[Pass, Speed]
    row_by_row: Speed | None
    trl_rows: Speed
    trl_packed: Speed
    settings: tuple[Setting, Setting]
    examples: list[Example]
    tried: dict[str, float | str]

    @property
    def best(self) -> Pass:
        """Our fastest number of replies a forward pass."""
        return max(self.ours, key=lambda count: self.ours[count].rate)

    def ratios(self) -> dict[str, float]:
        """Ours at its fastest over TRL."""
        rate = self.ours[self.best].rate
        return {"trl_rows": rate / self.trl_rows.rate, "trl_packed": rate / self.trl_packed.rate}

    @property
    def speeds(self) -> dict[str, Speed]:
        """All of them, named for people."""
        named = {f"shared prefix, {count} a pass": speed for count, speed in self.ours.items()}
        if self.row_by_row is not None:
            named["ours row by row"] = self.row_by_row
        return named | {"TRL row by row": self.trl_rows, "TRL packed": self.trl_packed}

    def figures(self) -> dict[str, Any]:
        """What a result says of it."""
        return {
            "replies_a_second": {name: speed.rate for name, speed in self.speeds.items()},
            "lowest_and_highest": {name: [min(one.rates), max(one.rates)] for name, one in self.speeds.items()},
            "tokens_a_reply": {name: speed.tokens for name, speed in self.speeds.items()},
            "best_pass": self.best,
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
    drawn = draw_examples(job, wanted)
    training = replace(job.training, replies_per_step=wanted.replies, roles_per_step=wanted.roles)
    here = replace(job, examples=drawn, training=training)
    tried: dict[str, float | str] = {}

    def ours() -> dict[Pass, Speed]:
        return {count: _shown(f"ours, {count} a pass", measure_ours(_shared(here, count))) for count in wanted.passes}

    first = ours()
    rows = _fastest(job, wanted, wanted.rows, tried, share=0.35)
    packs = _fastest(job, wanted, wanted.packs, tried, share=0.6)
    trl_rows = _shown(f"TRL, {rows}", measure_trl(here, rows))
    trl_packed = _shown(f"TRL, {packs}", measure_trl(here, packs))
    plain = _shown("ours, row by row", measure_ours(_unshared(here, rows.rows))) if row_by_row else None
    second = ours()
    both = {count: first[count].and_also(second[count]) for count in first}
    return Compared(both, plain, trl_rows, trl_packed, (rows, packs), drawn, tried)


def draw_examples(job: Job, wanted: Plan) -> list[Example]:
    """What all sides train on."""
    return draw(job.examples, wanted.roles * (wanted.steps + 1), wanted.replies // wanted.roles, wanted.seed)


def _shared(job: Job, count: Pass) -> Job:
    return replace(job, training=_in_passes(job.training, count, shared=True))


def _unshared(job: Job, count: int) -> Job:
    return replace(job, training=_in_passes(job.training, count, shared=False))


def _in_passes(training: TrainingRecipe, count: Pass, *, shared: bool) -> TrainingRecipe:
    return replace(training, shared_prefix=shared, replies_per_pass=count)


def _fastest(
    job: Job, wanted: Plan, settings: Sequence[Setting], tried: dict[str, float | str], share: float
) -> Setting:
    drawn = draw(job.examples, 3, wanted.probe, wanted.seed + 1)
    here = replace(
        job,
        examples=drawn,
        training=replace(job.training, replies_per_step=wanted.probe),
    )
    rates: dict[Setting, float] = {}
    for setting in settings:
        if setting.pack is not None and setting.pack < max(example.length for example in job.examples):
            continue  # It would cut replies off.
        if rates and wanted.is_late(share):
            tried[str(setting)] = "no time was left"
            continue
        try:
            rates[setting] = tried[str(setting)] = _shown(f"trying TRL, {setting}", measure_trl(here, setting)).rate
        except Exception as error:  # Out of memory, an attention that is not there, or whatever a compiler may raise.
            tried[str(setting)] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            LOG.print(f"TRL, {setting}: {tried[str(setting)]}")
    if not rates:
        raise RuntimeError(f"no setting of TRL works here: {tried}")
    return max(rates, key=lambda setting: rates[setting])


def _shown(name: str, speed: Speed) -> Speed:
    peak = f", {speed.peak / 1e9:.1f} GB" if speed.peak else ""
    LOG.print(f"{name}: {speed.rate:.1f} replies/s{peak}")
    return speed


def token_counts(job: Job, wanted: Plan, setting: Setting) -> dict[str, Any]:
    """Tokens of one epoch of all examples: padded as TRL's own batches are, unpadded, and folded by replies a pass."""
    with trl_trainer(job, setting) as trainer:
        padded = sum(batch["input_ids"].numel() for batch in trainer.get_train_dataloader())
    counts = {"padded": padded, "unpadded": sum(example.length for example in job.examples)}
    step = replace(job.training, replies_per_step=wanted.replies, roles_per_step=wanted.roles)
    for count in wanted.passes:
        assert count != "auto"
        order = schedule_replies(job.examples, _in_passes(step, count, shared=True)).order
        batches = [batch[batch >= 0].tolist() for batch in order.reshape(-1, count)]
        counts[f"{count} a pass"] = sum(len(fold_examples(job.examples, batch).ids) for batch in batches if batch)
    return counts
