"""All tables: Rouge-L by system and role, with floors, recipe and the paper's rows; and what judges found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from rolellm.core.sanitize import make_visible
from rolellm.core.table import PERCENT, Cell, Format, Interval, Table, TableRow
from rolellm.core.text import join_names
from rolellm.judging.records import Design
from rolellm.judging.result import MEASURES, Group, JudgingResult, Pairwise, SystemFigures
from rolellm.scoring.published import PublishedTable
from rolellm.scoring.score_report import COLUMNS, METRICS, ScoreReport, summary_table


def roles_of(reports: Iterable[ScoreReport]) -> tuple[str, ...]:
    """List the roles that any of the reports breaks down, as first met."""
    return tuple(dict.fromkeys(role for report in reports for role in report.by_role))


def score_table(reports: Mapping[str, ScoreReport], *, title: str = "Rouge-L") -> Table:
    """Build a table of systems by CUS, RAW, SPE and avg.

    Args:
        reports: System name to its score report.
        title: The table's heading.
    """
    table = summary_table(title, "System", {name: report.metrics for name, report in reports.items()})
    return replace(with_markers(table, reports), note=". ".join([recipe(reports), *list_absent(reports)]))


def with_markers(table: Table, reports: Mapping[str, ScoreReport]) -> Table:
    """Add a line for each floor, baseline and reference of the systems that is not yet one of the table's lines.

    Systems that answered other rows have other floors; each is then marked with the systems whose rows it is on.
    """
    names = {row.names[-1] for row in table.rows}
    systems_by_line: dict[str, dict[TableRow, list[str]]] = {}
    for system, report in reports.items():
        markers = report.scale.markers if report.scale else {}
        for name, marker in markers.items():
            if name in names:
                continue
            marks = (marker.kind,) if marker.label(name) != name else ()
            line = TableRow((name,), tuple(map(marker.metrics.get, table.columns)), marks, marker.kind)
            systems_by_line.setdefault(name, {}).setdefault(line, []).append(system)
    rows = [*table.rows]
    for lines in systems_by_line.values():
        for line, systems in lines.items():
            if len(lines) > 1:
                line = replace(line, marks=(*line.marks, f"rows of {join_names(systems)}"))
            rows.append(line)
    return replace(table, rows=tuple(rows))


def list_absent(reports: Mapping[str, ScoreReport]) -> list[str]:
    """Say which floors and references no system has."""
    scales = [report.scale for report in reports.values() if report.scale]
    shown = {name for scale in scales for name in scale.markers}
    every = dict.fromkeys(note for scale in scales for note in scale.notes)
    # What one system lacks, another may have.
    return [note for note in every if not any(f"“{name}”" in note for name in shown)]


def role_table(reports: Mapping[str, ScoreReport], *, title: str = "Rouge-L by role") -> Table:
    """Build a table of roles, and within each role the systems, by CUS, RAW and SPE.

    Args:
        reports: System name to its score report.
        title: The table's heading.
    """
    rows = []
    for role in roles_of(reports.values()):
        for name, report in reports.items():
            summary = report.by_role.get(role, {})
            rows.append(TableRow((role, name), tuple(map(summary.get, METRICS))))
    return Table(title, ("Role", "System"), METRICS, tuple(rows), recipe(reports))


def disagreements(reports: Mapping[str, ScoreReport]) -> dict[str, tuple[str, ...]]:
    """Find what must be equal for numbers to compare and is not: protocol, config or split to its values."""
    differing = {}
    for name in ("protocol", "config", "split"):
        values = tuple(dict.fromkeys(str(getattr(report.options, name)) for report in reports.values()))
        if len(values) > 1:
            differing[name] = values
    return differing


def recipe(reports: Mapping[str, ScoreReport]) -> str:
    """Describe the recipe that all lines share, or warn that they share none."""
    odd = disagreements(reports)
    if odd:
        text = "; ".join(f"{name}: {', '.join(values)}" for name, values in odd.items())
        return f"Not comparable: the lines differ in {text}."
    for report in reports.values():
        options = report.options
        named = {"protocol": options.protocol, "config": options.config, "split": options.split}
        return ", ".join(f"{name} {value}" for name, value in named.items() if value)
    return ""


PAIRS, LENGTH_FREE, LISTS = (MEASURES[name] for name in ("win_rate", "lc_win_rate", "list_win_rate"))
RANK = MEASURES["average_rank"]

LENGTH = "Length effect, marginal"

_FORMATS = {**dict.fromkeys((RANK, LENGTH, "Difference"), Format(2)), "Characters": Format(0)}

#: Columns by the measures of `SystemFigures` that they show.
_LISTWISE = {RANK: "average_rank", LISTS: "list_win_rate"}
_JUDGED = {head: name for name, head in MEASURES.items()}


def main_table(
    title: str, reports: Mapping[str, ScoreReport], judged: JudgingResult | None, published: PublishedTable | None
) -> Table:
    """Build a table like the paper's: published rows, then this run's, each with Rouge-L and what the judges found.

    Args:
        title: The table's heading.
        reports: System to its Rouge-L; all under one protocol.
        judged: What the judges found; ``None`` for Rouge-L alone.
        published: The paper's rows; ``None`` where they do not compare.
    """
    models = judged.models if judged else tuple(SystemFigures(name) for name in reports)
    heads = (*COLUMNS, *_JUDGED) if judged else COLUMNS
    own_rows = []
    for system in models:
        scores = reports[system.name].metrics if system.name in reports else {}
        cells = [*map(scores.get, COLUMNS), *map(system.measures().get, _JUDGED.values())]
        own_rows.append(TableRow((system.name,), tuple(cells[: len(heads)]), system.marks, system.band))
    rows = _list_published_rows(published, heads, own_rows) if published else []
    table = Table(title, ("System",), heads, (*rows, *own_rows), formats=_FORMATS, folded=True)
    return table.without_empty_columns()


def _list_published_rows(table: PublishedTable, heads: Sequence[str], own_rows: Sequence[TableRow]) -> list[TableRow]:
    """Return the paper's rows; its win rates, shares of lists, go next to ours of lists or pairs, else nowhere."""
    own = Table("", ("System",), tuple(heads), tuple(own_rows)).without_empty_columns()
    beside = LISTS if LISTS in own.columns else PAIRS
    rows = []
    for system, scores in table.rows.items():
        cells = dict(zip(COLUMNS, map(Interval, scores), strict=True))
        if system in table.win_rates and beside in own.columns:
            cells[beside] = Interval(table.win_rates[system] / 100)
        rows.append(TableRow((system,), tuple(map(cells.get, heads)), ("published",), "published"))
    return rows


