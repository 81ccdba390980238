"""Settings: an option's name, type, default, limits and help, written once in a pydantic dataclass.

Files (YAML), keyword arguments and command-line options are all checked against the same class; ``--help`` is made from
it (`rolellm.cli.options`), and says what the ``Attributes:`` of its docstring say.

>>> @settings
... class Sampling:
...     temperature: float = Field(0.7, ge=0)
>>> read(Sampling, {"temperature": 1}, "llm.yaml").temperature
1.0
>>> read(Sampling, {"temprature": 1}, "llm.yaml")
Traceback (most recent call last):
rolellm.core.errors.SettingsError: llm.yaml: unknown key temprature; did you mean temperature?
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import (
    Annotated,
    Any,
    ClassVar,
    ParamSpec,
    TypeVar,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic import Field as Field  # part of this module's interface
from pydantic.dataclasses import dataclass as pydantic_dataclass
from pydantic_core import PydanticSerializationError

from rolellm.core.errors import SettingsError
from rolellm.core.text import join_names
from rolellm.core.typed_json import map_strings

Values = dict[str, Any]
_Class = TypeVar("_Class")
_Type = TypeVar("_Type")
_P = ParamSpec("_P")
_R = TypeVar("_R")
_ADVANCED = "advanced"
#: A field that few people set: a key for settings files and ``--set``, without an option of its own.
Advanced = Annotated[_Type, _ADVANCED]
_MAX_BYTES = 1 << 20
_FRAGMENT = re.compile(r"\{([a-z_]+)\}")
#: pydantic's words, and those of YAML users.
_WORDS = {
    "Input should be": "must be",
    "Tuple should": "must",
    "String should": "must",
    " after validation": "",
    " valid ": " ",
    "a integer": "a whole number",
    "a array": "a list",
    "a boolean": "true or false",
    "an object": "a section",
}


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(Field, dataclasses.field))
def settings(cls: type[_Class]) -> type[_Class]:
    """Make a class a frozen, keyword-only settings class whose values are checked whenever one is made."""
    config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    settings_class: Any = pydantic_dataclass(cls, frozen=True, kw_only=True, config=config)
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        texts |= read_descriptions(base, "Attributes")
    for name, info in settings_class.__pydantic_fields__.items():
        info.description = info.description or texts.get(name)
    check = settings_class.__init__

    @functools.wraps(check)
    def init(self: Any, **values: Any) -> None:
        try:
            check(self, **values)
        except ValidationError as error:
            raise SettingsError(_describe_error(error, settings_class, secret=False)) from None

    settings_class.__init__ = init
    return cast(type[_Class], settings_class)


def read_descriptions(described: object, section: str) -> dict[str, str]:
    """Read what a section of a docstring, such as ``Args``, says of each name."""
    listed = (inspect.cleandoc(described.__doc__ or "")).partition(f"{section}:\n")[2]
    matches = re.findall(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", listed, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in matches}


def read(cls: type[_Class], values: Mapping[Any, Any], source: str = "", *, secret: bool = False) -> _Class:
    """An instance of a settings class from plain values, as YAML or JSON give them.

    Args:
        cls: The class.
        values: Its keys; what they leave out, or give no value, has its default.
        source: What to call them in messages, such as the file's path.
        secret: Never repeat a value in a message.

    Raises:
        SettingsError: For an unknown key (with the nearest known one), a missing one, and a value of the wrong type or
            outside its limits.
    """
    where = f"{source}: " if source else ""
    if not isinstance(values, Mapping):
        raise SettingsError(f"{where}expected keys and values, found {_describe_kind(values)}")
    try:
        # In JSON mode strict types still take what JSON can say: lists for tuples, text for paths.
        text = json.dumps(merge_values({}, values), default=_encode_value)
        instance: _Class = _adapter(cast(Any, cls)).validate_json(text, strict=True)
    except ValidationError as error:
        raise SettingsError(where + _describe_error(error, cls, secret=secret)) from None
    except (TypeError, ValueError) as error:
        raise SettingsError(f"{where}not plain values: {error}") from error
    return instance


def parse_text(hint: Any, text: str, name: str) -> Any:
    """Parse a value of a type, such as a number or a path, from text.

    >>> parse_text(float | None, "0.5", "temperature")
    0.5

    Raises:
        SettingsError: For text that is not such a value.
    """
    try:
        return _adapter(hint).validate_strings(text)
    except ValidationError as error:
        raise SettingsError(f"{name}: {_describe_problem(error.errors(include_url=False)[0], secret=False)}") from None


def dump(value: Any) -> Values:
    """A settings object as JSON values: paths as text, tuples as lists."""
    try:
        dumped: Values = _adapter(cast(Any, type(value))).dump_python(value, mode="json")
    except PydanticSerializationError as error:
        # Ctrl-C within one of its serializers comes out as an error of its own.
        if isinstance(error.__cause__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise
    return dumped


def read_file(path: str | Path) -> Values:
    """The keys and values of a YAML file, unchecked.

    Raises:
        SettingsError: For a file that is missing, too large, not UTF-8, not YAML, or not a mapping of keys.
    """
    file = Path(path)
    if not file.is_file():
        problem = "is a folder; name a file in it" if file.is_dir() else "does not exist"
        raise SettingsError(f"{file} {problem}")
    if file.stat().st_size > _MAX_BYTES:
        raise SettingsError(f"{file}: larger than {_MAX_BYTES:,} bytes; this is not a settings file")
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise SettingsError(f"{file}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    values = parse_yaml(text, str(file))
    if not isinstance(values, dict):
        raise SettingsError(f"{file}: expected keys and values, found {_describe_kind(values)}")
    return values


def parse_yaml(text: str, source: str) -> Any:
    """The value of a YAML text; plain values only, no aliases.

    Raises:
        SettingsError: For text that is not YAML, and a key that is written twice; names the line.
    """
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader by inheritance
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = source if mark is None else f"{source}:{mark.line + 1}"
        raise SettingsError(f"{where}: not valid YAML: {getattr(error, 'problem', None) or error}") from error
    except RecursionError as error:
        raise SettingsError(f"{source}: not valid YAML: nested too deep") from error
    except ValueError as error:  # such as a number of thousands of digits
        raise SettingsError(f"{source}: not valid YAML: {error}") from error


def read_packaged_yaml(package: str, name: str) -> Any:
    """The value of a YAML file that a package of this library holds."""
    return parse_yaml(resources.files(package).joinpath(name).read_text(encoding="utf-8"), name)


#: The same, read once; for those who change nothing in it.
load_packaged_yaml = functools.cache(read_packaged_yaml)


@functools.cache
def read_packaged_patterns(package: str, name: str, section: str) -> Any:
    """The regular expressions of a section of such a file: without line breaks, with ``{name}`` of its fragments."""
    values = dict(load_packaged_yaml(package, name)[section])
    fragments: dict[str, str] = {}

    def fill(text: str) -> str:
        text = text.replace("\n", "")
        return _FRAGMENT.sub(lambda hit: fragments.get(hit[1], hit[0]), text)

    for key, text in values.pop("fragments", {}).items():
        fragments[key] = fill(text)
    return map_strings(values, fill)


def read_word_list(name: str) -> list[str]:
    """List the words under a name in ``words.yaml``, in order."""
    words: str = load_packaged_yaml("rolellm.core", "words.yaml")[name]
    return words.split()


def load_words(name: str) -> frozenset[str]:
    """Load the words under a name in ``words.yaml``."""
    return frozenset(read_word_list(name))


def resolve_paths(values: Values, folder: Path, *keys: str) -> Values:
    """The values with the paths under these keys, such as ``base.path``, taken from the folder of their file."""
    for key in keys:
        section, _, name = key.partition(".")
        section_values = values.get(section)
        path = section_values.get(name) if isinstance(section_values, dict) else None
        if path and isinstance(path, str):
            resolved = str(folder / Path(path).expanduser())
            values = merge_values(values, {section: {name: resolved}})
    return values


def merge_values(under: Mapping[Any, Any], over: Mapping[Any, Any]) -> Values:
    """Values with others on top; ``None`` takes a key back to its default.

    >>> merge_values({"training": {"seed": 1, "bf16": True}}, {"training": {"seed": 7, "bf16": None}})
    {'training': {'seed': 7}}
    """
    merged = dict(under)
    for key, value in over.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict) and isinstance(merged.get(key, {}), dict):
            merged[key] = merge_values(merged.get(key, {}), value)
        else:
            merged[key] = value
    return merged


def iterate_leaves(values: Mapping[Any, Any], dotted: str = "") -> Iterator[tuple[str, Any]]:
    """The values of all sections by dotted key."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from iterate_leaves(value, f"{dotted}{key}.")
        else:
            yield f"{dotted}{key}", value


