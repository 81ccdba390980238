"""The tables and page sections of the checks: drift over many turns, a character's tests, its boundary, rewards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from rolellm.checks.character_tests import SIGNED, TestsResult
from rolellm.checks.drift import DriftResult
from rolellm.core.table import SIGNS, Table, TableRow
from rolellm.scoring.statistics.intervals import read_interval
from rolellm.training.rewards import CANARIES, PAIRS


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


def reward_table(audit: Mapping[str, Any]) -> Table:
    """Build a table of how often each canary and pair loses: under each reward alone, then under all together."""
    *parts, decisive = audit["rewards"].items()
    rows = []
    for kind, name in {**CANARIES, **PAIRS}.items():
        if (figures := decisive[1].get(kind)) is not None:
            alone = (f"{100 * part[kind]['lost']['mean']:.1f}" if kind in part else None for _, part in parts)
            ties = f"{100 * figures['tied']:.1f}"
            rows.append(TableRow((name,), (*alone, read_interval(figures["lost"]), ties, figures["verdict"])))
    heads = (*(name.rpartition(".")[2] for name, _ in parts), decisive[0].rpartition(".")[2])
    heads = (*(f"{name} %" for name in heads), "Ties %", "Verdict")
    return Table("How often it loses to the role's own reply", ("Rival",), heads, tuple(rows), left=("Verdict",))


def describe_reward(audit: Mapping[str, Any]) -> list[str]:
    """Say in sentences what beats the rewards that training would follow, and what they are weak against."""
    name, decisive = list(audit["rewards"].items())[-1]
    subject = "These rewards together" if len(audit["rewards"]) > 1 else name.rpartition(".")[2]

    def list_rivals(verdict: str) -> str:
        return ", ".join(
            f"{CANARIES[kind]} ({100 * figures['lost']['mean']:.0f} %)"
            for kind, figures in decisive.items()
            if kind in CANARIES and figures["verdict"] == verdict
        )

    beaten, weak = list_rivals("beaten"), list_rivals("weak")
    sentences = [f"{subject}: a canary that should lose wins or ties, so `rolellm train` refuses: {beaten}."] * bool(
        beaten
    )
    sentences += [f"{subject}: weak against {weak}, which should lose in 95 % of rows."] * bool(weak)
    sentences += [f"{subject}: every canary loses in at least 95 % of rows."] * (not sentences)
    held_out = f"{audit['held_out']} of {audit['rows']} own replies are not among the references that rewards see."
    return [*sentences, held_out]
