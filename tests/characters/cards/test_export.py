from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.characters.cards.card import format_card, parse_card
from rolellm.characters.cards.convert import EXAMPLES, export_character, read_as_character
from rolellm.core.errors import CardError
from rolellm.core.records import Lore, Profile, Turn

from .conftest import make_card, read_card

TEXTS = ("name", "description", "personality", "scenario", "first_mes", "mes_example", "creator_notes", "system_prompt")
MORE_TEXTS = ("post_history_instructions", "creator", "character_version")


def assert_valid(value: Any) -> dict[str, Any]:
    """By the types of V3, all members that are not optional."""
    assert (value["spec"], value["spec_version"]) == ("chara_card_v3", "3.0")
    data: dict[str, Any] = value["data"]
    assert {name for name in (*TEXTS, *MORE_TEXTS) if not isinstance(data[name], str)} == set()
    lists = ("alternate_greetings", "tags", "group_only_greetings")
    assert all(isinstance(item, str) for name in lists for item in data[name])
    assert isinstance(data["extensions"], dict)
    if "character_book" in data:
        assert isinstance(data["character_book"]["extensions"], dict)
        for entry in data["character_book"]["entries"]:
            assert all(isinstance(key, str) for key in entry["keys"])
            assert isinstance(entry["content"], str)
            assert isinstance(entry["extensions"], dict)
            assert isinstance(entry["enabled"], bool)
            assert isinstance(entry["insertion_order"], int)
            assert isinstance(entry["use_regex"], bool)
    return data


@pytest.mark.parametrize("spec", ["v1", "v2", "v3"])
def test_a_card_that_was_not_changed_gets_what_v3_requires_and_loses_nothing(spec: str) -> None:
    raw = make_card(spec, extensions={"x": 1.0}, odd=[1e22]).decode()
    card, character = read_card(raw.replace("1e+22", '{"y": "\\ud800"}').encode(), language="en")
    exported = export_character(character, card)
    again = parse_card(format_card(exported.value).encode())
    data = assert_valid(again.raw)
    assert exported.changed == ()
    book = {**card.data["character_book"], "entries": data["character_book"]["entries"]}
    assert {name: data[name] for name in card.data} == {**card.data, "character_book": book}
    assert [{**entry, "use_regex": False} for entry in card.data["character_book"]["entries"]] == book["entries"]
    second = read_as_character(again, language="en").character
    assert replace(second, made={}) == replace(character, made={})


def test_a_number_that_json_readers_refuse_is_not_written() -> None:
    card, character = read_card(b'{"name": "Ada", "description": "A.", "x": 1e999}', language="en")
    with pytest.raises(CardError, match="too large to be written"):
        format_card(export_character(character, card).value)


lore_items = st.builds(
    Lore,
    st.sampled_from(["The lamp.", "The fog.", "New."]),
    st.sampled_from([("lamp",), ("fog",), ("a", "b")]),
    st.sampled_from(["", "n"]),
)


@given(st.lists(lore_items, max_size=5))
def test_any_lore_comes_back_and_what_is_disabled_stays(lore: list[Lore]) -> None:
    card, character = read_card(make_card(), language="en")
    exported = export_character(replace(character, lore=tuple(lore)), card)
    again = parse_card(format_card(exported.value).encode())
    assert sorted(read_as_character(again).character.lore, key=repr) == sorted(lore, key=repr)
    assert [entry["content"] for entry in again.entries if not entry.get("enabled", True)] == ["Unused."]


def test_a_script_s_scenes_come_into_the_examples_within_a_budget() -> None:
    card, character = read_card(make_card(), language="en")
    script = []
    for scene in range(40):
        for number in range(20):
            speaker = "Ada Fenn" if number % 2 else "Brom"
            script.append(
                Turn(speaker, f"Line {scene} {number} " + "x" * 30, "speech", 100 + scene, number, number + 1)
            )
    exported = export_character(replace(character, turns=(*character.turns, *script)), card)
    assert exported.changed == ("mes_example",)
    before, after = card.mes_example, exported.value["data"]["mes_example"]
    assert after.startswith(before)
    assert EXAMPLES // 2 < len(after) - len(before) < EXAMPLES * 1.2
    assert any("of new scenes added" in note for note in exported.notes)


def test_sillytavern_s_second_copy_of_the_v1_fields_changes_too() -> None:
    raw = (
        b'{"name":"A","description":"d","personality":"p","x":1.0,"spec":"chara_card_v2","spec_version":"2.0",'
        b'"data":{"name":"A","description":"d","personality":"p","extensions":{"fav":false}}}'
    )
    card, character = read_card(raw)
    value = export_character(replace(character, role="B", description="e"), card).value
    assert (value["name"], value["description"], value["personality"], value["x"]) == ("B", "e", "", 1.0)
    assert (value["data"]["name"], value["data"]["description"], value["data"]["personality"]) == ("B", "e", "")


@pytest.mark.parametrize("name", ["A\u202eda", " Ada ", "x" * 10_000, ""])
def test_a_name_that_was_cleaned_or_given_is_no_change(name: str) -> None:
    raw = make_card(name=name)
    card, character = read_card(raw, role="Ada", language="zh")
    assert export_character(character, card).changed == ()
    # Nor where later stages forgot how it was imported, if the card has a name of its own.
    if 0 < len(name) <= 200:
        _, plain = read_card(raw)
        assert export_character(replace(plain, made={}), card).changed == ()


@pytest.mark.parametrize(
    "character",
    [
        pytest.param(Profile("Ada", "en"), id="nothing but a name"),
        pytest.param(
            Profile(
                "鲁智深",
                "zh",
                (Turn("史进", "你好", "speech", 0), Turn("鲁智深", "洒家在此\ud800", "speech", 0)),
                "你是鲁智深。",
                catchphrases=("洒家",),
                lore=(Lore("一百单八将", (), "梁山"), Lore("x", ("y",))),
            ),
            id="all",
        ),
    ],
)
def test_a_character_without_a_card_gets_a_whole_one(character: Profile) -> None:
    exported = export_character(character)
    data = assert_valid(exported.value)
    assert data["name"] == character.role
    assert data["description"] == (character.full_description or character.background or "")
    again = read_as_character(parse_card(format_card(exported.value).encode()), language=character.language).character
    assert [item.content for item in again.lore] == [item.content for item in character.lore]
    assert len([turn for turn in again.turns if turn.speaker == character.role]) == len(
        [turn for turn in character.turns if turn.speaker == character.role]
    )


def test_every_setting_of_lore_comes_back() -> None:
    lore = (
        Lore("One.", ("a", "/b+/i"), "first", ("c",), "not_all", case_sensitive=True, whole_words=False),
        Lore("Two.", (), "second", constant=True),
    )
    for book in (None, {}, {"entries": None}):
        card, character = read_card(make_card("v3", character_book=book), language="en")
        exported = export_character(replace(character, lore=lore), card)
        assert read_as_character(parse_card(format_card(exported.value).encode()), language="en").character.lore == lore
