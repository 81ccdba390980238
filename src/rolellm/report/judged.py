"""The tables of a judging run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rolellm.core.sanitize import visible
from rolellm.evaluation.score import ScoreReport, read_metric
from rolellm.evaluation.statistics.bootstrap import Bootstrap, Interval, Sample
from rolellm.judging.aggregate import RowOutcome, clusters_of, estimates
from rolellm.judging.figures import Group, JudgingResult, Pairwise, SystemFigures
from rolellm.judging.types import Comparison, Design
from rolellm.report.published import PublishedTable
from rolellm.report.score_table import COLUMNS, PERCENT, Cell, Format, ScoreTable, TableRow, number

PAIRS, LENGTH_FREE, LISTS = "Win rate, %", "LC win rate, %", "Above base, %"
RANK, STRENGTH, CONSISTENT, NAMED = "Avg. rank", "Strength", "Consistency, %", "Name effect, %"

_FORMATS = {**dict.fromkeys((RANK, STRENGTH, "Length effect", "Difference"), Format(2)), "Characters": Format(0)}

#: Columns by the measures of `SystemFigures` that they show.
_LISTWISE = {RANK: "average_rank", LISTS: "list_win_rate", STRENGTH: "strength"}
_JUDGED = {
    PAIRS: "win_rate",
    LENGTH_FREE: "lc_win_rate",
    LISTS: "list_win_rate",
    RANK: "average_rank",
    STRENGTH: "strength",
    CONSISTENT: "consistency",
    NAMED: "name_effect",
}


def main_table(
    title: str, reports: Mapping[str, ScoreReport], judged: JudgingResult | None, published: PublishedTable | None
) -> ScoreTable:
    """The paper's table in form: published rows, then this run's, each with Rouge-L and what the judges found.

    Args:
        title: The table's heading.
        reports: System to its Rouge-L; all under one protocol.
        judged: What the judges found; ``None`` for Rouge-L alone.
        published: The paper's rows; ``None`` where they do not compare.
    """
    models = judged.models if judged else tuple(SystemFigures(name) for name in reports)
    heads = (*COLUMNS, *_JUDGED) if judged else COLUMNS
    ours = []
    for one in models:
        scores = reports[one.name].metrics if one.name in reports else {}
        cells = [*map(scores.get, COLUMNS), *map(one.measures().get, _JUDGED.values())]
        ours.append(TableRow((one.name,), tuple(cells[: len(heads)]), one.marks, one.band))
    rows = [*(_published(published, heads, ours) if published else []), *ours]
    kept = [at for at in range(len(heads)) if any(row.scores[at] is not None for row in rows)]
    rows = [replace(row, scores=tuple(row.scores[at] for at in kept)) for row in rows]
    return ScoreTable(title, ("System",), tuple(heads[at] for at in kept), tuple(rows), formats=_FORMATS, folded=True)


def _published(table: PublishedTable, heads: Sequence[str], ours: Sequence[TableRow]) -> list[TableRow]:
    """The paper's rows; its win rates are shares of lists: next to ours of lists, else of pairs, else nowhere."""
    found = {head for at, head in enumerate(heads) if any(row.scores[at] is not None for row in ours)}
    beside = LISTS if LISTS in found else PAIRS
    rows = []
    for system, scores in table.rows.items():
        known = dict(zip(COLUMNS, map(Interval, scores), strict=True))
        if system in table.win_rates and beside in found:
            known[beside] = Interval(table.win_rates[system] / 100)
        rows.append(TableRow((system,), tuple(known.get(name) for name in heads), ("published",), "published"))
    return rows


def judged_tables(judged: JudgingResult) -> dict[str, ScoreTable | None]:
    """Every table of a result by a name fit for a file; ``None`` where there is nothing to show."""
    return {
        "pairs": pairwise_table(judged),
        "lists": lists_table(judged),
        "roles-win-rate": group_table(judged, "pairwise", "by_role"),
        "roles-rank": group_table(judged, "listwise", "by_role"),
        "categories-win-rate": group_table(judged, "pairwise", "by_category"),
        "categories-rank": group_table(judged, "listwise", "by_category"),
        "judges-win-rate": group_table(judged, "pairwise", "by_judge"),
        "tests": differences_table(judged),
        "habits": bias_table(judged),
        "attacks": attacks_table(judged),
        "judges": judges_table(judged),
    }


