"""Reward functions by their dotted paths."""

from __future__ import annotations

import pkgutil
from typing import Any

from rolellm.core.errors import RecipeError


def find_reward(reward: Any) -> Any:
    """The function of a dotted path, such as ``rolellm.rewards.rouge``; a function is itself.

    Raises:
        RecipeError: When there is none.
    """
    if callable(reward):
        return reward
    try:
        function = pkgutil.resolve_name(str(reward))
    except (ImportError, AttributeError, ValueError) as error:
        raise RecipeError(f"training.reward_funcs: there is no {reward} ({error})") from error
    if not callable(function):
        raise RecipeError(f"training.reward_funcs: {reward} is not a function")
    return function


def name_reward(reward: Any) -> str:
    """The dotted path of a function."""
    return reward if isinstance(reward, str) else f"{reward.__module__}.{reward.__qualname__}"
