"""Start-up and loading: how long a user waits for the import, the help, a built config, and a build.

Usage::

    python benchmarks/load.py [--json] [--data-dir RELEASE]

Wall times are medians of repeated fresh processes. The rival is what users had: importing `datasets`, and reading the
same JSON Lines files with the stock `json` builder (which cannot read all of them in one config).
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import environment, report

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
    parser.add_argument("--repeats", type=int, default=5, help="processes of each (default: %(default)s)")
    options = parser.parse_args()
    repeats = options.repeats

    config, data_dir = ("instruction-generalization-zh", options.data_dir) if options.data_dir else ("sample", None)
    with tempfile.TemporaryDirectory() as home:
        env = {**os.environ, "HF_HOME": home, "HF_DATASETS_CACHE": str(Path(home) / "datasets")}
        env |= {"HF_HUB_OFFLINE": "1"}
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
