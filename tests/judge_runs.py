"""Folders of judging runs, made without any judge."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

from rolellm.core.records import Row
from rolellm.judging.folder import RESULT, write_comparison, write_judgements, write_manifest
from rolellm.judging.types import Comparison, Judgement, System, SystemKind

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
    write_comparison(folder, comparison)
    write_judgements(folder, judgements)
    write_manifest(folder, {"systems": [asdict(one) for one in comparison.systems]})
    (folder / RESULT).write_text(json.dumps({}))
    return folder
