"""`rolellm demo`, as the README's first command ends in it."""

import json
import subprocess
import sys

import pytest

# The demo takes 25 s of processor time.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def demo(tmp_path_factory, warm):
    """One demo, run as a user runs it; its folder, its summary and what it printed."""
    folder = tmp_path_factory.mktemp("demo")
    printed = warm(["demo", "--out", "out"], folder)
    return folder / "out", json.loads((folder / "out" / "summary.json").read_text("utf-8")), printed


def test_tuned_is_clearly_above_untuned_on_held_out_questions(demo):
    _, result, _ = demo
    untuned, tuned, baseline = result["metrics"].values()
    assert tuned["CUS"]["ci95"][0] > untuned["CUS"]["ci95"][1]
    assert any("tuned is ahead in style and knowledge" in finding for finding in result["findings"])
    for metric in ("CUS", "SPE"):
        assert untuned[metric]["mean"] < tuned[metric]["mean"] < baseline[metric]["mean"], metric
        assert tuned[metric]["n"] == untuned[metric]["n"] == baseline[metric]["n"] > 0


def test_it_says_what_came_out_first_and_ends_with_what_to_do(demo):
    _, result, printed = demo
    assert any("tuned is ahead in style and knowledge" in finding for finding in result["findings"])
    first, *_, last = printed.splitlines()
    assert first == result["findings"][0] and "rolellm make CARD" in last


def test_the_tuned_role_can_be_talked_to(demo):
    folder, _, _ = demo
    words = ["chat", str(folder / "made" / "Queen_of_Hearts"), "--model", str(folder / "run"), "--set", "max_tokens=16"]
    shown = subprocess.run(
        [sys.executable, "-m", "rolellm", *words], input="Who are you?\n", capture_output=True, text=True, timeout=120
    )
    assert shown.returncode == 0 and "Queen of Hearts: " in shown.stdout, shown.stderr
