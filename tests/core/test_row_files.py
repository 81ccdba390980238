"""Rows from files in all usual forms."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rolellm.core.errors import DataError
from rolellm.core.jsonl import write_jsonl
from rolellm.core.row_files import read_rows


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
