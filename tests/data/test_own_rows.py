"""Rows of one's own: each form gives the same dialogue, and each problem names its row."""

import csv
import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, DatasetDict, Image

from rolellm.core.errors import DataError
from rolellm.core.jsonl import write_jsonl
from rolellm.data.own_rows import DIALOGUES, Dialogue, load_own_rows, parse_columns

USER, REPLY = {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Aye."}
SYSTEM = {"role": "system", "content": "You are Ahab."}
CHAT = [
    {"user_name": "Pip", "character_name": "Ahab", "chat_metadata": {}},
    {"name": "Ahab", "is_user": False, "mes": "Ahoy."},
    {"name": "Pip", "is_user": True, "mes": "Why?"},
    {"name": "Ahab", "is_user": False, "mes": "Aye.", "swipes": ["Nay.", "Aye."], "swipe_id": 1},
    {"name": "note", "is_user": False, "is_system": True, "mes": "hidden"},
]
#: One row of each form that says the same.
FORMS: dict[str, dict[str, Any]] = {
    "messages": {"messages": [USER, REPLY]},
    "text": {"prompt": "Why?", "completion": "Aye."},
    "turns": {"prompt": [USER], "completion": [REPLY]},
    "ShareGPT": {"conversations": [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "Aye."}]},
    "Alpaca": {"instruction": "Why?", "input": "", "output": "Aye."},
}


def load(data: Any, **options: Any) -> list[Dialogue]:
    return list(load_own_rows(data, DIALOGUES, **options))


def write(path: Path, rows: Sequence[Any]) -> Path:
    if path.suffix == ".jsonl":
        write_jsonl(path, rows)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    elif path.suffix == ".parquet":
        Dataset.from_list(list(rows)).to_parquet(str(path))
    else:
        with path.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, list(rows[0]))
            writer.writeheader()
            for row in rows:
                cells = {key: value if isinstance(value, str) else json.dumps(value) for key, value in row.items()}
                writer.writerow(cells)
    return path


# In CSV, a cell of prompt is a text.
FILES = [*product(FORMS, (".jsonl", ".json", ".parquet")), *((form, ".csv") for form in FORMS if form != "turns")]