def judged_tables(judged: JudgingResult) -> dict[str, Table | None]:
    """Build every table of a result by a name fit for a file; ``None`` where there is nothing to show."""
    return {
        "pairs": pairwise_table(judged),
        "lists": lists_table(judged),
        "roles-win-rate": group_table(judged, "pairwise", "by_role"),
        "roles-rank": group_table(judged, "listwise", "by_role"),
        "categories-win-rate": group_table(judged, "pairwise", "by_category"),
        "categories-rank": group_table(judged, "listwise", "by_category"),
        "judges-win-rate": group_table(judged, "pairwise", "by_judge"),
        "tests": differences_table(judged),
        "habits": judged.build_bias_table(),
        "judges": judges_table(judged),
    }


def lists_table(judged: JudgingResult) -> Table | None:
    """Build a table of rank and share of lists above the baseline of each system."""
    cells = {system.name: tuple(map(system.measures().get, _LISTWISE.values())) for system in judged.judged("listwise")}
    return _build_model_table("Ranked in lists", judged, tuple(_LISTWISE), cells)


def pairwise_table(judged: JudgingResult) -> Table | None:
    """Build a table of wins, ties and losses of each system against the baseline, with the effect of length."""
    shares = ("Won, %", "Tied, %", "Lost, %")
    heads = (PAIRS, *shares, LENGTH_FREE, LENGTH, "Characters")
    cells: dict[str, tuple[Cell, ...]] = {}
    for system in judged.judged("pairwise"):
        figures = system.pairwise or Pairwise()
        won = (None if share is None else Interval(share) for share in (figures.wins, figures.ties, figures.losses))
        length = (figures.lc_win_rate or figures.length_problem, figures.marginal_length_coefficient, system.characters)
        cells[system.name] = (figures.win_rate, *won, *length)
    return _build_model_table(f"Against {judged.baseline}, in pairs", judged, heads, cells)


