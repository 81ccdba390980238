"""How fast Rouge-L is beside the two packages that define it, and that it gives the same figures.

    python benchmarks/rouge.py [--json] [--pairs N] [--seconds S] [--data-dir RELEASE]

A pair is the released baseline's reply and one reference of the row it answers (English, instruction generalization,
role-specific). Every pair is scored by ours and by both rivals, in turns of a few hundred pairs; a ratio is the median
over the turns, by CPU time of this one process, so that a busy machine does not change it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from common import environment, make_parser, peak_memory_mb
from rich.console import Console
from rich.progress import track
from rich.table import Table

import rolellm
from rolellm.core.jsonl import read_jsonl
from rolellm.scoring.rouge import RougeScore, rouge_l

SUBSET = "rolebench-eng/instruction-generalization/role_specific"
SAMPLE = Path(rolellm.__file__).parent / "data" / "rolebench" / "sample"
GOALS = {"rouge_score": 20, "rouge": 30}
PROTOCOLS = {"rouge_score": "rouge-score", "rouge": "paper"}
TURN = 400
MEMORY_ROWS = 150_000
LOG = Console(stderr=True)

Pair = tuple[str, str]
Triple = tuple[float, float, float]


@dataclass(frozen=True)
class Rival:
    """A package that scores one (prediction, reference) as precision, recall, F1."""

    name: str
    score: Callable[[str, str], Triple]

    def score_all(self, pairs: Sequence[Pair]) -> list[Triple]:
        """A figure for each pair."""
        return [self.score(*pair) for pair in pairs]


def rivals() -> list[Rival]:
    """The two packages, as anyone would call them for Rouge-L alone."""
    # This file bears the name of one of them, and its folder stands first on the path.
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != here]
    package = importlib.import_module("rouge")
    from rouge_score.rouge_scorer import RougeScorer

    google, pypi = RougeScorer(["rougeL"]), package.Rouge(metrics=["rouge-l"])

    def by_google(prediction: str, reference: str) -> Triple:
        score: Triple = google.score(reference, prediction)["rougeL"]
        return score

    def by_pypi(prediction: str, reference: str) -> Triple:
        score = pypi.get_scores(prediction, reference)[0]["rouge-l"]
        return score["p"], score["r"], score["f"]

    return [Rival("rouge_score", by_google), Rival("rouge", by_pypi)]


def load_pairs(data_dir: Path) -> list[Pair]:
    """Every reply of the baseline with every reference of its row, in the release's order."""
    folder = data_dir / SUBSET
    replies = {
        (row["role"], row["question"]): row["generated"][0] for _, row in read_jsonl(folder / "rolegpt_baseline.jsonl")
    }
    return [
        (replies[row["role"], row["question"]], reference)
        for _, row in read_jsonl(folder / "test.jsonl")
        if (row["role"], row["question"]) in replies
        for reference in row["generated"]
    ]


def ours(pairs: Sequence[Pair], protocol: str) -> list[RougeScore]:
    """Score pairs with this library."""
    return rouge_l([a for a, _ in pairs], [b for _, b in pairs], protocol=protocol)


def timed(call: Callable[[], Any], clock: Callable[[], float] = time.process_time) -> tuple[float, Any]:
    """Call, and give the time that took, in seconds, with the result."""
    start = clock()
    result = call()
    return clock() - start, result


def compare(pairs: Sequence[Pair]) -> dict[str, dict[str, float]]:
    """Time ours and the rivals in turns; also the largest difference between any two figures."""
    packages = rivals()
    rounds = repeat(pairs, max(len(pairs), 3 * TURN))
    turns = [rounds[start : start + TURN] for start in range(0, len(rounds), TURN)]
    ratios: dict[str, list[float]] = {name: [] for name in PROTOCOLS}
    costs: dict[str, list[float]] = {name: [] for name in PROTOCOLS}
    errors = dict.fromkeys(PROTOCOLS, 0.0)
    for turn in track(turns, "ours and the rivals, in turns", console=LOG, transient=True):
        for rival in packages:
            protocol = PROTOCOLS[rival.name]
            before, mine = timed(partial(ours, turn, protocol))
            theirs, expected = timed(partial(rival.score_all, turn))
            after, _ = timed(partial(ours, turn, protocol))
            ratios[rival.name].append(2 * theirs / (before + after))
            costs[rival.name].append((before + after) / 2 / len(turn))
            for score, triple in zip(mine, expected, strict=True):
                found = (score.precision, score.recall, score.f1)
                errors[rival.name] = max(errors[rival.name], *(abs(a - b) for a, b in zip(found, triple, strict=True)))
    return {
        name: {
            "ratio": median(ratios[name]),
            "lowest": min(ratios[name]),
            "microseconds": median(costs[name]) * 1e6,
            "error": errors[name],
        }
        for name in PROTOCOLS
    }


def repeat(pairs: Sequence[Pair], count: int) -> list[Pair]:
    """As many pairs as asked for, going round."""
    return [pairs[number % len(pairs)] for number in range(count)]


