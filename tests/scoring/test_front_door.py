"""`rolellm.generate` and `rolellm.score`: from a dataset to answers to a score, as a notebook calls them."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

import rolellm
from rolellm.core.errors import DataError, ModelError, SettingsError
from rolellm.scoring.score_report import ScoreReport

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

QUICK: dict[str, Any] = {"max_new_tokens": 4}


ASKED = [{"role": "a", "question": "b"}]
ANSWERED = [{"prediction": "a", "references": ["a"]}]


@pytest.fixture(scope="module")
def sample() -> Dataset:
    return rolellm.load_rolebench("sample", "test")


@pytest.fixture(scope="module")
def baseline(sample: Dataset) -> Dataset:
    """The released baseline's replies as predictions."""
    return sample.add_column("prediction", sample["rolegpt"])


def test_a_call_that_fails_leaves_no_folder(sample: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for call in (lambda: rolellm.generate("nosuch", sample), lambda: rolellm.train("smoke-cpu", base="nosuch")):
        with pytest.raises(ModelError, match="nosuch"):
            call()
    assert list(tmp_path.iterdir()) == []


class TestGenerate:
    def test_the_rows_columns_and_the_answers(self, tiny_model: Path, sample: Dataset, tmp_path: Path) -> None:
        template = tmp_path / "short.txt"
        template.write_text("Speak as {role} would.")
        out = template.with_name("p.jsonl")
        part = sample.select(range(4))
        answers = rolellm.generate(tiny_model, part, out=out, system_template=template, **QUICK)
        assert answers.column_names == [*part.column_names, "prediction", "finish"]
        assert answers["question"][:] == part["question"][:]
        assert set(answers["finish"]) <= {"stop", "length"}
        kept = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
        assert [line["prediction"] for line in kept] == answers["prediction"][:]
        meta = json.loads(out.with_name("p.jsonl.meta.json").read_text())
        assert (meta["config"], meta["split"]) == ("sample", "test")
        # The same call takes what is there.
        again = rolellm.generate(str(tiny_model), part, out=out, system_template=template, **QUICK)
        assert again["prediction"][:] == answers["prediction"][:]
        report = rolellm.score(answers.select([2, 0]))
        (made,) = report.fingerprint["predictions"]
        assert made["generation"]["model_hash"] == meta["model_hash"]

    def test_models_behind_an_api_answer_from_the_journal_the_second_time(
        self, sample: Dataset, tmp_path: Path, llm_server: Callable[..., Any]
    ) -> None:
        key = "sk0123456789abcdefXYZ"
        server = llm_server(lambda body: f"You ask: {body['messages'][-1]['content']}")
        llm = {"base_url": server.url, "model": "local", "extra_body": {"top_k": 7}}
        part = sample.select(range(3))
        first = rolellm.generate(None, part, llm=llm, out=tmp_path / "p.jsonl")
        assert first["prediction"][:] == [f"You ask: {question}".strip() for question in part["question"]]
        assert set(first["finish"]) == {"stop"}
        again = rolellm.generate(None, part, llm=llm, out=tmp_path / "p.jsonl")
        assert again["prediction"][:] == first["prediction"][:]
        asked = Counter(body["messages"][-1]["content"] for body in server.bodies)
        assert sum(asked[question] for question in part["question"]) == 3
        texts = [path.read_text(encoding="utf-8") for path in tmp_path.rglob("*") if path.is_file()]
        assert any('"top_k": 7' in text for text in texts)
        with pytest.raises(SettingsError, match="a secret does not belong in a file") as caught:
            rolellm.generate(None, part, llm=llm | {"extra_body": {"credentials": key}}, out=tmp_path / "q.jsonl")
        assert key not in str(caught.value)
        with pytest.raises(SettingsError, match="was started with other settings"):
            rolellm.generate(None, part, llm=llm, out=tmp_path / "p.jsonl", max_new_tokens=7)


class TestScore:
    def test_answers_with_their_rows(self, sample: Dataset, baseline: Dataset) -> None:
        report = rolellm.score(baseline)
        assert {name: report.metrics[name].n for name in ("CUS", "RAW", "SPE")} == {"CUS": 40, "RAW": 40, "SPE": 32}
        assert (report.options.config, report.options.split) == ("sample", "test")
        other = rolellm.score(baseline["prediction"][:], sample)
        assert other.metrics == report.metrics
        assert rolellm.score(baseline.select_columns(["id", "prediction"]), sample).metrics == report.metrics

    def test_a_file_names_its_own_split(self, sample: Dataset, baseline: Dataset, tmp_path: Path) -> None:
        path = tmp_path / "p.jsonl"
        lines = [{"id": row["id"], "prediction": row["prediction"]} for row in baseline]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        with pytest.raises(SettingsError, match="--config is missing"):
            rolellm.score(path)
        whole = rolellm.score(path, sample)
        assert rolellm.score(str(path), config="sample", split="test").metrics == whole.metrics
        path.with_name("p.jsonl.meta.json").write_text(json.dumps({"config": "sample", "split": "test"}))
        assert rolellm.score(path).metrics == whole.metrics

    def test_it_shows_as_a_table_and_reads_back(self, baseline: Dataset) -> None:
        report = rolellm.score(baseline, protocol="paper")
        shown = report._repr_html_()
        assert "CUS" in repr(report) and "RowScore(" not in repr(report)
        assert "<table" in shown and "language zh" in shown and "protocol paper" in shown
        frame = report.to_pandas()
        (cus,) = frame[frame.Rows == "all rows"]["CUS"]
        assert cus == pytest.approx(report.metrics["CUS"].mean, abs=1e-6)
        back = ScoreReport.from_dict(json.loads(json.dumps(report.to_dict())))
        assert back.to_dict() == report.to_dict()
        assert back._repr_html_() == shown


def generate(model: Any, dataset: Any, **options: Any) -> Callable[[Path], object]:
    return lambda folder: rolellm.generate(model, dataset, out=folder / "p.jsonl", **options)


def score(predictions: Any, **options: Any) -> Callable[[Path], object]:
    return lambda _: rolellm.score(predictions, **options)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        pytest.param(generate("m", [{"role": "a", "text": "b"}]), "column question; it has: role, text", id="column"),
        pytest.param(generate("m", {"train": [], "test": []}), "found several: train, test", id="splits"),
        pytest.param(generate("m", 7), "found int", id="no-dataset"),
        pytest.param(generate(None, ASKED), "no model is named", id="no-model"),
        pytest.param(generate("m", ASKED, temprature=1), "mean temperature", id="option-of-generate"),
        pytest.param(score(["a"]), "pass the rows that they answer", id="texts-alone"),
        pytest.param(score([{"prediction": "a"}]), "lacks the column references", id="no-references"),
        pytest.param(score([{"references": ["a"]}]), "lack the column prediction", id="no-predictions"),
        pytest.param(score(ANSWERED, protocl=1), "did you mean protocol", id="option-of-score"),
    ],
)
def test_what_cannot_be_answered_or_scored_is_refused_in_words(
    call: Callable[[Path], object], words: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=words):
        call(tmp_path)


def test_a_row_without_references_is_named() -> None:
    with pytest.raises(DataError, match="row 0 has no reference"):
        rolellm.score([{"prediction": "a", "references": []}])
