"""`judge`, the front door: datasets, files and texts in, a typed result out."""

import json
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from rolellm import load_rolebench
from rolellm.core.errors import DataError, SettingsError
from rolellm.core.jsonl import write_jsonl
from rolellm.judging.run import judge

from ..commands import Command

LLM = {"endpoints": [{"backend": "scripted", "rules": "words"}]}
QUICK = {"limit": 6}


@pytest.fixture(scope="module")
def rows() -> Any:
    return load_rolebench("sample", "test").select(range(12))


@pytest.fixture(scope="module")
def good(rows: Any) -> Any:
    return rows.add_column("prediction", [texts[0] for texts in rows["references"]])


def test_datasets_files_and_texts_are_judged_alike(rows: Any, good: Any, tmp_path: Path) -> None:
    bad = ["I am a program."] * len(rows)
    write_jsonl(tmp_path / "p.jsonl", ({"id": row["id"], "prediction": "I am a program."} for row in rows))
    results = [
        judge({"good": good, "bad": given}, dataset, llm=LLM, out=tmp_path / name, **QUICK)
        for name, given, dataset in (
            ("dataset", rows.add_column("prediction", bad), rows),
            ("file", tmp_path / "p.jsonl", None),
            ("texts", bad, rows),
        )
    ]
    first, *others = [result.to_dict()["models"] for result in results]
    assert others == [first, first]
    result = results[0]
    assert result.to_dict() == json.loads((tmp_path / "dataset/result.json").read_text())
    table = result.to_pandas().set_index("System")["Win rate, %"]
    rates = {one["name"]: one["pairwise"] and one["pairwise"]["win_rate"] for one in first}
    assert table["bad"] == pytest.approx(100 * rates["bad"]["mean"], abs=1e-3)
    assert "<table" in result._repr_html_() and "good" in repr(result)


def test_files_find_their_rows_as_the_command_does(rows: Any, command: Command, tmp_path: Path) -> None:
    """By the record that `rolellm generate` writes beside them."""
    for name in ("a", "b"):
        path = tmp_path / f"{name}.jsonl"
        write_jsonl(path, ({"id": row["id"], "prediction": f"{name}: {row['question']}"} for row in rows))
        path.with_name(f"{name}.jsonl.meta.json").write_text('{"config": "sample", "split": "test"}')
    (tmp_path / "words.yaml").write_text(json.dumps(LLM))
    files = {name: str(tmp_path / f"{name}.jsonl") for name in ("a", "b")}
    result = judge(files, llm=tmp_path / "words.yaml", out=tmp_path / "python", limit=6)
    words = [*files.values(), "--llm", str(tmp_path / "words.yaml"), "--limit", "6", "--out", str(tmp_path / "run")]
    assert (result.config, result.split, result.rows) == ("sample", "test", 6)
    assert {**result.to_dict(), "spent": None} == {**command("judge", *words, "--json").json, "spent": None}


def test_a_dataset_of_your_own_needs_roles_and_questions_only(tmp_path: Path) -> None:
    own = Dataset.from_dict({"role": ["Ada"] * 2, "question": ["Why?", "How?"], "prediction": ["a", "b"]})
    result = judge({"a": own, "b": own}, llm=LLM, out=tmp_path / "run", baseline="b", canaries=False)
    assert (result.baseline, result.rows, result.folder) == ("b", 2, tmp_path / "run")


@pytest.mark.parametrize(
    ("predictions", "changed", "problem"),
    [
        ({"a": Dataset.from_dict({"question": ["q"]})}, {}, "lacks the column role; it has: question"),
        ({"a": Dataset.from_dict({"role": ["r"], "question": ["q"]})}, {}, "a: the predictions lack the column"),
        ({"a": ["text"]}, {}, "dataset="),
        ({"a": ["x", "y"]}, {"config": "sample"}, "a: 72 rows but 2 predictions"),
        ({}, {}, "of each system"),
    ],
    ids=["rows", "answers", "texts-alone", "few-texts", "nothing"],
)
def test_what_cannot_be_judged_is_named(predictions: Any, changed: dict[str, Any], problem: str) -> None:
    with pytest.raises((DataError, SettingsError), match=problem):
        judge(predictions, **{"llm": LLM, **changed})
