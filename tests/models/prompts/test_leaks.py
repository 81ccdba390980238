"""Our own words in what a model wrote, and the material's."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.core.records import Language
from rolellm.models.prompts.leaks import LONGEST_SHARED, make_leak_check, make_share_check
from rolellm.models.prompts.render import SLOT, load_template


@pytest.mark.parametrize(
    ("language", "text", "leak"),
    [
        pytest.param(
            "en",
            "He is one whom leave nothing out, add nothing, give it helps.",
            "leave nothing out, add nothing, give",
            id="within",
        ),
        pytest.param(
            "en", "LEAVE NOTHING OUT — ADD *NOTHING*… GIVE!", "LEAVE NOTHING OUT — ADD *NOTHING*… GIVE", id="capitals"
        ),
        pytest.param(
            "en", "Leave\nnothing out,\n\nadd nothing, give", "Leave\nnothing out,\n\nadd nothing, give", id="lines"
        ),
        pytest.param("en", "Leave nothing out, add nothing", None, id="five words"),
        pytest.param("en", "Leave nothing out, then add nothing, give no opinion", None, id="another between"),
        pytest.param("zh", "他不遗漏，不添加，不评论", "不遗漏，不添加，不评", id="Chinese"),
        pytest.param("zh", "不遗漏不添加不", None, id="seven characters"),
        pytest.param("en", "不遗漏，不添加，不评论", None, id="Chinese among English"),
        pytest.param("zh", "Leave nothing out, add nothing, give no opinion.", None, id="English among Chinese"),
        pytest.param("en", "", None, id="empty"),
        pytest.param("en", "…!?\ud800", None, id="no words"),
    ],
)
def test_our_words_are_found(language: Language, text: str, leak: str | None) -> None:
    assert make_leak_check(language, "")(text) == leak


def test_no_words_are_ours_across_a_slot() -> None:
    text = "（此人台词：；他人台词：）"
    lines = load_template("zh", "profile_phrase_line").text.splitlines()
    assert any(all(part.strip() in text for part in SLOT.split(line)[::2] if part.strip(" .")) for line in lines)
    assert make_leak_check("zh", "")(text) is None


@pytest.mark.parametrize(
    ("language", "line"),
    [("en", "Leave nothing out, add nothing, give no opinion."), ("zh", "不遗漏，不添加，不评论。")],
)
def test_what_the_material_says_may_be_said_again(language: Language, line: str) -> None:
    assert make_leak_check(language, "")(line)
    assert make_leak_check(language, f"Rose: {line}")(line) is None
    # Only those words: others of ours are still found.
    other = load_template(language, "profile_third_rules").text
    assert make_leak_check(language, f"Rose: {line}")(other)


def test_further_texts_of_ours() -> None:
    ours = ("The gulls of the harbor sleep late today.",)
    assert make_leak_check("en", "", ours)("Do the gulls of the harbor sleep?") == "the gulls of the harbor sleep"
    assert make_leak_check("en", "", ours)("Do gulls of the harbor sleep late?") == "gulls of the harbor sleep late"
    assert make_leak_check("en", ours[0], ours)(ours[0]) is None


@pytest.mark.parametrize(
    ("material", "text", "share"),
    [
        pytest.param(
            "one two three four five six seven eight", "One, two, three — four five six seven eight!", 1.0, id="all"
        ),
        pytest.param(
            "one two three four five six seven eight", "zero one two three four five six seven eight", 0.5, id="1/2"
        ),
        pytest.param("one two three four five six seven eight", "one two three four five six seven", 0.0, id="seven"),
        pytest.param("", "one two three four five six seven eight", 0.0, id="no material"),
        pytest.param("one two three four five six seven eight", "", 0.0, id="no text"),
        pytest.param("俺老孙来也，妖怪哪里走", "俺老孙来也！妖怪哪里走？", 1.0, id="Chinese"),
        pytest.param("俺老孙来也，妖怪哪里走", "他说俺老孙来也，又说妖怪哪里走", 0.0, id="Chinese, in pieces"),
    ],
)
def test_the_share_that_is_the_materials(material: str, text: str, share: float) -> None:
    assert make_share_check(material)(text) == share


@given(st.text(), st.text(), st.sampled_from(["en", "zh"]))
def test_any_text(material: str, text: str, language: Language) -> None:
    leak = make_leak_check(language, material)(text)
    assert leak is None or leak in text
    assert 0 <= make_share_check(material)(text) <= 1
    assert make_share_check(text)(text) in (0, 1)


@pytest.mark.realdata
@pytest.mark.parametrize(("language", "least"), [("en", 39_000), ("zh", 45_000)])
def test_nothing_in_the_release_has_so_many_of_our_words_in_a_row(
    real_release: Path, language: Language, least: int
) -> None:
    """Nobody who wrote or answered it had seen our prompts: what is shared is chance."""
    assert LONGEST_SHARED[language] > 3
    texts = set()
    for path in (real_release / f"rolebench-{'eng' if language == 'en' else 'zh'}").rglob("*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            texts |= {row["question"], *row["generated"]}
    assert len(texts) > least
    check = make_leak_check(language, "")
    assert [leak for text in texts if (leak := check(text))] == []


@pytest.mark.parametrize(
    ("language", "text", "leak"),
    [
        pytest.param("en", "Winning? I want it. I asked him twice.", "I asked him twice", id="en"),
        pytest.param("en", "I asked her twice.", None, id="other-words"),
        pytest.param("zh", "赢？我想赢。甜不甜，舔了才算。", "甜不甜，舔了才算", id="zh"),
    ],
)
def test_a_whole_sentence_of_an_example_is_copied_however_short(
    language: Language, text: str, leak: str | None
) -> None:
    assert make_leak_check(language, "")(text) == leak
    assert make_leak_check(language, text)(text) is None
