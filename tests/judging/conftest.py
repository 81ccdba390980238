"""A judge of known faults, made up: its judgements, without any model."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rolellm.core.records import Row
from rolellm.judging.records import Comparison, Judgement, System

BASELINE = "base"


@dataclass
class Simulator:
    """Draws judgements by each system's strength (log-odds against the baseline, whose strength is 0).

    All log-odds: `first` for what is shown first, `length` for each 100 characters more, `names` for a system whose
    name is shown. Whoever is ahead by less than `tie`, in log-odds, is not preferred.
    """

    strengths: Mapping[str, float]
    questions: int = 60
    roles: Sequence[str] = ("Ada Fenn", "Old Brom")
    canaries: Sequence[str] = ()
    lengths: Mapping[str, int] = field(default_factory=dict)
    first: float = 0.0
    length: float = 0.0
    names: Mapping[str, float] = field(default_factory=dict)
    tie: float = 0.0
    noise: float = 1.0
    spread: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        self.rows = [
            Row(
                id=f"row-{role}-{number}",
                role=name,
                language="en",
                subset="general" if number % 3 else "role_specific",
                question=f"Question  {number}?" if role else f"question {number}? ",
                references=("None.",),
                reference_types=() if number % 3 else ("script_based",),
            )
            for number in range(self.questions)
            for role, name in enumerate(self.roles)
        ]

    def comparison(self, baseline: bool = True) -> Comparison:
        """Everybody answers every row, at lengths drawn around their own."""
        people = [System(name, "canary" if name in self.canaries else "model") for name in self.strengths]
        people += [System(BASELINE, "baseline", "base-7b", "basalt")] if baseline else []
        answers = {one.name: {row.id: "x" * self._length(one.name, row.id) for row in self.rows} for one in people}
        return Comparison(self.rows, people, answers)

    def pairs(self, judge: str = "judge", *, named: bool = False) -> list[Judgement]:
        """Each system against the baseline, in both orders."""
        comparison = self.comparison()
        return [
            self._judged(comparison, row, judge, order, named=named)
            for row in self.rows
            for name in self.strengths
            for order in ((name, BASELINE), (BASELINE, name))
        ]

    def lists(self, judge: str = "judge", *, rotations: int = 2, baseline: bool = True) -> list[Judgement]:
        """All of them, in orders drawn for each row."""
        comparison, found = self.comparison(baseline), []
        for row in self.rows:
            names = [one.name for one in comparison.systems]
            self._draw("order", row.id).shuffle(names)
            for turn in range(rotations):
                step = turn * len(names) // rotations
                found.append(self._judged(comparison, row, judge, (*names[step:], *names[:step]), listwise=True))
        return found

    def _judged(self, comparison: Comparison, row: Row, judge: str, order: tuple[str, ...], **how: bool) -> Judgement:
        named = how.get("named", False)
        scores = [self._score(comparison, row, judge, name, at, order, named) for at, name in enumerate(order)]
        ranks = tuple(1 + sum(self._ahead(other, one) for other in scores) for one in scores)
        ranks = tuple(rank + (ranks.count(rank) - 1) / 2 for rank in ranks)
        reasons = tuple(f"{judge} on {name}" for name in order)
        return Judgement(row.id, judge, "listwise" if how.get("listwise") else "pairwise", order, ranks, reasons, named)

    def _score(
        self, comparison: Comparison, row: Row, judge: str, name: str, at: int, order: tuple[str, ...], named: bool
    ) -> float:
        # A difference of two Gumbel draws is logistic: preferences follow Bradley and Terry.
        uniform = self._draw("noise", row.id, judge, name, order, named).random()
        gumbel = -math.log(-math.log(uniform))
        extra = self.first if at == 0 else 0.0
        extra += self.length * len(comparison.answers[name][row.id]) / 100
        extra += self.names.get(name, 0.0) if named else 0.0
        return self.strengths.get(name, 0.0) + extra + self.noise * gumbel

    def _ahead(self, other: float, one: float) -> bool:
        return other - one > self.tie

    def _length(self, name: str, row: str) -> int:
        middle = self.lengths.get(name, 200)
        return max(1, middle + self._draw("length", name, row).randint(-self.spread, self.spread))

    def _draw(self, *what: Any) -> random.Random:
        return random.Random(repr((self.seed, *what)))
