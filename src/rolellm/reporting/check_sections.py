"""The tables and page sections of the checks: drift over many turns, a character's tests, its boundary, rewards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from markupsafe import Markup

from rolellm.core.errors import SettingsError
from rolellm.core.table import SIGNS, Table, TableRow, describe_intervals
from rolellm.reporting.plots import curve_svg
from rolellm.runs import Run
from rolellm.scoring.statistics.intervals import read_interval
from rolellm.training.rewards import CANARIES, PAIRS

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
#: An interval this wide says nothing: half of the scale (our choice).
_WIDE: Final = 0.5


def read_drift(runs: Iterable[Run[None]]) -> dict[str, Any]:
    """Read the systems of one or more runs of ``rolellm check drift``.

    Raises:
        SettingsError: For two systems of one name.
    """
    systems: dict[str, Any] = {}
    for run in runs:
        if shared := run.summary["systems"].keys() & systems.keys():
            raise SettingsError(f"two results name a system {min(shared)!r}; name the sessions: NAME=SESSIONS")
        systems |= run.summary["systems"]
    return systems


def life_table(systems: Mapping[str, Any]) -> Table:
    """Build a table of sessions, breaks and the half-life of each system."""
    heads = ("Sessions", "Roles", "Broken", "Half-life in turns", "First breaks")
    rows = []
    for name, system in systems.items():
        kinds = ", ".join(f"{kind.replace('_', ' ')} {count}" for kind, count in system["first_breaks"].items())
        counts = (str(system["sessions"]), str(system["roles"]), str(system["broken"]))
        rows.append(TableRow((name,), (*counts, _format_half_life(system), kinds or "none")))
    curves = (read_interval(step["unbroken"]) for system in systems.values() for step in system["curve"])
    note = describe_intervals(("Half-life in turns", share) for share in curves)
    return Table("How long roles last", ("System",), heads, tuple(rows), note, left=("First breaks",))


def _format_half_life(system: Mapping[str, Any]) -> str:
    last, life = system["curve"][-1]["turn"], system["half_life"]
    ends = life["ci95"]
    labels = [f"over {last}" if turn is None else str(turn) for turn in (life["turns"], *(ends or ()))]
    return labels[0] if ends is None else f"{labels[0]} [{labels[1]}, {labels[2]}]"


def window_table(systems: Mapping[str, Any]) -> Table:
    """Build a table of every measure by system and stretch of turns."""
    rows = [(name, row) for name, system in systems.items() for row in system["windows"]]
    columns = [column for column in COLUMNS if any(column in row for _, row in rows)]
    lines = tuple(
        TableRow((name, f"{row['from']}–{row['to']}"), tuple(read_interval(row.get(column)) for column in columns))
        for name, row in rows
    )
    heads = tuple(COLUMNS[column] for column in columns)
    return Table("By turn", ("System", "Turns"), heads, lines, digits=1)


def drift_tables(systems: Mapping[str, Any]) -> list[Table]:
    """Return both tables; none without a system."""
    return [life_table(systems), window_table(systems)] if systems else []


def drift_view(systems: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``drift.html.jinja`` shows."""
    curves = {
        name: [(step["turn"], step["broken"], read_interval(step["unbroken"])) for step in system["curve"]]
        for name, system in systems.items()
    }
    wide = [
        name
        for name, steps in curves.items()
        if any(share and share.ends and share.ends[1] - share.ends[0] >= _WIDE for _, _, share in steps)
    ]
    return {
        "wide": wide,
        "examples": [
            {"system": name, "kind": kind.replace("_", " "), **example}
            for name, system in systems.items()
            for kind, example in system.get("examples", {}).items()
        ],
        "lives": Markup(life_table(systems).to_html()),
        "curve": curve_svg(curves),
        "windows": Markup(window_table(systems).to_html()),
    }


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
