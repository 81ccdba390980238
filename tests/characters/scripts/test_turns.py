"""Turns as files, in both layouts, there and back."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.characters.scripts.turns import read_turns, write_turns
from rolellm.core.errors import DataError
from rolellm.core.records import Turn
from rolellm.data.rolebench.release import load_profiles

TURNS = (
    Turn("scene", "A vineyard.", "narration", 0, 0, 11),
    Turn("Crow", "Sing!", "speech", 0, 12, 17),
    Turn("stage direction", "laughs", "direction", 0, 18, 24),
    Turn("Fox", "No.", "speech", 0, 25, 28),
    Turn("?", "Hm.", "speech", 3, 30, 33),
    Turn("Fox", "Sour!", "speech", 3, 34, 39),
)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_releases_layout(tmp_path: Path, write_release: Any) -> None:
    path = tmp_path / "turns.jsonl"
    assert write_turns(path, TURNS, "Fox", layout="release") == 6
    assert rows(path)[4] == {"role": "?", "content": "Hm.", "act_id": 3, "diag_id": 0}
    read = tuple(read_turns(path, "Fox"))
    assert [(turn.speaker, turn.content, turn.kind) for turn in read] == [(t.speaker, t.content, t.kind) for t in TURNS]
    assert [turn.scene for turn in read] == [0, 0, 0, 0, 1, 1]
    # The data set's own reader says the same.
    folder = write_release(**{"profiles-eng/profiles-eng-Fox.jsonl": path.read_text(encoding="utf-8")})
    assert load_profiles("instruction-generalization-eng", folder, roles=["Fox"])[0].turns == read


@pytest.mark.parametrize("role", ["Narrator", "Stage Direction", "旁白", "scene"])
def test_a_role_that_is_called_like_narration(tmp_path: Path, role: str) -> None:
    path = tmp_path / "turns.jsonl"
    turns = [Turn(role, "Once.", "speech"), Turn("narrator", "A bell.", "narration"), Turn("x", "exits", "direction")]
    write_turns(path, turns, role, layout="release")
    read = [(turn.kind, turn.content, turn.speaker == role) for turn in read_turns(path, role)]
    assert read == [("speech", "Once.", True), ("narration", "A bell.", False), ("direction", "exits", False)]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        pytest.param('{"role": "Fox"', "not valid JSON", id="cut off"),
        pytest.param('{"role": "a", "content": "x", "kind": "speech", "scene": 0, "end": "9"}', "'9'", id="a text"),
        pytest.param('{"role": "a", "content": "\\ud800", "kind": "speech", "scene": 0}', "half a", id="surrogate"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, bad: str, message: str) -> None:
    path = tmp_path / "turns.jsonl"
    write_turns(path, TURNS[:2], "Fox")
    path.write_text(path.read_text(encoding="utf-8") + bad + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=message) as caught:
        list(read_turns(path))
    assert caught.value.line == 3


@given(
    st.lists(
        st.builds(
            Turn,
            speaker=st.sampled_from(["Fox", "Crow", "narrator", "旁白", "First Fox"]),
            content=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(str.strip),
            kind=st.sampled_from(["speech", "narration", "direction"]),
            scene=st.integers(0, 3),
            start=st.integers(-1, 10**9),
            end=st.integers(-1, 10**9),
        ),
        max_size=8,
    )
)
def test_there_and_back(tmp_path_factory: pytest.TempPathFactory, turns: list[Turn]) -> None:
    path = tmp_path_factory.getbasetemp() / "back.jsonl"
    write_turns(path, turns, "Fox")
    assert list(read_turns(path)) == turns
