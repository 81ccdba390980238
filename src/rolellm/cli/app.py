"""The ``rolellm`` command: registers the command groups and turns errors into exit codes.

Exit codes: 0 done, 1 failed, 2 bad usage, 3 stopped short with work kept and a resume line printed, 130 stopped by
Ctrl-C with nothing to resume.
"""

from __future__ import annotations

import ast
import importlib
import io
import logging
import sys
import warnings
from importlib import resources
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from rolellm.core.errors import RoleLLMError, SettingsError, StoppedShortError
from rolellm.core.files import NO_ROOM
from rolellm.runtime.starting import hand_over
from rolellm.version import __version__

_INTERRUPTED = 130


#: Where each command is, in the order in which a user comes to it; its module is imported when it runs.
_COMMANDS = {
    "demo": "demo:demo",
    "data": "data:app",
    "role": "role:app",
    "instructions": "instructions:app",
    "instruct": "instruct:instruct",
    "respond": "respond:respond",
    "train": "train:train",
    "generate": "generate:generate",
    "chat": "play:chat",
    "serve": "play:serve",
    "converse": "drift:converse",
    "drift": "drift:drift",
    "test": "testing:test",
    "boundary": "boundary:boundary",
    "score": "evaluate:score",
    "style": "style:style",
    "harness": "harness:harness",
    "judge": "judge:judge",
    "label": "label:label",
    "agreement": "label:agreement",
    "report": "report:report",
    "leaderboard": "leaderboard:leaderboard",
    "compare": "compare:compare",
    "push": "push:push",
    "convert-chatglm": "convert:convert_chatglm",
}


class _Command(TyperCommand):
    """A command that refuses a second ``--llm``, and words errors without Pydantic's prefix."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments."""
        given = [] if ctx.resilient_parsing else self.make_parser(ctx).parse_args(args=list(args))[2]
        if sum(item.opts[0] == "--llm" for item in given) > 1:
            ctx.fail("--llm is given more than once; give one file, whose `endpoints` may list several")
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise


class _Commands(TyperGroup):
    """The commands, each imported when it is needed: listing them takes no more than their docstrings."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of all commands and groups."""
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command, imported."""
        return _imported(cmd_name) if cmd_name in _COMMANDS else None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """List the commands without importing them."""
        listed = [TyperCommand(name, help=_summary(name)) for name in _COMMANDS]
        TyperGroup(name=self.name, commands=listed, params=self.params, help=self.help).format_help(ctx, formatter)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the arguments name; for an unknown one, the nearest."""
        self.commands = {name: TyperCommand(name) for name in _COMMANDS}
        return super().resolve_command(ctx, args)


def _imported(name: str) -> Any:
    module, _, attribute = _COMMANDS[name].partition(":")
    found = getattr(importlib.import_module(f"rolellm.cli.{module}"), attribute)
    holder = typer.Typer(callback=lambda: None)
    if isinstance(found, typer.Typer):
        for inner in found.registered_commands:
            inner.cls = _Command
        holder.add_typer(found, name=name)
    else:
        holder.command(name, cls=_Command)(found)
    return get_group(holder).commands[name]


def _summary(name: str) -> str:
    """What a command does: its function's docstring; a group's is its module's."""
    module, _, attribute = _COMMANDS[name].partition(":")
    tree = ast.parse(resources.files("rolellm.cli").joinpath(f"{module}.py").read_text(encoding="utf-8"))
    functions = (item for item in tree.body if isinstance(item, ast.FunctionDef) and item.name == attribute)
    return ast.get_docstring(next(functions, tree)) or ""


app = typer.Typer(
    name="rolellm",
    cls=_Commands,
    help="RoleLLM: RoleBench, role-conditioned tuning, and scores that name their recipe.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


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
    said: set[str] = set()

    def once(message: Warning | str, *_args: Any, **_options: Any) -> str:
        line = "" if str(message) in said else f"warning: {_harmless(str(message))}\n"
        said.add(str(message))
        return line

    # A warning is a message to the user, not a line of source. Python's own memory of warnings is lost when a library
    # adds a filter.
    warnings.formatwarning = once
    # At each start it tells of an optional speed-up for 4-bit inference on CPUs.
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)


def exit_code(error: RoleLLMError) -> int:
    """The exit code that stands for an error."""
    if isinstance(error, StoppedShortError):
        return 3
    return 2 if isinstance(error, SettingsError) else 1
