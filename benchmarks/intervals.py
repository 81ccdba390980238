"""How often 95 % intervals hold the truth, and 5 % tests are wrong: simulations with known truths.

    python benchmarks/intervals.py [--json] [--runs N]

Scores are normal around a worth, verdicts are won with it. Roles are drawn at random (worth 0.5, deviation 0.08), and
have 500 rows: questions of their own, or the same questions for all. In the tests, no model is better, but each role
suits one of the two more (deviation 0.08). For small samples, the rival is the percentile bootstrap over questions.
"""

import argparse
from collections.abc import Callable, Iterator

import numpy as np
from common import environment, report

from rolellm.scoring.statistics.agreement import compute_cohen_kappa
from rolellm.scoring.statistics.intervals import ClusteredSample, Interval, compare_pairs, estimate_mean, estimate_share

ROWS, SPREAD = 500, 0.08
Random = np.random.Generator


def holds(ends: tuple[float, float] | None, truth: float) -> bool:
    """Whether an interval holds the truth; one that is not known holds nothing."""
    return ends is not None and ends[0] <= truth <= ends[1]


def sample_roles(draw: Random, roles: int, *, crossed: bool, share: bool) -> ClusteredSample:
    """Rows of roles that are drawn at random."""
    role = np.arange(ROWS) % roles
    question = np.arange(ROWS) // roles if crossed else np.arange(ROWS)
    worth = 0.5 + draw.normal(0, SPREAD, roles)[role] + draw.normal(0, 0.1, ROWS)[question]
    values = draw.uniform(size=ROWS) < worth if share else worth + draw.normal(0, 0.15, ROWS)
    return ClusteredSample(values.astype(float).tolist(), question.tolist(), role.tolist())


def cover_roles(runs: int) -> Iterator[tuple[str, float]]:
    """Coverage for these roles and for new ones."""
    for share in (False, True):
        for roles in (3, 10):
            for crossed in (False, True):
                held = np.zeros(2)
                for seed in range(runs):
                    sample = sample_roles(np.random.default_rng([seed, roles]), roles, crossed=crossed, share=share)
                    interval = estimate_share(sample) if share else estimate_mean([sample])
                    held += [holds(interval.ends, 0.5), holds(interval.new_roles, 0.5)]
                of = f"{'share' if share else 'mean'}, {roles} roles, {'the same' if crossed else 'own'} questions"
                yield f"{of}: for these roles", held[0] / runs
                yield f"{of}: for new roles", held[1] / runs


def fool_tests(runs: int) -> Iterator[tuple[str, float]]:
    """Tests that find a difference where there is none."""
    for roles in (3, 10):
        wrong = np.zeros(2)
        for seed in range(runs):
            draw = np.random.default_rng([seed, roles])
            role, question = np.arange(ROWS) % roles, np.arange(ROWS) // roles
            gains = draw.normal(0, SPREAD, roles)[role] + draw.normal(0, 0.05, ROWS)[question]
            gains += draw.normal(0, 0.25, ROWS)
            test = compare_pairs(gains.tolist(), [0.0] * ROWS, question.tolist(), role.tolist())
            wrong += [test.p < 0.05, (test.p_new_roles or 0) < 0.05]
        yield f"wrong, {roles} roles that differ: for these roles", wrong[0] / runs
        yield f"wrong, {roles} roles that differ: for new roles", wrong[1] / runs


def fool_small_tests(runs: int) -> Iterator[tuple[str, float]]:
    """Tests of 30 questions, beside a bootstrap of the same differences."""
    kinds: dict[str, Callable[[Random], np.ndarray]] = {
        "scores": lambda draw: draw.beta(2, 6, size=(2, 30)),
        "verdicts": lambda draw: draw.choice([0.0, 0.5, 1.0], p=[0.3, 0.2, 0.5], size=(2, 30)),
    }
    for kind, make in kinds.items():
        wrong = np.zeros(2)
        for seed in range(runs):
            draw = np.random.default_rng(seed)
            first, second = make(draw)
            means = (first - second)[draw.integers(0, 30, size=(1000, 30))].mean(axis=1)
            wrong += [
                compare_pairs(first, second, range(30)).p < 0.05,
                not holds(tuple(np.quantile(means, [0.025, 0.975])), 0),
            ]
        yield f"wrong, {kind} of 30 questions: interval and p", wrong[0] / runs
        yield f"wrong, {kind} of 30 questions: bootstrap", wrong[1] / runs


def cover_shares(runs: int) -> Iterator[tuple[str, float]]:
    """Coverage of rare shares, with one row a question and with up to five that have half of their luck in common."""
    for questions in (20, 100):
        for rate in (0.02, 0.1, 0.5):
            for most in (1, 5):
                held = 0
                for seed in range(runs):
                    draw = np.random.default_rng(seed)
                    sizes = draw.integers(1, most + 1, size=questions)
                    chances = draw.beta(rate, 1 - rate, size=questions) if most > 1 else np.full(questions, rate)
                    hits = (draw.uniform(size=sizes.sum()) < chances.repeat(sizes)).astype(float)
                    keys = np.arange(questions).repeat(sizes)
                    held += holds(estimate_share(ClusteredSample(hits.tolist(), keys.tolist())).ends, rate)
                yield f"share of {rate:.0%}, {questions} questions, up to {most} rows", held / runs


def cover_kappas(runs: int) -> Iterator[tuple[str, float]]:
    """Coverage of kappa, beside the delta method."""
    for items in (20, 100):
        for labels in ((1 / 3, 1 / 3, 1 / 3), (0.9, 0.1)):
            for kappa in (0.4, 0.9):
                held, known = np.zeros(2), 0
                for seed in range(runs):
                    draw = np.random.default_rng(seed)
                    first, guess = draw.choice(len(labels), p=labels, size=(2, items))
                    second = np.where(draw.uniform(size=items) < kappa, first, guess)
                    interval = compute_cohen_kappa(first.tolist(), second.tolist()).estimate(range(items))
                    if interval is not None:
                        known += 1
                        held += [holds(interval.ends, kappa), holds(delta_method(first, second, interval), kappa)]
                of = f"kappa {kappa}, {items} items, {max(labels):.0%} alike"
                yield of, held[0] / known
                yield f"{of}: delta method", held[1] / known


def delta_method(first: np.ndarray, second: np.ndarray, interval: Interval) -> tuple[float, float]:
    """The interval of kappa's linear approximation (Fleiss, Cohen and Everitt, 1969)."""
    shares = [np.bincount(labels, minlength=2) / len(labels) for labels in (first, second)]
    size = max(map(len, shares))
    one, other = (np.pad(of, (0, size - len(of))) for of in shares)
    chance, agreed = one @ other, first == second
    moved = agreed - agreed.mean() - (1 - interval.mean) * (other[first] + one[second] - 2 * chance)
    return estimate_mean(
        [ClusteredSample((interval.mean + moved / (1 - chance)).tolist(), range(len(first)))]
    ).ends or (1, 1)


def main() -> None:
    """Simulate, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--runs", type=int, default=2000, metavar="N", help="(default: %(default)s)")
    arguments = parser.parse_args()
    parts = (cover_roles, fool_tests, fool_small_tests, cover_shares, cover_kappas)
    figures = {name: round(float(share), 3) for part in parts for name, share in part(arguments.runs)}
    result = {"ratios": {}, "figures": figures, "n": {"runs": arguments.runs}, **environment("numpy", "scipy")}
    report("intervals", result, ["goal: new roles 0.95 to 0.99, wrong at most 0.05"], arguments.json)


if __name__ == "__main__":
    main()
