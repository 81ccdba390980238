"""Builds the script-free folder that ``datasets`` loads: Parquet by config and split, and a card that names them."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from rolellm.core.errors import ReleaseNotFoundError, RoleLLMWarning
from rolellm.core.files import open_atomic
from rolellm.core.fingerprint import hash_file
from rolellm.core.progress import track_progress
from rolellm.core.result import Result
from rolellm.core.sanitize import make_markdown_environment
from rolellm.core.table import Table
from rolellm.core.text import join_names
from rolellm.data.rolebench.release import Release, iter_rows, list_splits
from rolellm.data.rolebench.schema import CONFIGS, DEFAULT_CONFIG, REPO_ID, SAMPLE, Config, get_config, get_schema
from rolellm.data.rolebench.source import MissingFilesWarning, Source, find_own_manifest, locate
from rolellm.data.rolebench.statistics import TableOne

ROWS_PER_FILE = 50_000
LICENCE = "apache-2.0"
"""Of the release, and of the embedded sample."""
BENCHMARK_FILE = "eval.yaml"
#: A file of the release, what is wrong with it, and how many of how many rows, references or names have the fault.
Fault = tuple[str, str, int, int]
# A fixed time makes the fingerprint that `datasets` derives from the files survive a re-build.
_MODIFIED = 1_700_000_000


@dataclass(slots=True)
class BuiltSplit:
    """One split as written: its files relative to the folder, and rows."""

    name: str
    files: list[str] = field(default_factory=list)
    rows: int = 0


@dataclass(slots=True)
class BuiltConfig:
    """One config as written.

    Attributes:
        config: Which one.
        source: Where its rows came from.
        splits: What was written.
        missing: Release files that it would have read and that were not there.
        left_out: Roles without reviewed names, whose rows a ``-anonymous`` config leaves out.
    """

    config: Config
    source: Source
    splits: list[BuiltSplit]
    missing: list[str]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class BuiltRelease(Result):
    """A release as written.

    Attributes:
        out: The folder.
        configs: Its configs.
        table_one: Table 1 of the paper, counted from the release.
    """

    out: Path
    configs: tuple[BuiltConfig, ...]
    table_one: TableOne | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return one JSON object: the configs by name, each with its rows by split, and Table 1."""
        configs = {}
        for item in self.configs:
            rows = {split.name: split.rows for split in item.splits}
            configs[item.config.name] = {
                "rows": rows,
                "missing": item.missing,
                "fingerprint": item.source.fingerprint(item.config),
            }
        table = None
        if self.table_one is not None:
            table = self.table_one.to_dict()
        return {"out": str(self.out), "configs": configs, "table_one": table}

    def tables(self) -> list[Table]:
        """Build the table of configs, and Table 1."""
        rows = []
        for item in self.configs:
            rows += [(item.config.name, split.name, split.rows) for split in item.splits]
        built = Table.from_rows(f"Built into {self.out}", ("config", "split", "rows"), rows)
        if self.table_one:
            return [built, *self.table_one.tables()]
        return [built]

    def remarks(self) -> list[str]:
        """Say which files are missing."""
        return self.table_one.remarks() if self.table_one else []


def build(
    out: str | Path,
    configs: Iterable[str] | None = None,
    *,
    data_dir: str | Path | None = None,
    home: str | None = None,
    licence: str | None = None,
    faults: Sequence[Fault] = (),
) -> BuiltRelease:
    """Write the Hub data set folder: one folder of Parquet a config, ``README.md`` with ``configs:``, checksums.

    Args:
        out: The folder; what an earlier build wrote there is replaced, other files are left alone.
        configs: Names of configs; by default every one that the release at hand has data for, of a release of your own
            those that its manifest names.
        data_dir: A local copy of the release; by default as :func:`rolellm.data.rolebench.source.locate` finds it.
        home: The repository that it goes to, so that no path of this machine is named.
        licence: The license of this form of the data; by default the published release's own, Apache-2.0, and none for
            a release of your own.
        faults: What an audit found in the release, for the card.

    Raises:
        ReleaseNotFoundError: When no release, or nothing for a config that was asked for, is there.
        DataError: At the first bad row.
    """
    target = Path(out)
    target.mkdir(parents=True, exist_ok=True)
    names = configs
    if names is None:
        own = find_own_manifest(data_dir)
        names = CONFIGS
        if own:
            names = [*own["configs"], "roles", "instructions"]
    chosen = [get_config(name) for name in names]
    built = []
    with tempfile.TemporaryDirectory(dir=target, prefix=".building-") as scratch:
        for config in chosen:
            try:
                source = locate(config, None if config.embedded else data_dir)
                built.append(_write_config(Path(scratch), config, source))
            except ReleaseNotFoundError:
                # All that there is: a release may lack a config, and one of roles without reviewed names has no twins.
                if configs is not None or config.name == SAMPLE:
                    raise
        if configs is None and all(item.config.embedded for item in built):
            # There is no release: this says so.
            locate(get_config(None), data_dir)
        for name in CONFIGS:
            shutil.rmtree(target / name, ignore_errors=True)
        for item in built:
            (Path(scratch) / item.config.name).replace(target / item.config.name)
    _finish(target, built, home, licence, faults)
    return BuiltRelease(target, tuple(built))


