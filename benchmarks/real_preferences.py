"""SFT, then DPO and GRPO, on a real base: what each changes, measured by what it was not trained on.

    python benchmarks/real_preferences.py --base FOLDER --data-dir RELEASE [--config CONFIG] [--out DIR]

The release has no English training rows, so its ten roles with role-free answers (`role-generalization-eng`) are split:
a fifth of the questions is held out, and three roles are wholly (`split_release`). All three runs see the other seven
roles. Each model answers held-out questions as the seven roles, and as the three, half of them general (CUS, RAW), half
role-specific (SPE). Differences are paired by question, of DPO and of GRPO against SFT, with 95 % intervals, and p
adjusted for the measures by Holm. With `--config instruction-generalization-zh-strict`, that config's own training and
test rows are taken as they are. With `--seeds 3`, DPO and GRPO run three times each, and a model's value of a row is
the mean of its three runs.

Every run, answer and figure stays in the folder; a stopped run continues where it was.
"""

import argparse
import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from common import environment, existing, report
from datasets import Dataset, load_dataset
from real_rocit import drawn

import rolellm
from rolellm.core.jsonl import read_jsonl
from rolellm.core.records import Row
from rolellm.core.text import fold
from rolellm.journeys.improving import BEHAVIOR
from rolellm.scoring.rows import read_dataset_rows
from rolellm.scoring.statistics.intervals import adjust_p_values, compare_pairs
from rolellm.scoring.style import StyleMeter, StyleReply
from rolellm.training.recipe_files import load_recipe

NEW_ROLES = ("Raylan Givens", "Tom Ripley", "Walt Kowalski")
SOURCE = "rolebench-eng/role-generalization/{subset}/test.jsonl"
CONFIGS = {"the seven roles": "instruction-generalization-eng", "three new roles": "role-generalization-eng"}


def is_held_out(question: str) -> bool:
    """Tell whether a question is in the fifth that no run sees."""
    return int(hashlib.sha256(question.strip().encode()).hexdigest(), 16) % 5 == 0


def split_release(release: Path, out: Path) -> None:
    """Write a release of the ten roles with role-free answers: seven to train on, held-out questions for all."""
    for subset in ("general", "role_specific"):
        lines = [line for _, line in read_jsonl(release / SOURCE.format(subset=subset))]
        known = [line for line in lines if line["role"] not in NEW_ROLES]
        train = [line for line in known if not is_held_out(line["question"])]
        parts = {
            "instruction-generalization/{}/train": train,
            "instruction-generalization/{}/test": [line for line in known if is_held_out(line["question"])],
            "role-generalization/{}/train": train,
            "role-generalization/{}/test": [
                line for line in lines if line["role"] in NEW_ROLES and is_held_out(line["question"])
            ],
        }
        for name, part in parts.items():
            path = out / "rolebench-eng" / f"{name.format(subset)}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(json.dumps(line) + "\n" for line in part), encoding="utf-8")
    for name in ("profiles-eng", "instructions-eng"):
        shutil.copytree(release / name, out / name)


def measure_replies(rows: list[Row], replies: list[str], meter: StyleMeter) -> dict[str, list[float]]:
    """Measure replies by what needs no other reply: style, breaks, repetition and length."""
    styled = [StyleReply(row.role, fold(row.question), reply) for row, reply in zip(rows, replies, strict=True)]
    behavior = {name: list(map(each.measure, rows, replies)) for name, each in BEHAVIOR.items()}
    return {"style": meter.measure(styled), **behavior}


def list_scores(rows: Dataset, predictions: Any) -> dict[str, dict[str, float]]:
    """Rouge-L F1 by metric and row."""
    values: dict[str, dict[str, float]] = {}
    for score in rolellm.score(predictions, dataset=rows, protocol="rouge-score", floors=False).scores:
        values.setdefault(score.metric, {})[score.id] = score.value
    return values


def compare(
    rows: Dataset, answers: dict[str, list[Dataset]], meter: StyleMeter, against: str
) -> Iterator[tuple[str, str]]:
    """Give each model's means, and the paired differences of those after the one that all are compared with.

    Args:
        rows: The rows that were answered.
        answers: Model to the answers of its runs, one run a seed.
        meter: Tells how far a reply sounds like its role.
        against: The model that those after it are compared with.
    """
    read = read_dataset_rows(rows)
    by_id = {row.id: row for row in read}
    figures: dict[str, dict[str, dict[str, float]]] = {}
    runs: dict[str, dict[str, list[float]]] = {}
    for name, by_seed in answers.items():
        every: list[dict[str, dict[str, float]]] = []
        for predictions in by_seed:
            replies = dict(zip(predictions["id"], predictions["prediction"], strict=True))
            own = measure_replies(read, [replies[row.id] for row in read], meter)
            own_by_id = {key: dict(zip(by_id, values, strict=True)) for key, values in own.items()}
            every.append(list_scores(rows, predictions) | own_by_id)
        figures[name] = {
            measure: {row_id: fmean(run[measure][row_id] for run in every) for row_id in every[0][measure]}
            for measure in every[0]
        }
        runs[name] = {measure: [fmean(run[measure].values()) for run in every] for measure in every[0]}
    for name, by_measure in figures.items():
        for measure, values in by_measure.items():
            means = " ".join(f"{mean:.3f}" for mean in runs[name][measure])
            yield f"{measure}, {name}", f"{fmean(values.values()):.3f}" + (f" ({means})" if " " in means else "")
        if list(figures).index(name) > list(figures).index(against):
            tests = {
                measure: compare_pairs(
                    list(values.values()),
                    [figures[against][measure][row_id] for row_id in values],
                    [fold(by_id[row_id].question) for row_id in values],
                )
                for measure, values in by_measure.items()
            }
            adjusted = adjust_p_values([test.p for test in tests.values()])
            for (measure, test), p in zip(tests.items(), adjusted, strict=True):
                told = f"{test.difference.mean:+.3f} {test.difference.format_ends(3)} n={len(by_measure[measure])}"
                yield f"{measure}, {name} - {against}", f"{told}, p by Holm {p:.3f}"


