"""`rolellm demo`, as the README's first command ends in it."""

import html.parser
import json
import subprocess
import sys

import pytest

# The demo takes 48 s of processor time.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """One demo, run as a user runs it; its folder, its summary and what it printed."""
    folder = tmp_path_factory.mktemp("demo")
    command = [sys.executable, "-m", "rolellm", "demo", "--out", "out"]
    shown = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=580)
    assert shown.returncode == 0, shown.stderr
    return folder / "out", json.loads((folder / "out" / "summary.json").read_text("utf-8")), shown.stdout


def test_tuned_is_clearly_above_untuned_on_held_out_questions(demo):
    _, result, _ = demo
    untuned, tuned, baseline = result["metrics"].values()
    for metric in ("CUS", "SPE"):
        assert tuned[metric]["ci95"][0] > untuned[metric]["ci95"][1], metric
        assert tuned[metric]["mean"] < baseline[metric]["mean"], metric
        assert tuned[metric]["n"] == untuned[metric]["n"] == baseline[metric]["n"] > 0


def test_report_is_self_contained_and_shows_all(demo):
    folder, result, _ = demo
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert result["report"].endswith("report.html")
    html.parser.HTMLParser().feed(page)
    for text in ("untuned", "tuned", "RoleGPT", "Long John Silver", "诸葛亮", "<svg"):
        assert text in page
    for text in ("Made from a script", "No language model was asked", "鲁智深.txt", "Dropped: ", "characters "):
        assert text in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page


def test_the_judge_ranks_them_and_its_run_can_be_reported_again(demo):
    folder, result, _ = demo
    models = {one["name"]: one for one in result["judged"]["models"]}
    canaries = {"canary: null model", "canary: echo", "canary: another role"}
    assert set(models) == {"untuned", "tuned", "RoleGPT"} | canaries
    # The judge of shared words: so small models win little against RoleGPT, and an echo wins least.
    ranks = {name: one["listwise"]["average_rank"]["mean"] for name, one in models.items()}
    assert min(ranks, key=ranks.__getitem__) == "RoleGPT" and max(ranks, key=ranks.__getitem__) == "canary: echo"
    assert result["judged"]["valid"] and result["judged"]["problems"] == []
    assert result["judged"] == json.loads((folder / "judged" / "result.json").read_text())
    page = (folder / "report.html").read_text(encoding="utf-8")
    for text in ("canary: echo", "is not a language model", "length-controlled", 'id="questions"'):
        assert text in page


def test_it_says_what_came_out_first_and_ends_with_what_to_do(demo):
    _, result, printed = demo
    assert any("closer to the role's own replies than untuned" in finding for finding in result["findings"])
    first, *_, last = printed.splitlines()
    assert first == result["findings"][0] and "rolellm make CARD" in last


def test_the_tuned_role_can_be_talked_to(demo):
    folder, _, _ = demo
    words = ["chat", str(folder / "made" / "Queen_of_Hearts"), "--model", str(folder / "run"), "--set", "max_tokens=16"]
    shown = subprocess.run(
        [sys.executable, "-m", "rolellm", *words], input="Who are you?\n", capture_output=True, text=True, timeout=120
    )
    assert shown.returncode == 0 and "Queen of Hearts: " in shown.stdout, shown.stderr


def test_a_folder_with_other_files_is_left_alone(tmp_path, command):
    (tmp_path / "thesis.txt").write_text("years of work")
    shown = command("demo", "--out", tmp_path)
    assert shown.code == 2
    assert "holds other files" in shown.err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
