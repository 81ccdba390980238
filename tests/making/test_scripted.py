"""The rule-based answers to the stages' prompts: good enough that filters keep most, bad enough that they drop some."""

from pathlib import Path

from rolellm.core.records import Profile
from rolellm.data.rolebench.release import load_profiles
from rolellm.llm.llm import LLM
from rolellm.making.instruct.run import Instruct
from rolellm.making.scripted import scripted_model
from rolellm.making.settings import InstructSettings
from rolellm.runs import run_step


def test_filters_keep_what_says_something_new_and_each_has_something_to_do(tmp_path: Path) -> None:
    dropped: set[str | None] = set()
    for profile in load_profiles("sample"):
        character = Profile(profile.role, profile.language, profile.turns, description=profile.description)
        settings = InstructSettings(per_role=150, chunk_tokens=300)
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
