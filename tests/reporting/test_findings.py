"""Answers and findings in sentences, from scores on rows of the sample and made-up verdicts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rolellm
from rolellm.journeys.evaluation import EvalResult
from rolellm.judging.result import JudgingResult
from rolellm.judging.settings import JudgingSettings
from rolellm.reporting.build import answer_judging, answer_scoring
from rolellm.reporting.findings import Evidence
from rolellm.reporting.page import PageContent
from rolellm.scoring.score_report import ScoreReport

from ..judge_runs import Simulator, summarize


@pytest.fixture(scope="module")
def reports() -> dict[str, ScoreReport]:
    """Scores of the role's own replies, and of two systems that say nothing of the matter."""
    rows = list(rolellm.load_rolebench("sample", "test"))
    found = {"own": rolellm.score([row | {"prediction": row["references"][0]} for row in rows]).leading}
    for name, text in (("mute", "…"), ("deaf", "—")):
        found[name] = rolellm.score([row | {"prediction": text} for row in rows]).leading
    return found


def test_who_is_ahead_is_said_with_the_difference(reports: dict[str, ScoreReport]) -> None:
    evidence = Evidence({name: reports[name] for name in ("mute", "own")})
    (sentence,) = evidence.describe_pairs()
    assert sentence.startswith("mute against own for these 4 roles: behind in CUS 0.000 against 1.000 (-")
    assert sentence.count(", n = ") == 3
    answer = evidence.answer()
    assert answer.verdict.startswith("own is ahead of mute in style") and answer.lead == "own"
    assert answer.evidence.startswith("For these 4 roles: style, own 1.000 against 0.000 (")


def test_of_several_systems_one_must_be_ahead_of_all(reports: dict[str, ScoreReport]) -> None:
    alike = {"mute": reports["mute"], "deaf": reports["deaf"], "dumb": reports["mute"]}
    answer = Evidence(alike).answer()
    assert answer.verdict == "None of 3 systems is shown to be ahead of all others." and answer.lead == "mute"
    assert answer.undecided[0] == "Not decided: style; accuracy; knowledge."
    assert Evidence(reports).answer().verdict == "own is ahead of all others in style, accuracy and knowledge."
    assert all("not decided, corrected for 9 tests: CUS" in line for line in Evidence(alike).describe_pairs())
    pair = Evidence({name: alike[name] for name in ("mute", "deaf")})
    answer = pair.answer()
    assert answer.verdict == "No difference between mute and deaf is shown."
    assert answer.undecided[0].count("(n = ") == 3 and not pair.describe_pairs()


def test_a_system_alone_is_held_against_the_baseline_or_the_floor(reports: dict[str, ScoreReport]) -> None:
    alone = Evidence({"own": reports["own"]}).answer()
    assert alone.verdict == "own is above the highest floor in style and knowledge, and below it in accuracy."
    low = Evidence({"mute": reports["mute"]}).answer()
    assert low.verdict == "mute is below the highest floor in style, accuracy and knowledge."
    beside = Evidence({name: reports[name] for name in ("mute", "own")}, baselines=["own"]).answer()
    assert beside.verdict.startswith("own is ahead of mute in style") and beside.lead == "mute"
    bare = replace(reports["own"], scale=None)
    assert Evidence({"own": bare}).answer().verdict == "Nothing here decides which system is better."


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
    own = Evidence(make_scores(gains, "instruction-generalization-english")).answer()
    assert own.verdict == "after is ahead of before in style." and own.evidence.startswith("For these 3 roles: style")
    assert own.undecided[0].startswith("Not decided: accuracy, after and before 0.")
    new = Evidence(make_scores(gains, "role-generalization-english")).answer()
    assert new.verdict == "No difference between after and before is shown."
    assert "Only 3 roles held out: next to nothing can be decided about new roles." in new.evidence
    many = Evidence(make_scores([3.0, 3.0, 4.0, 3.0, 3.0, 4.0], "role-generalization-english")).answer()
    assert many.evidence.startswith("For new roles: style, after ")
    assert "next to nothing" not in many.evidence


