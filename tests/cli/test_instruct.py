"""``rolellm instruct`` through its entry point, with the scripted model."""

from pathlib import Path
from typing import Any

import pytest

from rolellm.characters.folder import write_character
from rolellm.core.records import Profile
from rolellm.data.rolebench.release import load_profiles

from ..commands import Command, Shown


@pytest.fixture
def run(command: Command, tmp_path: Path) -> Command:
    """Runs ``rolellm instruct`` with these words, and with the scripted model."""
    (tmp_path / "llm.yaml").write_text("endpoints: [{backend: scripted, rules: quotes}]\n", encoding="utf-8")

    def call(*words: Any, model: bool = True) -> Shown:
        return command("instruct", *words, *(["--llm", tmp_path / "llm.yaml"] if model else []))

    return call


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """A role of the sample as a character's folder."""
    (found,) = load_profiles("sample", roles=["Queen of Hearts"])
    character = Profile(found.role, found.language, found.turns, description=found.description)
    return write_character(character, tmp_path / "queen")


def test_a_table_for_people_and_a_warning_when_the_model_has_no_more(
    run: Command, profile: Path, tmp_path: Path
) -> None:
    shown = run(profile, "--out", tmp_path / "elsewhere")
    assert shown.code == 0
    assert "dropped: duplicate" in shown.out
    assert "from the journal" in shown.out
    assert "warning:" in shown.err
    assert "different questions of the 400 requested" in shown.err
    assert "the model finds no more in this profile" in shown.err
    assert (tmp_path / "elsewhere/kept.jsonl").is_file()
    assert not (profile / "instruct").exists()


def test_a_run_without_any_reply_fails_and_says_why(run: Command, profile: Path, tmp_path: Path) -> None:
    (tmp_path / "down.yaml").write_text("{endpoints: [{base_url: 'http://127.0.0.1:9/v1', model: m}], max_attempts: 1}")
    shown = run(profile, "--per-role", 10, "--llm", tmp_path / "down.yaml", "--json", model=False)
    assert shown.code == 1
    assert shown.json["counts"]["candidates"] == 0 and shown.json["requests"]["failed"] == 2
    assert "retry_failed=true" in shown.err
