"""The Jinja environment of the report: text is escaped and made inert unless a renderer of ours marked it as safe."""

from __future__ import annotations

import functools
from importlib import resources
from typing import TYPE_CHECKING, Any

from rolellm.core.sanitize import shorten, visible

MAX_TEXT = 2_000
"""Characters of any one text that are shown; the rest is counted."""

if TYPE_CHECKING:
    from jinja2 import Environment


@functools.cache
def environment() -> Environment:
    """An environment that finds the templates in ``html``, refuses unknown names, and escapes and bounds all text."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    made = Environment(
        loader=FunctionLoader(read),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_inert,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["px"] = lambda value: f"{value:.2f}".rstrip("0").rstrip(".")
    return made


def read(name: str) -> str:
    """A file of the folder ``html``, such as ``page.css``."""
    return resources.files("rolellm.report").joinpath("html", name).read_text(encoding="utf-8")


def _inert(value: Any) -> Any:
    from markupsafe import Markup

    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return visible(shorten(value, MAX_TEXT))
