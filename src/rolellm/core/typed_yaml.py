"""Typing what YAML says by the hints of dataclasses: every key known, every value of its type, or an error in words.

A file's sections are frozen dataclasses. Limits of numbers are in a field's metadata: ``above``, ``low``, ``high``.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from rolellm.core.errors import SettingsError

Values = dict[str, Any]
_Section = TypeVar("_Section")
_MOST_CHARACTERS = 1_000_000  # A recipe has a few thousand; PyYAML reads some three million a second.
_MOST_VALUES = 10_000  # A few aliases of aliases come to billions.


class Form(NamedTuple):
    """What a file may hold.

    Attributes:
        root: The dataclass of the whole file.
        kept: Dotted names of paths that are relative to the current directory, not to the file's folder.
        also: Keys beside the root's, which whoever reads the file takes out first; offered where a key is unknown.
    """

    root: type
    kept: Collection[str] = ()
    also: Sequence[str] = ()


def parse_yaml(text: str, source: str) -> Any:
    """The value of a YAML text, of plain values only.

    Args:
        text: The text.
        source: What to call it in messages, such as the file's path.

    Raises:
        SettingsError: For text that is not YAML, a key written twice, nesting that is too deep, or far more text than
            settings have; names the line.
    """
    if len(text) > _MOST_CHARACTERS:
        raise SettingsError(f"{source}: {len(text):,} characters are too many for settings; is it the right file?")
    try:
        # A SafeLoader by inheritance: it makes plain values only.
        return yaml.load(text, Loader=_UniqueKeyLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = source if mark is None else f"{source}:{mark.line + 1}"
        raise SettingsError(f"{where}: not valid YAML: {getattr(error, 'problem', None) or error}") from error
    except RecursionError as error:
        raise SettingsError(f"{source}: nested too deep") from error
    except ValueError as error:
        # A date such as 2024-99-99, or a number of thousands of digits.
        raise SettingsError(f"{source}: not valid YAML: {error}") from error


def typed(form: Form, values: Mapping[Any, Any], folder: Path, *, nulls: bool = False) -> Values:
    """The sections that a file or an override names, each value typed; what it leaves out stays out.

    Args:
        form: What there may be.
        values: As parsed from YAML.
        folder: What paths are relative to.
        nulls: Whether a key may have no value, which takes it back to its default.

    Raises:
        SettingsError: For an unknown key (with its dotted name and the nearest known one), or a value of a wrong type
            or outside its limits.
    """
    return _Reader(form, folder, nulls).section(form.root, values, "")


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
    given = (item for item in values.items() if not (item[1] is None and _is_section(hints[item[0]])))
    return cls(**{key: _built(hints[key], value) for key, value in given})


def _built(hint: Any, value: Any) -> Any:
    hint = _unwrapped(hint)
    if _is_section(hint) and isinstance(value, dict):
        return build(hint, value)
    if get_origin(hint) is tuple and isinstance(value, tuple):
        return tuple(_built(get_args(hint)[0], item) for item in value)
    return value


class _Reader:
    """Types parsed YAML by the hints of dataclasses."""

    def __init__(self, form: Form, folder: Path, nulls: bool) -> None:
        self.form = form
        self.folder = folder
        self.nulls = nulls

    def section(self, cls: type, values: Any, dotted: str) -> Values:
        if not isinstance(values, Mapping):
            raise SettingsError(f"{dotted}: expected a section with keys, found {describe(values)}")
        fields = {field.name: field for field in dataclasses.fields(cls)}
        hints = get_type_hints(cls)
        made: Values = {}
        for key, value in values.items():
            name = f"{dotted}.{key}" if dotted else str(key)
            if key not in fields:
                raise SettingsError(f"unknown key {name}{_nearest(self.form, str(key), fields, dotted)}")
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
        if value is None and _is_optional(hint):
            return None
        hint = _unwrapped(hint)
        if value is None:
            raise SettingsError(f"{name}: has no value; expected {_wanted(hint)}")
        if _is_section(hint):
            return self.section(hint, value, name)
        if get_origin(hint) is tuple:
            return self._tuple(hint, value, name)
        if get_origin(hint) is dict:
            return _plain_mapping(value, name)
        if hint is Path and isinstance(value, str) and value:
            path = Path(value).expanduser()
            return path if name in self.form.kept else self.folder / path
        if get_origin(hint) is Literal and value in get_args(hint) and not isinstance(value, bool):
            return value
        made = _scalar(hint, value)
        if made is None:
            raise SettingsError(f"{name}: expected {_wanted(hint)}, found {describe(value)}{_close(hint, value)}")
        return made

    def _tuple(self, hint: Any, value: Any, name: str) -> tuple[Any, ...]:
        item_hint = get_args(hint)[0]
        sketch = "- key: value" if _is_section(item_hint) else "[a, b]"
        if not isinstance(value, list):
            raise SettingsError(f"{name}: expected a list, such as {sketch}, found {describe(value)}")
        if not value:
            way_out = "it needs one item or more" if _is_section(item_hint) else "leave the key out to take all"
            raise SettingsError(f"{name}: the list is empty; {way_out}")
        return tuple(self._value(item_hint, item, f"{name}[{index}]") for index, item in enumerate(value))


def _plain_mapping(value: Any, name: str) -> dict[str, Any]:
    """A mapping of whatever JSON can say."""
    if not isinstance(value, Mapping):
        raise SettingsError(f"{name}: expected a section with keys, found {describe(value)}")
    left = [_MOST_VALUES]

    def plain(item: Any, dotted: str) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise SettingsError(f"{name}: holds more than {_MOST_VALUES:,} values")
        if isinstance(item, Mapping):
            odd = next((key for key in item if not isinstance(key, str)), None)
            if odd is not None:
                raise SettingsError(f"{dotted}: expected keys of text, found {describe(odd)}; put it in quotes")
            return {key: plain(inner, f"{dotted}.{key}") for key, inner in item.items()}
        if isinstance(item, list):
            return [plain(inner, f"{dotted}[{index}]") for index, inner in enumerate(item)]
        if item is None or isinstance(item, str | bool | int) or (isinstance(item, float) and math.isfinite(item)):
            return item
        raise SettingsError(
            f"{dotted}: JSON has no such value ({type(item).__name__}); put it in quotes if it is meant as text"
        )

    try:
        made: dict[str, Any] = plain(value, name)
    except RecursionError as error:
        # YAML can say that a list holds itself.
        raise SettingsError(f"{name}: nested too deep") from error
    return made


def _is_section(hint: Any) -> bool:
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)


def _is_optional(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


def _unwrapped(hint: Any) -> Any:
    return next(option for option in get_args(hint) if option is not type(None)) if _is_optional(hint) else hint


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
        raise SettingsError(f"{name}: has to be above {limits['above']:g}, found {value:g}")
    if "low" in limits and value < limits["low"]:
        raise SettingsError(f"{name}: has to be at least {limits['low']:g}, found {value:g}")
    if "high" in limits and value > limits["high"]:
        raise SettingsError(f"{name}: has to be at most {limits['high']:g}, found {value:g}")


def _wanted(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, get_args(hint)))
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}
    return names.get(hint, "a list")


def describe(value: Any) -> str:
    """What kind of value it is, as YAML users know it, for messages; a text is not shown, as it may be a key."""
    kinds = {dict: "a section", list: "a list", type(None): "nothing", bool: "true or false", int: "a whole number"}
    kind = kinds.get(type(value), "a number" if isinstance(value, float) else "text")
    return f"{value!r} ({kind})" if isinstance(value, int | float) else kind


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
        inner, mark = _unwrapped(hint), ""
        if get_origin(inner) is tuple:
            inner, mark = get_args(inner)[0], "[]"
        if _is_section(inner):
            keys.extend(_all_keys(inner, f"{dotted}{name}{mark}."))
    return tuple(keys)


def _nearest(form: Form, key: str, fields: Iterable[str], dotted: str) -> str:
    here = [f"{dotted}.{name}" for name in fields] if dotted else [*fields, *form.also]
    ends = {full.rpartition(".")[2]: full for full in here}
    close = difflib.get_close_matches(key, ends, n=1)
    if not close:
        # The right key under the wrong section is as common a slip as a misspelt one.
        deepest_first = sorted(_all_keys(form.root), key=lambda full: full.count("."), reverse=True)
        ends = {full.rpartition(".")[2]: full for full in deepest_first}
        close = difflib.get_close_matches(key, ends, n=1)
    return f"; did you mean {ends[close[0]]}?" if close else f"; known here: {', '.join(here)}"


class _UniqueKeyLoader(yaml.SafeLoader):
    """A YAML loader that refuses a key written twice, where PyYAML would keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = str(key_node.value)
            if key in seen:
                problem = f"key {key!r} is written twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)
