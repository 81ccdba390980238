"""The ``rolellm`` command: registers the command groups and turns errors into exit codes.

Exit codes: 0 done, 1 failed, 2 bad usage, 3 stopped short with work kept and a resume line printed, 130 stopped by
Ctrl-C with nothing to resume.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import os
import sys
import warnings
from importlib import resources
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from rolellm.core.errors import RoleLLMError, SettingsError, StoppedShortError
from rolellm.core.progress import announce_imports
from rolellm.core.threads import wait_briefly
from rolellm.version import __version__

_INTERRUPTED = 130


#: The module of each command, by the titles of the list; it is imported when the command runs. The command is its
#: function ``run_NAME``, a group its ``app``.
_GROUPS = {
    "Start": {"demo": "demo", "make": "make", "eval": "evaluate", "chat": "play", "serve": "play", "scene": "scene"},
    "Make": {"role": "role", "instruct": "instruct", "respond": "respond", "prefer": "prefer"},
    "Train": {"train": "train", "improve": "improve", "push": "push", "export": "export", "show": "export"},
    "Measure": {
        "generate": "generate",
        "score": "score",
        "judge": "judge",
        "check": "check",
        "label": "label",
        "report": "report",
    },
    "Data": {"data": "data"},
}
_COMMANDS = {name: module for commands in _GROUPS.values() for name, module in commands.items()}


class _Command(TyperCommand):
    """A command whose help has titled sections, and which refuses a second ``--llm``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments."""
        ctx.meta["help_all"] = "--help-all" in args
        if ctx.meta["help_all"]:
            args = ["--help"]
        if args.count("--llm") > 1:
            ctx.fail("--llm is given more than once; give one file, whose `endpoints` may list several")
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options in sections."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            name, text = record
            if parameter.param_type_name == "option":
                title = getattr(parameter, "rich_help_panel", None) or "Options"
            else:
                title = "Arguments"
                # Without its Python type.
                name = name.partition(" <")[0]
            sections.setdefault(title, []).append((name, text))
        advanced = getattr(self.callback, "advanced", {})
        if advanced and ctx.meta["help_all"]:
            sections["With --set KEY=VALUE"] = [*advanced.items()]
        elif advanced:
            sections["Options"].append(("--help-all", "Show also what only --set sets."))
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


class _Commands(TyperGroup):
    """The commands, each imported when it is needed: listing them takes no more than their docstrings."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands and groups."""
        return [*_COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a command."""
        return _import_command(cmd_name) if cmd_name in _COMMANDS else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands without importing them."""
        for title, commands in _GROUPS.items():
            with formatter.section(title):
                summaries = {name: _read_summary(name).partition("\n")[0] for name in commands}
                formatter.write_dl([*summaries.items()])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that the arguments name; suggest the nearest for an unknown one."""
        self.commands = {name: TyperCommand(name) for name in self.list_commands(ctx)}
        return super().resolve_command(ctx, args)


def _import_command(name: str) -> Any:
    module = importlib.import_module(f"rolellm.cli.{_COMMANDS[name]}")
    command = getattr(module, f"run_{name}", None) or module.app
    holder = typer.Typer(callback=lambda: None, rich_markup_mode=None)
    if isinstance(command, typer.Typer):
        for inner in command.registered_commands:
            inner.cls = _Command
            # Typer cuts it off otherwise.
            inner.short_help = (inspect.getdoc(inner.callback) or "").partition("\n")[0]
        holder.add_typer(command, name=name)
    else:
        holder.command(name, cls=_Command)(command)
    return get_group(holder).commands[name]


def _read_summary(name: str) -> str:
    """Read what a command does from its function's docstring; a group's is its module's."""
    source = resources.files("rolellm.cli").joinpath(f"{_COMMANDS[name]}.py").read_text(encoding="utf-8")
    tree = ast.parse(source)
    for item in tree.body:
        if isinstance(item, ast.FunctionDef) and item.name == f"run_{name}":
            return ast.get_docstring(item) or ""
    return ast.get_docstring(tree) or ""


app = typer.Typer(
    name="rolellm",
    cls=_Commands,
    help="RoleLLM: make characters, tune models to play them, and measure how well they do.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _accept_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; errors that this library raises on purpose end in one message, without a traceback."""
    try:
        wait_briefly()
        _prepare_messages()
        announce_imports()
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
        typer.echo(f"{begin}: {_make_printable(str(error))}", err=True)
        sys.exit(get_exit_code(error))
    except OSError as error:
        typer.echo(f"error: {_make_printable(_explain_os_error(error))}", err=True)
        sys.exit(1)


def _make_printable(text: str) -> str:
    """Make a message fit to print: messages quote scripts, cards, models, and servers that echo what they got."""
    from rolellm.core.sanitize import make_visible

    if "huggingface_hub" in sys.modules:
        from rolellm.core.scrub import hide_hub_token

        text = hide_hub_token(text)
    return make_visible(text)


def _explain_os_error(error: OSError) -> str:
    """Tell what the system refused, where, and the way out."""
    where = f"{error.filename}: " if error.filename else ""
    reason = error.strerror or str(error) or type(error).__name__
    return f"{where}{reason}; check that the path is right, and that you may read and write there"


def _prepare_messages() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal or a pipe that knows ASCII only is no reason to fail.
            stream.reconfigure(errors="backslashreplace")
    if not sys.stderr.isatty():
        # Bars for reading a checkpoint and mapping a data set are noise in a file; ours print lines there.
        for library in ("HF_HUB", "HF_DATASETS"):
            os.environ.setdefault(f"{library}_DISABLE_PROGRESS_BARS", "1")
    printed_messages: set[str] = set()

    def format_once(message: Warning | str, *_args: Any, **_options: Any) -> str:
        line = "" if str(message) in printed_messages else f"warning: {_make_printable(str(message))}\n"
        printed_messages.add(str(message))
        return line

    # A warning is a message to the user, not a line of source. Python's own memory of warnings is lost when a library
    # adds a filter.
    warnings.formatwarning = format_once


def get_exit_code(error: RoleLLMError) -> int:
    """Return the exit code that stands for an error."""
    if isinstance(error, StoppedShortError):
        return 3
    return 2 if isinstance(error, SettingsError) else 1
