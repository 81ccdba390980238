"""What the stages made becomes a release: it loads as the published one does, and holds out what it says."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from rolellm import Character, load_rolebench
from rolellm.characters.folder import read_character, write_character
from rolellm.cli.app import app
from rolellm.core.errors import DataError, SettingsError
from rolellm.core.files import write_json
from rolellm.core.jsonl import read_jsonl, write_jsonl
from rolellm.core.records import Language, Profile, Turn
from rolellm.core.text import fold
from rolellm.data.rolebench import dataset_fingerprint
from rolellm.data.rolebench.build import build
from rolellm.data.rolebench.release import load_profiles
from rolellm.data.rolebench.source import MissingFilesWarning
from rolellm.making.release import gather, select_held_out_questions, write_release
from rolellm.making.settings import SplitRule

GENERAL = [f"Name a thing number {number}." for number in range(10)]


def make(folder: Path, role: str, language: Language = "en", *, questions: int = 8, general: int = 10) -> Path:
    turns = (
        Turn("scene", "A road.", "direction", 0),
        Turn("Other", "Who goes there?", "speech", 0),
        Turn(role, f"It is {role}.", "speech", 0),
        Turn("narrator", "Silence.", "narration", 1),
    )
    about: dict[str, Any] = {"description": f"You are {role}.", "catchphrases": ("Ha!",), "script": "a.txt"}
    write_character(Profile(role, language, turns, made={"model": "m"}, **about), folder)
    own = [(f"{role}, what is {number}?", number) for number in range(questions)]
    kept = [
        {"id": f"q{number}", "question": question, "answer": f"{number} it is.", "confidence": "Completeness: high."}
        | {"type": "script_based" if number % 2 else "script_agnostic"}
        for question, number in own
    ]
    said = {"role": role, "generated": [f"{role} says {copy}" for copy in range(5)], "rolegpt": f"{role} says 5"}
    replies = [said | {"question": question, "target": "a thing"} for question in GENERAL[:general]]
    answered = [{"role": role, "question": question, "generated": ["Well."]} for question, _ in own]
    for run, name, lines, model in (
        ("instruct", "kept", kept, "asker"),
        ("respond", "replies", replies, "voice"),
        ("respond-own", "replies", answered, "voice"),
    ):
        write_jsonl(folder / run / f"{name}.jsonl", lines)
        write_json(folder / run / "manifest.json", {"models": {"endpoints": [{"backend": "openai", "model": model}]}})
    return folder


def rows(path: Path) -> list[dict[str, Any]]:
    return [value for _, value in read_jsonl(path)]


def test_it_loads_as_the_published_release_does(tmp_path: Path) -> None:
    folders = [make(tmp_path / name, name) for name in ("Ann", "Bob", "Dr. Frank/N-Furter")]
    summary = write_release([gather(folder) for folder in folders], tmp_path / "out")
    assert summary.configs == ("instruction-generalization-eng", "role-generalization-eng")
    for config in summary.configs:
        train, test = (load_rolebench(config, split, data_dir=tmp_path / "out") for split in ("train", "test"))
        assert len(train) + len(test) == 3 * 18
        assert all(row["role_description"].startswith(f"You are {row['role']}. Your catchphrase is:") for row in test)
        assert {row["rolegpt"] for row in test if row["subset"] == "role_specific"} == {"Well."}
        general = [row for row in test if row["subset"] == "general"]
        assert {row["raw_reference"] for row in general} == {"a thing"}
        assert {len(row["references"]) for row in general} == {5}
        assert all(row["rolegpt"] == f"{row['role']} says 5" for row in general)
        if config.startswith("role"):
            assert not set(train["role"]) & set(test["role"]) and len(set(test["role"])) == 1
        else:
            assert not set(map(fold, train["question"])) & set(map(fold, test["question"]))
            assert set(train["role"]) == set(test["role"])
    profiles = {profile.role: profile for profile in load_profiles(data_dir=tmp_path / "out")}
    assert set(profiles) == {"Ann", "Bob", "Dr. Frank/N-Furter"}
    assert [turn.kind for turn in profiles["Ann"].turns] == ["direction", "speech", "speech", "narration"]


def test_a_data_set_with_one_config_needs_no_name_and_lacks_nothing(tmp_path: Path) -> None:
    """Warnings are errors here: nothing is missing that the manifest does not promise."""
    write_release([gather(make(tmp_path / "zh", "李白", "zh", general=0))], tmp_path / "out")
    data = load_rolebench(data_dir=tmp_path / "out")
    assert set(data["train"]["role"]) == {"李白"} and set(data) == {"train", "test"}
    assert dataset_fingerprint(data_dir=tmp_path / "out") == dataset_fingerprint(
        "instruction-generalization-zh", tmp_path / "out"
    )
    assert len(load_rolebench("sample", data_dir=tmp_path / "out")["train"]) == len(data["train"])
    lost = "rolebench-zh/role_specific/test.jsonl"
    (tmp_path / "out" / lost).unlink()
    with pytest.warns(MissingFilesWarning, match=f": {lost}. Splits"):
        load_rolebench(data_dir=tmp_path / "out")


def published(source: Path, out: Path, *options: Any, **more: Any) -> tuple[dict[str, Any], str]:
    build(out, *options, data_dir=source, **more)
    front, _, text = (out / "README.md").read_text(encoding="utf-8").removeprefix("---").partition("\n---\n")
    return yaml.safe_load(front), text


@pytest.mark.filterwarnings("ignore:rolebench '")
def test_its_card_is_its_own(tmp_path: Path) -> None:
    bob = replace(
        read_character(make(tmp_path / "Bob", "Bob")), made={"card": {"creator": "Zoe", "character_version": "2"}}
    )
    write_character(bob, tmp_path / "Bob")
    roles = [gather(make(tmp_path / "Ann", "Ann")), gather(tmp_path / "Bob")]
    write_release(roles, tmp_path / "mine", SplitRule(held_out=("Bob",)))
    front, text = published(tmp_path / "mine", tmp_path / "out")
    configs = ["instruction-generalization-eng", "instructions", "role-generalization-eng", "roles"]
    assert [config["config_name"] for config in front["configs"]] == configs
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["README.md", *configs]
    assert "license" not in front and front["pretty_name"] == "mine" and front["language"] == ["en"]
    assert front["source_datasets"] == ["original"] and text.startswith("\n# mine\n")
    assert "| Ann | en | not recorded | – | asker | voice | 8 | 10 |" in text
    assert "| Bob | en | character card by Zoe, version 2 | the card | asker | voice | 8 | 10 |" in text
    assert "holds out Bob." in text
    for words in ("ZenMoore", "Apache", "-strict", "second person", "benchmark of", "Not at hand"):
        assert words not in text
    both = ["sample", "role-generalization-eng-strict"]
    front, text = published(tmp_path / "mine", tmp_path / "out", both, home="me/ann", licence="cc-by-4.0")
    assert front["license"] == "cc-by-4.0" and front["pretty_name"] == "ann" and "under Apache-2.0" in text
    assert sorted(config["config_name"] for config in front["configs"]) == sorted(both)
    assert not (tmp_path / "out" / "eval.yaml").exists()


@pytest.mark.filterwarnings("ignore:rolebench '")
def test_publishing_it_needs_a_license(tmp_path: Path) -> None:
    write_release([gather(make(tmp_path / "Ann", "Ann"))], tmp_path / "mine")
    push = ["data", "push", "me/ann", "--data-dir", str(tmp_path / "mine"), "--dry-run", "--json"]
    refused = CliRunner().invoke(app, push)
    assert isinstance(refused.exception, SettingsError) and "--license" in str(refused.exception)
    sent = json.loads(CliRunner().invoke(app, [*push, "--license", "mit"]).stdout)["sent"]
    assert not any("sample" in path or "strict" in path for path in sent)


@given(st.lists(st.text(min_size=1), min_size=2, unique_by=fold), st.floats(0.05, 0.95), st.integers(0, 5))
def test_the_rule_depends_on_the_text_alone(questions: list[str], share: float, seed: int) -> None:
    rule = SplitRule(test_share=share, seed=seed)
    held_out = select_held_out_questions(rule, questions)
    assert held_out == select_held_out_questions(rule, [f" {question}\n" for question in questions[::-1]] + questions)
    assert 1 <= len(held_out) < len({fold(question) for question in questions}) or len(questions) < 2


def test_runs_of_an_earlier_profile_are_pointed_out(tmp_path: Path) -> None:
    role = make(tmp_path / "fox", "Fox")
    sheet = read_character(role)
    for run in ("instruct", "respond"):
        write_json(role / run / "manifest.json", {"character": sheet.fingerprint})
    assert not write_release([gather(role)], tmp_path / "a").gaps[1:]
    write_character(replace(sheet, description="You are a wolf."), role)
    assert Character.load(role).to_dict()["stages"]["instruct"] == "outdated"
    notes = write_release([gather(role)], tmp_path / "b").gaps
    assert [note.partition(",")[0] for note in notes[:2]] == [
        "instruct of Fox was made from an earlier profile",
        "respond of Fox was made from an earlier profile",
    ]


@pytest.mark.parametrize("lost", ["instruct/kept.jsonl", "respond/replies.jsonl", "dialogue.jsonl"])
def test_lost_files_are_named(tmp_path: Path, lost: str) -> None:
    role = make(tmp_path / "fox", "Fox")
    write_character(replace(read_character(role), made={"source": {"file": "a.txt"}}), role)
    (role / lost).unlink()
    with pytest.raises(DataError, match=f"{Path(lost).name} is missing"):
        gather(role)


def test_what_cannot_be_held_out(tmp_path: Path) -> None:
    fox, monk = gather(make(tmp_path / "fox", "Fox")), gather(make(tmp_path / "monk", "李白", "zh"))
    with pytest.raises(SettingsError, match="not all, of the English roles"):
        write_release([fox, monk], tmp_path / "out", SplitRule(held_out=("Fox",)))
    with pytest.raises(SettingsError, match="cannot hold out Zed"):
        write_release([fox, monk], tmp_path / "out", SplitRule(held_out=("Zed",)))


def test_the_folder_one_is_in_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ann = gather(make(tmp_path / "Ann", "Ann"))
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")
    with pytest.raises(SettingsError, match="the current folder"):
        write_release([ann], "..")
