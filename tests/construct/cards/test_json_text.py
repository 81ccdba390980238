from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.construct.cards.json_text import dump, parse, parts, rewrite
from rolellm.core.errors import CardError

white = st.text(" \t\n\r", max_size=2)
numbers = st.sampled_from(["1.0", "1e2", "-0", "1E+2", "0.10", "-0.0e-7", "9" * 40, "1" * 5000, "1e999"])
words = st.one_of(
    st.sampled_from(['"\\u00e9"', '"\\/"', '"\\ud83d\\ude00"', '"\\ud800"', '"{\\"a\\": 1}"', '"]},"', '"\\\\"']),
    st.builds(json.dumps, st.text(max_size=5), ensure_ascii=st.booleans()),
).filter(lambda text: "\ud800" not in text)
scalars = st.one_of(numbers, words.filter(lambda word: _encodes(word)), st.sampled_from(["true", "false", "null"]))
names = st.sampled_from(['"a"', '"b"', '"\\u0061"', '""', '"data"', '"name"'])


def _encodes(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _list(parts: list[tuple[str, str, str]]) -> str:
    return "[" + ",".join(before + value + after for before, value, after in parts) + "]"


def _object(parts: list[tuple[str, str, str, str, str]]) -> str:
    return "{" + ",".join(a + name + b + ":" + c + value + d for a, name, b, (c, value), d in parts) + "}"


json_texts: st.SearchStrategy[str] = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(st.tuples(white, inner, white), max_size=3).map(_list),
        st.lists(st.tuples(white, names, white, st.tuples(white, inner), white), max_size=3).map(_object),
    ),
    max_leaves=12,
)


@given(st.lists(st.tuples(white, names, white, st.tuples(white, json_texts), white), max_size=5))
def test_members_are_found_where_they_were_written(written: list[Any]) -> None:
    text = _object(written)
    found = parts(text, 0)
    assert [text[slice(*member.key)] for member in found] == [part[1] for part in written]
    assert [text[slice(*member.value)] for member in found] == [part[3][1] for part in written]


@given(st.lists(st.tuples(white, json_texts, white), max_size=5))
def test_items_are_found_where_they_were_written(written: list[Any]) -> None:
    text = _list(written)
    assert [text[slice(*item.value)] for item in parts(text, 0)] == [part[1] for part in written]


@given(
    st.lists(st.tuples(white, names, white, st.tuples(white, json_texts), white), max_size=5),
    st.dictionaries(st.sampled_from(["a", "b", "new", "é"]), st.text(max_size=3), max_size=3),
)
def test_setting_changes_those_members_and_keeps_the_bytes_of_the_others(
    written: list[Any], values: dict[str, str]
) -> None:
    text = _object(written)
    changed = rewrite(text, {**parse(text), **values})
    # Of two members of one name the last counts, to every reader: it is the one that changes.
    last = {json.loads(part[1]): place for place, part in enumerate(written)}
    expected = [
        dump(values[json.loads(part[1])])
        if json.loads(part[1]) in values and last[json.loads(part[1])] == place
        else part[3][1]
        for place, part in enumerate(written)
    ]
    found = parts(changed, 0)
    assert [changed[slice(*member.value)] for member in found[: len(written)]] == expected
    assert {member.name: parse(changed[slice(*member.value)]) for member in found[len(written) :]} == {
        name: value for name, value in values.items() if name not in last
    }
    assert {name: parse(changed)[name] for name in values} == values


@pytest.mark.parametrize(
    ("text", "added"),
    [
        pytest.param("{}", '{"n": 1}', id="empty"),
        pytest.param('{"a":1}', '{"a":1,"n":1}', id="without spaces"),
        pytest.param('{"a": 1}', '{"a": 1, "n": 1}', id="with spaces"),
        pytest.param('{\n  "a": 1\n}', '{\n  "a": 1,\n  "n": 1\n}', id="with lines"),
    ],
)
def test_a_new_member_is_written_as_the_others_are(text: str, added: str) -> None:
    assert rewrite(text, {**parse(text), "n": 1}) == added


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("", "not valid JSON", id="empty"),
        pytest.param('{"a": NaN}', "NaN is not a value", id="NaN"),
        pytest.param('{"a": -Infinity}', "-Infinity is not a value", id="infinity"),
        pytest.param('{"a": 1} x', "extra text", id="more after it"),
        pytest.param('{"a": "\n"}', "control character", id="line break in a text"),
        pytest.param("{'a': 1}", "not valid JSON", id="single quotes"),
        pytest.param('{"a": 1', "not valid JSON", id="cut off"),
        pytest.param("[" * 10_000 + "]" * 10_000, "nested too deep", id="lists 10,000 deep"),
        pytest.param('{"a":' * 10_000 + "1" + "}" * 10_000, "nested too deep", id="objects 10,000 deep"),
        pytest.param("[" * 1_000_000, "nested too deep", id="a million open brackets"),
    ],
)
def test_what_is_no_json_is_refused(text: str, says: str) -> None:
    with pytest.raises(CardError, match=says):
        parse(text)


def test_numbers_of_thousands_of_digits_are_read() -> None:
    assert parse("[" + "9" * 10_000 + ", 12]") == [float("inf"), 12]


def test_a_new_text_with_half_a_surrogate_pair_can_be_written() -> None:
    assert dump("a\ud800é").encode("utf-8") == b'"a\\ud800\\u00e9"'
    assert dump("é") == '"é"'