def linearity(pairs: Sequence[Pair], protocol: str, count: float) -> float:
    """Cost of a pair among eight times as many pairs, over its cost among few: 1 is linear. The median of three."""
    few = repeat(pairs, int(count))
    many = few * 8
    return median(timed(lambda: ours(many, protocol))[0] / timed(lambda: ours(few, protocol))[0] / 8 for _ in range(3))


def peak_mb(protocol: str, data_dir: Path) -> dict[str, float]:
    """Run :func:`measure_memory` in a fresh interpreter."""
    command = [sys.executable, __file__, "--measure-memory", protocol, "--data-dir", str(data_dir)]
    return dict(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def measure_memory(protocol: str, data_dir: Path) -> dict[str, float]:
    """Score 150,000 pairs, no two texts one object, and report this process's peak before and after, in MB."""
    pairs = load_pairs(data_dir)
    predictions, references = [], []
    for number in range(MEMORY_ROWS):
        prediction, reference = pairs[number % len(pairs)]
        predictions.append(f"{number} {prediction}")
        references.append(f"{number} {reference}")
    del pairs
    inputs = peak_memory_mb()
    scores = rouge_l(predictions, references, protocol=protocol)
    if len(scores) != MEMORY_ROWS:
        raise RuntimeError(f"{len(scores)} scores for {MEMORY_ROWS} pairs")
    return {"inputs": inputs, "peak": peak_memory_mb()}


def measure(pairs: Sequence[Pair], data_dir: Path, work: float) -> dict[str, Any]:
    """The whole result, as ``--json`` prints it; `work` is that of ten turns over few pairs, in seconds."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    compared = compare(pairs)
    straight, memory = {}, {}
    for name, protocol in PROTOCOLS.items():
        LOG.print(f"protocol {protocol}: linearity, memory")
        count = work / compared[name]["microseconds"] * 1e6
        straight[protocol] = linearity(pairs, protocol, count / 10)
        memory[protocol] = peak_mb(protocol, data_dir)
    by_protocol = {PROTOCOLS[name]: value for name, value in compared.items()}
    return {
        "ratios": {name: value["ratio"] for name, value in compared.items()},
        "figures": {
            "lowest_ratio": {name: value["lowest"] for name, value in compared.items()},
            "microseconds_a_pair": {name: value["microseconds"] for name, value in by_protocol.items()},
            "max_abs_error": {name: value["error"] for name, value in by_protocol.items()},
            "load_at_start": load,
            "linearity": straight,
            "peak_mb_150k": {name: value["peak"] for name, value in memory.items()},
            "peak_mb_150k_inputs": {name: value["inputs"] for name, value in memory.items()},
        },
        "n": len(pairs),
        "data": "embedded sample" if data_dir == SAMPLE else "release",
        **environment("rapidfuzz", "rouge-score", "rouge"),
    }


def print_table(result: dict[str, Any]) -> None:
    """The result for people."""
    figures = result["figures"]
    table = Table(title=f"Rouge-L on {result['n']:,} English pairs of the {result['data']}")
    columns = ("protocol", "rival", "times faster", "goal", "lowest turn", "µs a pair", "largest difference")
    for column in (*columns, "linearity", "MB at 150k (texts alone)"):
        table.add_column(column, justify="left" if column in ("protocol", "rival") else "right")
    for rival, protocol in PROTOCOLS.items():
        table.add_row(
            protocol,
            f"{rival} {result['versions'][rival.replace('_', '-')]}",
            f"{result['ratios'][rival]:.1f}",
            f"{GOALS[rival]}",
            f"{figures['lowest_ratio'][rival]:.1f}",
            f"{figures['microseconds_a_pair'][protocol]:.1f}",
            f"{figures['max_abs_error'][protocol]:.1e}",
            f"{figures['linearity'][protocol]:.2f}",
            f"{figures['peak_mb_150k'][protocol]:.0f} ({figures['peak_mb_150k_inputs'][protocol]:.0f})",
        )
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    console.print(" ".join(f"{name} {version}" for name, version in result["versions"].items()), result["hardware"])


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__, reads_release=True)
    parser.add_argument(
        "--pairs", type=int, metavar="N", help="compare on N pairs, drawn by a fixed seed (default: all)"
    )
    parser.add_argument(
        "--seconds", type=float, default=2.0, metavar="S", help="work of ten turns over few pairs (default: 2)"
    )
    parser.add_argument("--measure-memory", choices=list(PROTOCOLS.values()), help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    arguments = parse_arguments()
    data_dir = arguments.data_dir or SAMPLE
    if not (data_dir / SUBSET).is_dir():
        sys.exit(f"{data_dir} has no {SUBSET}: give a folder with the release, or none to use the embedded sample")
    if arguments.measure_memory:
        print(json.dumps(measure_memory(arguments.measure_memory, data_dir)))
        return
    if not arguments.data_dir:
        LOG.print("No --data-dir and no $ROLEBENCH_DIR: measuring on the embedded sample.")
        LOG.print("Its texts are shorter than the release's, for which the goals are set.")
    pairs = load_pairs(data_dir)
    random.Random(0).shuffle(pairs)
    result = measure(pairs[: arguments.pairs], data_dir, arguments.seconds)
    print(json.dumps(result, indent=2)) if arguments.json else print_table(result)


if __name__ == "__main__":
    main()
