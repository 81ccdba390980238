import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolellm.characters.cards.export import export_character
from rolellm.core.errors import CardError

from .conftest import read_card

# What no specification knows, spelt as writers spell it.
ODD = [
    *("1.0", "1e2", "-0", "1E+2", "0.10", "123456789012345678901234567890", "null", "true"),
    *('"\\u00e9"', '"\\/"', '"\\ud800"', '"\\ud83d\\ude00"', '"]},"'),
    *('{"a":1,"a":1.0}', '{"b":{},"a":[]}', "[1,2.50]", "[]"),
]
odd = st.one_of(
    st.sampled_from(ODD),
    st.lists(st.sampled_from(ODD), max_size=3).map(lambda parts: "[ " + " ,\n".join(parts) + "\t]"),
    st.dictionaries(st.text("abé", max_size=2), st.sampled_from(ODD), max_size=3).map(
        lambda parts: "{" + " , ".join(f"{json.dumps(name)} :{value}" for name, value in parts.items()) + "\n}"
    ),
)
gaps = st.sampled_from(["", " ", "\n  ", "\r\n\t"])


@st.composite
def cards(draw: st.DrawFn) -> list[tuple[str, str]]:
    """The pieces of a card's JSON: (kind, text); those of the kind "" are what no edit may touch."""
    pieces: list[tuple[str, str]] = []

    def known(name: str, value: str) -> list[tuple[str, str]]:
        return [("", f'"{name}"{draw(gaps)}:{draw(gaps)}'), (name, value)]

    def unknown() -> list[tuple[str, str]]:
        name = draw(st.text(st.characters(exclude_categories=("Cs",)), max_size=3))
        return [("", f"{json.dumps('x_' + name)}{draw(gaps)}:{draw(gaps)}{draw(odd)}")]

    def entry(number: int) -> list[tuple[str, str]]:
        inside = [known("content", f'"Content {number}."'), known("keys", f'["key{number}"]'), unknown()]
        return wrapped(inside)

    def wrapped(parts: list[list[tuple[str, str]]]) -> list[tuple[str, str]]:
        found = [("", "{" + draw(gaps))]
        for number, part in enumerate(draw(st.permutations(parts))):
            found += [*([("", draw(gaps) + "," + draw(gaps))] if number else []), *part]
        return [*found, ("", draw(gaps) + "}")]

    entries: list[tuple[str, str]] = [("", "[" + draw(gaps))]
    for number in range(draw(st.integers(0, 3))):
        entries += [*([("", draw(gaps) + "," + draw(gaps))] if number else []), *entry(number)]
    book = wrapped([[("", '"entries":'), *entries, ("", "]")], unknown()])
    data = wrapped(
        [
            known("name", '"Ada"'),
            known("description", '"A keeper\\u0021"'),
            known("scenario", '"A storm."'),
            known("first_mes", '"Who?"'),
            known("alternate_greetings", '[ "You?" ]'),
            known("mes_example", '"<START>\\n{{char}}: One.\\n<START>\\n{{user}}: Two?\\n{{char}}: Three."'),
            [("", '"character_book": '), *book],
            [("", f'"extensions":{draw(odd)}')],
            unknown(),
        ]
    )
    pieces = wrapped([[("", '"spec":"chara_card_v2"')], [("", '"data":'), *data], unknown(), unknown()])
    return [("", draw(st.sampled_from(["", "\ufeff"])) + draw(gaps)), *pieces, ("", draw(gaps))]


@given(cards())
@settings(max_examples=60)
def test_a_card_that_was_not_changed_is_the_same_to_the_byte(pieces: list[tuple[str, str]]) -> None:
    raw = "".join(text for _, text in pieces).encode()
    card, character = read_card(raw)
    exported = export_character(character, card)
    assert (exported.text.encode(), exported.changed) == (raw, ())


@given(cards(), st.sets(st.sampled_from(["name", "description", "scenario", "first_mes", "greeting", "lore"])))
@settings(max_examples=120)
def test_a_change_touches_its_own_fields_and_no_other(pieces: list[tuple[str, str]], changes: set[str]) -> None:
    card, character = read_card("".join(text for _, text in pieces).encode(), language="en")
    new = {"name": "Grüße \u2028\\", "description": "You keep.", "scenario": "Sun.", "first_mes": 'He said "{{x}}".'}
    new = {name: value for name, value in new.items() if name in changes}
    said = {"A storm.": new.get("scenario"), "Who?": new.get("first_mes")}
    if "greeting" in changes:
        said["You?"] = "Again?"
    turns = tuple(replace(turn, content=said.get(turn.content) or turn.content) for turn in character.turns)
    lore = character.lore
    if "lore" in changes:
        lore = tuple(replace(item, content=item.content.replace("Content", "New")) for item in lore)
    edited = replace(
        character,
        role=new.get("name", character.role),
        description=new.get("description", character.description),
        turns=turns,
        lore=lore,
    )
    data = json.loads(export_character(edited, card).text.removeprefix("\ufeff"))["data"]
    expected = json.loads(json.dumps(card.data)) | new
    if "greeting" in changes:
        expected["alternate_greetings"] = ["Again?"]
    if "lore" in changes:
        for entry in expected["character_book"]["entries"]:
            entry["content"] = entry["content"].replace("Content", "New")
    assert (data, list(data)) == (expected, list(expected))


@given(cards(), st.sampled_from(["v2", "v3"]))
@settings(max_examples=60)
def test_another_specification_adds_and_takes_nothing(pieces: list[tuple[str, str]], spec: Any) -> None:
    card, character = read_card("".join(text for _, text in pieces).encode())
    value = json.loads(export_character(character, card, spec).text.removeprefix("\ufeff"))
    assert value["spec"] == f"chara_card_{spec}"
    assert value | {"spec": 0, "spec_version": 0, "data": 0} == {**card.raw, "spec": 0, "spec_version": 0, "data": 0}
    entries = value["data"]["character_book"].pop("entries")
    book = dict(card.data["character_book"])
    for entry, old in zip(entries, book.pop("entries"), strict=True):
        assert entry == ({"use_regex": False, **old} if spec == "v3" else old)
    assert value["data"]["character_book"] == book
    absent = {"character_book": 0}
    assert {name: value["data"][name] for name in card.data} | absent == {**card.data, **absent}


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param('{"name":"Ada","description":"A.","first_mes":"","x":[1,2]}', id="compact"),
        pytest.param('{"name": "Ada", "description": "A.", "first_mes": "", "x": [1, 2]}', id="with spaces"),
        pytest.param('{\n    "name": "Ada",\n    "description": "A.",\n    "first_mes": ""\n}\n', id="indented"),
    ],
)
def test_a_changed_card_keeps_its_layout(raw: str) -> None:
    card, character = read_card(raw.encode(), language="en")
    exported = export_character(replace(character, description="B."), card)
    assert exported.text == raw.replace("A.", "B.")


def test_a_number_that_json_readers_refuse_is_not_written() -> None:
    card, character = read_card(b'{"name": "Ada", "description": "A.", "x": 1e999}', language="en")
    assert export_character(character, card).text == card.text
    with pytest.raises(CardError, match="too large to be written"):
        export_character(replace(character, description="B."), card)
