"""The tables and page sections of the checks: drift over many turns, a character's tests, its boundary, rewards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

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


#: Verdicts with their signs, in the order in which they are shown.
_SIGNED = {"failed": "✗ failed", "unscored": "? unscored", "passed": "✓ passed"}


def tests_table(results: Mapping[str, Any]) -> Table:
    """Build a table of every assertion of a character's tests, those that failed first."""
    rows = tuple(
        TableRow(
            (assertion["name"],),
            (read_interval(assertion["share"]), _format_target(assertion), _SIGNED[assertion["verdict"]]),
            marks=("flaky",) if assertion["flaky"] else (),
        )
        for assertion in _sort_assertions(results)
    )
    heads = ("Passes %", "Wanted %", "Verdict")
    return Table(f"Tests of {results['role']}", ("Assertion",), heads, rows, left=("Verdict",))


def _sort_assertions(results: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return sorted(results["assertions"], key=lambda assertion: list(_SIGNED).index(assertion["verdict"]))


def _format_target(assertion: Mapping[str, Any]) -> str:
    low, high = (round(100 * assertion[end], 1) for end in ("at_least", "at_most"))
    return f"{low:g} to {high:g}" if high < 100 else f"{low:g}" if low == 100 else f"{low:g} or more"


def tests_view(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``tests.html.jinja`` shows: replies that fail come first."""
    assertions = [
        {
            **assertion,
            "signed": (signed := _SIGNED[assertion["verdict"]]),
            "tone": SIGNS[signed[0]][0],
            "trials": sorted(assertion["trials"], key=lambda trial: not (trial["problem"] or trial["ended"])),
        }
        for assertion in _sort_assertions(results)
    ]
    return {
        "table": Markup(tests_table(results).to_html()),
        "assertions": assertions,
        "language": results["language"],
    }


def boundary_table(boundary: Mapping[str, Any]) -> Table:
    """Build a table of every kind of probe, then of hallucination and over-refusal over all their kinds."""
    columns = ("By rule %", "By judge %", "Words of the answer %")
    rows = []
    for name, must_know in (("hallucination", False), ("over_refusal", True)):
        kinds = {kind: figures for kind, figures in boundary["kinds"].items() if figures["must_know"] is must_know}
        for kind, figures in {**kinds, "all": boundary[name]}.items():
            cells = tuple(read_interval(figures.get(by)) for by in ("rule", "judge", "says_key"))
            rows.append(TableRow((name.replace("_", "-"), kind.replace("_", " ")), cells))
    return Table(f"Knowledge boundary of {boundary['role']}", ("Error", "Probes"), columns, tuple(rows))


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
