"""From matplotlib's SVG to one that a page can hold: no outside address, colours from the page, every ``id`` once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape

from rolellm.core.fingerprint import hash_bytes

_TAG = re.compile(r"<[^>]+>")
_STYLE_BLOCK = re.compile(r"<style[^>]*>.*?</style>", re.DOTALL)
_NEEDLESS_TRANSFORM = re.compile(r' transform="rotate\(-0 [^"]*\)"')
_FAMILY = re.compile(r"font-family: [^;\"]*")
_ID = re.compile(r' id="([^"]*)"')
_REFERENCE = re.compile(r'(href="#|url\(#)([^")]+)')
_NAMESPACE = ' xmlns="http://www.w3.org/2000/svg"'


def tidy(svg: str, *, title: str, colours: Mapping[str, str]) -> str:
    """Tidy an SVG that matplotlib wrote with ``svg.fonttype: none``.

    Args:
        svg: The file's text.
        title: What the picture shows, for those who cannot see it.
        colours: Colour as matplotlib wrote it (``#rrggbb``) to the CSS colour to put in its place.

    Returns:
        One ``<svg>`` element that is a well-formed file by itself. Its text asks for the reader's sans-serif font.
    """
    # Everything between tags is text that people wrote, with < and > escaped: it is not touched below.
    body = _STYLE_BLOCK.sub("", svg[svg.index("<svg") :])
    used = {name for tag in _TAG.findall(body) for _, name in _REFERENCE.findall(tag)}
    # Begins with no hexadecimal digit, so that "#" and an id never look like a colour.
    key = "r" + hash_bytes(body.encode("utf-8", "replace"))[:8]

    def clean(match: re.Match[str]) -> str:
        tag = _ID.sub(lambda found: f' id="{key}-{found[1]}"' if found[1] in used else "", match[0])
        tag = _REFERENCE.sub(rf"\g<1>{key}-\g<2>", tag)
        tag = _NEEDLESS_TRANSFORM.sub("", tag).replace("xlink:href", "href")
        tag = _FAMILY.sub("font-family: sans-serif", tag)
        for colour, replacement in colours.items():
            tag = tag.replace(colour, replacement)
        return tag

    body = _TAG.sub(clean, body).replace("<defs>\n  \n </defs>", "")
    size = re.search(r'viewBox="[^"]*"', body)
    start = (
        f'<svg{_NAMESPACE} {size[0] if size else ""} role="img" aria-label="{escape(title)}" stroke-linejoin="round">'
    )
    return start + body[body.index(">") + 1 :].strip() + "\n"


def inline(svg: str) -> str:
    """The same element for use inside HTML, where the name space goes without saying."""
    return svg.replace(_NAMESPACE, "", 1)
