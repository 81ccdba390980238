"""Where a character's knowledge ends: which probes are made, how replies are judged, and what is counted."""

import json
from pathlib import Path
from typing import Any

import pytest

from rolellm.characters.folder import write_character
from rolellm.checks.boundary import KINDS, BoundarySettings, Probe, ProbeBoundary, judge_by_rule, make_probes
from rolellm.core.jsonl import write_jsonl
from rolellm.core.records import Language, Profile, Turn
from rolellm.llm.llm import LLM
from rolellm.llm.model import Request
from rolellm.llm.scripted import ScriptedModel
from rolellm.making.instruct.run import Question, read_questions
from rolellm.playing.settings import PlaySettings
from rolellm.runs import Run, run_step

LINES = [
    ("Mara", "The fog is thick, and the lamp burns low."),
    ("Joss", "A crate of oranges lies on the beach!"),
    ("Mara", "Carry the crate up, boy."),
    ("Joss", "It weighs as much as a calf."),
    ("Mara", "Then roll it."),
    ("Joss", "Done, keeper. Is there supper?"),
    ("Mara", "There is soup."),
    ("Joss", "Soup again."),
    ("Mara", "I kept a letter in the clock for seven years."),
    ("Joss", "Look, a ship with green sails struck the reef!"),
    ("Mara", "Ring the bell."),
    ("Joss", "The rope snapped, keeper, and the bell fell into the well."),
    ("Mara", "Then shout."),
]
PAIRS = [
    Question("crate", "Mara, what did Joss find?", "He found a crate of oranges on the beach.", "script_based"),
    Question("ship", "Mara, what struck the reef?", "A ship with green sails, girl.", "script_based"),
    Question("bell", "Mara, what became of the bell?", "The rope snapped, and it fell into the well.", "script_based"),
    Question("letter", "Mara, where is your letter?", "I keep it in the clock, these seven years.", "script_based"),
    Question("fish", "Mara, how do you cook a crab?", "In the well, with green sails of cabbage.", "script_agnostic"),
]
SHEET = Profile(
    "Mara",
    "en",
    tuple(Turn(*line) for line in LINES),
    description="You are Mara, who keeps the lighthouse at Sorrel Point.",
)
STRANGERS = Profile(
    "Ada",
    "en",
    (Turn("Ada", "Who broke the mill, cook?"), Turn("Pim Tansy", "The wind did."), Turn("The cook", "Not I!")),
)


def probes(kind: str, **how: Any) -> list[Probe]:
    found = make_probes(SHEET, PAIRS, BoundarySettings(**how), [STRANGERS, SHEET])
    return [probe for probe in found if probe.kind == kind]


def test_pairs_are_placed_before_and_after_a_moment() -> None:
    (moment,) = {probe.moment for kind in ("earlier", "later") for probe in probes(kind, moments=1)}
    assert LINES[moment] == ("Mara", "There is soup.")
    assert {probe.source for probe in probes("earlier", moments=1)} == {"crate"}
    # She knew all along what is in the clock, and a recipe is no event.
    assert {probe.source for probe in probes("later", moments=1)} == {"ship", "bell"}
    assert {probe.source for probe in probes("story")} == {"crate", "ship", "bell", "letter"}


def test_a_pair_is_neither_earlier_than_its_segment_nor_later() -> None:
    said = {"segment": {"kind": "script", "turns": [10, 12]}}
    late = Question("late", PAIRS[0].question, PAIRS[0].answer, "script_based", receipt=said)
    said = {"segment": {"kind": "script", "turns": [0, 3]}}
    early = Question("early", PAIRS[1].question, PAIRS[1].answer, "script_based", receipt=said)
    assert {probe.kind for probe in make_probes(SHEET, [late, early], BoundarySettings())} == {"story", "ordinary"}


def test_strangers_are_people_whom_the_story_does_not_have() -> None:
    assert {probe.source for probe in probes("other_story")} == {"Pim Tansy"}
    assert not [one for one in make_probes(SHEET, [], BoundarySettings(), [SHEET]) if one.kind == "other_story"]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_modern_world_begins_after_the_year_of_the_characters(language: Language) -> None:
    def years(**how: Any) -> list[int]:
        made = make_probes(Profile("Mara", language), [], BoundarySettings(**how))
        return sorted(int(probe.source) for probe in made if probe.kind == "modern")

    assert years() == []
    assert years(world_year=1900) == [year for year in years(world_year=1000) if year > 1900] != []
    assert len(years(world_year=1000, per_kind=3)) == 3


