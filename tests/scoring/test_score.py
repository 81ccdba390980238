"""CUS, RAW, SPE and avg: what each is measured on, what is counted, and the recipe that goes with them."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from rolellm.core.errors import PredictionError
from rolellm.core.records import Language, Row
from rolellm.reporting.tables import system_table
from rolellm.scoring.columns import compute_column_means, score_columns
from rolellm.scoring.predictions import Predictions, read_predictions
from rolellm.scoring.rouge import rouge_l
from rolellm.scoring.score import score_rows
from rolellm.scoring.settings import ScoreOptions
from rolellm.scoring.statistics.intervals import estimate_proportion

WORDS = "the lamp oil tide gull stone never burns low when captain sings of salt"
HAN = "灯塔里的油从来不会烧尽船长说过海风"


def sentence(draw: random.Random, language: Language, length: int) -> str:
    return ("" if language == "zh" else " ").join(
        draw.choices(HAN if language == "zh" else WORDS.split(), k=length)
    ) + "."


def benchmark(language: Language = "en", *, seed: int = 0, questions: int = 6) -> list[Row]:
    """General rows of three roles that share questions, every third without a target, and role-specific ones."""
    draw = random.Random(seed)
    rows = []
    for number in range(questions):
        question = f"Question {number}, {language}?"
        target = None if number % 3 == 2 else sentence(draw, language, 6)
        for role in ("Keeper", "Smuggler", "Gull"):
            references = tuple(sentence(draw, language, 8) for _ in range(3))
            name = f"general-{language}-{number}-{role}"
            # The same question in other spacing and case is the same cluster.
            asked = question if role == "Gull" else f" {question.upper()}\n"
            rows.append(Row(name, role, language, "general", asked, references, raw_reference=target))
    for number in range(questions):
        kinds = (("script_based",), ("script_agnostic",), ("script_based", "script_agnostic"))[number % 3]
        references = tuple(sentence(draw, language, 7) for _ in kinds)
        role = ("Keeper", "Smuggler")[number % 2]
        name = f"role_specific-{language}-{number}"
        rows.append(Row(name, role, language, "role_specific", f"{role}, {number}?", references, kinds))
    return rows


def answers(rows: Sequence[Row], seed: int = 1) -> Predictions:
    draw = random.Random(seed)
    return Predictions.pair_texts([row.id for row in rows], [sentence(draw, row.language, 9) for row in rows])


def texts(predictions: Predictions) -> dict[str, str]:
    return {str(item.id): item.prediction for item in predictions.items}


ROWS = benchmark()
ANSWERS = answers(ROWS)


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize(("protocol", "field"), [("rouge-score", "f1"), ("paper", "recall")])
def test_each_metric_is_the_mean_of_its_rows(language: Language, protocol: str, field: str) -> None:
    rows = benchmark(language)
    predictions = answers(rows)
    report = score_rows(rows, predictions, ScoreOptions(protocol=protocol))
    said = texts(predictions)

    def expected(pairs: list[tuple[str, list[str]]]) -> list[float]:
        replies, references = zip(*pairs, strict=True)
        return [getattr(item, field) for item in rouge_l(replies, references, language=language, protocol=protocol)]

    general = [row for row in rows if row.subset == "general"]
    targeted = [row for row in general if row.raw_reference]
    specific = [row for row in rows if row.subset == "role_specific"]
    assert 0 < len(targeted) < len(general)
    values = {
        "CUS": expected([(said[row.id], list(row.references)) for row in general]),
        "RAW": expected([(said[row.id], [str(row.raw_reference)]) for row in targeted]),
        "SPE": expected([(said[row.id], list(row.references)) for row in specific]),
    }
    for metric, found in values.items():
        measured = report.metrics[metric]
        assert measured.mean == pytest.approx(fmean(found), abs=1e-12)
        assert measured.n == len(found)
    assert report.metrics["avg"].mean == pytest.approx(fmean(fmean(found) for found in values.values()), abs=1e-12)
    assert fmean(values["CUS"]) > 0.1


def test_the_order_of_rows_and_predictions_changes_nothing() -> None:
    shuffled = ROWS[:]
    random.Random(3).shuffle(shuffled)
    items = list(ANSWERS.items)
    random.Random(4).shuffle(items)
    one = score_rows(ROWS, ANSWERS).to_dict()
    other = score_rows(shuffled, Predictions(tuple(items))).to_dict()
    assert other["metrics"] == one["metrics"]
    assert other["by_role"] == one["by_role"]


@pytest.mark.parametrize(("kept", "absent"), [("role_specific", {"CUS", "RAW", "avg"}), ("general", {"SPE", "avg"})])
def test_a_metric_whose_rows_are_absent_is_null_and_so_is_avg(kept: str, absent: set[str]) -> None:
    rows = [row for row in benchmark() if row.subset == kept]
    metrics = score_rows(rows, answers(rows)).to_dict()["metrics"]
    assert {name for name, value in metrics.items() if value is None} == absent


@pytest.mark.parametrize("protocol", ["rouge-score", "paper"])
def test_an_empty_prediction_scores_0_and_a_perfect_one_1(protocol: str) -> None:
    ids, options = [row.id for row in ROWS], ScoreOptions(protocol=protocol)
    perfect = score_rows(ROWS, Predictions.pair_texts(ids, [row.references[-1] for row in ROWS]), options)
    best = perfect.to_dict()["metrics"]["CUS"]
    assert (best["mean"], best["n"], best["questions"]) == (1.0, 18, 6)
    assert best["ci95"][0] < 0.6 and best["ci95"][1] == 1, "that six questions went well makes no certainty"
    empty = score_rows(ROWS, Predictions.pair_texts(ids, [""] * len(ROWS)), options)
    worst = empty.to_dict()["metrics"]["SPE"]
    assert (worst["mean"], worst["ci95"], worst["n"]) == (0.0, list(estimate_proportion(0, 6).ends or ()), 6)
    assert empty.to_dict()["counts"]["empty"] == 24


def test_breakdowns_add_up_to_the_whole() -> None:
    report = score_rows(ROWS, ANSWERS)
    found = report.to_dict()
    assert list(found["by_role"]) == ["Keeper", "Smuggler", "Gull"]
    assert found["by_role"]["Gull"]["SPE"] is None
    assert found["by_role"]["Gull"]["avg"] is None
    for metric in ("CUS", "RAW", "SPE"):
        parts = [role[metric] for role in found["by_role"].values() if role[metric]]
        whole = found["metrics"][metric]
        assert sum(part["n"] for part in parts) == whole["n"]
        assert sum(part["n"] * part["mean"] for part in parts) / whole["n"] == pytest.approx(whole["mean"])
        assert all(part["ci95"][0] <= part["mean"] <= part["ci95"][1] for part in parts)
    kinds = found["by_reference_type"]
    assert {kind: part["n"] for kind, part in kinds.items()} == {"script_based": 2, "script_agnostic": 2, "mixed": 2}
    assert not found["by_language"]


def test_languages_may_mix_and_each_row_is_scored_by_its_own() -> None:
    english, chinese = benchmark("en"), benchmark("zh")
    predictions = Predictions(answers(english).items + answers(chinese).items)
    mixed = score_rows([*english, *chinese], predictions).to_dict(rows=True)
    assert mixed["fingerprint"]["tokenizer"] == {"en": "rouge_score", "zh": "jieba"}
    for language, rows in (("en", english), ("zh", chinese)):
        alone = score_rows(rows, predictions)
        assert mixed["by_language"][language] == alone.to_dict()["metrics"]
    assert mixed["by_language"]["zh"]["CUS"]["mean"] > 0.05


class TestReport:
    def test_intervals_for_new_roles_come_first_under_role_generalization(self) -> None:
        for config, words in (("role-generalization-eng", "new"), ("instruction-generalization-eng", "these")):
            report = score_rows(ROWS, ANSWERS, ScoreOptions(config=config, split="test"))
            cus = report.metrics["CUS"]
            assert cus.new_roles[0] < cus.ends[0] and cus.ends[1] < cus.new_roles[1]
            wide, narrow = (f"[{', '.join(f'{end:.3f}' for end in ends)}]" for ends in (cus.new_roles, cus.ends))
            page, table = report._repr_html_(), system_table({"A": report.leading}).to_markdown()
            assert f"95 % intervals for {words} roles" in page and f"95 % intervals for {words} roles" in table
            assert (wide in page, narrow in page) == ((True, False) if words == "new" else (False, True))
            # What was measured stays what it is called.
            assert report.to_dict()["metrics"]["CUS"]["ci95"] == list(cus.ends)

    def test_its_hash_changes_with_every_part(self) -> None:
        base = ScoreOptions(config="sample", split="test", dataset_fingerprint="abc")
        runs = [(ANSWERS, base), (ANSWERS, base), (answers(ROWS, seed=2), base)]
        runs += [(ANSWERS, replace(base, config="other")), (ANSWERS, replace(base, dataset_fingerprint="other"))]
        first, again, *others = (score_rows(ROWS, *run).fingerprint["hash"] for run in runs)
        assert first == again and len({first, *others}) == 4


class TestFiles:
    @staticmethod
    def file(folder: Path, rows: Sequence[Row], meta: dict[str, Any] | None = None, name: str = "P.jsonl") -> Path:
        path = folder / name
        lines = [json.dumps({"id": item.id, "prediction": item.prediction}) for item in answers(rows).items]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        if meta is not None:
            path.with_name(f"{name}.meta.json").write_text(json.dumps(meta))
        return path

    def test_a_renamed_file_keeps_its_hash(self, tmp_path: Path) -> None:
        one, two = (read_predictions(self.file(tmp_path, ROWS, name=name)) for name in ("a.jsonl", "b.jsonl"))
        first, second = (score_rows(ROWS, predictions).fingerprint for predictions in (one, two))
        assert first["hash"] == second["hash"]
        assert first["predictions"] != second["predictions"]

    def test_predictions_made_for_other_data_are_named_and_strict_refuses_them(self, tmp_path: Path) -> None:
        meta = {"model": "tiny", "config": "sample", "split": "test", "dataset_fingerprint": "old"}
        predictions = read_predictions(self.file(tmp_path, ROWS, meta))
        options = ScoreOptions(config="role-generalization-eng", split="test", dataset_fingerprint="new")
        report = score_rows(ROWS, predictions, options)
        (finding,) = report.findings
        assert "config sample, not role-generalization-eng" in finding.text
        assert "dataset_fingerprint old, not new" in finding.text
        assert "split" not in finding.text.split("data: ")[1]
        assert report.to_dict()["counts"]["made_for_other_data"] == 24
        with pytest.raises(PredictionError, match="another part or state of the data"):
            score_rows(ROWS, predictions, replace(options, strict=True))

    def test_further_replies_are_counted(self, tmp_path: Path) -> None:
        (row, *_) = benchmark()
        several = json.dumps({"role": row.role, "question": row.question, "generated": ["One.", "Two."]})
        path = tmp_path / "P.jsonl"
        path.write_text(several, encoding="utf-8")
        report = score_rows([row], read_predictions(path), ScoreOptions(strict=True))
        assert report.to_dict()["counts"]["several_generated"] == 1


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda items: items[1:], id="row-unanswered"),
        pytest.param(lambda items: (*items, replace(items[0], id="stranger")), id="prediction-unmatched"),
        pytest.param(lambda items: (*items, replace(items[0], prediction="Else.")), id="contradicting-duplicate"),
        pytest.param(lambda items: (replace(items[0], role="Gull"), *items[1:]), id="id-against-question"),
    ],
)
def test_strict_refuses_what_is_left_open_and_scores_otherwise(spoil: Any) -> None:
    items = ANSWERS.items
    score_rows(ROWS, Predictions(items), ScoreOptions(strict=True))
    spoilt = Predictions(spoil(items))
    assert sum(finding.refused for finding in score_rows(ROWS, spoilt, ScoreOptions()).findings) == 1
    with pytest.raises(PredictionError, match="refused, as asked by strict"):
        score_rows(ROWS, spoilt, ScoreOptions(strict=True))


class TestColumns:
    @pytest.mark.parametrize(
        ("columns", "words"),
        [
            pytest.param({"references": []}, "1 predictions but 0 values of references", id="unequal"),
            pytest.param({"references": ["a"], "language": "fr"}, "not valid at language.*found 'fr'", id="language"),
            pytest.param({"references": ["a"], "raw_reference": ["a"]}, "without subsets", id="raw-alone"),
        ],
    )
    def test_bad_lists_are_value_errors_in_words(self, columns: dict[str, Any], words: str) -> None:
        with pytest.raises(ValueError, match=words):
            score_columns(["a"], columns)

    def test_means_are_over_rows_and_leave_raw_out(self) -> None:
        columns = {"references": [["a b"], "c"], "subset": ["general", "role_specific"], "raw_reference": ["z", None]}
        found = compute_column_means(score_columns(["a b", "d"], columns))
        assert found == {"rougeL": 0.5, "precision": 0.5, "recall": 0.5, "f1": 0.5, "n": 2}
