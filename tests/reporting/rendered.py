"""A report's page as text."""

from rolellm.reporting.page import PageContent, page_pieces


def render_page(content: PageContent) -> str:
    return "".join(page_pieces(content))
