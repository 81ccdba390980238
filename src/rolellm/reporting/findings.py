"""Findings in sentences: each rests on a test and carries its interval, and what is undecided is said.

All claims of one set of findings are decided together, after Holm's correction: over metrics, systems, verdicts of
judges, and whatever else was tested. Each says for which roles it holds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from statistics import fmean
from typing import Final, NamedTuple

from rolellm.core.sanitize import label
from rolellm.core.table import Interval
from rolellm.core.text import format_count
from rolellm.judging.result import JudgingResult
from rolellm.judging.summary import is_shown_fit
from rolellm.judging.verdicts import compute_sign
from rolellm.scoring.score_report import LIKENESS, METRICS, ScoreReport
from rolellm.scoring.settings import has_held_out_roles
from rolellm.scoring.statistics.intervals import DECIDED, adjust_p_values, compare_pairs, take_new_roles
from rolellm.scoring.style import StyleResult

#: Fewer rows are a first look only, and no judge's verdict is said of them. With 21 rows of each measure, 5.2 % of
#: simulated evaluations made a false claim at most (``benchmarks/findings.py --questions 7 --runs 400``).
LEAST_ROWS: Final = 20
#: With fewer held-out roles than this, Student's t has few degrees of freedom, and only huge differences are decided.
FEW_ROLES: Final = 5
#: The judges' measure.
WINS: Final = "win rate"
#: Measures in an answer: the judge's first.
TOPICS: Final = {WINS: "judge", "CUS": "style", "RAW": "accuracy", "SPE": "knowledge"}
#: The measure of how likely a model finds what was said: its loss per token, with the other sign.
LIKELIHOOD: Final = "log-likelihood per token"
_FLOOR: Final = "the highest floor"
#: The name of a system that needs none.
THIS: Final = "This model"
#: Measures in the line of evidence.
_MOST_RANGES: Final = 2
#: Columns of a system's name in an answer.
_NAME: Final = 24


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
        return compute_sign(self.difference.mean) if self.p < DECIDED else 0

    @property
    def ends(self) -> str:
        """The measure with the ends of its difference, and n."""
        return f"{self.measure} {self._format_difference()}"

    def describe(self, lead: int = 1) -> str:
        """Return both means and the difference; with -1, the second system's first."""
        form = "{:.1%}" if self.measure == WINS else "{:.3f}"
        mean, rival_mean = map(form.format, self.means[::lead])
        means = f"{mean} against {rival_mean}".replace("%", " %")
        return f"{means} ({self._format_difference(lead)})"

    def _format_difference(self, lead: int = 1) -> str:
        count = f"n = {self.difference.n:,}"
        if self.difference.ends is None:
            return count
        low, high = sorted(lead * end for end in self.difference.ends)
        if self.measure == WINS:
            return f"{100 * low:+.1f} to {100 * high:+.1f} points, {count}"
        return f"{low:+.3f} to {high:+.3f}, {count}"


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
    most = 1.0 if measure in TOPICS else math.inf
    test = compare_pairs(*values, *clusters, most=most)
    first, second = values
    means = (fmean(first), fmean(second))
    difference, p = test.difference, test.p
    wide = take_new_roles(difference) if has_held_out_roles(config) else None
    if wide is not None and test.p_new_roles is not None:
        difference, p = wide, test.p_new_roles
    scope = _name_roles(difference, len(set(clusters[1])))
    return PairTest(pair, measure, means, difference, p, scope)


def _name_roles(interval: Interval, count: int) -> str:
    if "by role" in interval.method:
        return "for new roles"
    return "for this role" if count == 1 else f"for these {count} roles"


@dataclass(frozen=True, slots=True)
class LeadingAnswer:
    """The sentences that a reader of results came for.

    Attributes:
        verdict: Which of one's own systems is better, and in what; at most fifteen words where names are one word.
        evidence: By how much, how sure and for whom; and what makes it less sure.
        undecided: What is not decided, in sentences.
        failure: Where the leading system fails its role, with a reply.
        lead: The system of the failure: ahead in most, or the first.
    """

    verdict: str
    evidence: str = ""
    undecided: tuple[str, ...] = ()
    failure: str = ""
    lead: str = ""

    @property
    def details(self) -> list[str]:
        """The undecided, and where a system fails."""
        return [*self.undecided, *filter(None, [self.failure])]

    @property
    def sentences(self) -> list[str]:
        """All of it, the verdict first."""
        return [self.verdict, *filter(None, [self.evidence]), *self.details]


