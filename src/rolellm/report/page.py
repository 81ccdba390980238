"""The report as one HTML file: scores with their intervals, answers side by side, and how each number came about.

The file holds all it needs: no address outside it, no script. Text of models and data sets is escaped, and what a
reader could not see in it is spelt out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from rolellm.errors import DataError
from rolellm.files import whole_file
from rolellm.records import Row
from rolellm.report.examples import pick_examples
from rolellm.report.made import Made, made_table
from rolellm.report.plots import MARKERS, MAX_ROLES, SERIES, intervals_svg, role_intervals_svg
from rolellm.report.provenance import facts, provenance
from rolellm.report.scores import METRICS, Reports, disagreements, estimate, role_estimate, roles
from rolellm.report.svg import inline
from rolellm.report.tables import role_table, score_table, to_html
from rolellm.report.templates import environment, read
from rolellm.version import __version__

_DIGITS = 3


@dataclass(frozen=True, slots=True)
class PageContent:
    """What a report shows.

    Attributes:
        title: Stands at the top.
        reports: System name to its score report, in the order to show.
        split_note: How the held-out rows were set apart from those trained on, in a sentence.
        summary: What was done, in a sentence or two; may be empty.
        rows: The rows that were asked; :func:`rolellm.report.examples.pick_examples` picks those to show.
        per_role: Rows a role to show.
        answers: System name to row id to answer.
        baseline: The system whose answers are the rows' own ``rolegpt`` where ``answers`` has none; ``None`` for none.
        recipe: How the run was made (model, tuning, decoding), as a JSON object of any depth.
        made: Roles that were made from scripts; ``None`` for none.
    """

    title: str
    reports: Reports
    split_note: str
    summary: str = ""
    rows: Sequence[Row] = ()
    per_role: int = 2
    answers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    baseline: str | None = "RoleGPT (released baseline)"
    recipe: Mapping[str, Any] = field(default_factory=dict)
    made: Made | None = None


@dataclass(frozen=True, slots=True)
class _System:
    """A system's name and the sign it goes by in the plots."""

    name: str
    series: int
    marker: str


@dataclass(frozen=True, slots=True)
class _Example:
    """A row with each system's answer; ``None`` where a system gave none."""

    row: Row
    answers: tuple[tuple[_System, str | None], ...]


def write_page(out: Path, content: PageContent) -> Path:
    """Write the report, complete or not at all.

    Args:
        out: The HTML file to write; its folder is made where needed.
        content: What to show.

    Returns:
        The file written.

    Raises:
        DataError: When there is nothing to report, or a report has another shape.
        MissingExtraError: Without matplotlib; names the extra that brings it.
    """
    html = render_page(content)
    with whole_file(out) as stream:
        stream.write(html)
    return out


def render_page(content: PageContent) -> str:
    """The report as the text of an HTML file; the same text for the same content.

    Args:
        content: What to show.

    Raises:
        DataError: When there is nothing to report, or a report has another shape.
        MissingExtraError: Without matplotlib; names the extra that brings it.
    """
    if not content.reports:
        raise DataError("nothing to report: expected the scores of at least one system")
    picked = pick_examples(content.rows, content.per_role)
    systems = _systems(content, picked)
    template = environment().get_template("page.html.jinja")
    return template.render(
        content=content,
        css=_safe(read("page.css")),
        version=__version__,
        systems=[system for system in systems if system.name in content.reports],
        odd=disagreements(content.reports),
        first=next(iter(content.reports.values())),
        examples=_by_role(content, picked, systems),
        recipe=facts(content.recipe),
        provenance=provenance(content.reports),
        **_made(content.made),
        **_tables(content.reports),
        **_plots(content.reports),
    )


def _systems(content: PageContent, picked: Sequence[Row]) -> list[_System]:
    """All systems that have scores or answers, with the plots' colours first."""
    names = dict.fromkeys([*content.reports, *content.answers])
    if content.baseline is not None and any(row.rolegpt is not None for row in picked):
        names.setdefault(content.baseline)
    markers = list(MARKERS.values())
    return [_System(name, at % len(SERIES) + 1, markers[at % len(markers)]) for at, name in enumerate(names)]


def _by_role(
    content: PageContent, picked: Sequence[Row], systems: Sequence[_System]
) -> list[tuple[str, list[_Example]]]:
    """The examples by role, roles in the order of the plots."""
    order = {role: at for at, role in enumerate(roles(content.reports))}
    picked = sorted(picked, key=lambda row: order.get(row.role, len(order)))
    examples = [_Example(row, tuple((one, _answer(content, one.name, row)) for one in systems)) for row in picked]
    return [(role, list(group)) for role, group in groupby(examples, key=lambda example: example.row.role)]


def _answer(content: PageContent, system: str, row: Row) -> str | None:
    given = content.answers.get(system, {}).get(row.id)
    return row.rolegpt if given is None and system == content.baseline else given


def _tables(reports: Reports) -> dict[str, Any]:
    return {
        "score_table": _safe(to_html(score_table(reports), digits=_DIGITS)),
        "role_table": _safe(to_html(role_table(reports), digits=_DIGITS)) if roles(reports) else None,
    }


def _made(made: Made | None) -> dict[str, Any]:
    heads, lines = made_table(made) if made is not None else ([], [])
    return {"made": made, "made_heads": heads, "made_lines": lines}


def _plots(reports: Reports) -> dict[str, Any]:
    """A plot a metric, small enough for a phone, of those that have something to show."""
    shown = roles(reports)
    scored = [metric for metric in METRICS if any(estimate(one, metric) for one in reports.values())]
    by_role = [m for m in METRICS if any(role_estimate(one, role, m) for one in reports.values() for role in shown)]
    return {
        "score_plots": [_safe(inline(intervals_svg(reports, metrics=[metric]))) for metric in scored],
        "role_plots": [
            _safe(inline(role_intervals_svg(reports, metrics=[metric], legend=False))) for metric in by_role
        ],
        "roles_shown": min(len(shown), MAX_ROLES),
        "roles_found": len(shown),
    }


def _safe(html: str) -> Any:
    """Mark text as HTML of our own making."""
    from markupsafe import Markup

    return Markup(html)
