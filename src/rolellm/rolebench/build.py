"""Builds the script-free folder that ``datasets`` loads: Parquet by config and split, and a card that names them."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rolellm.errors import DataError, ReleaseNotFoundError
from rolellm.fingerprint import hash_file
from rolellm.jsonl import write_jsonl
from rolellm.progress import counted
from rolellm.rolebench.columns import schema_of
from rolellm.rolebench.release import Release
from rolellm.rolebench.rows import config_splits, iter_rows
from rolellm.rolebench.schema import CONFIGS, SAMPLE, Config, get_config
from rolellm.rolebench.source import Source, locate

ROWS_PER_FILE = 50_000
_ROWS_AT_ONCE = 1_000
SKIPPED_FILE = "skipped.jsonl"
# A fixed time makes the fingerprint that `datasets` derives from the files survive a re-build.
_MODIFIED = 1_700_000_000


@dataclass(slots=True)
class BuiltSplit:
    """One split as written: its files relative to the folder, rows, and bytes in memory."""

    name: str
    files: list[str] = field(default_factory=list)
    rows: int = 0
    size: int = 0


@dataclass(slots=True)
class BuiltConfig:
    """One config as written.

    Attributes:
        config: Which one.
        source: Where its rows came from.
        splits: What was written.
        skipped: Rows set aside, each with file, line and reason.
        missing: Release files that it would have read and that were not there.
    """

    config: Config
    source: Source
    splits: list[BuiltSplit]
    skipped: list[DataError]
    missing: list[str]


class MissingFilesWarning(UserWarning):
    """A part of the release is not there; what is there was used."""


def build(
    out: str | Path,
    configs: Iterable[str] | None = None,
    *,
    data_dir: str | Path | None = None,
    revision: str | None = None,
    skip_bad: bool = False,
) -> list[BuiltConfig]:
    """Write the Hub data set folder: one folder of Parquet a config, ``README.md`` with ``configs:``, checksums.

    Args:
        out: The folder; what an earlier build wrote there is replaced, other files are left alone.
        configs: Names of configs; by default every one that the release at hand has data for.
        data_dir: A local copy of the release; by default as :func:`rolellm.rolebench.source.locate` finds it.
        revision: Another revision of the release on the Hub.
        skip_bad: Set bad rows aside in ``skipped.jsonl`` instead of stopping at the first.

    Raises:
        ReleaseNotFoundError: When no release, or nothing for a config that was asked for, is there.
        ReleaseFormatError: At the first bad row, unless ``skip_bad``.
    """
    target = Path(out)
    target.mkdir(parents=True, exist_ok=True)
    named = None if configs is None else [get_config(name) for name in configs]
    built = []
    with tempfile.TemporaryDirectory(dir=target, prefix=".building-") as scratch:
        for config in named or CONFIGS.values():
            try:
                source = locate(config, data_dir if config.name != SAMPLE else None, revision=revision)
            except ReleaseNotFoundError:
                if named is not None or config.name == SAMPLE:
                    raise
                continue
            built.append(write_config(Path(scratch), config, source, skip_bad=skip_bad))
        if not any(item.config.name != SAMPLE for item in built) and named is None:
            locate(get_config(None), data_dir, revision=revision)
        for name in CONFIGS:
            shutil.rmtree(target / name, ignore_errors=True)
        for item in built:
            (Path(scratch) / item.config.name).replace(target / item.config.name)
    finish(target, built)
    return built


def finish(folder: Path, built: list[BuiltConfig]) -> None:
    """Write what goes beside the Parquet files: the list of rows set aside, and the card, which makes it complete."""
    from rolellm.rolebench.card import write_card

    lines = [
        {"config": item.config.name, "file": str(error.path), "line": error.line, "reason": error.problem}
        for item in built
        for error in item.skipped
    ]
    (folder / SKIPPED_FILE).unlink(missing_ok=True)
    if lines:
        write_jsonl(folder / SKIPPED_FILE, lines)
    write_card(folder, built)


def write_config(folder: Path, config: Config, source: Source, *, skip_bad: bool = False) -> BuiltConfig:
    """Write the Parquet files of one config under ``folder/<config>/``; warn of files that are not there.

    Raises:
        ReleaseFormatError: At the first bad row, unless ``skip_bad``.
    """
    warn_missing(config, source)
    release = Release(source.root, skip_bad=skip_bad)
    splits = [_write_split(folder, release, config, name) for name in config_splits(release, config)]
    if not any(split.rows for split in splits):
        raise ReleaseNotFoundError(f"not one good row for config {config.name!r}", path=source.root)
    # A file is read for more than one split, so the same bad line can be met twice.
    skipped = {(error.path, error.line): error for error in release.skipped}
    return BuiltConfig(config, source, splits, list(skipped.values()), source.missing(config))


def warn_missing(config: Config, source: Source) -> None:
    """Warn of what this config reads and is not there, naming each file."""
    missing = source.missing(config)
    if missing:
        warnings.warn(
            f"rolebench {config.name!r}: not in {source.root}: {', '.join(missing)}. "
            "Splits and columns that need them are absent or null.",
            MissingFilesWarning,
            stacklevel=3,
        )


def _write_split(folder: Path, release: Release, config: Config, name: str) -> BuiltSplit:
    schema = _with_features(schema_of(config))
    split = BuiltSplit(name)
    shards: list[Path] = []
    rows = counted(iter_rows(release, config, name), f"Building {config.name}/{name}", "rows")
    at_once = min(_ROWS_AT_ONCE, ROWS_PER_FILE)
    chunks = iter(lambda: list(itertools.islice(rows, at_once)), [])
    tables = (pa.Table.from_pylist(chunk, schema=schema) for chunk in chunks)
    for first in tables:
        shards.append(folder / config.name / f"{name}-{len(shards):05d}.parquet")
        shards[-1].parent.mkdir(parents=True, exist_ok=True)
        with pq.ParquetWriter(shards[-1], schema) as writer:
            for table in itertools.chain([first], itertools.islice(tables, ROWS_PER_FILE // at_once - 1)):
                writer.write_table(table)
                split.rows += table.num_rows
                split.size += table.nbytes
    for index, shard in enumerate(shards):
        final = shard.with_name(f"{name}-{index:05d}-of-{len(shards):05d}.parquet")
        shard.rename(final)
        os.utime(final, (_MODIFIED, _MODIFIED))
        split.files.append(final.relative_to(folder).as_posix())
    return split


def _with_features(schema: pa.Schema) -> pa.Schema:
    from datasets import Features

    features: pa.Schema = Features.from_arrow_schema(schema).arrow_schema
    return features


def file_checksums(folder: Path, built: BuiltConfig) -> dict[str, str]:
    """SHA-256 in hex of each Parquet file written for a config, by path relative to the folder."""
    return {path: hash_file(folder / path) for split in built.splits for path in split.files}
