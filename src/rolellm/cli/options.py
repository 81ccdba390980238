"""Command-line options made from settings classes and from the signatures and docstrings of commands.

So a name, a default, a limit and its help are written once.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from pydantic.fields import FieldInfo
from typer.models import OptionInfo

from rolellm.core.settings import bare, descriptions, read, section_of

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Config = Annotated[str, typer.Option("--config", help="Config of the dataset, such as sample.")]
Split = Annotated[str, typer.Option("--split", help="Split of the dataset.")]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="A local copy of the release; default: $ROLEBENCH_DIR, then the Hub."),
]
Profile = Annotated[Path, typer.Argument(metavar="PROFILE", help="A character's folder; see `rolellm role`.")]

_Command = Callable[..., Any]


def with_options(command: _Command) -> _Command:
    """Give a command options for its parameters, described by the ``Args:`` of its docstring.

    A parameter gives an option of its name; ``Annotated`` with a `typer.Option` says more about it, such as limits, and
    with a `typer.Argument` makes it an argument.

    A parameter that is a settings class gives one option for each field, its sections' fields included, and gets an
    object of the class, checked by `rolellm.core.settings.read`. A field's ``json_schema_extra`` may say ``{"cli":
    False}`` for no option, ``{"flag": "role"}`` (or ``"private/--public"``) for another name, and what the value is
    called in the help (``"metavar"``).
    """
    signature = inspect.signature(command, eval_str=True)
    taken = {name: cls for name, item in signature.parameters.items() if (cls := section_of(item.annotation))}
    helps = descriptions(command, "Args")

    @functools.wraps(command)
    def called(**values: Any) -> Any:
        made: dict[str, Any] = {name: read(cls, _collected(cls, values)) for name, cls in taken.items()}
        return command(**values, **made)

    parameters: list[inspect.Parameter] = []
    for name, item in signature.parameters.items():
        parameters += _options(taken[name]) if name in taken else [_option(item, helps.get(name))]
    called.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    called.__doc__ = (command.__doc__ or "").partition("Args:\n")[0].rstrip()
    return called


def _option(item: inspect.Parameter, text: str | None) -> inspect.Parameter:
    """A command's own parameter as an option or an argument."""
    if item.annotation is typer.Context:
        return item.replace(kind=inspect.Parameter.KEYWORD_ONLY)
    hint, info = get_args(item.annotation) if get_origin(item.annotation) is Annotated else (item.annotation, None)
    known: Any = copy.copy(info) or typer.Option()
    known.help = known.help or text
    if isinstance(known, OptionInfo) and known.default is ...:  # where typer looks for the names first
        known.default = f"--{item.name.replace('_', '-')}"
    return item.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[hint, known])


def _fields(cls: Any) -> Iterator[tuple[str, Any, FieldInfo]]:
    hints = get_type_hints(cls)
    for name, info in cls.__pydantic_fields__.items():
        if _extra(info).get("cli") is not False:
            yield name, hints[name], info


def _extra(info: FieldInfo) -> Mapping[str, Any]:
    return info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}


def _options(cls: type, panel: str | None = None) -> Iterator[inspect.Parameter]:
    for name, hint, info in _fields(cls):
        section = section_of(hint)
        if section is not None:
            yield from _options(section, (section.__doc__ or "").strip().split("\n")[0].rstrip("."))
            continue
        # typer knows no bound that is excluded; the settings class refuses the bound itself.
        low = _limit(info, "ge") if _limit(info, "gt") is None else _limit(info, "gt")
        limits = {"min": low, "max": _limit(info, "le")}
        known: Any = {"metavar": _extra(info).get("metavar"), **(limits if bare(hint) in (int, float) else {})}
        flag = _extra(info).get("flag") or name.replace("_", "-")
        flag += f"/--no-{flag}" if hint is bool and info.default is True and "/" not in flag else ""
        option = typer.Option(f"--{flag}", help=info.description, rich_help_panel=panel, **known)
        default = info.get_default(call_default_factory=True)
        kind = inspect.Parameter.KEYWORD_ONLY
        yield inspect.Parameter(name, kind, default=default, annotation=Annotated[_typer_type(hint), option])


def _collected(cls: type, values: dict[str, Any]) -> dict[str, Any]:
    """The values of a class's options, taken out of all that a command was given."""
    made: dict[str, Any] = {}
    for name, hint, _ in _fields(cls):
        section = section_of(hint)
        made[name] = _collected(section, values) if section else values.pop(name)
    return {name: value for name, value in made.items() if value not in (None, [], ())}


def _limit(info: FieldInfo, name: str) -> float | None:
    return next((getattr(item, name) for item in info.metadata if getattr(item, name, None) is not None), None)


def _typer_type(hint: Any) -> Any:
    kind = bare(hint)
    if get_origin(kind) is tuple:
        return list[get_args(kind)[0]] | None  # type: ignore[misc]
    if kind in (int, float, str, bool, Path) or get_origin(kind) is Literal:
        return hint
    raise TypeError(f"no option can be made of {hint}; leave the field out with cli=False")
