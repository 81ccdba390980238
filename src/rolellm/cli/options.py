"""Command-line options made from settings classes and from the signatures and docstrings of commands.

So a name, a default, a limit and its help are written once.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from pydantic.fields import FieldInfo
from typer.models import ArgumentInfo, OptionInfo

from rolellm.cli.llm_options import AskedForAll, check_missing
from rolellm.cli.output import present_result
from rolellm.core.errors import SettingsError
from rolellm.core.result import Result
from rolellm.core.settings import (
    describe_alternatives,
    find_section,
    is_advanced,
    parse_yaml,
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
Profile = Annotated[Path, typer.Argument(metavar="PROFILE", help="A character's folder or card; see `rolellm role`.")]

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
    passed makes the exit code 1. With `AskedForAll`, a run that lacks more answers than it allows stops short.
    """
    signature = inspect.signature(command, eval_str=True)
    parameters = dict(signature.parameters)
    has_result = _returns_result(signature)
    if has_result and "as_json" not in parameters:
        parameters["as_json"] = _AS_JSON
    sections = {name: cls for name, item in parameters.items() if (cls := find_section(item.annotation))}
    helps = read_descriptions(command, "Args")
    plain = {name: item for name, item in parameters.items() if name not in sections}
    hints = {
        name: (name, item.annotation)
        for name, item in plain.items()
        if item.annotation is not typer.Context and not _is_argument(item)
    }
    advanced = {name: helps.get(name, "") for name, item in plain.items() if is_advanced(item.annotation)}
    for cls in sections.values():
        advanced |= _describe_advanced(cls)

    @functools.wraps(command)
    def call(**values: Any) -> Any:
        for override in values.pop("overrides", None) or ():
            _set_value(values, override, {**hints, **_map_settable_fields(sections.values())})
        settings_objects: dict[str, Any] = {
            name: read(cls, _collect_values(cls, values)) for name, cls in sections.items()
        }
        as_json = bool(values.get("as_json"))
        if "as_json" not in signature.parameters:
            values.pop("as_json", None)
        result = command(**values, **settings_objects)
        if has_result and result is not None:
            present_result(result, as_json)
            if not result.has_passed:
                raise typer.Exit(1)
            for calls in settings_objects.values():
                if isinstance(calls, AskedForAll):
                    check_missing(values["context"], calls, result.failed, result.asked)

    own = [_make_option(item, helps.get(name)) for name, item in plain.items() if name not in advanced]
    # Arguments, then required options.
    own.sort(key=lambda item: (not _is_argument(item), item.default is not inspect.Parameter.empty))
    listed = [option for cls in sections.values() for option in _make_options(cls)]
    overrides = [_OVERRIDES] if sections or advanced else []
    call.__signature__ = signature.replace(parameters=[*own, *listed, *overrides])  # type: ignore[attr-defined]
    call.advanced = advanced  # type: ignore[attr-defined]
    call.__doc__ = (command.__doc__ or "").partition("Args:\n")[0].rstrip()
    return call


def _returns_result(signature: inspect.Signature) -> bool:
    """Whether a command returns a `Result`, or one or nothing."""
    returned = strip_hint(signature.return_annotation)
    returned = get_origin(returned) or returned
    return isinstance(returned, type) and issubclass(returned, Result)


_AS_JSON = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson)
_OVERRIDES = inspect.Parameter(
    "overrides",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set any option by name, such as top_p=0.9."),
    ],
)


def _set_value(values: dict[str, Any], override: str, fields: Mapping[str, tuple[str, Any]]) -> None:
    """Put the value of a ``--set KEY=VALUE`` in place of the option's."""
    key, equals, text = override.partition("=")
    name = key.strip().replace("-", "_")
    if not equals:
        raise SettingsError(f"--set {override}: expected KEY=VALUE")
    if name not in fields:
        known = {field: name for name, (field, _) in fields.items() if field != "as_json"}
        raise SettingsError(f"--set {override}: there is no such option{describe_alternatives(name, known.values())}")
    name, hint = fields[name]
    kind = strip_hint(hint)
    is_list = get_origin(kind) in (tuple, list)
    kind = get_args(kind)[0] if is_list else kind
    value = parse_yaml(text, f"--set {override}") if kind in (int, float, bool) else text
    values[name] = [*(values.get(name) or ()), value] if is_list else value


