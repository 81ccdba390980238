from collections.abc import Callable
from dataclasses import replace

import pytest

from rolellm.core.records import Language, Profile
from rolellm.making.instruct.candidates import Candidate
from rolellm.making.instruct.filters import (
    Verdict,
    filter_candidates,
    find_form_problem,
    find_source_reference,
    make_address_check,
    make_character_check,
)
from rolellm.making.settings import FilterSettings

Make = Callable[..., Candidate]
ADA = Profile(
    "Ada Fenn",
    "en",
    description="You keep the lighthouse.",
    aliases=("Keeper",),
    catchphrases=("I'm sorry, I can't do that.",),
)
MONK = Profile("鲁智深", "zh", description="你是花和尚。")


def only(*candidates: Candidate, **settings: object) -> list[Verdict]:
    return filter_candidates(candidates, ADA, FilterSettings(**settings))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("question", "answer", "language", "reason"),
    [
        pytest.param("Ada, why?", "word " * 201, "en", "the answer has 201 words, more than 200", id="long answer"),
        pytest.param("why " * 61, "So.", "en", "the question has 61 words, more than 60", id="long question"),
        pytest.param("Ada\u202e, why?", "So.", "en", "the question has control characters in it", id="bidi"),
        pytest.param("Ada, why?", "…!", "en", "the answer has no words", id="no words"),
        pytest.param("Ada, why?", "ada,  WHY?", "en", "the answer repeats the question", id="echo"),
        pytest.param("鲁智深，何故？", "Because of the donkey.", "zh", "the answer is not in Chinese", id="English"),
        pytest.param(
            "Ada, how?",
            "Well, I went up the stairs; I went up the stairs.",
            "en",
            'the answer says "I went up the stairs" twice',
            id="in-circles",
        ),
        pytest.param(
            "阿达，为什么？",
            "因为风大，我是阿达，我是阿达。",
            "zh",
            'the answer says "我是阿达" twice',
            id="in-circles-zh",
        ),
        pytest.param(
            "Ada, why?", "Because of 鲁智深, the monk of the far inn by the river!", "en", None, id="a foreign name"
        ),
        pytest.param("Ada, are you well?", "Very well! 👩‍🚀", "en", None, id="joined emoji"),
    ],
)
def test_form(question: str, answer: str, language: Language, reason: str | None) -> None:
    assert find_form_problem(question, answer, language) == reason


@pytest.mark.parametrize(
    ("question", "answer", "language", "leans"),
    [
        pytest.param("Ada, what does the passage say?", "That I keep it.", "en", True, id="the passage"),
        pytest.param("According to the script, who came?", "Brom.", "en", True, id="according to"),
        pytest.param("Ada, what happens in scene 2?", "Fog.", "en", True, id="scene number"),
        pytest.param("Ada, what did you do in the opening scene?", "I lit it.", "en", True, id="opening scene"),
        pytest.param("Ada, who came?", "The text above says Brom.", "en", True, id="in the answer"),
        pytest.param("Ada, who came?", "That is not mentioned in here.", "en", True, id="not mentioned"),
        pytest.param("Ada, who came?", "There is no information on that.", "en", True, id="no information"),
        pytest.param("Ada, who came?", "I do not know the catchphrase.", "en", True, id="a word of our instructions"),
        pytest.param("Ada, who came?", "The last person mentioned was Bob.", "en", True, id="who is mentioned"),
        pytest.param("Ada, who came?", "Unknown.", "en", True, id="unknown"),
        pytest.param("鲁智深，第二场里你扔了什么？", "磨盘。", "zh", True, id="scene number, Chinese"),
        pytest.param("鲁智深，谁来了？", "不知道。", "zh", True, id="nothing but ignorance, Chinese"),
        pytest.param("Ada, who guards the passage to the cellar?", "I do.", "en", False, id="passage to the cellar"),
        pytest.param("Ada, do you like to make a scene?", "Never in the harbour!", "en", False, id="make a scene"),
        pytest.param("Ada, who wrote the play?", "A friend of mine, about a whale.", "en", False, id="a play within"),
        pytest.param("Ada, who came?", "I do not know.", "en", True, id="nothing but ignorance"),
        pytest.param("鲁智深，根据剧本，你做了什么？", "吃酒。", "zh", True, id="according to, Chinese"),
        pytest.param("鲁智深，谁来了？", "文中没有提到。", "zh", True, id="not mentioned, Chinese"),
        pytest.param("Ada, what of the passage of time?", "I count it.", "en", False, id="passage of time"),
        pytest.param("Ada, whose profile is on the coin?", "The old king's.", "en", False, id="profile on a coin"),
        pytest.param(
            "Ada, where is Brom?",
            "I do not know, and the fog will not tell me either.",
            "en",
            False,
            id="ignorance in character",
        ),
        pytest.param("鲁智深，场面大不大？", "大得很，满场都是人！", "zh", False, id="a crowd, Chinese"),
        pytest.param("鲁智深，第一回吃酒是哪年？", "洒家七岁那年。", "zh", False, id="the first time, Chinese"),
    ],
)
def test_pairs_that_lean_on_their_segment_or_stand_by_themselves(
    question: str, answer: str, language: Language, leans: bool
) -> None:
    assert (find_source_reference(question, answer, language) is not None) is leans


