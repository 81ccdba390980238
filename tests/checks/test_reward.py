"""``rolellm check reward``: verdicts, intervals, exit codes, and what is refused."""

import json
from pathlib import Path

import pytest

from rolellm.core.errors import RecipeError
from rolellm.core.jsonl import write_jsonl
from rolellm.measures import audit_reward

from ..commands import Command

GOOD = [f"rolellm.rewards.{name}" for name in ("in_character", "knowledge", "style", "answer", "rouge")]


def test_length_is_beaten(command: Command, tmp_path: Path) -> None:
    # A name without a dot is one of ours.
    told = command("check", "reward", "length", "--limit", 30, "--out", tmp_path / "out")
    assert told.code == 1
    assert told.out.startswith("length: a canary that should lose wins or ties")
    manifest = json.loads((tmp_path / "out/manifest.json").read_text(encoding="utf-8"))
    assert manifest["summary"]["rewards"]["length"]["empty"]["verdict"] == "beaten"


def test_the_rewards_of_the_recipe_hold_together(command: Command, tmp_path: Path) -> None:
    words = ("check", "reward", *GOOD, "--limit", 60, "--out", tmp_path / "out", "--json")
    told = command(*words, *(word for weight in (1, 1, 2, 1, 1) for word in ("--set", f"weights={weight}")))
    assert told.code == 0
    together = told.json["rewards"]["together"]
    assert told.json["beaten"] == []
    weak = {"plain": 0.6, "off_topic": 0.7, "sandwich": 0.7}
    assert all(figures["lost"]["mean"] >= weak.get(kind, 0.9) for kind, figures in together.items())
    low, high = together["plain"]["lost"]["ci95"]
    assert low < together["plain"]["lost"]["mean"] <= high
    replies = [json.loads(line) for line in (tmp_path / "out/replies.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {reply["kind"] for reply in replies} >= {"own", "empty", "other_role"}


def test_own_data_and_functions(tmp_path: Path) -> None:
    row = {"role": "Mara", "question": "Who keeps the light?", "references": ["I keep it.", "It is me, girl."]}
    write_jsonl(tmp_path / "rows.jsonl", [row])

    def nonsense(completions: list[object], **_: object) -> list[float]:
        return [0.0] * len(completions)

    result = audit_reward(nonsense, tmp_path / "rows.jsonl", out=tmp_path / "out").result
    assert result.rows == result.held_out == 1
    assert "empty" in result.beaten
    with pytest.raises(RecipeError, match="there is no"):
        audit_reward("rolellm.nothing", [row], out=tmp_path / "other")
