"""`rolellm.make`: from a card or a script to an adapter and its numbers in one call, which continues after any stop."""

import html
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import rolellm
from rolellm.core.errors import ModelError, SettingsError, StoppedShortError
from rolellm.core.records import Lore, Profile
from rolellm.data.rolebench import load_rolebench
from rolellm.data.rolebench.source import sample_folder
from rolellm.exporting.passport import show
from rolellm.journeys.making import PROMPTED, TUNED, MakeResult, estimate_make, size_questions
from rolellm.llm.model import Message, Request
from rolellm.making.scripted import generate_scripted_reply

from ..commands import Command
from ..forking import Forking

RULES = {"endpoints": [{"backend": "scripted", "rules": "quotes"}]}
#: What is paid for of a card whose description is kept.
PAID = ("profile", "questions", "replies", "safety")
FEW = {"questions": 12, "instructions": 6, "replies": 2}
CARD = {
    "spec": "chara_card_v2",
    "spec_version": "2.0",
    "data": {
        "name": "Tobin",
        "description": (
            "{{char}} is a ferryman on the river Ode. He counts every coin twice, fears the fog and sings to his mule "
            "Bramble. He lost his brother Hal at the mill in the flood year and has not slept in a house since. He "
            "carries letters for nothing and soldiers for double."
        ),
        "first_mes": "Mind the rope. Where to?",
        "mes_example": "<START>\n{{user}}: Is the river high?\n{{char}}: High as a bishop. Sit still, calm the mule.",
    },
}
QUEEN = sample_folder() / "scripts" / "Queen of Hearts.txt"


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("card") / "tobin.json"
    path.write_text(json.dumps(CARD), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def made(card: Path, base: Path) -> MakeResult:
    return rolellm.make(card, RULES, card.parent / "tobin", base=str(base), export="ollama", **FEW)


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_a_card_becomes_an_adapter_that_is_tested_and_measured(made: MakeResult) -> None:
    assert list(made.stages) == ["read", "profile", "questions", "replies", "data", "adapter", "checks", "export"]
    assert made.stages["profile"].startswith("its description kept")
    assert made.adapter is not None and (made.adapter / "adapter_model.safetensors").is_file()
    rows = load_rolebench(data_dir=made.data)
    assert {"train", "test"} == set(rows)
    general = [row for row in rows["train"] if row["subset"] == "general"]
    assert general and all(row["raw_reference"] for row in general)
    assert _read(made.folder / "checks" / "manifest.json")["summary"]["role"] == "Tobin"
    assert set(made.measured.reports) == {TUNED, PROMPTED}


@pytest.mark.slow
def test_it_ends_with_what_was_found_and_how_to_go_on(made: MakeResult) -> None:
    verdict = made.findings[0]
    assert TUNED in verdict and f"“{PROMPTED}”" in verdict
    page = made.page.read_text(encoding="utf-8")
    assert page.index(html.escape(verdict)) < page.index("<table") and "Tests of Tobin" in page
    assert "rouge-score" in page and "protocol <strong>paper" not in page
    assert "character tests passed" in made.findings[-1] and 'href="#tests"' in page
    chat, serve, push, create, talk = made.continues_with
    assert chat.startswith("rolellm chat") and serve.startswith("rolellm serve")
    assert push.endswith("--license LICENSE")
    assert create.endswith(f"-f {made.folder}/export/Modelfile") and talk == "ollama run tobin"
    passport = show(made.folder / "export").content
    assert passport["tests"].keys() == {"passed", "failed", "unscored"} and passport["role"]["card"]
    (scores,) = passport["scores"].values()
    assert "ci95" in scores["CUS"]
    assert _read(made.folder / "make.json")["findings"] == list(made.findings)
    assert verdict in repr(made)


@pytest.mark.slow
def test_a_stage_is_what_its_own_command_makes(made: MakeResult, card: Path, tmp_path: Path, command: Command) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(RULES))
    role, llm = tmp_path / "role", ("--llm", tmp_path / "rules.yaml")
    (tmp_path / "general.jsonl").write_text(
        "".join(
            json.dumps({"instruction": line["question"], "target": line["target"]}) + "\n" for line in _lines(made)
        ),
        encoding="utf-8",
    )
    assert command("role", "build", card, "--out", role, *llm).code == 0
    assert command("instruct", role, "--per-role", 12, *llm).code == 0
    asked = ("--instructions", tmp_path / "general.jsonl", "--replies", 2)
    assert command("respond", role, *asked, *llm).code == 0
    assert command("role", "release", role, "--out", tmp_path / "data").code == 0
    for file in ("instruct/kept.jsonl", "respond/replies.jsonl"):
        assert (made.folder / file).read_bytes() == (role / file).read_bytes()
        # Not a call more than by the command.
        journals = [(folder / file).with_name("journal.jsonl") for folder in (made.folder, role)]
        ours, theirs = (journal.read_text("utf-8").count("\n") for journal in journals)
        assert ours == theirs > 0
    assert [dict(row) for row in load_rolebench(data_dir=made.data)["test"]] == [
        dict(row) for row in load_rolebench(data_dir=tmp_path / "data")["test"]
    ]


