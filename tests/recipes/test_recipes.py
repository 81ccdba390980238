"""The recipes that ship, and accelerate configs: each loads, names its sources, has a CPU twin, is in the wheel."""

import re
import subprocess
import sys
import zipfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser

from rolellm.training.recipe_files import find_recipe, list_shipped_recipes, load_recipe

ROOT = Path(__file__).resolve().parents[2]
FILES = list_shipped_recipes()
SMALL = sorted(name for name in FILES if name.startswith("smoke-cpu"))
#: For a character or adapter of one's own on any device, so that they need no twin.
OWN = ("adapter", "rocit-dpo", "rocit-grpo")
LARGE = sorted({*FILES} - {*SMALL, *OWN})
TWINS = [f"smoke-cpu-{name}" for name in LARGE]

# What may differ between a recipe and its twin: data, base, sizes and steps, precision and device, and where it goes.
FOR_A_CPU = re.compile(
    r"data\.(config|roles)|base\..*|prompt\.form|output\.dir"
    r"|training\.(max_steps|replies_per_step|replies_per_pass|max_length|bf16|use_cpu|threads|save_steps)"
)


def flat(values: dict[str, Any], dotted: str = "") -> dict[str, Any]:
    found = {}
    for key, value in values.items():
        found |= flat(value, f"{dotted}{key}.") if isinstance(value, dict) else {f"{dotted}{key}": value}
    return found


def changed(name: str, other: str) -> set[str]:
    """The keys in which two recipes differ."""
    one, two = (flat(load_recipe(FILES[recipe]).to_dict()) for recipe in (name, other))
    return {key for key in one if one[key] != two[key]}


def test_every_small_recipe_is_a_twin_or_says_its_trainer() -> None:
    assert sorted(["smoke-cpu", "smoke-cpu-dpo", "smoke-cpu-grpo", "smoke-cpu-lora", *TWINS]) == SMALL


@pytest.mark.parametrize("name", sorted(FILES))
def test_it_is_found_by_its_name_and_loads(name: str) -> None:
    recipe = load_recipe(find_recipe(name))
    assert str(recipe.output.dir) == f"runs/{name}"
    assert (recipe.base.build is not None) == name.startswith("smoke-cpu")


@pytest.mark.parametrize("name", LARGE)
def test_a_twin_changes_what_a_cpu_needs_and_nothing_else(name: str) -> None:
    twin = load_recipe(FILES[f"smoke-cpu-{name}"])
    family = "glm" if "glm" in name else "llama"
    assert twin.base.build == f"tiny-{family}"
    assert (twin.training.use_cpu, twin.training.bf16, twin.data.config) == (True, False, "sample")
    odd = {key for key in changed(name, f"smoke-cpu-{name}") if not FOR_A_CPU.fullmatch(key)}
    assert odd == ({"data.mix.general"} if name == "rolellama-specific" else set())


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("llama-script", {"data.source", "training.max_length", "training.truncate_replies"}),
        ("rolellama-retrieval", {"prompt.profile", "training.max_length"}),
        ("rolellama-general", {"data.mix.role_specific"}),
        ("rolellama-specific", {"data.mix.general", "training.num_train_epochs", "training.save_steps"}),
        ("rolellama-3.1-8b-qlora", {"base.model", "base.revision", "prompt.form"}),
    ],
)
def test_a_variant_differs_from_rolellama_in_what_its_name_says(name: str, keys: set[str]) -> None:
    assert changed(name, "rolellama-7b-qlora") == keys | {"output.dir"}


def test_the_docs_name_every_recipe_and_only_keys_that_there_are() -> None:
    docs = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    named = {"smoke-cpu", "smoke-cpu-lora", *LARGE, *OWN}
    table = docs[docs.index("| recipe |") :].split("\n\n")[0]
    assert named <= {name for line in table.splitlines() for name in re.findall(r"`([\w.-]+)`", line.split("|")[1])}
    heads = [file.read_text(encoding="utf-8") for file in (ROOT / "recipes").rglob("*.yaml")]
    overrides = re.findall(r"--set ([a-z_]+\.[a-z_.]+=[^ `\n]+)", "\n".join([docs, *heads]))
    values = [override for override in overrides if not override.endswith(("=DIR", "=FILE", "=CONFIG"))]
    assert len(values) >= 8
    for override in values:
        load_recipe(FILES["rolellama-7b-qlora"], [override])


def test_a_wheel_has_all_of_the_folder_and_finds_a_recipe_with_what_it_extends(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    site = tmp_path / "site"
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as packed:
        packed.extractall(site)
    there = site / "rolellm" / "training" / "recipes"
    expected = {file.relative_to(ROOT / "recipes") for file in (ROOT / "recipes").rglob("*.*")}
    expected = {file for file in expected if "__pycache__" not in file.parts}
    assert {file.relative_to(there) for file in there.rglob("*.*")} == expected
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from rolellm.training.recipe_files import find_recipe, load_recipe\n"
        "file = find_recipe('smoke-cpu-rolellama-general'); load_recipe(file); print(file)"
    )
    command = [sys.executable, "-c", code, str(site)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).is_relative_to(site)


# --- accelerate


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
