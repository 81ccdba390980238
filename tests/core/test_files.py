"""Files are whole or absent; rows are read from all usual forms; texts from outside are texts; names stay names."""

import csv
import json
import subprocess
import sys
import unicodedata
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.core.errors import DataError
from rolellm.core.files import open_atomic
from rolellm.core.foreign import read_limited, read_parquet
from rolellm.core.jsonl import JsonlAppender, read_jsonl, write_jsonl
from rolellm.core.row_files import read_rows
from rolellm.core.sanitize import label, make_visible, measure_width, truncate
from rolellm.core.text import make_safe_name

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3), max_leaves=5
)


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "folder" / "file.txt"
    with open_atomic(path) as stream:
        stream.write("old")
    with pytest.raises(RuntimeError), open_atomic(path) as stream:
        stream.write("half of the n")
        raise RuntimeError
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]


@given(rows=st.lists(st.dictionaries(st.text(st.characters(codec="utf-8")), JSON, max_size=4), max_size=6))
def test_json_lines_round_trip(rows, tmp_path_factory):
    rows = json.loads(json.dumps(rows))
    path = tmp_path_factory.mktemp("lines") / "rows.jsonl"
    try:
        assert write_jsonl(path, rows) == len(rows)
    except UnicodeEncodeError:
        # A lone surrogate has no UTF-8 of its own; nothing is written then.
        assert not path.exists()
        return
    assert [value for _, value in read_jsonl(path)] == rows


def test_appender_drops_a_cut_off_last_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"n": 1}\n{"n": 2')
    with JsonlAppender(path) as out:
        out.append([{"n": 3}])
    assert [value for _, value in read_jsonl(path)] == [{"n": 1}, {"n": 3}]


def test_bad_lines_are_named_or_collected(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"n": 1}\n{"n"\n{"n": 2}\n')
    with pytest.raises(DataError, match=r"rows\.jsonl:2: not valid JSON"):
        list(read_jsonl(path))
    bad: list[DataError] = []
    assert [number for number, _ in read_jsonl(path, bad=bad)] == [1, 3]
    assert [error.line for error in bad] == [2]


@given(st.text())
def test_safe_names_stay_in_their_folder(name):
    safe = make_safe_name(name)
    assert safe
    assert Path(safe).name == safe
    assert safe not in (".", "..")


# --- texts from outside


any_text = st.text(st.characters(), max_size=60)  # lone surrogates included


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("plain 李白 é\n\tkept", "plain 李白 é\n\tkept", id="plain-text-is-kept"),
        pytest.param("\x1b[31mred\x1b[0m", "␛[31mred␛[0m", id="ansi-colour"),
        pytest.param("\x9b31m", "⟨U+009B⟩31m", id="c1-escape"),
        pytest.param("a\r\nb\rc", "a\nb␍c", id="carriage-returns"),
        pytest.param("pay\u202egnp.exe", "pay⟨U+202E⟩gnp.exe", id="bidi-override"),
        pytest.param("ze\u200bro\ufeff", "ze⟨U+200B⟩ro⟨U+FEFF⟩", id="zero-width"),
        pytest.param("\ud800", "⟨U+D800⟩", id="lone-surrogate"),
        pytest.param("\uffff\ufdd0", "⟨U+FFFF⟩⟨U+FDD0⟩", id="noncharacters"),
    ],
)
def test_visible(text: str, shown: str) -> None:
    assert make_visible(text) == shown


@given(any_text)
def test_nothing_hidden_is_left_and_once_is_enough(text: str) -> None:
    shown = make_visible(text)
    assert not {unicodedata.category(one) for one in shown if one not in "\n\t"} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert make_visible(shown) == shown
    shown.encode("utf-8")


@given(any_text, st.integers(3, 30))
def test_label_is_one_line_within_its_width(text: str, columns: int) -> None:
    short = label(text, columns)
    assert measure_width(short) <= columns
    assert "\n" not in short and make_visible(short) == short


def test_label_keeps_what_fits_and_marks_what_does_not() -> None:
    assert label("Dr. Frank-N-Furter", 18) == "Dr. Frank-N-Furter"
    assert label("孙悟空大圣", 7) == "孙悟空…"
    assert label("x" * 10_000_000, 5) == "xxxx…"


def test_shorten_counts_what_it_leaves_out() -> None:
    assert truncate("abc", 3) == "abc"
    assert truncate("x" * 10_000_000, 10) == "x" * 10 + " … [9,999,990 more characters]"


# --- rows


