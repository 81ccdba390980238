"""The page section of a check of safety."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from markupsafe import Markup

from rolellm.checks.safety import MEASURES, SafetyResult, pair_replies, read_safety
from rolellm.core.table import Table
from rolellm.runs import Run

#: Replies that became worse, by measure, that a page shows.
_EXAMPLES: Final = 3


@dataclass(frozen=True, slots=True)
class SafetySection:
    """A check of safety as the page shows it.

    Attributes:
        title: The models.
        date: When it was made.
        recipe: Settings and models.
        result: What was found.
    """

    title: str
    date: str
    recipe: Mapping[str, Any]
    result: SafetyResult

    @classmethod
    def read(cls, run: Run[Any]) -> SafetySection:
        """Read a finished run of ``rolellm check safety``."""
        tuned, base = (model["name"] for model in run.manifest["models"]["endpoints"])
        recipe = {name: run.manifest[name] for name in ("settings", "play", "guard", "models")}
        return cls(f"{tuned} against {base}", run.manifest["date"], recipe, read_safety(run))

    @property
    def named_table(self) -> Table:
        """The table under the models' names."""
        (table,) = self.result.tables()
        return replace(table, title=f"{table.title}: {self.title}")

    @property
    def table(self) -> Markup:
        """The table as HTML."""
        return Markup(self.result.tables()[0].to_html())

    @property
    def lapses(self) -> list[dict[str, Any]]:
        """Replies that became worse by tuning: those of a measure together, in a role first, one of a prompt."""
        lapses: list[dict[str, Any]] = []
        for name, decider in self.result.deciders.items():
            measure = MEASURES[name]
            by_prompt: dict[str, dict[str, Any]] = {}
            pairs = pair_replies(self.result.replies, name)
            for pair in sorted(pairs, key=lambda pair: pair.after.role is None):
                before, after = pair.values
                if measure.sign * (after - before) > 0:
                    replies = {"before": pair.before, "after": pair.after, "kind": f"{measure.lapse} by {decider}"}
                    by_prompt.setdefault(pair.after.prompt, replies)
            lapses += list(by_prompt.values())[:_EXAMPLES]
        return lapses
