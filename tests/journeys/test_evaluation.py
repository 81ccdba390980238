"""`rolellm.eval`: one call gives what the single commands give, says what it found, and goes on where it stopped."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rolellm
from rolellm.core.errors import SettingsError
from rolellm.data.rolebench import load_rolebench
from rolellm.data.rolebench.source import sample_folder
from rolellm.journeys.evaluation import BASELINE, EvalResult, name_systems
from rolellm.making.release import gather, write_release
from rolellm.making.scripted import scripted_model
from rolellm.scoring.rows import draw_rows, read_dataset_rows

from ..commands import Command

OPTIONS = {"config": "sample", "limit": 8, "max_new_tokens": 6}
WORDS = {"endpoints": [{"backend": "scripted", "rules": "words"}]}


@pytest.fixture(scope="module")
def result(base: Path, tmp_path_factory: pytest.TempPathFactory) -> EvalResult:
    return rolellm.eval(f"tiny={base}", judge=WORDS, out=tmp_path_factory.mktemp("eval"), **OPTIONS)


def test_the_numbers_are_those_of_the_single_calls(result: EvalResult, base: Path, tmp_path: Path) -> None:
    rows = load_rolebench("sample", "test")
    rows = rows.select(draw_rows(read_dataset_rows(rows), 8))
    assert len(set(zip(rows["role"], rows["subset"], strict=True))) == 8
    rolellm.generate(base, rows, out=tmp_path / "answers.jsonl", max_new_tokens=6)
    scored = rolellm.score(tmp_path / "answers.jsonl", config="sample", split="test")
    assert result.reports["tiny"].to_dict()["metrics"] == scored.to_dict()["metrics"]
    assert result.reports["tiny"].scale == scored.scale
    baseline = rows.rename_column("rolegpt", "prediction")
    answers = {"tiny": tmp_path / "answers.jsonl", BASELINE: baseline}
    judged = rolellm.judge(answers, rows, llm=WORDS, out=tmp_path / "judged", baseline=BASELINE)
    rates = [{one.name: one.measures()["win_rate"] for one in found.models} for found in (result.judged, judged)]
    assert rates[0] == rates[1]


def test_its_picture_is_in_a_file_and_in_a_notebook(result: EvalResult, tmp_path: Path) -> None:
    picture = result.plot(tmp_path / "scores.svg").read_text(encoding="utf-8")
    assert picture.startswith("<svg") and picture in result._repr_html_()


def test_it_says_what_it_found_first(result: EvalResult) -> None:
    sentences = result.findings
    assert sentences[0] == f"“{BASELINE}” is ahead of tiny in style, accuracy and knowledge."
    assert sentences[1].endswith("The judges saw 8 rows only, too few for a verdict (20 or more).")
    page = (result.out / "report.html").read_text(encoding="utf-8")
    assert page.index("is ahead of tiny in style") < page.index("<svg") < page.index("<table")
    written = json.loads((result.out / "eval.json").read_text(encoding="utf-8"))
    assert written["findings"] == list(sentences)
    assert "win rate" in repr(result) and sentences[0] in repr(result)


def test_a_second_call_answers_and_judges_nothing_again(result: EvalResult, base: Path) -> None:
    answers = result.out / "answers" / "tiny.jsonl"
    before = answers.read_bytes()
    again = rolellm.eval({"tiny": base}, judge=WORDS, out=result.out, **OPTIONS)
    assert answers.read_bytes() == before
    assert again.to_dict()["metrics"] == result.to_dict()["metrics"]


def test_models_are_named() -> None:
    assert list(name_systems("org/Qwen2.5-0.5B")) == ["Qwen2.5-0.5B"]
    assert list(name_systems(["a=x/y", "x/y"])) == ["a", "y"]
    with pytest.raises(SettingsError, match="two models are called 'x'; name them with NAME=MODEL"):
        name_systems(["a/x", "b/x"])
    with pytest.raises(SettingsError, match="name at least one model"):
        name_systems([])


def test_the_command_prints_sentences_then_one_table(base: Path, tmp_path: Path, command: Command) -> None:
    done = command(
        "eval", f"tiny={base}", "--config", "sample", "--limit", "4", "--set", "max_new_tokens=4", "--out", tmp_path
    )
    assert done.code == 0, done.err
    assert done.out.startswith("RoleGPT is ahead of tiny in style.\n")
    assert done.out.index("Some figures rest on 2 rows only") < done.out.index("Systems")
    assert f"Report: {tmp_path / 'report.html'}" in done.out
    assert (tmp_path / "report.html").is_file()


def test_later_commands_read_what_was_answered_from_the_record(
    base: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = tmp_path / "own"
    (tmp_path / "llm.yaml").write_text(json.dumps(WORDS), encoding="utf-8")
    shutil.copytree(sample_folder(), release)
    words = (
        "--config",
        "instruction-generalization-zh",
        "--data-dir",
        release,
        "--limit",
        4,
        "--set",
        "max_new_tokens=4",
    )
    assert command("generate", "--model", base, *words, "--out", tmp_path / "answers.jsonl").code == 0
    monkeypatch.chdir(tmp_path)
    scored = command("score", "answers.jsonl", "--json").json
    assert (scored["config"], scored["split"]) == ("instruction-generalization-zh", "test")
    assert command("score", "--style", "answers.jsonl", "--json").code in (0, 1)
    judged = command("judge", "answers.jsonl", "--llm", "llm.yaml", "--out", "judged", "--json")
    assert judged.json["config"] == "instruction-generalization-zh"
    assert command("report", "answers.jsonl", "--out", "page.html").code == 0


def test_two_systems_are_compared_in_scenes(tmp_path: Path, llm_server: Callable[..., Any]) -> None:
    lines = {"mild": "(nods) Good evening.", "bold": "It is under the third stone.\nBrom: Thank you!"}
    servers = {name: llm_server(lambda body, line=line: line) for name, line in lines.items()}
    for name, server in servers.items():
        (tmp_path / f"{name}.yaml").write_text(f"endpoints: [{{base_url: '{server.url}', model: {name}}}]")
    characters = [{"name": name, "description": name} for name in ("Ada", "Brom")]
    stage = {"setting": "A tower.", "turns": 2, "characters": characters, "secrets": [{"words": "third stone"}]}
    scenes = [tmp_path / f"scene{number}.yaml" for number in range(8)]
    for number, path in enumerate(scenes):
        path.write_text(json.dumps(stage | {"topic": f"The lamp, {number}"}))
    models = [tmp_path / f"{name}.yaml" for name in servers]
    result = rolellm.eval(models, scenes=scenes, out=tmp_path / "eval")
    # Of two turns each, Ada speaks for Brom, who has then heard the secret from her.
    assert [(test.difference.mean, test.difference.n) for test in result.scenes.tests] == [(-0.5, 8), (-0.5, 8)]
    assert [test.p for test in result.scenes.tests] == pytest.approx([4 / 2**8] * 2)
    assert result.findings[0] == "mild spoke for another less often than bold, by 50.0 points on 8 scenes."
    assert [table.title for table in result.tables()] == ["Scenes", "Scenes, paired"]
    assert "It is under the third stone." in result.page.read_text(encoding="utf-8")
    rolellm.eval(models, scenes=scenes, out=tmp_path / "eval")
    # What Brom says again is asked for once more.
    assert [server.counts.calls for server in servers.values()] == [24, 16]
    with pytest.raises(SettingsError, match="a judge compares answers to rows"):
        rolellm.eval(models, scenes=scenes, judge=WORDS, out=tmp_path / "judged")
    directed = tmp_path / "directed.yaml"
    directed.write_text(json.dumps(stage | {"speakers": "model", "turns": 3}))
    director = llm_server(lambda _: "Brom")
    judge = {"endpoints": [{"base_url": director.url, "model": "judge"}]}
    rolellm.eval(models, scenes=[directed], judge=judge, out=tmp_path / "directed")
    # Ada, who alone may follow Brom, needs no choice.
    assert [server.counts.calls for server in (*servers.values(), director)] == [29, 20, 2]


def test_a_judge_needs_somebody_to_compare_with(base: Path, tmp_path: Path) -> None:
    queen = sample_folder() / "scripts" / "Queen of Hearts.txt"
    made = rolellm.Character.from_script(queen, role="Queen of Hearts").build(scripted_model())
    folder = made.instruct(scripted_model(), per_role=12).save(tmp_path / "queen").folder
    write_release([gather(folder)], tmp_path / "data")
    with pytest.raises(SettingsError, match="name a second model"):
        rolellm.eval(base, judge=WORDS, out=tmp_path / "eval", data_dir=tmp_path / "data")
    assert not (tmp_path / "eval" / "answers").exists()
