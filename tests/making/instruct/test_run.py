"""Whole runs: segments, prompts, candidates, filters, and rounds, replays, failures and files."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.core.fingerprint import hash_json
from rolellm.core.jsonl import read_jsonl
from rolellm.core.records import Language, Lore, Profile, Turn
from rolellm.llm.json_reply import make_strict
from rolellm.llm.llm import LLM
from rolellm.llm.model import Model, Reply, Request, RunOptions, Sampling, UnacceptableError, Usage
from rolellm.llm.scripted import ScriptedModel
from rolellm.making.instruct.candidates import (
    Candidate,
    Task,
    build_pairs_schema,
    build_request,
    list_focuses,
    load_examples,
    parse_candidate,
    parse_pairs,
)
from rolellm.making.instruct.filters import Verdict, filter_candidates, find_form_problem
from rolellm.making.instruct.run import Instruct, InstructResult
from rolellm.making.instruct.segments import SCENE_BREAK, Segment, build_segments
from rolellm.making.settings import FilterSettings, InstructSettings
from rolellm.runs import Run, plan_rounds, run_step

# --- segments


def words(text: str) -> int:
    return len(text.split())


def segments(character: Profile, budget: int = 60, kind: str = "script") -> list[Segment]:
    found = build_segments(character, words, chunk_tokens=budget)
    return [segment for segment in found if segment.kind == kind]


def scene(number: int, lines: int, each: int = 8) -> list[Turn]:
    return [
        Turn("Ada" if line % 2 else "Brom", f"s{number}l{line} " + "word " * (each - 2), scene=number)
        for line in range(lines)
    ]


def test_a_turn_of_two_pages_is_cut_at_ends_of_sentences() -> None:
    text = " ".join(f"This is sentence number {number} of Ada." for number in range(40))
    found = segments(Profile("Ada", "en", (Turn("narrator", text, "narration"),)))
    assert len(found) > 4
    assert all(segment.text.endswith(".)") and segment.tokens <= 60 for segment in found)


def test_one_word_longer_than_a_chunk_ends() -> None:
    found = build_segments(Profile("Ada", "en", (Turn("Ada", "x" * 1000),)), len, chunk_tokens=50)
    assert sum(len(item.text.replace("Ada: ", "")) - item.text.count("\n") for item in found) == 1000


@pytest.mark.parametrize(
    ("role", "aliases", "language", "line", "about"),
    [
        pytest.param("Ada", (), "en", "I saw Adaline there.", False, id="part of another name"),
        pytest.param("Ada", ("Countess",), "en", "The Countess waits.", True, id="alias"),
        pytest.param("悟空", ("大圣",), "zh", "只见大圣跳起来", True, id="alias, Chinese"),
    ],
)
def test_chunks_without_the_role_are_told_apart(
    role: str, aliases: tuple[str, ...], language: str, line: str, about: bool
) -> None:
    character = Profile(role, language, (Turn("Brom", line),), aliases=aliases)  # type: ignore[arg-type]
    assert [item.about_role for item in segments(character)] == [about]


def test_lore_is_script_based_and_entries_stay_apart() -> None:
    lore = (Lore("Bees  hum.", ("bee",), "Bees"), Lore("  "), Lore("Rain falls upward on the isle. " * 20, name="Isle"))
    found = segments(Profile("Ada", "en", lore=lore), budget=50, kind="lore")
    assert {item.type for item in found} == {"script_based"}
    assert found[0].text.startswith("Bees: Bees hum.")
    assert (found[0].first, found[0].last) == (0, 2)
    assert all(line.startswith(("Bees: ", "Isle: ", SCENE_BREAK)) for item in found for line in item.text.splitlines())


@given(
    st.lists(
        st.tuples(st.sampled_from(["Ada", "Brom"]), st.integers(1, 90), st.integers(0, 1)), min_size=1, max_size=40
    ),
    st.integers(50, 200),
)
def test_every_line_is_in_a_chunk_none_is_over_budget_and_order_is_kept(
    lines: list[tuple[str, int, int]], budget: int
) -> None:
    turns, number = [], 0
    for place, (speaker, length, ahead) in enumerate(lines):
        number += ahead
        turns.append(Turn(speaker, " ".join(f"t{place}w{word}" for word in range(length)), scene=number))
    found = segments(Profile("Ada", "en", tuple(turns)), budget)
    seen = [word for item in found for word in re.findall(r"t\d+w\d+", item.text)]
    assert all(item.tokens <= budget for item in found)
    assert seen == [word for turn in turns for word in turn.content.split()]


# --- prompts


ADA_FENN = Profile("Ada", "en", description="You count.", catchphrases=("One!",))
SCRIPT = Segment("script/0001", "script", "Brom: Halt.\nAda: No.", 6)


def ask(task: Task, character: Profile = ADA_FENN) -> Request:
    return build_request(character, task, Sampling(max_tokens=2000))


def test_what_is_shared_comes_first_and_what_varies_last() -> None:
    first = ask(Task(SCRIPT, 10, 0))
    again = ask(Task(SCRIPT, 10, 3, 8, asked=("Ada, who?",)))
    other = ask(Task(replace(SCRIPT, text="Ada: Aye."), 10, 0))
    strange = ask(Task(SCRIPT, 10, 0), replace(ADA_FENN, role="Brom", description="You halt."))
    assert first.messages[:-1] == again.messages[:-1] == other.messages[:-1] == strange.messages[:-1]
    one, two, three = (item.messages[-1].content for item in (first, again, other))
    segment_ends = one.index(SCRIPT.text) + len(SCRIPT.text)
    assert one[:segment_ends] == two[:segment_ends]
    assert one[: one.index("Brom")] == three[: three.index("Ada: Aye")]
    assert two.endswith("- Ada, who?")
    assert one.index("Ada") < one.index("You count.") < one.index(SCRIPT.text) < one.index("Write 10 pairs.")


@pytest.mark.parametrize("language", ["en", "zh"])
def test_examples_show_each_kind_and_obey_their_own_rules(language: Any) -> None:
    shown = load_examples(language)
    assert {example["kind"] for example in shown} == {"profile", "script"}
    for example in shown:
        assert example["focus"] in list_focuses(language, example["kind"])
        for pair in example["pairs"]:
            assert find_form_problem(pair["question"], pair["answer"], language) is None


# --- candidates


ORIGIN = Segment("script/0003", "script", "Ada: No.", 3), {"visit": 2, "place": 4}
PAIR = {
    "question": "Ada, who are you?",
    "answer": "I am Ada.",
    "completeness": {"level": "high", "reason": "Plain."},
    "factualness": {"level": "medium", "reason": "Likely."},
}
REQUEST = Request(())


def read(text: str) -> list[Any]:
    return parse_pairs(REQUEST, Reply(text, "stop", Usage(), "m", "e", {}))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(json.dumps({"pairs": [PAIR]}), id="as asked"),
        pytest.param(json.dumps([PAIR]), id="bare list"),
        pytest.param(json.dumps(PAIR), id="one pair"),
        pytest.param(json.dumps({"questions": [PAIR]}), id="another key"),
        pytest.param("Here you are:\n```json\n" + json.dumps({"pairs": [PAIR]}) + "\n```\nMore?", id="fenced"),
        pytest.param('<think>{"pairs": []}</think>' + json.dumps({"pairs": [PAIR]}), id="after thoughts"),
    ],
)
def test_replies_are_read_in_every_form(text: str) -> None:
    assert read(text) == [PAIR]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{"pairs": [{"question": "Wh', id="cut off within the first"),
        pytest.param("[" * 10_000, id="nested 10,000 deep"),
    ],
)
def test_what_is_no_list_is_malformed(text: str) -> None:
    with pytest.raises(UnacceptableError) as caught:
        read(text)
    assert caught.value.kind == "malformed"


def test_confidence_opens_with_completeness_as_the_releases_does() -> None:
    assert parse_candidate(PAIR, *ORIGIN).confidence("en") == "Completeness: high. Plain. Factualness: medium. Likely."
    chinese = {**PAIR, "completeness": {"level": "高", "reason": "明白。"}, "factualness": "blau"}
    assert parse_candidate(chinese, *ORIGIN).confidence("zh") == "完整度：高。理由：明白。真实度：blau。"


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["question", "answer", "completeness", "factualness", "level", "reason"]), inner
            )
        ),
        max_leaves=20,
    )
)
def test_any_json_makes_a_candidate_that_can_be_written(item: Any) -> None:
    found = parse_candidate(item, *ORIGIN)
    json.dumps([found.question, found.answer, found.confidence("en"), found.confidence("zh")]).encode("utf-8")
    assert found.problem is not None or (found.question and found.answer)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_schema_takes_the_examples_and_can_be_sent_in_strict_mode(language: Any) -> None:
    schema = build_pairs_schema(language)
    for example in load_examples(language):
        jsonschema.validate({"pairs": example["pairs"]}, dict(schema.schema))
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"pairs": [{**example["pairs"][0], "answer": None}]}, dict(schema.schema))
    assert make_strict(schema).schema == schema.schema


# --- filters


Make = Callable[..., Candidate]
FENN = Profile(
    "Ada Fenn",
    "en",
    description="You keep the lighthouse.",
    aliases=("Keeper",),
    catchphrases=("I'm sorry, I can't do that.",),
)
OURS = "I answer with my own words, rhythm and manner: one to four sentences."
MONK = Profile("鲁智深", "zh", description="你是花和尚。")


def only(*candidates: Candidate, **settings: object) -> list[Verdict]:
    return filter_candidates(candidates, FENN, FilterSettings(**settings))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("question", "answer", "language", "reason"),
    [
        pytest.param("Ada, why?", "word " * 201, "en", "the answer has 201 words, more than 200", id="long answer"),
        pytest.param("Ada, why?", "ada,  WHY?", "en", "the answer repeats the question", id="echo"),
        pytest.param(
            "鲁智深，您说话泼辣，笑起来整条街都听得见。",
            "我说话泼辣，笑起来整条街都听得见。",
            "zh",
            "the answer says only what the question says",
            id="echo in the first person",
        ),
        pytest.param(
            "Ada, do you trim the lamps?",
            "I do; never once did I not trim the lamps by dawn.",
            "en",
            None,
            id="a word more",
        ),
        pytest.param("鲁智深，何故？", "Because of the donkey.", "zh", "the answer is not in Chinese", id="English"),
        pytest.param(
            "Ada, how?", "I went up there; I went up there.", "en", 'the answer says "I went up there" twice', id="loop"
        ),
        pytest.param("Ada, why?", "Because of 鲁智深, the monk of the inn!", "en", None, id="a foreign name"),
    ],
)
def test_form(question: str, answer: str, language: Language, reason: str | None) -> None:
    assert find_form_problem(question, answer, language) == reason


@pytest.mark.parametrize(
    ("answer", "character", "reason"),
    [
        pytest.param("As an AI language model, I keep no lamps.", FENN, "says that it is an AI", id="AI"),
        pytest.param("I lit the lamp and then I went down to", FENN, "is not complete", id="cut-off"),
        pytest.param("Ada had a deep love of lamps.", FENN, "told about the role", id="third person"),
        pytest.param("Lamps are what Ada loves.", FENN, "told about the role", id="third person, later"),
        pytest.param("Ada, they say, but call me Fenn.", FENN, None, id="its own name"),
        pytest.param(
            "As an AI, I run this ship.", replace(FENN, description="You are a computer."), None, id="machine"
        ),
        pytest.param(OURS, FENN, "rhythm and manner", id="our-words"),
    ],
)
def test_answers_keep_the_cleaning_rules(
    make_candidate: Make, answer: str, character: Profile, reason: str | None
) -> None:
    question = "鲁智深，你是谁？" if character.language == "zh" else "Ada, how do you do?"
    (verdict,) = filter_candidates([make_candidate(question, answer)], character, FilterSettings(min_confidence="low"))
    assert (verdict.by == "form") is (reason is not None)
    assert reason is None or reason in str(verdict.reason)


@pytest.mark.parametrize(
    ("question", "answer", "by"),
    [
        pytest.param("What came after Ada Fenn rang the bell?", "She went down to the boat.", "form", id="about it"),
        pytest.param("Tell me, Ada Fenn, who rang the bell?", "The miller, with a stick.", None, id="calls it"),
        pytest.param(
            "Ada, did they say that Fenn rang the bell?", "They say so, and I let them.", None, id="of itself"
        ),
    ],
)
def test_a_question_about_the_role_needs_an_answer_by_it(
    make_candidate: Make, question: str, answer: str, by: str | None
) -> None:
    (verdict,) = only(make_candidate(question, answer))
    assert verdict.by == by


@pytest.mark.parametrize(
    ("completeness", "factualness", "least", "reason"),
    [
        pytest.param("medium", "high", "medium", None, id="as sure as asked"),
        pytest.param(
            "high", {"level": "low", "reason": "Hm."}, "medium", "factualness is low, below medium: Hm.", id="reason"
        ),
        pytest.param("high", "blue", "low", 'no level of factualness could be read ("blue")', id="unreadable"),
    ],
)
def test_confidence(
    make_candidate: Make, completeness: object, factualness: object, least: str, reason: str | None
) -> None:
    pair = make_candidate("Ada, why?", completeness=completeness, factualness=factualness)
    (found,) = only(pair, min_confidence=least)
    assert found.reason == reason
    assert found.by == (None if reason is None else "confidence")


@pytest.mark.parametrize(
    ("kind", "answer", "by"),
    [
        pytest.param("script", "My father Lucius was a miller in the valley.", "overlap", id="nothing-of-it"),
        pytest.param("script", "I count, and Brom says no.", None, id="own-words"),
        pytest.param("profile", "My father Lucius was a miller in the valley.", None, id="of-the-profile"),
    ],
)
def test_script_based_pairs_have_words_of_their_segment(
    make_candidate: Make, kind: str, answer: str, by: str | None
) -> None:
    pair = make_candidate("Why?", answer, kind=kind, text="Brom: Count!\nAda: No.")
    (verdict,) = only(pair, min_overlap=0.5)
    assert verdict.by == by


def test_of_near_duplicates_the_surest_is_kept_and_verdicts_stay_in_order(make_candidate: Make) -> None:
    others = [make_candidate(f"Ada, tell me about the {thing}.") for thing in ("bell", "crane", "fog", "gull")]
    unsure = make_candidate(
        "Ada, who found the jam on the old stairs behind the mill when the bell rang at noon?", factualness="medium"
    )
    sure = make_candidate("Ada, who found the jam upon the old stairs behind the mill when the bell rang at noon?")
    same = make_candidate("ada, who found the jam on the OLD stairs behind the mill when the bell rang at noon?")
    found = only(unsure, *others, sure, same)
    assert [item.by for item in found] == ["duplicate", *[None] * 5, "duplicate"]
    assert f"the same question as {sure.id}" in str(found[0].reason)
    assert [item.candidate for item in found] == [unsure, *others, sure, same]


def test_nearly_the_same_answer_is_kept_once_unless_it_is_short(make_candidate: Make) -> None:
    long = [
        make_candidate(
            f"Ada, what did you do at the {place}?", f"I lit the lamp, counted the gulls {then} went home again."
        )
        for place, then in (("harbor", "and"), ("mill", "and then"))
    ]
    short = [make_candidate(f"Ada, do you like {thing}?", "Never!") for thing in ("rain", "boats")]
    other = make_candidate("Ada, who sent the rope?", "I had that rope from a sailor of the north, years ago.")
    found = only(*long, *short, other)
    assert [item.by for item in found] == [None, "duplicate", None, None, None]
    assert f"the same answer as {long[0].id}" in str(found[1].reason)


def test_a_question_that_speaks_of_a_script_is_dropped(make_candidate: Make) -> None:
    asked = [make_candidate(text, "往北走了。") for text in ("在剧本中，你往哪里走了？", "你往哪里走了？")]
    assert [verdict.by for verdict in filter_candidates(asked, MONK, FilterSettings())] == ["form", None]


# --- runs


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

    rounds = plan_rounds(Instruct(character, settings), model_of(ScriptedModel(full, rules_hash="tests")))
    plan = [request for planned in rounds for request in planned.requests]
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
