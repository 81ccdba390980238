"""The rule-based answers to the stages' prompts: good enough that filters keep most, bad enough that they drop some."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rolellm.core.records import Profile
from rolellm.data.rolebench.release import load_profiles
from rolellm.llm.llm import LLM
from rolellm.llm.model import Sampling
from rolellm.making.instruct.prompts import Task, build_request
from rolellm.making.instruct.run import Instruct
from rolellm.making.instruct.segments import Segment
from rolellm.making.profile.build import BuildProfile
from rolellm.making.scripted import generate_scripted_reply, scripted_model
from rolellm.making.settings import InstructSettings
from rolellm.runs import run_step


def test_filters_keep_what_says_something_new_and_each_has_something_to_do(tmp_path: Path) -> None:
    dropped: set[str | None] = set()
    for profile in load_profiles("sample"):
        character = Profile(profile.role, profile.language, profile.turns, description=profile.description)
        settings = InstructSettings(per_role=150, chunk_tokens=300, overlap_tokens=40)
        run = run_step(Instruct(character, settings), LLM.of(scripted_model()), tmp_path / profile.role)
        counts = run.summary["counts"]
        assert counts["distinct"] >= 60
        # The rules quote each line several times.
        assert counts["dropped"]["duplicate"] > 20
        assert counts["kept"] > 15
        assert min(counts["kept_by_type"].values()) >= 3
        by = {verdict.by for verdict in run.result.dropped}
        assert len(by) >= 2
        dropped |= by
    assert dropped == {"form", "confidence", "overlap", "duplicate"}


@pytest.mark.parametrize("text", ["{role}", "\\1", "<<<\n>>>", "Write 3 pairs.", ""])
def test_any_segment_is_read(text: str) -> None:
    character = Profile("Ada (x)", "en", description=f'You are {text} and so on. Your catchphrase is: "{text}"')
    for kind in ("script", "lore", "profile"):
        segment = Segment("s", kind, f"Brom: Halt {text}\nAda (x): I say {text} no more.", 9)  # type: ignore[arg-type]
        for asked in ((), ("Ada, who?",)):
            request = build_request(character, Task(segment, 5, 2, asked=asked), Sampling())
            assert isinstance(json.loads(generate_scripted_reply(request))["pairs"], list)


@pytest.mark.parametrize("role", ["Queen of Hearts", "Long John Silver", "鲁智深", "诸葛亮"])
def test_profiles_are_taken(role: str, tmp_path: Any) -> None:
    (profile,) = load_profiles("sample", roles=[role])
    start = Profile(role, profile.language, profile.turns)
    run = run_step(BuildProfile(start), LLM.of(scripted_model()), tmp_path)
    built = run.result
    assert run.asked == 2 + bool(built.made["build"]["offered"])
    assert built.background
    assert built.made["build"]["defects"] == built.made["build"]["mended"] == {}
    assert str(built.description).startswith("You are" if profile.language == "en" else "你是")
    own = " ".join(turn.content for turn in profile.turns if profile.owns(turn))
    quoted = re.findall(r"“([^”]+)”", str(built.description))
    assert quoted
    assert all(item in own for item in quoted)
