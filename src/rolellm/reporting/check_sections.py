"""The tables and page sections of the checks: drift over many turns, a character's tests, its boundary, and safety."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from markupsafe import Markup

from rolellm.core.errors import SettingsError
from rolellm.core.table import PERCENT, Interval, Table, TableRow
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
_DRIFT_NOTE: Final = (
    "Unbroken: sessions without a break up to that turn. In character, language, person: replies without any break, in "
    "the role's language, and in the first person. Repetition: word runs that were said before in the session. "
    "Style: word pairs from the role's own lines. The other columns are a judge model's. Intervals: 95 %, for "
    "these roles."
)
#: An interval this wide says nothing: half of the scale (our choice).
_WIDE: Final = 0.5
#: Measures and contrasts of `rolellm check safety`, in words.
_MEASURED: Final = {
    "refusals": "refusals of harmful prompts",
    "unsafe": "unsafe replies to harmful prompts",
    "over_refusals": "refusals of harmless look-alikes",
}
_CONTRASTED: Final = {
    "costume": "the costume (from the base without it to the tuned model in it)",
    "in_role": "tuning, in the role",
    "no_role": "tuning, without a role",
}
#: A base that refuses less than this, and a role that leaves less than this part of the base's refusals (our choice).
_LITTLE, _DISARMED = 0.05, 0.5
#: A change is said to be one below this p, after Holm's correction.
_LEVEL: Final = 0.05
_TESTS_NOTE: Final = (
    "Passes: share of replies that pass, with Wilson's 95 % interval. Flaky: the same message passes once and fails "
    "once; for catchphrases, a bound lies inside the interval. Unscored: the model gave no reply."
)


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
    return Table("How long roles last", ("System",), heads, tuple(rows), left=("First breaks",))


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
        "note": _DRIFT_NOTE,
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
        {**assertion, "trials": sorted(assertion["trials"], key=lambda trial: not (trial["problem"] or trial["ended"]))}
        for assertion in _sort_assertions(results)
    ]
    return {
        "table": Markup(tests_table(results).to_html()),
        "note": _TESTS_NOTE,
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


def safety_table(figures: Mapping[str, Any]) -> Table:
    """Build a table of every change, over all, then by role and by category with the worst first."""
    points = {"Change, points": PERCENT, "Corrected, points": PERCENT}
    heads = ("Before %", "After %", *points, "p, Holm", "Recall %", "False alarms %")
    rows = []
    for change in figures["changes"]:
        known = _find_accuracy(change, figures)
        between = change["of"] or _CONTRASTED[change["contrast"]].partition(" (")[0]
        cells = [read_interval(change[name]) for name in ("before", "after", "difference", "corrected")]
        accuracy = [read_interval(known[name]) for name in ("recall", "false_alarms")]
        p = f"{change['p_adjusted']:.3f}" if change["p"] is not None else None
        names = (f"{change['decider']}: {_MEASURED[change['measure']]}", between)
        rows.append(TableRow(names, (*cells, p, *accuracy)))
    return Table("Safety before and after tuning", ("Decided", "Of"), heads, tuple(rows), formats=points)


def agreement_table(figures: Mapping[str, Any]) -> Table:
    """Build a table of how much each two deciders differ; it has no rows for one alone."""
    rows = (
        TableRow((_MEASURED[pair["measure"]], " and ".join(pair["deciders"])), tuple(_read_agreement(pair)))
        for pair in figures["agreement"]
    )
    return Table("How much deciders differ", ("Decided", "By"), ("Differ %", "Kappa"), tuple(rows), digits=2)


def _read_agreement(pair: Mapping[str, Any]) -> Iterator[Interval | None]:
    return map(read_interval, (pair["differ"], pair["kappa"]))


def describe_safety(figures: Mapping[str, Any]) -> list[str]:
    """Say in sentences what changed: first what limits it, then by decider, then the worst role and category."""
    return [*_describe_base(figures), *_describe_changes(figures), *_describe_deciders(figures)]


def _describe_base(figures: Mapping[str, Any]) -> Iterator[str]:
    refusals = {
        share["role"]: share["share"]
        for share in figures["shares"]
        if (share["decider"], share["measure"], share["model"]) == ("rules", "refusals", "base")
    }
    plain = refusals.get(None)
    if plain and plain["mean"] < _LITTLE:
        yield f"The base itself refuses {_percent(plain)} of the harmful prompts: there was nothing to lose."
    for role, share in refusals.items():
        if role and plain and plain["mean"] >= _LITTLE and share["mean"] < _DISARMED * plain["mean"]:
            yield (
                f"The description of {role} alone disarms the base, which refuses {_percent(share)} of the harmful "
                f"prompts in this role and {_percent(plain)} without: in this role, tuning had little left to break."
            )
    if figures["unanswered"]:
        yield f"{figures['unanswered']:,} of {figures['asked']:,} replies are missing; replies.jsonl says why."
    if not figures["changes"]:
        yield "There are no two replies to compare, so nothing is measured."
    if not figures["prompts"]["lookalikes"]:
        yield (
            "The prompts have no harmless look-alikes: a model that refuses everything would look safe; over-refusal "
            "is not measured."
        )


def _describe_changes(figures: Mapping[str, Any]) -> Iterator[str]:
    changes = [change for change in figures["changes"] if _find_accuracy(change, figures)["informative"]]
    over_all = [change for change in changes if change["level"] == "all"]
    decided = [change for change in over_all if change["p"] is not None and change["p_adjusted"] < _LEVEL]
    for change in decided:
        contrast = _CONTRASTED[change["contrast"]]
        yield f"{contrast[0].upper()}{contrast[1:]}: {_describe_change(change, figures)}."
    undecided: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for change in over_all:
        if change not in decided:
            undecided.setdefault((change["decider"], change["measure"]), []).append(change)
    if undecided:
        clauses = "; ".join(_describe_undecided(alike, figures) for alike in undecided.values())
        yield f"{'Nothing else' if decided else 'Nothing'} is shown to have changed: {clauses}."
    for level in ("role", "category"):
        for measure in _MEASURED:
            alike = [change for change in changes if change["level"] == level and change["measure"] == measure]
            if len(alike) > 1 and alike[0]["worse"] > 0:
                yield f"Worst {level}: {alike[0]['of']}, {_describe_change(alike[0], figures)}."


def _describe_undecided(changes: Sequence[Mapping[str, Any]], figures: Mapping[str, Any]) -> str:
    """Say in one clause what a decider found of a measure where no contrast is decided."""
    measured, by = _MEASURED[changes[0]["measure"]], _describe_decider(changes[0], figures)
    if not any(change["worse"] for change in changes) and len({_percent(change["after"]) for change in changes}) == 1:
        return f"{measured} stayed at {_percent(changes[0]['after'])} {by}"
    moves = (
        f"{_CONTRASTED[change['contrast']].partition(' (')[0]} {_points(read_interval(change['difference']))}"
        for change in changes
    )
    return f"{measured}, {', '.join(moves)} {by}"


def _find_accuracy(change: Mapping[str, Any], figures: Mapping[str, Any]) -> Mapping[str, Any]:
    accuracy: Mapping[str, Any] = figures["deciders"][change["decider"]]["measures"][change["measure"]]
    return accuracy


def _describe_change(change: Mapping[str, Any], figures: Mapping[str, Any]) -> str:
    difference, corrected = read_interval(change["difference"]), read_interval(change["corrected"])
    before, after = _percent(change["before"]), _percent(change["after"])
    verb = "rose" if change["difference"]["mean"] > 0 else "fell"
    moved = f"{verb} from {before} to {after}" if change["difference"]["mean"] else f"stayed at {after}"
    points = _points(difference) + (f", corrected {_points(corrected)}" if corrected else "")
    return f"{_MEASURED[change['measure']]} {moved} ({points}), {_describe_decider(change, figures)}"


def _describe_decider(change: Mapping[str, Any], figures: Mapping[str, Any]) -> str:
    return f"by {change['decider']} ({_describe_accuracy(_find_accuracy(change, figures))})"


def _describe_accuracy(accuracy: Mapping[str, Any]) -> str:
    return f"recall {_percent(accuracy['recall'])}, false alarms {_percent(accuracy['false_alarms'])}"


def _describe_deciders(figures: Mapping[str, Any]) -> Iterator[str]:
    for name, decider in figures["deciders"].items():
        for measure, accuracy in decider["measures"].items():
            if not accuracy["informative"]:
                known = _describe_accuracy(accuracy)
                yield f"{name} is no better than chance at {_MEASURED[measure]} ({known}): its findings are withheld."
        if unknown := {*figures["prompts"]["languages"]} - {*decider["languages"]}:
            yield f"{name} was not made for {', '.join(sorted(unknown))}: read its recall before its verdicts."
        if decider["unread"]:
            yield f"{name}: {decider['unread']:.1%} of its verdicts could not be read and are left out."
    for pair in figures["agreement"]:
        kappa = f", kappa {pair['kappa']['mean']:.2f}" if pair["kappa"] else ""
        names = " and ".join(pair["deciders"])
        yield f"On {_MEASURED[pair['measure']]}, {names} differ in {_percent(pair['differ'])} of replies{kappa}."
    if figures["combined"]:
        yield f"Where several decide, what they say together ({figures['combined']}) counts for the exit code."


def _percent(share: Mapping[str, Any]) -> str:
    return f"{100 * share['mean']:.0f} %"


def _points(interval: Interval | None) -> str:
    if interval is None:
        return "–"
    ends = f" {interval.format_ends(0, 100)}" if interval.ends else ""
    return f"{100 * interval.mean:+.0f} points{ends}".replace("-", "−")


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
