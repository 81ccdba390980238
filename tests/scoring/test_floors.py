"""What a score is read between: floors, baseline and reference, each from rows that make its value known beforehand."""

import json
from dataclasses import replace
from typing import Any

import pytest
from datasets import Dataset

import rolellm
from rolellm.core.records import Row
from rolellm.scoring.floors import KINDS, NEAREST, OTHER_ROLE, QUESTION, REFERENCE, ROLEGPT
from rolellm.scoring.rouge import rouge_l
from rolellm.scoring.score import score_markers
from rolellm.scoring.score_report import ScoreReport
from rolellm.scoring.settings import ScoreOptions

KEEPER = Row(
    "keeper", "Keeper", "en", "general", "How deep is the sea?", ("deep blue sea", "deep blue water"), (), "deep", "sea"
)
GULL = replace(KEEPER, id="gull", role="Gull", references=("fish below", "fish below"), rolegpt=None)
SMUGGLER = replace(
    KEEPER, id="own", role="Smuggler", subset="role_specific", question="Who hid the rum?", references=("not me",)
)
ROWS = [KEEPER, GULL, SMUGGLER]
TRAINING = [
    replace(KEEPER, id="t1", question="How deep is a well?", references=("deep blue sea",)),
    replace(KEEPER, id="t2", question="Who sings at night?", references=("nobody",)),
    replace(KEEPER, id="t3", role="Cook", question="Who hid the salt?", references=("not me",)),
]


def f1(text: str, *references: str) -> float:
    return rouge_l([text], [list(references)])[0].f1


def values(name: str, rows: list[Row] = ROWS, training: list[Row] | None = None) -> dict[tuple[str, str], float]:
    trained = TRAINING if training is None else training
    found = score_markers(rows, {row.id for row in rows}, ScoreOptions(), trained)[0].get(name, ())
    return {(one.id, one.metric): one.value for one in found}


def test_another_role_is_heard_on_the_same_question_only() -> None:
    found = values(OTHER_ROLE)
    assert found.keys() == {(row, metric) for row in ("keeper", "gull") for metric in ("CUS", "RAW")}
    assert found["keeper", "CUS"] == f1("fish below", *KEEPER.references) == 0
    asked = replace(TRAINING[0], role="Cook", question=" who hid  the RUM? ", references=("not me at all",))
    assert values(OTHER_ROLE, training=[asked])["own", "SPE"] == f1("not me at all", "not me")


def test_the_nearest_training_reply_is_the_roles_own_where_it_was_trained_on() -> None:
    found = values(NEAREST)
    assert found["keeper", "CUS"] == 1
    # No row of the smuggler is trained on: anybody's reply to the nearest question.
    assert found["own", "SPE"] == 1


def test_question_baseline_and_reference() -> None:
    assert values(QUESTION)["gull", "RAW"] == f1(GULL.question, "deep")
    sea = f1("sea", *KEEPER.references)
    assert values(ROLEGPT) == {("keeper", "CUS"): sea, ("keeper", "RAW"): 0, ("own", "SPE"): 0}
    # The gull's references are one text twice, and the smuggler has one. None of them is a role-free answer.
    assert values(REFERENCE) == {("keeper", "CUS"): f1(*KEEPER.references)}


def as_dataset(rows: list[Row], **columns: list[Any]) -> list[dict[str, Any]]:
    names = ("id", "role", "language", "subset", "question", "references", "raw_reference", "rolegpt")
    table = [{name: getattr(row, name) for name in names} for row in rows]
    return [row | {name: values[at] for name, values in columns.items()} for at, row in enumerate(table)]


def many(count: int = 6) -> list[Row]:
    """Rows whose floors are 0 but for the question's, 1/4."""
    blank = replace(KEEPER, rolegpt=None)
    return [
        replace(blank, id=f"r{at}", question=f"x{at} no na ne", references=(f"w{at} x{at} p q", f"w{at} x{at} r s"))
        for at in range(count)
    ]


@pytest.mark.parametrize(
    ("prediction", "gain"),
    [
        pytest.param("x no na ne", 0.0, id="at-the-floor"),
        pytest.param("w x r s", 0.75, id="above-the-floor"),
        pytest.param("all else", -0.25, id="below-the-floor"),
    ],
)
def test_the_position_is_above_the_highest_floor(prediction: str, gain: float) -> None:
    rows = many()
    numbered = [prediction.replace("x", f"x{at}").replace("w", f"w{at}") for at in range(len(rows))]
    scale = rolellm.score(as_dataset(rows, prediction=numbered)).scale
    found = scale.position["CUS"]
    assert (found.floor, found.low) == (QUESTION, 0.25)
    assert found.gain.mean == pytest.approx(gain)
    assert (found.gain.n, found.gain.clusters) == (6, 6)
    assert (found.p < 0.05) is bool(gain)
    assert scale.position["SPE"] is None
    assert scale.position["RAW"].floor == QUESTION


@pytest.mark.parametrize(("silent", "known"), [(6, True), (7, False)])
def test_a_position_stands_for_most_rows_or_is_not_told(silent: int, known: bool) -> None:
    rows = [*many(6), *(replace(row, id=f"s{row.id}", question="") for row in many(silent))]
    report = rolellm.score(as_dataset(rows, prediction=[row.references[0] for row in rows]))
    position = report.scale.position["CUS"]
    assert (position is not None) is known


def test_what_is_absent_is_said_in_words() -> None:
    alone = replace(KEEPER, references=("deep",), rolegpt=None)
    report = rolellm.score(as_dataset([alone], prediction=["deep"]))
    assert report.scale.markers.keys() == {QUESTION}
    words = " ".join(report.scale.notes)
    for name in KINDS.keys() - {QUESTION}:
        assert f"“{name}”: " in words
    assert "there are no training rows" in words and words in " ".join(report.caption.replace(". ", " ").split())


def test_the_score_itself_stays_the_same_and_reads_back() -> None:
    rows = as_dataset(ROWS, prediction=["deep sea", "fish", "me"])
    plain, report = rolellm.score(rows, floors=False), rolellm.score(rows, training=as_dataset(TRAINING))
    value = report.to_dict()
    assert plain.scale is None and plain.to_dict()["scale"] is None
    assert {**value, "scale": None} == plain.to_dict()
    back = ScoreReport.from_dict(json.loads(json.dumps(value)))
    assert back.scale == report.scale
    assert {"one reference against the others", "floor: the question itself"} <= back.parts.keys()


def test_the_order_of_rows_changes_nothing_and_rows_of_rolebench_bring_their_training_rows() -> None:
    sample = rolellm.load_rolebench("sample", "test")
    rows: Dataset = sample.add_column("prediction", sample["rolegpt"])
    one, other = (rolellm.score(given).scale for given in (rows, rows.shuffle(seed=1)))
    assert NEAREST in one.markers
    assert other.markers[REFERENCE] == one.markers[REFERENCE] and other.markers[QUESTION] == one.markers[QUESTION]