@pytest.mark.parametrize(
    ("answer", "character", "found"),
    [
        pytest.param("As an AI language model, I keep no lamps.", ADA, "says that it is an AI", id="AI"),
        pytest.param("I am only playing the role of Ada.", ADA, "says that it plays a role", id="player"),
        pytest.param("I'm afraid I cannot answer that question.", ADA, "refuses to answer", id="refusal"),
        pytest.param("I lit the lamp and then I went down to", ADA, "is not complete", id="cut off"),
        pytest.param("Ada Fenn is proud of her lamp.", ADA, "tells about the role", id="told about"),
        pytest.param("Ada Fenn, who came first, had the oar.", ADA, "tells about the role", id="told about, who"),
        pytest.param("Keeper's lamp is the brightest of all.", ADA, "tells about the role", id="told about, by alias"),
        pytest.param(
            "The Queen stopped before the tree.",
            Profile("Queen of Jam", "en"),
            "tells about the role",
            id="by title",
        ),
        pytest.param(
            "The Queen of Jam and the King meet.",
            Profile("Queen of Jam", "en"),
            "tells about the role",
            id="as subject",
        ),
        pytest.param("Ada Fenn: I lit it.", ADA, "opens with the role's name", id="script form"),
        pytest.param("**Ada Fenn**: I lit it.", ADA, "opens with the role's name", id="script form in bold"),
        pytest.param("鲁智深是个爽快人，喜欢吃酒。", MONK, "tells about the role", id="told about, Chinese"),
        pytest.param("You learned to read by the tide tables.", ADA, 'tells about the role ("You")', id="of the asker"),
        pytest.param("你在五台山下打了一根禅杖。", MONK, 'tells about the role ("你")', id="of the asker, Chinese"),
        pytest.param("石彪是你的敌人。", MONK, "tells about the role", id="to the asker, Chinese"),
        pytest.param("鲁智深：吃酒！", MONK, "opens with the role's name", id="script form, Chinese"),
        pytest.param("我是一个语言模型。", MONK, "says that it is an AI", id="AI, Chinese"),
        pytest.param("Ada Fenn is my name, and lamps are my trade.", ADA, None, id="by name, and I"),
        pytest.param("Nobody climbs these stairs but Ada Fenn!", ADA, None, id="name at the end"),
        pytest.param("Queens are patient people.", Profile("Queen of Jam", "en"), None, id="others of the title"),
        pytest.param("The lamp needs oil, the oil needs hauling.", ADA, None, id="no person at all"),
        pytest.param("I'm sorry, I can't do that.", ADA, None, id="own catchphrase"),
        pytest.param("洒家鲁智深是也，先吃三碗酒！", MONK, None, id="self-named, Chinese"),
    ],
)
def test_in_and_out_of_character(answer: str, character: Profile, found: str | None) -> None:
    assert str(make_character_check(character)(answer)).startswith(str(found))


@pytest.mark.parametrize(
    ("question", "character", "found"),
    [
        pytest.param("Ada Fenn, who came?", ADA, False, id="called first"),
        pytest.param("Old Ada, who came?", ADA, False, id="called by more than the name"),
        pytest.param("Who came, Ada?", ADA, False, id="called last"),
        pytest.param("What is the lamp for?", ADA, False, id="nobody called"),
        pytest.param("Why do you say that Ada left?", ADA, False, id="with you"),
        pytest.param("Why did Ada Fenn light the lamp?", ADA, True, id="asked about"),
        pytest.param("Ada Fenn, what did he eat?", ADA, True, id="called, then asked about"),
        pytest.param("鲁智深，谁来了？", MONK, False, id="called first, Chinese"),
        pytest.param("谁来了，鲁智深？", MONK, False, id="called last, Chinese"),
        pytest.param("昨天鲁智深扔了什么？", MONK, True, id="asked about, Chinese"),
    ],
)
def test_questions_about_the_role(question: str, character: Profile, found: bool) -> None:
    assert (make_address_check(character)(question) is not None) is found


