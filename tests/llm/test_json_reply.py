"""JSON out of replies: what models really write, what they never should, and schemas."""

import contextlib
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolellm.llm.json_reply import accept_json, make_strict, parse_items, parse_json
from rolellm.llm.model import Reply, Request, Schema, UnacceptableError, Usage, user

PAIR = {"type": "object", "properties": {"q": {"type": "string"}, "sure": {"enum": ["high", "low"]}}}
PAIRS = make_strict(Schema("pairs", {"type": "object", "properties": {"pairs": {"type": "array", "items": PAIR}}}))

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


def without_halves(value: Any) -> bool:
    return json.dumps(value, ensure_ascii=False).isascii() or not any(
        0xD800 <= ord(character) < 0xE000 for character in json.dumps(value, ensure_ascii=False)
    )


def reply(text: str, finish: str = "stop") -> Reply:
    return Reply(text, finish, Usage(), "m", "e", {})  # type: ignore[arg-type]


ASKED = Request((user("Give me JSON."),))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param('{"a": 1}', {"a": 1}, id="bare"),
        pytest.param('\ufeff  {"a": 1}\n', {"a": 1}, id="byte-order-mark"),
        pytest.param('```json\n{"a": 1}\n```', {"a": 1}, id="fenced"),
        pytest.param('Here you are: {"a": 1} I hope it helps!', {"a": 1}, id="prose"),
        pytest.param('E.g. {"a": 0}:\n```json\n{"a": 1}\n```', {"a": 1}, id="an-example-before-the-fence"),
        pytest.param('The {role} speaks: {"a": 1}', {"a": 1}, id="braces-in-prose"),
        pytest.param('By [1] and ["x"]: {"a": 1}', {"a": 1}, id="lists-in-prose"),
        pytest.param('As in [1, 2 and 3], {"a": 1}', {"a": 1}, id="a-broken-list-in-prose"),
        pytest.param('{"a": 1}\n{"a": 2}', {"a": 1}, id="doubled"),
        pytest.param('{"a": "one\ntwo"}', {"a": "one\ntwo"}, id="raw-line-break"),
        pytest.param('<think>{"a": 0}? No.</think>\n{"a": 1}', {"a": 1}, id="thoughts"),
        pytest.param('{"a": "\\ud83d\\ude00 \\ud83d"}', {"a": "😀 \ufffd"}, id="half-a-pair"),
        pytest.param('{"a": 1, "a": 2}', {"a": 2}, id="key-twice"),
        # What json-repair mends.
        pytest.param('{"a": [1, 2,], "b": {"c": 3,},}', {"a": [1, 2], "b": {"c": 3}}, id="commas"),
        pytest.param("Sure: {'a': True, 'b': 'x'}.", {"a": True, "b": "x"}, id="python"),
        pytest.param('{"a": 1 "b": [1 2]}', {"a": 1, "b": [1, 2]}, id="no-commas"),
        pytest.param('{"a": "He said "no".", "b": 2}', {"a": 'He said "no".', "b": 2}, id="quotes-in-text"),
    ],
)
def test_what_models_write_is_read(text: str, value: Any) -> None:
    assert parse_json(text) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("", "empty", id="empty"),
        pytest.param("I cannot do that.", "no JSON in the reply, which starts with 'I cannot", id="prose"),
        pytest.param('{"a": [1, 2', "cut off", id="cut-in-a-list"),
        pytest.param('{"a": tru', "cut off", id="cut-in-a-word"),
        pytest.param('{"a": NaN}', "not a finite number", id="nan"),
        pytest.param('{"a": 1e999}', "1e999 is not a finite number", id="too-large-a-float"),
        pytest.param('{"a": ' + "9" * 5000 + "}", "cannot be read", id="too-many-digits"),
        # What json-repair would change.
        pytest.param('{"a": 01}', "invalid", id="leading-zero"),
        pytest.param('{"a": 1]', "invalid", id="wrong-bracket"),
        pytest.param('{"pairs": [{"q": 1 oops}, {"q": 2}]}', "invalid", id="a-word-too-many"),
        pytest.param('{"better": "A", "reason": "x", "better" "B"}', "invalid", id="two-verdicts"),
        pytest.param('{"better": "A", "better": "B",}', "invalid", id="two-verdicts-and-a-comma"),
        pytest.param('{"better": "A" // or B\n}', "invalid", id="a-comment"),
        pytest.param('[{"x": 1}]', "expected an object, found a list", id="a-list"),
        pytest.param('[{"x": 1}, {"x": oops}]', "invalid", id="a-broken-list"),
        pytest.param("[" * 10_000 + "]" * 10_000, "nested too deep", id="deep"),
        pytest.param("```" * 100_000, "no JSON", id="fences"),
        pytest.param('["' * 200_000, "", id="bracket-quote"),
        pytest.param("{'a' " * 9_000 + ":" + "}" * 9_000, "invalid", id="braces-that-close"),
        pytest.param('"\\' * 200_000 + "{", "", id="escapes"),
        pytest.param("</think>" * 50_000, "", id="thoughts-without-end"),
    ],
)
@pytest.mark.timeout(30)
def test_what_is_no_json_is_malformed_in_words(text: str, words: str) -> None:
    with pytest.raises(UnacceptableError) as caught:
        parse_json(text)
    assert caught.value.kind == "malformed"
    assert words in caught.value.reason
    assert len(caught.value.reason) < 300


@given(JSON.filter(without_halves), st.booleans())
def test_whatever_can_be_written_as_json_is_read_back(value: Any, ascii_only: bool) -> None:
    assert parse_json(json.dumps({"a": value}, ensure_ascii=ascii_only)) == {"a": value}


