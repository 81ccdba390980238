"""The report as one HTML file: scores with their intervals, answers side by side, and how each number came about.

The file holds all it needs: no address outside it, and no script; the page's own policy lets nothing run or load. Text
of models and data sets is escaped, and what a reader could not see in it is spelled out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from markupsafe import Markup

from rolellm.checks.character_tests import TestsResult
from rolellm.checks.drift import DriftResult
from rolellm.core.errors import DataError
from rolellm.core.files import open_atomic
from rolellm.core.jsonl import write_jsonl
from rolellm.core.sanitize import truncate
from rolellm.core.table import Table, TableRow
from rolellm.reporting.check_sections import drift_view, tests_view
from rolellm.reporting.questions import MAX_QUESTIONS, QuestionSet
from rolellm.reporting.safety_section import SafetySection
from rolellm.reporting.section import Section
from rolellm.reporting.templates import generate_page

_MAX_FACTS = 400
_MAX_VALUE = 1_000
_MAX_DEPTH = 40


@dataclass(frozen=True, slots=True)
class PageContent:
    """The content of a report.

    Attributes:
        title: The page's heading.
        parts: Its sections.
        questions: All rows with their answers.
        split_note: How the held-out rows were set apart from those trained on, in a sentence; may be empty.
        summary: What was done, in a sentence or two; may be empty.
        findings: What came out, in sentences; each on its own line.
        recipe: How the run was made (model, tuning, decoding), as a JSON object of any depth.
        made: Roles that were made from scripts, as `rolellm.demo.making.make_roles` returns them.
        drift: Systems over many turns.
        tests: A character's tests.
        safety: Checks of safety.
    """

    title: str
    parts: Sequence[Section]
    questions: Sequence[QuestionSet] = ()
    split_note: str = ""
    summary: str = ""
    findings: Sequence[str] = ()
    recipe: Mapping[str, Any] = field(default_factory=dict)
    made: Mapping[str, Any] = field(default_factory=dict)
    drift: DriftResult | None = None
    tests: TestsResult | None = None
    safety: Sequence[SafetySection] = ()


def write_page(out: Path, content: PageContent) -> Path:
    """Write the report, complete or not at all, and its questions as JSON Lines next to it.

    Args:
        out: The HTML file to write; its folder is made where needed.
        content: What to show.

    Returns:
        The file written.

    Raises:
        DataError: When there is nothing to report.
    """
    questions = out.with_suffix(".questions.jsonl")
    if content.questions:
        write_jsonl(questions, (record for part in content.questions for record in part.records()))
    return _write(out, page_pieces(content, questions.name))


#: Lines of the table of roles that were made from scripts, and how each is formatted of a role's counts.
_MADE: Final = {
    "script, read as": "{script}, {format}",
    "turns found": "{turns}",
    "the role's own lines": "{own_lines:,}",
    "catchphrases picked": "{picked:,} of {offered:,} offered",
    "question pairs made": "{candidates:,}",
    "kept": "{kept:,}",
    "dropped": "{dropped}",
    "replies to general instructions": "{replies:,} to {instructions:,}",
    "asked again": "{asked_again}",
    "rows in the data set": "{rows}",
    "calls": "{calls:,}",
    "tokens, estimated": "{tokens[0]:,} in, {tokens[1]:,} out",
}


def made_table(made: Mapping[str, Any]) -> Table:
    """Build a table of the counts of roles that were made from scripts, a column a role."""
    rows = []
    for name, form in _MADE.items():
        rows.append(TableRow((name,), tuple(form.format(**_describe_role(role)) for role in made["roles"])))
    heads = tuple(role["role"] for role in made["roles"])
    return Table("Made from a script", ("",), heads, tuple(rows), left=heads)


def _describe_role(role: Mapping[str, Any]) -> dict[str, Any]:
    listed = {key: _list_counts(value) for key, value in role.items() if isinstance(value, Mapping)}
    return {**role, **listed, "picked": len(role["catchphrases"])}


def _list_counts(counts: Mapping[str, int]) -> str:
    """List counts that are not 0, each with its name."""
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count) or "none"


def _write(out: Path, pieces: Iterator[str]) -> Path:
    with open_atomic(out) as stream:
        stream.writelines(pieces)
    return out


def page_pieces(content: PageContent, questions_file: str = "report.questions.jsonl") -> Iterator[str]:
    """Render the page in pieces; the same text for the same content.

    Args:
        content: What to show.
        questions_file: The file next to the page that has every question.

    Raises:
        DataError: When there is nothing to report.
    """
    is_checked = content.drift or content.tests or content.safety
    if not is_checked and not any(part.reports or part.judged for part in content.parts):
        raise DataError("nothing to report: expected the scores of at least one system")
    has_several = len(content.parts) > 1
    views = []
    origins = []
    for number, part in enumerate(content.parts, start=1):
        views.append(part.view(f"part-{number}-" if has_several else ""))
        origins.append((part, facts(part.manifest), _list_origins(part)))
    return generate_page(
        "page.html.jinja",
        content=content,
        parts=views,
        several=has_several,
        questions=_view_questions(content.questions, questions_file) if content.questions else None,
        all_examples={part.name: pick_contrasts(part) for part in content.questions},
        recipe=facts(content.recipe),
        origins=origins,
        drift=drift_view(content.drift) if content.drift else None,
        tests=tests_view(content.tests) if content.tests else None,
        safety=content.safety,
        made_table=Markup(made_table(content.made).to_html()) if content.made else "",
    )


def _view_questions(questions: Sequence[QuestionSet], file: str) -> dict[str, Any]:
    """Return what ``questions.html.jinja`` shows: as many rows of each section."""
    sections = [(part.name, part.draw(MAX_QUESTIONS // len(questions))) for part in questions]
    return {
        "file": file,
        "sections": sections,
        "shown": sum(len(drawn) for _, drawn in sections),
        "count": sum(len(part.rows) for part in questions),
    }


#: Rows shown in favor of each of the two systems.
_EACH = 2


def pick_contrasts(part: QuestionSet) -> list[dict[str, Any]]:
    """Pick the rows on which the first two systems' Rouge-L differs most: two in favor of the first, then two against.

    Where there is one model only, the baseline is the second; canaries are left out.

    Returns:
        Each ``row`` with two ``replies``: ``system``, ``text`` and ``score``, from 0 to 1.
    """
    names = [name for name in part.rouge if part.kinds.get(name) not in ("canary", "baseline")]
    names += [name for name in part.rouge if part.kinds.get(name) == "baseline"]
    if len(names) < 2:
        return []
    first, second = (part.rouge[name] for name in names[:2])
    shared = first.keys() & second.keys()
    gains = [(first[row.id] - second[row.id], row) for row in part.rows if row.id in shared]
    gains.sort(key=lambda pair: pair[0], reverse=True)
    chosen = [row for gain, row in gains[:_EACH] if gain > 0]
    chosen += [row for gain, row in gains[: -_EACH - 1 : -1] if gain < 0]
    return [{"row": row, "replies": [_describe_reply(part, name, row.id) for name in names[:2]]} for row in chosen]


def _describe_reply(part: QuestionSet, name: str, row_id: str) -> dict[str, Any]:
    return {"system": name, "text": part.answers[name][row_id], "score": part.rouge[name][row_id]}


def _list_origins(part: Section) -> dict[str, tuple[tuple[str, str], ...]]:
    """List protocol, config, split and fingerprint of each report of a section, by system."""
    origins = {}
    for name, report in part.reports.items():
        options = {key: getattr(report.options, key) for key in ("protocol", "config", "split")}
        origins[name] = facts(options | report.fingerprint)
    return origins


def facts(value: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    r"""Flatten a JSON object to dotted names and values; at most 400, saying how many more there are.

    >>> facts({"decoding": {"sample": False, "stops": ["\n"]}, "seed": None})
    (('decoding.sample', 'false'), ('decoding.stops', '"\\n"'), ('seed', 'null'))
    """
    pairs = []
    for name, item in _iterate_leaves(value, "", _MAX_DEPTH):
        pairs.append((name, truncate(_format_value(item), _MAX_VALUE)))
    more = len(pairs) - _MAX_FACTS
    if more > 0:
        pairs[_MAX_FACTS:] = [("…", f"{more:,} more")]
    return tuple(pairs)


def _iterate_leaves(value: Any, name: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield nested settings: ``a.b`` of an object in an object, ``a[NAME].b`` of a list of named objects."""
    if not depth:
        yield name, "… (nested too deeply to show)"
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _iterate_leaves(item, f"{name}.{key}" if name else str(key), depth - 1)
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping | list | tuple) for item in value):
        for number, item in enumerate(value):
            key = item.get("name", number) if isinstance(item, Mapping) else number
            yield from _iterate_leaves(item, f"{name}[{key}]", depth - 1)
    else:
        yield name, value


def _format_value(value: Any) -> str:
    if isinstance(value, str):
        return value
    values = value if isinstance(value, list | tuple) else [value]
    return ", ".join(json.dumps(item, ensure_ascii=False, default=str) for item in values)