@dataclass(frozen=True)
class Evidence:
    """The results that one set of findings rests on.

    Attributes:
        reports: Each system's Rouge-L on the same rows, as `ScoreReport.leading` gives it. Of more than three systems,
            all are compared with the first.
        judged: What judges found, as `JudgingResult.leading` gives it.
        changes: Tests of other measures, whose claims are in the set too.
        baselines: The systems that are not one's own.
    """

    reports: Mapping[str, ScoreReport]
    judged: JudgingResult | None = None
    changes: Sequence[PairTest] = ()
    baselines: Collection[str] = ()

    @cached_property
    def topics(self) -> Mapping[str, str]:
        """The subjects of measures in words: replies of one's own dialogues are compared with what was said."""
        has_dialogues = any(report.has_dialogues for report in self.reports.values())
        own = {"CUS": LIKENESS, LIKELIHOOD: "likelihood of what was said"}
        return TOPICS | own if has_dialogues else TOPICS

    @cached_property
    def tests(self) -> list[PairTest]:
        """All tests, with p adjusted by Holm over all of them."""
        names = list(self.reports)
        tests: list[PairTest] = []
        for pair in combinations(names, 2):
            if len(names) <= 3 or names[0] in pair:
                compared = [_compare_scores(pair, self.reports, metric) for metric in METRICS]
                tests += filter(None, compared)
        tests += [*self._list_positions(), *self._list_verdicts(), *self.changes]
        adjusted = adjust_p_values([test.p for test in tests])
        return [test._replace(p=p) for test, p in zip(tests, adjusted, strict=True)]

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
        roles = len(self.judged.list_groups("by_role"))
        rates = {}
        for model in self.judged.models:
            rate = model.measures()["win_rate"]
            # The baseline is even with itself.
            rates[model.name] = rate.mean if rate else 0.5
        for test in self.judged.tests:
            difference = test.difference
            if test.measure != "win_rate" or difference is None or difference.n < LEAST_ROWS:
                continue
            pair = (test.a, test.b)
            p = 1.0 if test.p is None else test.p
            means = (rates.get(test.a, 0.5), rates.get(test.b, 0.5))
            scope = _name_roles(difference, roles)
            yield PairTest(pair, WINS, means, difference, p, scope)

    @property
    def own(self) -> list[str]:
        """One's own systems."""
        names = dict.fromkeys(self.reports)
        if self.judged:
            judged = [model.name for model in self.judged.models if model.kind == "model"]
            names |= dict.fromkeys(judged)
        return [name for name in names if name not in self.baselines]

    def answer(self) -> LeadingAnswer:
        """Say which of one's own systems is better: than each other one, else than the baselines or the floor.

        A system is ahead in a measure where its tests against all of its rivals are decided for it.
        """
        rivals, tests = self._select_rivals()
        winners: dict[str, str] = {}
        ranges: list[str] = []
        open_ranges: list[str] = []
        leaders: list[str] = []
        for measure, topic in self.topics.items():
            tests_of_measure = [test for test in tests if test.measure == measure]
            beaten = _list_beaten(rivals, tests_of_measure)
            leader = max(beaten, key=lambda name: len(beaten[name]), default="")
            losers = beaten.get(leader, [])
            if losers:
                leaders.append(leader)
            if losers and len(losers) == len(rivals) - 1:
                winners[measure] = leader
                ranges.append(f"{topic}, {_describe_lead(leader, tests_of_measure)}")
            elif losers:
                open_ranges.append(f"{topic}, where {_quote(leader)} is ahead of {_join(losers)}")
            elif len(rivals) > 2 and tests_of_measure:
                open_ranges.append(topic)
            else:
                for test in tests_of_measure:
                    open_ranges.append(f"{topic}, {_join(test.pair)} {test.describe()}")
        evidence = []
        if ranges:
            scope = tests[0].scope.capitalize()
            details = "; ".join(ranges[:_MOST_RANGES])
            evidence.append(f"{scope}: {details}.")
        evidence += [*self._explain_rates(tests), *self._describe_training()]
        evidence += [*self._describe_size(), *self._describe_silence()]
        undecided = [f"Not decided: {'; '.join(open_ranges)}."] if open_ranges else []
        verdict = "Nothing here decides which system is better."
        if tests:
            verdict = _describe_winners(winners, rivals, self.topics)
        lead = max(self.own, key=leaders.count, default="")
        return LeadingAnswer(verdict, " ".join(evidence), tuple(undecided), lead=lead)

    def _select_rivals(self) -> tuple[list[str], list[PairTest]]:
        """Select the systems to compare, and the tests of every two of them."""
        own = self.own
        is_alone = len(own) == 1
        if is_alone and not self.judged and not self.baselines:
            pair = (own[0], _FLOOR)
            tests = [test._replace(pair=pair) for test in self.tests]
            return [*pair], tests
        rivals = [*own, *self.baselines] if is_alone else own
        tests = [test for test in self.tests if test.measure in self.topics]
        return rivals, [test for test in tests if {*test.pair} <= {*rivals}]

    def describe_pairs(self) -> list[str]:
        """Say what was found about every two systems, one's own first: what is decided, and what is not.

        What is open between the only two that the answer compares, it says itself.
        """
        rivals, _ = self._select_rivals()
        by_pair: dict[tuple[str, str], list[PairTest]] = {}
        for test in self.tests:
            if test.measure in self.topics:
                by_pair.setdefault(test.pair, []).append(test)
        count = format_count(len(self.tests), "test")
        names = {"CUS": "Rouge-L"} if LIKELIHOOD in self.topics else {}
        verbs = {1: "ahead in", -1: "behind in", 0: f"not decided, corrected for {count}:"}
        sentences = []
        for pair in sorted(by_pair, key=lambda pair: not {*pair} <= {*self.own}):
            tests = by_pair[pair]
            if {*pair} == {*rivals}:
                tests = [test for test in tests if test.sign]
            clauses = []
            for sign, words in verbs.items():
                matches = [test for test in tests if test.sign == sign]
                ranges = [f"{names.get(test.measure, test.measure)} {test.describe()}" for test in matches]
                if ranges:
                    clauses.append(f"{words} {_join(ranges)}")
            if clauses:
                subject = f"{' against '.join(pair)} {tests[0].scope}"
                sentences.append(f"{subject}: {'; '.join(clauses)}.")
        return sentences

    def _describe_training(self) -> Iterator[str]:
        """Say which systems were trained on what the config promises to be new."""
        for name, report in self.reports.items():
            contamination = report.contamination or {}
            if contamination.get("contaminated"):
                rows = "{held_out} of {contaminated:,} of {rows:,} rows".format(**contamination)
                yield f"{_quote(name)} was trained on the {rows}: there, its scores show what it memorized."

    def _describe_size(self) -> Iterator[str]:
        """Say where there are too few rows or held-out roles."""
        counts = []
        role_counts = []
        config = None
        for report in self.reports.values():
            scores = filter(None, report.metrics.values())
            counts += [score.n for score in scores if score.n]
            role_counts.append(len(report.by_role) or FEW_ROLES)
            config = report.options.config
        if counts and min(counts) < LEAST_ROWS:
            fewest = format_count(min(counts), "row")
            yield f"Some figures rest on {fewest} only, too few for more than a first look."
        if has_held_out_roles(config) and min(role_counts) < FEW_ROLES:
            held_out = format_count(min(role_counts), "role")
            yield f"Only {held_out} held out: next to nothing can be decided about new roles."

    def _explain_rates(self, tests: Sequence[PairTest]) -> Iterator[str]:
        """Say what win rates are against."""
        measures = {test.measure for test in tests}
        if self.judged and WINS in measures:
            yield f"Win rates are against {_quote(str(self.judged.baseline))}, whose own is 50 %."

    def _describe_silence(self) -> Iterator[str]:
        """Say why judges' verdicts are not said."""
        judged = self.judged
        if judged is None:
            return
        if judged.rows < LEAST_ROWS:
            rows = format_count(judged.rows, "row")
            yield f"The judges saw {rows} only, too few for a verdict ({LEAST_ROWS} or more)."
        elif not is_shown_fit(judged):
            yield "No verdict is said: the judges are not shown to be fit."

    def describe_judges(self) -> list[str]:
        """Say whether the judges' figures stand."""
        judged = self.judged
        if judged is None:
            return []
        problems = () if judged.valid else judged.problems
        sentences = [f"This run is not valid: {problem}." for problem in problems]
        for line in judged.certificates:
            sentences.append(f"{line[:1].upper()}{line[1:]}.")
        return sentences