def _build_model_table(
    title: str, judged: JudgingResult, heads: tuple[str, ...], cells: Mapping[str, tuple[Cell, ...]]
) -> Table | None:
    systems = [system for system in judged.models if system.name in cells]
    rows = [TableRow((system.name,), cells[system.name], system.marks, system.band) for system in systems]
    return Table(title, ("System",), heads, tuple(rows), formats=_FORMATS, folded=True) if rows else None


def group_table(judged: JudgingResult, design: Design, group: Group) -> Table | None:
    """Build a line a role, category or judge, a column a system: win rate in pairs, average rank in lists."""
    groups, models = judged.list_groups(design, group), judged.judged(design)
    measure = "Win rate, %" if design == "pairwise" else "Average rank"
    head = {"by_role": "Role", "by_category": "Category", "by_judge": "Judge"}[group]
    figures = [system.group(design, group) for system in models]
    labels = {key: key.replace("script_", "script-") if group == "by_category" else key for key in groups}
    rows = [TableRow((labels[key],), tuple(of_model.get(key) for of_model in figures)) for key in groups]
    names = tuple(system.name for system in models)
    formats = dict.fromkeys(names, PERCENT if design == "pairwise" else Format(2))
    return Table(f"{measure} by {head.lower()}", (head,), names, tuple(rows), formats=formats) if rows else None


def differences_table(judged: JudgingResult) -> Table | None:
    """Build a table of every pair of systems: the difference, its p, and p after Holm's correction."""
    names = {"win_rate": "Win rate, %", "average_rank": "Average rank"}
    rows = []
    for test in judged.tests:
        difference, times = test.difference, 100.0 if test.measure == "win_rate" else 1.0
        if difference is not None:
            low, high = (None if end is None else end * times for end in (difference.low, difference.high))
            difference = difference._replace(mean=difference.mean * times, low=low, high=high)
        verdict = None if test.p_adjusted is None else "differ" if test.p_adjusted < 0.05 else "may be equal"
        cells: tuple[Cell, ...] = (difference, _format_p_value(test.p), _format_p_value(test.p_adjusted), verdict)
        rows.append(TableRow((names.get(test.measure, test.measure), f"{test.a} − {test.b}"), cells))
    heads = ("Difference", "p", "p, Holm", "At 5 %")
    table = Table("Paired tests", ("Measure", "Pair"), heads, tuple(rows), "", _FORMATS, heads[3:], folded=True)
    return table if rows else None


def _format_p_value(value: float | None) -> Cell:
    """Format a p value: the smallest are known only to be small."""
    if value is None:
        return None
    return f"{value:.3f}" if value >= 0.001 else "< 0.001"


def judges_table(judged: JudgingResult) -> Table:
    """Build a table of who judged, with which prompts, and whose family they share."""
    rows = []
    for judge in judged.judges:
        prompts = []
        for design, prompt in judge.prompts.items():
            digest = str(prompt.get("hash"))[:12]
            prompts.append(f"{design}: {prompt.get('name')} {prompt.get('version')} ({digest})")
        count = f"{judged.diagnostics.unscored.by_judge.get(judge.name, 0):,}"
        cells = (judge.family, ", ".join(judge.flagged), count, "; ".join(prompts))
        rows.append(TableRow((judge.name,), tuple(make_visible(cell) if cell else None for cell in cells)))
    heads = ("Family", "Systems of its family", "No verdict", "Prompts")
    return Table("Judges", ("Judge",), heads, tuple(rows), left=heads)
