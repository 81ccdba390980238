"""Script dialogue out of the release: found by role, read turn by turn, refused by line."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rolellm.core.errors import DataError, ReleaseNotFoundError
from rolellm.data.rolebench.release import load_profiles
from rolellm.data.rolebench.source import MissingFilesWarning

CONFIG = "instruction-generalization-eng"


def path(role: str) -> str:
    return f"profiles-eng/profiles-eng-{role}.jsonl"


def line(role: str, content: str, act: Any = 0, number: int = 0) -> dict[str, Any]:
    return {"role": role, "content": content, "act_id": act, "diag_id": number}


FOX = [line("scene", "A vineyard."), line("Crow", "Sing!", 0, 1), line("Fox", "No.", 0, 2), line("Fox", "Sour!", 1, 0)]
OWL = [line("Fox", "Awake?"), line("Owl", "Ever.", 0, 1)]


def test_the_sample_is_read_whole_and_in_order() -> None:
    profiles = load_profiles("sample")
    roles = [(profile.role, profile.language) for profile in profiles]
    assert roles == [("Long John Silver", "en"), ("Queen of Hearts", "en"), ("鲁智深", "zh"), ("诸葛亮", "zh")]
    for profile in profiles:
        told = {turn.speaker for turn in profile.turns if turn.kind == "narration"}
        assert told == ({"scene", "narrator"} if profile.language == "en" else {"旁白"})
        assert any(map(profile.owns, profile.turns))
        assert profile.description


@pytest.mark.parametrize(
    ("asked", "file", "speaker"),
    [
        pytest.param("Dr. Frank-N-Furter", "Dr Frank-N-Furter", "DR. FRANK N FURTER", id="punctuation and case"),
        pytest.param("Narrator", "Narrator", "narrator", id="a narrator who is the role"),
    ],
)
def test_names_need_not_be_spelled_alike(write_release: Any, asked: str, file: str, speaker: str) -> None:
    descriptions = json.dumps({file: "You are it."})
    rows = [line("Crow", "Well?"), line(speaker, "Yes.")]
    folder = write_release(**{path(file): rows, "profiles-eng/desc.json": descriptions})
    (profile,) = load_profiles(CONFIG, folder, roles=[asked])
    assert (profile.role, profile.description) == (asked, "You are it.")
    assert [profile.owns(turn) for turn in profile.turns] == [False, True]


@pytest.mark.parametrize(
    "owl",
    [pytest.param(None, id="no file"), pytest.param([line("Fox", "Awake?")], id="a file in which it says nothing")],
)
@pytest.mark.parametrize("roles", [pytest.param(None, id="all"), pytest.param(["Fox", "Owl"], id="by name")])
def test_roles_without_dialogue_are_named(write_release: Any, owl: Any, roles: list[str] | None) -> None:
    folder = write_release(**{path("Fox"): FOX, path("Owl"): owl})
    with pytest.warns(MissingFilesWarning, match=r"of 1 roles, which are skipped: Owl$") as caught:
        profiles = load_profiles(CONFIG, folder, roles=roles)
    assert [profile.role for profile in profiles] == ["Fox"]
    assert Path(caught[0].filename) == Path(__file__)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        pytest.param('{"role": "Fox"', "not valid JSON", id="cut off"),
        pytest.param('{"role": "Fox", "content": "Aha.", "act_id": true}', "found True", id="a truth for act"),
    ],
)
def test_a_bad_line_is_named(write_release: Any, bad: str, message: str) -> None:
    folder = write_release(**{path("Fox"): json.dumps(FOX[0]) + "\n\n" + bad + "\n", path("Owl"): OWL})
    with pytest.raises(DataError, match=message) as caught:
        load_profiles(CONFIG, folder)
    assert (caught.value.path, caught.value.line) == (folder / path("Fox"), 3)


def test_the_hub_is_asked_for_profiles_only(write_release: Any, release_hub: Any, clean_env: dict[str, str]) -> None:
    hub = release_hub(write_release(**{path("Fox"): FOX, path("Owl"): OWL, "unrelated/huge.bin": "x"}))
    code = "from rolellm.data.rolebench.release import load_profiles; print([item.role for item in load_profiles()])"
    shown = subprocess.run(
        [sys.executable, "-c", code], env=hub.env(clean_env), capture_output=True, text=True, timeout=120
    )
    assert shown.stdout.strip() == "['Fox', 'Owl']", shown.stderr
    assert set(hub.requested) == {"profiles-eng/desc.json", path("Fox"), path("Owl")}


def test_no_dialogue_at_all_names_the_files_and_a_way_out(write_release: Any) -> None:
    with pytest.raises(ReleaseNotFoundError) as caught:
        load_profiles(CONFIG, write_release())
    for word in ("Fox, Owl", "profiles-eng/profiles-eng-*.jsonl", "Hub", "sample"):
        assert word in str(caught.value)
