from typing import Any

import pytest

from rolellm.core.errors import DataError
from rolellm.core.records import Row
from rolellm.evaluation.predictions import Predictions
from rolellm.evaluation.score import ScoreOptions, score
from rolellm.report.scores import COLUMNS, METRICS, Estimate, disagreements, estimate, role_estimate, roles

Reports = dict[str, dict[str, Any]]


def test_reads_what_score_writes(rows: list[Row]) -> None:
    answered = Predictions.from_texts([row.id for row in rows], [row.references[0] for row in rows])
    scored = score(rows, answered, ScoreOptions(config="sample", split="test", resamples=50))
    report = scored.to_dict()
    for metric in METRICS:
        read = estimate(report, metric)
        assert read is not None
        assert read.mean == scored.metrics[metric].mean
        assert read.n == 9
    assert roles({"x": report}) == ("Sherlock Holmes", "Captain Ahab", "孙悟空")
    assert role_estimate(report, "Captain Ahab", "CUS").mean == 1.0
    assert all(estimate(report, column) for column in COLUMNS)


def test_what_is_absent_is_none_and_zero_is_a_score(reports: Reports) -> None:
    report = reports["tuned"]
    report["metrics"] |= {"RAW": None, "SPE": {"mean": 0.0, "ci95": None, "n": 3}}
    del report["metrics"]["avg"]
    report["by_role"]["Captain Ahab"] = {"CUS": None}
    assert estimate(report, "RAW") is None and estimate(report, "avg") is None
    assert estimate(report, "SPE") == Estimate(0.0, None, 3)
    assert role_estimate(report, "Captain Ahab", "CUS") is None
    assert role_estimate(report, "Captain Ahab", "RAW") is None
    assert role_estimate(report, "nobody", "CUS") is None


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(0.5, id="bare-number"),
        pytest.param({"ci95": None, "n": 3}, id="no-mean"),
        pytest.param({"mean": "high", "ci95": None, "n": 3}, id="mean-in-words"),
        pytest.param({"mean": 0.5, "ci95": [0.4], "n": 3}, id="half-an-interval"),
        pytest.param({"mean": float("nan"), "ci95": None, "n": 0}, id="nan-mean"),
        pytest.param({"mean": 0.5, "ci95": [float("-inf"), 0.6], "n": 3}, id="infinite-end"),
    ],
)
def test_a_broken_metric_is_named(reports: Reports, value: Any) -> None:
    reports["tuned"]["metrics"]["RAW"] = value
    with pytest.raises(DataError, match=r"^RAW: "):
        estimate(reports["tuned"], "RAW")


def test_a_broken_report_is_named(reports: Reports) -> None:
    with pytest.raises(DataError, match=r"not a score report.*protocol"):
        estimate({"protocol": "paper"}, "CUS")
    with pytest.raises(DataError, match='"by_role"'):
        roles({"x": {"by_role": ["Ahab"]}})
    with pytest.raises(DataError, match="by_role, Ahab"):
        role_estimate({"by_role": {"Ahab": 0.5}}, "Ahab", "CUS")


def test_disagreements(reports: Reports) -> None:
    assert disagreements(reports) == {}
    reports["tuned"]["protocol"] = "paper"
    assert disagreements(reports) == {"protocol": ("rouge-score", "paper")}