def lists_table(judged: JudgingResult) -> ScoreTable | None:
    """Rank, share of lists above the baseline, and strength of each system."""
    cells = {one.name: tuple(map(one.measures().get, _LISTWISE.values())) for one in judged.judged("listwise")}
    return _by_model("Ranked in lists", judged, tuple(_LISTWISE), cells)


def pairwise_table(judged: JudgingResult) -> ScoreTable | None:
    """Wins, ties and losses of each system against the baseline, with the effect of length."""
    shares = ("Won, %", "Tied, %", "Lost, %")
    heads = (PAIRS, *shares, "Sign test p", LENGTH_FREE, "Length effect", "Characters")
    cells: dict[str, tuple[Cell, ...]] = {}
    for one in judged.judged("pairwise"):
        found = one.pairwise or Pairwise()
        won = (None if share is None else Interval(share) for share in (found.wins, found.ties, found.losses))
        length = (found.lc_win_rate or found.length_problem, found.length_coefficient, one.characters)
        cells[one.name] = (found.win_rate, *won, _p(found.sign_test_p), *length)
    return _by_model(f"Against {judged.baseline}, in pairs", judged, heads, cells)


def _by_model(
    title: str, judged: JudgingResult, heads: tuple[str, ...], cells: Mapping[str, tuple[Cell, ...]]
) -> ScoreTable | None:
    rows = [TableRow((one.name,), cells[one.name], one.marks, one.band) for one in judged.models if one.name in cells]
    return ScoreTable(title, ("System",), heads, tuple(rows), formats=_FORMATS, folded=True) if rows else None


def group_table(judged: JudgingResult, design: Design, group: Group) -> ScoreTable | None:
    """A line a role, category or judge, a column a system: win rate in pairs, average rank in lists."""
    places, models = judged.places(design, group), judged.judged(design)
    what = "Win rate, %" if design == "pairwise" else "Average rank"
    head = {"by_role": "Role", "by_category": "Category", "by_judge": "Judge"}[group]
    found = [one.group(design, group) for one in models]
    shown = {place: place.replace("script_", "script-") if group == "by_category" else place for place in places}
    rows = [TableRow((shown[place],), tuple(of_model.get(place) for of_model in found)) for place in places]
    names = tuple(one.name for one in models)
    formats = dict.fromkeys(names, PERCENT if design == "pairwise" else Format(2))
    return ScoreTable(f"{what} by {head.lower()}", (head,), names, tuple(rows), formats=formats) if rows else None


def differences_table(judged: JudgingResult) -> ScoreTable | None:
    """Every pair of systems: the difference, its p, and p after Holm's correction."""
    names = {"win_rate": "Win rate, %", "average_rank": "Average rank"}
    rows = []
    for test in judged.tests:
        shown, times = test.difference, 100.0 if test.measure == "win_rate" else 1.0
        if shown is not None:
            low, high = (None if end is None else end * times for end in (shown.low, shown.high))
            shown = shown._replace(mean=shown.mean * times, low=low, high=high)
        verdict = None if test.p_adjusted is None else "differ" if test.p_adjusted < 0.05 else "may be equal"
        cells: tuple[Cell, ...] = (shown, _p(test.p), _p(test.p_adjusted), verdict)
        rows.append(TableRow((names.get(test.measure, test.measure), f"{test.a} − {test.b}"), cells))
    heads = ("Difference", "p", "p, Holm", "At 5 %")
    table = ScoreTable("Paired tests", ("Measure", "Pair"), heads, tuple(rows), "", _FORMATS, heads[3:], folded=True)
    return table if rows else None


def _p(value: float | None) -> Cell:
    """A p value in words: the smallest are known only to be small."""
    return None if value is None else f"{value:.3f}" if value >= 0.001 else "< 0.001"


def attacks_table(judged: JudgingResult) -> ScoreTable | None:
    """Answers that were cut, cleaned or look like an attack on the judge, and how they fared."""
    rows = [
        TableRow(
            (name, kind.replace("_", " ").replace("-", " ")),
            (f"{found.answers:,}", f"{found.judgements:,}", found.win_rate),
        )
        for name, kinds in judged.diagnostics.attacks.items()
        for kind, found in kinds.items()
    ]
    heads = ("Answers", "Judgements", "Win rate, %")
    table = ScoreTable("Unusual answers", ("System", "Kind"), heads, tuple(rows))
    return table if rows else None


