"""`rolellm.improve`: an adapter trained further and measured against itself before, in one call that continues."""

import json
from pathlib import Path

import pytest

import rolellm
from rolellm.core.errors import ModelError, SettingsError
from rolellm.core.records import Row
from rolellm.core.table import Interval
from rolellm.data.rolebench import load_rolebench
from rolellm.journeys.evaluation import EvalResult
from rolellm.journeys.improving import BEHAVIOR, describe_hacking
from rolellm.models.training_record import MANIFEST
from rolellm.reporting.findings import PairTest

from ..commands import Command

pytestmark = pytest.mark.slow
OPTIONS = {"limit": 12, "max_new_tokens": 6}


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny adapter on the sample."""
    return rolellm.train("smoke-cpu-lora", base=base, out=tmp_path_factory.mktemp("sft") / "ada", max_steps=2).out


def write_recipe(folder: Path, trainer: str) -> str:
    training = "max_steps: 8, replies_per_step: 2"
    if trainer == "grpo":
        training = "max_steps: 8, replies_per_step: 8, max_completion_length: 6, reward_weights: [0, 1, 2]"
        training += ", reward_funcs: [rolellm.rewards.in_character, rolellm.rewards.style, rolellm.rewards.rouge]"
    path = folder / f"{trainer}.yaml"
    path.write_text(f"extends: rocit-{trainer}\ntraining: {{{training}}}\n", encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def improved(adapter: Path, tmp_path_factory: pytest.TempPathFactory) -> EvalResult:
    folder = tmp_path_factory.mktemp("improved")
    return rolellm.improve(adapter, out=folder / "out", recipe=write_recipe(folder, "dpo"), **OPTIONS)


def test_the_first_finding_is_the_verdict_and_behavior_follows(improved: EvalResult) -> None:
    assert improved.findings[0] == "No difference between after and before is shown."
    assert any(all(name in sentence for name in BEHAVIOR) for sentence in improved.findings)
    page = improved.page.read_text(encoding="utf-8")
    assert page.index("No difference between after") < page.index("<table")
    assert improved.reports.keys() == {"after", "before"}


def test_pairs_are_made_of_what_the_adapter_was_trained_on(improved: EvalResult, adapter: Path) -> None:
    manifest = json.loads((improved.out / "adapter" / "manifest.json").read_text())
    assert manifest["recipe"]["base"]["adapter"] == str(adapter)
    assert manifest["recipe"]["data"]["path"] == str(improved.out / "pairs" / "pairs.jsonl")
    test = {row["question"] for row in load_rolebench("sample", "test")}
    pairs = [json.loads(line) for line in (improved.out / "pairs" / "pairs.jsonl").read_text().splitlines()]
    assert pairs and not test & {pair["prompt"][-1]["content"] for pair in pairs}


def test_a_second_call_trains_and_answers_nothing_again(improved: EvalResult, adapter: Path) -> None:
    files = [improved.out / "adapter" / "manifest.json", improved.out / "eval" / "answers" / "after.jsonl"]
    before = [file.read_bytes() for file in files]
    again = rolellm.improve(adapter, out=improved.out, recipe=str(improved.out.parent / "dpo.yaml"), **OPTIONS)
    assert [file.read_bytes() for file in files] == before
    assert again.findings == improved.findings


def test_another_recipe_in_the_same_folder_is_refused(improved: EvalResult, adapter: Path) -> None:
    with pytest.raises(SettingsError, match=r"holds an improvement of another run or by another recipe"):
        rolellm.improve(adapter, out=improved.out, recipe=write_recipe(improved.out.parent, "grpo"), **OPTIONS)


def test_the_command_says_what_rewards_did(adapter: Path, tmp_path: Path, command: Command) -> None:
    options = ["--recipe", write_recipe(tmp_path, "grpo"), "--set", "limit=4"]
    done = command("improve", adapter, "--out", tmp_path / "out", *options)
    assert done.code == 0, done.err
    assert done.out.startswith("No difference between after and before is shown.")
    missing = [name for name in ("in_character", "style", "rouge") if f"reward {name} (" not in done.out]
    assert not missing, done.out
    assert f"Report: {tmp_path / 'out' / 'report.html'}" in done.out


def test_an_interrupt_names_the_command_that_goes_on(
    adapter: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "def stop(completions, **_):\n    raise KeyboardInterrupt\n"
    (tmp_path / "interrupting.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    recipe = Path(write_recipe(tmp_path, "grpo"))
    text = recipe.read_text(encoding="utf-8").replace("rolellm.rewards.style", "interrupting.stop")
    recipe.write_text(text, encoding="utf-8")
    done = command("improve", adapter, "--recipe", recipe, "--out", tmp_path / "out")
    line = f"rolellm improve {adapter} --out {tmp_path / 'out'} --recipe {recipe}\n"
    assert done.code == 3 and done.err.endswith(line), done.err


def test_a_model_that_was_not_tuned_is_refused_in_words(base: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no finished training run; tune one first: rolellm train"):
        rolellm.improve(base, out=tmp_path / "out")


def test_a_vllm_that_is_not_there_is_found_missing_before_the_training(adapter: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="there is no such program"):
        rolellm.improve(adapter, out=tmp_path / "out", engine="gone/vllm")
    assert not (tmp_path / "out").exists()


def test_a_run_on_own_rows_needs_a_data_set(adapter: Path, tmp_path: Path) -> None:
    manifest = json.loads((adapter / MANIFEST).read_text(encoding="utf-8"))
    manifest["recipe"]["data"]["path"] = "own.jsonl"
    (tmp_path / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(SettingsError, match=r"was trained on own\.jsonl; name a data set"):
        rolellm.improve(tmp_path, out=tmp_path / "out")


@pytest.mark.parametrize(
    ("reply", "name", "value"),
    [
        pytest.param("As an AI language model, I cannot.", "replies that break character", 1.0, id="machine"),
        pytest.param("Aye, the sea took him.", "replies that break character", 0.0, id="in-character"),
        pytest.param("the sea the sea the sea the sea", "distinct runs of three words", 1 / 3, id="loop"),
        pytest.param("Aye.", "distinct runs of three words", 1.0, id="too-short-to-repeat"),
        pytest.param("俺老孙来也", "words a reply", 5.0, id="characters-in-chinese"),
    ],
)
def test_behavior_of_a_reply(reply: str, name: str, value: float) -> None:
    row = Row(id="1", role="Pirate", language="en", subset="general", question="Who?", references=("Aye.",))
    assert BEHAVIOR[name].measure(row, reply) == pytest.approx(value)


RISES, FALLS = {"reward style": 0.2}, {"reward rouge": -0.1}


@pytest.mark.parametrize(
    ("differences", "p", "words"),
    [
        pytest.param(RISES | FALLS, 0.01, "rise (reward style +0.150 to +0.250, n = 40) and others fall", id="hacked"),
        pytest.param(RISES | {"replies that break character": 0.3}, 0.01, "break character +0.250", id="breaks-rise"),
        pytest.param(RISES | {"CUS": -0.1}, 0.01, "fall (CUS", id="score-falls"),
        pytest.param(RISES | {"words a reply": -9.0}, 0.01, None, id="shorter-is-not-worse"),
        pytest.param(RISES | FALLS, 0.06, None, id="undecided"),
        pytest.param({"reward rouge": 0.1, "CUS": -0.1}, 0.01, None, id="only-a-watched-one-rises"),
    ],
)
def test_hacked_is_a_trained_reward_that_rises_while_a_measure_falls(
    differences: dict[str, float], p: float, words: str | None
) -> None:
    tests = [
        PairTest(("after", "before"), name, (0.5 + gain, 0.5), Interval(gain, gain - 0.05, gain + 0.05, 40), p, "")
        for name, gain in differences.items()
    ]
    sentences = list(describe_hacking(tests, {"reward style"}))
    assert [words in sentence for sentence in sentences if words] == ([] if words is None else [True])
    assert bool(sentences) is (words is not None)