def _find_own_manifest(built: Iterable[BuiltConfig]) -> dict[str, Any] | None:
    """The manifest and folder name of a release that ``rolellm role release`` wrote, where the rows are from one."""
    for item in built:
        if manifest := find_own_manifest(item.source.root):
            return {**manifest, "folder": item.source.root.resolve().name}
    return None


def _finish(
    folder: Path,
    built: list[BuiltConfig],
    home: str | None = None,
    licence: str | None = None,
    faults: Sequence[Fault] = (),
) -> None:
    """Write what goes next to the Parquet files: the benchmark's description, and the card, which makes it complete."""
    (folder / BENCHMARK_FILE).unlink(missing_ok=True)
    benchmark = _make_benchmark(built) if home else None
    if benchmark:
        with open_atomic(folder / BENCHMARK_FILE) as stream:
            yaml.safe_dump(benchmark, stream, allow_unicode=True, sort_keys=False)
    card = _render_card(folder, built, home, licence, faults)
    # newline: the card's bytes are the same on every system.
    (folder / "README.md").write_text(card, encoding="utf-8", newline="\n")


def _make_benchmark(built: list[BuiltConfig]) -> dict[str, Any] | None:
    """Describe RoleBench as a benchmark of the Hub (https://huggingface.co/docs/hub/eval-results).

    A task is a config and a metric, by the id that `rolellm push --scores` gives it in a model's ``.eval_results``.
    """
    if _find_own_manifest(built):
        return None
    tasks = []
    for item in built:
        name = item.config.name
        is_tested = any(split.name == "test" for split in item.splits)
        if is_tested and not item.config.embedded:
            for metric in ("cus", "raw", "spe", "avg"):
                tasks.append({"id": f"{name}_{metric}", "config": name, "split": "test"})
    if not tasks:
        return None
    words = (
        "Role-playing with 100 roles in English and Chinese: Rouge-L of speaking style, accuracy and role knowledge."
    )
    return {"name": "RoleBench", "description": words, "evaluation_framework": "inspect-ai", "tasks": tasks}


def _write_config(folder: Path, config: Config, source: Source) -> BuiltConfig:
    """Write the Parquet files of one config under ``folder/<config>/``; warn of files that are not there.

    Raises:
        DataError: At the first bad row.
    """
    _warn_missing(config, source)
    release = Release(source.root)
    written = [_write_split(folder, release, config, name) for name in list_splits(release, config)]
    splits = [split for split in written if split.rows]
    left_out = ""
    if release.left_out:
        rows = sum(release.left_out.values())
        roles = join_names(release.left_out, 10)
        left_out = f"; {rows:,} rows are left out because their roles have no reviewed names: {roles}"
    if not splits:
        raise ReleaseNotFoundError(f"no valid rows for config {config.name!r}{left_out}", path=source.root)
    if left_out:
        warnings.warn(f"rolebench {config.name!r}{left_out}", RoleLLMWarning, stacklevel=2)
    missing = source.missing(config)
    return BuiltConfig(config, source, splits, missing, tuple(release.left_out))


def _warn_missing(config: Config, source: Source) -> None:
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
    from datasets import Features

    schema = Features.from_arrow_schema(get_schema(config)).arrow_schema
    split = BuiltSplit(name)
    shards: list[Path] = []
    rows = track_progress(iter_rows(release, config, name), f"Building {config.name}/{name}", "rows")
    rows_at_once = min(1_000, ROWS_PER_FILE)
    tables_per_file = ROWS_PER_FILE // rows_at_once
    chunks = iter(lambda: list(itertools.islice(rows, rows_at_once)), [])
    tables = (pa.Table.from_pylist(chunk, schema=schema) for chunk in chunks)
    for first in tables:
        shard = folder / config.name / f"{name}-{len(shards):05d}.parquet"
        shards.append(shard)
        shard.parent.mkdir(parents=True, exist_ok=True)
        with pq.ParquetWriter(shard, schema) as writer:
            for table in itertools.chain([first], itertools.islice(tables, tables_per_file - 1)):
                writer.write_table(table)
                split.rows += table.num_rows
    for index, shard in enumerate(shards):
        final = shard.with_name(f"{name}-{index:05d}-of-{len(shards):05d}.parquet")
        shard.rename(final)
        os.utime(final, (_MODIFIED, _MODIFIED))
        split.files.append(final.relative_to(folder).as_posix())
    return split