@pytest.mark.parametrize(("form", "suffix"), FILES)
def test_every_form_in_every_file_is_the_same_dialogue(form: str, suffix: str, tmp_path: Path) -> None:
    (dialogue,) = load(write(tmp_path / f"rows{suffix}", [FORMS[form]]))
    assert dialogue == Dialogue("row/1", (USER, REPLY), (1,))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param("a.csv", "\ufeffprompt;completion\r\nWhy?;Aye.\r\n", id="Excel"),
        pytest.param("a.csv", " Question ,Answer,source\nWhy?,Aye.,me\n", id="usual names"),
        pytest.param("a.tsv", "User\tBot\nWhy?\tAye.\n", id="usual names in TSV"),
        pytest.param("a.jsonl", json.dumps([FORMS["text"]], indent=1), id="an array in .jsonl"),
        pytest.param("a.json", json.dumps(FORMS["messages"]), id="one dialogue"),
        pytest.param("a.json", json.dumps([{"turns": [{"from": "Human", "value": "Why?"}, REPLY]}]), id="turns"),
        pytest.param("a.json", '[{"instruction": "Why?", "context": "", "response": "Aye."}]', id="Dolly"),
    ],
)
def test_what_other_programs_export(name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8", newline="")
    (dialogue,) = load(path)
    assert dialogue == Dialogue("row/1", (USER, REPLY), (1,))


@pytest.mark.parametrize(
    "wrap",
    [
        pytest.param(list, id="list"),
        pytest.param(iter, id="iterator"),
        pytest.param(Dataset.from_list, id="Dataset"),
        pytest.param(lambda rows: Dataset.from_list(rows).to_pandas(), id="frame"),
        pytest.param(lambda rows: Dataset.from_list(rows).to_iterable_dataset(), id="stream"),
        pytest.param(lambda rows: DatasetDict({"train": Dataset.from_list(rows)}), id="splits"),
    ],
)
def test_every_object_is_read_again_and_again(wrap: Any) -> None:
    rows = load_own_rows(wrap([FORMS["messages"], {"messages": [SYSTEM, USER, REPLY, USER, REPLY]}]), DIALOGUES)
    first, second = rows
    assert (first.replies, second.replies) == ((1,), (2, 4))
    assert list(rows) == [first, second]


def test_what_rows_say_beyond_their_turns(tmp_path: Path) -> None:
    row = {"instruction": "Why?", "input": "Now", "output": "Aye.", "history": [["Who?", "I."]], "system": "S"}
    (dialogue,) = load([{**row, "id": 7, "role": "Ahab"}])
    contents = [turn["content"] for turn in dialogue.messages]
    assert (contents, dialogue.replies) == (["S", "Who?", "I.", "Why?\n\nNow", "Aye."], (4,))
    assert (dialogue.id, dialogue.role) == ("7", "Ahab")
    (chat,) = load(write(tmp_path / "Ahab.jsonl", CHAT))
    assert [turn["content"] for turn in chat.messages] == ["Ahoy.", "Why?", "Aye."]
    assert (chat.id, chat.role, chat.replies) == ("Ahab", "Ahab", (2,))
    write(tmp_path / "Pip.jsonl", CHAT)
    assert [chat.id for chat in load(tmp_path)] == ["Ahab", "Pip"]


def test_columns_are_named_where_they_do_not_tell() -> None:
    rows = [{"q": "Why?", "a": "Aye.", **FORMS["messages"], **FORMS["Alpaca"]}]
    with pytest.raises(DataError, match=r"columns of 2 forms; choose one: --columns messages=messages or"):
        load(rows)
    assert load([{"q": "Why?", "a": "Aye.", "role": 7}], columns={"prompt": "q", "completion": "a"})[0].role is None
    for pairs in ("prompt=q,completion=a", "messages=messages", "instruction=q,output=a"):
        (dialogue,) = load(rows, columns=parse_columns([pairs]))
        assert dialogue.messages == (USER, REPLY)
    with pytest.raises(
        DataError, match=r"the columns q, a, which are of no known form.*--columns prompt=COLUMN,completion=COLUMN"
    ):
        load([{"q": "Why?", "a": "Aye."}])
    with pytest.raises(DataError, match="has no column b; it has q, a"):
        load([{"q": "Why?", "a": "Aye."}], columns={"prompt": "q", "completion": "b"})
    with pytest.raises(DataError, match="found 'q'; expected NAME=COLUMN"):
        parse_columns(["q"])


@pytest.mark.parametrize(
    ("row", "words"),
    [
        pytest.param({"messages": [USER]}, "found turns of user; expected an assistant's turn", id="no reply"),
        pytest.param({"messages": [USER, REPLY | {"content": " "}]}, "found an empty reply in turn 2", id="empty"),
        pytest.param({"messages": [USER, REPLY | {"weight": 0}]}, "of weight 1 if any", id="weight 0"),
        pytest.param({"messages": [USER | {"weight": 1}, REPLY]}, "a weight of 1 on a turn of user", id="weight"),
        pytest.param({"messages": [USER, REPLY | {"weight": 0.5}]}, "a weight of 0.5 on a turn", id="half"),
        pytest.param({"messages": [USER | {"role": "Pip"}, REPLY]}, "found a turn of 'Pip'; expected", id="speaker"),
        pytest.param({"messages": [USER, REPLY], "images": ["a.png"]}, "column images; expected text", id="images"),
        pytest.param({"messages": [USER | {"content": [{"type": "image"}]}, REPLY]}, "of type image", id="picture"),
        pytest.param({"messages": [USER, REPLY], "tools": "{"}, "tools is neither a list of objects", id="tools"),
        pytest.param({"messages": None}, "found no messages; expected", id="null"),
        pytest.param({"messages": [USER, REPLY | {"tool_calls": ["a"]}]}, "tool_calls is neither a list", id="calls"),
        pytest.param({"messages": [USER, REPLY], "chat_template_kwargs": "a"}, "is not an object", id="kwargs"),
        pytest.param({"messages": [USER, REPLY | {"content": "\ud83d"}]}, "found half a character", id="surrogate"),
    ],
)
def test_a_bad_row_is_named_or_skipped(row: dict[str, Any], words: str) -> None:
    rows = [FORMS["messages"], row, {"messages": [USER, REPLY | {"content": "Nay."}], "tools": [], "image": None}]
    with pytest.raises(DataError, match=f"train_dataset, row 2: .*{words}"):
        load(rows)
    own = load_own_rows(rows, DIALOGUES, skip_bad=True)
    assert len(list(own)) == 2
    assert [str(problem).partition(":")[0] for problem in own.skipped] == ["train_dataset, row 2"]
    with pytest.raises(DataError, match=r"all 1 rows are bad, the first: train_dataset, row 1"):
        load([row], skip_bad=True)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        pytest.param("rows.jsonl", '{"prompt": "a", "completion": "b"}\n{"pro\n', "rows.jsonl:2: not valid", id="JSON"),
        pytest.param("rows.csv", "prompt,completion\na,b\nc,d,e\n", "row 2 has 3 fields; expected 2", id="CSV"),
    ],
)
def test_a_broken_line_is_named_or_skipped(name: str, text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=words):
        load(path)
    own = load_own_rows(path, DIALOGUES, skip_bad=True)
    assert (len(list(own)), len(own.skipped)) == (1, 1)


