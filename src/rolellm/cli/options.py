"""Command-line options made from settings classes and from the signatures and docstrings of commands.

So a name, a default, a limit and its help are written once.
"""

from __future__ import annotations

import copy
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import typer
from annotated_types import Interval
from pydantic.fields import FieldInfo
from typer.models import ArgumentInfo, OptionInfo

from rolellm.cli.llm_options import EstimatedError, explain_missing
from rolellm.cli.output import print_result, resumable
from rolellm.core.errors import SettingsError
from rolellm.core.result import Result
from rolellm.core.settings import (
    describe_alternatives,
    find_section,
    is_advanced,
    parse_text,
    read,
    read_descriptions,
    strip_hint,
)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Config = Annotated[
    str | None,
    typer.Option("--config", help="Config of the dataset, such as sample."),
]
Split = Annotated[str, typer.Option("--split", help="Split of the dataset.")]
#: Of predictions, whose record says which split they answer.
AnsweredSplit = Annotated[
    str | None, typer.Option("--split", help="Split of the dataset; by default as recorded, else test.")
]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Local copy of the release (or $ROLEBENCH_DIR)."),
]
Profile = Annotated[Path, typer.Argument(help="A character's folder or card; see `rolellm role`.")]

_Command = Callable[..., Any]


def with_options(command: _Command) -> _Command:
    """Make a command of a function: options for its parameters, described by the ``Args:`` of its docstring.

    A parameter gives an option of its name; ``Annotated`` with a `typer.Option` says more about it, such as limits, and
    with a `typer.Argument` makes it an argument.

    A parameter that is a settings class gives one option for each field, its sections' fields included, and gets an
    object of the class, checked by `rolellm.core.settings.read`. A field's ``json_schema_extra`` may say ``{"cli":
    False}`` for no option, ``{"flag": "role"}`` (or ``"private/--public"``) for another name, and what the value is
    called in the help (``"metavar"``). What is `rolellm.core.settings.Advanced` has no option, but can be ``--set``.

    A function that returns a `rolellm.core.result.Result` gets ``--json``; the result is printed, and one that has not
    passed makes the exit code 1. A run that lacks more than 1 % of its answers stops short, and so does one that finds
    no room on the disk; the message then has the command line that continues.
    """
    signature = inspect.signature(command, eval_str=True)
    parameters = dict(signature.parameters)
    has_result = _returns_result(signature)
    if has_result:
        parameters.setdefault("as_json", _AS_JSON)
    sections: dict[str, Any] = {}
    plain: dict[str, inspect.Parameter] = {}
    for name, item in parameters.items():
        cls = find_section(item.annotation)
        if cls is not None:
            sections[name] = cls
        elif name != _INVOCATION.name:
            plain[name] = item
    fields = [field for cls in sections.values() for field in _flatten_fields(cls)]
    helps = read_descriptions(command, "Args")
    advanced: dict[str, str] = {}
    own: list[inspect.Parameter] = []
    for name, item in plain.items():
        if is_advanced(item.annotation):
            advanced[name] = helps.get(name, "")
        else:
            own.append(_make_option(item, helps.get(name)))
    # Arguments, then required options.
    own.sort(key=_get_rank)
    for field in fields:
        if is_advanced(field.hint):
            advanced[field.name] = field.info.description or ""
        else:
            own.append(_make_field_option(field))
    settable = _map_settable(plain, fields)

    @functools.wraps(command)
    def call(**values: Any) -> None:
        context = values[_INVOCATION.name]
        as_json = bool(values.get("as_json"))
        for override in values.pop("overrides", None) or ():
            _set_value(values, override, settable)
        for name, cls in sections.items():
            values[name] = read(cls, _collect_values(cls, values))
        with resumable(context):
            try:
                result = command(**{name: values[name] for name in values.keys() & signature.parameters})
            except EstimatedError as stop:
                result = stop.estimate
            if has_result and result is not None:
                _present(result, as_json)

    if advanced:
        own.append(_OVERRIDES)
    call.__signature__ = signature.replace(parameters=[_INVOCATION, *own])  # type: ignore[attr-defined]
    call.advanced = advanced  # type: ignore[attr-defined]
    call.__doc__ = (command.__doc__ or "").partition("Args:\n")[0].rstrip()
    return call


def _present(result: Result, as_json: bool) -> None:
    """Print a result, and end with an error or an exit code where it is not what was asked for."""
    has_passed = result.has_passed
    shortage = explain_missing(result)
    print_result(result, as_json, is_done=has_passed and shortage is None)
    if not has_passed:
        raise typer.Exit(1)
    if shortage is not None:
        raise shortage


def _returns_result(signature: inspect.Signature) -> bool:
    """Tell whether a command returns a `Result`, or one or nothing."""
    returned = strip_hint(signature.return_annotation)
    returned = get_origin(returned) or returned
    return isinstance(returned, type) and issubclass(returned, Result)


#: The invocation is not a setting; a command that needs it has it under this name.
_INVOCATION = inspect.Parameter("invocation", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
_AS_JSON = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson)
_Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set any option by name; --help-all lists more.")
]
_OVERRIDES = inspect.Parameter("overrides", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_Overrides)


class _SettingsField(NamedTuple):
    """A field of a settings class or of a section in it.

    Attributes:
        name: The field's name.
        hint: Its type.
        info: Its default, description and limits.
        panel: Title of its class in the help.
    """

    name: str
    hint: Any
    info: FieldInfo
    panel: str

    @property
    def extra(self) -> Mapping[str, Any]:
        """Extras of the field for its option."""
        return _get_extra(self.info)

    @property
    def flag(self) -> str:
        """The option's name, without dashes in front."""
        return str(self.extra.get("flag") or self.name.replace("_", "-"))

    def find_limit(self, *names: str) -> float | None:
        """Return the first of these limits that is set, such as ``ge``."""
        for name in names:
            for item in self.info.metadata:
                limit: float | None = getattr(item, name, None)
                if limit is not None:
                    return limit
        return None