def judge_systems(strengths: dict[str, float], questions: int = 40, certificate: str | None = None) -> JudgingResult:
    made = Simulator({**strengths, "null": -4.0}, canaries=("null",), questions=questions)
    judges = [{"name": "judge", "prompts": {"pairwise": {}}, "certificate": certificate}]
    return JudgingResult.from_dict(summarize(made.comparison(), made.pairs(), judges, JudgingSettings()))


def test_the_table_of_eval_has_the_intervals_for_new_roles() -> None:
    config = "role-generalization-english"
    judged = replace(judge_systems({"after": 1.0}), config=config)
    reports = make_scores([1.0, 5.0, 2.0], config)
    result = EvalResult(Path(), reports, judged=judged, content=PageContent("", ()))
    assert "for new roles: Student's t by role and question" in str(result)
    assert "Wilson's by role and question (win rate)" in str(result)
    assert "these roles" not in str(result)


def test_the_judge_is_asked_about_ones_own_systems_first() -> None:
    evidence = Evidence({}, judge_systems({"good": 1.2, "poor": -1.2}), baselines=["base"])
    assert evidence.answer().verdict == "The judge prefers good to poor."
    starts = ["good against poor for these 2 roles: ahead in win rate ", "good against base ", "poor against base "]
    sentences = evidence.describe_pairs()
    assert [line.startswith(start) for line, start in zip(sentences, starts, strict=True)] == [True] * 3
    assert all(", n = 80)" in sentence for sentence in sentences)
    assert evidence.describe_judges()[0].startswith("Judge judge: not examined")


def test_verdict_and_scores_that_disagree_are_both_said() -> None:
    reports = make_scores([5.0, 4.0], "instruction-generalization-english")
    judged = judge_systems({"after": -1.5, "before": 1.5})
    answer = Evidence(reports, judged, baselines=["base"]).answer()
    assert answer.verdict == "The judge prefers before; after is ahead in style, before in accuracy."
    assert answer.evidence.startswith("For these 2 roles: judge, before ") and len(answer.verdict.split()) <= 15


def test_verdicts_are_corrected_over_all_claims() -> None:
    judged = judge_systems({"a": 0.44})
    (test,) = (test for test in judged.tests if test.measure == "win_rate")
    assert 0.02 < (test.p or 1) < 0.05
    verdicts = []
    for reports in ({}, make_scores([0.0], "x")):
        verdicts += [test.sign for test in Evidence(reports, judged).tests if test.measure == "win rate"]
    assert verdicts[0] != 0 == verdicts[1]


def test_a_verdict_needs_rows_and_a_fit_judge() -> None:
    strengths = {"good": 3.0, "poor": -3.0}
    few = Evidence({}, judge_systems(strengths, questions=9)).answer()
    assert "The judges saw 18 rows only, too few for a verdict" in few.evidence and "prefers" not in few.verdict
    unfit = Evidence({}, judge_systems(strengths, certificate="unfit (…)")).answer()
    assert "the judges are not shown to be fit" in unfit.evidence and "prefers" not in unfit.verdict


def test_results_in_a_terminal_begin_with_the_answer() -> None:
    assert answer_judging(judge_systems({"good": 1.2, "poor": -1.2}))[0] == "The judge prefers good to poor."
    assert answer_judging(judge_systems({"good": 3.0, "poor": -3.0}, certificate="unfit (…)")) == []
    rows = rolellm.load_rolebench("sample", "test").rename_column("rolegpt", "prediction")
    scored = rolellm.score(rows)
    assert answer_scoring(scored)[0] == "This model is below the highest floor in accuracy, and above it in knowledge."
    assert answer_scoring(replace(scored, scale=None)) == []
