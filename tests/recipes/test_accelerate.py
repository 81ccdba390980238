"""The accelerate configs that ship: accelerate takes every key, and starts as many processes as they say."""

import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = sorted((ROOT / "recipes" / "accelerate").glob("*.yaml"))

_SHOW = """
import json
from pathlib import Path
from accelerate import PartialState
# As the library does for a recipe that trains on a CPU; without `cpu`, each process takes itself for the only one.
state = PartialState(cpu=True)
# A file a process: two that print at once write into one line.
found = [state.process_index, state.num_processes, str(state.backend), state.device.type]
Path(f"state-{state.process_index}.json").write_text(json.dumps(found))
"""


def launched(config: Path) -> Namespace:
    """What `accelerate launch --config_file CONFIG` makes of a config."""
    given = launch_command_parser().parse_args(["--config_file", str(config), "script.py"])
    return _validate_launch_command(given)[0]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda file: file.stem)
def test_every_key_is_one_that_accelerate_knows(config: Path) -> None:
    load_config_from_file(str(config))
    # It checks the keys at the top only; further down, a misspelt one is dropped without a word.
    known = vars(launch_command_parser().parse_args(["script.py"]))
    values = yaml.safe_load(config.read_text(encoding="utf-8"))
    inner = {key for section in ("fsdp_config", "deepspeed_config") for key in values.get(section, {})}
    assert inner <= known.keys()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("one-gpu", {"num_processes": 1, "multi_gpu": False, "use_fsdp": False}),
        ("ddp", {"num_processes": 2, "multi_gpu": True, "use_cpu": False}),
        ("cpu-ddp", {"num_processes": 2, "multi_gpu": True, "use_cpu": True}),
        ("fsdp2", {"num_processes": 2, "use_fsdp": True, "fsdp_version": 2}),
        ("deepspeed-zero3", {"use_deepspeed": True, "zero_stage": 3}),
    ],
)
def test_launch_reads_what_is_meant(name: str, expected: dict[str, object], root: Path) -> None:
    values = vars(launched(root / "recipes" / "accelerate" / f"{name}.yaml"))
    # The recipe decides the precision.
    assert values.items() >= (expected | {"mixed_precision": "no"}).items()


@pytest.mark.slow
def test_two_processes_meet_on_a_cpu(root: Path, tmp_path: Path, clean_env: dict[str, str]) -> None:
    script = tmp_path / "show.py"
    script.write_text(_SHOW, encoding="utf-8")
    config = root / "recipes" / "accelerate" / "cpu-ddp.yaml"
    launch = [Path(sys.executable).parent / "accelerate", "launch", "--config_file", config, script]
    done = subprocess.run(
        list(map(str, launch)), env=clean_env, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    states = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("state-*.json"))]
    assert states == [[0, 2, "gloo", "cpu"], [1, 2, "gloo", "cpu"]]
