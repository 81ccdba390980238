from collections.abc import Callable
from dataclasses import replace

import pytest

from rolellm.core.records import Language, Profile
from rolellm.making.instruct.candidates import Candidate
from rolellm.making.instruct.filters import Verdict, filter_candidates, find_form_problem
from rolellm.making.settings import FilterSettings

Make = Callable[..., Candidate]
ADA = Profile(
    "Ada Fenn",
    "en",
    description="You keep the lighthouse.",
    aliases=("Keeper",),
    catchphrases=("I'm sorry, I can't do that.",),
)
OURS = "I answer with my own words, rhythm and manner: one to four sentences."
MONK = Profile("鲁智深", "zh", description="你是花和尚。")


def only(*candidates: Candidate, **settings: object) -> list[Verdict]:
    return filter_candidates(candidates, ADA, FilterSettings(**settings))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("question", "answer", "language", "reason"),
    [
        pytest.param("Ada, why?", "word " * 201, "en", "the answer has 201 words, more than 200", id="long answer"),
        pytest.param("Ada\u202e, why?", "So.", "en", "the question has control characters in it", id="bidi"),
        pytest.param("Ada, why?", "ada,  WHY?", "en", "the answer repeats the question", id="echo"),
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
        pytest.param("As an AI language model, I keep no lamps.", ADA, "says that it is an AI", id="AI"),
        pytest.param("I lit the lamp and then I went down to", ADA, "is not complete", id="cut-off"),
        pytest.param("Ada had a deep love of lamps.", ADA, "told about the role", id="third person"),
        pytest.param("Ada, they say, but call me Fenn.", ADA, None, id="its own name"),
        pytest.param("As an AI, I run this ship.", replace(ADA, description="You are a computer."), None, id="machine"),
        pytest.param(OURS, ADA, "rhythm and manner", id="our-words"),
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
