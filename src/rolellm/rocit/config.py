"""Reading a recipe from YAML files, one on top of another where a file says ``extends``.

Paths that a recipe reads (``data.data_dir``, ``base.path``, ``prompt.system_template``) are relative to the folder of
the file that names them; ``output.dir``, and any path given as an override, are relative to the current directory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rolellm.errors import RecipeError
from rolellm.rocit.recipe import Recipe
from rolellm.rocit.values import EXTENDS, Values, build, describe, laid_over, parse_yaml, typed

__all__ = ["Recipe", "check_recipe", "find_recipe", "load_recipe", "shipped_recipes"]

_SKETCH = "section.key=value, such as training.max_steps=5"


def shipped_recipes() -> dict[str, Path]:
    """The recipes that come with the library, by name."""
    # The wheel carries them beside this file; a clone has them in its own folder.
    here = Path(__file__).resolve()
    folders = (here.parent / "recipes", here.parents[3] / "recipes")
    return {file.stem: file for folder in folders for file in sorted(folder.glob("*.yaml"))}


def find_recipe(name: str | Path) -> Path:
    """The file of a recipe: a path as it stands, or the name of one that ships, such as ``smoke-cpu``.

    Raises:
        RecipeError: When there is neither; names those that ship.
    """
    return _find(Path(name), str(name))


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe.

    Args:
        path: A YAML file with the sections of `rolellm.rocit.recipe.Recipe`; what it leaves out has its default, or,
            with ``extends: other.yaml`` (or a list of files, of which later ones win), is as it is there. There, a key
            without a value goes back to its default.
        overrides: ``section.key=value`` each, the value written as in YAML; they win over the file.

    Raises:
        RecipeError: For a file that is not there or not YAML, one that extends itself, an unknown key (with its dotted
            name and the nearest known one), a value of a wrong type or outside its limits, and choices that do not go
            together.
    """
    values: Values = {}
    for layer in _layers(Path(path), ()):
        values = laid_over(values, layer)
    for override in overrides:
        values = laid_over(values, typed(_sections(override), Path(), nulls=True))
    recipe = build(Recipe, values)
    check_recipe(recipe)
    return recipe


def check_recipe(recipe: Recipe) -> None:
    """Check the choices that depend on each other.

    Raises:
        RecipeError: With the keys concerned.
    """
    base, tiny, output = recipe.base, recipe.base.tiny, recipe.output
    if sum(choice is not None for choice in (base.model, base.path, base.build)) != 1:
        raise RecipeError("base: give one of model (on the Hub), path (a folder with a model) and build: tiny-llama")
    if base.revision is not None and base.model is None:
        raise RecipeError("base.revision: only a base.model on the Hub has revisions")
    if base.build is not None and recipe.prompt.form == "model":
        raise RecipeError("prompt.form: a built base has no chat template of its own; use rolellama")
    if recipe.training.shared_prefix and recipe.training.pack_tokens < recipe.training.max_length:
        raise RecipeError("training.pack_tokens has to be at least training.max_length: a pack holds one reply or more")
    if recipe.data.source == "script" and recipe.prompt.profile == "retrieval":
        raise RecipeError("prompt.profile: retrieval searches by question, and data.source: script has none")
    if output.push_to_hub and (output.hub_repo is None or output.license is None):
        raise RecipeError(
            "output.push_to_hub: needs output.hub_repo (owner/name) and output.license (such as apache-2.0), "
            "which is never guessed"
        )
    if tiny.hidden_size % (2 * tiny.heads):
        raise RecipeError("base.tiny.hidden_size has to be a multiple of twice base.tiny.heads")
    if recipe.data.mix.general == 0 and recipe.data.mix.role_specific == 0:
        raise RecipeError("data.mix leaves no rows: general and role_specific are both 0")


def _find(path: Path, name: str) -> Path:
    if path.is_file():
        return path
    shipped = shipped_recipes()
    if name in shipped:
        return shipped[name]
    raise RecipeError(f"no recipe at {path}; those that ship: {', '.join(sorted(shipped)) or 'none'}")


def _layers(file: Path, above: tuple[Path, ...]) -> Iterator[Values]:
    """What a file is laid over, the lowest first, and then what it says itself."""
    here = file.resolve()
    if here in above:
        chain = " extends ".join(path.name for path in (*above[above.index(here) :], here))
        raise RecipeError(f"{file}: a recipe cannot extend itself: {chain}")
    values = _read(file)
    names = _extended(values.pop(EXTENDS, []), file)
    for name in names:
        yield from _layers(_find(file.parent / name, name), (*above, here))
    try:
        yield typed(values, file.absolute().parent, nulls=bool(names))
    except RecipeError as error:
        if not above:
            raise
        # Whoever asks for a recipe need not know what it extends.
        raise RecipeError(f"{file}: {error}") from error


def _extended(value: Any, file: Path) -> list[str]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise RecipeError(f"{file}: {EXTENDS}: expected a recipe's file or a list of them, found {describe(value)}")
    return names


def _read(file: Path) -> dict[Any, Any]:
    if not file.is_file():
        raise RecipeError(f"no recipe at {file}")
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecipeError(f"{file}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    values = parse_yaml(text, str(file))
    if not isinstance(values, dict):
        raise RecipeError(f"{file}: expected sections such as data: and training:, found {describe(values)}")
    return values


def _sections(override: str) -> Values:
    """An override as a file would say it: ``a.b=1`` is ``a: {b: 1}``."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise RecipeError(f"{override!r} is not an override; write {_SKETCH}")
    value = parse_yaml(text, override)
    for name in reversed(key.strip().split(".")):
        value = {name: value}
    sections: Values = value
    return sections
