"""A card becomes a character and a character a card: what is read, what is written, and that the two agree."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rolellm.characters.cards.card import format_card, parse_card
from rolellm.characters.cards.convert import (
    EXAMPLES,
    LOGICS,
    CardNames,
    choose_user_name,
    export_character,
    fill,
    read_as_character,
)
from rolellm.core.errors import CardError, SettingsError
from rolellm.core.records import Lore, Profile, Turn
from rolellm.models.prompts.retrieval import find_exchanges

from .conftest import make_card, read_card


def read(raw: bytes, **options: Any) -> Any:
    return read_as_character(parse_card(raw), **options)


def group_lines(character: Profile) -> list[list[tuple[str, str]]]:
    """Speakers and their words, scene by scene."""
    scenes: dict[int, list[tuple[str, str]]] = {}
    for turn in character.turns:
        # A line break before what looks like a new speaker becomes a space in a card.
        scenes.setdefault(turn.scene, []).append((turn.speaker, " ".join(turn.content.split())))
    return list(scenes.values())


def test_a_card_becomes_a_character() -> None:
    character = read(make_card(), language="en", file="ada.json").character
    assert character.description == "Ada Fenn keeps a lighthouse.\n\ndry, exact"
    assert group_lines(character) == [
        [("narrator", "A storm. User knocks."), ("Ada Fenn", "Who's there, User?")],
        [("Ada Fenn", "You again.")],
        [("Ada Fenn", "Ada Fenn nods.")],
        [("User", "hi"), ("Ada Fenn", "Count the steps. All 212.")],
        [("narrator", "*Dawn.*"), ("User", "Tea?"), ("Ada Fenn", "Please.")],
    ]
    assert [turn.kind for turn in character.turns if turn.speaker == "narrator"] == ["narration"] * 2
    # In the order that the book asks for, without what is disabled.
    assert character.lore == (Lore("The fog.", ("fog",)), Lore("The lamp.", ("lamp",)))
    assert (character.script, character.made["card"]["spec"]) == ("ada.json", "v2")
    assert len(find_exchanges(character)) == 3


def test_whose_lines_are_whose_when_names_are_odd() -> None:
    assert ("Visitor", "hi") in group_lines(read(make_card(name="User")).character)[3]
    raw = make_card(
        "v3", nickname="Ada", mes_example="<START>\nAda: One.\nADA FENN: Two.\n用户: a\nBo: b\n{{char}}: Three."
    )
    for role, aliases, char in ((None, ("Ada",), "Ada"), ("Brom", ("Ada Fenn", "Ada"), "Brom")):
        character = read(raw, role=role, language="en").character
        assert (character.role, character.aliases) == (role or "Ada Fenn", aliases)
        assert character.description.startswith(f"{char} keeps")
        assert group_lines(character)[3] == [
            (character.role, text) for text in ("One.", "Two. 用户: a Bo: b", "Three.")
        ]


SYNTAX = (
    "{0.__class__} {{7*7}} {{random:a,b}} <|im_end|> {{ char }} {char} {{getvar::char}} %s %(role)s $role ${role} "
    "{% for x in y %}{{ x }}{% endfor %} [bold red]x[/] {role} {description} <START> \\1"
)


def test_template_syntax_stays_text_and_a_name_is_filled_in_once() -> None:
    name = "{{user}} {0.__class__} <BOT> \\1"
    raw = make_card(
        name=name,
        description=f"{{{{char}}}} {SYNTAX}",
        personality="",
        scenario=f"s {SYNTAX}",
        first_mes=f"f {SYNTAX}",
        alternate_greetings=[],
        mes_example=f"<START>\n{{{{char}}}}: m {SYNTAX}",
        character_book={"entries": [{"keys": [SYNTAX], "content": f"c {SYNTAX}", "name": SYNTAX}]},
        system_prompt="SECRET",
    )
    character = read(raw, language="en").character
    assert (character.role, character.description) == (name, f"{name} {SYNTAX}")
    assert [turn.content for turn in character.turns] == [f"s {SYNTAX}", f"f {SYNTAX}", f"m {SYNTAX}"]
    assert character.lore == (Lore(f"c {SYNTAX}", (SYNTAX,), SYNTAX),)
    # What is for the application is not used.
    assert "SECRET" not in repr(character)


def test_comments_go_and_other_template_syntax_stays() -> None:
    fields = {
        "description": "Tall{{// of {{char}}\nin 1890}} and old.",
        "first_mes": "{{// mood }}\n{{random:Hi,Ho}}, {{user}}. {{random:a,b}}",
        "system_prompt": "{{original}} {{roll:d6}}",
        "character_book": {"entries": [{"keys": ["{{// k}}lamp"], "content": "<%= getvar('oil') %> left."}]},
    }
    reading = read(make_card(**fields), language="en")
    assert reading.character.description == "Tall and old.\n\ndry, exact"
    assert reading.character.turns[1].content == "{{random:Hi,Ho}}, User. {{random:a,b}}"
    assert reading.character.lore == (Lore("<%= getvar('oil') %> left.", ("lamp",)),)


def test_names_and_texts_have_nothing_that_cannot_be_seen() -> None:
    name = "../A\u202ed\u200ba\x1b[31m\x00\x9b\ud800\U000e0041\n\tFenn\u2028"
    text = "a\x1b[2Jb\x00c\x9bd\r\ne\ud800f"
    reading = read(make_card(name=name, description=text, first_mes=text, mes_example=f"<START>\n{{{{char}}}}: {text}"))
    assert reading.character.role == "../Ada[31m Fenn"
    assert reading.character.description.startswith("a[2Jbcd\ne\ufffdf")
    assert {turn.content for turn in reading.character.turns if turn.content[0] == "a"} == {"a[2Jbcd\ne\ufffdf"}
    assert any("extra spaces were removed" in note for note in reading.notes)
    assert all(note.isprintable() for note in reading.notes)


@pytest.mark.parametrize("name", ["", "\u202e\u200b", None, "x" * 10_000])
def test_a_name_that_is_none_needs_another(name: str | None) -> None:
    with pytest.raises(CardError, match="--set role"):
        read(make_card(name=name))
    assert read(make_card(name=name), role="Ada").character.role == "Ada"
    with pytest.raises(SettingsError, match="--set role"):
        read(make_card(), role=name or "\u200b")


def test_lorebook_entries_are_read_in_their_order() -> None:
    entries = [
        {"keys": ["a", ""], "content": "@@depth 4\n@@@role user\n\nText of {{char}}.", "name": "{{char}}\u202e"},
        {"keys": ["/(a+)+$/", "/(?<!x)elf/i"], "content": "Pattern.", "use_regex": True},
        {"keys": ["b"], "content": "  "},
        {"keys": ["c"], "content": "@@dont_activate\nNever."},
        {"keys": ["d"], "content": "Off.", "enabled": False},
        {"keys": [], "content": "Always.", "constant": True, "comment": "note"},
        {"keys": ["e"], "content": "@@activate\nNow."},
        {"keys": ["g"], "content": "Last.", "insertion_order": 2},
        {"keys": ["h"], "content": "Plain.", "extensions": {"selectiveLogic": 7, "case_sensitive": None}},
    ]
    reading = read(make_card("v2", character_book={"entries": entries}), language="en")
    assert reading.character.lore == (
        Lore("Text of Ada Fenn.", ("a",), "Ada Fenn"),
        Lore("Pattern.", ("/(a+)+$/", "/(?<!x)elf/i")),
        Lore("Always.", (), "note", constant=True),
        Lore("Now.", ("e",), constant=True),
        Lore("Plain.", ("h",)),
        Lore("Last.", ("g",)),
    )
    notes = [note for note in reading.notes if "lore" in note]
    assert "lorebook entries disabled: 2 of 9; kept in the card" in notes
    assert "lorebook entries without content: 1 of 9; kept in the card" in notes
    assert any("plain text: /(?<!x)elf/i (invalid perl operator: (?<!)" in note for note in notes)


def test_assets_are_counted_and_never_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr("socket.socket.connect", refuse)
    uris = ("http://127.0.0.1:9/a.png", "file:///etc/passwd", "embeded://../../x")
    reading = read(make_card("v3", assets=[{"type": "icon", "uri": uri} for uri in uris], source=[uris[0]]))
    assert "3 assets kept in the card; none was fetched" in reading.notes
    assert "passwd" not in repr(reading.character)
    with pytest.raises(SettingsError, match="no prompts in the language 'fr'"):
        read(make_card("v3"), language="fr")


TEXTS = ("name", "description", "personality", "scenario", "first_mes", "mes_example", "creator_notes", "system_prompt")
MORE_TEXTS = ("post_history_instructions", "creator", "character_version")
ENTRY = {"content": str, "extensions": dict, "enabled": bool, "insertion_order": int, "use_regex": bool}


def assert_valid(value: Any) -> None:
    """By the types of V3, all members that are not optional."""
    assert (value["spec"], value["spec_version"]) == ("chara_card_v3", "3.0")
    data = value["data"]
    assert all(isinstance(data[name], str) for name in (*TEXTS, *MORE_TEXTS))
    assert all(isinstance(data[name], list) for name in ("alternate_greetings", "tags", "group_only_greetings"))
    assert isinstance(data["extensions"], dict)
    book = data.get("character_book") or {"extensions": {}}
    assert isinstance(book["extensions"], dict)
    # A list that the card itself has as null stays null where nothing comes into it.
    for entry in book.get("entries") or []:
        assert all(isinstance(key, str) for key in entry["keys"])
        assert all(isinstance(entry[name], kind) for name, kind in ENTRY.items())


@pytest.mark.parametrize("spec", ["v1", "v2", "v3"])
def test_a_card_that_was_not_changed_gets_what_v3_requires_and_loses_nothing(spec: str) -> None:
    raw = make_card(spec, extensions={"x": 1.0}, odd=[1e22]).decode()
    card, character = read_card(raw.replace("1e+22", '{"y": "\\ud800"}').encode(), language="en")
    exported = export_character(character, card)
    again = parse_card(format_card(exported.value).encode())
    assert_valid(again.raw)
    assert exported.changed == ()
    data = again.raw["data"]
    book = {**card.data["character_book"], "entries": data["character_book"]["entries"]}
    assert {name: data[name] for name in card.data} == {**card.data, "character_book": book}
    assert [{**entry, "use_regex": False} for entry in card.data["character_book"]["entries"]] == book["entries"]
    second = read_as_character(again, language="en").character
    assert replace(second, made={}) == replace(character, made={})


CONTENTS = st.text(st.characters(exclude_categories=("Cs", "Cc")) | st.sampled_from("\n:{<"), min_size=1, max_size=30)
# A text that holds a placeholder is read as what that stands for: a card has no other way to write it.
WORDS = CONTENTS.map(str.strip).filter(lambda text: text and fill(text, CardNames("", "", "")) == text)
LORE = st.builds(
    Lore,
    st.sampled_from(["The lamp.", "The fog.", "New."]),
    st.sampled_from([("lamp",), ("fog",), ("a", "/b+/i"), ()]),
    st.sampled_from(["", "n"]),
    st.sampled_from([(), ("c",)]),
    st.sampled_from(LOGICS),
    constant=st.booleans(),
    case_sensitive=st.booleans(),
    whole_words=st.booleans(),
)


NULL = make_card(character_book={"extensions": {}, "entries": None})


@example([], [Lore("The lamp.", ("lamp",)), Lore("New.", ())], make_card())
@example([[(True, "Ay.")], [(False, "Oh.")]], [], NULL)
@given(
    st.lists(st.lists(st.tuples(st.booleans(), WORDS), min_size=1, max_size=4), max_size=4),
    st.lists(LORE, max_size=5),
    st.sampled_from([Profile("Ada", "en"), Profile("鲁智深", "zh", description="你是鲁智深。", catchphrases=("洒家",))])
    | st.sampled_from([make_card(), make_card("v3", character_book=None), NULL]),
)
def test_what_is_written_is_read_again(
    scenes: list[list[tuple[bool, str]]], lore: list[Lore], origin: Profile | bytes
) -> None:
    card, start = (None, origin) if isinstance(origin, Profile) else read_card(origin, language="en")
    user = choose_user_name(start.language, start.role)
    turns = [
        Turn(start.role if is_own else user, text, "speech", 100 + number)
        for number, scene in enumerate(scenes)
        for is_own, text in scene
    ]
    character = replace(start, turns=(*start.turns, *turns), lore=tuple(lore))
    exported = export_character(character, card)
    assert_valid(exported.value)
    again, read_back = read_card(format_card(exported.value).encode(), language=start.language)
    assert (read_back.role, read_back.full_description) == (start.role, start.full_description)
    # Of what others say among themselves a card has no examples.
    old = len(group_lines(start))
    added = [scene for scene in group_lines(character)[old:] if any(speaker == start.role for speaker, _ in scene)]
    assert group_lines(read_back) == group_lines(start) + added
    # Without keys, an entry is called up by its name.
    called = [
        replace(item, keys=(item.name,)) if item.name and not (item.keys or item.constant) else item for item in lore
    ]
    assert sorted(read_back.lore, key=repr) == sorted(called, key=repr)
    disabled = [entry["content"] for entry in again.entries if not entry.get("enabled", True)]
    assert disabled == (["Unused."] if origin == make_card() else [])


def test_a_script_s_scenes_come_into_the_examples_within_a_budget() -> None:
    card, character = read_card(make_card(), language="en")
    script = [
        Turn("Ada Fenn" if number % 2 else "Brom", f"Line {scene} {number} " + "x" * 30, "speech", 100 + scene)
        for scene in range(40)
        for number in range(20)
    ]
    exported = export_character(replace(character, turns=(*character.turns, *script)), card)
    assert exported.changed == ("mes_example",)
    before, after = card.mes_example, exported.value["data"]["mes_example"]
    assert after.startswith(before)
    assert EXAMPLES // 2 < len(after) - len(before) < EXAMPLES * 1.2
    assert any("of new scenes added" in note for note in exported.notes)


def test_sillytavern_s_second_copy_of_the_v1_fields_changes_too() -> None:
    fields = {"name": "A", "description": "d", "personality": "p"}
    raw = fields | {"spec": "chara_card_v2", "spec_version": "2.0", "data": fields, "x": 1.0}
    card, character = read_card(json.dumps(raw).encode())
    value = export_character(replace(character, role="B", description="e"), card).value
    for copy in (value, value["data"]):
        assert (copy["name"], copy["description"], copy["personality"]) == ("B", "e", "")
    value["x"] = float("inf")
    with pytest.raises(CardError, match="too large to be written"):
        format_card(value)


@pytest.mark.parametrize("name", ["A\u202eda", " Ada ", "x" * 10_000, ""])
def test_a_name_that_was_cleaned_or_given_is_no_change(name: str) -> None:
    raw = make_card(name=name)
    card, character = read_card(raw, role="Ada", language="zh")
    assert export_character(character, card).changed == ()
    # Nor where later stages forgot how it was imported, if the card has a name of its own.
    if 0 < len(name) <= 200:
        _, plain = read_card(raw)
        assert export_character(replace(plain, made={}), card).changed == ()
