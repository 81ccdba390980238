"""The tables of a judging run: the paper's table with all that a sceptic asks for in it, then the details."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rolellm.core.sanitize import visible
from rolellm.report.cells import PERCENT, Cell, Format, ScoreTable, TableRow, interval, number
from rolellm.report.judged.result import Design, Group, Judged, Model
from rolellm.report.published import WIN_RATES, PublishedTable
from rolellm.report.scores import COLUMNS, Estimate, Reports, estimate

PAIRS, LENGTH_FREE, LISTS = "Win rate, %", "LC win rate, %", "Above base, %"
RANK, STRENGTH, CONSISTENT, NAMED = "Avg. rank", "Strength", "Consistency, %", "Name effect, %"

_FORMATS = {
    **dict.fromkeys((PAIRS, LENGTH_FREE, LISTS, CONSISTENT, NAMED), PERCENT),
    RANK: Format(2),
    STRENGTH: Format(2),
}

Column = tuple[str, Callable[[Model], Cell]]


def main_table(title: str, reports: Reports, judged: Judged | None, published: PublishedTable | None) -> ScoreTable:
    """The paper's table in form: published rows, then this run's, each with Rouge-L and what the judges found.

    Args:
        title: What stands above.
        reports: Contestant to its Rouge-L; all under one protocol.
        judged: What the judges found; ``None`` for Rouge-L alone.
        published: Rows to stand beside ours; ``None`` where the protocol is another, or nothing was published.
    """
    models = judged.models if judged else tuple(Model(name, "model", {}) for name in reports)
    columns = [*_rouge_columns(reports), *(_judge_columns() if judged else ())]
    ours = [TableRow((one.name,), tuple(cell(one) for _, cell in columns), one.marks, one.band) for one in models]
    theirs = _published(published, [name for name, _ in columns], ours) if published else []
    kept = [at for at in range(len(columns)) if any(row.scores[at] is not None for row in (*ours, *theirs))]
    rows = [TableRow(row.names, tuple(row.scores[at] for at in kept), row.marks, row.band) for row in (*theirs, *ours)]
    heads = tuple(columns[at][0] for at in kept)
    return ScoreTable(title, ("System",), heads, tuple(rows), formats=_FORMATS, folded=True)


def _rouge_columns(reports: Reports) -> list[Column]:
    def cell(metric: str) -> Callable[[Model], Cell]:
        return lambda model: estimate(reports[model.name], metric) if model.name in reports else None

    return [(metric, cell(metric)) for metric in COLUMNS]


def _judge_columns() -> list[Column]:
    return [
        (PAIRS, lambda model: model.estimate("pairwise", "win_rate")),
        (LENGTH_FREE, lambda model: model.estimate("pairwise", "lc_win_rate")),
        (LISTS, lambda model: model.estimate("listwise", "win_rate")),
        (RANK, lambda model: model.estimate("listwise", "average_rank")),
        (STRENGTH, lambda model: model.strength),
        (CONSISTENT, lambda model: model.estimate("pairwise", "consistency")),
        (NAMED, lambda model: model.estimate("pairwise", "name_effect")),
    ]


def _published(table: PublishedTable, heads: Sequence[str], ours: Sequence[TableRow]) -> list[TableRow]:
    """The paper's rows; its win rates are shares of lists: beside ours of lists, else of pairs, else nowhere."""
    found = {head for at, head in enumerate(heads) if any(row.scores[at] is not None for row in ours)}
    beside = LISTS if LISTS in found else PAIRS
    wins = WIN_RATES.get(table.config, {})
    rows = []
    for row in table.rows:
        known: dict[str, Cell] = {
            name: Estimate(value) for name, value in zip(COLUMNS, (row.cus, row.raw, row.spe, row.avg), strict=True)
        }
        if row.system in wins:
            known |= {beside: Estimate(wins[row.system] / 100)} if beside in found else {}
        rows.append(TableRow((row.system,), tuple(known.get(name) for name in heads), ("published",), "published"))
    return rows


