"""One section of a report: what was asked of the systems of one config, and every number that came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from markupsafe import Markup

from rolellm.core.table import Cell, Table, TableRow
from rolellm.judging.result import JudgingResult
from rolellm.judging.systems import ROLEGPT_NAME
from rolellm.reporting import plots
from rolellm.reporting.findings import Evidence
from rolellm.reporting.tables import (
    disagreements,
    judged_tables,
    list_absent,
    main_table,
    recipe,
    role_table,
    roles_of,
    score_table,
    with_markers,
)
from rolellm.reporting.templates import encode_file
from rolellm.scoring.published import PUBLISHED, PublishedTable
from rolellm.scoring.score_report import METRICS, ScoreReport
from rolellm.scoring.settings import ScoreOptions

_OPEN_TESTS = 24
# Of the tables that the page holds as files, in rows and characters (our choice).
_LONGEST, _LARGEST = 100, 50_000
_LATEX = "application/x-tex"


@dataclass(frozen=True)
class Section:
    """The content of one section of a report.

    Attributes:
        title: Its heading.
        scored: System name to its score report, in the order to show; in a judged section the models' order.
        judged: What judges found; ``None`` where Rouge-L is all there is.
        manifest: How it was judged, as a JSON object of any depth.
        released: The paper's table, where the rows are those of the release that it scored.
    """

    title: str
    scored: Mapping[str, ScoreReport]
    judged: JudgingResult | None = None
    manifest: Mapping[str, Any] = field(default_factory=dict)
    released: PublishedTable | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "judged", self.judged and self.judged.leading)

    @cached_property
    def reports(self) -> dict[str, ScoreReport]:
        """The score reports as tables show them."""
        return {name: report.leading for name, report in self.scored.items()}

    @property
    def options(self) -> ScoreOptions | None:
        """Options of the first system's scores, for what all share."""
        return next((report.options for report in self.reports.values()), None)

    @property
    def config(self) -> str | None:
        """The data set's config, where the section names one."""
        return (self.options.config if self.options else None) or (self.judged.config if self.judged else None)

    @property
    def odd(self) -> dict[str, tuple[str, ...]]:
        """Options in which the reports differ and must not, for their numbers to compare."""
        return disagreements(self.reports)

    @property
    def published(self) -> PublishedTable | None:
        """The paper's table where its rows may be shown with ours: the same rows, and the same protocol throughout."""
        table, options = self.released, self.options
        same = table is not None and options is not None and not self.odd and options.protocol == table.protocol
        return table if same else None

    @property
    def left_out(self) -> str:
        """Reason why the paper's rows for a config of this name are not shown; empty if they are, or if it has none."""
        if self.published or (self.config or "") not in PUBLISHED:
            return ""
        if self.released is None:
            return "it scored the release's whole test split, and the rows here are others or only some of them"
        return "its Rouge-L is recall under protocol paper, and the numbers here are not"

    @cached_property
    def series(self) -> dict[str, int]:
        """System name to the number of its color and marker."""
        judged = plots.series_of(self.judged) if self.judged else {}
        return judged or {name: at for at, name in enumerate(self.reports)}

    @cached_property
    def table(self) -> Table:
        """The section's one table that has it all."""
        if self.judged is None and self.published is None:
            return score_table(self.reports, title=self.title or "Rouge-L")
        table = main_table(self.title, self.reports, self.judged, self.published)
        return replace(with_markers(table, self.reports), note=". ".join(list_absent(self.reports)))

    @cached_property
    def evidence(self) -> Evidence:
        """What its findings rest on: all systems but canaries, baselines last; no scores that do not compare."""
        judged = self.judged.models if self.judged else ()
        kinds = {ROLEGPT_NAME: "baseline", **{system.name: system.kind for system in judged}}
        names = sorted(self.reports, key=lambda name: kinds.get(name) == "baseline")
        scored = {} if self.odd else {name: self.reports[name] for name in names if kinds.get(name) != "canary"}
        return Evidence(scored, self.judged)

    def describe(self) -> list[str]:
        """Say what was found about all but canaries; verdicts first where the judges' run is not valid."""
        scores, verdicts = self.evidence.describe_scores(), self.evidence.describe_verdicts()
        return scores + verdicts if self.judged is None or self.judged.valid else verdicts + scores

    def to_dict(self) -> dict[str, Any]:
        """Return what the section reports on, as one JSON object."""
        judged = self.judged
        return {
            "title": self.title,
            "config": self.config,
            "protocol": self.options and self.options.protocol,
            "systems": list(dict.fromkeys([*self.series, *self.reports])),
            "published": self.published is not None,
            "valid": None if judged is None else judged.valid,
            "problems": [] if judged is None else list(judged.problems),
        }

    def summary_table(self) -> Table:
        """Build the small table of the page's head: each system's mean score, win rate, and how it stands."""
        judged = {model.name: model for model in self.judged.models} if self.judged else {}
        names = [name for name in dict.fromkeys([*judged, *self.reports]) if name not in self._canaries]
        standing = self.evidence.describe_standing()
        columns: dict[str, list[Cell]] = {
            "avg": [self.reports[name].metrics.get("avg") if name in self.reports else None for name in names],
            "Win rate, %": [judged[name].measures().get("win_rate") if name in judged else None for name in names],
            "By Rouge-L": [standing.get(name) or None for name in names],
        }
        filled = {head: cells for head, cells in columns.items() if any(cell is not None for cell in cells)}
        rows = (TableRow((name,), tuple(cells)) for name, *cells in zip(names, *filled.values(), strict=True))
        return Table("", ("System",), tuple(filled), tuple(rows), left=("By Rouge-L",))

    @property
    def _canaries(self) -> set[str]:
        return {model.name for model in self.judged.models if model.kind == "canary"} if self.judged else set()

    def tables(self) -> dict[str, Table]:
        """Return every table that has a line, by a name fit for a file."""
        tables: dict[str, Table | None] = {"scores": self.table}
        if roles_of(self.reports.values()):
            tables["roles-rouge"] = role_table(self.reports)
        tables |= judged_tables(self.judged) if self.judged else {}
        return {name: table for name, table in tables.items() if table is not None}

    def named_tables(self) -> dict[str, Table]:
        """Return the same, each with the recipe behind its numbers under it: alone in a file, nothing else says it."""
        return {name: replace(table, note=self._note(name, table)) for name, table in self.tables().items()}

    def _note(self, name: str, table: Table) -> str:
        shared = recipe(self.reports)
        if shared and shared in table.note:
            return table.note
        note = "" if name == "scores" else table.note
        return ". ".join(filter(None, [self._recipe(name), *list_absent(self.reports), note]))

    def _recipe(self, name: str) -> str:
        data = self.options and self.judged and self.options.dataset_fingerprint
        named = [recipe(self.reports), f"data {data[:12]}" if data else ""]
        if self.judged:
            named += [f"{self.judged.rows:,} rows" if self.judged.rows else ""]
            named += [f"judged by {', '.join(judge.name for judge in self.judged.judges)}"]
            named += [f"judging {str(self.manifest['hash'])[:12]}" if self.manifest.get("hash") else ""]
            named += [] if self.judged.valid else ["NOT VALID: " + "; ".join(self.judged.problems)]
        source = f". Published rows: {self.published.source}" if name == "scores" and self.published else ""
        return f"{', '.join(filter(None, named))}{source}"

    def view(self, prefix: str = "") -> dict[str, Any]:
        """Return what ``part.html.jinja`` needs to show the section.

        Args:
            prefix: Goes before the ids of its sections, so that each is there once in a page of several.
        """
        judged, tables = self.judged, self.tables()
        count = max(
            len(roles_of(self.reports.values())), len(judged.list_groups("pairwise", "by_role")) if judged else 0
        )
        scored = [m for m in METRICS if any(report.metrics.get(m) for report in self.reports.values())]
        heats = [plots.role_heat(judged, "pairwise"), plots.role_heat(judged, "listwise")] if judged else []
        heats += [plots.rouge_heat(self.reports, metric, self.series) for metric in ("CUS", "SPE")]
        figures = {
            "score_plots": [plots.intervals_svg(self.reports, metric) for metric in scored],
            "role_plots": [heat for heat in heats if heat is not None],
            "standing_plots": plots.standing_plots(judged) if judged else [],
            "habit_plots": plots.habit_plots(judged) if judged else [],
        }
        short = {name: table for name, table in self.named_tables().items() if len(table.rows) <= _LONGEST}
        return {
            "part": self,
            "prefix": prefix,
            "systems": [plots.sign(name, at) for name, at in self.series.items()],
            "summary": Markup(self.summary_table().to_html()),
            "tables": {name: Markup(table.to_html()) for name, table in tables.items()},
            "files": [
                (name, table.title, encode_file(csv, "text/csv"), encode_file(table.to_latex(label=name), _LATEX))
                for name, table in short.items()
                if len(csv := table.to_csv()) < _LARGEST
            ],
            "lines": {name: len(table.rows) for name, table in tables.items()},
            "columns": self.table.columns,
            "canaries": judged is not None and any(system.kind == "canary" for system in judged.models),
            "open_tests": _OPEN_TESTS,
            "roles_shown": min(count, plots.MAX_ROLES),
            "roles_found": count,
            **figures,
        }
