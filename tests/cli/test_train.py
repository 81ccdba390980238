"""`rolellm train` and `recipes/rocit.py`, as a shell runs them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rolellm.rocit.config import load_recipe
from rolellm.rocit.trainer import train

BIN = Path(sys.executable).parent
MINI = """
data: {config: sample, max_rows: 6, replies: first}
base:
  build: tiny-llama
  tiny: {hidden_size: 16, intermediate_size: 32, layers: 1, heads: 2, vocab_size: 700}
  warm: {alone: 1, in_role: 1, batch_size: 4}
method: {name: full}
training: {max_steps: 2, learning_rate: 1e-3, batch_size: 2, max_length: 512, device: cpu}
output: {dir: runs/mini}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    file = tmp_path / "mini.yaml"
    file.write_text(MINI, encoding="utf-8")
    return file


def run(words: list[str | Path], env: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, words)), env=env, cwd=cwd, capture_output=True, text=True, timeout=200, check=False
    )


def losses(folder: Path) -> list[float]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["loss"] for line in lines]


def test_the_command_leaves_a_run_and_does_not_replace_it(
    recipe: Path, tmp_path: Path, clean_env: dict[str, str]
) -> None:
    done = run([BIN / "rolellm", "train", recipe, "--json"], clean_env, tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["out"], result["rows"], result["steps"]) == ("runs/mini", 6, 2)
    left = {path.name for path in (tmp_path / "runs/mini").iterdir()}
    assert {"manifest.json", "metrics.jsonl", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= left
    again = run([BIN / "rolellm", "train", recipe], clean_env, tmp_path)
    assert again.returncode == 2
    assert again.stderr.startswith("error: runs/mini holds a finished run")


def test_the_script_under_accelerate_does_what_the_library_does(
    recipe: Path, tmp_path: Path, root: Path, clean_env: dict[str, str]
) -> None:
    script = [BIN / "accelerate", "launch", "--cpu", root / "recipes" / "rocit.py", "--config", recipe]
    launched = run([*script, "--out", "launched"], clean_env, tmp_path)
    assert launched.returncode == 0, launched.stderr
    assert json.loads(launched.stdout)["out"] == "launched"
    here = train(load_recipe(recipe), tmp_path / "here")
    assert here.steps == 2
    assert losses(tmp_path / "launched") == losses(tmp_path / "here")


def test_preview_shows_tokens_and_trains_nothing(recipe: Path, tmp_path: Path, clean_env: dict[str, str]) -> None:
    done = run([BIN / "rolellm", "train", recipe, "--preview", "--rows", "2"], clean_env, tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert sum(line.startswith("row ") for line in lines) == 2
    assert {line[:2] for line in lines} == {"ro", ". ", "+ "}
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        pytest.param(["--set", "training.max_step=1"], 2, "did you mean training.max_steps?", id="unknown-key"),
        pytest.param(["--set", "training.max_length=30"], 2, "alone fills", id="prompts-too-long"),
        pytest.param(["--data-dir", "no: where"], 1, "no: where", id="data-dir-that-is-not-there"),
        pytest.param(["--set", "method.name=qlora"], 2, "not there yet", id="qlora"),
    ],
)
def test_what_will_not_do_ends_in_one_message(
    options: list[str], code: int, words: str, recipe: Path, tmp_path: Path, clean_env: dict[str, str]
) -> None:
    if "--data-dir" in options:
        options = [*options, "--set", "data.config=instruction-generalization-eng"]
    done = run([BIN / "rolellm", "train", recipe, *options], clean_env, tmp_path)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_base_that_is_not_there_is_refused(recipe: Path, tmp_path: Path, clean_env: dict[str, str]) -> None:
    recipe.write_text(MINI.replace("build: tiny-llama", "path: models/llama"), encoding="utf-8")
    done = run([BIN / "rolellm", "train", recipe], clean_env, tmp_path)
    assert done.returncode == 1
    assert f"no folder at {tmp_path}/models/llama" in done.stderr


def test_the_script_refuses_as_the_command_does(
    recipe: Path, tmp_path: Path, root: Path, clean_env: dict[str, str]
) -> None:
    script = [sys.executable, root / "recipes" / "rocit.py", "--config"]
    wrong = run([*script, recipe, "--set", "trainin.seed=1"], clean_env, tmp_path)
    assert wrong.returncode == 2
    assert wrong.stderr == "error: unknown key trainin; did you mean training?\n"
    absent = run([*script, "none.yaml"], clean_env, tmp_path)
    assert absent.returncode == 2
    assert "those that ship: " in absent.stderr