def describe_changes(before: Mapping[Any, Any], now: Mapping[Any, Any]) -> str:
    """The values that differ, by dotted key, for a message; an empty text where none does.

    >>> describe_changes({"training": {"seed": 1}}, {"training": {"seed": 2}})
    'training.seed was 1 and is now 2'
    """

    def show(value: Any) -> str:
        text = json.dumps(value, ensure_ascii=False)
        # A hash tells a reader nothing.
        return f"{text[:12]}…" if len(text) == 66 else text

    old, new = dict(iterate_leaves(before)), dict(iterate_leaves(now))
    changes = []
    for key in sorted({*old, *new}):
        was, is_now = old.get(key), new.get(key)
        if was != is_now:
            changes.append(f"{key} was {show(was)} and is now {show(is_now)}")
    return "; ".join(changes)


#: Known names that a message about an unknown one lists.
_MOST_NAMES = 20


def describe_alternatives(key: str, candidates: Iterable[str]) -> str:
    """The end of a message about an unknown key: the nearest known one, or the known ones."""
    names = list(candidates)
    last_parts = list(map(_get_last_part, names))
    # The right key under the wrong section is as common a slip as a misspelled one.
    last = _get_last_part(key)
    close = [name for name, part in zip(names, last_parts, strict=True) if part == last]
    close = close or difflib.get_close_matches(key, names, n=1)
    close = close or difflib.get_close_matches(key, last_parts, n=1)
    return f"; did you mean {close[0]}?" if close else f"; known: {join_names(names, _MOST_NAMES)}"


