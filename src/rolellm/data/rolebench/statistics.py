"""Table 1 of the paper, counted from whatever part of the release is at hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolellm.core.errors import ReleaseNotFoundError
from rolellm.core.records import Language, Subset
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


#: A line: its ``name``, the ``published`` figure, the one counted ``here`` (``None`` where no file of it is at hand),
#: and in a ``note`` what the count leaves out, or why there is none.
Line = dict[str, Any]


def count_table_one(data_dir: str | Path | None = None, *, skip_bad: bool = False) -> dict[str, Any]:
    """Count the release as Table 1 of the paper does (arXiv 2310.00746).

    General samples are the rows of train and test, role-specific samples the rows of train only: that is the reading
    under which the release's row counts add up to the published figures.

    Args:
        data_dir: A local copy of the release; else ``$ROLEBENCH_DIR``, else the Hub.
        skip_bad: Leave rows out that are not as published, rather than stop at the first.

    Returns:
        The folder counted (``root``), the ``lines``, and the files that were not there (``missing``).

    Raises:
        ReleaseNotFoundError: When there is no release.
        DataError: When a file of it is not as published, unless ``skip_bad``.
    """
    source = _locate_any(data_dir)
    release = Release(source.root, skip_bad)
    rows = _read_rows(release)
    lines = [*_count_samples(release, rows), *_count_profiles(release, rows), *_measure_lengths(rows)]
    missing = sorted({path for config in (*_CONFIGS.values(), CONFIGS["roles"]) for path in source.missing(config)})
    return {"root": str(source.root), "lines": lines, "missing": missing}


def _make_line(name: str, published: float, here: float | None, note: str) -> Line:
    return {"name": name, "published": published, "here": here, "note": note}


def _locate_any(data_dir: str | Path | None) -> Source:
    """The release at hand, even one that holds no file of the default config."""
    for config in (_CONFIGS["zh"], CONFIGS["roles"]):
        with suppress(ReleaseNotFoundError):
            return locate(config, data_dir)
    return locate(CONFIGS[DEFAULT_CONFIG], data_dir)


def _read_rows(release: Release) -> DataFrame:
    """The rows at hand, one line each."""
    from pandas import DataFrame

    records = [
        (file.language, file.subset, file.split, row["role"], fold(row["question"]), *_measure_row(row))
        for config in _CONFIGS.values()
        for file in config.files
        if (release.root / file.path).is_file()
        for _, row in release.read_rows(file.path)
    ]
    names = ["language", "subset", "split", "role", "instruction", "type", "asked", "said", "replies"]
    return DataFrame(records, columns=names)


def _measure_row(row: dict[str, Any]) -> tuple[str | None, int, int, int]:
    reply_words = [len(reply.split()) for reply in row["generated"]]
    return next(iter(row["type"]), None), len(row["question"].split()), sum(reply_words), len(reply_words)


def _count_samples(release: Release, rows: DataFrame) -> Iterator[Line]:
    counted = rows[(rows.subset == "general") | (rows.split == "train")]
    # The list of instructions, where it is there, knows also those whose rows are missing.
    listed = {language: len(release.read_targets(language)) for language in _LANGUAGES}
    for name, subsets, languages, samples, instructions in _SAMPLES:
        notes, row_count, instruction_count = [], 0, 0
        for subset in subsets:
            for language in languages:
                part = counted[(counted.subset == subset) & (counted.language == language)]
                row_count += len(part)
                instruction_count += (listed[language] if subset == "general" else 0) or part.instruction.nunique()
                notes.append(_describe_missing(release, language, subset, len(part)))
        nothing = "no data files here for a part of this"
        note = "; ".join(part_note for part_note in notes if part_note not in ("", nothing)) or (
            nothing if nothing in notes else ""
        )
        yield _make_line(f"{name}: samples", samples, row_count or None, note)
        yield _make_line(f"{name}: instructions", instructions, instruction_count or None, note)
        if name == "general, Chinese":
            for kind, published in (("open", 22_479), ("commonsense", 37_072), ("knowledge-intensive", 88_058)):
                yield _make_line(f"general, {kind}: samples", published, None, "the release does not label this")
    specific = counted[counted.subset == "role_specific"]
    for kind, published in (("script_agnostic", 13_220), ("script_based", 7_164)):
        note = "the two published figures add up to 100 less than all role-specific samples"
        count = int((specific.type == kind).sum()) if len(specific) else None
        yield _make_line(f"role-specific, {kind}: samples", published, count, note)


def _describe_missing(release: Release, language: Language, subset: Subset, rows: int) -> str:
    """Describe what a count of one subset of one language leaves out."""
    files = (file for file in _CONFIGS[language].files if file.subset == subset)
    paths = [file.path for file in files if subset == "general" or file.split == "train"]
    absent = [path for path in paths if not (release.root / path).is_file()]
    if not rows:
        return "no data files here for a part of this"
    return f"without {', '.join(absent)}" if absent else ""


def _count_profiles(release: Release, rows: DataFrame) -> Iterator[Line]:
    for language, published in zip(_LANGUAGES, (95, 5), strict=True):
        roles = {*release.read_descriptions(language), *rows[rows.language == language].role}
        yield _make_line(
            f"roles, {language}", published, len(roles) or None, f"in rolebench-{FOLDERS[language]} or described"
        )
    turns = [
        sum(1 for _ in release.read_objects(path))
        for folder in (f"profiles-{FOLDERS[language]}" for language in _LANGUAGES)
        for path in release.find(f"{folder}/{folder}-*.jsonl")
    ]
    yield _make_line(
        "dialogue rounds", 140_726, sum(turns) if turns else None, "" if turns else "no dialogue files here"
    )


def _measure_lengths(rows: DataFrame) -> Iterator[Line]:
    """Mean lengths over the English rows of `_CONFIGS` at hand: the paper does not say how it counts Chinese words."""
    english = rows[rows.language == "en"]
    means = (english.asked.mean(), english.said.sum() / english.replies.sum()) if len(english) else (None, None)
    note = f"{len(english):,} English rows of instruction generalization"
    for name, published, mean in zip(("instruction", "response"), (25.71, 30.48), means, strict=True):
        yield _make_line(f"mean words, {name}", published, None if mean is None else float(mean), note)
