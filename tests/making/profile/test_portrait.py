import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolellm.core.records import Language, Profile, Turn
from rolellm.llm.model import Reply, Request, UnacceptableError, Usage, user
from rolellm.making.profile.portrait import (
    LENGTHS,
    MOST_BYTES,
    Person,
    accept_portrait,
    clean_reply,
    collect_names,
    find_defects,
    find_role_name,
)

from .conftest import SECOND, THIRD

ADA = Profile(
    "Ada Fenn",
    "en",
    (
        Turn("Rose", "Aunt Ada, is it late?"),
        Turn("Ada Fenn", "Count the steps, child! Two hundred and six of them go up to the lamp, and down again."),
    ),
    aliases=("Keeper",),
)
WUKONG = Profile(
    "孙悟空",
    "zh",
    (Turn("师父", "悟空，休得胡闹。"), Turn("孙悟空", "俺老孙来也！你这妖怪好大的胆子，竟敢在此拦住我师父的去路！")),
    aliases=("悟空", "大圣"),
)
SHEETS: dict[Language, Profile] = {"en": ADA, "zh": WUKONG}
NAMES = {language: collect_names(sheet) for language, sheet in SHEETS.items()}

THIRD_ZH = (
    "一位从石头里蹦出来的猴王，自我意识极强，天不怕地不怕。他保护师父西行取经，与妖怪斗得你死我活，嘴上从不饶人。"
    "他最恨别人拿他的出身取笑，最怕师父受人蒙骗，也最看重一路同行的情分。师父糊涂的时候，他又气又急，却从来没有真的丢下不管。"
    "他说话直来直去，张口就要与人比个高低，说完便动手。"
)
SECOND_ZH = (
    "你是一位从石头里蹦出来的猴王，天不怕地不怕。你保护师父西行取经，一路降妖，嘴上从不饶人。"
    "你最恨别人拿你的出身取笑，最怕师父受人蒙骗，也最看重一路同行的情分。师父糊涂的时候，你又气又急，却从来没有真的丢下不管。"
    "你说话直来直去，张口就要与人比个高低，说完便动手。"
)
GOOD: dict[tuple[Person, Language], str] = {
    ("third", "en"): THIRD,
    ("second", "en"): SECOND,
    ("third", "zh"): THIRD_ZH,
    ("second", "zh"): SECOND_ZH,
}


def mend(text: str, person: Person = "third", language: Language = "en") -> str:
    return clean_reply(text, person, NAMES[language], language)


def defects(text: str, person: Person = "third", language: Language = "en") -> dict[Any, str]:
    return dict(find_defects(text, person, NAMES[language], language))


def accepted(text: str, person: Person = "third", language: Language = "en") -> str:
    sheet = SHEETS[language]
    material = "\n".join(turn.content for turn in sheet.turns)
    portrait = GOOD["third", language] if person == "second" else ""
    accept = accept_portrait(person, language, NAMES[language], f"{material}\n{portrait}")
    return accept(Request((user("x"),)), Reply(text, "stop", Usage(), "m", "e", {}))


def refused(text: str, person: Person = "third", language: Language = "en") -> UnacceptableError:
    with pytest.raises(UnacceptableError) as caught:
        accepted(text, person, language)
    return caught.value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("<think>Who is Ada?</think>\nShe counts.", "She counts.", id="thoughts"),
        pytest.param("Sure! Here's the portrait of Ada Fenn:\n\nShe counts.", "She counts.", id="preamble"),
        pytest.param("She counts. She waits and", "She counts.", id="cut off"),
        pytest.param("Ada counts. Rose asks ADA FENN.", "The character counts. Rose asks the character.", id="name"),
        pytest.param("孙悟空大闹天宫。", "这个人物大闹天宫。", id="name, zh"),
        *(pytest.param(text, text, id=" ".join(kind)) for kind, text in GOOD.items()),
    ],
)
def test_the_form_is_mended(text: str, expected: str) -> None:
    language: Language = "en" if text.isascii() else "zh"
    person: Person = "second" if text in (SECOND, SECOND_ZH) else "third"
    assert mend(text, person, language) == expected
    assert text not in GOOD.values() or accepted(text, person, language) == text


@pytest.mark.parametrize(
    ("language", "role", "aliases", "text", "expected"),
    [
        pytest.param("en", "Coriolanus", ("Caius Marcius",), "proud Marcius came", "Marcius", id="part of an alias"),
        pytest.param("en", "Soldier", (), "a soldier among soldiers", None, id="common noun"),
        pytest.param("en", "Captain Ahab", (), "Old Ahab hunts", "Ahab", id="without the title"),
        pytest.param("en", "M", (), "the chief, called M, who", "M", id="one letter"),
        pytest.param(
            "en", "Marcius", ("Caius Marcius", "Caius"), "x Caius Marcius y", "Caius Marcius", id="longest first"
        ),
        pytest.param("zh", "白", (), "白天的白马", None, id="zh: one character"),
        pytest.param("zh", "Sam", (), "他叫Sam的朋友", "Sam", id="zh: Latin name among Chinese"),
    ],
)
def test_names(language: Language, role: str, aliases: tuple[str, ...], text: str, expected: str | None) -> None:
    assert find_role_name(collect_names(Profile(role, language, aliases=aliases)), text) == expected


