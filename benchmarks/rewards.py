"""Speed of the rewards that ask no model, on the release's own replies: completions per second of processor time.

    python benchmarks/rewards.py --data-dir RELEASE [--rows 2000] [--json]

The target is 2,000 a second on one core. `style` learns first, from rows whose questions are not scored.
"""

import argparse
import os
import random
import time
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from common import environment, existing, report

from rolellm import load_rolebench, rewards
from rolellm.core.text import fold
from rolellm.scoring.rows import read_dataset_rows
from rolellm.training.rewards import RewardedReply, call_reward

CONFIGS = {
    "en, general": ("role-generalization-eng", "general"),
    "zh, general": ("instruction-generalization-zh", "general"),
    "en, role-specific": ("instruction-generalization-eng", "role_specific"),
    "zh, role-specific": ("instruction-generalization-zh", "role_specific"),
}


def main() -> None:
    """Measure each reward on each kind of rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=existing, required=True)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    figures: dict[str, float] = {}
    count = 0
    for label, (config, subset) in CONFIGS.items():
        tables = load_rolebench(config, data_dir=arguments.data_dir).values()
        rows = [row for table in tables for row in read_dataset_rows(table) if row.subset == subset]
        random.Random(0).shuffle(rows)
        scored = rows[: arguments.rows]
        questions = {fold(row.question) for row in scored}
        rest = [row for row in rows if fold(row.question) not in questions]
        replies = [RewardedReply(row, "own", row.references[0]) for row in scored if row.references]
        count += len(replies)
        for name, reward in {
            "in_character": rewards.in_character,
            "knowledge": rewards.knowledge,
            "style": rewards.style.learn(rest or rows),
            "answer": rewards.answer,
        }.items():
            if all(value != value for value in call_reward(reward, replies[:8])):
                continue
            started = time.process_time()
            # A step of GRPO brings a few dozen completions at once.
            for start in range(0, len(replies), 64):
                call_reward(reward, replies[start : start + 64])
            figures[f"{name}, {label}: completions/s"] = len(replies) / (time.process_time() - started)
    notes = [f"{arguments.rows} rows of each kind, in calls of 64"]
    report("rewards", {"ratios": {}, "figures": figures, "n": count, **environment()}, notes, arguments.json)


if __name__ == "__main__":
    main()
