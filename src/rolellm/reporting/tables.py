"""All tables: Rouge-L by system and role, with floors, recipe and the paper's rows; and what judges found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from rolellm.core.table import PERCENT, Cell, Format, Interval, Table, TableRow
from rolellm.judging.result import MEASURES, Group, JudgingResult, SystemFigures
from rolellm.scoring.published import PublishedTable
from rolellm.scoring.score_report import COLUMNS, METRICS, ScoreReport

#: The mark of the system that the others are compared with.
BASELINE = "baseline"
PAIRS, LISTS = MEASURES["win_rate"], MEASURES["list_win_rate"]
_FORMATS = dict.fromkeys((MEASURES["average_rank"], "Difference"), Format(2))
#: Options in which scores must be equal to compare.
COMPARED = ("protocol", "config", "split")


def roles_of(reports: Iterable[ScoreReport]) -> tuple[str, ...]:
    """List the roles that any of the reports breaks down, as first met."""
    roles: dict[str, None] = {}
    for report in reports:
        roles |= dict.fromkeys(report.by_role)
    return tuple(roles)


def system_table(
    reports: Mapping[str, ScoreReport],
    judged: JudgingResult | None = None,
    published: PublishedTable | None = None,
    *,
    title: str = "Rouge-L",
) -> Table:
    """Build a table like the paper's: published rows, then systems with Rouge-L and what judges found, then floors.

    Args:
        reports: System name to its score report; all under one protocol.
        judged: What judges found; ``None`` for Rouge-L alone.
        published: The paper's rows; ``None`` where they do not compare.
        title: The table's heading.
    """
    heads = (*COLUMNS, *MEASURES.values()) if judged else COLUMNS
    models = judged.models if judged else list(map(SystemFigures, reports))
    rows = []
    for system in models:
        report = reports.get(system.name)
        scores = report.metrics if report else {}
        measures = system.measures() if judged else {}
        cells = (*map(scores.get, COLUMNS), *measures.values())
        rows.append(TableRow((system.name,), cells, system.marks, system.band))
    table = Table(title, ("System",), heads, tuple(rows), formats=_FORMATS, folded=True)
    if judged:
        table = table.without_empty_columns()
    notes = [describe_recipe(reports)]
    if published:
        published_rows = _list_published_rows(published, table.columns)
        table = replace(table, rows=(*published_rows, *table.rows))
        notes.append(f"Published rows: {published.source}")
    return replace(_add_markers(table, reports), note=". ".join(filter(None, notes)))


def _list_published_rows(table: PublishedTable, heads: Sequence[str]) -> Iterator[TableRow]:
    """Yield the paper's rows; its win rates, shares of lists, go next to ours of lists or pairs, else nowhere."""
    shares_head = LISTS if LISTS in heads else PAIRS
    for system, scores in table.rows.items():
        cells = dict(zip(COLUMNS, map(Interval, scores), strict=True))
        if system in table.win_rates:
            cells[shares_head] = Interval(table.win_rates[system] / 100)
        shown = tuple(map(cells.get, heads))
        yield TableRow((system,), shown, ("published",), "published")


def _add_markers(table: Table, reports: Mapping[str, ScoreReport]) -> Table:
    """Add a line for each floor, baseline and reference of the systems that is not yet one of the table's lines."""
    names = {row.names[-1] for row in table.rows}
    has_baseline = any(BASELINE in row.marks for row in table.rows)
    rows = [*table.rows]
    for report in reports.values():
        markers = report.scale.markers if report.scale else {}
        for name, marker in markers.items():
            is_shown = name in names or (has_baseline and marker.kind == BASELINE)
            if not is_shown:
                names.add(name)
                marks = (marker.kind,) if marker.label(name) != name else ()
                cells = tuple(map(marker.metrics.get, table.columns))
                rows.append(TableRow((name,), cells, marks, marker.kind))
    return replace(table, rows=tuple(rows))


def role_table(reports: Mapping[str, ScoreReport]) -> Table | None:
    """Build a table of roles, and within each role the systems, by CUS, RAW and SPE."""
    rows = []
    for role in roles_of(reports.values()):
        for name, report in reports.items():
            summary = report.by_role.get(role, {})
            cells = tuple(map(summary.get, METRICS))
            rows.append(TableRow((role, name), cells))
    recipe = describe_recipe(reports)
    return Table("Rouge-L by role", ("Role", "System"), METRICS, tuple(rows), recipe) if rows else None


def describe_recipe(reports: Mapping[str, ScoreReport]) -> str:
    """Describe the recipe that all lines share."""
    for report in reports.values():
        values = [(name, getattr(report.options, name)) for name in COMPARED]
        return ", ".join(f"{name} {value}" for name, value in values if value)
    return ""


def judged_tables(judged: JudgingResult) -> dict[str, Table | None]:
    """Build every table of a result by a name fit for a file; ``None`` where there is nothing to show."""
    tables: dict[str, Table | None] = {}
    tables["roles-win-rate"] = group_table(judged, "by_role")
    if len(judged.judges) > 1:
        tables["judges-win-rate"] = group_table(judged, "by_judge")
    tables["tests"] = differences_table(judged)
    tables["habits"] = judged.build_bias_table()
    return tables


def group_table(judged: JudgingResult, group: Group) -> Table | None:
    """Build a line a role or judge, a column a system: win rates in pairs."""
    models = judged.judged("pairwise")
    rows = []
    for key in judged.list_groups(group):
        cells = [system.group(group).get(key) for system in models]
        rows.append(TableRow((key,), tuple(cells)))
    word = group.removeprefix("by_")
    names = tuple(system.name for system in models)
    formats = dict.fromkeys(names, PERCENT)
    title = f"Win rate in pairs by {word}, %"
    return Table(title, (word.capitalize(),), names, tuple(rows), formats=formats) if rows else None


def differences_table(judged: JudgingResult) -> Table | None:
    """Build a table of every pair of systems: the difference, its p, and p after Holm's correction."""
    names = {"win_rate": "Win rate, %", "average_rank": "Average rank"}
    rows = []
    for test in judged.tests:
        difference: Cell = test.difference
        if test.difference is not None and test.measure == "win_rate":
            difference = _scale(test.difference, 100)
        p_values = (_format_p_value(test.p), _format_p_value(test.p_adjusted))
        measure = names.get(test.measure, test.measure)
        pair = f"{test.a} − {test.b}"
        rows.append(TableRow((measure, pair), (difference, *p_values)))
    heads = ("Difference", "p", "p, Holm")
    table = Table("Paired tests", ("Measure", "Pair"), heads, tuple(rows), folded=True)
    return replace(table, formats=_FORMATS) if rows else None


def _scale(score: Interval, times: float) -> Interval:
    scaled = score._replace(mean=score.mean * times)
    if score.ends is None:
        return scaled
    low, high = score.ends
    return scaled._replace(low=low * times, high=high * times)


def _format_p_value(value: float | None) -> Cell:
    """Format a p value: the smallest are known only to be small."""
    if value is None:
        return None
    return f"{value:.3f}" if value >= 0.001 else "< 0.001"
