"""How many replies of the release the cleaning rules hit, and what a reply costs to check.

    python benchmarks/cleaning.py --data-dir RELEASE [--json]

The rules look for a first person that gives itself away, so most hits on released replies are faults of the release; a
high rate would mean false alarms. Each distinct reply of a role counts once, references and baselines alike.
"""

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from common import environment, existing, report

from rolellm.characters.reply_rules import RULES, find_breaches, is_machine
from rolellm.core.jsonl import read_jsonl
from rolellm.core.records import Language
from rolellm.data.rolebench.release import Release
from rolellm.data.rolebench.schema import FOLDERS

LANGUAGES: tuple[Language, ...] = ("en", "zh")


def released(folder: Path, language: Language) -> Iterator[tuple[str, str]]:
    """Each role's distinct replies."""
    seen: set[tuple[str, str]] = set()
    for path in sorted(folder.glob(f"rolebench-{FOLDERS[language]}/**/*.jsonl")):
        for _, row in read_jsonl(path):
            for reply in row["generated"]:
                if (row["role"], reply) not in seen:
                    seen.add((row["role"], reply))
                    yield row["role"], reply


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=existing, required=True, help="a copy of the release")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    figures: dict[str, float] = {}
    counts: dict[str, int] = {}
    for language in LANGUAGES:
        descriptions = Release(given.data_dir).read_descriptions(language)
        machines = {role for role, text in descriptions.items() if is_machine(text, language)}
        replies = list(released(given.data_dir, language))
        hits: Counter[str] = Counter()
        begun = time.process_time()
        for role, reply in replies:
            hits.update(find_breaches(reply, language, machine=role in machines).keys())
        seconds = time.process_time() - begun
        counts[language] = len(replies)
        for rule in RULES:
            figures[f"{language}_{rule}"] = hits[rule]
            figures[f"{language}_{rule}_percent"] = round(100 * hits[rule] / max(len(replies), 1), 3)
        figures[f"{language}_cpu_ms_a_reply"] = round(1e3 * seconds / max(len(replies), 1), 4)
        figures[f"{language}_machines"] = len(machines)
    result = {"ratios": {}, "figures": figures, "n": counts, **environment()}
    report("cleaning", result, [], given.json)


if __name__ == "__main__":
    main()
