"""``rolellm label``: people rank answers of a judging run, and how far judges agree with them (``--agreement``)."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rolellm.cli.options import AsJson, with_options
from rolellm.cli.output import format_estimate, print_json, print_result, print_table, resumable
from rolellm.core.sanitize import label, make_visible
from rolellm.core.table import ABSENT
from rolellm.judging.settings import LabelSettings

if TYPE_CHECKING:
    from rolellm.reporting.labelling import LabelTask

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A folder that `rolellm judge` wrote.")]


@with_options
def run_label(
    context: typer.Context,
    run: RunFolder,
    settings: LabelSettings,
    open_page: Annotated[bool | None, typer.Option("--open/--no-open")] = None,
    as_json: AsJson = False,
) -> None:
    """Rank a sample of a judging run's answers yourself, blind.

    On a local page, with names masked and no verdicts shown. Each label is
    saved before the page moves on. Press Ctrl-C to stop; the same command continues.

    Args:
        open_page: Open the page in a browser; the default on a terminal.
    """
    from rolellm.core.errors import SettingsError, StoppedShortError
    from rolellm.core.locks import lock_folder
    from rolellm.judging.people.labels import AuditLabel, RankingLabel, label_path
    from rolellm.judging.records import LABELS, read_run
    from rolellm.reporting.labelling import LabelTask

    if settings.system is not None and not settings.audit:
        raise SettingsError("--system needs --audit; a ranking always covers all systems")
    judging_run = read_run(run)
    annotator = settings.annotator or get_login()
    path = label_path(run, annotator, AuditLabel if settings.audit else RankingLabel)
    with lock_folder(run / LABELS, f".{path.name}.lock"):
        task = LabelTask(judging_run, annotator, settings)
        _serve(task, run, port=settings.port, open_page=open_page)
    counts = {status: task.statuses().count(status) for status in ("done", "skipped", "open")}
    if as_json:
        print_json({"annotator": annotator, "kind": task.kind, "sample": len(task), **counts, "labels": str(path)})
    progress = f"{counts['done']} of {len(task)} labeled, {counts['skipped']} skipped, {counts['open']} left"
    if counts["open"]:
        with resumable(context):
            raise StoppedShortError(f"{progress}; they are in {path}", resume="the same command")
    if not as_json:
        typer.echo(f"{progress}: {make_visible(str(path))}")
        typer.echo(f"Next: {make_visible(_build_agreement_command(run))}")


def get_login() -> str:
    """Return the name that this machine knows the user by, fit for a file."""
    import getpass

    from rolellm.core.text import make_safe_name

    try:
        return make_safe_name(getpass.getuser())
    except (OSError, KeyError):
        # A container may run under a number that has no name.
        return "annotator"


def _serve(task: LabelTask, run: Path, *, port: int, open_page: bool | None) -> None:
    """Serve until somebody asks to stop."""
    import webbrowser

    from rolellm.reporting.labelling import serving, stop_request

    audit = f"rolellm label {shlex.quote(str(run))} --annotator {shlex.quote(task.annotator)} --audit"
    commands = {"How far do people and judges agree?": _build_agreement_command(run)}
    commands |= {"The paper's three questions, of single answers": audit} if task.kind == "ranking" else {}
    with stop_request() as wait, serving(task, commands, port=port) as server:
        typer.echo(f"Open {server.url} in a browser on this machine. Press Ctrl-C to stop.", err=True)
        if sys.stdout.isatty() if open_page is None else open_page:
            webbrowser.open(server.url)
        wait()


def _build_agreement_command(run: Path) -> str:
    return f"rolellm label --agreement {shlex.quote(str(run))}"


@with_options
def run_label_agreement(run: RunFolder, as_json: AsJson = False) -> None:
    """Compare judges with people, and people with one another.

    Agreement beyond chance and the audit, with 95 % intervals.
    """
    from rolellm.judging.people.agreement import measure_agreement
    from rolellm.judging.records import read_run

    result = measure_agreement(read_run(run))
    for warning in result["warnings"]:
        typer.echo(f"warning: {make_visible(warning)}", err=True)
    print_result(result, print_agreement, as_json)


_NAME = 40


def print_agreement(result: Mapping[str, Any]) -> None:
    """Print what `rolellm.judging.people.agreement` found, as far as there is any of it."""
    for title, key in (("Judges against people", "judge_human"), ("People against people", "human_human")):
        if result[key]:
            _print_comparisons(f"{title}, beyond chance, with 95 % intervals for these roles", result[key])
    if result["fleiss_kappa"]:
        names = {"Fleiss' kappa": result["fleiss_kappa"], "Krippendorff's alpha, ordinal": result["krippendorff_alpha"]}
        rows = [[name, *map(_format_score, of.values())] for name, of in names.items()]
        print_table("All people", ["", "against the baseline", "all pairs"], rows)
    if result["audit"]:
        _print_audit(result["audit"])
    if result["annotators"]:
        rows = [
            [label(person["name"], _NAME), str(person["labelled"]), str(person["skipped"])]
            for person in result["annotators"]
        ]
        print_table("Who ranked", ["Person", "rows", "skipped"], rows)


def _print_comparisons(title: str, comparisons: list[dict[str, Any]]) -> None:
    columns = ["", "rows", "kappa, against the baseline", "kappa, all pairs", "Spearman, rows", "Spearman, systems"]
    rows = []
    for comparison in comparisons:
        kappas = [(comparison[which] or {}).get("kappa") for which in ("baseline", "all_pairs")]
        scores = map(_format_score, (*kappas, comparison["spearman_rows"], comparison["spearman_models"]))
        rows.append([_name_pair(comparison), str(comparison["rows"]), *scores])
    print_table(title, columns, rows)


def _print_audit(audit: Mapping[str, Any]) -> None:
    columns = ["Audit: share of yes", "answers the instruction", "reflects the style", "is correct", "cannot tell"]
    rows = []
    for name, figures in audit["systems"].items():
        shares = (_format_share(figures[question]["share"]) for question in audit["paper"])
        rows.append([label(name, _NAME), *shares, str(figures["correct"]["cannot_tell"])])
    paper = [f"{100 * share:.1f} %" for share in audit["paper"].values()]
    rows.append(["the paper's people, on its references", *paper, ABSENT])
    print_table("The paper's three questions", columns, rows)


def _name_pair(pair: Mapping[str, Any]) -> str:
    return f"{label(pair['a'], _NAME)} / {label(pair['b'], _NAME)}"


def _format_score(estimate: Mapping[str, Any] | None) -> str:
    return format_estimate(estimate, counted=True)


def _format_share(estimate: Mapping[str, Any] | None) -> str:
    return format_estimate(estimate, scale=100, digits=1, unit=" %", counted=True)
