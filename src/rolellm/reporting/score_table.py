"""The tables of Rouge-L: systems, roles and the paper's published rows, with floors, baselines and the recipe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from rolellm.core.table import Interval, Table, TableRow
from rolellm.core.text import join_names
from rolellm.reporting.published import PublishedTable
from rolellm.scoring.score_report import METRICS, ScoreReport, Summary
from rolellm.scoring.settings import name_intervals

COLUMNS = (*METRICS, "avg")
"""What a score table shows: the three scores and their mean."""


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
    return replace(with_markers(table, reports), note=". ".join([recipe(reports), *standings(reports)]))


def with_markers(table: Table, reports: Mapping[str, ScoreReport]) -> Table:
    """Add a line for each floor, baseline and reference of the systems that is not yet one of the table's lines.

    Systems that answered other rows have other floors; each is then marked with the systems whose rows it is on.
    """
    lines_by_name: dict[str, list[tuple[TableRow, list[str]]]] = {}
    names = {row.names[-1] for row in table.rows}
    for system, report in reports.items():
        for name, marker in (report.scale.markers if report.scale else {}).items():
            marks = (marker.kind,) if marker.label(name) != name else ()
            line = TableRow((name,), tuple(map(marker.metrics.get, table.columns)), marks, marker.kind)
            entries = lines_by_name.setdefault(name, [])
            same = next((systems for row, systems in entries if row == line), None)
            if same is not None:
                same.append(system)
            elif name not in names:
                entries.append((line, [system]))
    lines = [
        line if len(variants) == 1 else replace(line, marks=(*line.marks, f"rows of {join_names(systems)}"))
        for variants in lines_by_name.values()
        for line, systems in variants
    ]
    return replace(table, rows=(*table.rows, *lines))


def standings(reports: Mapping[str, ScoreReport]) -> list[str]:
    """Say where each system is between floor and reference, and what is absent."""
    scales = {name: report.scale for name, report in reports.items() if report.scale}
    shown = {name for scale in scales.values() for name in scale.markers}
    every = dict.fromkeys(note for scale in scales.values() for note in scale.notes)
    # What one system lacks, another may have.
    notes = [note for note in every if not any(f"“{name}”" in note for name in shown)]
    return [*(f"{name}: {scale.text}" for name, scale in scales.items() if scale.text), *notes]


def summary_table(title: str, head: str, summaries: Mapping[str, Summary], note: str = "") -> Table:
    """Build a table of anything that has CUS, RAW, SPE and avg, a line each."""
    rows = (TableRow((name,), tuple(map(summary.get, COLUMNS))) for name, summary in summaries.items())
    return Table(title, (head,), COLUMNS, tuple(rows), note)


def role_table(reports: Mapping[str, ScoreReport], *, title: str = "Rouge-L by role") -> Table:
    """Build a table of roles, and within each role the systems, by CUS, RAW and SPE.

    Args:
        reports: System name to its score report.
        title: The table's heading.
    """
    rows = tuple(
        TableRow((role, name), tuple(report.by_role.get(role, {}).get(metric) for metric in METRICS))
        for role in roles_of(reports.values())
        for name, report in reports.items()
    )
    return Table(title, ("Role", "System"), METRICS, rows, recipe(reports))


def published_table(table: PublishedTable) -> Table:
    """Build a table of the paper in the form of ours; the paper gives neither intervals nor counts."""
    rows = tuple(TableRow((name,), tuple(map(Interval, scores))) for name, scores in table.rows.items())
    return Table(table.title, ("System",), COLUMNS, rows, f"Published: {table.source}; protocol {table.protocol}.")


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
    options = next((report.options for report in reports.values()), None)
    named = [f"{name} {value}" for name in ("protocol", "config", "split") if (value := getattr(options, name, None))]
    return ", ".join([*named, name_intervals(options.config)] if options else named)
