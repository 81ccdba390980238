"""Check whether a role holds: own tests, knowledge, safety, long talks.

`rolellm check FILE` tests a character by its test file.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from rolellm.checks.boundary import BoundarySettings
from rolellm.checks.reward import RewardSettings
from rolellm.checks.safety import SafetySettings
from rolellm.cli.llm_options import estimate_if_dry, make_llm, run_or_estimate
from rolellm.cli.options import AsJson, DataDir, with_options
from rolellm.cli.output import build_next_line, print_result, resumable, say, show_table
from rolellm.cli.play import make_played_llm
from rolellm.core.settings import dump
from rolellm.core.text import format_count
from rolellm.llm.llm import CallOptions, ModelOptions, PlayedOptions
from rolellm.playing.settings import ConverseSettings, PlaySettings

if TYPE_CHECKING:
    from rolellm.measures import Findings
    from rolellm.runs import Run


class _ChecksFirst(TyperGroup):
    """The checks; an argument that names none is the file of a character's tests."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments."""
        if args and args[0] not in (*self.commands, "--help"):
            args = ["tests", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=_ChecksFirst, help=__doc__, no_args_is_help=True, subcommand_metavar="FILE|CHECK [ARGS]...")


@app.command("tests")
@with_options
def run_check_tests(
    context: typer.Context,
    file: Annotated[str, typer.Argument(metavar="CHARACTER.yaml")],
    model_options: PlayedOptions,
    call_options: CallOptions,
    out: Path = Path("character-tests"),
    init: bool = False,
    as_json: AsJson = False,
) -> None:
    """Test a character: role, language, knowledge, catchphrases, jailbreaks; exit code 1 when an assertion fails.

    Args:
        file: The test file (docs/checks.md); with --init, a character's folder, a card, or a role of
            RoleBench.
        out: Folder for tests.html, assertions.jsonl, and the journal: a second run sends only new messages.
        init: Write a first test file for the character to the current folder, for you to edit.
    """
    from rolellm.checks.character_tests import CheckCharacter, read_tests, write_first_file

    if init:
        words = ("rolellm", "check", str(write_first_file(file)))
        line = build_next_line(context, *words) if model_options.is_named else shlex.join([*words, "--model", "FOLDER"])
        say(f"Edit {words[-1]}, then go on with: {line}")
        return

    from rolellm.measures import check

    tests = read_tests(file)
    llm = make_played_llm(model_options, call_options, tests.model)
    estimate_if_dry(context, CheckCharacter(tests), llm)
    with resumable(context):
        findings = check(file, llm, out=out)
    print_result(findings, _show_tests, as_json)
    if not as_json:
        say(f"{'; '.join(findings.remarks())}. Replies: {out / 'tests.html'}")
    if findings["counts"]["passed"] < len(findings["assertions"]):
        raise typer.Exit(1)


def _show_tests(findings: Findings) -> None:
    show_table(findings.tables()[0])
    for assertion in findings["assertions"]:
        problems = (trial["problem"] or trial["ended"] for trial in assertion["trials"])
        if assertion["verdict"] != "passed" and (problem := next(filter(None, problems), None)):
            say(f"{assertion['name']}: {problem}")


@app.command("boundary")
@with_options
def run_check_boundary(
    invocation: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER")],
    model_options: PlayedOptions,
    call_options: CallOptions,
    probes: BoundarySettings,
    settings: PlaySettings,
    out: Path = Path("boundary"),
    judge: Path | None = None,
    others: list[Path] | None = None,
    as_json: AsJson = False,
) -> None:
    """Probe where a character's knowledge ends: later events, other stories, the modern world, and what it must know.

    Args:
        folder: The character's folder, with its script and the pairs of `rolellm instruct`, or its card.
        out: Folder for probes.jsonl (every probe, reply and verdict) and the journals.
        judge: YAML settings of a model that also judges every reply.
        others: Folders or cards of characters from other stories; defaults to the embedded sample's.
    """
    from rolellm.characters.cards.folder import open_character
    from rolellm.checks.boundary import ProbeBoundary
    from rolellm.cli.llm_options import get_scripted_models
    from rolellm.llm.llm import LLM

    judging = None if judge is None else LLM.of(judge, get_scripted_models())
    strangers = [open_character(path)[0] for path in others] if others else None
    step = ProbeBoundary(folder, probes, settings, strangers, judging)
    run = run_or_estimate(invocation, step, make_played_llm(model_options, call_options), out)
    print_result(run.to_dict() | run.result, _show_boundary, as_json)


def _show_boundary(result: Mapping[str, Any]) -> None:
    from rolellm.checks.boundary import KINDS
    from rolellm.reporting.check_sections import boundary_table

    show_table(boundary_table(result))
    if agreement := result["agreement"]:
        say(f"Rule and judge agree on {agreement['share']:.0%} of {agreement['n']} replies.")
    for kind in (kind for kind in KINDS if kind not in result["kinds"]):
        say(f"note: no probes of kind {kind.replace('_', ' ')}; {_NEEDED.get(kind, _PAIRS)}", err=True)
    if result["unscored"]:
        say(
            f"note: {result['unscored']} probes have no reply; {Path(result['out']) / 'probes.jsonl'} says why",
            err=True,
        )


_PAIRS = "they need a script, and pairs of `rolellm instruct` whose answers have its words"
_NEEDED = {
    "other_story": "name folders of other characters in this language (--others)",
    "modern": "give the year of the character's world (--world-year)",
}


