"""Typing what a recipe's YAML says: every key known, every value of its type, or an error that says what to write."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rolellm import typed_yaml
from rolellm.rocit.recipe import Recipe
from rolellm.typed_yaml import Form, Values, build, describe, laid_over, parse_yaml

__all__ = ["EXTENDS", "Values", "build", "describe", "laid_over", "parse_yaml", "typed"]

#: The one key of a file that is no part of a recipe: the file it builds on.
EXTENDS = "extends"
_FORM = Form(Recipe, kept=("output.dir",), also=(EXTENDS,))


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
    return typed_yaml.typed(_FORM, values, folder, nulls=nulls)