def _map_settable_fields(classes: Iterable[Any]) -> dict[str, tuple[str, Any]]:
    """Map each field, by its name and by its option's, to its name and type."""
    fields: dict[str, tuple[str, Any]] = {}
    for cls in classes:
        for name, hint, info in _iterate_fields(cls):
            flag = str(_get_extra(info).get("flag") or name).partition("/")[0].replace("-", "_")
            section = find_section(hint)
            fields |= _map_settable_fields([section]) if section else dict.fromkeys((name, flag), (name, hint))
    return fields


def _describe_advanced(cls: Any) -> dict[str, str]:
    """Map the fields of a settings class that have no option of their own to what their help says."""
    texts: dict[str, str] = {}
    for name, hint, info in _iterate_fields(cls):
        section = find_section(hint)
        if section:
            texts |= _describe_advanced(section)
        elif is_advanced(hint):
            texts[name] = info.description or ""
    return texts


def _is_argument(item: inspect.Parameter) -> bool:
    return any(isinstance(extra, ArgumentInfo) for extra in get_args(item.annotation)[1:])


def _make_option(item: inspect.Parameter, text: str | None) -> inspect.Parameter:
    """Turn a command's own parameter into an option or an argument."""
    if item.annotation is typer.Context:
        return item.replace(kind=inspect.Parameter.KEYWORD_ONLY)
    hint, info = get_args(item.annotation) if get_origin(item.annotation) is Annotated else (item.annotation, None)
    option: Any = copy.copy(info) or typer.Option()
    option.help = option.help or text
    option.metavar = option.metavar or _choose_metavar(hint)
    if isinstance(option, OptionInfo) and option.default is ...:  # where typer looks for the names first
        option.default = f"--{item.name.replace('_', '-')}"
    return item.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[hint, option])


def _iterate_fields(cls: Any) -> Iterator[tuple[str, Any, FieldInfo]]:
    hints = get_type_hints(cls, include_extras=True)
    for name, info in cls.__pydantic_fields__.items():
        if _get_extra(info).get("cli") is not False:
            yield name, hints[name], info


def _get_extra(info: FieldInfo) -> Mapping[str, Any]:
    return info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}


def _make_options(cls: type) -> Iterator[inspect.Parameter]:
    panel = (cls.__doc__ or "").strip().split("\n")[0].partition(".")[0].partition(" (")[0]
    for name, hint, info in _iterate_fields(cls):
        if section := find_section(hint):
            yield from _make_options(section)
            continue
        if is_advanced(hint):
            continue
        # typer knows no bound that is excluded; the settings class refuses the bound itself.
        low = _find_limit(info, "ge") if _find_limit(info, "gt") is None else _find_limit(info, "gt")
        limits = {"min": low, "max": _find_limit(info, "le")}
        metavar = _get_extra(info).get("metavar") or _choose_metavar(hint)
        details: Any = {"metavar": metavar, **(limits if strip_hint(hint) in (int, float) else {})}
        flag = _get_extra(info).get("flag") or name.replace("_", "-")
        flag += f"/--no-{flag}" if hint is bool and info.default is True and "/" not in flag else ""
        option = typer.Option(f"--{flag}", help=info.description, rich_help_panel=panel, **details)
        default = info.get_default(call_default_factory=True)
        kind = inspect.Parameter.KEYWORD_ONLY
        yield inspect.Parameter(name, kind, default=default, annotation=Annotated[_get_typer_type(hint), option])


def _collect_values(cls: type, values: dict[str, Any]) -> dict[str, Any]:
    """Collect the values of a class's options, taken out of all that a command was given."""
    collected: dict[str, Any] = {}
    for name, hint, _ in _iterate_fields(cls):
        section = find_section(hint)
        collected[name] = _collect_values(section, values) if section else values.pop(name, None)
    return {name: value for name, value in collected.items() if value not in (None, [], ())}


def _find_limit(info: FieldInfo, name: str) -> float | None:
    return next((getattr(item, name) for item in info.metadata if getattr(item, name, None) is not None), None)


def _choose_metavar(hint: Any) -> str | None:
    """Return what the help calls a value; choices are listed."""
    kind = strip_hint(hint)
    kind = get_args(kind)[0] if get_origin(kind) in (tuple, list) else kind
    return {int: "N", float: "N", Path: "PATH", str: "TEXT"}.get(kind)


def _get_typer_type(hint: Any) -> Any:
    kind = strip_hint(hint)
    if get_origin(kind) is tuple:
        return list[get_args(kind)[0]] | None  # type: ignore[misc]
    if kind in (int, float, str, bool, Path) or get_origin(kind) is Literal:
        return hint
    raise TypeError(f"no option can be made of {hint}; leave the field out with cli=False")
