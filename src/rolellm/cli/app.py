"""The ``rolellm`` command: registers the command groups and turns errors into exit codes.

Exit codes: 0 done, 1 failed, 2 bad usage, 3 stopped short with work kept and a resume line printed, 130 stopped by
Ctrl-C with nothing to resume.
"""

from __future__ import annotations

import io
import logging
import sys
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rolellm.cli import (
    compare,
    convert,
    data,
    demo,
    evaluate,
    generate,
    instruct,
    instructions,
    judge,
    label,
    push,
    report,
    respond,
    role,
    train,
)
from rolellm.core.errors import RoleLLMError, SettingsError, StoppedShortError
from rolellm.core.files import NO_ROOM
from rolellm.runtime.starting import hand_over
from rolellm.version import __version__

_INTERRUPTED = 130


class _InOrder(TyperGroup):
    """Lists what there is in the order in which a user comes to it; typer puts groups below all commands."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of all commands and groups."""
        first = ("demo", "data", "role", "instructions")
        return sorted(self.commands, key=lambda name: first.index(name) if name in first else len(first))


app = typer.Typer(
    name="rolellm",
    cls=_InOrder,
    help="RoleLLM: RoleBench, role-conditioned tuning, and scores that name their recipe.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(data.app, name="data")
app.add_typer(role.app, name="role")
app.add_typer(instructions.app, name="instructions")
app.command("instruct")(instruct.instruct)
app.command("respond")(respond.respond)
app.command("train")(train.train)
app.command("generate")(generate.generate)
app.command("score")(evaluate.score)
app.command("judge")(judge.judge)
app.command("label")(label.label)
app.command("agreement")(label.agreement)
app.command("report")(report.report)
app.command("compare")(compare.compare)
app.command("push")(push.push)
app.command("convert-chatglm")(convert.convert_chatglm)
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
    try:
        hand_over()
        _tidy_messages()
        app()
    except (KeyboardInterrupt, SystemExit) as stop:
        # Typer ends with this code on Ctrl-C, and without a word.
        if isinstance(stop, SystemExit) and stop.code != _INTERRUPTED:
            raise
        typer.echo("stopped", err=True)
        sys.exit(_INTERRUPTED)
    except RoleLLMError as error:
        # A notice, not a failure: the work so far is kept.
        begin = "stopped" if isinstance(error, StoppedShortError) else "error"
        typer.echo(f"{begin}: {_harmless(str(error))}", err=True)
        sys.exit(exit_code(error))
    except OSError as error:
        typer.echo(f"error: {_harmless(_of_the_system(error))}", err=True)
        sys.exit(1)


def _harmless(text: str) -> str:
    """A message as it may be printed: messages quote scripts, cards, models, and servers that echo what they got."""
    from rolellm.core.sanitize import visible

    if "huggingface_hub" in sys.modules:
        from rolellm.core.scrub import without_hub_token

        text = without_hub_token(text)
    return visible(text)


def _of_the_system(error: OSError) -> str:
    """What the system refused, where, and the way out."""
    if error.errno in NO_ROOM:
        where = f" of {error.filename}" if error.filename else ""
        return f"no room left on the disk{where}; make some, and give the same command again"
    where = f"{error.filename}: " if error.filename else ""
    reason = error.strerror or str(error) or type(error).__name__
    return f"{where}{reason}; check that the path is right, and that you may read and write there"


def _tidy_messages() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal or a pipe that knows ASCII only is no reason to fail.
            stream.reconfigure(errors="backslashreplace")
    # A warning is a message to the user, not a line of source.
    warnings.formatwarning = lambda message, *_args, **_options: f"warning: {_harmless(str(message))}\n"
    # At each start it tells of an optional speed-up for 4-bit inference on CPUs.
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)


def exit_code(error: RoleLLMError) -> int:
    """The exit code that stands for an error."""
    if isinstance(error, StoppedShortError):
        return 3
    return 2 if isinstance(error, SettingsError) else 1
