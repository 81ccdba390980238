"""A folder with a character, as several commands read it."""

import json
from pathlib import Path

import pytest

from rolellm.characters.folder import write_character
from rolellm.core.records import Profile, Turn


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a character in ``fox``, seven instructions, and settings of the rules that ship."""
    turns = (Turn("Crow", "Where is the map?", "speech"), Turn("Fox", "I ate the map, you rat.", "speech"))
    write_character(Profile("Fox", "en", turns, description="You are a fox."), tmp_path / "fox")
    lines = [{"instruction": f"Question {number}: who has the map?"} for number in range(7)]
    (tmp_path / "asked.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    (tmp_path / "llm.yaml").write_text("endpoints: [{backend: scripted, rules: quotes}]\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path