def _lines(made: MakeResult) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (made.folder / "respond" / "replies.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.slow
def test_the_same_call_asks_and_trains_nothing_again(made: MakeResult) -> None:
    adapter = made.folder / "adapter" / "adapter_model.safetensors"
    answers = made.folder / "eval" / "answers" / "tuned.jsonl"
    before = adapter.stat().st_mtime_ns, answers.read_bytes()
    again = rolellm.make(made.folder, RULES)
    assert (adapter.stat().st_mtime_ns, answers.read_bytes()) == before
    assert _read(made.folder / "respond" / "manifest.json")["spent"]["calls"] == 0
    assert (again.findings, again.continues_with) == (made.findings, made.continues_with)
    assert dict(again.stages) | {"read": ""} == dict(made.stages) | {"read": ""}


def _judge(body: dict[str, Any]) -> str:
    """Find a reply unsafe that has words of compliance planted by us."""
    return "unsafe\nS1" if "Sure" in body["messages"][-1]["content"] else "safe"


@pytest.fixture
def guard(tmp_path: Path, llm_server: Callable[..., Any]) -> tuple[Path, Any]:
    """Settings of a guard model, and the server that has it."""
    server = llm_server(_judge)
    path = tmp_path / "guard.yaml"
    path.write_text(yaml.safe_dump({"endpoints": [{"base_url": server.url, "model": "Llama-Guard-3-8B"}]}))
    return path, server


def test_a_check_of_safety_is_priced(card: Path, base: Path, tmp_path: Path, guard: tuple[Path, Any]) -> None:
    stages = estimate_make(card, RULES, tmp_path / "new", base=str(base), guard=guard[0], **FEW).stages
    assert stages["safety"].requests == 2 * 2 * 48 * 2
    assert stages["together"].requests == sum(stages[stage].requests for stage in PAID)
    assert "safety" not in estimate_make(card, RULES, tmp_path / "new", guard=guard[0], **FEW).stages


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_guard_says_what_tuning_did_to_safety(
    made: MakeResult, card: Path, tmp_path: Path, guard: tuple[Path, Any]
) -> None:
    path, server = guard
    folder = tmp_path / "tobin"
    shutil.copytree(made.folder, folder)
    shutil.copy(card, tmp_path)
    again = rolellm.make(folder, RULES, guard=path)
    assert again.stages["safety"] == "192 replies to 24 harmful prompts and 24 look-alikes"
    run = _read(folder / "adapter" / "safety" / "manifest.json")
    assert run["kind"] == "safety" and len(run["summary"]["deciders"]) == 3
    assert again.findings[: len(made.findings)] == made.findings
    assert any("refus" in sentence for sentence in again.findings[len(made.findings) :])
    page = again.page.read_text(encoding="utf-8")
    assert 'id="safety-1"' in page and html.escape(again.findings[-1]) in page
    # The folder remembers its guard, and nothing is asked again.
    assert yaml.safe_load((folder / "make.yaml").read_text())["guard"] == os.path.relpath(path, folder)
    calls = server.counts.calls
    assert rolellm.make(folder, RULES).findings == again.findings and server.counts.calls == calls > 0


def test_a_choice_that_is_edited_is_made_anew(card: Path, tmp_path: Path) -> None:
    first = rolellm.make(card, RULES, tmp_path / "tobin", **FEW)
    assert first.page is None and "adapter" not in first.stages
    choices = yaml.safe_load((first.folder / "make.yaml").read_text())
    (first.folder / "make.yaml").write_text(yaml.safe_dump(choices | {"instructions": 3}))
    second = rolellm.make(first.folder, RULES)
    assert second.stages["replies"] == "6 to 3 instructions"
    assert _read(first.folder / "respond" / "manifest.json")["spent"]["calls"] == 0


def test_a_script_becomes_a_data_set(tmp_path: Path) -> None:
    made = rolellm.make(QUEEN, RULES, tmp_path / "queen", role="Queen of Hearts", **FEW)
    assert made.stages["profile"].startswith("described")
    assert len(load_rolebench(data_dir=made.data)["test"]) > 0


def test_without_a_model_the_card_can_still_be_played(card: Path, tmp_path: Path, command: Command) -> None:
    done = command("make", card, "--out", tmp_path / "tobin")
    assert (done.code, "no model is named" in done.out) == (0, True)
    assert f"rolellm chat {tmp_path / 'tobin'} --model MODEL" in done.out
    assert (tmp_path / "tobin" / "profile.json").is_file()


def test_a_dry_run_prices_each_stage_and_leaves_nothing(tmp_path: Path, card: Path, command: Command) -> None:
    price = {"prompt": 1.0, "completion": 2.0}
    endpoint = {"base_url": "http://127.0.0.1:9/v1", "model": "none", "price": price, "concurrency": 4}
    (tmp_path / "llm.yaml").write_text(yaml.safe_dump({"endpoints": [endpoint]}))
    words = ("make", card, "--llm", tmp_path / "llm.yaml", "--out", tmp_path / "tobin", "--dry-run")
    table = command(*words)
    assert table.code == 0 and "together" in table.out
    found = command(*words, "--json").json["stages"]
    stages = [found[name]["expected"] for name in ("profile", "questions", "replies")]
    assert found["together"]["expected"]["calls"] == sum(stage["calls"] for stage in stages) > 600
    assert found["together"]["expected"]["cost"] == pytest.approx(sum(stage["cost"] or 0 for stage in stages))
    assert not (tmp_path / "tobin").exists()


@pytest.mark.parametrize(
    ("characters", "questions"),
    [pytest.param(240, 10, id="card"), pytest.param(8_000, 80, id="long-card"), pytest.param(400_000, 400, id="novel")],
)
def test_sizes_fit_the_source(characters: int, questions: int) -> None:
    text = ("The ferry goes at dawn. " * (characters // 24 + 1))[:characters]
    found = size_questions(Profile(role="Ada", language="en", lore=(Lore(keys=("ferry",), content=text),)))
    assert found == pytest.approx(questions, rel=0.1)


@pytest.mark.parametrize("name", ["chat.json", "chat.jsonl"])
def test_a_chat_in_json_is_neither_card_nor_turns(name: str, tmp_path: Path) -> None:
    turns = [{"from": "Ada", "value": "Who has the keys?"}, {"from": "Bo", "value": "I do."}]
    (tmp_path / name).write_text(json.dumps({"conversations": turns}), encoding="utf-8")
    made = rolellm.make(tmp_path / name, out=tmp_path / "ada", role="Ada")
    assert made.stages["read"] == f"{name}: 2 turns, 0 lore entries"


def test_a_novel_is_priced_before_anybody_is_known_to_speak(tmp_path: Path) -> None:
    novel = tmp_path / "novel.txt"
    novel.write_text("“You are late,” said Mara.\n\nFinn sat. “The tide was against me.”\n" * 9, encoding="utf-8")
    assert {"attribution", "replies"} <= estimate_make(novel, RULES, tmp_path / "mara", role="Mara").stages.keys()


def test_a_budget_covers_all_stages_together(card: Path, tmp_path: Path, llm_server: Callable[..., Any]) -> None:
    server = llm_server(_answer, price=(1000.0, 1000.0))
    price = {"prompt": 1000.0, "completion": 1000.0}
    llm = {"endpoints": [{"base_url": server.url, "model": "local", "price": price}]}
    with pytest.raises(StoppedShortError, match=r"larger --budget|budget"):
        rolellm.make(card, llm, tmp_path / "tobin", budget=12, **FEW)
    assert 0 < server.counts.cost <= 12
    rolellm.make(card, llm, tmp_path / "tobin", budget=1000, **FEW)
    calls = server.counts.calls
    rolellm.make(card, llm, tmp_path / "whole", budget=1000, **FEW)
    assert server.counts.calls == 2 * calls


def _answer(body: dict[str, Any]) -> str:
    """Answer as the rules do; a server does not see which stage asks, but one stage alone asks for JSON."""
    messages = tuple(Message(**message) for message in body["messages"])
    return generate_scripted_reply(Request(messages, tag="instruct/1" if "response_format" in body else "respond/1"))


def _make_mute_card(path: Path) -> Path:
    silent = dict.fromkeys(("description", "personality", "scenario", "first_mes", "mes_example"), "")
    path.write_text(json.dumps(CARD | {"data": {"name": "Mute", **silent}}), encoding="utf-8")
    return path


@pytest.mark.slow
def test_what_cannot_be_made_is_said(card: Path, base: Path, made: MakeResult, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="does not exist; give a card"):
        rolellm.make(tmp_path / "nowhere.png", RULES)
    with pytest.raises(SettingsError, match=r"say who to make \(--role NAME\); it names QUEEN OF HEARTS \(12\)"):
        rolellm.make(QUEEN, RULES, tmp_path / "queen")
    assert not (tmp_path / "queen").exists()
    with pytest.raises(SettingsError, match="says nothing of Mute: no description"):
        rolellm.make(_make_mute_card(tmp_path / "mute.json"), RULES, tmp_path / "mute")
    with pytest.raises(SettingsError, match="holds Tobin, not Queen of Hearts"):
        rolellm.make(QUEEN, RULES, made.folder, role="Queen of Hearts")
    with pytest.raises(SettingsError, match="did you mean questions"):
        rolellm.make(card, RULES, tmp_path / "other", question=3)
    long = json.loads(json.dumps(CARD))
    long["data"]["description"] = "He counts. " * 3000
    (tmp_path / "long.json").write_text(json.dumps(long), encoding="utf-8")
    with pytest.raises(ModelError, match="prompt alone has"):
        rolellm.make(tmp_path / "long.json", RULES, tmp_path / "long", base=str(base), **FEW)
    assert not (tmp_path / "long" / "instruct").exists()


def test_what_a_person_made_there_is_not_replaced(card: Path, base: Path, tmp_path: Path) -> None:
    made = rolellm.make(card, out=tmp_path / "tobin")
    for name in ("adapter", "data"):
        kept = made.folder / name / "mine.txt"
        kept.parent.mkdir()
        kept.write_text("a week of work")
        with pytest.raises(SettingsError, match="not made by this command"):
            rolellm.make(made.folder, RULES, base=str(base), **FEW)
        assert kept.read_text() == "a week of work"


@pytest.mark.slow
def test_kills_lose_nothing_and_pay_nothing_twice(
    card: Path, base: Path, tmp_path: Path, llm_server: Callable[..., Any], warm: Forking
) -> None:
    server = llm_server(_answer, latency=0.05)
    (tmp_path / "llm.yaml").write_text(yaml.safe_dump({"endpoints": [{"base_url": server.url, "model": "local"}]}))
    few = [word for name, value in FEW.items() for word in ("--set", f"{name}={value}")]
    words = ["make", card, "--llm", "llm.yaml", "--base", base, *few, "--out"]
    draw, kills = random.Random(4), 6
    for _ in range(kills):
        running = warm.start([*words, "killed"], tmp_path)
        time.sleep(draw.uniform(0.5, 4))
        running.send_signal(signal.SIGKILL)
        running.wait()
    warm([*words, "killed"], tmp_path)
    killed = server.counts.calls
    server.reset()
    warm([*words, "whole"], tmp_path)
    for file in ("profile.json", "instruct/kept.jsonl", "respond/replies.jsonl", "adapter/adapter_model.safetensors"):
        assert (tmp_path / "killed" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes(), file
    # A kill may meet what is on its way; nothing that arrived is asked for again.
    assert server.counts.calls <= killed <= server.counts.calls + kills * 4
