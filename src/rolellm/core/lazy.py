"""Names of a package that are imported when they are first used, so that importing the package stays quick."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any


def lazy(package: str, names: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package (PEP 562) for names that live elsewhere.

    Args:
        package: The package's ``__name__``.
        names: Each name, and where it is: ``module:attribute``.
    """

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, attribute = names[name].partition(":")
        found, names_here = import_module(module), vars(sys.modules[package])
        # The import may have put a subpackage of the same name there; it can be called, see `calls`.
        if name not in names_here:
            names_here[name] = getattr(found, attribute)
        return names_here[name]

    return get, lambda: sorted({*sys.modules[package].__dict__, *names})


def calls(package: str, function: str) -> None:
    """Make a package callable: it passes on to one of its functions, whose name the package has above it.

    Args:
        package: The package's ``__name__``.
        function: ``module:attribute``.
    """
    module, _, attribute = function.partition(":")

    class CallablePackage(ModuleType):
        def __call__(self, *args: Any, **options: Any) -> Any:
            return getattr(import_module(module), attribute)(*args, **options)

    sys.modules[package].__class__ = CallablePackage
