"""One section of a report: what was asked of the systems of one config, and every number that came of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from markupsafe import Markup

from rolellm.core.table import Cell, Table, TableRow
from rolellm.judging.result import JudgingResult, SystemFigures
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
# Characters of a table's CSV that the page holds as a file, so that a page of all 130 roles stays below 1 MB.
_LARGEST = 50_000
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
        if self.judged:
            object.__setattr__(self, "judged", self.judged.leading)

    @cached_property
    def reports(self) -> dict[str, ScoreReport]:
        """The score reports as tables show them."""
        return {name: report.leading for name, report in self.scored.items()}

    @cached_property
    def models(self) -> dict[str, SystemFigures]:
        """The judged systems by name."""
        if self.judged is None:
            return {}
        return {model.name: model for model in self.judged.models}

    @property
    def options(self) -> ScoreOptions | None:
        """Options of the first system's scores, for what all share."""
        return next((report.options for report in self.reports.values()), None)

    @property
    def config(self) -> str | None:
        """The data set's config, where the section names one."""
        if self.options and self.options.config:
            return self.options.config
        return self.judged.config if self.judged else None

    @property
    def odd(self) -> dict[str, tuple[str, ...]]:
        """Options in which the reports differ and must not, for their numbers to compare."""
        return disagreements(self.reports)

    @property
    def published(self) -> PublishedTable | None:
        """The paper's table where its rows may be shown with ours: the same rows, and the same protocol throughout."""
        table, options = self.released, self.options
        if table is None or options is None or self.odd or options.protocol != table.protocol:
            return None
        return table

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
        return {name: number for number, name in enumerate(self.models or self.reports)}

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
        kinds = {ROLEGPT_NAME: "baseline"}
        kinds |= {name: model.kind for name, model in self.models.items()}
        scored: dict[str, ScoreReport] = {}
        baselines: dict[str, ScoreReport] = {}
        for name, report in self.reports.items():
            if kinds.get(name) == "baseline":
                baselines[name] = report
            elif kinds.get(name) != "canary":
                scored[name] = report
        return Evidence({} if self.odd else scored | baselines, self.judged)

    def describe(self) -> list[str]:
        """Say what was found about all but canaries; verdicts first where the judges' run is not valid."""
        scores = self.evidence.describe_scores()
        verdicts = self.evidence.describe_verdicts()
        if self.judged and not self.judged.valid:
            return verdicts + scores
        return scores + verdicts

    def to_dict(self) -> dict[str, Any]:
        """Return what the section reports on, as one JSON object."""
        described: dict[str, Any] = {"title": self.title, "config": self.config}
        described["protocol"] = self.options and self.options.protocol
        described["systems"] = list(dict.fromkeys([*self.series, *self.reports]))
        described["published"] = self.published is not None
        described["valid"] = self.judged and self.judged.valid
        described["problems"] = list(self.judged.problems) if self.judged else []
        return described

    def summary_table(self) -> Table:
        """Build the small table of the page's head: each system's mean score, win rate, and how it stands."""
        standing = self.evidence.describe_standing()
        lines: dict[str, tuple[Cell, ...]] = {}
        for name in dict.fromkeys([*self.models, *self.reports]):
            model, report = self.models.get(name), self.reports.get(name)
            if model and model.kind == "canary":
                continue
            average = report.metrics.get("avg") if report else None
            win_rate = model.measures().get("win_rate") if model else None
            lines[name] = (average, win_rate, standing.get(name) or None)
        heads = ("avg", "Win rate, %", "By Rouge-L")
        rows = tuple(TableRow((name,), cells) for name, cells in lines.items())
        return Table("", ("System",), heads, rows, left=heads[-1:]).without_empty_columns()

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
        notes = [", ".join(filter(None, self._list_recipe()))]
        if name == "scores":
            notes += [f"Published rows: {self.published.source}"] if self.published else []
        else:
            notes.append(table.note)
        return ". ".join(filter(None, [*notes[:1], *list_absent(self.reports), *notes[1:]]))

    def _list_recipe(self) -> Iterator[str]:
        """List what the numbers depend on."""
        yield recipe(self.reports)
        if self.judged is None:
            return
        if self.options and self.options.dataset_fingerprint:
            yield f"data {self.options.dataset_fingerprint[:12]}"
        if self.judged.rows:
            yield f"{self.judged.rows:,} rows"
        yield f"judged by {', '.join(judge.name for judge in self.judged.judges)}"
        if self.manifest.get("hash"):
            yield f"judging {str(self.manifest['hash'])[:12]}"
        if not self.judged.valid:
            yield f"NOT VALID: {'; '.join(self.judged.problems)}"

    def view(self, prefix: str = "") -> dict[str, Any]:
        """Return what ``part.html.jinja`` needs to show the section.

        Args:
            prefix: Goes before the ids of its sections, so that each is there once in a page of several.
        """
        judged, tables = self.judged, self.tables()
        roles = {*roles_of(self.reports.values())}
        heats = [plots.rouge_heat(self.reports, metric, self.series) for metric in ("CUS", "SPE")]
        standing_plots, habit_plots = [], []
        if judged:
            roles |= {*judged.list_groups("pairwise", "by_role")}
            heats = [plots.role_heat(judged, "pairwise"), plots.role_heat(judged, "listwise"), *heats]
            standing_plots = plots.standing_plots(judged)
            habit_plots = plots.habit_plots(judged)
        scored = {name for report in self.reports.values() for name, metric in report.metrics.items() if metric}
        return {
            "part": self,
            "prefix": prefix,
            "systems": [plots.sign(name, number) for name, number in self.series.items()],
            "summary": Markup(self.summary_table().to_html()),
            "tables": {name: Markup(table.to_html()) for name, table in tables.items()},
            "files": list(self._encode_tables()),
            "lines": {name: len(table.rows) for name, table in tables.items()},
            "columns": self.table.columns,
            "canaries": any(model.kind == "canary" for model in self.models.values()),
            "open_tests": _OPEN_TESTS,
            "roles_shown": min(len(roles), plots.MAX_ROLES),
            "roles_found": len(roles),
            "score_plots": [plots.intervals_svg(self.reports, metric) for metric in METRICS if metric in scored],
            "role_plots": [heat for heat in heats if heat is not None],
            "standing_plots": standing_plots,
            "habit_plots": habit_plots,
        }

    def _encode_tables(self) -> Iterator[tuple[str, str, Markup, Markup]]:
        """Yield each table that is short enough to be in the page: name, title, CSV and LaTeX."""
        for name, table in self.named_tables().items():
            sheet = table.to_csv()
            if len(sheet) < _LARGEST:
                yield name, table.title, encode_file(sheet, "text/csv"), encode_file(table.to_latex(label=name), _LATEX)
