"""Folders of judging runs, and a judge of known faults, made without any model."""

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from rolellm.core.records import Row
from rolellm.core.typed_json import read_as
from rolellm.judging import records as judging_records
from rolellm.judging.records import Comparison, DatasetName, Design, Judgement, System, SystemKind, compute_mid_ranks
from rolellm.judging.result import JudgedBy
from rolellm.judging.settings import JudgingSettings
from rolellm.judging.summary import summarize_judgements as summarize_judging

BASELINE = "base"
#: Names that stand nowhere but in the run's own files.
CONTESTANTS: Mapping[str, SystemKind] = {
    "quill-7b": "model",
    "marrow-13b": "model",
    "harbour-gpt": "baseline",
    "nullmodel": "canary",
}
ROLES = {"Ada Fenn": "You are a lighthouse keeper who counts everything.", "Old Brom": None}


def make_rows(count: int = 6) -> list[Row]:
    rows = []
    for number in range(count):
        role, description = list(ROLES.items())[number % 2]
        question = f"How many birds were there on day {number}?"
        references = (f"On day {number}, {number} gulls.", "I lost count.")
        row = Row(f"row-{number:03}", role, "en", "role_specific", question, references, role_description=description)
        rows.append(row)
    return rows


def make_comparison(
    rows: Iterable[Row],
    systems: Mapping[str, SystemKind] = CONTESTANTS,
    answer: Callable[[int, Row], str | None] = lambda number, row: f"Answer {number} to {row.question}",
) -> Comparison:
    """All systems and what they answered: `answer` is given the system's number and the row, never a name."""
    rows = list(rows)
    given = {
        name: {row.id: text for row in rows if (text := answer(number, row)) is not None}
        for number, name in enumerate(systems)
    }
    return Comparison(rows, [System(name, kind) for name, kind in systems.items()], given)


def write_run(folder: Path, comparison: Comparison, judgements: Iterable[Judgement] = ()) -> Path:
    """A finished run, as far as labels and agreement need one."""
    judging_records.write_run(folder, comparison, judgements)
    return folder


def summarize(
    comparison: Comparison,
    judgements: Sequence[Judgement],
    judges: Iterable[Mapping[str, Any]],
    settings: JudgingSettings,
    dataset: DatasetName | None = None,
) -> dict[str, Any]:
    """The result of some judgements as ``result.json`` has it."""
    judged_by = [read_as(JudgedBy, one, "the judge") for one in judges]
    return summarize_judging(comparison, judgements, judged_by, settings, dataset).to_dict()


@dataclass
class Simulator:
    """A judge of known faults: draws judgements by each system's strength (log-odds; the baseline's is 0).

    All log-odds: `first` for what is shown first, `length` for each 100 characters more.
    Whoever is ahead by less than `tie`, in log-odds, is not preferred. Everybody answers every row, at
    lengths drawn around their own, unless there are `answers` to judge.
    """

    strengths: Mapping[str, float]
    questions: int = 60
    roles: Sequence[str] = ("Ada Fenn", "Old Brom")
    canaries: Sequence[str] = ()
    lengths: Mapping[str, int] = field(default_factory=dict)
    first: float = 0.0
    length: float = 0.0
    tie: float = 0.0
    noise: float = 1.0
    spread: int = 0
    seed: int = 0
    answers: Comparison | None = None

    def __post_init__(self) -> None:
        self.rows = []
        for number, (role, name) in product(range(self.questions), enumerate(self.roles)):
            question = f"Question  {number}?" if role else f"question {number}? "
            row = Row(f"row-{role}-{number}", name, "en", "general", question, ("None.",))
            if number % 3 == 0:
                row = replace(row, subset="role_specific", reference_types=("script_based",))
            self.rows.append(row)

    def comparison(self, baseline: bool = True) -> Comparison:
        """What is judged."""
        if self.answers is not None:
            return self.answers
        people = [System(name, "canary" if name in self.canaries else "model") for name in self.strengths]
        people += [System(BASELINE, "baseline", "base-7b", "basalt")] if baseline else []
        answers = {one.name: {row.id: "x" * self._length(one.name, row.id) for row in self.rows} for one in people}
        return Comparison(self.rows, people, answers)

    def pairs(self, judge: str = "judge") -> list[Judgement]:
        """Each system against the baseline, in both orders."""
        comparison = self.comparison()
        base = comparison.baseline or BASELINE
        judgements = []
        for row, name in product(comparison.rows, comparison.answers):
            if name != base:
                orders = ((name, base), (base, name))
                judgements += [self._judged(comparison, row, judge, order) for order in orders]
        return judgements

    def lists(self, judge: str = "judge", *, rotations: int = 2, baseline: bool = True) -> list[Judgement]:
        """All of them, in orders drawn for each row."""
        comparison, found = self.comparison(baseline), []
        for row in comparison.rows:
            names = [one.name for one in comparison.systems]
            self._draw("order", row.id).shuffle(names)
            for turn in range(rotations):
                step = turn * len(names) // rotations
                found.append(self._judged(comparison, row, judge, (*names[step:], *names[:step]), "listwise"))
        return found

    def _judged(
        self, comparison: Comparison, row: Row, judge: str, order: tuple[str, ...], design: Design = "pairwise"
    ) -> Judgement:
        scores = []
        for place, name in enumerate(order):
            # A difference of two Gumbel draws is logistic: preferences follow Bradley and Terry.
            uniform = self._draw("noise", row.id, judge, name, order).random()
            scores.append(
                self.strengths.get(name, 0.0)
                + (self.first if place == 0 else 0.0)
                + self.length * len(comparison.answers[name][row.id]) / 100
                - self.noise * math.log(-math.log(uniform))
            )
        places = [sum(other - own > self.tie for other in scores) for own in scores]
        reasons = tuple(f"{judge} on {name}" for name in order)
        return Judgement(row.id, judge, design, order, compute_mid_ranks(places), reasons)

    def _length(self, name: str, row: str) -> int:
        middle = self.lengths.get(name, 200)
        return max(1, middle + self._draw("length", name, row).randint(-self.spread, self.spread))

    def _draw(self, *what: Any) -> random.Random:
        return random.Random(repr((self.seed, *what)))