def suggest_keywords(*classes: type) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Make a public function name the nearest keyword for an unknown one, before anything else is checked.

    Args:
        classes: The settings classes whose fields it takes as keywords.

    >>> @suggest_keywords()
    ... def talk(role, *, language="en"):
    ...     pass
    >>> talk("Fox", langauge="zh")
    Traceback (most recent call last):
    rolellm.core.errors.SettingsError: unknown keyword langauge; did you mean language?
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        parameters = [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]

        @functools.wraps(function)
        def call(*values: _P.args, **keywords: _P.kwargs) -> _R:
            for name in keywords:
                if name not in parameters:
                    _check_keyword(name, parameters, classes)
            return function(*values, **keywords)

        return call

    return decorate


def _check_keyword(name: str, parameters: Iterable[str], classes: Iterable[type]) -> None:
    keywords = list(parameters)
    for cls in classes:
        # The fields of sections go by their own names.
        keywords += [key.rpartition(".")[2] for key in list_keys(cls)]
    if name not in keywords:
        raise SettingsError(f"unknown keyword {name}{describe_alternatives(name, keywords)}")


def _get_last_part(key: str) -> str:
    return key.rpartition(".")[2]


@functools.lru_cache
def list_keys(cls: type, dotted: str = "") -> tuple[str, ...]:
    """The dotted names of all keys of a settings class, those of its sections included."""
    keys: list[str] = []
    for name, hint in get_type_hints(cls, include_extras=True).items():
        keys.append(f"{dotted}{name}")
        items = get_args(strip_hint(hint))
        inner = find_section(hint) or find_section(next(iter(items), None))
        if inner:
            keys.extend(list_keys(inner, f"{dotted}{name}."))
    return tuple(keys)