def _list_beaten(rivals: Sequence[str], tests: Sequence[PairTest]) -> dict[str, list[str]]:
    """List the rivals that each system is ahead of."""
    beaten: dict[str, list[str]] = {name: [] for name in rivals}
    for test in tests:
        if test.sign:
            winner, loser = test.pair[:: test.sign]
            beaten[winner].append(loser)
    return beaten


def _describe_lead(winner: str, tests: Sequence[PairTest]) -> str:
    """Say by how much a system is ahead of its closest rival."""
    won = [test for test in tests if winner in test.pair]
    closest = min(won, key=lambda test: abs(test.difference.mean))
    lead = 1 if closest.pair[0] == winner else -1
    return f"{_quote(winner)} {closest.describe(lead)}"


def _quote(name: str) -> str:
    """Return a name as sentences have it: one of several words in quotes."""
    line = label(name, _NAME)
    if name in (_FLOOR, THIS):
        return line
    return f"“{line}”" if " " in line else line


def _describe_winners(winners: Mapping[str, str], rivals: Sequence[str], words: Mapping[str, str]) -> str:
    names = {name: _quote(name) for name in rivals}
    topics: dict[str, list[str]] = {}
    for measure, winner in winners.items():
        if measure != WINS:
            topics.setdefault(winner, []).append(words[measure])
    if _FLOOR in names:
        return f"{names[rivals[0]]} is {_describe_floor(topics)}."
    if not winners and len(rivals) == 2:
        return f"No difference between {_join(list(names.values()))} is shown."
    if not winners:
        return f"None of {len(rivals)} systems is shown to be ahead of all others."
    preferred = winners.get(WINS)
    if preferred and not topics:
        return f"The judge prefers {names[preferred]} to {_name_losers(preferred, names)}."
    clauses: list[str] = []
    for winner, won in topics.items():
        verb = "" if clauses else " is ahead"
        losers = "" if clauses or preferred else f" of {_name_losers(winner, names)}"
        subject = names[winner]
        if winner == preferred and not clauses:
            subject = "it"
        clauses.append(f"{subject}{verb}{losers} in {_join(won)}")
    preference = f"The judge prefers {names[preferred]}; " if preferred else ""
    return f"{preference}{', '.join(clauses)}."


