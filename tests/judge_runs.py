"""Folders of judging runs, made without any judge."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from rolellm.core.records import Row
from rolellm.judging.folder import RESULT, write_contest, write_judgements, write_manifest
from rolellm.judging.types import Contest, Contestant, ContestantKind, Judgement

#: Names that stand nowhere but in the run's own files.
CONTESTANTS: Mapping[str, ContestantKind] = {
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


def make_contest(
    rows: Iterable[Row],
    contestants: Mapping[str, ContestantKind] = CONTESTANTS,
    answer: Callable[[int, Row], str | None] = lambda number, row: f"Answer {number} to {row.question}",
) -> Contest:
    """All contestants and what they answered: `answer` is given the contestant's number and the row, never a name."""
    rows = list(rows)
    given = {
        name: {row.id: text for row in rows if (text := answer(number, row)) is not None}
        for number, name in enumerate(contestants)
    }
    return Contest(rows, [Contestant(name, kind) for name, kind in contestants.items()], given)


def write_run(folder: Path, contest: Contest, judgements: Iterable[Judgement] = ()) -> Path:
    """A finished run, as far as labels and agreement need one."""
    write_contest(folder, contest)
    write_judgements(folder, judgements)
    write_manifest(folder, {"contestants": [one.to_dict() for one in contest.contestants]})
    (folder / RESULT).write_text(json.dumps({}))
    return folder
