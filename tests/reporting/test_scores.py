"""Score reports read back: the same typed object that scoring made, or an error that names what is wrong."""

import json
from typing import Any

import pytest

from rolellm.core.errors import DataError
from rolellm.core.records import Row
from rolellm.reporting.tables import roles_of, system_table
from rolellm.scoring.predictions import Predictions
from rolellm.scoring.score import score_rows
from rolellm.scoring.score_report import ScoreReport
from rolellm.scoring.settings import ScoreOptions
from rolellm.scoring.statistics.intervals import Interval

Values = dict[str, dict[str, Any]]


@pytest.mark.parametrize("left_out", [pytest.param(0, id="all-answered"), pytest.param(4, id="some-not")])
@pytest.mark.parametrize("missing", ["skip", "zero"])
def test_what_is_written_is_read_back(rows: list[Row], left_out: int, missing: Any) -> None:
    answered = rows[left_out:]
    predictions = Predictions.pair_texts([row.id for row in answered], [row.references[0] for row in answered])
    report = score_rows(rows, predictions, ScoreOptions(config="sample", split="test", missing=missing))
    written = json.loads(json.dumps(report.to_dict()))
    read = ScoreReport.from_dict(written)
    assert read.to_dict() == report.to_dict() == written
    assert read.metrics["CUS"] == report.metrics["CUS"] and read.by_role.keys() == report.by_role.keys()
    assert (read.options, read.unmatched) == (
        ScoreOptions(
            config="sample",
            split="test",
            dataset_fingerprint=report.fingerprint["dataset"]["fingerprint"],
            missing=missing,
        ),
        report.unmatched,
    )
    assert system_table({"x": read}) == system_table({"x": report})


def test_what_is_absent_is_none_and_zero_is_a_score(values: Values) -> None:
    value = values["tuned"]
    value["metrics"] |= {"RAW": None, "SPE": {"mean": 0.0, "ci95": None, "n": 3}}
    del value["metrics"]["avg"]
    value["by_role"]["Captain Ahab"] = {"CUS": None}
    report = ScoreReport.from_dict(value)
    assert report.metrics["RAW"] is None and report.metrics["avg"] is None
    assert report.metrics["SPE"] == Interval(0.0, None, None, 3)
    assert report.by_role["Captain Ahab"] == dict.fromkeys(("CUS", "RAW", "SPE", "avg"))
    assert roles_of([report]) == ("Sherlock Holmes", "Captain Ahab", "孙悟空")


@pytest.mark.parametrize(
    "value",
    [
        pytest.param({"ci95": None, "n": 3}, id="no-mean"),
        pytest.param({"mean": 0.5, "ci95": [0.4], "n": 3}, id="half-an-interval"),
        pytest.param({"mean": float("nan"), "ci95": None, "n": 0}, id="nan-mean"),
    ],
)
def test_a_broken_metric_is_named(values: Values, value: Any) -> None:
    values["tuned"]["by_role"]["Captain Ahab"]["RAW"] = value
    with pytest.raises(DataError, match=r"by_role\.Captain Ahab\.RAW: "):
        ScoreReport.from_dict(values["tuned"])


def test_what_is_no_report_is_refused() -> None:
    with pytest.raises(DataError, match="not a score report"):
        ScoreReport.from_dict({"metrics": 3})
