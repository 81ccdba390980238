"""The section on many turns: when sessions break, as a table and a curve, and every measure by stretch of turns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from markupsafe import Markup

from rolellm.core.errors import DataError, SettingsError
from rolellm.core.jsonl import read_json
from rolellm.evaluation.statistics.bootstrap import Interval
from rolellm.judging.drift import DRIFT
from rolellm.report.plots import NAMESPACE, curve_svg
from rolellm.report.score_table import ScoreTable, TableRow, to_html

#: Columns by measure, in their order; what no session has is left out.
COLUMNS: Final[Mapping[str, str]] = {
    "unbroken": "Unbroken sessions %",
    "in_character": "In character %",
    "language": "Language %",
    "person": "Person %",
    "repetition": "Repetition %",
    "style": "Style %",
    "prompt_to_line": "Prompt to line %",
    "line_to_line": "Line to line %",
    "questions": "Q&A %",
    "rubric_character": "Character %",
    "rubric_knowledge": "Knowledge %",
    "rubric_coherence": "Coherence %",
    "rubric_interest": "Interest %",
}
NOTE: Final = (
    "Unbroken: sessions without a break up to that turn. In character, language, person: replies without any break, in "
    "the role's language, and in the first person. Repetition: word runs that were said before in the session. "
    "Style: word pairs from the role's own lines. The other columns are a judge model's. Intervals resample sessions."
)


def read_drift(folders: Iterable[Path]) -> dict[str, Any]:
    """The systems of one or more results of ``rolellm drift``.

    Raises:
        DataError: For a file of another form.
        SettingsError: For two systems of one name.
    """
    systems: dict[str, Any] = {}
    for folder in folders:
        found = read_json(folder / DRIFT).get("systems")
        if not isinstance(found, dict):
            raise DataError("expected an object under `systems`; run `rolellm drift` again", path=folder / DRIFT)
        if both := found.keys() & systems.keys():
            raise SettingsError(f"two results name a system {min(both)!r}; name the sessions: NAME=SESSIONS")
        systems |= found
    return systems


def interval(value: Mapping[str, Any] | None) -> Interval | None:
    """A figure of ``drift.json``."""
    if value is None:
        return None
    low, high = value["ci95"] or (None, None)
    return Interval(value["mean"], low, high, value["n"], value["n"])


def life_table(systems: Mapping[str, Any]) -> ScoreTable:
    """Sessions, breaks and the half-life of each system."""
    heads = ("Sessions", "Roles", "Broken", "Half-life in turns", "First breaks")
    rows = []
    for name, one in systems.items():
        kinds = ", ".join(f"{kind.replace('_', ' ')} {count}" for kind, count in one["first_breaks"].items())
        counts = (str(one["sessions"]), str(one["roles"]), str(one["broken"]))
        rows.append(TableRow((name,), (*counts, _life(one), kinds or "none")))
    return ScoreTable("How long roles last", ("System",), heads, tuple(rows), left=("First breaks",))


def _life(one: Mapping[str, Any]) -> str:
    last, life = one["curve"][-1]["turn"], one["half_life"]
    ends = life["ci95"]
    shown = [f"over {last}" if turn is None else str(turn) for turn in (life["turns"], *(ends or ()))]
    return shown[0] if ends is None else f"{shown[0]} [{shown[1]}, {shown[2]}]"


def window_table(systems: Mapping[str, Any]) -> ScoreTable:
    """Every measure by system and stretch of turns."""
    rows = [(name, row) for name, one in systems.items() for row in one["windows"]]
    known = [column for column in COLUMNS if any(column in row for _, row in rows)]
    made = tuple(
        TableRow((name, f"{row['from']}–{row['to']}"), tuple(interval(row.get(column)) for column in known))
        for name, row in rows
    )
    heads = tuple(COLUMNS[column] for column in known)
    return ScoreTable("By turn", ("System", "Turns"), heads, made)


def drift_tables(systems: Mapping[str, Any]) -> list[ScoreTable]:
    """Both tables; none without a system."""
    return [life_table(systems), window_table(systems)] if systems else []


def drift_view(systems: Mapping[str, Any]) -> dict[str, Any]:
    """What ``drift.html.jinja`` shows."""
    curves = {
        name: [(step["turn"], step["broken"], interval(step["unbroken"])) for step in one["curve"]]
        for name, one in systems.items()
    }
    return {
        "lives": Markup(to_html(life_table(systems))),
        "curve": Markup(curve_svg(curves).replace(NAMESPACE, "", 1)),
        "windows": Markup(to_html(window_table(systems), digits=1)),
        "note": NOTE,
    }
