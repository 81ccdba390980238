import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.characters.cards.card import MAX_CARD, load_card, parse_card
from rolellm.core.errors import CardError

from .conftest import make_card


@pytest.mark.parametrize(
    ("value", "note"),
    [
        pytest.param({"data": {"name": "A"}}, "no `spec`", id="no spec"),
        pytest.param({"spec": "chara_card_v4", "data": {"name": "A"}}, "chara_card_v4", id="a later spec"),
    ],
)
def test_a_card_of_another_version_is_read_with_a_note(value: Any, note: str) -> None:
    card = parse_card(json.dumps(value).encode())
    assert card.name == "A"
    assert any(note in text for text in card.notes)


def test_a_wrong_type_that_nothing_depends_on_is_noted() -> None:
    card = parse_card(make_card("v3", tags="sea"))
    assert card.tags == ()
    assert any("`data.tags`" in note and "stays in the card" in note for note in card.notes)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        pytest.param("name", 7, "`data.name` to be a text, found 7", id="name a number"),
        pytest.param("character_book", {"entries": [{}, 5]}, "`data.character_book.entries[1]`", id="an entry"),
        pytest.param("character_book", {"entries": [{"enabled": "no"}]}, "to be true or false, found 'no'", id="on"),
    ],
)
def test_a_wrong_type_is_named_by_its_path(field: str, value: Any, says: str) -> None:
    with pytest.raises(CardError) as caught:
        parse_card(make_card(**{field: value}))
    assert says in str(caught.value)
    assert str(caught.value).isprintable()


def test_thousands_of_odd_entries_do_not_make_thousands_of_notes() -> None:
    entries = [{"content": "a", "insertion_order": "first"}] * 5000
    card = parse_card(make_card(character_book={"entries": entries}))
    assert len(card.entries) == 5000
    assert len(card.notes) == 21
    assert card.notes[-1] == "and 4,980 more such notes"


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        pytest.param(b"", "not valid JSON", id="empty"),
        pytest.param(b'{"spec": "chara_card_v2", "data": []}', "expected an object `data`", id="data a list"),
        pytest.param(b'{"name": "x", "scenario": "", "persona": {"kind": "text"}}', "Agnai's own", id="Agnai"),
        pytest.param(b'{"name": "\xff"}', "UTF-8", id="no UTF-8"),
        pytest.param(b'{"name": NaN}', "NaN is not a value", id="NaN"),
        pytest.param(b'{"name": ' + b"9" * 5000 + b"}", "not valid JSON", id="a number of 5,000 digits"),
        pytest.param(b'{"data":' * 10_000 + b"1" + b"}" * 10_000, "nested too deep", id="10,000 deep"),
    ],
)
def test_what_is_no_card_is_refused(raw: bytes, says: str) -> None:
    with pytest.raises(CardError) as caught:
        parse_card(raw)
    assert says.replace("\\\\", "\\") in str(caught.value)
    assert str(caught.value).isprintable()


def test_what_is_no_file_of_a_card_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CardError, match=r"none\.json: cannot be read"):
        load_card(tmp_path / "none.json")
    with pytest.raises(CardError, match="cannot be read"):
        load_card(tmp_path)
    for head, says in ((b"PK\x03\x04", "damaged, or not a zip"), (b"RIFF1234WEBP\xff", "expected a PNG or CHARX")):
        (tmp_path / "card").write_bytes(head + bytes(40))
        with pytest.raises(CardError, match=says):
            load_card(tmp_path / "card")
    (tmp_path / "card").write_bytes(make_card(creator_notes="x" * MAX_CARD))
    with pytest.raises(CardError, match=f"over {MAX_CARD:,} bytes"):
        load_card(tmp_path / "card")


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=4)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=8,
)
names = st.sampled_from(
    ["name", "description", "mes_example", "alternate_greetings", "character_book", "entries", "tags"]
)
objects = st.dictionaries(names, st.one_of(values, st.dictionaries(names, values, max_size=3)), max_size=6)


@given(objects, st.sampled_from([None, "chara_card_v2", "chara_card_v3"]))
def test_any_object_is_a_card_or_refused(data: dict[str, Any], spec: str | None) -> None:
    try:
        parse_card(json.dumps({"spec": spec, "data": data}).encode())
    except CardError as error:
        assert str(error).isprintable()