def pairwise_table(judged: Judged) -> ScoreTable | None:
    """Wins, ties and losses of each contestant against the baseline, with the effect of length."""
    columns: list[Column] = [
        (PAIRS, lambda model: model.estimate("pairwise", "win_rate")),
        ("Won, %", lambda model: model.number("pairwise", "wins")),
        ("Tied, %", lambda model: model.number("pairwise", "ties")),
        ("Lost, %", lambda model: model.number("pairwise", "losses")),
        ("Sign test p", lambda model: _p((model.value.get("pairwise") or {}).get("sign_test_p"))),
        (LENGTH_FREE, _length_controlled),
        ("Length effect", lambda model: model.estimate("pairwise", "length_coefficient")),
        ("Characters", lambda model: Estimate.from_json(model.value.get("characters"), "characters")),
    ]
    formats = {name: PERCENT for name, _ in columns if name.endswith("%")}
    formats |= {"Length effect": Format(2), "Characters": Format(0)}
    return _by_model(f"Against {judged.baseline}, in pairs", judged.judged("pairwise"), columns, formats)


def _length_controlled(model: Model) -> Cell:
    problem = (model.value.get("pairwise") or {}).get("length_problem")
    return model.estimate("pairwise", "lc_win_rate") or problem


def listwise_table(judged: Judged) -> ScoreTable | None:
    """Average rank, share of lists above the baseline, and Bradley-Terry strength."""
    columns: list[Column] = [
        (RANK, lambda model: model.estimate("listwise", "average_rank")),
        (LISTS, lambda model: model.estimate("listwise", "win_rate")),
        (STRENGTH, lambda model: model.strength),
    ]
    return _by_model("Ranked in lists", judged.judged("listwise"), columns, _FORMATS)


def _by_model(
    title: str, models: Sequence[Model], columns: Sequence[Column], formats: dict[str, Format]
) -> ScoreTable | None:
    rows = [TableRow((one.name,), tuple(cell(one) for _, cell in columns), one.marks, one.band) for one in models]
    heads = tuple(name for name, _ in columns)
    return ScoreTable(title, ("System",), heads, tuple(rows), formats=formats, folded=True) if rows else None


def group_table(judged: Judged, design: Design, group: Group) -> ScoreTable | None:
    """A line a role, category or judge, a column a contestant: win rate in pairs, average rank in lists."""
    places, models = judged.places(design, group), judged.judged(design)
    what = "Win rate, %" if design == "pairwise" else "Average rank"
    head = {"by_role": "Role", "by_category": "Category", "by_judge": "Judge"}[group]
    names = [one.name for one in models]
    found = [one.group(design, group) for one in models]
    rows = [
        TableRow(
            (place.replace("script_", "script-") if group == "by_category" else place,),
            tuple(of_model.get(place) for of_model in found),
        )
        for place in places
    ]
    formats = dict.fromkeys(names, PERCENT if design == "pairwise" else Format(2))
    title = f"{what} by {head.lower()}"
    return ScoreTable(title, (head,), tuple(names), tuple(rows), formats=formats) if rows else None


def differences_table(judged: Judged) -> ScoreTable | None:
    """Every pair of contestants: the difference, its p, and p after Holm's correction."""
    names = {"win_rate": "Win rate, %", "average_rank": "Average rank"}
    rows = []
    for test in judged.result["tests"]:
        difference = Estimate.from_json(test.get("difference"), "difference")
        scale = 100.0 if test["measure"] == "win_rate" and difference else 1.0
        shown = difference and Estimate(
            difference.mean * scale,
            difference.interval and (difference.interval[0] * scale, difference.interval[1] * scale),
            difference.n,
        )
        adjusted = test.get("p_adjusted")
        verdict = "" if adjusted is None else "differ" if adjusted < 0.05 else "may be equal"
        cells: tuple[Cell, ...] = (shown, _p(test.get("p")), _p(adjusted), verdict or None)
        rows.append(TableRow((names.get(test["measure"], test["measure"]), f"{test['a']} − {test['b']}"), cells))
    heads = ("Difference", "p", "p, Holm", "At 5 %")
    formats = {"Difference": Format(2)}
    table = ScoreTable("Paired tests", ("Measure", "Pair"), heads, tuple(rows), "", formats, heads[3:], folded=True)
    return table if rows else None


