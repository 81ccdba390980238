"""The report as one HTML file: scores with their intervals, answers side by side, and how each number came about.

The file holds all it needs: no address outside it, and no script but the one that unpacks the questions to browse,
where a report has them; the page's own policy lets nothing else run or load. Text of models and data sets is escaped,
and what a reader could not see in it is spelt out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from rolellm.core.errors import DataError
from rolellm.core.files import whole_file
from rolellm.core.records import Row
from rolellm.report.browse.part import BrowsePart
from rolellm.report.browse.section import browse
from rolellm.report.examples import pick_examples
from rolellm.report.made import Made, made_table
from rolellm.report.part import Part
from rolellm.report.provenance import facts, provenance
from rolellm.report.scores import Reports, roles
from rolellm.report.sections import System, part_view, safe, signs
from rolellm.report.templates import environment, read
from rolellm.version import __version__


@dataclass(frozen=True, slots=True)
class PageContent:
    """What a report shows.

    Attributes:
        title: Stands at the top.
        reports: System name to its score report, in the order to show: a report of one part without judges.
        split_note: How the held-out rows were set apart from those trained on, in a sentence; may be empty.
        summary: What was done, in a sentence or two; may be empty.
        rows: The rows that were asked; :func:`rolellm.report.examples.pick_examples` picks those to show.
        per_role: Rows a role to show.
        answers: System name to row id to answer.
        baseline: The system whose answers are the rows' own ``rolegpt`` where ``answers`` has none; ``None`` for none.
        recipe: How the run was made (model, tuning, decoding), as a JSON object of any depth.
        made: Roles that were made from scripts; ``None`` for none.
        parts: Several parts, or judged ones, in place of ``reports``.
        questions: All rows to browse, in place of the few picked of ``rows``.
    """

    title: str
    reports: Reports = field(default_factory=dict)
    split_note: str = ""
    summary: str = ""
    rows: Sequence[Row] = ()
    per_role: int = 2
    answers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    baseline: str | None = "RoleGPT (released baseline)"
    recipe: Mapping[str, Any] = field(default_factory=dict)
    made: Made | None = None
    parts: Sequence[Part] = ()
    questions: Sequence[BrowsePart] = ()


@dataclass(frozen=True, slots=True)
class _Example:
    """A row with each system's answer; ``None`` where a system gave none."""

    row: Row
    answers: tuple[tuple[System, str | None], ...]


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
    pieces = _pieces(content)
    with whole_file(out) as stream:
        stream.writelines(pieces)
    return out


def render_page(content: PageContent) -> str:
    """The report as the text of an HTML file; the same text for the same content.

    Args:
        content: What to show.

    Raises:
        DataError: When there is nothing to report, or a report has another shape.
        MissingExtraError: Without matplotlib; names the extra that brings it.
    """
    return "".join(_pieces(content))


def _pieces(content: PageContent) -> Iterator[str]:
    """The page in pieces, so that a large one is never held whole."""
    parts = content.parts or ([Part("", content.reports, compare=False, heat=False)] if content.reports else [])
    if not parts:
        raise DataError("nothing to report: expected the scores of at least one system")
    picked = pick_examples(content.rows, content.per_role)
    systems = _systems(content, picked)
    several = len(parts) > 1
    return (
        environment()
        .get_template("page.html.jinja")
        .generate(
            content=content,
            css=safe(read("page.css")),
            version=__version__,
            parts=[
                part_view(part, prefix=f"part-{at}-" if several else "", nested=bool(content.parts))
                for at, part in enumerate(parts, start=1)
            ],
            several=several,
            examples=_by_role(content, picked, systems),
            questions=_questions(content),
            recipe=facts(content.recipe) if content.recipe else (),
            origins=[(part, facts(part.manifest) if part.manifest else (), provenance(part.reports)) for part in parts],
            **_made(content.made),
        )
    )


def _systems(content: PageContent, picked: Sequence[Row]) -> list[System]:
    """All systems that have scores or answers, with the plots' colours first."""
    names = dict.fromkeys([*content.reports, *content.answers])
    if content.baseline is not None and any(row.rolegpt is not None for row in picked):
        names.setdefault(content.baseline)
    return signs({name: at for at, name in enumerate(names)})


def _by_role(
    content: PageContent, picked: Sequence[Row], systems: Sequence[System]
) -> list[tuple[str, list[_Example]]]:
    """The examples by role, roles in the order of the plots."""
    order = {role: at for at, role in enumerate(roles(content.reports))}
    picked = sorted(picked, key=lambda row: order.get(row.role, len(order)))
    examples = [_Example(row, tuple((one, _answer(content, one.name, row)) for one in systems)) for row in picked]
    return [(role, list(group)) for role, group in groupby(examples, key=lambda example: example.row.role)]


def _answer(content: PageContent, system: str, row: Row) -> str | None:
    given = content.answers.get(system, {}).get(row.id)
    return row.rolegpt if given is None and system == content.baseline else given


def _made(made: Made | None) -> dict[str, Any]:
    heads, lines = made_table(made) if made is not None else ([], [])
    return {"made": made, "made_heads": heads, "made_lines": lines}


def _questions(content: PageContent) -> dict[str, Any] | None:
    """The parts of the section to browse, each at its place in the page."""
    if not content.questions:
        return None
    made = browse(list(content.questions))
    return {
        "html": safe(made.html),
        "css": safe(made.css),
        "script": safe(made.script),
        "script_sha256": made.script_sha256,
        "data": map(safe, made.data),
    }
