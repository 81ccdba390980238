"""Typing what a recipe's YAML says: every key known, every value of its type, or an error that says what to write."""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from rolellm.errors import RecipeError
from rolellm.rocit.recipe import Recipe

#: The one key of a file that is no part of a recipe: the file it builds on.
EXTENDS = "extends"
_WRITTEN = "output.dir"

Values = dict[str, Any]
_Section = TypeVar("_Section")


def typed(values: Mapping[Any, Any], folder: Path, *, nulls: bool) -> Values:
    """The sections that a file or an override names, each value typed; what it leaves out stays out.

    Args:
        values: As parsed from YAML.
        folder: What paths are relative to, but for ``output.dir``, which is relative to the current directory.
        nulls: Whether a key may have no value, which takes it back to its default.

    Raises:
        RecipeError: For an unknown key (with its dotted name and the nearest known one), or a value of a wrong type or
            outside its limits.
    """
    return _Reader(folder, nulls).section(Recipe, values, "")


def laid_over(under: Values, over: Values) -> Values:
    """Typed sections with others on top: what ``over`` does not name is as ``under`` has it.

    >>> laid_over({"training": {"seed": 1, "epochs": 2.0}}, {"training": {"seed": 7, "epochs": None}})
    {'training': {'seed': 7}}
    """
    merged = dict(under)
    for key, value in over.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            merged[key] = laid_over(merged.get(key, {}), value)
        else:
            merged[key] = value
    return merged


def build(cls: type[_Section], values: Values) -> _Section:
    """A section from typed values; what they leave out has its default."""
    hints = get_type_hints(cls)
    return cls(**{key: build(hints[key], value) if _is_section(hints[key]) else value for key, value in values.items()})


class _Reader:
    """Types parsed YAML by the hints of dataclasses."""

    def __init__(self, folder: Path, nulls: bool) -> None:
        self.folder = folder
        self.nulls = nulls

    def section(self, cls: type, values: Any, dotted: str) -> Values:
        if not isinstance(values, Mapping):
            raise RecipeError(f"{dotted}: expected a section with keys, found {describe(values)}")
        fields = {field.name: field for field in dataclasses.fields(cls)}
        hints = get_type_hints(cls)
        made: Values = {}
        for key, value in values.items():
            name = f"{dotted}.{key}" if dotted else str(key)
            if key not in fields:
                raise RecipeError(f"unknown key {name}{_nearest(str(key), fields, dotted)}")
            hint = hints[key]
            if value is None and (self.nulls or _is_section(hint)):
                made[key] = None
            elif _is_section(hint):
                made[key] = self.section(hint, value, name)
            else:
                made[key] = self._value(hint, value, name)
                _check_limits(made[key], fields[key].metadata, name)
        return made

    def _value(self, hint: Any, value: Any, name: str) -> Any:
        if get_origin(hint) in (Union, types.UnionType):
            if value is None:
                return None
            (hint,) = [option for option in get_args(hint) if option is not type(None)]
        if value is None:
            raise RecipeError(f"{name}: has no value; expected {_wanted(hint)}")
        if get_origin(hint) is tuple:
            return self._tuple(hint, value, name)
        if hint is Path and isinstance(value, str) and value:
            path = Path(value).expanduser()
            return path if name == _WRITTEN else self.folder / path
        if get_origin(hint) is Literal and value in get_args(hint) and not isinstance(value, bool):
            return value
        made = _scalar(hint, value)
        if made is None:
            raise RecipeError(f"{name}: expected {_wanted(hint)}, found {describe(value)}{_close(hint, value)}")
        return made

    def _tuple(self, hint: Any, value: Any, name: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise RecipeError(f"{name}: expected a list, such as [a, b], found {describe(value)}")
        if not value:
            raise RecipeError(f"{name}: the list is empty; leave the key out to take all")
        return tuple(self._value(get_args(hint)[0], item, f"{name}[{index}]") for index, item in enumerate(value))


def _is_section(hint: Any) -> bool:
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)


def _scalar(hint: Any, value: Any) -> Any:
    """The value as ``hint``, or ``None`` where it is not one."""
    if isinstance(value, bool):
        return value if hint is bool else None
    if hint is int:
        return value if isinstance(value, int) else None
    if hint is float:
        # YAML 1.1 reads 2e-4 as a string, because it has no dot.
        try:
            number = float(value) if isinstance(value, int | float | str) else math.nan
        except ValueError:
            return None
        return number if math.isfinite(number) else None
    return value if hint is str and isinstance(value, str) else None


def _check_limits(value: Any, limits: Mapping[str, float], name: str) -> None:
    if value is None or not limits:
        return
    if "above" in limits and value <= limits["above"]:
        raise RecipeError(f"{name}: has to be above {limits['above']:g}, found {value:g}")
    if "low" in limits and value < limits["low"]:
        raise RecipeError(f"{name}: has to be at least {limits['low']:g}, found {value:g}")
    if "high" in limits and value > limits["high"]:
        raise RecipeError(f"{name}: has to be at most {limits['high']:g}, found {value:g}")


def _wanted(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, get_args(hint)))
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}
    return names.get(hint, "a list")


def describe(value: Any) -> str:
    """A value as YAML users know it, for messages."""
    kinds = {dict: "a section", list: "a list", type(None): "nothing", bool: "true or false", int: "a whole number"}
    kind = kinds.get(type(value), "a number" if isinstance(value, float) else "text")
    return kind if isinstance(value, dict | list) or value is None else f"{value!r} ({kind})"


def _close(hint: Any, value: Any) -> str:
    if get_origin(hint) is not Literal:
        return ""
    close = difflib.get_close_matches(str(value), [str(item) for item in get_args(hint)], n=1)
    return f"; did you mean {close[0]}?" if close else ""


@lru_cache
def _all_keys(cls: type, dotted: str = "") -> tuple[str, ...]:
    keys: list[str] = []
    for name, hint in get_type_hints(cls).items():
        keys.append(f"{dotted}{name}")
        if _is_section(hint):
            keys.extend(_all_keys(hint, f"{dotted}{name}."))
    return tuple(keys)


def _nearest(key: str, fields: Iterable[str], dotted: str) -> str:
    here = [f"{dotted}.{name}" for name in fields] if dotted else [*fields, EXTENDS]
    ends = {full.rpartition(".")[2]: full for full in here}
    close = difflib.get_close_matches(key, ends, n=1)
    if not close:
        # The right key under the wrong section is as common a slip as a misspelt one.
        deepest_first = sorted(_all_keys(Recipe), key=lambda full: full.count("."), reverse=True)
        ends = {full.rpartition(".")[2]: full for full in deepest_first}
        close = difflib.get_close_matches(key, ends, n=1)
    return f"; did you mean {ends[close[0]]}?" if close else f"; known here: {', '.join(here)}"
