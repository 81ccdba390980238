"""The ``rolellm`` command: registers the command groups and turns errors into exit codes.

Exit codes: 0 done, 1 failed, 2 bad usage, 3 stopped short with work kept and a resume line printed.
"""

from __future__ import annotations

import logging
import sys
import warnings
from typing import Annotated

import typer

from rolellm.cli import convert, data, demo, evaluate, generate, instruct, instructions, push, respond, role, train
from rolellm.errors import RecipeError, RoleLLMError, StoppedShortError
from rolellm.version import __version__

app = typer.Typer(
    name="rolellm",
    help="RoleLLM: RoleBench, role-conditioned tuning, and scores that name their recipe.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(data.app, name="data")
app.add_typer(role.app, name="role")
app.add_typer(instructions.app, name="instructions")
app.command("instruct")(instruct.instruct)
app.command("convert-chatglm")(convert.convert_chatglm)
app.command("respond")(respond.respond)
app.command("train")(train.train)
app.command("generate")(generate.generate)
app.command("score")(evaluate.score)
app.command("push")(push.push)
app.command("demo")(demo.demo)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; errors that this library raises on purpose end in one message, without a traceback."""
    _tidy_messages()
    try:
        app()
    except RoleLLMError as error:
        from rolellm.report.inert import visible

        # A notice, not a failure: the work so far is kept.
        label = "stopped" if isinstance(error, StoppedShortError) else "error"
        # Messages quote scripts, cards and models.
        typer.echo(f"{label}: {visible(str(error))}", err=True)
        sys.exit(exit_code(error))


def _tidy_messages() -> None:
    # A warning is a message to the user, not a line of source.
    warnings.formatwarning = lambda message, *_args, **_options: f"warning: {message}\n"
    # At each start it tells of an optional speed-up for 4-bit inference on CPUs.
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)


def exit_code(error: RoleLLMError) -> int:
    """The exit code that stands for an error."""
    if isinstance(error, StoppedShortError):
        return 3
    return 2 if isinstance(error, RecipeError) else 1
