import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.characters.cards.card import Card, parse_card
from rolellm.characters.cards.convert import read_as_character
from rolellm.characters.cards.export import EXAMPLES, export_character
from rolellm.core.records import Lore, Profile, Turn

from .conftest import make_card, read_card

TEXTS = ("name", "description", "personality", "scenario", "first_mes", "mes_example", "creator_notes", "system_prompt")
MORE_TEXTS = ("post_history_instructions", "creator", "character_version")


def assert_valid(text: str, spec: str) -> dict[str, Any]:
    """By the types of the two specifications, all members that are not optional."""
    value = json.loads(text)
    assert (value["spec"], value["spec_version"]) == (f"chara_card_{spec}", f"{spec[1]}.0")
    data: dict[str, Any] = value["data"]
    assert {name for name in (*TEXTS, *MORE_TEXTS) if not isinstance(data[name], str)} == set()
    lists = ["alternate_greetings", "tags", *(["group_only_greetings"] if spec == "v3" else [])]
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
            assert spec == "v2" or isinstance(entry["use_regex"], bool)
    return data


@pytest.mark.parametrize("spec", ["v1", "v2", "v3"])
@pytest.mark.parametrize("target", ["v2", "v3"])
def test_any_card_can_be_written_by_either_specification(spec: str, target: Any) -> None:
    card, character = read_card(make_card(spec, extensions={"x": 1.0}, odd=[1e22]), language="en")
    exported = export_character(character, card, target)
    data = assert_valid(exported.text, target)
    assert data["odd"] == [1e22]
    again = parse_card(exported.text.encode())
    assert again.spec == target
    second = read_as_character(again, language="en").character
    assert replace(second, made={}) == replace(character, made={})


def export_again(character: Profile, card: Card) -> tuple[Profile, tuple[str, ...]]:
    exported = export_character(character, card)
    again = read_as_character(parse_card(exported.text.encode()), language="en").character
    return again, exported.changed


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
    again = parse_card(exported.text.encode())
    assert sorted(read_as_character(again).character.lore, key=repr) == sorted(lore, key=repr)
    assert [entry["content"] for entry in again.entries if not entry.get("enabled", True)] == ["Unused."]


def test_changed_talk() -> None:
    card, character = read_card(make_card(), language="en")
    said = {"Please.": "No, thank you.", "You again.": "Back so soon?", "A storm. User knocks.": "Calm."}
    turns = tuple(replace(turn, content=said.get(turn.content, turn.content)) for turn in character.turns)
    exported = export_character(replace(character, turns=turns), card)
    data = json.loads(exported.text)["data"]
    assert exported.changed == ("scenario", "alternate_greetings", "mes_example")
    assert data["scenario"] == "Calm."
    # What was not touched keeps its placeholders.
    assert data["alternate_greetings"] == ["Back so soon?", "<BOT> nods."]
    assert data["first_mes"] == "Who's there, <USER>?"
    assert data["mes_example"] == (
        "<START>\n{{user}}: hi\n{{char}}: Count the steps.\nAll 212.\n"
        "<START>\n*Dawn.*\n<user>: Tea?\nAda Fenn: No, thank you."
    )
    again, _ = export_again(replace(character, turns=turns), card)
    assert again.turns == turns


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
    before, after = card.mes_example, json.loads(exported.text)["data"]["mes_example"]
    assert after.startswith(before)
    assert EXAMPLES // 2 < len(after) - len(before) < EXAMPLES * 1.2
    assert any("of new scenes added" in note for note in exported.notes)


def test_a_character_read_from_a_script_under_the_same_scene_numbers_leaves_the_greetings() -> None:
    card, character = read_card(make_card(), language="en")
    script = tuple(
        Turn(speaker, f"{speaker} {scene} {number}", "speech", scene)
        for scene in range(3)
        for number, speaker in enumerate(("Brom", "Ada Fenn", "Brom"))
    )
    exported = export_character(replace(character, turns=script), card)
    data = json.loads(exported.text)["data"]
    assert (data["first_mes"], data["alternate_greetings"]) == (card.first_mes, list(card.alternate_greetings))
    assert "{{char}}: Ada Fenn 0 1" in data["mes_example"]


def test_sillytavern_s_second_copy_of_the_v1_fields_changes_too() -> None:
    raw = (
        b'{"name":"A","description":"d","personality":"else","x":1.0,"spec":"chara_card_v2","spec_version":"2.0",'
        b'"data":{"name":"A","description":"d","personality":"p","extensions":{"fav":false}}}'
    )
    card, character = read_card(raw)
    exported = export_character(replace(character, role="B", description="e"), card)
    value = json.loads(exported.text)
    assert (value["name"], value["description"], value["personality"]) == ("B", "e", "else")
    assert (value["data"]["name"], value["data"]["description"], value["data"]["personality"]) == ("B", "e", "")
    assert '"x":1.0' in exported.text


