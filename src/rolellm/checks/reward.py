"""The audit of rewards: how often replies that nobody wants, and other roles' replies, lose to the role's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

from rolellm.core.errors import DataError, SettingsError
from rolellm.core.records import Row
from rolellm.core.result import Result
from rolellm.core.settings import Advanced, Field, settings
from rolellm.core.table import Table, TableRow
from rolellm.llm.llm import LLM
from rolellm.runs import Plan, Records, Step
from rolellm.scoring.score import hash_rows
from rolellm.scoring.statistics.intervals import Measured, estimate_proportion
from rolellm.training.rewards import CANARIES, PAIRS, RewardAudit, audit_rewards, find_beaten, find_reward, name_reward

#: A canary should lose in this share of rows, another role's reply in that one.
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


@dataclass(frozen=True, slots=True)
class RivalResult:
    """The share of rows in which one kind of rival loses to the role's own reply under a reward.

    Attributes:
        lost: The share of rows in which it does, with Wilson's interval; a tie is not lost.
        tied: The share of ties.
        verdict: Beaten where it loses in fewer than half of the rows, weak where in fewer than it should.
    """

    lost: Measured
    tied: float
    verdict: Literal["holds", "weak", "beaten"]


@dataclass(frozen=True, slots=True, repr=False)
class AuditResult(Result):
    """The ranks that rewards, alone and together, give to replies that nobody wants.

    Attributes:
        rows: Number of rows.
        held_out: Rows whose own reply is not among the references that rewards see.
        rewards: Name of a reward to kind of rival to what came out; the last is what training follows.
        beaten: The canaries that beat that one.
        replies: Every reply with its rewards.
    """

    rows: int
    held_out: int
    rewards: Mapping[str, Mapping[str, RivalResult]]
    beaten: Sequence[str]
    replies: Sequence[Mapping[str, Any]] = ()

    @property
    def has_passed(self) -> bool:
        """True where no canary beats the rewards."""
        return not self.beaten

    def tables(self) -> tuple[Table]:
        """Build the table of how often each rival loses: under each reward alone, then under all together."""
        *parts, decisive = self.rewards.items()
        rows = []
        for kind, name in {**CANARIES, **PAIRS}.items():
            rival = decisive[1].get(kind)
            if rival is None:
                continue
            parts_lost = [_format_lost(rivals.get(kind)) for _, rivals in parts]
            ties = f"{100 * rival.tied:.1f}"
            rows.append(TableRow((name,), (*parts_lost, rival.lost, ties, rival.verdict)))
        heads = [f"{name.rpartition('.')[2]} %" for name in self.rewards]
        title = "How often it loses to the role's own reply"
        return (Table(title, ("Rival",), (*heads, "Ties %", "Verdict"), tuple(rows), left=("Verdict",)),)

    def remarks(self) -> list[str]:
        """Return what beats the rewards that training would follow, and what they are weak against."""
        name = list(self.rewards)[-1]
        subject = "These rewards together" if len(self.rewards) > 1 else name.rpartition(".")[2]
        beaten = self._list_canaries("beaten")
        weak = self._list_canaries("weak")
        remarks = []
        if beaten:
            remarks.append(f"{subject}: a canary that should lose wins or ties, so `rolellm train` refuses: {beaten}.")
        if weak:
            remarks.append(f"{subject}: weak against {weak}, which should lose in 95 % of rows.")
        if not remarks:
            remarks.append(f"{subject}: every canary loses in at least 95 % of rows.")
        own = f"{self.held_out} of {self.rows} own replies are not among the references that rewards see."
        return [*remarks, own]

    def _list_canaries(self, verdict: str) -> str:
        decisive = list(self.rewards.values())[-1]
        canaries = []
        for kind, rival in decisive.items():
            if kind in CANARIES and rival.verdict == verdict:
                canaries.append(f"{CANARIES[kind]} ({_format_lost(rival)} %)")
        return ", ".join(canaries)


@dataclass(frozen=True)
class AuditReward(Step[AuditResult]):
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

    def plan(self, llm: LLM) -> Plan[AuditResult]:
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

    def records(self, result: AuditResult) -> Records:
        """Return every reply with its rewards."""
        return {"replies.jsonl": result.replies}

    def summarize(self, result: AuditResult) -> dict[str, Any]:
        """Return the figures."""
        figures = result.to_dict()
        del figures["replies"]
        return figures

    def describe(self, result: AuditResult) -> dict[str, Any]:
        """Return a hash of the data."""
        return {"dataset": hash_rows(self.data)}


def summarize_audit(audit: RewardAudit) -> AuditResult:
    """Count how often each kind of rival loses under each reward."""
    rewards = {}
    for name in audit.rewards:
        results = {kind: audit.compare(name, kind) for kind in HOLDS}
        rewards[name] = {kind: _judge_rival(kind, values) for kind, values in results.items() if values}
    replies = []
    for group_index, group in enumerate(audit.groups):
        for index, candidate in enumerate(group):
            values = {name: groups[group_index][index] for name, groups in audit.rewards.items()}
            reply = {
                "question": group[0].row.question,
                "role": group[0].row.role,
                "kind": candidate.kind,
                "reply": candidate.text,
                "rewards": {name: _drop_missing(value) for name, value in values.items()},
            }
            replies.append(reply)
    return AuditResult(len(audit.groups), audit.held_out, rewards, find_beaten(audit), replies)


def _format_lost(rival: RivalResult | None) -> str | None:
    if rival is None or rival.lost is None:
        return None
    return f"{100 * rival.lost.mean:.1f}"


def _judge_rival(kind: str, results: Sequence[float]) -> RivalResult:
    lost = results.count(1.0)
    rows = len(results)
    share = estimate_proportion(lost, rows)
    tied = results.count(0.5) / rows
    if 2 * lost < rows:
        return RivalResult(share, tied, "beaten")
    return RivalResult(share, tied, "holds" if lost >= HOLDS[kind] * rows else "weak")


def _drop_missing(value: float) -> float | None:
    return None if value != value else round(float(value), 6)
