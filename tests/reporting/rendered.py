"""A report's page as text, and what no text in it may do."""

import re
import xml.etree.ElementTree as ET
from typing import Any

from rolellm.reporting.page import PageContent, page_pieces

SVG = "{http://www.w3.org/2000/svg}"


def list_texts(svg: str) -> list[str]:
    """The texts of a picture."""
    return [element.text or "" for element in ET.fromstring(svg).iter(f"{SVG}text")]


def squeeze(text: str) -> str:
    return " ".join(text.split())


def render_page(content: PageContent) -> str:
    return "".join(page_pieces(content))


def is_inside(reference: str, page: Any) -> bool:
    """True if a link leads to a place in its page, or to a file that the page holds."""
    return reference[1:] in page.ids or bool(re.match(r"data:image/svg\+xml;base64,[A-Za-z0-9+/=]+$", reference))


def assert_harmless(html: str, page: Any) -> None:
    """Nothing but our own elements runs, nothing loads, and nothing is hidden."""
    assert page.unbalanced == [] and len(page.ids) == len(set(page.ids))
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert [reference for reference in page.references if not is_inside(reference, page)] == []
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\uffff]", html)