def main() -> None:
    """Split, tune three times, answer, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=existing, required=True, help="the folder of the base")
    parser.add_argument("--data-dir", type=existing, required=True, help="a copy of the release")
    parser.add_argument("--config", help="take this config's own rows, rather than the ten roles' in English")
    parser.add_argument("--form", default="rolellama", help="prompt.form of the SFT run: model for a chat model")
    parser.add_argument("--recipes", default="recipes/real/gemma-3-270m", help="how the files of the recipes begin")
    parser.add_argument("--seeds", type=int, default=1, help="runs of DPO and of GRPO")
    parser.add_argument("--rows", type=int, default=120, help="of the seven roles, and of the three")
    parser.add_argument("--batch-size", type=int, default=16, help="rows that are answered at once")
    parser.add_argument("--temperature", type=float, default=0.0, help="of the answers (default: 0, greedy)")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--only", help="train and ask this run alone: untuned, sft, dpo, grpo-2 …")
    parser.add_argument("--out", type=Path, default=Path("runs/real/preferences"))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()

    release = arguments.data_dir if arguments.config else arguments.out / "release"
    if not release.is_dir():
        split_release(arguments.data_dir, release)
    configs = {arguments.config: arguments.config} if arguments.config else CONFIGS
    config = next(iter(configs.values()))
    splits = {name: load_dataset("rolebench", name, data_dir=str(release)) for name in configs.values()}
    asked = {name: drawn(tables["test"], arguments.rows) for name, tables in splits.items()}
    answers: dict[str, dict[str, list[Dataset]]] = {name: {} for name in configs.values()}

    def run(kind: str, recipe: str | None = None, overrides: Sequence[str] = (), seed: int = 1) -> None:
        """Train a run unless it is there, and ask it."""
        name = kind if seed == 1 else f"{kind}-{seed}"
        folder = arguments.base if recipe is None else arguments.out / name
        if arguments.only not in (None, name):
            return
        if recipe is not None and not (folder / "manifest.json").is_file():
            where = {"base": arguments.base if kind == "sft" else arguments.out / "sft", "threads": arguments.threads}
            settings = [*overrides, f"training.seed={41 + seed}"]
            chosen = load_recipe(f"{arguments.recipes}-{recipe}.yaml", settings, **where)
            rolellm.train(chosen, out=folder, resume=folder.is_dir())
        for config_name, rows in asked.items():
            decoding = {"temperature": arguments.temperature, "batch_size": arguments.batch_size, "dtype": "bfloat16"}
            label = f"{name}-{arguments.temperature:g}" if arguments.temperature else name
            path = arguments.out / f"{label}-{config_name}.jsonl"
            given = rolellm.generate(folder, rows, out=path, max_new_tokens=100, **decoding)
            answers[config_name].setdefault(kind, []).append(given)

    run("untuned")
    data = [f"data.data_dir={release}", f"data.config={config}"]
    run("sft", "roles", [*data, f"prompt.form={arguments.form}"])
    pairs = arguments.out / "pairs"
    if not pairs.is_dir():
        rolellm.prefer(out=pairs, config=config, data_dir=release)
    for seed in range(1, arguments.seeds + 1):
        run("dpo", "dpo", [f"data.path={pairs / 'pairs.jsonl'}"], seed)
    for seed in range(1, arguments.seeds + 1):
        run("grpo", "grpo", data, seed)
    if arguments.only:
        return
    figures = {}
    questions = {fold(question) for rows in asked.values() for question in rows["question"]}
    every = [row for tables in splits.values() for rows in tables.values() for row in read_dataset_rows(rows)]
    meter = StyleMeter([row for row in every if fold(row.question) not in questions], every[0].language)
    for title, name in configs.items():
        for figure, value in compare(asked[name], answers[name], meter, "sft"):
            figures[f"{title}, {figure}"] = value
    notes = [f"{arguments.base.name}: {arguments.rows} held-out rows of each part"]
    found = {"ratios": {}, "figures": figures, "n": arguments.rows, **environment("trl", "torch")}
    report("real_preferences", found, notes, arguments.json)


if __name__ == "__main__":
    main()
