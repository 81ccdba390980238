"""The common part of the checks: a stage whose result is one JSON object."""

from __future__ import annotations

from typing import Any, ClassVar

from rolellm.runs import Records, Step


class Check(Step[dict[str, Any]]):
    """A check: its result has figures for the manifest, and rows for a file of their own.

    Attributes:
        rows: The key of the rows, and the name of their file.
    """

    rows: ClassVar[str]

    def records(self, result: dict[str, Any]) -> Records:
        """Return the rows."""
        return {f"{self.rows}.jsonl": result[self.rows]}

    def summarize(self, result: dict[str, Any]) -> dict[str, Any]:
        """Return the figures."""
        return {name: value for name, value in result.items() if name != self.rows}
