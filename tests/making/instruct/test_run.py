"""Whole runs with a client: rounds, replays, failures and files."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rolellm.core.fingerprint import hash_json
from rolellm.core.jsonl import read_jsonl
from rolellm.core.records import Lore, Profile, Turn
from rolellm.llm.llm import LLM
from rolellm.llm.model import Model, Request, RunOptions
from rolellm.llm.scripted import ScriptedModel
from rolellm.making.instruct.run import Instruct, InstructResult
from rolellm.making.settings import InstructSettings
from rolellm.runs import Run, plan_requests, run_step

Answer = Callable[[Request], Any]
QUIET = RunOptions(show_progress=False, max_attempts=2)
ADA = Profile("Ada", "en", description="You keep the lighthouse.")
RATED = {"completeness": {"level": "high", "reason": ""}, "factualness": {"level": "high", "reason": ""}}


def full(request: Request) -> dict[str, Any]:
    """As many pairs as are asked for, which no other request gets."""
    unique = hash_json(request.payload())[:8]
    count = int(request.messages[-1].content.rpartition("Write ")[2].partition(" ")[0])
    questions = (f"Ada, what of lamp {unique} and bell b{number}{unique}?" for number in range(count))
    return {"pairs": [{"question": question, "answer": "I keep them lit.", **RATED} for question in questions]}


def model_of(model: Model, options: RunOptions = QUIET) -> LLM:
    llm = LLM.of(model)
    llm.options = options
    return llm


def run(folder: Path, character: Profile, answer: Answer, **settings: Any) -> Run[InstructResult]:
    step = Instruct(character, InstructSettings(**{"min_overlap": 0.0} | settings))
    return run_step(step, model_of(ScriptedModel(answer, rules_hash="tests")), folder)


def spent(made: Run[InstructResult], name: str = "calls") -> int:
    return int(made.manifest["spent"][name])


def with_script(scenes: int, character: Profile = ADA) -> Profile:
    turns = [
        Turn("Ada" if line % 2 else "Brom", f"In scene {scene} I say line {line} of it, and mean it.", scene=scene)
        for scene in range(scenes)
        for line in range(24)
    ]
    return replace(character, turns=tuple(turns))


def test_at_least_as_many_different_questions_as_asked_for(tmp_path: Path) -> None:
    made = run(tmp_path, with_script(6), full)
    result = made.result
    assert sum(result.distinct.values()) >= 400
    assert result.distinct["script_agnostic"] >= 260
    assert result.rounds > 1
    assert result.shortfall is None
    # A reply has ten: not many more requests than needed.
    assert spent(made) <= 46


def test_a_model_with_one_new_question_in_a_reply_is_not_asked_on_and_on(tmp_path: Path) -> None:
    def answer(request: Request) -> Any:
        pairs = full(request)["pairs"]
        return {"pairs": [pairs[0]] * len(pairs)}

    made = run(tmp_path, with_script(2), answer, per_role=20)
    assert spent(made) <= 16
    assert "few new questions" in str(made.result.shortfall)


def test_what_a_character_lacks_the_other_kind_makes_up_for(tmp_path: Path) -> None:
    undescribed, lore = with_script(3, Profile("Ada", "en")), Profile("Ada", "en", lore=(Lore("The isle floats."),))
    for character, kind in ((ADA, "script_agnostic"), (undescribed, "script_based"), (lore, "script_based")):
        result = run(tmp_path / character.fingerprint, character, full, per_role=60).result
        assert {item.candidate.type for item in result.verdicts} == {kind}
        assert sum(result.distinct.values()) >= 60


def test_later_prompts_list_what_the_segment_was_asked_before(tmp_path: Path) -> None:
    seen: list[Request] = []

    def answer(request: Request) -> Any:
        seen.append(request)
        return full(request)

    run(tmp_path, ADA, answer, per_role=120)
    listed = [request.messages[-1].content.count("\n- ") for request in sorted(seen, key=lambda item: item.tag)]
    assert listed[:8] == [0] * 8
    assert all(10 <= number < 40 for number in listed[8:])


def test_a_model_that_gives_little_is_shown_no_questions_of_the_same_lap(tmp_path: Path) -> None:
    listed: dict[str, int] = {}

    def answer(request: Request) -> Any:
        listed[request.tag] = request.messages[-1].content.count("\n- ")
        return {"pairs": full(request)["pairs"][:3]}

    run(tmp_path, ADA, answer, per_role=36)
    assert [listed[f"instruct/profile/{visit:03}"] for visit in range(8)] == [0] * 8
    assert listed["instruct/profile/009"] > 0


def test_receipts_lead_back_to_journal_and_script(tmp_path: Path) -> None:
    said = ("Halt, in the name of the lamp!", "I am the lamp, and I keep it lit.")
    names = ("Brom", "Ada")
    turns = tuple(Turn(name, line) for name, line in zip(names, said, strict=True))
    run(tmp_path, replace(ADA, turns=turns), full, per_role=20)
    journal = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text(encoding="utf-8").splitlines()]
    replies = {item["key"]: item for item in journal if item["kind"] == "reply"}
    lines = [json.loads(line) for line in (tmp_path / "kept.jsonl").read_text(encoding="utf-8").splitlines()]
    based = [line for line in lines if line["type"] == "script_based"]
    assert based
    for line in lines:
        receipt = line["receipt"]
        assert line["question"] in replies[receipt["key"]]["raw"]["text"]
        assert replies[receipt["key"]]["prompt_hash"] == receipt["prompt"]
        assert receipt["filter"]["verdict"] == "kept"
    place = based[0]["receipt"]["segment"]
    assert (turns[place["first"]].content[:4], turns[place["last"]].content[-4:]) == ("Halt", "lit.")


def test_the_plan_is_what_a_generous_model_is_asked(tmp_path: Path) -> None:
    character, settings = with_script(5), InstructSettings()
    seen: list[Request] = []

    def answer(request: Request) -> Any:
        seen.append(request)
        return full(request)

    plan = plan_requests(Instruct(character, settings), model_of(ScriptedModel(full, rules_hash="tests")))
    run(tmp_path, character, answer)
    assert sorted(item.tag for item in plan) == sorted(item.tag for item in seen)
    real = {item.tag: item for item in seen}
    for item in plan:
        # Word for word in the first lap; later on, longer by no more than the list of what was asked.
        if "asked before" not in item.messages[-1].content:
            assert item == real[item.tag]
        assert item.messages[:-1] == real[item.tag].messages[:-1]


def test_one_request_without_a_usable_reply_does_not_stop_the_rest(tmp_path: Path) -> None:
    def answer(request: Request) -> Any:
        return "I would rather not." if request.tag == "instruct/profile/001" else full(request)

    made = run(tmp_path, ADA, answer, per_role=70)
    result = made.result
    assert [line["tag"] for _, line in read_jsonl(tmp_path / "failed.jsonl")] == ["instruct/profile/001"]
    assert sum(result.distinct.values()) >= 70
    assert result.shortfall is None
    assert made.failed == 1
