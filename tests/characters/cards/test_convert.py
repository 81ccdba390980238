from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.characters.cards.card import parse_card
from rolellm.characters.cards.convert import (
    CardNames,
    fill,
    format_block,
    join_blocks,
    parse_block,
    read_as_character,
    split_blocks,
)
from rolellm.core.errors import CardError, SettingsError
from rolellm.core.records import Lore, Turn
from rolellm.models.prompts.retrieval import find_exchanges

from .conftest import make_card


def read(raw: bytes, **options: Any) -> Any:
    return read_as_character(parse_card(raw), **options)


def said(reading: Any) -> list[tuple[int, str, str]]:
    return [(turn.scene, turn.speaker, turn.content) for turn in reading.character.turns]


def test_a_card_becomes_a_character() -> None:
    reading = read(make_card(), language="en", file="ada.json")
    character = reading.character
    assert character.description == "Ada Fenn keeps a lighthouse.\n\ndry, exact"
    assert said(reading) == [
        (0, "narrator", "A storm. User knocks."),
        (0, "Ada Fenn", "Who's there, User?"),
        (1, "Ada Fenn", "You again."),
        (2, "Ada Fenn", "Ada Fenn nods."),
        (3, "User", "hi"),
        (3, "Ada Fenn", "Count the steps.\nAll 212."),
        (4, "narrator", "*Dawn.*"),
        (4, "User", "Tea?"),
        (4, "Ada Fenn", "Please."),
    ]
    assert [turn.kind for turn in character.turns if turn.speaker == "narrator"] == ["narration"] * 2
    # In the order that the book asks for, without what is disabled.
    assert [(item.content, item.keys) for item in character.lore] == [("The fog.", ("fog",)), ("The lamp.", ("lamp",))]
    assert character.script == "ada.json"
    assert character.made["card"]["spec"] == "v2"
    assert "word for word" in character.made["card"]["description"]
    assert len(find_exchanges(character)) == 3


def test_a_role_called_user_does_not_get_what_is_said_to_it() -> None:
    reading = read(make_card(name="User"))
    assert [(speaker, content) for scene, speaker, content in said(reading) if scene == 3] == [
        ("Visitor", "hi"),
        ("User", "Count the steps.\nAll 212."),
    ]


def test_a_nickname_is_what_char_stands_for_and_another_name_takes_the_cards_place() -> None:
    raw = make_card("v3", nickname="Ada", mes_example="<START>\nAda: One.\nAda Fenn: Two.\n{{char}}: Three.")
    for role, aliases, char in ((None, ("Ada",), "Ada"), ("Brom", ("Ada Fenn", "Ada"), "Brom")):
        reading = read(raw, role=role)
        assert (reading.character.role, reading.character.aliases) == (role or "Ada Fenn", aliases)
        assert reading.character.description.startswith(f"{char} keeps")
        own = [turn.content for turn in reading.character.turns if turn.scene == 3 and reading.character.owns(turn)]
        assert own == ["One.", "Two.", "Three."]


SYNTAX = (
    "{0.__class__} {{7*7}} {{random:a,b}} <|im_end|> {{ char }} {char} {{getvar::char}} %s %(role)s $role ${role} "
    "{% for x in y %}{{ x }}{% endfor %} [bold red]x[/] {role} {description} <START> \\1"
)


def test_template_syntax_stays_text_and_a_name_is_filled_in_once() -> None:
    name = "{{user}} {0.__class__} <BOT> \\1"
    entry = {"keys": [SYNTAX], "content": f"c {SYNTAX}", "enabled": True, "name": SYNTAX}
    raw = make_card(
        name=name,
        description=f"{{{{char}}}} {SYNTAX}",
        personality="",
        scenario=f"s {SYNTAX}",
        first_mes=f"f {SYNTAX}",
        alternate_greetings=[],
        mes_example=f"<START>\n{{{{char}}}}: m {SYNTAX}",
        character_book={"entries": [entry]},
        system_prompt="SECRET",
    )
    character = read(raw, language="en").character
    assert (character.role, character.description) == (name, f"{name} {SYNTAX}")
    assert [turn.content for turn in character.turns] == [f"s {SYNTAX}", f"f {SYNTAX}", f"m {SYNTAX}"]
    (lore,) = character.lore
    assert (lore.content, lore.keys, lore.name) == (f"c {SYNTAX}", (SYNTAX,), SYNTAX)
    # What is for the application is not used.
    assert "SECRET" not in repr(character)


def test_comments_go_and_other_template_syntax_is_named_once() -> None:
    reading = read(
        make_card(
            description="Tall{{// of {{char}}\nin 1890}} and old.",
            first_mes="{{// mood }}\n{{random:Hi,Ho}}, {{user}}. {{random:a,b}}",
            system_prompt="{{original}} {{roll:d6}}",
            character_book={"entries": [{"keys": ["{{// k}}lamp"], "content": "<%= getvar('oil') %> left."}]},
        ),
        language="en",
    )
    character = reading.character
    assert (character.description, character.turns[1].content) == (
        "Tall and old.\n\ndry, exact",
        "{{random:Hi,Ho}}, User. {{random:a,b}}",
    )
    assert character.lore == (Lore("<%= getvar('oil') %> left.", ("lamp",)),)
    (note,) = (note for note in reading.notes if "macros" in note)
    assert note.endswith(": {{roll…, {{random…, <%…")


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