def _describe_floor(topics: Mapping[str, Sequence[str]]) -> str:
    """Say in what a system is above the highest floor, and in what below it."""
    clauses: list[str] = []
    for winner, won in topics.items():
        side = "below" if winner == _FLOOR else "above"
        floor = "it" if clauses else _FLOOR
        clauses.append(f"{side} {floor} in {_join(won)}")
    return ", and ".join(clauses) or f"not shown to be above {_FLOOR}"


def _name_losers(winner: str, names: Mapping[str, str]) -> str:
    losers = [name for name in names if name != winner]
    return names[losers[0]] if len(losers) == 1 else "all others"


def describe_styles(styles: Mapping[str, StyleResult]) -> list[str]:
    """Say how often each system's replies sound most like their role, next to chance and to the roles' own replies."""
    sentences = []
    for name, result in styles.items():
        for language, style in result.leading.items():
            if style.replies is None or style.replies.top1 is None:
                continue
            share = _show_share(style.replies.top1)
            text = f"Of {name}'s replies ({language}), {share} sound most like their role"
            text += f"; chance would be {100 * style.meter.chance:.1f} %"
            if style.meter.top1:
                text += f", the roles' own replies {_show_share(style.meter.top1)}"
            sentences.append(f"{text}.")
    return sentences


def _compare_scores(pair: tuple[str, str], reports: Mapping[str, ScoreReport], metric: str) -> PairTest | None:
    first, second = (reports[name] for name in pair)
    own = [row for row in first.scores if row.metric == metric]
    rivals = {row.id: row.value for row in second.scores if row.metric == metric}
    shared = [row for row in own if row.id in rivals]
    if not shared:
        return None
    values = [row.value for row in shared]
    rival_values = [rivals[row.id] for row in shared]
    questions = [row.question for row in shared]
    roles = [row.role for row in shared]
    config = first.options.config
    return compare_values(pair, metric, (values, rival_values), (questions, roles), config)


def _show_share(share: Interval) -> str:
    ends = share.format_ends(1, 100)
    return f"{100 * share.mean:.1f} % {ends} (n = {share.n:,})"


def _join(words: Sequence[str]) -> str:
    *head, last = words
    return f"{', '.join(head)} and {last}" if head else last
