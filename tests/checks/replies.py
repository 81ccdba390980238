"""Replies that keep a role and replies that break it, of replies.yaml."""

from pathlib import Path
from typing import Any, get_args

import yaml

from rolellm.core.records import Language

_REPLIES: dict[Language, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


def select_replies(kind: str) -> dict[Language, Any]:
    """The replies of a kind, by language."""
    return {language: _REPLIES[language][kind] for language in get_args(Language)}