@app.command("safety")
@with_options
def run_check_safety(
    invocation: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL")],
    call_options: CallOptions,
    safety: SafetySettings,
    settings: PlaySettings,
    against: str | None = None,
    role: list[str] | None = None,
    guard: Path | None = None,
    out: Path = Path("safety"),
    as_json: AsJson = False,
) -> None:
    """Measure what tuning did to refusals, with roles and without; exit code 1 when a loss is decided.

    Args:
        model: The tuned model: a folder, a Hub id, or YAML settings.
        against: Its base, named likewise; defaults to the one that an adapter was tuned on.
        role: A character's folder, a card, or a role of RoleBench; repeatable.
        guard: YAML settings of a guard model or a judge that reads the replies; defaults to rules.
        out: Folder for replies.jsonl and the journals: a second run sends only new messages.
    """
    from rolellm.checks.safety import find_losses
    from rolellm.measures import plan_safety

    options = dump(safety) | dump(settings)
    llm, step = plan_safety(model, against, roles=role or (), guard=guard, options=call_options, **options)
    run = run_or_estimate(invocation, step, llm, out)
    print_result(run, _show_safety, as_json)
    if find_losses(run.summary) or not run.summary["changes"]:
        raise typer.Exit(1)


def _show_safety(run: Run[Any]) -> None:
    from rolellm.reporting.safety_section import describe_safety, safety_table

    for sentence in describe_safety(run.summary):
        say(sentence)
    show_table(safety_table(run.summary))
    say(f"Replies: {run.folder / 'replies.jsonl'}")


@app.command("reward")
@with_options
def run_check_reward(
    context: typer.Context,
    rewards: Annotated[list[str], typer.Argument(metavar="REWARD...")],
    settings: RewardSettings,
    data: Annotated[str, typer.Option(metavar="CONFIG|FILE")] = "sample",
    data_dir: DataDir = None,
    out: Path = Path("reward"),
    as_json: AsJson = False,
) -> None:
    """Audit rewards: how often canaries and other roles' replies lose; exit code 1 when a canary beats all together.

    Args:
        rewards: Names in rolellm.rewards, such as style, or dotted paths of your own functions.
        data: Config of the dataset, such as sample, or a JSON Lines file with its columns.
        out: Folder of the run; replies.jsonl has every reply with its rewards.
    """
    from rolellm.measures import audit_reward

    with resumable(context):
        findings = audit_reward(rewards, data, data_dir=data_dir, out=out, **dump(settings))
    print_result(findings, _show_reward, as_json)
    if not as_json:
        say(f"Replies: {out / 'replies.jsonl'}")
    if findings["beaten"]:
        raise typer.Exit(1)


def _show_reward(findings: Findings) -> None:
    for sentence in findings.remarks():
        say(sentence)
    show_table(findings.tables()[0])


@app.command("converse")
@with_options
def run_check_converse(
    invocation: typer.Context,
    roles: Annotated[list[str], typer.Argument(metavar="ROLE...")],
    model_options: PlayedOptions,
    call_options: CallOptions,
    settings: ConverseSettings,
    out: Path,
    user: Path | None = None,
    as_json: AsJson = False,
) -> None:
    """Have a simulated user, or a script, talk with roles for many turns; all roles at once.

    Args:
        roles: Characters' folders, cards, or names of roles of RoleBench; a role given twice has two sessions.
        out: The run's folder; the same command continues a run that stopped.
        user: YAML settings of the model that plays the user; defaults to the one that plays the roles.
    """
    from rolellm.cli.llm_options import get_scripted_models
    from rolellm.llm.llm import LLM
    from rolellm.playing.converse import Converse

    talker = None if user is None else LLM.of(user, get_scripted_models())
    played = make_played_llm(model_options, call_options)
    if talker is not None:
        talker.options = replace(talker.options, ray=played.options.ray, workers=played.options.workers)
    run = run_or_estimate(invocation, Converse(roles, settings, talker), played, out)
    print_result(run, _show_talks, as_json)
    if not run.summary["replies"]:
        raise typer.Exit(1)
    if not as_json:
        say(f"Go on with: {shlex.join(['rolellm', 'check', 'drift', str(out)])}")


def _show_talks(run: Run[Any]) -> None:
    summary, spent = run.summary, run.manifest["spent"]
    counts = f"{format_count(spent['calls'], 'call')}, {spent['from_journal']:,} from the journal"
    replies = format_count(summary["replies"], "reply", "replies")
    say(f"{replies} in {format_count(summary['sessions'], 'session')}; {counts}")
    for name, reason in summary["ended_early"].items():
        say(f"note: {name} ended early: {reason}", err=True)


@app.command("drift")
@with_options
def run_check_drift(
    context: typer.Context,
    sessions: Annotated[list[str], typer.Argument(metavar="[NAME=]SESSIONS...")],
    model_options: ModelOptions,
    call_options: CallOptions,
    out: Path = Path("drift"),
    as_json: AsJson = False,
) -> None:
    """Measure how long roles stay in character, and what changes over the turns; with a model, also by its judgment.

    Args:
        sessions: Files or folders of `rolellm check converse`; those with the same NAME are joined.
        out: Folder of the run, which `rolellm report` shows; turns.jsonl has every reply with its measures.
    """
    from rolellm.checks.drift import MeasureDrift, read_systems

    llm = make_llm(model_options, call_options, required=call_options.dry_run)
    run = run_or_estimate(context, MeasureDrift(read_systems(sessions)), llm, out)
    print_result(run, _show_drift, as_json)


def _show_drift(run: Run[Any]) -> None:
    from rolellm.reporting.check_sections import drift_tables

    systems = run.summary["systems"]
    for table in drift_tables(systems):
        show_table(table)
    for name, figures in systems.items():
        if (judged := figures.get("judge")) and judged["unscored"]:
            say(f"note: {name}: {judged['unscored']} of {judged['of']} judgements gave no verdict", err=True)
    say(f"Go on with: {shlex.join(['rolellm', 'report', str(run.folder)])}")
