"""Reading files that come from anybody: never more than fits into memory, whatever a file says of its own size."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from rolellm.core.errors import DataError

#: Maximum bytes of a file, a line or a table, as it is in memory (our choice).
MOST_BYTES: Final = 1 << 29
#: Maximum rows of a table (our choice); the release has 170,000.
MOST_ROWS: Final = 2_000_000
_BATCH: Final = 1024


def read_limited(path: str | Path, most: int = MOST_BYTES, *, error: type[DataError] = DataError) -> bytes:
    """Read a file of at most `most` bytes; ``/dev/zero`` has more.

    Raises:
        DataError: For a larger file, and one that cannot be read; of the class `error`.
    """
    try:
        with Path(path).open("rb") as stream:
            data = stream.read(most + 1)
    except (OSError, ValueError) as problem:
        raise error(f"cannot be read ({getattr(problem, 'strerror', None) or problem})", path=path) from problem
    if len(data) > most:
        raise error(f"over {most:,} bytes, the maximum; split it or make it smaller", path=path)
    return data


def read_text(path: str | Path) -> str:
    """Read a text in UTF-8, with newlines as LF and without a byte order mark.

    Raises:
        DataError: For a file that is too large, is not UTF-8, or cannot be read.
    """
    try:
        return io.TextIOWrapper(io.BytesIO(read_limited(path)), encoding="utf-8-sig").read()
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8", path=path) from error


def read_parquet(
    path: str | Path, columns: Sequence[str] | None = None, most_bytes: int = MOST_BYTES
) -> Iterator[dict[str, Any]]:
    """Read the rows of a Parquet file. A few bytes can stand for any number of them, and of any length.

    Args:
        path: The file.
        columns: By default all; ``doc.id`` is a field of one.
        most_bytes: Maximum bytes of all rows.

    Raises:
        DataError: For a file that is not Parquet, is damaged, or has more rows than `MOST_ROWS` or more bytes.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    remaining_bytes = most_bytes
    try:
        with pq.ParquetFile(path) as file:
            metadata = file.metadata
            groups = map(metadata.row_group, range(metadata.num_row_groups))
            size = sum(group.total_byte_size for group in groups)
            if metadata.num_rows > MOST_ROWS or size > most_bytes:
                raise DataError(_describe_size(metadata.num_rows, size, most_bytes), path=path)
            # No value is larger than all of them, and each may come again and again.
            batch_size = min(_BATCH, max(1, most_bytes // (8 * size + 1)))
            for batch in file.iter_batches(batch_size, columns=columns):
                remaining_bytes -= batch.nbytes
                if remaining_bytes < 0:
                    size = most_bytes - remaining_bytes
                    raise DataError(_describe_size(metadata.num_rows, size, most_bytes), path=path)
                yield from batch.to_pylist()
    except (pa.ArrowException, OSError, OverflowError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(f"not a valid Parquet file ({reason:.200})", path=path) from error


def _describe_size(rows: int, size: int, most_bytes: int) -> str:
    limits = f"at most {MOST_ROWS:,} rows of {most_bytes:,} bytes are read"
    return f"{rows:,} rows of {size:,} bytes or more; {limits}; split it"
