"""A judging run, and a task of it being served."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rolellm.judging.records import read_run
from rolellm.judging.settings import LabelSettings
from rolellm.reporting.labelling import LabelServer, LabelTask, serving

from ...judge_runs import make_comparison, make_rows, write_run

COMMANDS = {"What now?": "rolellm label --agreement the-run"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", make_comparison(make_rows(6)))


@pytest.fixture
def serve(folder: Path) -> Iterator[Callable[..., LabelServer]]:
    """Serves a ranking of the run, or its audit; settings go to the task."""
    with ExitStack() as stack:

        def start(**settings: Any) -> LabelServer:
            task = LabelTask(read_run(folder), "anna", LabelSettings(**settings))
            return stack.enter_context(serving(task, COMMANDS))

        yield start