def test_in_the_second_person_sentences_with_the_name_are_left_out() -> None:
    assert mend(f"{SECOND} Ada is brave.", "second") == SECOND
    assert mend(SECOND_ZH + "人人都怕孙悟空。", "second", "zh") == SECOND_ZH
    # Where too little would be left, the name stays, and is a defect.
    assert mend("You are Ada. You count.", "second") == "You are Ada. You count."
    assert defects("You are Ada. You count.", "second")["named"] == "Ada"


@pytest.mark.parametrize(("person", "language"), GOOD)
def test_what_is_too_long_is_cut_at_a_sentence(person: Person, language: Language) -> None:
    good = GOOD[person, language]
    # No two sentences have words in common.
    english = [" ".join(f"sea{number}{letter}" for letter in "abcdefgh") + "." for number in range(200)]
    chinese = ["".join(map(chr, range(start, start + 16))) + "。" for start in range(0x5000, 0x5000 + 3200, 16)]
    text = " ".join([good, *english]) if language == "en" else "".join([good, *chinese])
    found = mend(text, person, language)
    assert found[-1] in ".。" and found.startswith(good)
    size = len(found.split()) if language == "en" else len(found)
    assert LENGTHS[language][1] - 40 < size <= LENGTHS[language][1]
    unbroken = mend(("a" if language == "en" else "海") * 9000, person, language)
    assert len(unbroken.encode()) <= MOST_BYTES


@pytest.mark.parametrize(
    ("person", "language", "text", "expected"),
    [
        pytest.param("third", "en", f"{THIRD} Ada counts.", {"named": "Ada"}, id="named"),
        pytest.param("third", "en", SECOND, {"third": ""}, id="second person"),
        pytest.param("third", "en", f"{THIRD} I know her.", {"third": ""}, id="first person"),
        pytest.param("second", "en", THIRD, {"second": ""}, id="third person"),
    ],
)
def test_defects(person: Person, language: Language, text: str, expected: dict[str, str]) -> None:
    assert defects(text, person, language) == expected


LEAKED = "Leave nothing out, add nothing, give no opinion."


@pytest.mark.parametrize(
    ("person", "language", "text", "reason"),
    [
        pytest.param("third", "en", THIRD_ZH, "not in English", id="Chinese"),
        pytest.param("third", "en", f"As an AI language model, I only know this: {THIRD}", "AI", id="language model"),
        pytest.param("second", "en", f"{SECOND} {LEAKED}", "repeats the instructions", id="instructions"),
    ],
)
def test_what_is_worthless_is_never_kept(person: Person, language: Language, text: str, reason: str) -> None:
    found = refused(text, person, language)
    assert found.usable is None

    assert re.search(reason, found.reason)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_what_is_better_than_none_is_kept_with_its_defects(language: Language) -> None:
    error = refused(GOOD["third", language], "second", language)
    assert error.usable == GOOD["third", language]
    assert len(error.feedback) > 10 and (language == "en") == (error.feedback == error.reason)
    assert "It is not in the second person throughout" in error.reason == " ".join(error.defects)


PIECES = {
    "en": ("Ada", "Ada's", "Fenn", "the Keeper", "keeper", "She counts", "He", "her", "You are", "I am", "called"),
    "zh": ("孙悟空", "大圣", "齐天大圣", "悟空的", "他", "她", "你是", "人称", "猴王", "Ada", "我"),
}
STARTS = ("# ", "- ", "1. ", "2、", "> ", "Sure!", "Here is it:", "好的，", "小传：")
SIGNS = (*" .,!?:;\n\"'“”‘’()", *"。，！？：、「」（）", "**", "```", "<think>", "</think>", "\ud800")


@settings(max_examples=150)
@given(st.sampled_from(list(GOOD)), st.data())
def test_any_reply_is_taken_or_refused(kind: tuple[Person, Language], data: st.DataObject) -> None:
    person, language = kind
    piece = st.sampled_from((*PIECES[language], *STARTS, *SIGNS, GOOD[kind][:40])) | st.text(max_size=5)
    text = data.draw(st.lists(piece, max_size=30).map("".join) | st.lists(piece, max_size=30).map(" ".join))
    try:
        found = accepted(text, person, language)
    except UnacceptableError as error:
        found = error.usable or mend(text, person, language)
    assert len(found.encode()) <= MOST_BYTES
    assert person == "second" or find_role_name(NAMES[language], found) is None


@pytest.mark.realdata
def test_most_descriptions_of_the_release_have_no_defect_but_their_length(real_release: Path) -> None:
    described = json.loads((real_release / "profiles-eng" / "desc.json").read_text(encoding="utf-8"))
    found = [
        set(find_defects(text.partition(" Your catchphrase")[0], "second", collect_names(Profile(role, "en")), "en"))
        - {"short"}
        for role, text in described.items()
    ]
    assert len(found) == 95
    # The others begin without addressing the role, or name it.
    assert found.count(set()) >= 65
    assert set().union(*found) <= {"named", "second"}