@given(JSON.filter(without_halves), st.text("ab {}[]\"'`\n:,1", max_size=12), st.text(max_size=12))
def test_text_around_an_object_changes_nothing(value: Any, before: str, after: str) -> None:
    wrapped = {"answer": value}
    # A fence marks what is meant, whatever stands before it.
    assert parse_json(f"{before}\n```json\n{json.dumps(wrapped)}\n```\n{after}") == wrapped


@given(st.text('{}[]",:\\ \n`jsontrue0123.-e+NaI</think>', max_size=200))
@settings(max_examples=400)
def test_any_text_ends_in_a_value_or_in_malformed(text: str) -> None:
    try:
        value = parse_json(text)
    except UnacceptableError as error:
        assert error.kind == "malformed"
        assert error.reason
    else:
        # What is read can be written, and has no number that JSON cannot say.
        assert json.loads(json.dumps(value, allow_nan=False)) == value


VERDICT = {"better": "A", "reason": 'B says "hm", A does not', "list": [{"n": 1}, {"n": 2}]}


@given(st.data())
@settings(max_examples=300)
def test_a_broken_verdict_is_refused_or_the_same(data: st.DataObject) -> None:
    """One or two marks are lost from a verdict, wherever: whatever is then read has its words, in order."""
    text = json.dumps(VERDICT)
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.sampled_from([index for index, mark in enumerate(text) if mark in "\"',:\\}]"]))
        text = text[:at] + text[at + 1 :]
    with contextlib.suppress(UnacceptableError):
        value = parse_json(text)
        words = re.findall(r"\w+", json.dumps(value))
        assert words == re.findall(r"\w+", json.dumps(VERDICT))[: len(words)]


@given(JSON.filter(without_halves), st.data())
def test_a_value_that_is_cut_is_never_taken_for_a_whole_one(value: Any, data: st.DataObject) -> None:
    text = json.dumps({"answer": [value, {"inner": 1}]})
    at = data.draw(st.integers(0, len(text) - 1))
    with pytest.raises(UnacceptableError):
        parse_json(text[:at])


@given(st.lists(st.dictionaries(st.sampled_from("qab"), st.text(max_size=6) | st.integers()), min_size=1, max_size=6))
def test_whole_items_of_a_cut_list_are_kept(items: list[Any]) -> None:
    items = [item for item in items if without_halves(item)]
    text = json.dumps({"about": {"list": [0]}, "pairs": items, "end": 1})
    start = text.index('"pairs": [{') + 10 if items else len(text)
    ends, at = [], start
    for item in items:
        at = text.index(json.dumps(item), at) + len(json.dumps(item))
        ends.append(at)
    for cut in range(start, text.rindex("]")):
        whole = [item for item, end in zip(items, ends, strict=True) if end <= cut]
        if not whole:
            with pytest.raises(UnacceptableError):
                parse_items(text[:cut], "pairs")
            continue
        assert parse_items(text[:cut], "pairs") == whole
    assert parse_items(text, "pairs") == items


@pytest.mark.parametrize(
    ("text", "items"),
    [
        pytest.param("[1, 2, 3", [1, 2], id="a-number-may-be-cut"),
        pytest.param('See [1]. {"pairs": [{"q": 1}, {"q": 2', [{"q": 1}], id="prose-before"),
        pytest.param('{"pairs": [{"q": 1}, {"q": 2 oops}]}', [{"q": 1}], id="broken-instead-of-cut"),
        pytest.param('{"pairs": [{"pairs": [7]}, {"pairs": [8', [{"pairs": [7]}], id="the-key-again-within"),
    ],
)
def test_salvage(text: str, items: list[Any]) -> None:
    assert parse_items(text, "pairs") == items


def test_a_reply_is_checked_against_its_schema() -> None:
    accept = accept_json(PAIRS, lambda value: [pair["q"] for pair in value["pairs"]])
    good = '{"pairs": [{"q": "Who?", "sure": "high"}]}'
    assert accept(ASKED, reply(f"Sure.\n```json\n{good}\n```")) == ["Who?"]
    for text, finish, words in [
        (good, "length", "used up max_tokens"),
        ('{"pairs": [{"q": "Who?", "sure": "high"}, {"q": 7, "sure": "low"}]}', "stop", "$.pairs[1].q: 7 is not"),
        ('{"pairs": [{"q": "' + "x" * 9000 + '", "sure": 1}]}', "stop", "$.pairs[0].sure: 1 is not one of"),
    ]:
        with pytest.raises(UnacceptableError) as caught:
            accept(ASKED, reply(text, finish))
        assert caught.value.kind == "malformed"
        assert words in caught.value.reason
        assert len(caught.value.reason) < 400


def test_what_make_refuses_stays_as_it_said() -> None:
    def make(_: Any) -> str:
        raise UnacceptableError("two questions are the same")

    with pytest.raises(UnacceptableError, match="the same") as caught:
        accept_json(PAIRS, make)(ASKED, reply('{"pairs": []}'))
    assert caught.value.kind == "unacceptable"


def test_strict_closes_every_object() -> None:
    inner = PAIRS.schema["properties"]["pairs"]["items"]
    assert [(node["required"], node["additionalProperties"]) for node in (PAIRS.schema, inner)] == [
        (["pairs"], False),
        (["q", "sure"], False),
    ]
    assert make_strict(PAIRS) == PAIRS
    # What was given is as it was.
    assert "required" not in PAIR
    either = {"anyOf": [{"type": "null"}, PAIR]}
    found = make_strict(Schema("s", {"type": "object", "properties": {"x": either}})).schema
    assert found["properties"]["x"]["anyOf"][1]["required"] == ["q", "sure"]
