"""Findings in sentences: each rests on a test and carries its interval, and what is undecided is said.

All claims of one set of findings are decided together, after Holm's correction: over metrics, systems, verdicts of
judges, and whatever else was tested. Each says for which roles it holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Final, NamedTuple

from rolellm.core.table import Interval
from rolellm.core.text import format_count
from rolellm.judging.result import JudgingResult
from rolellm.judging.summary import is_shown_fit
from rolellm.judging.verdicts import compute_sign
from rolellm.scoring.score_report import METRICS, ScoreReport
from rolellm.scoring.settings import has_held_out_roles
from rolellm.scoring.statistics.intervals import (
    adjust_p_values,
    compare_pairs,
    take_new_roles,
)
from rolellm.scoring.style import StyleResult

#: Fewer rows than this decide little (our choice).
SMALL: Final = 30
#: With fewer rows than this, judges' verdicts are not said (our choice).
LEAST_VERDICTS: Final = 20
#: With fewer held-out roles than this, Student's t has few degrees of freedom, and only huge differences are decided.
FEW_ROLES: Final = 5
#: A difference is decided below this, after Holm's correction.
LEVEL: Final = 0.05
#: What a higher and a lower score under each metric mean.
_MEANING: Final = {
    "CUS": ("is closer to the role's own replies", "is farther from the role's own replies"),
    "RAW": ("answers general instructions better", "answers general instructions worse"),
    "SPE": ("knows the role better", "knows the role less well"),
}
_WINS: Final = "win rate"


class PairTest(NamedTuple):
    """A paired test of two systems.

    Attributes:
        pair: The systems; or a system and the floor that it is held against.
        measure: What is compared.
        means: That of each.
        difference: The first's minus the second's, with the one interval that counts.
        p: Of no difference; in `Evidence.tests`, adjusted.
        scope: The roles that it is about, in words.
    """

    pair: tuple[str, str]
    measure: str
    means: tuple[float, float]
    difference: Interval
    p: float
    scope: str

    @property
    def sign(self) -> int:
        """1 where the first is ahead, -1 where it is behind, 0 where nothing is decided."""
        return compute_sign(self.difference.mean) if self.p < LEVEL else 0

    @property
    def ends(self) -> str:
        """The measure with the ends of its difference, and n."""
        count = f", n = {self.difference.n:,}"
        if self.difference.ends is None:
            return f"{self.measure}{count}"
        low, high = self.difference.ends
        return f"{self.measure} {low:+.3f} to {high:+.3f}{count}"


def compare_values(
    pair: tuple[str, str],
    measure: str,
    values: tuple[Sequence[float], Sequence[float]],
    clusters: tuple[Sequence[str], Sequence[str]],
    config: str | None,
) -> PairTest:
    """Test two systems on the same rows: for new roles where the config holds roles out, else for these.

    Args:
        pair: The systems.
        measure: What is compared.
        values: Those of each, at least one.
        clusters: The question, and the role, of each row.
        config: The rows' config.
    """
    test = compare_pairs(*values, *clusters)
    first, second = (sum(of_system) / len(of_system) for of_system in values)
    difference, p = test.difference, test.p
    wide = take_new_roles(difference) if has_held_out_roles(config) else None
    if wide is not None and test.p_new_roles is not None:
        difference, p = wide, test.p_new_roles
    return PairTest(pair, measure, (first, second), difference, p, _name_roles(difference, len(set(clusters[1]))))


def _name_roles(interval: Interval, count: int) -> str:
    if "by role" in interval.method:
        return "for new roles"
    return "for this role" if count == 1 else f"for these {count} roles"


@dataclass(frozen=True)
class Evidence:
    """What one set of findings rests on.

    Attributes:
        reports: Each system's Rouge-L on the same rows, as `ScoreReport.leading` gives it. Of more than three systems,
            all are compared with the first.
        judged: What judges found, as `JudgingResult.leading` gives it.
        changes: Tests of other measures, whose claims are in the set too.
    """

    reports: Mapping[str, ScoreReport]
    judged: JudgingResult | None = None
    changes: Sequence[PairTest] = ()

    @cached_property
    def tests(self) -> list[PairTest]:
        """All tests, with p adjusted by Holm over all of them."""
        names = list(self.reports)
        tests = []
        for pair in combinations(names, 2):
            if len(names) <= 3 or names[0] in pair:
                tests += [_compare_scores(pair, self.reports, metric) for metric in METRICS]
        all_tests = [*filter(None, tests), *self._list_positions(), *self._list_verdicts(), *self.changes]
        adjusted = adjust_p_values([test.p for test in all_tests])
        return [test._replace(p=p) for test, p in zip(all_tests, adjusted, strict=True)]

    def _list_positions(self) -> Iterator[PairTest]:
        """List the tests of a single system against the highest floor."""
        if len(self.reports) != 1:
            return
        ((name, report),) = self.reports.items()
        positions = report.scale.position if report.scale else {}
        for metric, position in positions.items():
            if position is None or position.gain is None:
                continue
            scope = _name_roles(position.gain, len(report.by_role))
            means = (position.model, position.low)
            yield PairTest((name, position.floor), metric, means, position.gain, position.p, scope)

    def _list_verdicts(self) -> Iterator[PairTest]:
        """List the tests of win rates that may be said: of enough rows, and by judges that are shown to be fit."""
        if self.judged is None or not is_shown_fit(self.judged):
            return
        roles = len(self.judged.list_groups("pairwise", "by_role"))
        rates = {}
        for model in self.judged.models:
            rate = model.measures()["win_rate"]
            # The baseline is even with itself.
            rates[model.name] = rate.mean if rate else 0.5
        for test in self.judged.tests:
            difference = test.difference
            if test.measure != "win_rate" or difference is None or difference.n < LEAST_VERDICTS:
                continue
            p = 1.0 if test.p is None else test.p
            means = (rates.get(test.a, 0.5), rates.get(test.b, 0.5))
            yield PairTest((test.a, test.b), _WINS, means, difference, p, _name_roles(difference, roles))

    def select_tests(self, pair: tuple[str, str], *more: str) -> list[PairTest]:
        """Select the tests of two systems under the metrics of Rouge-L, and more measures."""
        measures = (*METRICS, *more)
        return [test for test in self.tests if test.pair == pair and test.measure in measures]

    def describe_scores(self) -> list[str]:
        """Say what Rouge-L found about one or several systems.

        Returns:
            Sentences. Of two systems, in what the one is ahead and behind, each with the difference's 95 % interval; of
            one, its scores, and whether they are above the highest floor.
        """
        sentences = self._describe_size()
        if len(self.reports) == 1:
            return sentences + list(self._describe_positions())
        tests = [test for test in self.tests if test.measure in METRICS]
        by_pair = {pair: self.select_tests(pair) for pair in dict.fromkeys(test.pair for test in tests)}
        if len(by_pair) > 1 and not any(test.sign for test in tests):
            measures = [metric for metric in METRICS if any(test.measure == metric for test in tests)]
            return [*sentences, f"{_join(measures)} tell no two of {_join(list(self.reports))} apart."]
        for pair, pair_tests in by_pair.items():
            sentences += _describe_pair(pair, pair_tests, len(self.tests))
        return sentences

    def _describe_size(self) -> list[str]:
        """Say where there are too few rows or held-out roles."""
        counts = []
        role_counts = []
        config = None
        for report in self.reports.values():
            counts += [metric.n for metric in report.metrics.values() if metric and metric.n]
            role_counts.append(len(report.by_role) or FEW_ROLES)
            config = report.options.config
        sentences = []
        if counts and min(counts) < SMALL:
            fewest = format_count(min(counts), "row")
            sentences.append(f"Some figures rest on {fewest} only, too few for more than a first look.")
        if has_held_out_roles(config) and min(role_counts) < FEW_ROLES:
            held_out = format_count(min(role_counts), "role")
            sentences.append(f"Only {held_out} held out: next to nothing can be decided about new roles.")
        return sentences

    def _describe_positions(self) -> Iterator[str]:
        ((name, report),) = self.reports.items()
        tests = {test.measure: test for test in self.tests if test.pair[0] == name}
        for metric in METRICS:
            score = report.metrics.get(metric)
            if score is None:
                continue
            details = [score.format_ends(3)] if score.ends else []
            details += [f"n = {score.n:,}"] if score.n else []
            text = f"{name}: {metric} {score.mean:.3f} ({', '.join(details)})"
            if metric in tests:
                test = tests[metric]
                verb = "above" if test.sign > 0 else "not shown to be above"
                text += f", {verb} the floor “{test.pair[1]}” {test.scope} ({_show_difference(test)})"
            yield f"{text}."

    def describe_gain(self) -> str:
        """Say in one sentence whether the first of two systems is ahead of the second, and in what."""
        first, second = list(self.reports)[:2]
        tests = self.select_tests((first, second), _WINS)
        scope = tests[0].scope if tests else ""
        ahead, behind, undecided = ([test for test in tests if test.sign == sign] for sign in (1, -1, 0))
        ends = _join([test.ends for test in ahead]), _join([test.ends for test in behind])
        if ahead and behind:
            return (
                f"“{first}” is ahead of “{second}” {scope} in {_list_measures(ahead)} and behind in "
                f"{_list_measures(behind)} ({ends[0]}; {ends[1]})."
            )
        rows = min((test.difference.n for test in tests), default=0)
        few = f"; some figures rest on {format_count(rows, 'held-out row')} only" if rows < SMALL else ""
        ranges = "; ".join(test.ends for test in undecided)
        if not ahead and not behind:
            ranges = f" ({ranges})" if ranges else ""
            return f"“{first}” is not shown to be ahead of “{second}” or behind it{ranges}{few}."
        if ahead:
            text = f"“{first}” is ahead of “{second}” {scope} in {_list_measures(ahead)} ({ends[0]})"
        else:
            text = f"“{first}” is behind “{second}” {scope} in {_list_measures(behind)} ({ends[1]})"
        if ranges:
            text += f", and {'behind' if ahead else 'ahead'} in nothing that is decided ({ranges})"
        return f"{text}{few}."

    def describe_standing(self) -> dict[str, str]:
        """Say of each system in a few words whom it is ahead of by Rouge-L, and behind whom."""
        words: dict[str, list[str]] = {name: [] for name in self.reports}
        scored = [test.pair for test in self.tests if test.measure in METRICS and test.pair[1] in words]
        for pair in dict.fromkeys(scored):
            first, second = pair
            signs = {test.sign for test in self.select_tests(pair)} - {0}
            if signs == {1} or signs == {-1}:
                ahead, behind = (first, second) if 1 in signs else (second, first)
                words[ahead].append(f"ahead of {behind}")
                words[behind].append(f"behind {ahead}")
                continue
            kind = "mixed against" if signs else "undecided against"
            words[first].append(f"{kind} {second}")
            words[second].append(f"{kind} {first}")
        return {name: ", ".join(clauses) for name, clauses in words.items()}

    def describe_verdicts(self) -> list[str]:
        """Say whom the judges preferred, one's own systems first; before that, whether the figures stand."""
        judged = self.judged
        if judged is None:
            return []
        sentences = [f"This run is not valid: {problem}." for problem in judged.problems if not judged.valid]
        sentences += [f"{line[:1].upper()}{line[1:]}." for line in judged.certificates]
        if judged.rows < LEAST_VERDICTS:
            rows = format_count(judged.rows, "row")
            return [*sentences, f"The judges saw {rows} only, too few for a verdict ({LEAST_VERDICTS} or more)."]
        if not is_shown_fit(judged):
            return [*sentences, "No verdict is said: the judges are not shown to be fit."]
        verdicts = [test for test in self.tests if test.measure == _WINS]
        for test in sorted(verdicts, key=lambda verdict: judged.baseline in verdict.pair):
            first, second = test.pair
            share = self._show_rates(test)
            if test.sign:
                winner, loser = test.pair[:: test.sign]
                sentences.append(f"The judges prefer {winner} to {loser} {test.scope} ({share}).")
            else:
                sentences.append(f"The judges do not tell {first} and {second} apart ({share}).")
        return sentences

    def _show_rates(self, test: PairTest) -> str:
        baseline = self.judged.baseline if self.judged else None
        low, high = (100 * end for end in test.difference.ends or (0.0, 0.0))
        count = f"n = {test.difference.n:,}"
        rates = []
        for name, mean in zip(test.pair, test.means, strict=True):
            rates.append(f"{name} wins {100 * mean:.1f} %")
        if test.pair[1] == baseline:
            return f"{rates[0]}, 95 % interval {50 + low:.1f} to {50 + high:.1f} %, {count}"
        ends = f"difference {low:+.1f} to {high:+.1f} points"
        return f"{' and '.join(rates)} against {baseline}, {ends}, {count}"


