"""The demo's first part alone: roles out of the sample's scripts, offline, by the functions behind the commands."""

import json

import pytest
from typer.testing import CliRunner

from rolellm.characters.folder import read_character
from rolellm.cli.app import app
from rolellm.core.errors import RunInUseError
from rolellm.core.files import write_json
from rolellm.core.jsonl import read_jsonl
from rolellm.core.locks import lock_folder
from rolellm.data.rolebench import load_rolebench
from rolellm.demo import run_whole_loop
from rolellm.demo.making import ROLES, make_roles


@pytest.fixture(scope="module")
def lines():
    return []


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("demo") / "made"


@pytest.fixture(scope="module")
def made(folder, lines):
    # What was there before is no part of it.
    (folder / "release").mkdir(parents=True)
    (folder / "release" / "old.txt").write_text("of an earlier demo")
    return make_roles(folder, lines.append)


def test_counts_are_those_of_the_scripts(made):
    queen, monk = made["roles"]
    assert (queen["role"], monk["role"]) == ROLES
    # Counted by hand: speeches, what is told in brackets, and the role's own speeches.
    assert (queen["turns"]["speech"], sum(queen["turns"].values()), queen["own_lines"]) == (23, 32, 12)
    assert (monk["turns"]["speech"], sum(monk["turns"].values()), monk["own_lines"]) == (21, 31, 11)
    # The monk repeats nothing in so short a script.
    assert queen["catchphrases"] and not monk["offered"]
    for role in made["roles"]:
        assert len(role["catchphrases"]) <= min(3, role["offered"])
        assert role["candidates"] == role["kept"] + sum(role["dropped"].values())
        assert 15 < role["kept"] < role["candidates"]
        assert role["replies"] == 6 * role["instructions"] == 60
        assert len(role["pairs"]) == 3 and role["pairs"][0]["question"] != role["pairs"][1]["question"]


def test_release_loads_and_shares_no_question(made):
    for config in ("instruction-generalization-eng", "instruction-generalization-zh"):
        train, test = (load_rolebench(config, split, data_dir=made["release"]) for split in ("train", "test"))
        assert not set(train["question"]) & set(test["question"])
        # A row for each instruction and each pair kept, and none twice.
        (role,) = (role for role in made["roles"] if role["role"] == test["role"][0])
        assert len(train) + len(test) == role["instructions"] + role["kept"] and len(train) > len(test) > 0
        assert set(test["subset"]) == {"general", "role_specific"}
        assert all(row["rolegpt"] for row in test)
        assert all(row["role_description"] for row in train)


def test_folders_are_those_of_the_commands(made, folder):
    assert not (folder / "release" / "old.txt").exists()
    for role in made["roles"]:
        home = folder / role["role"].replace(" ", "_")
        character = read_character(home)
        assert character.catchphrases == role["catchphrases"]
        kept = [value for _, value in read_jsonl(home / "instruct" / "kept.jsonl")]
        dropped = [value for _, value in read_jsonl(home / "instruct" / "dropped.jsonl")]
        assert (len(kept), len(dropped)) == (role["kept"], sum(role["dropped"].values()))
    shown = CliRunner().invoke(app, ["role", "card", str(home), "--json"])
    assert set(json.loads(shown.stdout)["stages"].values()) == {"done"}


def test_a_second_demo_in_the_same_folder_is_refused(tmp_path, monkeypatch):
    # It would change settings of the whole process.
    monkeypatch.setattr("rolellm.demo.loop._settle_libraries", lambda: None)
    write_json(tmp_path / "summary.json", {"state": "running"})
    with lock_folder(tmp_path), pytest.raises(RunInUseError, match="in use by another run"):
        run_whole_loop(tmp_path)
    assert not (tmp_path / "made").exists()


def test_a_link_is_removed_and_not_followed(tmp_path):
    (tmp_path / "diary").mkdir()
    (tmp_path / "diary" / "mine.txt").write_text("mine")
    (tmp_path / "made").symlink_to(tmp_path / "diary")
    make_roles(tmp_path / "made", roles=ROLES[:1])
    assert [path.name for path in (tmp_path / "diary").iterdir()] == ["mine.txt"]
