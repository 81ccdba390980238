"""Drawing general instructions: columns, caps, near-duplicates, and a draw that goes by content."""

import csv
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolellm.core.errors import DataError, SettingsError
from rolellm.core.fingerprint import hash_file
from rolellm.making.instructions import Columns, InstructionSource, read_instruction_source, sample_instructions
from rolellm.making.settings import SampleSettings

THINGS = [
    *("map", "key", "stew", "kettle", "parrot", "crutch", "captain", "rat", "apron", "crown", "rose", "tart"),
    *("hedge", "pond", "mallet", "hoop", "bell", "rope"),
]
DEEDS = ["Draw", "Hide", "Sell", "Paint", "Bury", "Count", "Praise", "Weigh", "Steal", "Mend"]
ROWS = [(f"{deed} the {thing} of {other}.", f"{thing}!") for deed in DEEDS for thing in THINGS for other in THINGS[:3]]


def source(rows: Sequence[tuple[str, str]], name: str = "ours") -> InstructionSource:
    return InstructionSource(name, None, Columns("instruction", "target"), "f", rows)


def drawn(rows: Sequence[tuple[str, str]], count: int, **options: Any) -> list[tuple[str, str]]:
    chosen = SampleSettings(**{"language": "en", "duplicates": "exact", **options})
    return [
        (line["instruction"], line["target"]) for line in sample_instructions([source(rows)], [count], chosen).lines
    ]


@given(order=st.permutations(range(60)), seed=st.integers(0, 5))
@settings(max_examples=25)
def test_the_same_rows_in_any_order_give_the_same_draw(order: list[int], seed: int) -> None:
    rows = ROWS[:60]
    for way in ("exact", "bm25"):
        shuffled = drawn([rows[place] for place in order], 12, seed=seed, duplicates=way)
        assert shuffled == drawn(rows, 12, seed=seed, duplicates=way)


@pytest.mark.parametrize(
    ("language", "rows", "kept"),
    [
        pytest.param("en", [("a " * 100, "x"), ("b " * 101, "x")], 1, id="100 words"),
        pytest.param("zh", [("问" * 100, "答"), ("题" * 101, "答")], 1, id="100 characters"),
        pytest.param("en", [("Why?", ""), ("", "x"), ("How?", "x")], 1, id="both have to be there"),
        pytest.param("en", [("Why?", "x\ud83d"), ("How?", "x")], 1, id="half a character"),
        pytest.param("en", [("How?", "x"), ("How?", "x"), (" how? ", "y")], 1, id="repeats, folded"),
        pytest.param("en", [("这是什么？", "x"), ("Translate 你好 into English.", "x")], 1, id="mostly English"),
        pytest.param("zh", [("What is it?", "答"), ("把 hello 翻译成中文。", "答")], 1, id="mostly Chinese"),
    ],
)
def test_what_will_not_do_is_left_out_and_counted(language: Any, rows: list[tuple[str, str]], kept: int) -> None:
    sample = sample_instructions([source(rows)], [9], SampleSettings(language=language, duplicates="exact"))
    assert len(sample.lines) == kept
    summary = sample.summary["sources"][0]
    assert sum(summary["dropped"].values()) + kept == len(rows) == summary["rows"]


@pytest.mark.parametrize("way", ["bm25", "minhash"])
def test_near_duplicates_are_drawn_once(way: Any) -> None:
    near = [(f"Explain to the ship's cook in plain words how the {thing} came to be lost{end}", "x")
            for thing in THINGS for end in ("?", "!", " ?!")]  # fmt: skip
    chosen = SampleSettings(language="en", duplicates=way, similarity=0.95)
    sample = sample_instructions([source(near)], [len(near)], chosen)
    assert len(sample.lines) == len(THINGS)
    assert sample.summary["sources"][0]["dropped"]["near_duplicate"] == len(near) - len(sample.lines)


