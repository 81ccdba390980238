"""How often findings claim what is not so: simulated evaluations of two systems with known truths.

    python benchmarks/findings.py [--json] [--runs N] [--questions N]

A score is a mean plus effects of its role, its question and itself, of the sizes that RoleGPT's replies have in the
release (CUS and RAW: Chinese general rows; SPE: English role-specific rows); half of each variance is the system's own.
Residuals are as skewed as real ones. Judges prefer a reply with a chance that differs from role to role and from row to
row; two measures of behavior are tested as `rolellm improve` does. Of the two systems, nothing differs, or the first is
better in CUS and worse in RAW. With instruction generalization, the truth is about the roles at hand, whose effects sum
to 0; with role generalization it is about new roles, and those at hand are drawn at random.

`false` is the share of evaluations with at least one claim against the truth in all findings, `verdict` the same of the
sentence that the page begins with, and `found` the share in which both true differences are claimed.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from common import environment, make_parser, report

from rolellm.core.records import Row, Subset
from rolellm.core.settings import read
from rolellm.judging.records import Comparison, DatasetName, Judgement, System
from rolellm.judging.result import JudgedBy, JudgingResult
from rolellm.judging.settings import JudgingSettings
from rolellm.judging.summary import summarize_judgements
from rolellm.reporting.findings import TOPICS, Evidence, PairTest, compare_values
from rolellm.scoring.score_report import Metric, RowScore, ScoreReport, Summary, summarize_scores
from rolellm.scoring.settings import ScoreOptions, has_held_out_roles

Floats = npt.NDArray[np.float64]
#: Mean score, and deviations of roles, of questions and of what is left.
SIZES: Final[dict[Metric, tuple[float, float, float, float]]] = {
    "CUS": (0.43, 0.049, 0.166, 0.171),
    "RAW": (0.43, 0.049, 0.166, 0.171),
    "SPE": (0.23, 0.019, 0.0, 0.06),
}
#: A residual is a gamma variable of this shape, with skewness 0.8.
SHAPE: Final = 6.0
#: Deviations of a judge's preference: of roles, and of rows.
PREFERENCE: Final = (0.1, 0.2)
EFFECT: Final = 0.2
TRUTHS: Final[dict[str, dict[str, int]]] = {"no effect": {}, "one up, one down": {"CUS": 1, "RAW": -1}}
CONFIGS: Final = {
    "these roles": "instruction-generalization-eng",
    "new roles": "role-generalization-eng",
}
PAIR: Final = ("after", "before")
BASELINE: Final = "rolegpt"
SYSTEMS: Final = (System(BASELINE, "baseline"), *map(System, PAIR))
JUDGES: Final = [JudgedBy("judge", certificate="fit (simulated)")]
GOAL: Final = 0.06


class Evaluation:
    """One simulated evaluation.

    Args:
        seed: What is drawn depends on.
        roles: How many roles.
        questions: General questions, and role-specific ones a role.
        config: The config that its rows are of.
    """

    def __init__(self, seed: tuple[int, ...], roles: int, questions: int, config: str) -> None:
        self.draw = np.random.default_rng(seed)
        self.roles, self.questions, self.config = roles, questions, config
        subsets: tuple[Subset, Subset] = ("general", "role_specific")
        self.rows = [
            Row(f"{subset}-{role}-{number}", f"Role {role}", "en", subset, self._ask(subset, role, number), ("None.",))
            for subset, role, number in product(subsets, range(roles), range(questions))
        ]

    def _ask(self, subset: Subset, role: int, number: int) -> str:
        return f"general {number}" if subset == "general" else f"{number} of {role}"

    def draw_role_effects(self, size: float) -> Floats:
        """Draw effects of roles; of roles that are all there is, they sum to 0."""
        effects = self.draw.normal(0, size, self.roles)
        return effects if has_held_out_roles(self.config) else effects - effects.mean()

    def score(self, truth: dict[str, int]) -> dict[str, ScoreReport]:
        """Score both systems on all rows."""
        scores: dict[str, list[RowScore]] = {name: [] for name in PAIR}
        for metric, (mean, role_size, question_size, size) in SIZES.items():
            subset = "role_specific" if metric == "SPE" else "general"
            rows = [row for row in self.rows if row.subset == subset]
            role = np.arange(len(rows)) // self.questions
            question = np.arange(len(rows)) % self.questions
            shared = self._draw_row_effects(role, question, role_size, question_size, size)
            for name in PAIR:
                own = self._draw_row_effects(role, question, role_size, question_size, size)
                gain = EFFECT * truth.get(metric, 0) if name == PAIR[0] else 0.0
                values = mean + gain + (shared + own) / np.sqrt(2)
                scores[name] += [
                    RowScore(row.id, row.role, "en", subset, None, row.question, metric, value, value, value, value, 0)
                    for row, value in zip(rows, values.tolist(), strict=True)
                ]
        return {name: self._report(tuple(of_system)) for name, of_system in scores.items()}

    def _draw_row_effects(self, role: npt.NDArray[np.int64], question: npt.NDArray[np.int64], *sizes: float) -> Floats:
        role_size, question_size, size = sizes
        residuals = (self.draw.gamma(SHAPE, size=len(role)) - SHAPE) / np.sqrt(SHAPE)
        effects = self.draw_role_effects(role_size)[role] + size * residuals
        return np.asarray(effects + self.draw.normal(0, question_size, self.questions)[question])

    def _report(self, scores: tuple[RowScore, ...]) -> ScoreReport:
        options = ScoreOptions(config=self.config)
        by_role: dict[str, Summary] = {score.role: {} for score in scores}
        return ScoreReport(options, summarize_scores(scores), by_role=by_role, scores=scores).leading

    def judge(self) -> JudgingResult:
        """Judge both systems against a baseline, each row in both orders; nobody is better."""
        role_size, row_size = PREFERENCE
        rows = [row for row in self.rows if row.subset == "role_specific"]
        role = np.arange(len(rows)) // self.questions
        judgements = []
        for name in PAIR:
            chances = 0.5 + self.draw_role_effects(role_size)[role] + self.draw.uniform(-row_size, row_size, len(rows))
            for order in ((name, BASELINE), (BASELINE, name)):
                for row, is_won in zip(rows, self.draw.uniform(size=len(rows)) < chances, strict=True):
                    ranks = (1.0, 2.0) if is_won == (order[0] == name) else (2.0, 1.0)
                    judgements.append(Judgement(row.id, "judge", "pairwise", order, ranks, ("", "")))
        lengths = self.draw.integers(50, 150, (len(SYSTEMS), len(rows))).tolist()
        answers = {
            system.name: {row.id: "x" * length for row, length in zip(rows, of_system, strict=True)}
            for system, of_system in zip(SYSTEMS, lengths, strict=True)
        }
        settings = read(JudgingSettings, {})
        comparison = Comparison(rows, list(SYSTEMS), answers)
        return summarize_judgements(comparison, judgements, JUDGES, settings, DatasetName(self.config)).leading

    def test_behavior(self) -> Iterator[PairTest]:
        """Test what no system differs in, as `rolellm improve` does."""
        count = len(self.rows)
        clusters = ([row.question for row in self.rows], [row.role for row in self.rows])
        breaks = (self.draw.uniform(size=(2, count)) < 0.05).astype(float).tolist()
        role = np.asarray([int(row.role.removeprefix("Role ")) for row in self.rows])
        words = self.draw.lognormal(4, 0.6, (2, count))
        words += np.asarray([self.draw_role_effects(10)[role] for _ in PAIR])
        for name, (after, before) in {"breaks": breaks, "words": words.tolist()}.items():
            yield compare_values(PAIR, name, (after, before), clusters, self.config)


def find_claims(tests: list[PairTest], truth: dict[str, int]) -> tuple[bool, bool]:
    """Tell whether any claim is false, and whether all true differences are claimed."""
    is_false, claimed = False, set()
    for test in tests:
        expected = truth.get(test.measure, 0) if test.pair == PAIR else 0
        is_false |= test.sign not in (0, expected)
        if test.sign and test.sign == expected:
            claimed.add(test.measure)
    return is_false, claimed == set(truth)


def list_claims(evidence: Evidence) -> list[PairTest]:
    """List the tests of the answer's topics, whose claims its verdict makes."""
    verdict = evidence.answer().verdict
    return [test for test in evidence.tests if test.pair == PAIR and TOPICS.get(test.measure, "\n") in verdict]


