"""`rolellm train` and `recipes/rocit.py`, as a shell runs them."""

import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rolellm.core.jsonl import write_jsonl
from rolellm.training.recipe_files import load_recipe
from rolellm.training.train import train

from ..commands import Command
from ..forking import Forked, Forking, script

BIN = Path(sys.executable).parent
Ended = subprocess.CompletedProcess[str]
MINI = """
data: {config: sample, max_rows: 6, replies: first}
base:
  build: tiny-llama
  tiny: {hidden_size: 16, intermediate_size: 32, layers: 1, heads: 2, vocab_size: 700}
  warm: {alone: 1, in_role: 1}
method: {name: full}
training: {max_steps: 2, learning_rate: 1e-3, replies_per_step: 2, max_length: 512, use_cpu: true}
output: {dir: runs/mini}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    file = tmp_path / "mini.yaml"
    file.write_text(MINI, encoding="utf-8")
    return file


def losses(folder: Path) -> list[float]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["loss"] for line in lines]


@pytest.mark.slow
def test_the_script_under_accelerate_does_what_the_library_does(
    recipe: Path, tmp_path: Path, root: Path, warm: Forking
) -> None:
    words = ["launch", "--cpu", root / "recipes" / "rocit.py", "--config", recipe, "--out", "launched"]
    # It starts the script in a new process of its own.
    launched = warm(words, tmp_path, code="from accelerate.commands.accelerate_cli import main; main()")
    assert json.loads(launched)["out"] == "launched"
    here = train(load_recipe(recipe), out=tmp_path / "here")
    assert here.steps == 2
    assert losses(tmp_path / "launched") == losses(tmp_path / "here")


#: What `accelerate launch` does before it starts a process, which takes long to import.
LAUNCH = """
import os, sys
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_simple_launcher_cmd_env
options, *_ = _validate_launch_command(launch_command_parser().parse_args(sys.argv[1:]))
(_, *sys.argv), env = prepare_simple_launcher_cmd_env(options)
os.environ.update(env)
"""


@pytest.mark.slow
def test_one_process_in_place_of_two_is_refused(recipe: Path, tmp_path: Path, root: Path, warm: Forking) -> None:
    """With --cpu, accelerate starts one process whatever it was asked for."""
    rocit = root / "recipes" / "rocit.py"
    words = ["--cpu", "--num_processes", "2", rocit, "--config", recipe]
    done = warm.run(words, tmp_path, code=LAUNCH + script(rocit))
    assert done.returncode != 0
    assert "error: the launcher was asked for several processes but started 1; on a CPU, use accelerate" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_preview_shows_which_turns_of_own_rows_are_trained(
    recipe: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ask = {"role": "user", "content": "Why?"}
    wrong, right = ({"role": "assistant", "content": text} for text in "NY")
    rows = [{"talk": [ask, wrong | {"weight": 0}, ask, right, ask, right], "id": "a"}, {"talk": [ask]}]
    write_jsonl(tmp_path / "own.jsonl", rows)
    words = ["train", recipe, "--preview", "--json", "--data", "own.jsonl", "--columns", "messages=talk"]
    refused = command(*words)
    assert refused.code == 1
    assert "error: own.jsonl, row 2: found turns of user; expected an assistant's turn" in refused.err
    shown = command(*words, "--skip-bad")
    assert (
        "own.jsonl (messages in talk): 1 dialogue, 2 replies; 1 bad row skipped, the first: own.jsonl, row 2"
        in shown.err
    )
    (example,) = shown.json["examples"]
    assert example["trained_text"] == "Y</s>Y</s>"
    assert "\nN</s>" in example["prompt"]
    heading, *lines = command(*words[:3], *words[4:], "--skip-bad").out.splitlines()
    assert heading == f"a: {len(lines) - 4} tokens read (.), 4 trained (+)"
    assert [line.split()[-1] for line in lines if line[0] == "+"] == ["'Y'", "'</s>'"] * 2


@pytest.mark.slow
def test_a_base_replaces_that_of_the_recipe(recipe: Path, tmp_path: Path, root: Path, warm: Forking) -> None:
    base = json.loads(warm(["train", recipe, "--json"], tmp_path))["base"]
    again = json.loads(warm(["train", recipe, "--base", base, "--out", "again", "--json"], tmp_path))
    said = warm(["train", recipe, "--base", base, "--out", "third"], tmp_path)
    assert said.splitlines()[-3] == "  rolellm eval third --config sample"
    assert again["base"] == base and losses(tmp_path / "again") == losses(tmp_path / "runs/mini")
    lost = warm.run(["train", recipe, "--base", "nosuch", "--out", "lost"], tmp_path)
    assert (lost.returncode, "base.path: no folder at nosuch" in lost.stderr) == (1, True)
    assert not (tmp_path / "lost").exists()


def stopped_when(moment: Callable[[], bool], number: signal.Signals, process: Forked) -> Ended:
    """Send a process a signal at a moment."""
    while not moment():
        assert process.poll() is None
        time.sleep(0.001)
    process.send_signal(number)
    return process.wait()


def begun(folder: Path, steps: int) -> bool:
    file = folder / "metrics.jsonl"
    return file.is_file() and file.read_bytes().count(b"\n") >= steps


LONGER = ["--set", "training.max_steps=50", "--set", "output.dir=runs/a longer one"]


@pytest.mark.slow
def test_ctrl_c_keeps_the_work_and_prints_the_line_that_goes_on(recipe: Path, tmp_path: Path, warm: Forking) -> None:
    folder = tmp_path / "runs" / "a longer one"
    command = warm.start(["train", recipe, *LONGER, "--overwrite"], tmp_path)
    stopped = stopped_when(lambda: begun(folder, 3), signal.SIGINT, command)
    assert stopped.returncode == 3, stopped.stderr
    done = len(losses(folder))
    assert "stopping after this step, with a checkpoint; once more stops at once" in stopped.stderr
    assert f"stopped: step {done} is the last checkpoint in runs/a longer one\nResume with: rolellm" in stopped.stderr
    assert "Traceback" not in stopped.stderr
    line = stopped.stderr.splitlines()[-1].removeprefix("Resume with: ")
    assert shlex.split(line)[1:] == ["train", str(recipe), *LONGER, "--resume"]
    went_on = json.loads(warm([*shlex.split(line)[1:], "--json"], tmp_path))
    assert went_on["steps"] == len(losses(folder)) == 50


def test_ctrl_c_before_anything_is_done_says_so(recipe: Path, tmp_path: Path, clean_env: dict[str, str]) -> None:
    """The imports take seconds: the command is well under way when one of them shows, and has not begun the run."""
    marker = tmp_path / "sitecustomize.py"
    marker.write_text(
        "import importlib.abc, pathlib, sys\n"
        "class Seen(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'transformers':\n"
        f"            pathlib.Path({str(tmp_path / 'seen')!r}).touch()\n"
        "sys.meta_path.insert(0, Seen())\n",
        encoding="utf-8",
    )
    env = {**clean_env, "PYTHONPATH": str(tmp_path)}
    pipe = subprocess.PIPE
    command = [str(BIN / "rolellm"), "train", str(recipe), "--overwrite"]
    with subprocess.Popen(command, env=env, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True) as process:
        while not (tmp_path / "seen").exists():
            assert process.poll() is None
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=100)
    assert process.returncode == 3, err
    assert f"stopped: nothing was done yet\nResume with: rolellm train {recipe} --overwrite\n" in err
    assert not (tmp_path / "runs").exists()
