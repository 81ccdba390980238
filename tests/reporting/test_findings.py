"""Findings in sentences, from scores on rows of the sample."""

from typing import Any

import pytest

import rolellm
from rolellm.reporting.findings import Evidence, describe_character_tests
from rolellm.scoring.score_report import ScoreReport


@pytest.fixture(scope="module")
def reports() -> dict[str, ScoreReport]:
    """Scores of the role's own replies, and of two systems that say nothing of the matter."""
    rows = list(rolellm.load_rolebench("sample", "test"))
    answers = {
        "own": [row["references"][0] for row in rows],
        "mute": ["…" for _ in rows],
        "deaf": ["—" for _ in rows],
    }
    given = {
        name: [row | {"prediction": text} for row, text in zip(rows, texts, strict=True)]
        for name, texts in answers.items()
    }
    return {name: rolellm.score(given[name]).leading for name in given}


def test_who_is_ahead_is_said_with_the_difference(reports: dict[str, ScoreReport]) -> None:
    pair = {name: reports[name] for name in ("mute", "own")}
    evidence = Evidence(pair)
    (sentence,) = evidence.describe_scores()
    assert sentence.startswith("own is closer to the role's own replies than mute for these 4 roles (CUS ")
    assert sentence.count(", n = ") == 3
    assert evidence.describe_gain().startswith("“mute” is behind “own” for these 4 roles in CUS")


def test_systems_that_nothing_tells_apart_are_one_sentence(reports: dict[str, ScoreReport]) -> None:
    alike = {"mute": reports["mute"], "deaf": reports["deaf"], "dumb": reports["mute"]}
    assert Evidence(alike).describe_scores() == ["CUS, RAW and SPE tell no two of mute, deaf and dumb apart."]
    mixed = Evidence(reports).describe_scores()
    (undecided,) = (sentence for sentence in mixed if sentence.startswith("Between mute and deaf"))
    assert "CUS, RAW and SPE decide nothing (CUS, n = " in undecided and len(mixed) == 3


@pytest.mark.parametrize(
    ("verdicts", "sentence"),
    [
        pytest.param({"knows: a": "passed"}, "1 of 1 character test passed.", id="all"),
        pytest.param(
            {"knows: a": "failed", "knows: b": "passed", "withstands: c": "failed", "stays_in_role": "unscored"},
            "1 of 4 character tests passed; failed: knows 1 of 2, withstands 1 of 1.",
            id="some",
        ),
    ],
)
def test_tests_are_counted_by_kind(verdicts: dict[str, str], sentence: str) -> None:
    checked: dict[str, Any] = {
        "assertions": [{"name": name, "verdict": verdict} for name, verdict in verdicts.items()],
        "counts": {"passed": list(verdicts.values()).count("passed")},
    }
    assert describe_character_tests(checked) == sentence
