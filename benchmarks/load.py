"""Start-up and loading: how long a user waits for the import, the help, a built config, and rows of one's own.

Usage::

    python benchmarks/load.py [--json] [--data-dir RELEASE] [--own-rows N]

Wall times are medians of repeated fresh processes. The rival is what users had: importing `datasets`, and reading the
same JSON Lines files with the stock `json` builder (which cannot read all of them in one config).

With `--own-rows`, dialogues of one to three exchanges of the sample are prepared for `smoke-cpu`: read, tokenized, held
out and ordered. Then the line in the middle is broken, and the time until it is named is taken.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import environment, report

from rolellm.data.rolebench import load_rolebench

_LOAD = """
import time, warnings, rolellm
from datasets import load_dataset
warnings.simplefilter("ignore")
started = time.perf_counter()
load_dataset("rolebench", {config!r}, data_dir={data_dir!r})
print(time.perf_counter() - started)
"""

_STOCK = """
import time
from datasets import load_dataset
started = time.perf_counter()
load_dataset("json", data_files={files!r})
print(time.perf_counter() - started)
"""

_PREPARE = """
import json, resource, sys, time
from pathlib import Path
from rolellm.core.errors import DataError
from rolellm.training.examples import hash_examples
from rolellm.training.recipe_files import load_recipe
from rolellm.training.schedule import schedule_replies
from rolellm.training.train import prepare, read_replies
started = time.perf_counter()
figures = {}
try:
    recipe, rows = read_replies(load_recipe("smoke-cpu", ["data.path=" + sys.argv[1]]))
    prepared = prepare(recipe, Path("none"), rows)
    schedule_replies(prepared.examples, prepared.training)
    hash_examples(prepared.examples)
    figures["tokens"] = sum(example.length for example in prepared.examples)
except DataError as error:
    figures["error"] = str(error)
usage = resource.getrusage(resource.RUSAGE_SELF)
figures |= {"s": time.perf_counter() - started, "cpu_s": usage.ru_utime + usage.ru_stime, "gb": usage.ru_maxrss / 1e6}
print(json.dumps(figures))
"""
OWN_GOALS = "Goals: a million own rows in under 300 s and 2 GB on two cores; a broken line in the middle named."


def write_dialogues(path: Path, count: int, *, broken: int | None = None) -> None:
    """Write dialogues of one to three exchanges of the sample; one line may be broken."""
    rows = load_rolebench("sample", "train")
    chance = random.Random(1)
    with path.open("w", encoding="utf-8") as stream:
        for number in range(1, count + 1):
            messages = []
            for _ in range(chance.choice((1, 1, 2, 3))):
                row = rows[chance.randrange(len(rows))]
                messages.append({"role": "user", "content": f"{number}. {row['question']}"})
                messages.append({"role": "assistant", "content": row["references"][0]})
            line = json.dumps({"messages": messages}, ensure_ascii=False)
            stream.write(line[: 20 if number == broken else None] + "\n")


def prepare_own_rows(folder: Path, count: int, env: dict[str, str]) -> dict[str, float]:
    """Time and memory of preparing rows of one's own, and of finding a broken one."""
    path = folder / "own.jsonl"
    figures: dict[str, float] = {}
    for name, broken in (("own_rows", None), ("own_rows_broken", count // 2)):
        write_dialogues(path, count, broken=broken)
        command = [sys.executable, "-c", _PREPARE, str(path)]
        done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True)
        prepared = json.loads(done.stdout)
        if broken is not None and f"own.jsonl:{broken}: " not in prepared.pop("error"):
            raise SystemExit("the broken line was not named")
        figures |= {f"{name}_{key}": value for key, value in prepared.items()}
    return figures


def timed(command: list[str], env: dict[str, str], repeats: int) -> float:
    """Median wall time of a process, in seconds."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        subprocess.run(command, env=env, check=True, capture_output=True)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def printed(code: str, env: dict[str, str]) -> float:
    """The number that a fresh Python process prints, in seconds."""
    shown = subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True)
    return float(shown.stdout)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--data-dir", default=os.environ.get("ROLEBENCH_DIR"), help="a local copy of the release")
    parser.add_argument("--own-rows", type=int, metavar="N", help="prepare N dialogues, and nothing else")
    parser.add_argument("--repeats", type=int, default=5, help="processes of each (default: %(default)s)")
    options = parser.parse_args()
    repeats = options.repeats

    config, data_dir = ("instruction-generalization-zh", options.data_dir) if options.data_dir else ("sample", None)
    with tempfile.TemporaryDirectory() as home:
        env = {**os.environ, "HF_HOME": home, "HF_DATASETS_CACHE": str(Path(home) / "datasets")}
        env |= {"HF_HUB_OFFLINE": "1"}
        if options.own_rows:
            own_figures = prepare_own_rows(Path(home), options.own_rows, env)
            versions = environment("tokenizers", "transformers")
            result = {"ratios": {}, "figures": own_figures, "n": options.own_rows, **versions}
            report("own_rows", result, [OWN_GOALS], options.json)
            return
        python = [sys.executable, "-c"]
        bare = timed([*python, "pass"], env, repeats)
        load = _LOAD.format(config=config, data_dir=data_dir)
        figures = {
            "import_rolellm_s": timed([*python, "import rolellm"], env, repeats) - bare,
            "import_datasets_s": timed([*python, "import datasets"], env, repeats) - bare,
            "help_s": timed([sys.executable, "-m", "rolellm", "--help"], env, repeats),
            "first_load_s": printed(load, env),
            "second_load_s": statistics.median(printed(load, env) for _ in range(repeats)),
        }
        if data_dir:
            folder = Path(data_dir) / "rolebench-zh" / "general"
            files = {split: str(folder / f"{split}.jsonl") for split in ("train", "test")}
            figures["stock_json_first_load_s"] = printed(_STOCK.format(files=files), env)
    ratios = {"import_datasets": figures["import_datasets_s"] / figures["import_rolellm_s"]}
    notes = [f"config {config!r}" + ("" if data_dir else " (no release at hand: the embedded sample)")]
    report(
        "load",
        {"ratios": ratios, "figures": figures, "n": repeats, **environment("datasets", "pyarrow")},
        notes,
        options.json,
    )


if __name__ == "__main__":
    main()
