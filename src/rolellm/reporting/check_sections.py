"""The tables and page sections of the checks: drift over many turns, a character's tests, its boundary."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from rolellm.checks.character_tests import SIGNED, TestsResult
from rolellm.checks.drift import DriftResult
from rolellm.core.table import SIGNS


def drift_view(drift: DriftResult) -> dict[str, Any]:
    """Return what ``drift.html.jinja`` shows."""
    examples = []
    for name, system in drift.systems.items():
        for kind, example in system.examples.items():
            examples.append({"system": name, "kind": kind.replace("_", " "), "example": example})
    return {"tables": [Markup(table.to_html()) for table in drift.tables()], "examples": examples}


def tests_view(results: TestsResult) -> dict[str, Any]:
    """Return what ``tests.html.jinja`` shows: replies that fail come first."""
    assertions = []
    for assertion in results.sorted_assertions:
        sign = SIGNED[assertion.verdict]
        trials = sorted(assertion.trials, key=lambda trial: not (trial.problem or trial.ended))
        view = {"signed": sign, "tone": SIGNS[sign[0]][0], "trials": trials}
        assertions.append({"name": assertion.name, "verdict": assertion.verdict, "flaky": assertion.flaky, **view})
    table = Markup(results.tables()[0].to_html())
    return {"table": table, "assertions": assertions, "language": results.language}