def _flatten_fields(cls: Any) -> Iterator[_SettingsField]:
    """Yield the fields of a settings class, those of its sections in their place."""
    title = (cls.__doc__ or "").strip().partition("\n")[0]
    panel = re.split(r"\.| \(", title)[0]
    for name, hint, info in _iterate_fields(cls):
        section = find_section(hint)
        if section is None:
            yield _SettingsField(name, hint, info, panel)
        else:
            yield from _flatten_fields(section)


def _map_settable(
    plain: Mapping[str, inspect.Parameter], fields: Iterable[_SettingsField]
) -> dict[str, tuple[str, Any]]:
    """Map each key of ``--set``, an option's or a field's name, to the field's name and type."""
    settable: dict[str, tuple[str, Any]] = {}
    for name, item in plain.items():
        if not _is_argument(item) and name != "as_json":
            settable[name] = (name, _add_limits(item.annotation))
    for field in fields:
        flag = field.flag.partition("/")[0].replace("-", "_")
        target = field.name, field.hint
        settable |= {field.name: target, flag: target}
    return settable


def _add_limits(hint: Any) -> Any:
    """Add the limits of an option to its type, where pydantic finds them."""
    for extra in get_args(hint)[1:]:
        if isinstance(extra, OptionInfo):
            return Annotated[hint, Interval(ge=extra.min, le=extra.max)]
    return hint


def _set_value(values: dict[str, Any], override: str, settable: Mapping[str, tuple[str, Any]]) -> None:
    """Put the value of a ``--set KEY=VALUE`` in place of the option's."""
    key, equals, text = override.partition("=")
    key = key.strip().replace("-", "_")
    if not equals:
        raise SettingsError(f"--set {override}: expected KEY=VALUE")
    if key not in settable:
        names = dict(settable.values())
        raise SettingsError(f"--set {override}: there is no such option{describe_alternatives(key, names)}")
    name, hint = settable[key]
    kind = strip_hint(hint)
    if get_origin(kind) in (tuple, list):
        item = parse_text(get_args(kind)[0], text, key)
        values[name] = [*(values.get(name) or ()), item]
    else:
        values[name] = parse_text(hint, text, key)


def _get_rank(item: inspect.Parameter) -> tuple[bool, bool]:
    return not _is_argument(item), item.default is not inspect.Parameter.empty


def _is_argument(item: inspect.Parameter) -> bool:
    return any(isinstance(extra, ArgumentInfo) for extra in get_args(item.annotation)[1:])


def _make_option(item: inspect.Parameter, text: str | None) -> inspect.Parameter:
    """Turn a command's own parameter into an option or an argument."""
    hint, info = item.annotation, None
    if get_origin(hint) is Annotated:
        hint, info = get_args(hint)
    option: Any = copy.copy(info) or typer.Option()
    option.help = option.help or text
    if isinstance(option, ArgumentInfo):
        option.metavar = option.metavar or item.name.upper()
    else:
        option.metavar = option.metavar or _choose_metavar(hint)
        if option.default is ...:  # where typer looks for the names first
            option.default = f"--{item.name.replace('_', '-')}"
    return item.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[hint, option])


def _iterate_fields(cls: Any) -> Iterator[tuple[str, Any, FieldInfo]]:
    hints = get_type_hints(cls, include_extras=True)
    for name, info in cls.__pydantic_fields__.items():
        if _get_extra(info).get("cli") is not False:
            yield name, hints[name], info


def _get_extra(info: FieldInfo) -> Mapping[str, Any]:
    return info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}


def _make_field_option(field: _SettingsField) -> inspect.Parameter:
    """Turn a field into an option."""
    flag = field.flag
    if field.hint is bool and field.info.default is True and "/" not in flag:
        flag = f"{flag}/--no-{flag}"
    limits: dict[str, Any] = {}
    if strip_hint(field.hint) in (int, float):
        # typer knows no bound that is excluded; the settings class refuses the bound itself.
        limits = {"min": field.find_limit("gt", "ge"), "max": field.find_limit("le")}
    metavar = field.extra.get("metavar") or _choose_metavar(field.hint)
    text = field.info.description
    option = typer.Option(f"--{flag}", help=text, metavar=metavar, rich_help_panel=field.panel, **limits)
    default = field.info.get_default(call_default_factory=True)
    annotation: Any = Annotated[_get_typer_type(field.hint), option]
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _collect_values(cls: type, values: dict[str, Any]) -> dict[str, Any]:
    """Collect the values of a class's options, taken out of all that a command was given."""
    collected: dict[str, Any] = {}
    for name, hint, _ in _iterate_fields(cls):
        section = find_section(hint)
        value = values.pop(name, None) if section is None else _collect_values(section, values)
        if value not in (None, [], ()):
            collected[name] = value
    return collected


def _choose_metavar(hint: Any) -> str | None:
    """Return what the help calls a value; choices are listed."""
    kind = strip_hint(hint)
    if get_origin(kind) in (tuple, list):
        kind = get_args(kind)[0]
    return {int: "N", float: "N", Path: "PATH", str: "TEXT"}.get(kind)


def _get_typer_type(hint: Any) -> Any:
    kind = strip_hint(hint)
    if get_origin(kind) is tuple:
        return list[get_args(kind)[0]] | None  # type: ignore[misc]
    if kind in (int, float, str, bool, Path) or get_origin(kind) is Literal:
        return hint
    raise TypeError(f"no option can be made of {hint}; leave the field out with cli=False")