def describe_styles(styles: Mapping[str, StyleResult]) -> list[str]:
    """Say how often each system's replies sound most like their role, next to chance and to the roles' own replies."""
    sentences = []
    for name, result in styles.items():
        for language, style in result.leading.items():
            if style.replies is None or style.replies.top1 is None:
                continue
            own = f", the roles' own replies {_show_share(style.meter.top1)}" if style.meter.top1 else ""
            sentences.append(
                f"Of {name}'s replies ({language}), {_show_share(style.replies.top1)} sound most like their role; "
                f"chance would be {100 * style.meter.chance:.1f} %{own}."
            )
    return sentences


def _compare_scores(pair: tuple[str, str], reports: Mapping[str, ScoreReport], metric: str) -> PairTest | None:
    first, second = ([row for row in reports[name].scores if row.metric == metric] for name in pair)
    values_of_second = {row.id: row.value for row in second}
    shared = [row for row in first if row.id in values_of_second]
    if not shared:
        return None
    values = ([row.value for row in shared], [values_of_second[row.id] for row in shared])
    clusters = ([row.question for row in shared], [row.role for row in shared])
    return compare_values(pair, metric, values, clusters, reports[pair[0]].options.config)


def _describe_pair(pair: tuple[str, str], tests: Sequence[PairTest], count: int) -> Iterator[str]:
    signs = [test.sign for test in tests]
    lead = -1 if signs.count(-1) > signs.count(1) else 1
    better, worse = pair[::lead]
    gains = [test for test in tests if test.sign == lead]
    lost = [test for test in tests if test.sign == -lead]
    losses = [f"{_MEANING[test.measure][1]} {_show(test, lead)}" for test in lost]
    undecided = [test for test in tests if not test.sign]
    if gains:
        first, *more = gains
        clauses = [f"{_MEANING[first.measure][0]} than {worse} {first.scope} {_show(first, lead)}"]
        clauses += [f"{_MEANING[test.measure][0]} {_show(test, lead)}" for test in more]
        yield f"{better} {_join(clauses)}{', but ' if losses else ''}{_join(losses)}."
    if undecided:
        verb = "decides" if len(undecided) == 1 else "decide"
        ranges = "; ".join(test.ends for test in undecided)
        corrected = f"corrected for {format_count(count, 'test')}"
        yield f"Between {pair[0]} and {pair[1]}, {_list_measures(undecided)} {verb} nothing, {corrected} ({ranges})."


def _show(test: PairTest, lead: int) -> str:
    """Show the means, those of the leading system first, and the ends of their difference."""
    mean, rival_mean = test.means[::lead]
    return f"({test.measure} {mean:.3f} against {rival_mean:.3f}, {_show_difference(test, lead)})"


def _show_difference(test: PairTest, lead: int = 1) -> str:
    count = f"n = {test.difference.n:,}"
    if test.difference.ends is None:
        return count
    low, high = sorted(lead * end for end in test.difference.ends)
    return f"difference {low:+.3f} to {high:+.3f}, {count}"


def _show_share(share: Interval) -> str:
    return f"{100 * share.mean:.1f} % {share.format_ends(1, 100)} (n = {share.n:,})"


def _list_measures(tests: Sequence[PairTest]) -> str:
    return _join([test.measure for test in tests])


def _join(words: Sequence[str]) -> str:
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"
