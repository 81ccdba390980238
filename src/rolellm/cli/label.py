"""``rolellm label`` and ``rolellm agreement``: what people say of a judging run, and how far judges agree with them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rolellm.cli.options import AsJson, with_options
from rolellm.cli.output import ABSENT, estimate_text, print_json, print_table, resumable
from rolellm.core.sanitize import label as shown
from rolellm.core.sanitize import visible
from rolellm.judging.settings import AgreementSettings, LabelSettings

if TYPE_CHECKING:
    from rolellm.labelling import LabelTask

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A folder that `rolellm judge` wrote.")]


@with_options
def label(
    context: typer.Context,
    run: RunFolder,
    settings: LabelSettings,
    open_page: Annotated[bool | None, typer.Option("--open/--no-open")] = None,
    as_json: AsJson = False,
) -> None:
    """Rank a sample of a run's answers on a local page, blind: names are masked, the judges' verdicts are not shown.

    Each label is saved before the page moves on. Press Ctrl-C to stop; the same command continues.

    Args:
        open_page: Open the page in a browser; the default on a terminal.
    """
    from rolellm.core.errors import SettingsError, StoppedShortError
    from rolellm.judging.folder import LABELS, read_run
    from rolellm.judging.people.labels import AuditLabel, RankingLabel, label_path
    from rolellm.labelling import AuditTask, RankingTask
    from rolellm.runtime.locks import locked

    if settings.system is not None and not settings.audit:
        raise SettingsError("--system needs --audit; a ranking always covers all systems")
    found = read_run(run)
    annotator = settings.annotator or login()
    path = label_path(run, annotator, AuditLabel if settings.audit else RankingLabel)
    task: LabelTask
    with locked(run / LABELS, f".{path.name}.lock"):
        if settings.audit:
            task = AuditTask(found, annotator, size=settings.sample, seed=settings.seed, system=settings.system)
        else:
            task = RankingTask(found, annotator, size=settings.sample, seed=settings.seed)
        _serve(task, run, port=settings.port, open_page=open_page)
    counts = {status: task.statuses().count(status) for status in ("done", "skipped", "open")}
    if as_json:
        print_json({"annotator": annotator, "kind": task.kind, "sample": len(task), **counts, "labels": str(path)})
    kept = f"{counts['done']} of {len(task)} labeled, {counts['skipped']} skipped, {counts['open']} left"
    if counts["open"]:
        with resumable(context):
            raise StoppedShortError(f"{kept}; they are in {path}", resume="the same command")
    if not as_json:
        typer.echo(f"{kept}: {visible(str(path))}")
        typer.echo(f"Next: {visible(_agreement_command(run))}")


def login() -> str:
    """The name that this machine knows the user by, fit for a file."""
    import getpass

    from rolellm.core.text import safe_name

    try:
        return safe_name(getpass.getuser())
    except (OSError, KeyError):
        # A container may run under a number that has no name.
        return "annotator"


def _serve(task: LabelTask, run: Path, *, port: int, open_page: bool | None) -> None:
    """Serve until somebody asks to stop."""
    import webbrowser

    from rolellm.labelling import serving, stop_request

    audit = f"rolellm label {shlex.quote(str(run))} --annotator {shlex.quote(task.annotator)} --audit"
    commands = {"How far do people and judges agree?": _agreement_command(run)}
    commands |= {"The paper's three questions, of single answers": audit} if task.kind == "ranking" else {}
    with stop_request() as wait, serving(task, commands, port=port) as server:
        typer.echo(f"Open {server.url} in a browser on this machine. Press Ctrl-C to stop.", err=True)
        if sys.stdout.isatty() if open_page is None else open_page:
            webbrowser.open(server.url)
        wait()


def _agreement_command(run: Path) -> str:
    return f"rolellm agreement {shlex.quote(str(run))}"


@with_options
def agreement(run: RunFolder, settings: AgreementSettings, as_json: AsJson = False) -> None:
    """Compare judges with people and people with one another: agreement beyond chance, the audit, 95 % intervals."""
    from rolellm.judging.folder import read_run
    from rolellm.judging.people.agreement import agreement as measure

    found = measure(read_run(run), settings)
    for warning in found["warnings"]:
        typer.echo(f"warning: {visible(warning)}", err=True)
    if as_json:
        print_json(found)
    else:
        print_agreement(found)


_NAME = 40


def print_agreement(found: Mapping[str, Any]) -> None:
    """Print what `rolellm.judging.people.agreement` found, as far as there is any of it."""
    if found["annotators"]:
        _people(found)
    for title, key in (("Judges against people", "judge_human"), ("People against people", "human_human")):
        if found[key]:
            _comparisons(f"{title}, beyond chance, with 95 % intervals over questions", found[key])
    if found["fleiss_kappa"]:
        heads = ["", "Fleiss' kappa, against the baseline", "Fleiss' kappa, all pairs"]
        print_table("All people", heads, [["", *map(_score, found["fleiss_kappa"].values())]])
    if found["audit"]:
        _audit(found["audit"])


def _people(found: Mapping[str, Any]) -> None:
    rows = []
    for one in found["annotators"]:
        time = ABSENT if one["median_seconds"] is None else f"{one['median_seconds']:.0f} s"
        counts = (str(one[key]) for key in ("labelled", "skipped"))
        rows.append([shown(one["name"], _NAME), *counts, _share(one["ties"]), time])
    print_table("Who ranked", ["Person", "rows", "skipped", "ties among pairs", "median time"], rows)


def _comparisons(title: str, comparisons: list[dict[str, Any]]) -> None:
    columns = ["", "rows", "kappa, against the baseline", "kappa, all pairs", "Spearman, rows", "Spearman, systems"]
    rows = []
    for one in comparisons:
        kappas = [(one[which] or {}).get("kappa") for which in ("baseline", "all_pairs")]
        scores = map(_score, (*kappas, one["spearman_rows"], one["spearman_models"]))
        rows.append([_pair(one), str(one["rows"]), *scores])
    print_table(title, columns, rows)


def _audit(audit: Mapping[str, Any]) -> None:
    columns = ["Audit: share of yes", "answers the instruction", "reflects the style", "is correct", "cannot tell"]
    rows = []
    for name, found in audit["systems"].items():
        shares = (_share(found[question]["share"]) for question in audit["paper"])
        rows.append([shown(name, _NAME), *shares, str(found["correct"]["cannot_tell"])])
    paper = [f"{100 * share:.0f} %" for share in audit["paper"].values()]
    rows.append(["the paper's people, on its references", *paper, ABSENT])
    print_table("The paper's three questions", columns, rows)
    if audit["agreement"]:
        pairs = [[_pair(one), *map(_score, one["kappa"].values())] for one in audit["agreement"]]
        print_table("People against people in the audit: Cohen's kappa", ["", *columns[1:4]], pairs)


def _pair(one: Mapping[str, Any]) -> str:
    return f"{shown(one['a'], _NAME)} / {shown(one['b'], _NAME)}"


def _score(found: Mapping[str, Any] | None) -> str:
    return estimate_text(found, counted=True)


def _share(found: Mapping[str, Any] | None) -> str:
    return estimate_text(found, scale=100, digits=0, unit=" %", counted=True)
