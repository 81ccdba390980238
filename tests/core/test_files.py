"""Files are whole or absent, and names made of anything stay names."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.core.errors import DataError
from rolellm.core.files import open_atomic
from rolellm.core.jsonl import JsonlAppender, read_jsonl, write_jsonl
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
