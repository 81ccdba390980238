"""Findings in sentences: each rests on a test and carries its interval, and what is undecided is said."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, Final, NamedTuple

from rolellm.core.table import Interval
from rolellm.core.text import format_count
from rolellm.judging.result import JudgingResult
from rolellm.judging.verdicts import compute_sign
from rolellm.scoring.score_report import METRICS, ScoreReport
from rolellm.scoring.settings import has_held_out_roles
from rolellm.scoring.statistics.intervals import PairedTest, adjust_p_values, compare_pairs, read_interval

#: Fewer rows than this decide little (our choice).
SMALL: Final = 30
#: A difference is decided below this, after Holm's correction.
LEVEL: Final = 0.05
#: What a higher and a lower score under each metric mean.
_MEANING: Final = {
    "CUS": ("is closer to the role's own replies", "is farther from the role's own replies"),
    "RAW": ("answers general instructions better", "answers general instructions worse"),
    "SPE": ("knows the role better", "knows the role less well"),
}


class _Test(NamedTuple):
    """A paired test of two systems under a metric; ``p`` is adjusted, and ``ends`` are those of the difference."""

    pair: tuple[str, str]
    metric: str
    means: tuple[float, float]
    ends: tuple[float, float] | None
    p: float

    @property
    def sign(self) -> int:
        """1 where the first is ahead, -1 where it is behind, 0 where nothing is decided."""
        return compute_sign(self.means[0] - self.means[1]) if self.p < LEVEL else 0


def describe_scores(reports: Mapping[str, ScoreReport]) -> list[str]:
    """Say what Rouge-L found about one or several systems.

    Args:
        reports: Each system's on the same rows, as `ScoreReport.leading` gives them. Of more than three, all are
            compared with the first.

    Returns:
        Sentences. Of two systems, in what the one is ahead and behind, each with the difference's 95 % interval,
        decided after Holm's correction over all tests; of one, how far it is from floor to reference.
    """
    counts = [metric.n for report in reports.values() for metric in report.metrics.values() if metric and metric.n]
    sentences = []
    if counts and min(counts) < SMALL:
        fewest = format_count(min(counts), "row")
        sentences.append(f"Some figures rest on {fewest} only, too few for more than a first look.")
    if len(reports) == 1:
        ((name, report),) = reports.items()
        return sentences + list(_describe_position(name, report))
    by_pair = _test_pairs(reports)
    tests = [test for each in by_pair.values() for test in each]
    if len(by_pair) > 1 and not any(test.sign for test in tests):
        metrics = [metric for metric in METRICS if any(test.metric == metric for test in tests)]
        return [*sentences, f"{_join(metrics)} tell no two of {_join(list(reports))} apart."]
    for pair, each in by_pair.items():
        sentences += _describe_pair(pair, each)
    return sentences


def describe_gain(reports: Mapping[str, ScoreReport]) -> str:
    """Say in one sentence whether the first of two systems is better than the second.

    Better is ahead in at least one metric and behind in none, decided as by `describe_scores`.
    """
    (tests,), (first, second) = _test_pairs(reports).values(), reports
    rows = min((metric.n for metric in reports[first].metrics.values() if metric and metric.n), default=0)
    ahead, behind = ([test.metric for test in tests if test.sign == sign] for sign in (1, -1))
    if ahead and behind:
        return f"“{first}” is ahead of “{second}” in {_join(ahead)} and behind in {_join(behind)}."
    if ahead:
        return f"“{first}” is better than “{second}”: ahead in {_join(ahead)}, behind in nothing."
    if behind:
        return f"“{first}” is not better than “{second}”: behind in {_join(behind)}."
    few = f"; some figures rest on {format_count(rows, 'held-out row')} only" if rows < SMALL else ""
    return f"“{first}” is not shown to be better than “{second}”{few}."


def describe_standing(reports: Mapping[str, ScoreReport]) -> dict[str, str]:
    """Say of each system in a few words whom it is better than, and whom worse, decided as by `describe_scores`."""
    words: dict[str, list[str]] = {name: [] for name in reports}
    for pair, tests in _test_pairs(reports).items():
        signs = {test.sign for test in tests} - {0}
        for name, rival, sign in ((*pair, 1), (*pair[::-1], -1)):
            kind = ("better than" if sign in signs else "worse than") if len(signs) == 1 else "mixed against"
            words[name].append(f"{kind if signs else 'undecided against'} {rival}")
    return {name: ", ".join(clauses) for name, clauses in words.items()}


def describe_styles(styles: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Say how often each system's replies sound most like their role, next to chance and to the roles' own replies.

    Args:
        styles: What `rolellm.scoring.style.measure_file_style` found.
    """
    sentences = []
    for name, style in styles.items():
        for language, measured in style["languages"].items():
            if "replies" not in measured or (share := read_interval(measured["replies"]["top1"])) is None:
                continue
            meter = read_interval(measured["meter"]["top1"])
            own = "" if meter is None else f", the roles' own replies {100 * meter.mean:.1f} %"
            chance = 100 * measured["meter"]["chance"]
            sentences.append(
                f"{100 * share.mean:.1f} % of {name}'s replies ({language}) sound most like their role "
                f"{share.format_ends(1, 100)}; chance would be {chance:.1f} %{own}."
            )
    return sentences


