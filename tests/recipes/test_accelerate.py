"""The accelerate configs that ship: accelerate takes every key, and reads what is meant."""

from argparse import Namespace
from pathlib import Path

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = sorted((ROOT / "recipes" / "accelerate").glob("*.yaml"))


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