def write_all(folder: Path, rows: Sequence[dict[str, Any]]) -> list[Path]:
    """The same rows in every form."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    write_jsonl(folder / "d.jsonl", rows)
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
    return [folder / name for name in names]


def test_the_same_rows_in_every_form(tmp_path: Path) -> None:
    rows = [{"instruction": f'Say "{number}",\nor N/A', "output": text} for number, text in enumerate(("007", "N/A"))]
    for path in write_all(tmp_path, rows):
        assert [row for _, row in read_rows(path)] == rows, path.name


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        pytest.param("d.txt", b"x", r"what kind of file this is; known are \.jsonl", id="suffix"),
        pytest.param("d.jsonl", b'{"a": 1}\n[1]', ":2: expected a JSON object", id="no object"),
        pytest.param("d.jsonl", b"", "no rows", id="empty"),
        pytest.param("d.json", b"[1, 2]", "expected a list of objects", id="list of numbers"),
    ],
)
def test_files_that_will_not_do(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_rows(path)


# --- files that say something else of their size


# What numpy and pyarrow map is several hundred megabytes before anything is read.
MEMORY = 2 << 30


def write_rows(path: Path, rows: int, reply: str) -> None:
    """Details of lighteval in which every row is the same."""
    row = {"doc": {"specific": {"id": "a"}}, "model_response": {"text": [reply]}}
    schema = pa.Table.from_pylist([row]).schema
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        batch = pa.Table.from_pylist([row] * min(rows, 1000), schema=schema)
        writer.write_table(pa.concat_tables([batch] * max(1, rows // 1000)).combine_chunks())


def many_rows(path: Path) -> None:
    write_rows(path, 3_000_000, "a")


def long_rows(path: Path) -> None:
    write_rows(path, 3000, "a" * 300_000)


def lying_zip(path: Path) -> None:
    """A card of a gigabyte that its zip says to be of 100 bytes."""
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as made,
        made.open("card.json", "w") as stream,
    ):
        for _ in range(1 << 10):
            stream.write(bytes(1 << 20))
    data = bytearray(path.read_bytes())
    place = data.rindex(b"PK\x01\x02") + 24
    data[place : place + 4] = (100).to_bytes(4, "little")
    path.write_bytes(data)


def packed_otherwise(path: Path) -> None:
    """One that Python unpacks at once, whatever its size."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as made:
        made.writestr("card.json", bytes(1 << 26))
    data = bytearray(path.read_bytes())
    data[60:90] = bytes(30)
    path.write_bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "make", "program"),
    [
        pytest.param("d.parquet", many_rows, "score", id="rows"),
        pytest.param("d.parquet", long_rows, "score", id="bytes"),
        pytest.param("d.charx", lying_zip, "card", id="CHARX"),
        pytest.param("d.charx", packed_otherwise, "card", id="LZMA"),
        pytest.param("/dev/zero", None, "jsonl", id="JSON Lines"),
    ],
)
def test_what_is_too_large_is_refused_in_words(
    name: str, make: Callable[[Path], None] | None, program: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    if make is not None:
        make(path)
    programs = {
        "score": "from rolellm.scoring.predictions import read_predictions as read",
        "rows": "import pathlib, rolellm.core.row_files as r; read = lambda path: r.read_rows(pathlib.Path(path))",
        "card": "from rolellm.characters.cards.card import load_card as read",
        "script": "from rolellm.characters.scripts.source import read_source as read",
        "jsonl": "from rolellm.core.jsonl import read_jsonl; read = lambda path: list(read_jsonl(path))",
    }
    lines = (
        "import resource, sys",
        f"resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))",
        "from rolellm.core.errors import DataError",
        programs[program],
        "try: read(sys.argv[1])",
        "except DataError as error: print(error)",
    )
    done = subprocess.run([sys.executable, "-c", "\n".join(lines), str(path)], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith(f"{path}:") and done.stdout.count("\n") == 1, done.stderr


def test_the_rows_of_a_sound_file_are_read(tmp_path: Path) -> None:
    path = tmp_path / "d.parquet"
    write_rows(path, 2000, "Well.")
    rows = list(read_parquet(path, ("doc.specific.id", "model_response.text")))
    assert len(rows) == 2000 and rows[0] == {"doc": {"specific": {"id": "a"}}, "model_response": {"text": ["Well."]}}


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none: cannot be read \(No such file"):
        read_limited(tmp_path / "none")
    with pytest.raises(DataError, match=r"not a valid Parquet file"):
        list(read_parquet(tmp_path))
