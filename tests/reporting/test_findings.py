"""Findings in sentences, from scores on rows of the sample."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rolellm
from rolellm.journeys.evaluation import EvalResult
from rolellm.judging.result import JudgingResult
from rolellm.judging.settings import JudgingSettings
from rolellm.reporting.findings import Evidence
from rolellm.reporting.page import PageContent
from rolellm.reporting.section import Section
from rolellm.scoring.score_report import ScoreReport

from ..judge_runs import Simulator, summarize


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
    assert "CUS, RAW and SPE decide nothing, corrected for 9 tests (CUS, n = " in undecided and len(mixed) == 3


def make_scores(gains: list[float], config: str, questions: int = 12) -> dict[str, ScoreReport]:
    """Scores of two systems on one role for each gain: the first has as many words more of the reference, in tenths."""
    answers: dict[str, list[dict[str, Any]]] = {"after": [], "before": []}
    for role, gain in enumerate(gains):
        for number in range(questions):
            words = [f"w{word}" for word in range(20)]
            row = {"id": f"{role}-{number}", "role": f"role {role}", "subset": "general", "question": f"Q {number}?"}
            row |= {"references": [" ".join(words)], "raw_reference": " ".join(words[: 10 + number % 2])}
            for name, count in (("after", 8 + gain + number % 3), ("before", 8 + (number + 1) % 3)):
                answers[name].append(row | {"prediction": " ".join(words[: round(count)])})
    return {name: rolellm.score(rows, config=config, floors=False).leading for name, rows in answers.items()}


def test_roles_that_differ_decide_for_themselves_and_not_for_new_ones() -> None:
    gains = [1.0, 5.0, 2.0]
    own = Evidence(make_scores(gains, "instruction-generalization-english"))
    assert own.describe_gain().startswith("“after” is ahead of “before” for these 3 roles in CUS (CUS +")
    assert "behind in nothing that is decided (RAW -" in own.describe_gain()
    new = Evidence(make_scores(gains, "role-generalization-english"))
    assert new.describe_gain().startswith("“after” is not shown to be ahead of “before” or behind it (CUS -")
    assert "Only 3 roles held out: next to nothing can be decided about new roles." in new.describe_scores()
    many = Evidence(make_scores([3.0, 3.0, 4.0, 3.0, 3.0, 4.0], "role-generalization-english"))
    assert many.describe_gain().startswith("“after” is ahead of “before” for new roles in CUS")
    assert not any("next to nothing" in sentence for sentence in many.describe_scores())


def judge_systems(strengths: dict[str, float], questions: int = 40, certificate: str | None = None) -> JudgingResult:
    made = Simulator({**strengths, "null": -4.0}, canaries=("null",), questions=questions)
    judges = [{"name": "judge", "prompts": {"pairwise": {}}, "certificate": certificate}]
    return JudgingResult.from_dict(summarize(made.comparison(), made.pairs(), judges, JudgingSettings()))


def test_scores_that_do_not_compare_make_no_claim() -> None:
    reports = make_scores([5.0], "instruction-generalization-english")
    before = reports["before"]
    odd = reports | {"before": replace(before, options=replace(before.options, protocol="paper"))}
    assert Section("", reports).evidence.describe_scores() != [] == Section("", odd).evidence.describe_scores()


def test_the_table_of_eval_has_the_intervals_for_new_roles() -> None:
    config = "role-generalization-english"
    judged = replace(judge_systems({"after": 1.0}), config=config)
    reports = make_scores([1.0, 5.0, 2.0], config)
    result = EvalResult(Path(), Path(), (), reports, judged=judged, content=PageContent("", ()))
    assert "for new roles: Student's t by role and question" in str(result)
    assert "Wilson's by role and question (win rate)" in str(result)
    assert "these roles" not in str(result)


def test_verdicts_are_of_ones_own_systems_first() -> None:
    verdicts = Evidence({}, judge_systems({"good": 1.2, "poor": -1.2})).describe_verdicts()
    starts = ["Judge judge: not examined", "The judges prefer good to poor for these 2 roles (good wins "]
    starts += ["The judges prefer good to base for", "The judges prefer base to poor for"]
    assert [verdict.startswith(start) for verdict, start in zip(verdicts, starts, strict=True)] == [True] * 4
    assert all(", n = 80)" in verdict for verdict in verdicts[1:])


def test_verdicts_are_corrected_over_all_claims() -> None:
    judged = judge_systems({"a": 0.44})
    (test,) = (test for test in judged.tests if test.measure == "win_rate")
    assert 0.02 < (test.p or 1) < 0.05
    alone, *rest = (Evidence(reports, judged).describe_verdicts()[-1] for reports in ({}, make_scores([0.0], "x")))
    assert alone.startswith("The judges prefer a to base") and rest[0].startswith("The judges do not tell a and base")


@pytest.mark.parametrize(
    ("options", "last"),
    [
        pytest.param({"questions": 9}, "The judges saw 18 rows only, too few for a verdict (20 or more).", id="few"),
        pytest.param(
            {"certificate": "unfit (…)"}, "No verdict is said: the judges are not shown to be fit.", id="unfit"
        ),
    ],
)
def test_a_verdict_needs_rows_and_a_fit_judge(options: dict[str, Any], last: str) -> None:
    verdicts = Evidence({}, judge_systems({"good": 3.0}, **options)).describe_verdicts()
    assert verdicts[-1] == last and not any("prefer" in verdict for verdict in verdicts)
