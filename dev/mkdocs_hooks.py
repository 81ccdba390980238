"""Links of the pages to files of the repository: checked, and shown as code, since the site has only the pages."""

import logging
import re
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"\[([^\]]+)\]\(\.\./([^)#\s]+)(#[^)\s]*)?\)")
_log = logging.getLogger("mkdocs.hooks.repository")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Replace links to files outside ``docs`` by their text and path."""

    def replace(link: re.Match[str]) -> str:
        text, path = link[1], link[2].rstrip("/")
        if not (_ROOT / path).exists():
            _log.warning("%s links to %s, which does not exist", page.file.src_path, path)
        name = text.strip("`")
        return f"`{path}`" if path.endswith(name) else f"{text} (`{path}`)"

    return _LINK.sub(replace, markdown)