def test_many_duplicates_make_the_pool_grow() -> None:
    rows = [(f"{' ' * (number % 7)}Name {number // 40}", f"{number}") for number in range(4000)]
    assert len({instruction.strip() for instruction, _ in drawn(rows, 90)}) == 90


def test_what_is_written(tmp_path: Path) -> None:
    sample = sample_instructions([source(ROWS)], [3], SampleSettings(language="en"))
    meta = sample.write(tmp_path / "out.jsonl")
    first = json.loads((tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert ROWS[first["source"]["row"]] == (first["instruction"], first["target"])
    told = json.loads(meta.read_text(encoding="utf-8"))
    assert told["sha256"] == hash_file(tmp_path / "out.jsonl") and told["drawn"] == 3
    assert told["settings"]["max_words"] == 100 and told["sources"][0]["columns"]["instruction"] == "instruction"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        pytest.param(lambda: drawn([], 3), DataError, "none of its 0 rows", id="nothing"),
        pytest.param(lambda: drawn(ROWS, 0), SettingsError, "give each a count of 1 or more", id="count"),
        pytest.param(lambda: drawn([("Why?", "")], 3), DataError, "no target: 1", id="no targets"),
        pytest.param(lambda: drawn(ROWS, 3, duplicates="none"), SettingsError, "must be 'bm25'", id="method"),
    ],
)
def test_draws_that_cannot_be(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def jsonl(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    return path


TALK = [{"role": "system", "content": "Be."}, {"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]
SHARED = [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}, {"from": "human", "value": "R"}]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        pytest.param({"instruction": "Q", "input": "I", "output": "A"}, ("Q\nI", "A"), id="Alpaca with input"),
        pytest.param({"definition": "Q", "inputs": "I", "targets": ["A", "B"]}, ("Q\nI", "A"), id="Super-NI"),
        pytest.param({"messages": TALK}, ("Q", "A"), id="messages with a system turn"),
        pytest.param({"messages": TALK[::-1]}, ("", ""), id="messages that open with an answer"),
        pytest.param({"messages": ["Q", "A"]}, ("", ""), id="messages without sides"),
        pytest.param({"instruction": True, "output": "A"}, ("", "A"), id="no text"),
        pytest.param({"conversations": SHARED}, ("Q", "A"), id="ShareGPT"),
        pytest.param(
            {"id": "x", "items": [{"from": "human", "value": "Q"}, {"from": "chatgpt", "value": "A"}]},
            ("Q", "A"),
            id="ShareGPT, older",
        ),
        pytest.param(
            {"instruction": "Q", "instances": [{"input": "I", "output": "A"}, {"input": "", "output": "B"}]},
            ("Q\nI", "A"),
            id="Self-Instruct",
        ),
        pytest.param(
            {"instruction": "Human: Q\nmore\nAssistant: A\nHuman: R\nAssistant:", "output": "B"},
            ("Q\nmore", "A"),
            id="BELLE, turns",
        ),
    ],
)
def test_columns_by_their_usual_names(tmp_path: Path, row: dict[str, Any], expected: tuple[str, str]) -> None:
    assert list(read_instruction_source(str(jsonl(tmp_path / "d.jsonl", [row]))).rows) == [expected]


def test_columns_by_name(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "d.jsonl", [{"a": "Q", "b": "A", "instruction": "other", "input": "I", "output": "O"}])
    found = read_instruction_source(str(path), instruction_column="a", target_column="b")
    assert (list(found.rows), found.columns) == ([("Q", "A")], Columns("a", "b"))
    with pytest.raises(SettingsError, match="no column 'c'; it has a, b"):
        read_instruction_source(str(path), instruction_column="c")


def test_columns_that_cannot_be_told(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "d.jsonl", [{"frage": "Q", "antwort": "A"}])
    with pytest.raises(SettingsError, match=r"which column .* holds the instruction; it has frage, antwort"):
        read_instruction_source(str(path))
    with pytest.raises(SettingsError, match=r"the target.*--target-column"):
        read_instruction_source(str(path), instruction_column="frage")


def write_all(folder: Path, rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The same rows in every form, by its name."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    jsonl(folder / "d.jsonl", rows)
    (folder / "d.json").write_text(json.dumps(rows), encoding="utf-8")
    (folder / "held.json").write_text(json.dumps({"version": 1, "data": rows}), encoding="utf-8")
    (folder / "lines.json").write_text((folder / "d.jsonl").read_text(encoding="utf-8"), encoding="utf-8")
    for suffix, separator in (("csv", ","), ("tsv", "\t")):
        with (folder / f"d.{suffix}").open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, list(rows[0]), delimiter=separator)
            writer.writeheader()
            writer.writerows(rows)
    pq.write_table(pa.Table.from_pylist(list(rows)), folder / "d.parquet")
    names = ("d.jsonl", "d.json", "held.json", "lines.json", "d.csv", "d.tsv", "d.parquet")
    (folder / "parts").mkdir()
    jsonl(folder / "parts" / "train.jsonl", rows)
    jsonl(folder / "parts" / "test.jsonl", rows[:1])
    return {name: str(folder / name) for name in (*names, "parts")}


def test_the_same_rows_in_every_form(tmp_path: Path) -> None:
    rows = [{"instruction": f'Say "{number}",\nor N/A', "output": text} for number, text in enumerate(("007", "N/A"))]
    expected = [(row["instruction"], row["output"]) for row in rows]
    for name, path in write_all(tmp_path, rows).items():
        found = read_instruction_source(path)
        assert list(found.rows) == expected, name
        assert found.name == name and found.split == ("train" if name == "parts" else None)
    assert len(read_instruction_source(str(tmp_path / "parts"), split="test").rows) == 1


def test_a_folder_of_save_to_disk(tmp_path: Path) -> None:
    import datasets

    data = datasets.Dataset.from_list([{"question": "Q", "answer": "A"}])
    data.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": data}).save_to_disk(tmp_path / "many")
    assert list(read_instruction_source(str(tmp_path / "one")).rows) == [("Q", "A")]
    assert list(read_instruction_source(str(tmp_path / "many"), split="train").rows) == [("Q", "A")]


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        pytest.param("d.txt", b"x", DataError, r"what kind of file this is; known are \.jsonl", id="suffix"),
        pytest.param("d.jsonl", b'{"a": 1}\n[1]', DataError, ":2: expected a JSON object", id="no object"),
        pytest.param("d.jsonl", b"", DataError, "no rows", id="empty"),
        pytest.param("d.json", b"[1, 2]", DataError, "expected a list of objects", id="list of numbers"),
        pytest.param("d.parquet/", None, DataError, "cannot read split 'train'", id="empty folder"),
        pytest.param("none.jsonl", None, DataError, "no such file or folder", id="no file"),
    ],
)
def test_files_that_will_not_do(
    tmp_path: Path, name: str, content: bytes | None, error: type[Exception], message: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    elif name.endswith("/"):
        path.mkdir()
    with pytest.raises(error, match=message):
        read_instruction_source(str(path))


@pytest.mark.realdata
def test_the_releases_own_instructions(real_release: Path) -> None:
    """1,500 with few near-duplicates; 24 are longer than the paper says, counted by white space."""
    found = read_instruction_source(str(real_release / "instructions-eng/instructions-general.jsonl"))
    sample = sample_instructions([found], [1500], SampleSettings(language="en"))
    assert len(found.rows) == 1500
    assert sample.summary["sources"][0]["dropped"] == {"too_long": 24, "near_duplicate": 2}
    shuffled = list(found.rows)
    random.Random(0).shuffle(shuffled)
    again = sample_instructions([source(shuffled)], [1500], SampleSettings(language="en"))
    texts = [[line["instruction"] for line in chosen.lines] for chosen in (again, sample)]
    assert texts[0] == texts[1]
