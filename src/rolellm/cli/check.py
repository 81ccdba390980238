"""Check a role: own tests, knowledge, safety, rewards, long talks.

`rolellm check FILE` tests a character by its test file.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rolellm.checks.reward import RewardSettings
from rolellm.checks.safety import SafetySettings
from rolellm.cli.llm_options import run_or_estimate, stop_if_dry
from rolellm.cli.options import DataDir, with_options
from rolellm.cli.output import build_next_line, say
from rolellm.cli.play import make_played_llm
from rolellm.core.result import Result
from rolellm.core.settings import Advanced, dump
from rolellm.llm.llm import CallOptions, EngineOptions
from rolellm.playing.settings import PlaySettings, ReplySettings
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
    file: Annotated[str, typer.Argument(metavar="CHARACTER.yaml")],
    model_options: EngineOptions,
    call_options: CallOptions,
    out: Path = Path("character-tests"),
    init: bool = False,
) -> Run[Any] | None:
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
        line = (
            build_next_line(model_options, *words)
            if model_options.is_named
            else shlex.join([*words, "--model", "FOLDER"])
        )
        say(f"Edit {words[-1]}, then go on with: {line}")
        return None

    from rolellm.measures import check

    tests = read_tests(file)
    llm = make_played_llm(model_options, call_options, tests.model)
    stop_if_dry(CheckCharacter(tests), llm)
    return check(file, llm, out=out)


@app.command("boundary")
@with_options
def run_check_boundary(
    profile: Annotated[Path, typer.Argument()],
    world_year: int | None = None,
    limit: Annotated[int, typer.Option(min=1)] = 20,
) -> Result:
    """Add questions at the boundary of a character's knowledge to its test file, which is made where needed.

    Its own story, which it must know; people of other stories and a later world, which it cannot know.

    Args:
        profile: The character's folder, with its script and the pairs of `rolellm instruct`, or its card.
        world_year: The year in which the character lives; without it, no later world is asked about.
        limit: Maximum questions of each kind.
    """
    from rolellm.checks.boundary import write_boundary

    return write_boundary(profile, world_year=world_year, limit=limit)


@app.command("safety")
@with_options
def run_check_safety(
    model: Annotated[str, typer.Argument()],
    call_options: CallOptions,
    safety: SafetySettings,
    settings: ReplySettings,
    against: str | None = None,
    role: list[str] | None = None,
    guard: Path | None = None,
    engine: Advanced[str] = "auto",
    out: Path = Path("safety"),
) -> Run[Any]:
    """Measure what tuning did to refusals, with roles and without; exit code 1 for a loss beyond chance.

    Args:
        model: The tuned model: a folder, a Hub id, or YAML settings.
        against: Its base, named likewise; defaults to the one that an adapter was tuned on.
        role: A character's folder, a card, or a role of RoleBench; repeatable.
        guard: YAML settings of a guard model or a judge that reads the replies; defaults to rules.
        engine: For local models: builtin, vllm, or vLLM's path; auto: vLLM where found with a GPU.
        out: Folder for replies.jsonl and the journals: a second run sends only new messages.
    """
    from rolellm.measures import plan_safety

    options = dump(safety) | dump(settings)
    llm, step = plan_safety(
        model, against, roles=role or (), guard=guard, engine=engine, options=call_options, **options
    )
    return run_or_estimate(step, llm, out)


@app.command("reward")
@with_options
def run_check_reward(
    rewards: Annotated[list[str], typer.Argument(metavar="REWARD")],
    settings: RewardSettings,
    data: Annotated[str, typer.Option(metavar="CONFIG|FILE")] = "sample",
    data_dir: Advanced[DataDir] = None,
    out: Path = Path("reward"),
) -> Run[Any]:
    """Audit rewards: how often canaries and other roles' replies lose; exit code 1 when a canary beats all together.

    Args:
        rewards: Names in rolellm.rewards, such as style, or dotted paths of your own functions.
        data: Config of the dataset, such as sample, or a JSON Lines file with its columns.
        data_dir: Local copy of the release (or $ROLEBENCH_DIR).
        out: Folder of the run; replies.jsonl has every reply with its rewards.
    """
    from rolellm.measures import audit_reward

    return audit_reward(rewards, data, data_dir=data_dir, out=out, **dump(settings))


@app.command("converse")
@with_options
def run_check_converse(
    roles: Annotated[list[str], typer.Argument(metavar="ROLE")],
    model_options: EngineOptions,
    call_options: CallOptions,
    settings: PlaySettings,
    out: Path,
    script: Path,
) -> Run[Any]:
    """Talk with roles as a script says, for `rolellm check drift`; all roles at once.

    Args:
        roles: Characters' folders, cards, or names of roles of RoleBench; a role given twice has two sessions.
        out: The run's folder; the same command continues a run that stopped.
        script: Text file with the user's messages, one per line.
    """
    from rolellm.playing.converse import Converse

    llm = make_played_llm(model_options, call_options)
    run = run_or_estimate(Converse(roles, script, settings), llm, out)
    return run.continue_with(shlex.join(["rolellm", "check", "drift", str(out)]))


@app.command("drift")
@with_options
def run_check_drift(
    sessions: Annotated[list[str], typer.Argument(metavar="[NAME=]SESSIONS")],
    out: Path = Path("drift"),
) -> Run[Any]:
    """Measure how long roles stay in character, and what changes over the turns; by rule, no model is asked.

    Args:
        sessions: Files or folders of `rolellm check converse`; those with the same NAME are joined.
        out: Folder of the run, which `rolellm report` shows; turns.jsonl has every reply with its measures.
    """
    from rolellm.checks.drift import MeasureDrift, read_systems
    from rolellm.runs import run_step

    run = run_step(MeasureDrift(read_systems(sessions)), None, out)
    return run.continue_with(shlex.join(["rolellm", "report", str(out)]))
