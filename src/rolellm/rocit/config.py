"""Reading a recipe from YAML: every key known, every value of its type, or an error that says what to write instead.

Paths that a recipe reads (``data.data_dir``, ``base.path``, ``prompt.system_template``) are relative to the recipe's
own folder; ``output.dir``, and any path given as an override, are relative to the current directory.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml

from rolellm.errors import RecipeError
from rolellm.rocit.recipe import Recipe

__all__ = ["Recipe", "check_recipe", "find_recipe", "load_recipe"]

_WRITTEN = "output.dir"
_SKETCH = "section.key=value, such as training.max_steps=5"


def find_recipe(name: str | Path) -> Path:
    """The file of a recipe: a path as it stands, or the name of one that ships, such as ``smoke-cpu``.

    Raises:
        RecipeError: When there is neither; names those that ship.
    """
    path = Path(name)
    if path.is_file():
        return path
    # The wheel carries them beside this file; a clone has them in its own folder.
    here = Path(__file__).resolve()
    folders = (here.parent / "recipes", here.parents[3] / "recipes")
    shipped = {file.stem: file for folder in folders for file in sorted(folder.glob("*.yaml"))}
    if str(name) in shipped:
        return shipped[str(name)]
    raise RecipeError(f"no recipe at {path}; those that ship: {', '.join(sorted(shipped)) or 'none'}")


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe.

    Args:
        path: A YAML file with the sections of `rolellm.rocit.recipe.Recipe`; what it leaves out has its default.
        overrides: ``section.key=value`` each, the value written as in YAML; they win over the file.

    Raises:
        RecipeError: For a file that is not there or not YAML, an unknown key (with its dotted name and the nearest
            known one), a value of a wrong type or outside its limits, and choices that do not go together.
    """
    file = Path(path)
    if not file.is_file():
        raise RecipeError(f"no recipe at {file}")
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecipeError(f"{file}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    values = _parse(text, str(file))
    if not isinstance(values, dict):
        raise RecipeError(f"{file}: expected sections such as data: and training:, found {_describe(values)}")
    typed = _Override(values)
    for override in overrides:
        typed.apply(override)
    reader = _Reader(file.absolute().parent, typed.keys)
    recipe: Recipe = reader.section(Recipe, values, "")
    check_recipe(recipe)
    return recipe


def check_recipe(recipe: Recipe) -> None:
    """Check the choices that depend on each other.

    Raises:
        RecipeError: With the keys concerned.
    """
    base, tiny = recipe.base, recipe.base.tiny
    if (base.path is None) == (base.build is None):
        raise RecipeError("base: give either path (a folder with a model) or build: tiny-llama, and not both")
    if recipe.method.name == "qlora":
        raise RecipeError("method.name: qlora is not there yet; use lora, or full")
    if base.build is not None and recipe.prompt.form != "rolellama":
        raise RecipeError("prompt.form: a built base has no chat template of its own; use rolellama")
    if tiny.hidden_size % (2 * tiny.heads):
        raise RecipeError("base.tiny.hidden_size has to be a multiple of twice base.tiny.heads")
    if recipe.data.mix.general == 0 and recipe.data.mix.role_specific == 0:
        raise RecipeError("data.mix leaves no rows: general and role_specific are both 0")


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


def _parse(text: str, source: str) -> Any:
    try:
        # A SafeLoader by inheritance: it makes plain values only.
        return yaml.load(text, Loader=_UniqueKeyLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = source if mark is None else f"{source}:{mark.line + 1}"
        raise RecipeError(f"{where}: not valid YAML: {getattr(error, 'problem', None) or error}") from error


class _Override:
    """Lays ``key=value`` overrides over parsed YAML and remembers which keys they set."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values
        self.keys: set[str] = set()

    def apply(self, override: str) -> None:
        key, equals, text = override.partition("=")
        key = key.strip()
        if not equals or not key:
            raise RecipeError(f"{override!r} is not an override; write {_SKETCH}")
        node = self.values
        *sections, last = key.split(".")
        for section in sections:
            if node.get(section) is None:
                node[section] = {}
            node = node[section]
            if not isinstance(node, dict):
                raise RecipeError(f"{key}: {section} is a value, not a section")
        node[last] = _parse(text, override)
        self.keys.add(key)


class _Reader:
    """Turns parsed YAML into dataclasses by their type hints."""

    def __init__(self, folder: Path, overridden: set[str]) -> None:
        self.folder = folder
        self.overridden = overridden

    def section(self, cls: type, values: Any, dotted: str) -> Any:
        if not isinstance(values, Mapping):
            raise RecipeError(f"{dotted}: expected a section with keys, found {_describe(values)}")
        fields = {field.name: field for field in dataclasses.fields(cls)}
        hints = get_type_hints(cls)
        made = {}
        for key, value in values.items():
            name = f"{dotted}.{key}" if dotted else str(key)
            if key not in fields:
                raise RecipeError(f"unknown key {name}{_nearest(str(key), fields, dotted)}")
            hint = hints[key]
            if dataclasses.is_dataclass(hint) and isinstance(hint, type):
                made[key] = self.section(hint, {} if value is None else value, name)
            else:
                made[key] = self._value(hint, value, name)
                _check_limits(made[key], fields[key].metadata, name)
        return cls(**made)

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
            here = name == _WRITTEN or name in self.overridden
            path = Path(value).expanduser()
            return path if here else self.folder / path
        if get_origin(hint) is Literal and value in get_args(hint) and not isinstance(value, bool):
            return value
        made = _scalar(hint, value)
        if made is None:
            raise RecipeError(f"{name}: expected {_wanted(hint)}, found {_describe(value)}{_close(hint, value)}")
        return made

    def _tuple(self, hint: Any, value: Any, name: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise RecipeError(f"{name}: expected a list, such as [a, b], found {_describe(value)}")
        if not value:
            raise RecipeError(f"{name}: the list is empty; leave the key out to take all")
        return tuple(self._value(get_args(hint)[0], item, f"{name}[{index}]") for index, item in enumerate(value))


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


def _describe(value: Any) -> str:
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
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            keys.extend(_all_keys(hint, f"{dotted}{name}."))
    return tuple(keys)


def _nearest(key: str, fields: Mapping[str, Any], dotted: str) -> str:
    prefix = f"{dotted}." if dotted else ""
    close = difflib.get_close_matches(key, fields, n=1)
    if close:
        return f"; did you mean {prefix}{close[0]}?"
    # The right key under the wrong section is as common a slip as a misspelt one.
    deepest_first = sorted(_all_keys(Recipe), key=lambda full: full.count("."), reverse=True)
    elsewhere = {full.rpartition(".")[2]: full for full in deepest_first}
    close = difflib.get_close_matches(key, elsewhere, n=1)
    if close:
        return f"; did you mean {elsewhere[close[0]]}?"
    return f"; known here: {', '.join(prefix + name for name in fields)}"
