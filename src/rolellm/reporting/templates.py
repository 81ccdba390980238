"""The Jinja environment of the report: text is escaped and made inert unless a renderer of ours marked it as safe."""

from __future__ import annotations

import base64
import functools
from collections.abc import Iterator
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from rolellm.core.sanitize import make_visible, truncate
from rolellm.version import __version__

#: Characters of any one text that are shown; the rest is counted.
MAX_TEXT = 2_000


@functools.cache
def environment() -> Environment:
    """Build an environment that finds templates in ``html``, refuses unknown names, and escapes and bounds text."""
    jinja_environment = Environment(
        loader=FunctionLoader(_read_template),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_make_inert,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja_environment.filters |= {"inline": _inline, "svg_file": _encode_svg, "whole": _escape_whole}
    jinja_environment.filters["px"] = lambda value: f"{round(value, 2):g}"
    return jinja_environment


def generate_page(**values: Any) -> Iterator[str]:
    """Render the page in pieces, with its style sheet and the package's version."""
    css = Markup(_read_template("page.css"))
    return environment().get_template("page.html.jinja").generate(css=css, version=__version__, **values)


def _read_template(name: str) -> str:
    return resources.files("rolellm.reporting").joinpath("html", name).read_text(encoding="utf-8")


def _encode_svg(svg: str) -> Markup:
    """Return a picture as the address of a link to it, which holds all of it."""
    return Markup(f"data:image/svg+xml;base64,{base64.b64encode(svg.encode('utf-8')).decode('ascii')}")


def _escape_whole(text: str) -> Markup:
    """Return a text that is bounded already."""
    return escape(make_visible(text))


def _inline(svg: str) -> Markup:
    """Return a picture of ours for inside of HTML, where its name space goes without saying."""
    return Markup(svg.replace(' xmlns="http://www.w3.org/2000/svg"', "", 1))


def _make_inert(value: Any) -> Any:
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return make_visible(truncate(value, MAX_TEXT))
