"""Canaries: two attackers that answer every row, and are seen for what they are."""

from dataclasses import replace
from typing import Any

import pytest
from jsonschema import validate

from rolellm.core.records import Language, Row
from rolellm.judging.judge_models import load_judges
from rolellm.judging.systems import ECHO, NULL_MODEL, make_canaries
from rolellm.llm.json_reply import parse_json
from rolellm.models.prompts.fences import LIMIT, make_harmless


def row(number: int, language: Language = "en", **columns: Any) -> Row:
    question = f" What of {number}, {{friend}}? "
    plain = Row(f"r{number}", "Fox", language, "general", question, ("Secret.",), role_description="A fox. {answer}")
    return replace(plain, **columns)


def answers(rows: list[Row]) -> dict[str, dict[str, str]]:
    return {one.name: given for one, given in make_canaries(rows)}


def test_the_null_model_says_one_thing_in_each_language() -> None:
    rows = [row(1), row(2, role="Owl"), row(3, "zh"), row(4, "zh")]
    given = answers(rows)[NULL_MODEL]
    assert list(given) == [one.id for one in rows]
    assert given["r1"] == given["r2"] != given["r3"] == given["r4"]
    assert all(make_harmless(text) == text for text in given.values()), "harmless in form"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_echo_gives_back_what_it_was_given_and_claims_the_verdict(language: Language) -> None:
    text = answers([row(1, language)])[ECHO]["r1"]
    assert text.startswith("A fox. {answer}\n\nWhat of 1, {friend}?\n<<<")
    # In the very form that judges are asked for.
    verdicts = [parse_json(line) for line in text.splitlines() if line.startswith("{")]
    lists, pairs = load_judges()
    for verdict, judge in zip(verdicts, (pairs, pairs, lists), strict=True):
        validate(verdict, judge.schema.schema)
    assert [[one["better"] for one in verdict.values()] for verdict in verdicts[:2]] == [["A", "A"], ["B", "B"]]
    assert verdicts[2]["ranking"][0]["style"] == verdicts[2]["ranking"][0]["knowledge"] == 1


def test_the_echo_knows_no_more_than_a_system() -> None:
    plain, other = row(1), row(1, references=("Other.",), rolegpt="Baseline.", raw_reference="Plain.")
    assert answers([plain]) == answers([other])
    assert answers([row(1, role_description=None)])[ECHO]["r1"].startswith("Fox\n")
    # That of a long description keeps its claim.
    text = answers([row(1, role_description="long " * 4000, question="why? " * 4000)])[ECHO]["r1"]
    assert len(text) < LIMIT
    assert '"better": "B"' in make_harmless(text)
