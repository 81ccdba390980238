"""Reading the instructions that a role is asked."""

from pathlib import Path

import pytest

from rolellm.core.records import Profile
from rolellm.making.respond import Instruction, read_instructions

FOX = Profile("Fox", "en")
LINES = """\
{"instruction": "Name a colour.", "target": "Red."}

{"question": "Fox, who has the key?", "answer": "The parrot.", "type": "script_based", "role": "Fox"}
{"instruction": "Name a colour.", "target": "Blue."}
{"instruction": "Why?", "target": null}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "asked.jsonl"
    path.write_text(text, encoding="utf-8")
    return path


def test_instructions_and_questions(tmp_path: Path) -> None:
    assert read_instructions(write(tmp_path, LINES), FOX).asked == [
        Instruction("Name a colour.", "Red."),
        Instruction("Fox, who has the key?", None, {"answer": "The parrot.", "type": "script_based"}),
        Instruction("Why?"),
    ]


def test_rows_of_a_dataset_and_a_parquet_file(tmp_path: Path) -> None:
    from datasets import Dataset

    data = Dataset.from_list([{"instruction": "Name it.", "input": "A red fruit", "output": "Apple.", "n": 1}])
    data.to_parquet(tmp_path / "d.parquet")
    expected = Instruction("Name it.\nA red fruit", "Apple.", {"n": 1})
    assert read_instructions(data, FOX).asked == read_instructions(tmp_path / "d.parquet", FOX).asked == [expected]


def test_the_embedded_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    english, chinese = (read_instructions("sample", Profile("Fox", language)).asked for language in ("en", "zh"))
    assert len(english) == len(chinese) == 40 and all(item.target for item in [*english, *chinese])
    write(tmp_path, '{"instruction": "Mine?"}').rename(tmp_path / "sample.jsonl")
    assert read_instructions("sample.jsonl", FOX).asked == [Instruction("Mine?")]
