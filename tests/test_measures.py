"""What the command line measures, called from Python: the same objects, shown as tables."""

import json
from pathlib import Path

import pytest

import rolellm

from .commands import Command


@pytest.fixture
def predictions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two files of predictions for the sample: every first reference, and one reply for all."""
    monkeypatch.chdir(tmp_path)
    rows = list(rolellm.load_rolebench("sample", "test"))
    files = []
    for name in ("good", "dull"):
        replies = [{"id": row["id"], "prediction": row["references"][0] if name == "good" else "Yes."} for row in rows]
        files.append(tmp_path / f"{name}.jsonl")
        files[-1].write_text("\n".join(map(json.dumps, replies)), encoding="utf-8")
    return files


def test_style_is_what_the_command_prints(predictions: list[Path], command: Command) -> None:
    found = rolellm.style(predictions[0], "sample")
    words = ("score", "--style", predictions[0], "--config", "sample", "--json")
    assert found.to_dict() == command(*words).json
    assert "replies" in repr(found) and "<table" in found._repr_html_()


def test_check_without_a_model_says_so(tmp_path: Path) -> None:
    file = tmp_path / "ada.character.yaml"
    file.write_text("role: queen of hearts\nknows: []\n", encoding="utf-8")
    with pytest.raises(rolellm.RoleLLMError):
        rolellm.check(file)
