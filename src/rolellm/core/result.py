"""What a stage found, in one shape, from which everything that people see is derived."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from rolellm.core.sanitize import make_visible
from rolellm.core.settings import dump

if TYPE_CHECKING:
    import pandas

    from rolellm.core.table import Table


class Result:
    """Findings of a stage: tables, sentences, and the command lines that continue.

    A subclass is a frozen dataclass. JSON, the text in a terminal and the HTML in a notebook follow from its fields and
    from these methods; a command prints whatever `Result` it returns, and where its `page` is if it has one.
    """

    __slots__ = ()

    def tables(self) -> Sequence[Table]:
        """Return the tables, the main one first."""
        return ()

    def remarks(self) -> Sequence[str]:
        """Return what was found, in sentences, each figure with its n and interval."""
        return ()

    def notes(self) -> Sequence[str]:
        """Return what a reader must know of the run itself, such as what is missing; printed to standard error."""
        return ()

    @property
    def continues_with(self) -> Sequence[str]:
        """The command lines to go on with."""
        return ()

    @property
    def has_passed(self) -> bool:
        """True if what was asked for was done and holds; where not, the command's exit code is 1."""
        return True

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as one JSON object."""
        return dump(self)

    def to_pandas(self) -> pandas.DataFrame:
        """Return the main table as a data frame; `tables` has the others."""
        table, *_ = self.tables()
        return table.to_pandas()

    def __repr__(self) -> str:
        remarks = map(make_visible, self.remarks())
        tables = map(str, self.tables()[:1])
        return "\n".join([*remarks, *tables]) or f"<{type(self).__name__}>"

    def _repr_html_(self) -> str:
        parts = [f"<p>{escape(make_visible(remark))}</p>" for remark in self.remarks()]
        parts += [table.to_html() for table in self.tables()[:1]]
        return "\n".join(parts)
