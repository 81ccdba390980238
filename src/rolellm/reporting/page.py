"""The report as one HTML file: scores with their intervals, answers side by side, and how each number came about.

The file holds all it needs: no address outside it, and no script but the one that unpacks the questions to browse,
where a report has them; the page's own policy lets nothing else run or load. Text of models and data sets is escaped,
and what a reader could not see in it is spelled out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markupsafe import Markup

from rolellm.core.errors import DataError
from rolellm.core.files import open_atomic
from rolellm.core.sanitize import truncate
from rolellm.judging.compare import flatten
from rolellm.reporting.browse import BrowsePart, browse
from rolellm.reporting.check_sections import drift_view, safety_view, tests_view
from rolellm.reporting.construct_section import Made, made_table
from rolellm.reporting.contrasts import pick_contrasts
from rolellm.reporting.section import Section
from rolellm.reporting.templates import environment, read_template
from rolellm.scoring.score_report import ScoreReport
from rolellm.version import __version__

_MAX_FACTS = 400
_MAX_VALUE = 1_000


@dataclass(frozen=True, slots=True)
class PageContent:
    """The content of a report.

    Attributes:
        title: The page's heading.
        parts: Its sections.
        questions: All rows to browse.
        split_note: How the held-out rows were set apart from those trained on, in a sentence; may be empty.
        summary: What was done, in a sentence or two; may be empty.
        findings: What came out, in sentences; each on its own line.
        recipe: How the run was made (model, tuning, decoding), as a JSON object of any depth.
        made: Roles that were made from scripts; ``None`` for none.
        drift: Systems over many turns, as ``rolellm check drift`` writes them.
        tests: A character's tests, as ``rolellm check`` writes them.
        safety: Checks of safety, as `rolellm.reporting.check_sections.read_safety` reads them.
    """

    title: str
    parts: Sequence[Section]
    questions: Sequence[BrowsePart] = ()
    split_note: str = ""
    summary: str = ""
    findings: Sequence[str] = ()
    recipe: Mapping[str, Any] = field(default_factory=dict)
    made: Made | None = None
    drift: Mapping[str, Any] = field(default_factory=dict)
    tests: Mapping[str, Any] = field(default_factory=dict)
    safety: Sequence[Mapping[str, Any]] = ()


def write_page(out: Path, content: PageContent) -> Path:
    """Write the report, complete or not at all.

    Args:
        out: The HTML file to write; its folder is made where needed.
        content: What to show.

    Returns:
        The file written.

    Raises:
        DataError: When there is nothing to report.
    """
    pieces = page_pieces(content)
    with open_atomic(out) as stream:
        stream.writelines(pieces)
    return out


def page_pieces(content: PageContent) -> Iterator[str]:
    """Render the page in pieces, so that a large one is never held whole; the same text for the same content.

    Raises:
        DataError: When there is nothing to report.
    """
    is_checked = content.drift or content.tests or content.safety
    if not is_checked and not any(part.reports or part.judged for part in content.parts):
        raise DataError("nothing to report: expected the scores of at least one system")
    several = len(content.parts) > 1
    heads, lines = made_table(content.made) if content.made is not None else ([], [])
    return (
        environment()
        .get_template("page.html.jinja")
        .generate(
            content=content,
            css=Markup(read_template("page.css")),
            version=__version__,
            parts=[part.view(f"part-{at}-" if several else "") for at, part in enumerate(content.parts, start=1)],
            several=several,
            questions=browse(content.questions) if content.questions else None,
            all_examples={part.name: pick_contrasts(part) for part in content.questions},
            recipe=facts(content.recipe) if content.recipe else (),
            origins=[
                (part, facts(part.manifest) if part.manifest else (), provenance(part.reports))
                for part in content.parts
            ],
            drift=drift_view(content.drift) if content.drift else None,
            tests=tests_view(content.tests) if content.tests else None,
            safety=[safety_view(run) for run in content.safety],
            made_heads=heads,
            made_lines=lines,
        )
    )


Fact = tuple[str, str]
"""A dotted name and its value as text."""


def provenance(reports: Mapping[str, ScoreReport]) -> dict[str, Any]:
    """Lay out protocol, config, split and fingerprint of each report to be compared.

    Args:
        reports: System name to its score report.

    Returns:
        Under ``shared`` what is the same for all of them (nothing for a single system); under ``apart``, system name to
        what is its own.
    """
    named = ("protocol", "config", "split")
    every = {
        name: facts({field: getattr(report.options, field) for field in named} | report.fingerprint)
        for name, report in reports.items()
    }
    common = set.intersection(*map(set, every.values())) if len(every) > 1 else set()
    first = next(iter(every.values()), ())
    apart = {name: [fact for fact in own if fact not in common] for name, own in every.items()}
    return {"shared": [fact for fact in first if fact in common], "apart": apart}


def facts(value: Mapping[str, Any]) -> tuple[Fact, ...]:
    r"""Flatten a JSON object to dotted names and values; at most 400, saying how many more there are.

    >>> facts({"decoding": {"sample": False, "stops": ["\n"]}, "seed": None})
    (('decoding.sample', 'false'), ('decoding.stops', '"\\n"'), ('seed', 'null'))
    """
    pairs = [(name, truncate(_format_value(item), _MAX_VALUE)) for name, item in flatten(value).items()]
    more = len(pairs) - _MAX_FACTS
    return tuple(pairs) if more <= 0 else (*pairs[:_MAX_FACTS], ("…", f"{more:,} more"))


def _format_value(value: Any) -> str:
    if isinstance(value, str):
        return value
    values = value if isinstance(value, list | tuple) else [value]
    return ", ".join(json.dumps(item, ensure_ascii=False, default=str) for item in values)