ASKED = Probe("later", "Mara, what became of the bell?", ("rope", "snapped", "well"))


@pytest.mark.parametrize(
    ("language", "reply", "verdict"),
    [
        ("en", "I don’t know any Bosun Marrow.", "ignorant"),
        ("en", "Never heard of him, lad.", "ignorant"),
        ("en", "Smartphone? What be a smartphone?", "ignorant"),
        ("en", "That has not happened yet.", "ignorant"),
        ("en", "He is an old friend of mine. Who is to say otherwise? Not I.", "knows"),
        ("en", "I do not know how to pay with Bitcoin.", "ignorant"),
        ("en", "He saved my boat; I don't know how to thank him for it.", "knows"),
        ("en", "You don't know the half of it: it fell.", "knows"),
        ("en", "I do not know, but they say the rope snapped over the well.", "knows"),
        ("en", "Mara, what became of the bell?", "evades"),
        ("en", "I'm sorry, but I can't assist with that.", "evades"),
        ("en", "As an AI language model, I do not have the ability to ring bells.", "evades"),
        ("en", "What became of the bell.", "evades"),
        ("en", "…", "evades"),
        ("zh", "洒家不认得什么陈朗。", "ignorant"),
        ("zh", "手机？那是什么东西？", "ignorant"),
        ("zh", "亮从未听说此人。", "ignorant"),
        ("zh", "那是洒家的老兄弟，谁不知道他！", "knows"),
        ("zh", "不知不觉天就亮了，他往东去了。", "knows"),
    ],
)
def test_a_reply_is_judged_by_what_it_admits(language: Language, reply: str, verdict: str) -> None:
    assert judge_by_rule(reply, ASKED, Profile("Mara", language)) == verdict


def folder(tmp_path: Path) -> Path:
    made = write_character(SHEET, tmp_path / "mara")
    (made / "instruct").mkdir(exist_ok=True)
    lines = ({"id": one.id, "question": one.question, "answer": one.answer, "type": one.type} for one in PAIRS)
    write_jsonl(made / "instruct" / "kept.jsonl", lines)
    assert len(read_questions(made / "instruct")) == len(PAIRS)
    return made


def scripted(reply: str) -> LLM:
    return LLM.of(ScriptedModel(lambda request: reply, rules_hash=reply))


def run(tmp_path: Path, reply: str, **more: Any) -> dict[str, Any]:
    how = BoundarySettings(world_year=1800, show_script=True)
    step = ProbeBoundary(folder(tmp_path), how, PlaySettings(), [STRANGERS], **more)
    return run_step(step, scripted(reply), tmp_path / "run").result


@pytest.mark.parametrize(
    ("reply", "hallucination", "over_refusal"),
    [("It was the red one, dear.", 1.0, 0.0), ("I have never heard of it.", 0.0, 1.0), ("…", 0.0, 0.0)],
)
def test_who_answers_all_and_who_denies_all_both_err(
    tmp_path: Path, reply: str, hallucination: float, over_refusal: float
) -> None:
    found = run(tmp_path, reply)
    assert set(found["kinds"]) == set(KINDS)
    assert found["hallucination"]["rule"]["mean"] == hallucination
    assert found["over_refusal"]["rule"]["mean"] == over_refusal
    kept = Run.open(tmp_path / "run")
    assert json.loads(json.dumps(found)) == {**kept.summary, "probes": kept.records()}
    low, high = found["hallucination"]["rule"]["ci95"]
    assert low < high


def test_the_story_and_the_moment_are_told(tmp_path: Path) -> None:
    systems: list[str] = []

    def answer(request: Request) -> str:
        systems.append(request.messages[0].content)
        return "Aye."

    model = LLM.of(ScriptedModel(answer, rules_hash="told"))
    how = BoundarySettings(show_script=True, moments=1)
    run_step(ProbeBoundary(folder(tmp_path), how, PlaySettings()), model, tmp_path / "run")
    assert all("Joss: A crate of oranges" in text for text in systems)
    assert {"just said: “There is soup.”" in text for text in systems} == {True, False}


def test_a_judge_is_asked_about_every_reply(tmp_path: Path) -> None:
    judge = scripted('{"verdict": "evades"}')
    found = run(tmp_path, "It was the red one, dear.", judge=judge)
    assert found["hallucination"]["judge"]["mean"] == 0
    assert found["agreement"] == {"n": len(found["probes"]), "share": 0.0, "kappa": 0.0}
    mute = run(tmp_path, "It was the red one, dear.", judge=scripted("no verdict"))
    assert mute["agreement"] is None
    assert mute["hallucination"]["judge"] is None
