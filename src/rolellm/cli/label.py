"""``rolellm label``: people rank answers of a judging run, and how far judges agree with them (``--agreement``)."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rolellm.cli.options import with_options
from rolellm.cli.output import build_resume_line, say
from rolellm.core.result import Result
from rolellm.judging.settings import LabelSettings

if TYPE_CHECKING:
    from gradio import Blocks

RunFolder = Annotated[Path, typer.Argument(help="A folder that `rolellm judge` wrote.")]


@dataclass(frozen=True, repr=False)
class LabelResult(Result):
    """Progress of a person's labels.

    Attributes:
        annotator: Who labels.
        sample: Number of items.
        done: Number of items that are labeled.
        skipped: Number of items that were skipped.
        open: Number of items that are left.
        labels: The file of the labels.
        next_line: The command line to go on with.
        sheet: The sheet that was written.
    """

    annotator: str
    sample: int
    done: int
    skipped: int
    open: int
    labels: Path
    next_line: str
    sheet: Path | None = None

    def remarks(self) -> list[str]:
        """Return the counts, and where the labels or the sheet are."""
        if self.sheet is not None:
            return [f"Fill in the last columns of {self.sheet}; {self.open} of {self.sample} are left."]
        counts = f"{self.done} of {self.sample} labeled, {self.skipped} skipped, {self.open} left"
        return [f"{counts}: {self.labels}"]

    @property
    def continues_with(self) -> tuple[str]:
        """The command line to go on with."""
        return (self.next_line,)


@with_options
def run_label(
    invocation: typer.Context,
    run: RunFolder,
    settings: LabelSettings,
    sheet: Path | None = None,
    agreement: bool = False,
) -> Result:
    """Rank a sample of a judging run's answers yourself, blind.

    On a local page, with names masked and no verdicts shown; or in a spreadsheet (--sheet). Each label is
    saved before the page moves on. Press Ctrl-C to stop; the same command continues.

    Args:
        sheet: A CSV file in the place of the page: written where there is none, else what you filled in is read.
        agreement: Label nothing; compare judges with people, and people with one another.
    """
    if agreement:
        from rolellm.judging.people.agreement import measure_agreement
        from rolellm.judging.records import read_run

        return measure_agreement(read_run(run))

    from rolellm.core.locks import lock_folder
    from rolellm.judging.people.labels import label_path
    from rolellm.judging.records import LABELS, read_run
    from rolellm.reporting.labelling.tasks import LabelTask

    judging_run = read_run(run)
    annotator = settings.annotator or get_login()
    path = label_path(run, annotator)
    agreement_line = shlex.join(["rolellm", "label", "--agreement", str(run)])
    is_new_sheet = sheet is not None and not sheet.exists()
    with lock_folder(run / LABELS, f".{path.name}.lock"):
        task = LabelTask(judging_run, annotator, settings.limit)
        if sheet is None:
            _serve_label_page(task, agreement_line, settings.port)
        elif is_new_sheet:
            task.write_sheet(sheet)
        else:
            task.read_sheet(sheet)
    statuses = task.statuses()
    counts: Any = {status: statuses.count(status) for status in ("done", "skipped", "open")}
    next_line = build_resume_line(invocation) if counts["open"] else agreement_line
    new_sheet = sheet if is_new_sheet else None
    return LabelResult(annotator, len(statuses), **counts, labels=path, next_line=next_line, sheet=new_sheet)


def _serve_label_page(task: Any, next_line: str, port: int) -> None:
    prepare_gradio()

    from rolellm.reporting.labelling.ranking import LabelPage

    serve_until_stopped(LabelPage(task, next_line).build(), port=port)


def prepare_gradio() -> None:
    """Require Gradio, which counts its users unless it is told not to before it is imported."""
    from rolellm.core.errors import require

    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    require("gradio", extra="web")


def serve_until_stopped(page: Blocks, *, port: int, share: bool = False) -> None:
    """Serve a page, and say where it is, until somebody asks to stop."""
    from rolellm.reporting.labelling.serve import wait_for_stop

    with open_page(page, port=port, share=share):
        wait_for_stop()


@contextmanager
def open_page(page: Blocks, *, port: int, share: bool = False) -> Iterator[None]:
    """Serve a page within the block, and say where it is."""
    from rolellm.reporting.labelling.serve import serve_page

    with serve_page(page, port=port, share=share) as url:
        say(f"Open {url} in a browser. Press Ctrl-C to stop.", err=True)
        yield


def get_login() -> str:
    """Return the name that this machine knows the user by, fit for a file."""
    import getpass

    from rolellm.core.text import make_safe_name

    try:
        return make_safe_name(getpass.getuser())
    except (OSError, KeyError):
        # A container may run under a number that has no name.
        return "annotator"