_adapter: Callable[[Any], TypeAdapter[Any]] = functools.cache(TypeAdapter)


def is_advanced(hint: Any) -> bool:
    """Tell whether a field is `Advanced`."""
    return get_origin(hint) is Annotated and _ADVANCED in get_args(hint)


def strip_hint(hint: Any) -> Any:
    """A hint without ``Annotated`` and ``| None``."""
    if get_origin(hint) is Annotated:
        return strip_hint(get_args(hint)[0])
    items = get_args(hint)
    options = [item for item in items if item is not type(None)]
    is_optional = len(options) == 1 and len(items) == 2
    return strip_hint(options[0]) if is_optional else hint


def find_section(hint: Any) -> type | None:
    """The settings class that a hint stands for, if it is one."""
    plain_hint = strip_hint(hint)
    return plain_hint if isinstance(plain_hint, type) and dataclasses.is_dataclass(plain_hint) else None


def _describe_error(error: ValidationError, cls: type, *, secret: bool) -> str:
    """The first thing that is wrong, in words."""
    first_error = error.errors(include_url=False, include_context=True)[0]
    location = ".".join(map(str, first_error["loc"]))
    dotted = re.sub(r"\.(\d+)", r"[\1]", location)
    kind = first_error["type"]
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        return f"unknown key {dotted}{describe_alternatives(dotted, list_keys(cls))}"
    if kind in ("missing", "missing_argument", "missing_keyword_only_argument"):
        return f"{dotted} is missing"
    problem = _describe_problem(first_error, secret=secret)
    if kind == "value_error":
        problem = str(first_error["ctx"]["error"])
    return f"{dotted}: {problem}" if dotted else problem


def _describe_problem(problem: Any, *, secret: bool) -> str:
    message, value = problem["msg"].partition(", unable to parse")[0], problem["input"]
    for pydantic_words, plain_words in _WORDS.items():
        message = message.replace(pydantic_words, plain_words)
    message = message[0].lower() + message[1:]
    value_kind = _describe_kind(value)
    if secret or not isinstance(value, str | int | float):
        return f"{message}, found {value_kind}"
    choices = re.findall(r"'([^']*)'", message)
    close = difflib.get_close_matches(str(value), choices, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"{message}, found {value!r} ({value_kind}){hint}"


def _describe_kind(value: Any) -> str:
    """Name a value as YAML users do."""
    kinds = {dict: "a section", list: "a list", type(None): "nothing", bool: "true or false", int: "a whole number"}
    return kinds.get(type(value), "a number" if isinstance(value, float) else "text")


def _encode_value(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dump(value)
    raise TypeError(f"JSON has no value such as {type(value).__name__}")


class _Loader(yaml.SafeLoader):
    """Plain YAML: no aliases (a few of them hold billions of values), no key twice, no dates, and 2e-4 is a number."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}  # type: ignore[misc]  # the stubs take it for an instance's

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases are not supported", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping_keys = set()
        for key_node, _ in node.value:
            key = str(key_node.value)
            if key in mapping_keys:
                problem = f"key {key!r} is written twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            mapping_keys.add(key)
        return super().construct_mapping(node, deep)


for _first, _pairs in yaml.SafeLoader.yaml_implicit_resolvers.items():
    _pairs_without_dates = [pair for pair in _pairs if pair[0] != "tag:yaml.org,2002:timestamp"]
    _Loader.yaml_implicit_resolvers[_first] = _pairs_without_dates
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(?:\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)