def get_built_folder(
    config: Config,
    data_dir: str | Path | None = None,
    *,
    revision: str | None = None,
    token: str | bool | None = None,
) -> Path:
    """The script-free folder of one config in ``$HF_HOME/rolellm/rolebench``, built if this content is new there.

    Args:
        config: Which one.
        data_dir: A local copy of the release; by default as :func:`~rolellm.data.rolebench.source.locate` finds it.
        revision: Another revision of the release on the Hub.
        token: For the Hub.

    Raises:
        ReleaseNotFoundError: When there is no release, or nothing in it for this config.
        DataError: At the first bad row, unless ``skip_bad``.
    """
    from filelock import FileLock
    from huggingface_hub.constants import HF_HOME

    source = locate(config, data_dir, revision=revision, token=token)
    key = f"{config.name}-{source.fingerprint(config)[:16]}"
    folder = Path(HF_HOME) / "rolellm" / "rolebench" / key / "rolebench"
    if (folder / "README.md").is_file():
        _warn_missing(config, source)
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / "build.lock"):
        if not (folder / "README.md").is_file():
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".building-") as scratch:
                partial = Path(scratch) / folder.name
                partial.mkdir()
                _finish(partial, [_write_config(partial, config, source)])
                shutil.rmtree(folder, ignore_errors=True)
                partial.replace(folder)
    return folder


def _render_card(
    folder: Path, built: Sequence[BuiltConfig], home: str | None, licence: str | None, faults: Sequence[Fault]
) -> str:
    own = _find_own_manifest(built)
    if own:
        title = home.partition("/")[2] if home else own["folder"]
    else:
        title = "RoleBench"
        licence = licence or LICENCE
    location = home or "path/to/this/folder"
    template = resources.files("rolellm.data.rolebench").joinpath("card.md.jinja").read_text(encoding="utf-8")
    arguments = [json.dumps(text, ensure_ascii=False) for text in (location, _choose_default(built))]
    roles = list(map(_describe_role, own["roles"])) if own else ()
    is_usual = not own and licence == LICENCE
    own_licence = None if is_usual else licence
    card = make_markdown_environment().from_string(template)
    body = card.render(
        title=title,
        own=own,
        roles=roles,
        built=built,
        faults=faults,
        checksum=lambda path: hash_file(folder / path),
        repo=REPO_ID,
        example=", ".join(arguments),
        own_licence=own_licence,
    )
    return f"---\n{_render_front_matter(built, title, licence, own)}\n---\n\n{body}"


def _describe_role(role: Mapping[str, Any]) -> tuple[str, ...]:
    """Describe a role: name, language, source, models of description, questions and replies, how many of each."""
    return (
        role["role"],
        role["language"],
        _describe_source(role["made"]),
        _list_description_models(role["made"]),
        _list_models(role, "instruct"),
        _list_models(role, "respond"),
        f"{role['questions']:,}",
        f"{role['general']:,}",
    )


def _describe_source(record: Mapping[str, Any]) -> str:
    card = record.get("card")
    if not card:
        return str(record.get("source", {}).get("file", "not recorded"))
    creator = card.get("creator")
    version = card.get("character_version")
    words = f"character card by {creator}" if creator else "character card, creator not named"
    return f"{words}, version {version}" if version else words


def _list_description_models(record: Mapping[str, Any]) -> str:
    models = record.get("build", {}).get("models", {})
    if models:
        return _join_names(models.values())
    return "the card" if "card" in record else "–"


def _list_models(role: Mapping[str, Any], stage: str) -> str:
    names = []
    for run, models in role.get("models", {}).items():
        if run.startswith(stage):
            for model in models:
                name = model.get("model") or model.get("rules") or model["backend"]
                names.append(str(name))
    return _join_names(names)


def _join_names(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names)) or "–"


def _choose_default(built: Sequence[BuiltConfig]) -> str:
    """Return the library's default config, when it is there; else the first one."""
    names = [item.config.name for item in built]
    return DEFAULT_CONFIG if DEFAULT_CONFIG in names else names[0]


def _render_front_matter(
    built: Sequence[BuiltConfig], title: str, licence: str | None, own: Mapping[str, Any] | None
) -> str:
    """The card's YAML: license, languages, and ``configs:`` as ``datasets`` writes them itself."""
    from datasets.utils.metadata import MetadataConfigs
    from huggingface_hub import DatasetCardData

    tags = ["role-playing"]
    if own:
        languages = {role["language"] for role in own["roles"]}
    else:
        tags.append("benchmark")
        languages = {language for item in built for language in item.config.languages}
    is_released = not own and any(item.source.origin != "sample" for item in built)
    sources = [REPO_ID] if is_released else ["original"]
    data = DatasetCardData(
        language=sorted(languages),
        license=licence,
        task_categories=["text-generation"],
        pretty_name=title,
        tags=tags,
        source_datasets=sources,
    )
    configs: dict[str, dict[str, Any]] = {}
    for item in built:
        name = item.config.name
        files = [{"split": split.name, "path": split.files} for split in item.splits]
        configs[name] = {"data_files": files}
        if name == _choose_default(built):
            configs[name]["default"] = True
    MetadataConfigs(configs).to_dataset_card_data(data)
    return str(data.to_yaml(line_break="\n"))
