"""Files that say something else of their size than there is in them, in a process with a limit on memory."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rolellm.core.errors import DataError
from rolellm.core.foreign import read_limited, read_parquet

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
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made, made.open("card.json", "w") as stream:
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