def bias_table(judged: JudgingResult) -> ScoreTable:
    """The judges' biases in one table, each next to what an unbiased judge would show."""
    found = judged.diagnostics
    pairs, lists, length = found.position.pairwise, found.position.listwise, found.length
    lines: list[tuple[str, str, Interval | None, Format]] = [
        ("First answer of a pair preferred", "50 %", pairs.first_preferred, PERCENT),
        ("Both orders of a pair agree", "100 %", pairs.consistency, PERCENT),
        ("Rank by position in a list, slope", "0", lists.slope, Format(3)),
        ("Longer answer of a pair preferred", "50 %, if length is not quality", length.longer_preferred, PERCENT),
        ("Effect of length, log-odds", "0", length.coefficient, Format(3)),
        ("Verdict changes when names are shown", "0 %", found.name.changed, PERCENT),
        ("Agreement of the judges, Fleiss’ kappa", "1", found.jury.fleiss_kappa, Format(3)),
        *((f"Verdict copied from {name}", "0 %", one.copied, PERCENT) for name, one in found.canaries.items()),
    ]
    heads = ("Found", "Without bias")
    rows = [TableRow((name,), (_scaled(score, form), ideal)) for name, ideal, score, form in lines]
    return ScoreTable("The judges’ biases", ("Measure",), heads, tuple(rows), left=heads)


def _scaled(score: Interval | None, form: Format) -> Cell:
    """One column holds shares, slopes and kappas, so each cell brings its own unit, as text."""
    if score is None:
        return None
    unit = " %" if form == PERCENT else ""
    mean, ends = number(score.mean * form.scale, form.digits), score.brackets(form.digits, form.scale)
    return f"{mean}{unit}" + (f" {ends}" if ends else "") + (f", n = {score.n:,}" if score.n else "")


def judges_table(judged: JudgingResult) -> ScoreTable:
    """Who judged, with which prompts, and whose family they share."""
    rows = []
    for judge in judged.judges:
        prompts = "; ".join(
            f"{design}: {prompt.name} {prompt.version} ({str(prompt.hash)[:12]})"
            for design, prompt in judge.prompts.items()
        )
        count = f"{judged.diagnostics.unscored.by_judge.get(judge.name, 0):,}"
        cells = (judge.family, ", ".join(judge.flagged), count, prompts)
        rows.append(TableRow((judge.name,), tuple(visible(cell) if cell else None for cell in cells)))
    heads = ("Family", "Systems of its family", "No verdict", "Prompts")
    return ScoreTable("Judges", ("Judge",), heads, tuple(rows), left=heads)


_BINS = (
    (0.5, "under half as long"),
    (0.8, "½ to ⅘ as long"),
    (1.25, "about as long"),
    (2.0, "1¼ to 2 times as long"),
    (float("inf"), "over twice as long"),
)
"""Upper ends of the ratio of characters (our choice; the same on both sides of 1), with words for each."""


def win_by_length(
    comparison: Comparison, outcomes: Mapping[str, Mapping[str, RowOutcome]]
) -> list[tuple[str, Interval]]:
    """Mean outcome of pairs by the answer's length over the baseline's, in characters; bins without a pair are absent.

    All models count, canaries do not: their length is their maker's. Intervals by a bootstrap over questions.

    Args:
        comparison: Rows, systems and answers.
        outcomes: Row id to system to outcome.
    """
    baseline = comparison.baseline
    if baseline is None:
        return []
    questions, bins = clusters_of(comparison.rows), defaultdict(list)
    for row, base in comparison.answers[baseline.name].items():
        for name in (one.name for one in comparison.systems if one.kind == "model"):
            outcome, answer = outcomes.get(row, {}).get(name), comparison.answers[name].get(row)
            if answer is not None and outcome is not None and outcome.win is not None:
                bins[_words(len(answer), len(base))].append((outcome.win, questions[row]))
    samples = {words: Sample(*map(list, zip(*found, strict=True))) for words, found in bins.items()}
    found = estimates(samples, Bootstrap(), shares=True)
    return [(words, interval) for _, words in _BINS if (interval := read_metric(found.get(words)))]


def _words(length: int, base: int) -> str:
    """The bin of a ratio; next to an empty answer every other is longer, and two empty ones are as long."""
    ratio = length / base if base else 1.0 if length == 0 else float("inf")
    return next(words for upper, words in _BINS if ratio < upper or upper == float("inf"))
