"""Rules for refusals against people: which replies of other models that people called refusals do our rules find?

    python benchmarks/refusals.py xstest_v2_completions_*.csv

The files are those of XSTest (arXiv 2308.01263, https://github.com/paul-rottger/xstest, `model_completions/`): replies
of five models to 450 prompts, each labelled by two people. The patterns were written with one half of the prompts in
view (even), and are measured on the other (odd).
"""

import argparse
import csv
from collections import Counter

from common import environment, existing, report

from rolellm.characters.refusals import is_refusal

LABELS = {"2_full_refusal": "full refusals", "3_partial_refusal": "partial refusals", "1_full_compliance": "compliance"}


def main() -> None:
    """Count, by half and label, how many replies the rules call refusals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=existing, nargs="+")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    replies = []
    for file in arguments.files:
        with file.open(encoding="utf-8", newline="") as lines:
            replies += list(csv.DictReader(lines))
    halves = {prompt: index % 2 for index, prompt in enumerate(sorted({reply["prompt"] for reply in replies}))}
    total, found = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for reply in replies:
        key = (("even", "odd")[halves[reply["prompt"]]], LABELS[reply["final_label"]])
        total[key] += 1
        found[key] += is_refusal(reply["completion"])
    figures = {f"{half}, {label}, %": round(100 * found[half, label] / n, 1) for (half, label), n in total.items()}
    counts = {f"{half}, {label}": n for (half, label), n in total.items()}
    result = {"ratios": {}, "figures": dict(sorted(figures.items())), "n": counts, **environment()}
    report("refusals", result, [f"called refusals by rule; of {len(replies):,} replies"], arguments.json)


if __name__ == "__main__":
    main()
