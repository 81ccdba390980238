"""The audit of rewards: how often replies that nobody wants, and other roles' replies, lose to the role's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from rolellm.checks.check import Check
from rolellm.core.errors import DataError, SettingsError
from rolellm.core.records import Row
from rolellm.core.settings import Advanced, Field, settings
from rolellm.llm.llm import LLM
from rolellm.runs import Plan
from rolellm.scoring.score import hash_rows
from rolellm.scoring.statistics.intervals import encode_interval, estimate_proportion
from rolellm.training.rewards import CANARIES, PAIRS, RewardAudit, audit_rewards, find_beaten, find_reward, name_reward

#: A canary should lose in this share of rows, another role's reply in that one (our choice).
HOLDS: Final = {**dict.fromkeys(CANARIES, 0.95), **dict.fromkeys(PAIRS, 0.8)}


@settings
class RewardSettings:
    """Audit.

    Attributes:
        weights: A weight for each reward, as TRL's reward_weights; 0 only watches.
        limit: Maximum rows to draw.
    """

    weights: Advanced[tuple[float, ...] | None] = Field(default=None)
    limit: int = Field(default=200, ge=1)


@dataclass(frozen=True)
class AuditReward(Check):
    """Hold rewards, alone and together, against canaries and against pairs of the data.

    Attributes:
        rewards: Dotted paths, or functions.
        data: Rows of RoleBench's columns; rewards that learn do so from those whose questions are not drawn.
        settings: How many are drawn, and the rewards' weights.
    """

    rewards: Sequence[Any]
    data: Sequence[Row]
    settings: RewardSettings
    kind: ClassVar[str] = "reward"
    rows: ClassVar[str] = "replies"

    def plan(self, llm: LLM) -> Plan[dict[str, Any]]:
        """Reward every reply; a reward that asks a model does so by itself.

        Raises:
            RecipeError: For a reward that is not there.
            SettingsError: For weights that do not fit.
            DataError: When no row has a reference.
        """
        weights = self.settings.weights
        if weights is not None and len(weights) != len(self.rewards):
            raise SettingsError(f"{len(weights)} weights for {len(self.rewards)} rewards; give each its own")
        if not any(row.references for row in self.data):
            raise DataError("no row has references; an audit compares with the role's own reply")
        functions = {name_reward(reward): find_reward(reward) for reward in self.rewards}
        yield from ()
        return summarize_audit(audit_rewards(functions, self.data, self.settings.limit, weights))

    def describe(self, result: dict[str, Any]) -> dict[str, Any]:
        """Return a hash of the data."""
        return {"dataset": hash_rows(self.data)}


def summarize_audit(audit: RewardAudit) -> dict[str, Any]:
    """Return how often each kind of rival loses under each reward, with Wilson's interval; a tie is not lost."""
    rewards: dict[str, Any] = {}
    for name in audit.rewards:
        kinds: dict[str, Any] = {}
        for kind, least in HOLDS.items():
            if results := audit.compare(name, kind):
                lost = results.count(1.0)
                share = encode_interval(estimate_proportion(lost, len(results)))
                verdict = "beaten" if 2 * lost < len(results) else "holds" if lost >= least * len(results) else "weak"
                kinds[kind] = {"lost": share, "tied": results.count(0.5) / len(results), "verdict": verdict}
        rewards[name] = kinds
    groups = [
        {
            "question": group[0].row.question,
            "role": group[0].row.role,
            "kind": candidate.kind,
            "reply": candidate.text,
            "rewards": {name: _drop_missing(values[at][index]) for name, values in audit.rewards.items()},
        }
        for at, group in enumerate(audit.groups)
        for index, candidate in enumerate(group)
    ]
    return {
        "rows": len(audit.groups),
        "held_out": audit.held_out,
        "rewards": rewards,
        "beaten": find_beaten(audit),
        "replies": groups,
    }


def _drop_missing(value: float) -> float | None:
    return None if value != value else round(float(value), 6)
