"""Table 1 of the paper, counted from whatever part of the release is at hand."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rolellm.core.errors import ReleaseNotFoundError
from rolellm.core.records import Language, Subset
from rolellm.core.result import Result
from rolellm.core.table import Table
from rolellm.core.text import fold
from rolellm.data.rolebench.release import Release
from rolellm.data.rolebench.schema import CONFIGS, DEFAULT_CONFIG, FOLDERS, Config, SourceFile
from rolellm.data.rolebench.source import Source, locate

_CONFIGS: dict[Language, Config] = {
    "en": CONFIGS["instruction-generalization-eng"],
    "zh": CONFIGS["instruction-generalization-zh"],
}
#: The published samples and instructions of each subset and language.
_SAMPLES: dict[tuple[Subset, Language], tuple[int, int]] = {
    ("general", "en"): (140_225, 1_500),
    ("general", "zh"): (7_384, 1_479),
    ("role_specific", "en"): (18_949, 18_949),
    ("role_specific", "zh"): (1_535, 1_535),
}
#: The published role-specific samples by type; they add up to 100 less than all.
_TYPES = {"script_agnostic": 13_220, "script_based": 7_164}
_ROLES: dict[Language, int] = {"en": 95, "zh": 5}
_LENGTHS = {"instruction": 25.71, "response": 30.48}


@dataclass(frozen=True, slots=True)
class TableLine:
    """A line of Table 1.

    Attributes:
        name: What is counted.
        published: The paper's figure.
        here: The one counted here; ``None`` where no file of it is at hand.
    """

    name: str
    published: int | float
    here: int | float | None


@dataclass(frozen=True, slots=True, repr=False)
class TableOne(Result):
    """Table 1 of the paper, and how it comes out here.

    Attributes:
        root: The folder counted.
        lines: The table.
        missing: Files that were not there.
    """

    root: str
    lines: tuple[TableLine, ...]
    missing: tuple[str, ...]

    def tables(self) -> tuple[Table]:
        """Build the table."""
        rows = [(line.name, line.published, line.here) for line in self.lines]
        return (Table.from_rows("Table 1", ("", "published", "here"), rows),)

    def remarks(self) -> list[str]:
        """Name the files that are missing."""
        return [f"missing: {path}" for path in self.missing]


def count_table_one(data_dir: str | Path | None = None) -> TableOne:
    """Count the release as Table 1 of the paper does (arXiv 2310.00746).

    General samples are the rows of train and test, role-specific samples the rows of train only: that is the reading
    under which the release's row counts add up to the published figures.

    Args:
        data_dir: A local copy of the release, of which rows that are not as published are left out; else
            ``$ROLEBENCH_DIR``, else the Hub.

    Raises:
        ReleaseNotFoundError: When there is no release.
    """
    source = locate_any(data_dir)
    release = Release(source.root, skipped=[])
    rows: dict[SourceFile, list[dict[str, Any]]] = {}
    for config in _CONFIGS.values():
        for file in config.files:
            if (release.root / file.path).is_file():
                rows[file] = [row for _, row in release.read_rows(file.path)]
    lines = _count_samples(release, rows)
    lines += _count_roles(release, rows)
    lines += _measure_lengths(rows)
    configs = (*_CONFIGS.values(), CONFIGS["roles"])
    missing = {path for config in configs for path in source.missing(config)}
    return TableOne(str(source.root), tuple(lines), tuple(sorted(missing)))


def locate_any(data_dir: str | Path | None) -> Source:
    """Find the release at hand, even one that holds no file of the default config."""
    for config in (_CONFIGS["zh"], CONFIGS["roles"]):
        with suppress(ReleaseNotFoundError):
            return locate(config, data_dir)
    return locate(CONFIGS[DEFAULT_CONFIG], data_dir)


def _count_samples(release: Release, rows: dict[SourceFile, list[dict[str, Any]]]) -> list[TableLine]:
    lines: list[TableLine] = []
    types: Counter[str] = Counter()
    for (subset, language), (samples, instructions) in _SAMPLES.items():
        files = [file for file in _CONFIGS[language].files if file.subset == subset]
        if subset == "role_specific":
            files = [file for file in files if file.split == "train"]
        counted = [row for file in files for row in rows.get(file, [])]
        distinct = {fold(row["question"]) for row in counted}
        instruction_count = len(distinct)
        if subset == "general":
            # The list of instructions, where it is there, knows also those whose rows are missing.
            instruction_count = len(release.read_targets(language)) or instruction_count
        else:
            types.update(next(iter(row["type"]), "") for row in counted)
        name = f"{subset}, {language}"
        lines.append(TableLine(f"{name}: samples", samples, len(counted) or None))
        lines.append(TableLine(f"{name}: instructions", instructions, instruction_count or None))
    for kind, published in _TYPES.items():
        lines.append(TableLine(f"{kind}: samples", published, types[kind] or None))
    return lines


def _count_roles(release: Release, rows: dict[SourceFile, list[dict[str, Any]]]) -> list[TableLine]:
    lines: list[TableLine] = []
    turns = 0
    for language, published in _ROLES.items():
        folder = FOLDERS[language]
        roles = set(release.read_descriptions(language))
        for file, file_rows in rows.items():
            if file.language == language:
                roles.update(row["role"] for row in file_rows)
        lines.append(TableLine(f"roles, {language}", published, len(roles) or None))
        for path in release.find(f"profiles-{folder}/profiles-{folder}-*.jsonl"):
            turns += sum(1 for _ in release.read_objects(path))
    return [*lines, TableLine("dialogue rounds", 140_726, turns or None)]


def _measure_lengths(rows: dict[SourceFile, list[dict[str, Any]]]) -> list[TableLine]:
    """Measure mean lengths over the English rows: the paper does not say how it counts Chinese words."""
    lengths: dict[str, list[int]] = {"instruction": [], "response": []}
    for file, file_rows in rows.items():
        if file.language != "en":
            continue
        for row in file_rows:
            lengths["instruction"].append(len(row["question"].split()))
            lengths["response"] += [len(reply.split()) for reply in row["generated"]]
    lines = []
    for name, counts in lengths.items():
        mean = fmean(counts) if counts else None
        lines.append(TableLine(f"mean words, {name}", _LENGTHS[name], mean))
    return lines
