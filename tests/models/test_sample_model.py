"""The tiny model that comes with the package."""

import json
import runpy
from pathlib import Path

import pytest

import rolellm
from rolellm.models.find import SAMPLE, locate_model, read_trained_on
from rolellm.models.training_record import hash_instruction
from rolellm.training.recipe_files import load_recipe


def test_it_is_found_by_its_name_unless_a_folder_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path(locate_model(SAMPLE))
    assert sum(file.stat().st_size for file in folder.iterdir()) < 2_300_000
    assert load_recipe("adapter", base=SAMPLE).base.path == folder
    (tmp_path / SAMPLE).mkdir()
    assert locate_model(SAMPLE) == SAMPLE


def test_it_speaks_as_its_roles() -> None:
    assert "Guards" in rolellm.RolePlayer(SAMPLE, "Queen of Hearts", temperature=0).reply("May I sit down?")


def test_it_was_trained_on_no_test_row() -> None:
    trained_on = read_trained_on(locate_model(SAMPLE))
    questions = rolellm.load_rolebench("sample", "test")["question"]
    assert trained_on.instructions.isdisjoint(map(hash_instruction, questions))


def test_its_script_is_the_one_that_made_it(root: Path) -> None:
    overrides = runpy.run_path(str(root / "dev" / "sample_model.py"))["OVERRIDES"]
    manifest = json.loads((Path(locate_model(SAMPLE)) / "manifest.json").read_text(encoding="utf-8"))
    for override in overrides:
        key, _, text = override.partition("=")
        value = manifest["recipe"]
        for name in key.split("."):
            value = value[name]
        assert value == float(text), key
