"""The section on a character's tests: every assertion with its interval, and the replies behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from markupsafe import Markup

from rolellm.report.drift_section import interval
from rolellm.report.score_table import ScoreTable, TableRow, to_html

NOTE: Final = (
    "Passes: share of replies that pass, with Wilson's 95 % interval. Flaky: the same message passes once and fails "
    "once; for catchphrases, a bound lies inside the interval. Unscored: the model gave no reply."
)


def tests_table(found: Mapping[str, Any]) -> ScoreTable:
    """Every assertion of ``tests.json``."""
    rows = tuple(
        TableRow(
            (one["name"],),
            (interval(one["share"]), _wanted(one), one["verdict"]),
            marks=("flaky",) if one["flaky"] else (),
        )
        for one in found["assertions"]
    )
    heads = ("Passes %", "Wanted %", "Verdict")
    return ScoreTable(f"Tests of {found['role']}", ("Assertion",), heads, rows, left=("Verdict",))


def _wanted(one: Mapping[str, Any]) -> str:
    low, high = (round(100 * one[end], 1) for end in ("at_least", "at_most"))
    return f"{low:g} to {high:g}" if high < 100 else f"{low:g}" if low == 100 else f"{low:g} or more"


def tests_view(found: Mapping[str, Any]) -> dict[str, Any]:
    """What ``tests.html.jinja`` shows: replies that fail come first."""
    shown = [
        {**one, "trials": sorted(one["trials"], key=lambda trial: not (trial["problem"] or trial["ended"]))}
        for one in found["assertions"]
    ]
    return {
        "table": Markup(to_html(tests_table(found), digits=1)),
        "note": NOTE,
        "assertions": shown,
        "language": found["language"],
    }
