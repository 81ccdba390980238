"""Docstrings as the reference shows them: doctests as blocks of code, cross-references as names."""

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"^>>> .*(?:\n(?!\n).*)*", re.MULTILINE)


class Doctests(griffe.Extension):
    """Put fences around each doctest, and leave out directives and roles."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring:
            text = re.sub(r"  # doctest: \S+", "", obj.docstring.value)
            text = re.sub(r":\w+:`~?([\w.]+)`", r"`\1`", text)
            obj.docstring.value = _DOCTEST.sub(lambda block: f"```pycon\n{block[0]}\n```", text)
