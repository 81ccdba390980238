"""Optional dependencies: ask for them where they are used, and say how to get them where they are missing."""

from __future__ import annotations

import importlib.util

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
