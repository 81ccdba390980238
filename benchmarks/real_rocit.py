"""A real base tuned on real rows, answered and scored: untuned, at each checkpoint, RoleGPT's replies, and floors.

    python benchmarks/real_rocit.py RECIPE.yaml --base FOLDER [--test CONFIG] [--rows N] [--decoding-rows N]

Test rows are drawn by their ids, half of them general (CUS, RAW), half role-specific (SPE), first from those that the
release has a RoleGPT reply for. The floors and the reference are those of `rolellm.scoring.floors`. Every answer and
score stays in the run's folder, and a stopped run continues where it was. Figures are means with 95 % intervals over
questions.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

from common import environment, existing, report
from datasets import Dataset, load_dataset

import rolellm
from rolellm.core.fingerprint import hash_json
from rolellm.scoring.score_report import Summary

DECODINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled (0.7, 0.95)": {"temperature": 0.7, "top_p": 0.95},
}
METRICS = ("CUS", "RAW", "SPE")
PROTOCOLS = ("paper", "rouge-score")


def drawn(rows: Dataset, most: int) -> Dataset:
    """So many rows of a dataset, drawn by their ids, half of each subset."""
    keys = sorted((not row["rolegpt"], hash_json(row["id"]), place, row["subset"]) for place, row in enumerate(rows))
    found: list[int] = []
    for subset in ("general", "role_specific"):
        found += [place for _, _, place, kind in keys if kind == subset][: most // 2]
    return rows.select(sorted(found))


def scored(rows: Dataset) -> dict[str, Any]:
    """Each metric in both protocols, as mean and ends of its interval."""
    return shown({protocol: rolellm.score(rows, protocol=protocol, floors=False).metrics for protocol in PROTOCOLS})


def shown(by_protocol: dict[str, Summary]) -> dict[str, Any]:
    """Metrics by protocol, as mean and ends of each interval."""
    return {
        f"{name} ({protocol})": f"{one.mean:.3f} {one.format_ends(3)}"
        for protocol, metrics in by_protocol.items()
        for name in METRICS
        if (one := metrics[name]) is not None
    }


def markers(rows: Dataset, among: Dataset, training: Dataset) -> dict[str, dict[str, Any]]:
    """What scores are read between: floors, RoleGPT and a reference, each by its name."""
    rows = rows.filter(lambda row: bool(row["rolegpt"]))
    answered = rows.select_columns(["id"]).add_column("prediction", rows["rolegpt"])
    reports = {one: rolellm.score(answered, among, protocol=one, training=training) for one in PROTOCOLS}
    scales = {name: scored.scale for name, scored in reports.items() if scored.scale is not None}
    found = {one.label(name): name for scale in scales.values() for name, one in scale.markers.items()}
    return {
        head: shown({one: scale.markers[name].metrics for one, scale in scales.items() if name in scale.markers})
        for head, name in found.items()
    }


def main() -> None:
    """Tune, answer, score, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--base", type=existing, required=True, help="the folder of the base")
    parser.add_argument("--test", help="config of the test rows; by default the recipe's")
    parser.add_argument("--rows", type=int, default=120)
    parser.add_argument(
        "--decoding-rows", type=int, default=40, help="rows to compare checkpoints and decodings on; 0 skips it"
    )
    parser.add_argument("--max-new-tokens", type=int, default=100)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    from rolellm.training.recipe_files import load_recipe

    recipe = load_recipe(arguments.recipe, threads=arguments.threads).to_dict()
    recipe["base"]["path"] = str(arguments.base.resolve())
    out = arguments.out or Path(recipe["output"]["dir"])
    run = out / "run"
    if not (run / "manifest.json").is_file():
        rolellm.train(recipe, out=run, resume=run.is_dir())
    config = arguments.test or recipe["data"]["config"]
    among = load_dataset("rolebench", config, split="test")
    rows = drawn(among, arguments.rows)
    few = drawn(among, arguments.decoding_rows)
    options = {"max_new_tokens": arguments.max_new_tokens, "batch_size": 16}
    steps = sorted(run.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    models = {"untuned": arguments.base, "tuned": run}
    found = {}
    for name, model in models.items():
        found[name] = scored(rolellm.generate(model, rows, out=out / f"{name}.jsonl", **options))
    training = load_dataset("rolebench", recipe["data"]["config"], split=recipe["data"]["split"])
    if roles := recipe["data"]["roles"]:
        training = training.filter(lambda row: row["role"] in roles)
    found |= markers(rows, among, training)
    for path in steps[:-1] if arguments.decoding_rows else ():
        answers = rolellm.generate(path, few, out=out / f"{path.name}.jsonl", **options)
        found[f"{path.name}, {len(few)} rows"] = scored(answers)
    for name, decoding in DECODINGS.items() if arguments.decoding_rows else ():
        for which in ("untuned", "tuned"):
            path = out / f"{which}-{name.split()[0]}.jsonl"
            answers = rolellm.generate(models[which], few, out=path, **options, **decoding)
            found[f"{which}, {name}, {len(few)} rows"] = scored(answers)
    losses = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    for step in losses:
        if "eval_loss" in step or step["step"] == 1:
            found[f"step {step['step']}"] = {
                key: round(step[key], 4) for key in ("loss", "eval_loss", "mean_token_accuracy") if key in step
            }
    figures = {f"{name}, {figure}": value for name, of in found.items() for figure, value in of.items()}
    figures["seconds"] = json.loads((run / "manifest.json").read_text(encoding="utf-8"))["seconds"]
    notes = [f"{arguments.recipe.name}: {len(rows)} test rows of {config}"]
    report(
        "real_rocit",
        {"ratios": {}, "figures": figures, "n": len(rows), **environment("trl", "torch")},
        notes,
        arguments.json,
    )


if __name__ == "__main__":
    main()
