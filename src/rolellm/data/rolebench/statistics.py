"""Table 1 of the paper, counted from whatever part of the release is at hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rolellm.core.errors import ReleaseNotFoundError
from rolellm.core.records import Language, Subset
from rolellm.core.result import Result
from rolellm.core.table import Table
from rolellm.core.text import fold
from rolellm.data.rolebench.release import Release
from rolellm.data.rolebench.schema import CONFIGS, DEFAULT_CONFIG, FOLDERS, Config
from rolellm.data.rolebench.source import Source, locate

if TYPE_CHECKING:
    from pandas import DataFrame

_LANGUAGES: tuple[Language, ...] = ("en", "zh")
_SUBSETS: tuple[Subset, ...] = ("general", "role_specific")
_CONFIGS: dict[Language, Config] = {
    "en": CONFIGS["instruction-generalization-eng"],
    "zh": CONFIGS["instruction-generalization-zh"],
}
#: What is counted: its name, subsets and languages, and the published samples and instructions.
_SAMPLES: tuple[tuple[str, tuple[Subset, ...], tuple[Language, ...], int, int], ...] = (
    ("all", _SUBSETS, _LANGUAGES, 168_093, 23_463),
    ("general", ("general",), _LANGUAGES, 147_609, 2_979),
    ("general, English", ("general",), ("en",), 140_225, 1_500),
    ("general, Chinese", ("general",), ("zh",), 7_384, 1_479),
    ("role-specific", ("role_specific",), _LANGUAGES, 20_484, 20_484),
    ("role-specific, English", ("role_specific",), ("en",), 18_949, 18_949),
    ("role-specific, Chinese", ("role_specific",), ("zh",), 1_535, 1_535),
)
_NO_FILES = "no data files here for a part of this"


@dataclass(frozen=True, slots=True)
class TableLine:
    """A line of Table 1.

    Attributes:
        name: What is counted.
        published: The paper's figure.
        here: The one counted here; ``None`` where no file of it is at hand.
        note: What the count leaves out, or why there is none.
    """

    name: str
    published: int | float
    here: int | float | None
    note: str = ""


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
        rows = [(line.name, line.published, line.here, line.note) for line in self.lines]
        return (Table.from_rows("Table 1", ("", "published", "here", "note"), rows),)

    def remarks(self) -> list[str]:
        """Name the files that are missing."""
        return [f"missing: {path}" for path in self.missing]


def count_table_one(data_dir: str | Path | None = None, *, skip_bad: bool = False) -> TableOne:
    """Count the release as Table 1 of the paper does (arXiv 2310.00746).

    General samples are the rows of train and test, role-specific samples the rows of train only: that is the reading
    under which the release's row counts add up to the published figures.

    Args:
        data_dir: A local copy of the release; else ``$ROLEBENCH_DIR``, else the Hub.
        skip_bad: Leave rows out that are not as published, rather than stop at the first.

    Raises:
        ReleaseNotFoundError: When there is no release.
        DataError: When a file of it is not as published, unless ``skip_bad``.
    """
    source = _locate_any(data_dir)
    release = Release(source.root, skip_bad)
    rows = _read_rows(release)
    lines = (*_count_samples(release, rows), *_count_profiles(release, rows), *_measure_lengths(rows))
    configs = (*_CONFIGS.values(), CONFIGS["roles"])
    missing = {path for config in configs for path in source.missing(config)}
    return TableOne(str(source.root), lines, tuple(sorted(missing)))


def _locate_any(data_dir: str | Path | None) -> Source:
    """Find the release at hand, even one that holds no file of the default config."""
    for config in (_CONFIGS["zh"], CONFIGS["roles"]):
        with suppress(ReleaseNotFoundError):
            return locate(config, data_dir)
    return locate(CONFIGS[DEFAULT_CONFIG], data_dir)


def _read_rows(release: Release) -> DataFrame:
    """Read the rows at hand, one line each."""
    from pandas import DataFrame

    records = []
    files = [file for config in _CONFIGS.values() for file in config.files if (release.root / file.path).is_file()]
    for file in files:
        for _, row in release.read_rows(file.path):
            reply_words = [len(reply.split()) for reply in row["generated"]]
            records.append(
                {
                    "language": file.language,
                    "subset": file.subset,
                    "split": file.split,
                    "role": row["role"],
                    "instruction": fold(row["question"]),
                    "type": next(iter(row["type"]), None),
                    "question_words": len(row["question"].split()),
                    "reply_words": sum(reply_words),
                    "replies": len(reply_words),
                }
            )
    columns = ["language", "subset", "split", "role", "instruction", "type", "question_words", "reply_words", "replies"]
    return DataFrame(records, columns=columns)


def _count_samples(release: Release, rows: DataFrame) -> Iterator[TableLine]:
    counted = rows[(rows.subset == "general") | (rows.split == "train")]
    # The list of instructions, where it is there, knows also those whose rows are missing.
    listed = {language: len(release.read_targets(language)) for language in _LANGUAGES}
    for name, subsets, languages, samples, instructions in _SAMPLES:
        notes, row_count, instruction_count = [], 0, 0
        for subset in subsets:
            for language in languages:
                part = counted[(counted.subset == subset) & (counted.language == language)]
                row_count += len(part)
                listed_count = listed[language] if subset == "general" else 0
                instruction_count += listed_count or part.instruction.nunique()
                notes.append(_describe_missing(release, language, subset) if len(part) else _NO_FILES)
        # What is there in part says more than that another part is not there.
        partial_notes = [note for note in notes if note not in ("", _NO_FILES)]
        if not partial_notes and _NO_FILES in notes:
            partial_notes = [_NO_FILES]
        note = "; ".join(partial_notes)
        yield TableLine(f"{name}: samples", samples, row_count or None, note)
        yield TableLine(f"{name}: instructions", instructions, instruction_count or None, note)
        if name == "general, Chinese":
            for kind, published in (("open", 22_479), ("commonsense", 37_072), ("knowledge-intensive", 88_058)):
                yield TableLine(f"general, {kind}: samples", published, None, "the release does not label this")
    specific = counted[counted.subset == "role_specific"]
    for kind, published in (("script_agnostic", 13_220), ("script_based", 7_164)):
        note = "the two published figures add up to 100 less than all role-specific samples"
        count = int((specific.type == kind).sum()) if len(specific) else None
        yield TableLine(f"role-specific, {kind}: samples", published, count, note)


def _describe_missing(release: Release, language: Language, subset: Subset) -> str:
    """Name the files without which one subset of one language was counted."""
    absent = []
    for file in _CONFIGS[language].files:
        is_counted = file.subset == subset and (subset == "general" or file.split == "train")
        if is_counted and not (release.root / file.path).is_file():
            absent.append(file.path)
    return f"without {', '.join(absent)}" if absent else ""


def _count_profiles(release: Release, rows: DataFrame) -> Iterator[TableLine]:
    turns = 0
    for language, published in zip(_LANGUAGES, (95, 5), strict=True):
        folder = FOLDERS[language]
        roles = {*release.read_descriptions(language), *rows[rows.language == language].role}
        yield TableLine(f"roles, {language}", published, len(roles) or None, f"in rolebench-{folder} or described")
        for path in release.find(f"profiles-{folder}/profiles-{folder}-*.jsonl"):
            turns += sum(1 for _ in release.read_objects(path))
    yield TableLine("dialogue rounds", 140_726, turns or None, "" if turns else "no dialogue files here")


def _measure_lengths(rows: DataFrame) -> Iterator[TableLine]:
    """Measure mean lengths over the English rows: the paper does not say how it counts Chinese words."""
    english = rows[rows.language == "en"]
    note = f"{len(english):,} English rows of instruction generalization"
    question_mean = float(english.question_words.mean()) if len(english) else None
    reply_mean = float(english.reply_words.sum() / english.replies.sum()) if len(english) else None
    yield TableLine("mean words, instruction", 25.71, question_mean, note)
    yield TableLine("mean words, response", 30.48, reply_mean, note)