def test_a_machine_may_say_that_it_is_one() -> None:
    hal = Profile("HAL", "en", description="You are the computer of a ship.")
    assert make_character_check(hal)("As an AI, I run this ship.") is None
    assert make_character_check(replace(hal, description="You are a cook."))("As an AI, I run this ship.") is not None


@pytest.mark.parametrize(
    ("completeness", "factualness", "least", "reason"),
    [
        pytest.param("medium", "high", "medium", None, id="as sure as asked"),
        pytest.param(
            "high",
            {"level": "low", "reason": "A guess."},
            "medium",
            "factualness is low, below medium: A guess.",
            id="says why",
        ),
        pytest.param("high", "blue", "low", 'no level of factualness could be read ("blue")', id="unreadable"),
    ],
)
def test_confidence(
    make_candidate: Make, completeness: object, factualness: object, least: str | None, reason: str | None
) -> None:
    settings = {"no_confidence": True} if least is None else {"min_confidence": least}
    (found,) = only(make_candidate("Ada, why?", completeness=completeness, factualness=factualness), **settings)
    assert found.reason == reason
    assert found.by == (None if reason is None else "confidence")


def test_the_first_filter_that_turns_a_pair_down_is_named(make_candidate: Make) -> None:
    answer = "As an AI, I once met old Zebulon."
    bad = make_candidate("Ada, what says the passage?", answer, kind="script", text="Ada: No.", completeness="low")
    steps: list[dict[str, object]] = [{}, {"no_confidence": True}, {"no_standalone": True}, {"no_character": True}]
    off: dict[str, object] = {}
    found = []
    for step in [*steps, {"no_grounding": True}]:
        off |= step
        found.append(only(bad, **off)[0].by)
    assert found == ["confidence", "standalone", "character", "grounding", None]


TELL, COUNTED = "Ada, what can you tell me of yourself?", "I could not say, and I have counted all day."


@pytest.mark.parametrize(
    ("question", "answer", "by"),
    [
        pytest.param(TELL, "My father was Lucius O'Flaherty, a miller.", "grounding", id="name-of-nobody"),
        pytest.param(TELL, "I have counted 973 steps in my time.", "grounding", id="number-from-nowhere"),
        pytest.param(TELL, "I like the evening, when nobody knocks, and I count what is left.", None, id="own-words"),
        pytest.param("Ada, what does he say when someone is looking at him?", COUNTED, "character", id="he"),
        pytest.param("Ada Fenn, what is Ada Fenn's main trade?", COUNTED, "character", id="name-twice"),
        pytest.param("Ada, why did she take her bag, as you recall?", COUNTED, None, id="you-recall"),
        pytest.param("Ada, what is the price of corn?", COUNTED, None, id="no-you"),
    ],
)
def test_pairs_have_no_names_of_their_own_and_are_put_to_the_role(
    make_candidate: Make, question: str, answer: str, by: str | None
) -> None:
    (found,) = only(make_candidate(question, answer))
    assert found.by == by


def test_our_own_words_are_no_answer(make_candidate: Make) -> None:
    (found,) = only(
        make_candidate("Ada, how do you talk?", "I answer with my own words, rhythm and manner: one to four sentences.")
    )
    assert found.by == "leak" and "rhythm and manner" in str(found.reason)


def test_of_near_duplicates_the_surest_is_kept_and_verdicts_stay_in_order(make_candidate: Make) -> None:
    others = [make_candidate(f"Ada, tell me about the {thing}.") for thing in ("bell", "crane", "fog", "gull")]
    unsure = make_candidate("Ada, who found the jam on the old stairs?", factualness="medium")
    sure = make_candidate("Ada, who found the jam upon the old stairs?")
    same = make_candidate("ada, who found the jam on the OLD stairs?")
    found = only(unsure, *others, sure, same, similarity=0.7)
    assert [item.by for item in found] == ["duplicate", *[None] * 5, "duplicate"]
    assert f"asks what {sure.id} asks" in str(found[0].reason)
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
    assert f"says what {long[0].id} says" in str(found[1].reason)