def simulate(roles: int, config: str, truth_name: str, runs: int, questions: int) -> dict[str, float]:
    """Rates over so many evaluations."""
    truth = TRUTHS[truth_name]
    counts = np.zeros(3)
    for run in range(runs):
        seed = (run, roles, list(CONFIGS.values()).index(config), list(TRUTHS).index(truth_name))
        evaluation = Evaluation(seed, roles, questions, config)
        reports = evaluation.score(truth)
        evidence = Evidence(reports, evaluation.judge(), list(evaluation.test_behavior()))
        verdict_tests = list_claims(evidence)
        counts += [*find_claims(evidence.tests, truth), find_claims(verdict_tests, truth)[0]]
    false, found, verdict = (counts / runs).tolist()
    rates = {"false": false, "verdict": verdict}
    return rates | {"found": found} if truth else rates


def main() -> None:
    """Simulate, and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="evaluations of each kind (default: %(default)s)")
    parser.add_argument("--questions", type=int, default=20, help="of each kind and role (default: %(default)s)")
    arguments = parser.parse_args()
    figures: dict[str, Any] = {}
    for (scope, config), roles, truth in product(CONFIGS.items(), (3, 10), TRUTHS):
        rates = simulate(roles, config, truth, arguments.runs, arguments.questions)
        figures |= {f"{scope}, {roles} roles, {truth}: {name}": round(rate, 3) for name, rate in rates.items()}
    result = {"ratios": {}, "figures": figures, "n": {"runs": arguments.runs}, **environment("numpy", "scipy")}
    report("findings", result, [f"goal: false at most {GOAL}"], arguments.json)


if __name__ == "__main__":
    main()