def describe_character_tests(checked: Mapping[str, Any]) -> str:
    """Say how many of a character's tests passed, and which kinds failed or are unscored."""
    verdicts: dict[str, list[str]] = {}
    for assertion in checked["assertions"]:
        verdicts.setdefault(assertion["name"].partition(":")[0], []).append(assertion["verdict"])
    count = sum(map(len, verdicts.values()))
    words = ""
    for verdict in ("failed", "unscored"):
        counts = {kind: each.count(verdict) for kind, each in verdicts.items()}
        clauses = [f"{kind} {n} of {len(verdicts[kind])}" for kind, n in counts.items() if n]
        words += f"; {verdict}: {', '.join(clauses)}" if clauses else ""
    return f"{checked['counts']['passed']} of {format_count(count, 'character test')} passed{words}."


def _test_pairs(reports: Mapping[str, ScoreReport]) -> dict[tuple[str, str], list[_Test]]:
    """Test every pair under every metric, with Holm's correction over all of them."""
    pairs = [pair for pair in combinations(reports, 2) if len(reports) <= 3 or next(iter(reports)) in pair]
    tests = [test for pair in pairs for metric in METRICS if (test := _compare(pair, reports, metric))]
    adjusted = adjust_p_values([test.p for test in tests])
    tests = [test._replace(p=p) for test, p in zip(tests, adjusted, strict=True)]
    return {pair: [test for test in tests if test.pair == pair] for pair in pairs}


def describe_verdicts(judged: JudgingResult) -> list[str]:
    """Say whom the judges preferred, with intervals; first, whether the figures stand and the judges are fit."""
    sentences = [f"This run is not valid: {problem}." for problem in judged.problems if not judged.valid]
    sentences += [f"{line[:1].upper()}{line[1:]}." for line in judged.certificates]
    if judged.rows < SMALL:
        sentences.append(f"The judges saw {format_count(judged.rows, 'row')} only, too few for more than a first look.")
    for system in judged.models:
        rate = system.measures().get("win_rate")
        if rate is None or system.kind == "canary" or rate.ends is None or system.name == judged.baseline:
            continue
        low, high = rate.ends
        share = f"{system.name} wins {100 * rate.mean:.1f} %, 95 % interval {100 * low:.1f} to {100 * high:.1f} %"
        if low <= 0.5 <= high:
            sentences.append(f"The judges do not tell {system.name} and {judged.baseline} apart ({share}).")
        else:
            preferred = (system.name, judged.baseline) if low > 0.5 else (judged.baseline, system.name)
            sentences.append(f"The judges prefer {preferred[0]} to {preferred[1]} ({share}).")
    return sentences


def _compare(pair: tuple[str, str], reports: Mapping[str, ScoreReport], metric: str) -> _Test | None:
    first, second = ({row.id: row for row in reports[name].scores if row.metric == metric} for name in pair)
    shared = [row for name, row in first.items() if name in second]
    if not shared:
        return None
    values, other_values = ([scores[row.id].value for row in shared] for scores in (first, second))
    test = compare_pairs(values, other_values, [row.question for row in shared], [row.role for row in shared])
    means = (sum(values) / len(shared), sum(other_values) / len(shared))
    return _Test(pair, metric, means, *_select(test, reports[pair[0]].options.config))


def _select(test: PairedTest, config: str | None) -> tuple[tuple[float, float] | None, float]:
    """Return the interval and the p-value that a config leads with: for new roles, where it holds roles out."""
    if has_held_out_roles(config) and test.p_new_roles is not None:
        return test.difference.new_roles, test.p_new_roles
    return test.difference.ends, test.p


def _describe_pair(pair: tuple[str, str], tests: Sequence[_Test]) -> Iterator[str]:
    signs = [test.sign for test in tests]
    lead = -1 if signs.count(-1) > signs.count(1) else 1
    better, worse = pair[::lead]
    gains = [test for test in tests if test.sign == lead]
    losses = [f"{_MEANING[test.metric][1]} {_show(test, lead)}" for test in tests if test.sign == -lead]
    undecided = [test.metric for test in tests if not test.sign]
    if gains:
        first, *more = gains
        clauses = [f"{_MEANING[first.metric][0]} than {worse} {_show(first, lead)}"]
        clauses += [f"{_MEANING[test.metric][0]} {_show(test, lead)}" for test in more]
        yield f"{better} {_join(clauses)}{', but ' if losses else ''}{_join(losses)}."
    if undecided:
        verb = "decides" if len(undecided) == 1 else "decide"
        yield f"Between {better} and {worse}, {_join(undecided)} {verb} nothing."


def _show(test: _Test, lead: int) -> str:
    """Show the means, those of the leading system first, and the ends of their difference."""
    mean, other_mean = test.means[::lead]
    values = f"{test.metric} {mean:.3f} against {other_mean:.3f}"
    if test.ends is None:
        return f"({values})"
    low, high = sorted(lead * end for end in test.ends)
    return f"({values}, difference {low:+.3f} to {high:+.3f})"


def _join(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def _describe_position(name: str, report: ScoreReport) -> Iterator[str]:
    for metric, score in _list_metrics(report):
        text = f"{name}: {metric} {score.mean:.3f} {score.format_ends(3)}".rstrip()
        position = report.scale.position.get(metric) if report.scale else None
        if position is None:
            yield f"{text}."
        elif position.share is None:
            yield f"{text}; the floor “{position.floor}” reaches {position.low:.3f}, a reference {position.high:.3f}."
        elif position.share.low is not None and position.share.low > 0:
            share = f"{100 * position.share.mean:.1f} % of the way"
            yield f"{text}, {share} from the floor “{position.floor}” to a reference."
        else:
            yield f"{text}, not above the floor “{position.floor}” ({position.low:.3f})."


def _list_metrics(report: ScoreReport) -> Iterable[tuple[str, Interval]]:
    return [(metric, score) for metric in METRICS if (score := report.metrics.get(metric)) is not None]