def _p(value: float | None) -> Cell:
    """A p value in words: the smallest are known only to be small."""
    return None if value is None else f"{value:.3f}" if value >= 0.001 else "< 0.001"


def attacks_table(judged: Judged) -> ScoreTable | None:
    """Answers that were cut, cleaned or look like an attack on the judge, and how they fared."""
    rows = [
        TableRow(
            (name, kind.replace("_", " ").replace("-", " ")),
            (
                f"{found['answers']:,}",
                f"{found['judgements']:,}",
                Estimate.from_json(found.get("win_rate"), f"{name}, {kind}"),
            ),
        )
        for name, kind, found in judged.attacks()
    ]
    heads = ("Answers", "Judgements", "Win rate, %")
    table = ScoreTable("Odd answers", ("System", "What"), heads, tuple(rows), formats={"Win rate, %": PERCENT})
    return table if rows else None


def bias_table(judged: Judged) -> ScoreTable:
    """The judges' own habits in one table, each beside what an unbiased judge would show."""
    lines: list[tuple[str, str, Estimate | None, Format]] = [
        ("First answer of a pair preferred", "50 %", judged.bias("position", "pairwise", "first_preferred"), PERCENT),
        ("Both orders of a pair agree", "100 %", judged.bias("position", "pairwise", "consistency"), PERCENT),
        ("Rank by place in a list, slope", "0", judged.bias("position", "listwise", "slope"), Format(3)),
        (
            "Longer answer of a pair preferred",
            "50 %, if length is not quality",
            judged.bias("length", "longer_preferred"),
            PERCENT,
        ),
        ("Effect of length, log-odds", "0", judged.bias("length", "coefficient"), Format(3)),
        ("Verdict changes when names are shown", "0 %", judged.bias("name", "changed"), PERCENT),
        ("Agreement of the judges, Fleiss’ kappa", "1", judged.bias("jury", "fleiss_kappa"), Format(3)),
        *(
            (f"Verdict copied from {name}", "0 %", judged.bias("canaries", name, "copied"), PERCENT)
            for name in judged.diagnostic("canaries") or ()
        ),
    ]
    heads = ("Found", "Without bias")
    rows = [TableRow((name,), (_scaled(found, form), ideal)) for name, ideal, found, form in lines]
    return ScoreTable("The judges’ habits", ("What",), heads, tuple(rows), left=heads)


def _scaled(score: Estimate | None, form: Format) -> Cell:
    """One column holds shares, slopes and kappas, so each cell brings its own unit, as text."""
    if score is None:
        return None
    unit = " %" if form.scale == PERCENT.scale else ""
    mean = number(score.mean * form.scale, form.digits)
    count = "" if score.n is None else f", n = {score.n:,}"
    return " ".join(part for part in (f"{mean}{unit}", interval(score, form.digits, form.scale)) if part) + count


def judges_table(judged: Judged) -> ScoreTable:
    """Who judged, with which prompts, and whose family they share."""
    unscored = judged.diagnostic("unscored", "by_judge") or {}
    rows = []
    for judge in judged.judges:
        prompts = judge.get("prompts") or {}
        shown = "; ".join(
            f"{design}: {prompt.get('name')} {prompt.get('version')} ({str(prompt.get('hash'))[:12]})"
            for design, prompt in prompts.items()
        )
        count = unscored.get(judge["name"], 0)
        cells = (
            judge.get("family"),
            ", ".join(judge.get("flagged") or ()) or None,
            f"{_count(count):,}",
            shown or None,
        )
        rows.append(TableRow((str(judge["name"]),), tuple(None if cell is None else visible(cell) for cell in cells)))
    heads = ("Family", "Contestants of its family", "No verdict", "Prompts")
    return ScoreTable("Judges", ("Judge",), heads, tuple(rows), left=heads)


def _count(value: object) -> int:
    """A count, whether the result has it bare or in an object."""
    found = value.get("count", 0) if isinstance(value, dict) else value
    return int(found) if isinstance(found, (int, float)) else 0
