"""Every script in benchmarks/ runs at its smallest; one that needs what no test has refuses in words."""

import json
from pathlib import Path

import pytest

from .forking import Forking, script

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "src" / "rolellm" / "data" / "rolebench" / "sample"
SCRIPTS = sorted(path for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text(encoding="utf-8"))
#: Options for the smallest run of each script; a new one is run as it is.
SMALLEST = {
    "cast.py": f"--base {ROOT}/src/rolellm/models/sample --roles 2 --rank 2",
    "cleaning.py": f"--data-dir {SAMPLE}",
    "client.py": "--part 100 --latency 0.02",
    "filters.py": f"--data-dir {SAMPLE}",
    "findings.py": "--runs 2 --questions 4",
    "generate.py": "--rows 2 --roles 1 --max-new-tokens 4 --batch-sizes 2 --turns 1",
    "intervals.py": "--runs 2",
    "judging.py": "--judgements 30 --rows 40",
    "load.py": "--repeats 1",
    "memory.py": "--model llama-7b --tokens 64",
    "packs.py": "--rows 12 --replies 3",
    "preferences.py": "--tiny --pairs 4 --completions 8 --completion-tokens 8 --steps 1",
    "refusals.py": "labeled.csv",
    "retrieval.py": "--pairs 300 --queries 8",
    "rewards.py": f"--data-dir {SAMPLE} --rows 20",
    "rocit.py": "--tiny --replies 4 --roles 2 --steps 1 --passes 4",
    "rouge.py": "--pairs 20 --seconds 0.05",
    "scale.py": "--calls 20 --rounds 1 --kills 0",
    "scripts.py": f"--texts {SAMPLE}/scripts",
    "serve.py": "--clients 2 --rounds 1 --seconds 0.2",
    "style.py": f"{SAMPLE}/rolebench-eng/instruction-generalization/general/train.jsonl --language en --part held-out",
}
#: Scripts of models and bases that no test has: options, and what the last line says.
REFUSED = {
    "real_models.py": ("--llm no-model.yaml", "no-model.yaml does not exist"),
    "real_preferences.py": (f"--base no-base --data-dir {SAMPLE}", "no-base does not exist"),
    "real_rocit.py": ("no-recipe.yaml --base no-base", "no-base does not exist"),
}


#: The parts for a GPU, at a shape that fits a CPU.
ON_GPU = {
    "generate.py": "--shape tiny --rows 2 --roles 1 --max-new-tokens 4 --batch-sizes 2 --turns 1",
    "preferences.py": "--shape tiny --tiny --steps 1 --pairs 4 --completions 8 --completion-tokens 8",
    "rocit.py": "--shapes tiny --tiny --steps 1 --replies 4 --roles 2",
}


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in SCRIPTS if path.name not in REFUSED])
def test_a_benchmark_runs_at_its_smallest(path: Path, tmp_path: Path, warm: Forking) -> None:
    (tmp_path / "labeled.csv").write_text("prompt,completion,final_label\nWhy?,I can't.,2_full_refusal\n")
    json_flag = "" if path.name == "style.py" else " --json"
    printed = warm((SMALLEST.get(path.name, "") + json_flag).split(), tmp_path, code=script(path))
    if json_flag:
        # TRL writes to standard output.
        result = json.loads(printed[printed.index('{\n  "') :])
        assert result.keys() >= {"ratios", "figures", "n", "versions", "hardware"}
    assert printed


@pytest.mark.parametrize("name", ON_GPU)
def test_the_part_for_a_gpu_runs_at_its_smallest(name: str, tmp_path: Path, warm: Forking) -> None:
    options = f"--gpu --json {ON_GPU[name]}".split()
    assert warm(options, tmp_path, code=script(ROOT / "benchmarks" / name))


@pytest.mark.parametrize("name", REFUSED)
def test_a_benchmark_without_its_model_refuses_in_words(name: str, tmp_path: Path, warm: Forking) -> None:
    options, words = REFUSED[name]
    done = warm.run(options.split(), tmp_path, code=script(ROOT / "benchmarks" / name))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith(words)
