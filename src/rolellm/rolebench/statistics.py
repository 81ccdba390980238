"""Table 1 of the paper, counted from whatever part of the release is at hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rolellm.core.records import Language
from rolellm.core.text import fold
from rolellm.rolebench.release import Release
from rolellm.rolebench.schema import CONFIGS, DEFAULT_CONFIG, FOLDERS, Config, get_config
from rolellm.rolebench.source import Source, locate

_ENGLISH = "instruction-generalization-eng"
_CHINESE = "instruction-generalization-zh"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table.

    Attributes:
        name: What is counted.
        published: The paper's figure, where it gives one.
        here: The same, counted from the files at hand; ``None`` when none of its files is here.
        note: What the count leaves out, or why there is none.
    """

    name: str
    published: float | None
    here: float | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class TableOne:
    """Table 1: its lines, the folder counted, and the files that were not there."""

    root: Path
    lines: list[Line]
    missing: list[str]

    def to_dict(self) -> dict[str, Any]:
        """As one JSON object."""
        return {"root": str(self.root), "lines": [asdict(line) for line in self.lines], "missing": self.missing}


@dataclass(slots=True)
class _Count:
    """Rows of one subset of one language, and their distinct instructions."""

    rows: int | None = None
    instructions: int | None = None
    types: dict[str, int] | None = None
    absent: tuple[str, ...] = ()

    @property
    def note(self) -> str:
        return f"without {', '.join(self.absent)}" if self.absent and self.rows is not None else ""


def table_one(data_dir: str | Path | None = None) -> TableOne:
    """Count the release as Table 1 of the paper does (arXiv 2310.00746).

    General samples are the rows of train and test, role-specific samples the rows of train only: that is the reading
    under which the release's row counts add up to the published figures.

    Args:
        data_dir: A local copy of the release; else ``$ROLEBENCH_DIR``, else the Hub.

    Raises:
        ReleaseNotFoundError: When there is no release.
        ReleaseFormatError: When a file of it is not as published.
    """
    source = _locate_any(data_dir)
    release = Release(source.root)
    counts = {
        (language, subset): _count(release, config, subset)
        for language, config in (("en", CONFIGS[_ENGLISH]), ("zh", CONFIGS[_CHINESE]))
        for subset in ("general", "role_specific")
    }
    missing = sorted({path for name in (_ENGLISH, _CHINESE, "roles") for path in source.missing(CONFIGS[name])})
    return TableOne(source.root, [*_sample_lines(counts), *_profile_lines(release), *_length_lines(release)], missing)


def _locate_any(data_dir: str | Path | None) -> Source:
    """The release at hand, even one that holds no file of the default config."""
    from rolellm.core.errors import ReleaseNotFoundError

    for name in (_CHINESE, "roles"):
        try:
            return locate(CONFIGS[name], data_dir)
        except ReleaseNotFoundError:
            continue
    return locate(get_config(DEFAULT_CONFIG), data_dir)


def _count(release: Release, config: Config, subset: str) -> _Count:
    wanted = [f for f in config.files if f.subset == subset and (subset == "general" or f.split == "train")]
    present = [file for file in wanted if (release.root / file.path).is_file()]
    count = _Count(absent=tuple(file.path for file in wanted if file not in present))
    if subset == "general":
        # The list of instructions, where it is there, knows also those whose rows are missing.
        count.instructions = len(release.targets(config.languages[0])) or None
    if not present:
        return count
    instructions: set[str] = set()
    count.rows, count.types = 0, {"script_agnostic": 0, "script_based": 0}
    for file in present:
        for _, row in release.rows(file.path):
            count.rows += 1
            instructions.add(fold(row["question"]))
            for kind in row["type"][:1]:
                count.types[kind] = count.types.get(kind, 0) + 1
    count.instructions = count.instructions or len(instructions)
    return count


def _total(counts: list[_Count], name: str) -> int | None:
    values = [getattr(count, name) for count in counts if getattr(count, name) is not None]
    return sum(values) if values else None


def _sample_lines(counts: dict[tuple[str, str], _Count]) -> Iterator[Line]:
    general = [counts[language, "general"] for language in ("en", "zh")]
    specific = [counts[language, "role_specific"] for language in ("en", "zh")]

    def pair(name: str, parts: list[_Count], samples: int, instructions: int) -> Iterator[Line]:
        note = "; ".join(part.note for part in parts if part.note) or (
            "" if all(part.rows is not None for part in parts) else "no data files here for a part of this"
        )
        yield Line(f"{name}: samples", samples, _total(parts, "rows"), note)
        yield Line(f"{name}: instructions", instructions, _total(parts, "instructions"), note)

    yield from pair("all", general + specific, 168_093, 23_463)
    yield from pair("general", general, 147_609, 2_979)
    yield from pair("general, English", general[:1], 140_225, 1_500)
    yield from pair("general, Chinese", general[1:], 7_384, 1_479)
    for kind, samples in (("open", 22_479), ("commonsense", 37_072), ("knowledge-intensive", 88_058)):
        yield Line(f"general, {kind}: samples", samples, None, "the release does not label this")
    yield from pair("role-specific", specific, 20_484, 20_484)
    yield from pair("role-specific, English", specific[:1], 18_949, 18_949)
    yield from pair("role-specific, Chinese", specific[1:], 1_535, 1_535)
    for kind, samples in (("script_agnostic", 13_220), ("script_based", 7_164)):
        found = [part.types[kind] for part in specific if part.types is not None]
        note = "the two published figures add up to 100 less than all role-specific samples"
        yield Line(f"role-specific, {kind}: samples", samples, sum(found) if found else None, note)


def _profile_lines(release: Release) -> Iterator[Line]:
    languages: tuple[Language, ...] = ("en", "zh")
    for language, published in zip(languages, (95, 5), strict=True):
        folder = f"rolebench-{FOLDERS[language]}"
        described = set(release.descriptions(language))
        answering = {
            row["role"]
            for file in CONFIGS[_ENGLISH if language == "en" else _CHINESE].files
            if (release.root / file.path).is_file()
            for _, row in release.rows(file.path)
        }
        roles = described | answering
        yield Line(f"roles, {language}", published, len(roles) or None, f"in {folder} or described")
    turns = [
        sum(1 for _ in release.objects(path))
        for language in languages
        for path in release.find([f"profiles-{FOLDERS[language]}/profiles-{FOLDERS[language]}-*.jsonl"])
    ]
    yield Line("dialogue rounds", 140_726, sum(turns) if turns else None, "" if turns else "no dialogue files here")


def _length_lines(release: Release) -> Iterator[Line]:
    """Mean lengths over the English rows at hand: the paper does not say how it counts Chinese words."""
    words = {"instruction": [0, 0], "response": [0, 0]}
    for file in CONFIGS[_ENGLISH].files:
        if not (release.root / file.path).is_file():
            continue
        for _, row in release.rows(file.path):
            words["instruction"][0] += len(row["question"].split())
            words["instruction"][1] += 1
            words["response"][0] += sum(len(reply.split()) for reply in row["generated"])
            words["response"][1] += len(row["generated"])
    for name, published in (("instruction", 25.71), ("response", 30.48)):
        total, count = words[name]
        yield Line(f"mean words, {name}", published, total / count if count else None, "English rows at hand")