@pytest.mark.parametrize(
    ("text", "turns"),
    [
        pytest.param(
            "<START>\n{{char}}: one\n\n  two\nAlice: three", [("Fox", "one\n\n  two\nAlice: three")], id="a third"
        ),
        pytest.param("<START>\nFOX: b\n用户: a", [("Fox", "b\n用户: a")], id="case; a label of the other language"),
    ],
)
def test_example_talk(text: str, turns: list[tuple[str, str]]) -> None:
    names = CardNames("Fox", "Fox", "User")
    found = [turn for scene, block in enumerate(split_blocks(text)) for turn in parse_block(block, names, scene)]
    assert [(turn.speaker, turn.content) for turn in found] == turns


contents = st.text(st.characters(exclude_categories=("Cs", "Cc")) | st.sampled_from("\n:{<"), min_size=1, max_size=30)
# A text that holds a placeholder is read as what that stands for: a card has no other way to write it.
lines = st.tuples(
    st.sampled_from(["Fox", "User"]), contents.filter(lambda text: fill(text, CardNames("", "", "")) == text)
)


@given(st.lists(st.lists(lines, min_size=1, max_size=4), max_size=4))
def test_example_talk_that_was_written_is_read_again(scenes: list[list[tuple[str, str]]]) -> None:
    names = CardNames("Fox", "Fox", "User")
    turns = [
        [Turn(speaker, content.strip(), "speech", number) for speaker, content in scene if content.strip()]
        for number, scene in enumerate(scenes)
    ]
    turns = [scene for scene in turns if scene]
    text = join_blocks([format_block(scene, names) for scene in turns])
    again = [parse_block(block, names, scene[0].scene) for block, scene in zip(split_blocks(text), turns, strict=True)]

    def flat(scenes: list[list[Turn]]) -> list[list[tuple[str, str]]]:
        # A line break before what looks like a new speaker became a space.
        return [[(turn.speaker, " ".join(turn.content.split())) for turn in scene] for scene in scenes]

    assert flat(again) == flat(turns)


def test_lorebook_entries() -> None:
    entries = [
        {"keys": ["a", ""], "content": "@@depth 4\n@@@role user\n\nText of {{char}}.", "name": "{{char}}\u202e"},
        {"keys": ["/(a+)+$/", "/(?<!x)elf/i"], "content": "Pattern.", "use_regex": True},
        {"keys": ["b"], "content": "  "},
        {"keys": ["c"], "content": "@@dont_activate\nNever."},
        {"keys": ["d"], "content": "Off.", "enabled": False},
        {"keys": [], "content": "Always.", "constant": True, "comment": "note"},
        {"keys": ["e"], "content": "@@activate\nNow."},
    ]
    reading = read(make_card("v2", character_book={"entries": entries}), language="en")
    assert reading.character.lore == (
        Lore("Text of Ada Fenn.", ("a",), "Ada Fenn"),
        Lore("Pattern.", ("/(a+)+$/", "/(?<!x)elf/i")),
        Lore("Always.", (), "note", constant=True),
        Lore("Now.", ("e",), constant=True),
    )
    assert [note for note in reading.notes if "lorebook" in note] == [
        "lorebook entries disabled: 2 of 7; kept in the card",
        "lorebook entries without content: 1 of 7; kept in the card",
    ]
    (note,) = (note for note in reading.notes if "lore keys" in note)
    assert note.startswith("lore keys that are read as plain text: /(?<!x)elf/i (invalid perl operator: (?<!)")


def exported_by_sillytavern(content: str, order: float = 100, **extensions: Any) -> dict[str, Any]:
    """An entry with the members that its exports have."""
    return {
        "keys": ["{{char}}", "reef"],
        "secondary_keys": ["{{user}}"],
        "content": content,
        "constant": False,
        "selective": True,
        "insertion_order": order,
        "enabled": True,
        "position": "after_char",
        "use_regex": True,
        "extensions": {"depth": 4, "selectiveLogic": 0, "match_whole_words": None, "case_sensitive": None} | extensions,
    }


def test_lore_stands_in_the_order_of_a_prompt() -> None:
    entries = [
        exported_by_sillytavern("at depth 0", position=4, depth=0),
        exported_by_sillytavern("at depth 9", position=4, depth=9),
        exported_by_sillytavern("above the author's note", position=2),
        exported_by_sillytavern("after, 20", 20, position=1),
        exported_by_sillytavern("after, 10", 10, position=1),
        exported_by_sillytavern("before", position=0),
        {"keys": ["k"], "content": "before, V2", "position": "before_char", "insertion_order": 1},
    ]
    reading = read(make_card(character_book={"entries": entries}))
    assert [item.content for item in reading.character.lore] == [
        "before, V2",
        "before",
        "after, 10",
        "after, 20",
        "above the author's note",
        "at depth 9",
        "at depth 0",
    ]


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
