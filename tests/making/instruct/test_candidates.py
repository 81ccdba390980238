import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.llm.json_reply import make_strict
from rolellm.llm.model import Reply, Request, UnacceptableError, Usage
from rolellm.making.instruct.candidates import build_pairs_schema, load_examples, parse_candidate, parse_pairs
from rolellm.making.instruct.segments import Segment

ORIGIN = Segment("script/0003", "script", "Ada: No.", 3), {"visit": 2, "place": 4}
PAIR = {
    "question": "Ada, who are you?",
    "answer": "I am Ada.",
    "completeness": {"level": "high", "reason": "Plain."},
    "factualness": {"level": "medium", "reason": "Likely."},
}
REQUEST = Request(())


def read(text: str) -> list[Any]:
    return parse_pairs(REQUEST, Reply(text, "stop", Usage(), "m", "e", {}))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(json.dumps({"pairs": [PAIR]}), id="as asked"),
        pytest.param(json.dumps([PAIR]), id="bare list"),
        pytest.param(json.dumps(PAIR), id="one pair"),
        pytest.param(json.dumps({"questions": [PAIR]}), id="another key"),
        pytest.param("Here you are:\n```json\n" + json.dumps({"pairs": [PAIR]}) + "\n```\nMore?", id="fenced"),
        pytest.param('<think>{"pairs": []}</think>' + json.dumps({"pairs": [PAIR]}), id="after thoughts"),
    ],
)
def test_replies_are_read_in_every_form(text: str) -> None:
    assert read(text) == [PAIR]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{"pairs": [{"question": "Wh', id="cut off within the first"),
        pytest.param("[" * 10_000, id="nested 10,000 deep"),
    ],
)
def test_what_is_no_list_is_malformed(text: str) -> None:
    with pytest.raises(UnacceptableError) as caught:
        read(text)
    assert caught.value.kind == "malformed"


def test_confidence_opens_with_completeness_as_the_releases_does() -> None:
    assert parse_candidate(PAIR, *ORIGIN).confidence("en") == "Completeness: high. Plain. Factualness: medium. Likely."
    chinese = {**PAIR, "completeness": {"level": "高", "reason": "明白。"}, "factualness": "blau"}
    assert parse_candidate(chinese, *ORIGIN).confidence("zh") == "完整度：高。理由：明白。真实度：blau。"


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["question", "answer", "completeness", "factualness", "level", "reason"]), inner
            )
        ),
        max_leaves=20,
    )
)
def test_any_json_makes_a_candidate_that_can_be_written(item: Any) -> None:
    found = parse_candidate(item, *ORIGIN)
    json.dumps([found.question, found.answer, found.confidence("en"), found.confidence("zh")]).encode("utf-8")
    assert found.problem is not None or (found.question and found.answer)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_schema_takes_the_examples_and_can_be_sent_in_strict_mode(language: Any) -> None:
    schema = build_pairs_schema(language)
    for example in load_examples(language):
        jsonschema.validate({"pairs": example["pairs"]}, dict(schema.schema))
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"pairs": [{**example["pairs"][0], "answer": None}]}, dict(schema.schema))
    assert make_strict(schema).schema == schema.schema
