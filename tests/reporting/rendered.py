"""A report's page as text."""

import re
from typing import Any

from rolellm.reporting.page import PageContent, page_pieces


def render_page(content: PageContent) -> str:
    return "".join(page_pieces(content))


def is_inside(reference: str, page: Any) -> bool:
    """True if a link leads to a place in its page, or to a file that the page holds."""
    kinds = "text/csv|application/x-tex|image/svg\\+xml"
    return reference[1:] in page.ids or bool(re.match(f"data:({kinds});base64,[A-Za-z0-9+/=]+$", reference))