def test_a_folder_has_the_splits_that_its_files_are_named_after(tmp_path: Path) -> None:
    for name in ("train-1", "train-2", "test"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"prompt": "Why?", "completion": name}), encoding="utf-8")
    replies = [dialogue.messages[1]["content"] for dialogue in load(tmp_path)]
    assert replies == ["train-1", "train-2"]
    (held_out,) = load(tmp_path, splits=("test", "train"))
    assert held_out.messages[1]["content"] == "test"
    (tmp_path / "test.jsonl").rename(tmp_path / "more.jsonl")
    assert load_own_rows(tmp_path, DIALOGUES).name == str(tmp_path)


def test_sources_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no file at talks\.jsonl, and it is not an id on the Hub"):
        load("talks.jsonl")
    with pytest.raises(DataError, match=r"no rows here; .* To play someone from a chat"):
        load(tmp_path)
    DatasetDict({"train": Dataset.from_list([FORMS["text"]])}).save_to_disk(tmp_path / "saved")
    assert load(tmp_path / "saved")[0].messages == (USER, REPLY)
    two = {"user": "Why?", "question": "Who?", "answer": "Aye."}
    with pytest.raises(DataError, match=r"in_two_columns has the columns user, question, answer, which are of no"):
        load([two], argument="in_two_columns")
    (tmp_path / "latin.csv").write_bytes("prompt,completion\nWhy?,Là.\n".encode("cp1252"))
    with pytest.raises(DataError, match="not UTF-8; save it so"):
        load(tmp_path / "latin.csv")
    with pytest.raises(DataError, match="train_dataset has no rows"):
        load([])
    pictures = Dataset.from_list([FORMS["text"]]).add_column("photo", [None]).cast_column("photo", Image())
    with pytest.raises(DataError, match="found pictures or sound in the column photo; expected text"):
        load(pictures)
    with pytest.raises(DataError, match=r"row 1: found '\[' in history; expected pairs"):
        load([FORMS["Alpaca"] | {"history": "[]"}])
    group = [{"name": name, "is_user": False, "mes": "Aye."} for name in ("Ahab", "Pip")]
    with pytest.raises(DataError, match="a group chat of Ahab, Pip"):
        load(write(tmp_path / "group.jsonl", group))