@pytest.mark.parametrize("name", ["A\u202eda", " Ada ", "x" * 10_000, ""])
def test_a_name_that_was_cleaned_or_given_is_no_change(name: str) -> None:
    raw = make_card(name=name)
    card, character = read_card(raw, role="Ada", language="zh")
    assert export_character(character, card).text.encode() == raw
    # Nor where later stages forgot how it was imported, if the card has a name of its own.
    if 0 < len(name) <= 200:
        _, plain = read_card(raw)
        assert export_character(replace(plain, made={}), card).text.encode() == raw


@pytest.mark.parametrize("spec", ["v2", "v3"])
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
        pytest.param(Profile("Ada", "en", background="She keeps."), id="background only"),
    ],
)
def test_a_character_without_a_card_gets_a_whole_one(character: Profile, spec: Any) -> None:
    exported = export_character(character, spec=spec)
    exported.text.encode()
    data = assert_valid(exported.text, spec)
    assert data["name"] == character.role
    assert data["description"] == (character.full_description or character.background or "")
    again = read_as_character(parse_card(exported.text.encode()), language=character.language).character
    assert [item.content for item in again.lore] == [item.content for item in character.lore]
    assert len([turn for turn in again.turns if turn.speaker == character.role]) == len(
        [turn for turn in character.turns if turn.speaker == character.role]
    )


def test_every_setting_of_lore_comes_back() -> None:
    lore = (
        Lore("One.", ("a", "/b+/i"), "first", ("c",), "not_all", case_sensitive=True, whole_words=False),
        Lore("Two.", (), "second", constant=True),
    )
    entry = {"keys": ["z"], "content": "One.", "extensions": {"x": 1}}
    for book in (None, {}, {"entries": None}, {"extensions": {}, "entries": [entry]}):
        card, character = read_card(make_card("v3", character_book=book), language="en")
        exported = export_character(replace(character, lore=lore), card)
        assert read_as_character(parse_card(exported.text.encode()), language="en").character.lore == lore
        first = json.loads(exported.text)["data"]["character_book"]["entries"][0]
        assert first["extensions"].get("x") == (1 if book and book.get("entries") else None)


def test_edited_talk_in_the_description_is_edited_there() -> None:
    talk = "{{user}}: Why?\n{{char}}: Why not?"
    card, character = read_card(make_card(description=f"[keeper]\n{talk}\n[{{{{char}}}}: dry]"), language="en")
    turns = tuple(
        replace(turn, content="Ask the fog.") if turn.content == "Why not?" else turn for turn in character.turns
    )
    exported = export_character(replace(character, turns=turns), card)
    assert exported.changed == ("description",)
    told = json.loads(exported.text)["data"]["description"]
    assert told == "[keeper]\n{{user}}: Why?\n{{char}}: Ask the fog.\n[{{char}}: dry]"
    again, changed = export_again(replace(character, description="You keep.\n\ndry, exact", turns=turns), card)
    assert (changed, again.turns) == (("description",), turns)


def test_an_edit_keeps_the_placeholders_around_it() -> None:
    content = "@@depth 4\n{{char}} has {{// brass }}a lamp."
    entry = {"name": "n", "keys": ["{{char}}"], "content": content, "extensions": {}}
    texts = {
        "description": "{{char}} keeps a lamp. {{user}} does not.{{// 1890 }}",
        "personality": "",
        "scenario": "A lamp.\n{{user}} knocks.",
        "first_mes": "<BOT> nods at {{user}}. A lamp?",
        "alternate_greetings": ["{{char}} has a lamp."],
        "mes_example": "<START>\n{{user}}: I am {{user}}.\n{{char}}: A lamp.",
    }
    card, character = read_card(make_card("v3", **texts, character_book={"entries": [entry]}), language="en")

    def edit(value: Any) -> Any:
        return json.loads(json.dumps(value).replace("lamp", "bell"))

    (lore,) = character.lore
    wanted = replace(
        character,
        description=edit(character.description),
        turns=tuple(replace(turn, content=edit(turn.content)) for turn in character.turns),
        lore=(replace(lore, content=edit(lore.content), keys=(*lore.keys, "bell")),),
    )
    data = json.loads(export_character(wanted, card).text)["data"]
    assert {name: data[name] for name in texts} == edit(texts)
    (changed,) = data["character_book"]["entries"]
    assert (changed["keys"], changed["content"]) == (["{{char}}", "bell"], edit(content))
