"""How fast judgements become a result: win rates, ranks, intervals, tests and the judge's own biases.

    python benchmarks/judging.py [--json] [--judgements N] [--rows N]

The judgements are made up: four models and a canary against a baseline, as a judge with a taste for the first place and
for length would give them. The first measure is of so many judgements, pairs in both orders and lists in two rotations;
the second of a whole split (33,000 rows of 95 roles, general questions asked of every role) with four models, pairs in
both orders alone. Both begin with the judgements in memory and end with the whole result.

No rival gives all of this, so no ratio is printed. Everything runs in one thread; CPU time stands beside wall time, for
a busy machine changes the first little.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

import numpy as np
from common import environment, make_parser, peak_memory_mb, report

from rolellm.core.records import Row, Subset
from rolellm.core.settings import read
from rolellm.judging.records import Comparison, Design, Judgement, System
from rolellm.judging.result import JudgedBy
from rolellm.judging.settings import JudgingSettings
from rolellm.judging.summary import summarize_judgements

JUDGEMENTS, ROWS = 10_000, 33_000
ROLES = 95
GOAL = 10.0
STRENGTHS = {"Sigma": 1.0, "Tau": 0.4, "Rho": 0.0, "Phi": -0.6}
BASELINE = "base"
JUDGES = [JudgedBy("judge")]


def make_comparison(rows: int, people: list[System]) -> Comparison:
    """Rows of 95 roles; four of five are general questions that all roles share, as in the release."""
    random = np.random.default_rng(0)
    made = []
    for number in range(rows):
        role, general = number % ROLES, number % 5 > 0
        question = f"General question {number // ROLES}?" if general else f"What of {number}?"
        subset: Subset = "general" if general else "role_specific"
        made.append(Row(f"row-{number}", f"Role {role}", "en", subset, question, ("None.",)))
    lengths = np.clip(random.lognormal(5.3, 0.6, (rows, len(people))), 1, 4000).astype(int)
    answers = {
        one.name: {row.id: "x" * int(length) for row, length in zip(made, column, strict=True)}
        for one, column in zip(people, lengths.T, strict=True)
    }
    return Comparison(made, people, answers)


def judge(comparison: Comparison, *, rotations: int) -> list[Judgement]:
    """Pairs in both orders, and lists in so many rotations."""
    random = np.random.default_rng(1)
    people = [one.name for one in comparison.systems]
    found = []
    for row in comparison.rows:
        orders = [order for name in people[:-1] for order in ((name, BASELINE), (BASELINE, name))]
        turned = [people[turn * 3 :] + people[: turn * 3] for turn in range(rotations)]
        for order in [*orders, *map(tuple, turned)]:
            scores = random.gumbel(size=len(order))
            scores += [STRENGTHS.get(name, 0.0) + len(comparison.answers[name][row.id]) / 500 for name in order]
            scores[0] += 0.3
            ranks = (np.argsort(np.argsort(-scores)) + 1.0).tolist()
            design: Design = "pairwise" if len(order) == 2 else "listwise"
            found.append(Judgement(row.id, "judge", design, order, tuple(ranks), tuple("reason" for _ in order)))
    return found


def timed(comparison: Comparison, judgements: list[Judgement]) -> dict[str, float]:
    """Wall and CPU seconds of the whole result."""
    wall, busy = time.perf_counter(), time.process_time()
    summarize_judgements(comparison, judgements, JUDGES, read(JudgingSettings, {}))
    return {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - busy}


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--judgements", type=int, default=JUDGEMENTS, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--rows", type=int, default=ROWS, metavar="N", help="of the split (default: %(default)s)")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    arguments = parse_arguments()
    if min(arguments.judgements, arguments.rows) < 1:
        sys.exit("give 1 judgement and 1 row at least")
    figures: dict[str, Any] = {"load_at_start": os.getloadavg()[0] if hasattr(os, "getloadavg") else None}
    models = [System(name) for name in STRENGTHS]
    canary, base = System("null", "canary"), System(BASELINE, "baseline")
    per_row = 2 * (len(models) + 1) + 2
    few = make_comparison(-(-arguments.judgements // per_row), [*models, canary, base])
    judged = judge(few, rotations=2)[: arguments.judgements]
    figures |= {f"judgements_{name}": value for name, value in timed(few, judged).items()}
    split = make_comparison(arguments.rows, [*models, base])
    all_judged = judge(split, rotations=0)
    figures |= {f"split_{name}": value for name, value in timed(split, all_judged).items()}
    figures["peak_memory_mb"] = peak_memory_mb()
    result = {
        "ratios": {},
        "figures": figures,
        "n": {
            "judgements": len(judged),
            "split_rows": len(split.rows),
            "split_judgements": len(all_judged),
            "split_models": len(models),
        },
        **environment("numpy", "scipy"),
    }
    notes = [f"goal: {JUDGEMENTS:,} judgements in under {GOAL:g} s on one core"]
    report("judging", result, notes, arguments.json)


if __name__ == "__main__":
    main()
