"""Results that show themselves as a table: as text in a terminal, as HTML in a notebook."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from html import escape
from typing import Any

from rolellm.core.sanitize import visible


class Shown(ABC):
    """A result with a table of its main figures."""

    __slots__ = ()

    @abstractmethod
    def _table(self) -> tuple[Any, str, Sequence[str]]:
        """A ``pandas.DataFrame`` of texts, what it shows in a line, and what a reader must know first."""

    def __repr__(self) -> str:
        frame, caption, remarks = self._table()
        return "\n".join([*map(visible, remarks), frame.rename(index=visible).to_string(), visible(caption)])

    def _repr_html_(self) -> str:
        frame, caption, remarks = self._table()
        lines = "".join(f"<p>{escape(visible(line))}</p>" for line in (*remarks, caption))
        return f"{lines}{frame.rename(index=visible).to_html(border=0)}"
