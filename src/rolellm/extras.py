"""Optional dependencies: ask for them where they are used, say how to get them, and leave out what they say in vain."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from rolellm.errors import MissingExtraError


def require(*modules: str, extra: str) -> None:
    """Check that optional modules can be imported, without importing them.

    Args:
        modules: Top-level module names, such as ``"torch"``.
        extra: The extra of this package that brings them.

    Raises:
        MissingExtraError: For the first module that is missing; names the ``pip install`` line.
    """
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise MissingExtraError(module, extra=extra)


@contextmanager
def quiet_peft() -> Iterator[None]:
    """Leave out a warning: peft asks transformers by an old name, and no one but peft can do anything about it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
        yield
