"""Folders of judging runs, made without any judge."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rolellm.core.records import Row
from rolellm.core.typed_json import read_as
from rolellm.judging import records as judging_records
from rolellm.judging.records import Comparison, DatasetName, Judgement, System, SystemKind
from rolellm.judging.result import JudgedBy
from rolellm.judging.settings import JudgingSettings
from rolellm.judging.summary import summarize_judgements as summarize_judging

#: Names that stand nowhere but in the run's own files.
CONTESTANTS: Mapping[str, SystemKind] = {
    "quill-7b": "model",
    "marrow-13b": "model",
    "harbour-gpt": "baseline",
    "nullmodel": "canary",
}
ROLES = {"Ada Fenn": "You are a lighthouse keeper who counts everything.", "Old Brom": None}


def make_rows(count: int = 6) -> list[Row]:
    return [
        Row(
            id=f"row-{number:03}",
            role=role,
            language="en",
            subset="role_specific",
            question=f"How many birds were there on day {number}?",
            references=(f"On day {number}, {number} gulls.", "I lost count."),
            role_description=ROLES[role],
        )
        for number in range(count)
        for role in [list(ROLES)[number % 2]]
    ]


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
    return summarize_judging(
        comparison, judgements, [read_as(JudgedBy, one, "the judge") for one in judges], settings, dataset
    ).to_dict()
