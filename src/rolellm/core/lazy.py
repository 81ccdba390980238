"""Names of a package that are imported when they are first used, so that importing the package stays quick."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def load_lazily(package: str, names: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package (PEP 562) for names that live elsewhere.

    Args:
        package: The package's ``__name__``.
        names: Each name, and where it is: ``module:attribute``, or a module.
    """

    def get(name: str) -> Any:
        if name not in names:
            # With these two, Python adds the nearest name.
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])
        module, _, attribute = names[name].partition(":")
        loaded_module, names_here = import_module(module), vars(sys.modules[package])
        # The import may have put a subpackage of the same name there; it can be called, see `calls`.
        if name not in names_here:
            names_here[name] = getattr(loaded_module, attribute) if attribute else loaded_module
        return names_here[name]

    return get, lambda: sorted({*sys.modules[package].__dict__, *names})
