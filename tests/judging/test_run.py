"""A judging run: what is asked, what is kept, what a second run asks anew, and when a run does not count."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rolellm.core.errors import DataError, JudgingError, SettingsError
from rolellm.core.jsonl import read_jsonl
from rolellm.core.records import Row
from rolellm.judging.judge_models import load_judges
from rolellm.judging.overlap_judge import read_shown_texts
from rolellm.judging.records import Comparison, System, SystemKind, read_run
from rolellm.judging.run import run_judging
from rolellm.judging.settings import JudgingSettings
from rolellm.judging.systems import ECHO, NULL_MODEL, make_canaries
from rolellm.llm.llm import LLM
from rolellm.llm.model import Json, Model, Request, RunOptions
from rolellm.llm.scripted import ScriptedModel
from rolellm.scoring.statistics.intervals import estimate_proportion

from ..judge_runs import make_comparison
from .simulated_judge import make_quality_verdict, scripted_judge

ROWS = [
    Row(f"r{n}", f"Role {n % 3}", "en", "general" if n % 2 else "role_specific", f"Question {n}?", ("Aye.",))
    for n in range(12)
]
GOOD = {"base": 1, "weak": 0, "strong": 2, "new": 3}
QUIET = RunOptions(show_progress=False)


def comparison(*names: str) -> Comparison:
    kinds: dict[str, SystemKind] = {"base": "baseline", **dict.fromkeys(names, "model")}  # type: ignore[arg-type]
    return make_comparison(ROWS, kinds, lambda number, row: f"{'so ' * GOOD[('base', *names)[number]]}{row.id}")


def quality(_: Any, answer: str) -> float:
    return float(answer.count("so "))


def judge(folder: Path, found: Comparison, *jury: Model, run: RunOptions = QUIET, **settings: Any) -> dict[str, Any]:
    llm = LLM.of(scripted_judge(quality))
    llm.models, llm.options = list(jury) or llm.models, run
    chosen = JudgingSettings(**{"jury": len(jury) > 1, **settings})
    return run_judging(folder, found, llm, chosen).to_dict()


def model(result: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in result["models"] if one["name"] == name)


def test_the_better_win_and_the_folder_says_how(tmp_path: Path) -> None:
    result = judge(tmp_path / "run", comparison("weak", "strong"))
    assert model(result, "strong")["pairwise"]["win_rate"]["mean"] == 1
    assert model(result, "weak")["pairwise"]["win_rate"]["mean"] == 0
    assert [model(result, name)["listwise"]["average_rank"]["mean"] for name in ("strong", "base", "weak")] == [1, 2, 3]
    assert result["valid"] and result["spent"]["calls"] == 12 * (2 + 2 * 2)
    run = read_run(tmp_path / "run")
    assert run.result == result
    assert run.comparison.answers == comparison("weak", "strong").answers and list(run.comparison.rows) == ROWS
    assert len(run.judgements()) == result["spent"]["calls"]
    assert {one["hash"] for one in run.manifest["judges"][0]["prompts"].values()} == {one.hash for one in load_judges()}
    assert run.manifest["hash"] == result["fingerprint"]["hash"]
    assert list(read_jsonl(tmp_path / "run/unscored.jsonl")) == []


def test_one_more_model_asks_for_its_own_pairs_and_the_new_lists_only(tmp_path: Path) -> None:
    first = judge(tmp_path, comparison("weak", "strong"))
    more = judge(tmp_path, comparison("weak", "strong", "new"))
    assert more["spent"]["calls"] == 12 * 2 + 12 * 2
    assert more["spent"]["from_journal"] == 12 * 2 * 2
    assert all(model(more, name)["pairwise"] == model(first, name)["pairwise"] for name in ("weak", "strong"))


def make_stubborn(rows: set[str], text: str) -> ScriptedModel:
    """Says no verdict on some rows, however often it is asked."""

    def answer(request: Request) -> str | Json:
        return text if request.tag.rpartition("/")[2] in rows else make_quality_verdict(quality, request)

    return ScriptedModel(answer, rules_hash=f"{sorted(rows)}{text}")


def test_no_verdict_is_none_and_too_many_fail_the_run(tmp_path: Path) -> None:
    text = "Answer A is better."
    stubborn = make_stubborn({"r1", "r2"}, text)
    with pytest.raises(JudgingError, match=r"verdicts are missing \(16\.7%; at most 1\.0% may be\)") as caught:
        judge(tmp_path, comparison("strong"), stubborn)
    assert "unscored.jsonl" in str(caught.value)
    result = json.loads((tmp_path / "result.json").read_text())
    assert not result["valid"] and result["diagnostics"]["unscored"]["count"] == 2 * 4
    # What has no verdict is left out; it is no loss and no tie.
    rate = model(result, "strong")["pairwise"]["win_rate"]
    assert (rate["mean"], rate["n"], rate["questions"]) == (1.0, 10, 10)
    assert rate["ci95"] == list(estimate_proportion(10, 10).ends)
    assert rate["ci95_new_roles"][0] < rate["ci95"][0]
    kept = [value for _, value in read_jsonl(tmp_path / "unscored.jsonl")]
    assert {value["row"] for value in kept} == {"r1", "r2"} and all(value["reply"] == text for value in kept)
    assert all(value["attempts"] == len(value["refused"]) == 2 and value["messages"] for value in kept)
    assert [one.unscored for one in read_run(tmp_path).judgements()].count(None) == 40
    assert judge(tmp_path, comparison("strong"), stubborn, max_unscored=0.2)["valid"]


def parroting(request: Request) -> str | Json:
    """Repeats the first verdict that it finds in an answer; gives its own where there is none."""
    own = make_quality_verdict(quality, request)
    design = "ranking" if "ranking" in own else "style"
    lines = [line for text in read_shown_texts(request)[1].values() for line in text.splitlines()]
    return next((line for line in lines if line.startswith(f'{{"{design}"')), own)


def with_answers(found: Comparison, people: Sequence[tuple[System, Mapping[str, str]]]) -> Comparison:
    more = {one.name: answers for one, answers in people}
    return Comparison(found.rows, [*found.systems, *(one for one, _ in people)], {**found.answers, **more})


def test_what_a_canary_does_to_a_judge_is_a_result_of_its_own(tmp_path: Path) -> None:
    parrot = ScriptedModel(parroting, rules_hash="parrot")
    result = judge(tmp_path, with_answers(comparison("strong"), [*make_canaries(ROWS)]), parrot)
    assert result["valid"] and result["diagnostics"]["unscored"]["count"] == 0
    assert result["diagnostics"]["unscored"]["of"] == 12 * 2, "its own pairs and copied lists concern no system"
    copied = result["diagnostics"]["copied"]
    # Twelve rows of two orders and two rotations, and every one of them copied.
    assert (copied[ECHO]["mean"], copied[ECHO]["n"]) == (1, 12 * 4) and copied[NULL_MODEL]["mean"] == 0
    assert model(result, "strong")["pairwise"]["win_rate"]["mean"] == 1
    assert model(result, ECHO)["pairwise"]["win_rate"]["mean"] == 1, "a copied verdict is its win"
    assert any("repeated a verdict from canary: echo in 100.0% of the 48" in problem for problem in result["problems"])
    copied = [one for one in read_run(tmp_path).judgements() if one.copied]
    assert len(copied) == 48 and all(one.attempts == 1 and one.copied == ECHO for one in copied)
    assert len(list(read_jsonl(tmp_path / "unscored.jsonl"))) == 48
    assert result["spent"]["calls"] == 12 * (2 * 3 + 2), "nothing is asked again"


def test_a_jury_decides_by_majority(tmp_path: Path) -> None:
    contrary = scripted_judge(lambda m, a: -quality(m, a), "contrary")
    jury = [scripted_judge(quality, name) for name in ("one", "two")]
    result = judge(tmp_path, comparison("strong"), *jury, contrary)
    assert model(result, "strong")["pairwise"]["win_rate"]["mean"] == 1
    by_judge = model(result, "strong")["pairwise"]["by_judge"]
    assert {name: value["mean"] for name, value in by_judge.items()} == {"one": 1, "two": 1, "contrary": 0}
    assert result["diagnostics"]["biases"]["fleiss_kappa"] is not None


def test_a_judge_of_a_systems_family_is_flagged(tmp_path: Path) -> None:
    found = comparison("strong", "weak")
    people = [System(one.name, one.kind, None, "llama" if one.name == "strong" else None) for one in found.systems]
    result = judge(tmp_path, Comparison(ROWS, people, found.answers), scripted_judge(quality, "org/Llama-3-8B"))
    assert result["judges"][0]["flagged"] == ["strong"]
    assert model(result, "strong")["self_judged_by"] == ["org/Llama-3-8B"]
    assert model(result, "weak")["self_judged_by"] == []
    assert any("is of the same model family (llama) as strong" in problem for problem in result["problems"])


def test_what_cannot_be_judged_leaves_an_earlier_run_as_it_is(tmp_path: Path) -> None:
    result = judge(tmp_path, comparison("strong"))
    found = comparison("strong", "weak")
    with pytest.raises(SettingsError, match="this run has none"):
        judge(tmp_path, Comparison(ROWS, found.systems[1:], found.answers))
    rows_by_name = {"base": "r1", "strong": "r2", "weak": "r2"}
    apart = {name: {row: found.answers[name][row]} for name, row in rows_by_name.items()}
    with pytest.raises(SettingsError, match="nothing to judge"):
        judge(tmp_path, Comparison(ROWS, found.systems, apart))
    run = read_run(tmp_path)
    assert run.result == result and run.comparison.answers == comparison("strong").answers


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("manifest.json", "{", "not the folder of a judging run"),
        ("answers.jsonl", "", "do not have the same rows"),
        ("judgements.jsonl", '{"row": "r1"}', r"judgements\.jsonl:1: the judgement is not valid at judge"),
    ],
)
def test_a_damaged_run_is_refused_in_words(tmp_path: Path, name: str, text: str, said: str) -> None:
    judge(tmp_path, comparison("strong"))
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=said):
        read_run(tmp_path).judgements()
