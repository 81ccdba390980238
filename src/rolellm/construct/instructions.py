"""Draws general instructions from instruction data sets, as the paper did from Super-NaturalInstructions, COIG, BELLE.

The paper (arXiv 2310.00746) caps English ones at 100 words and Chinese ones at 100 characters, and removes
near-duplicates by BM25 similarity; its threshold is open. Ours: `rolellm.construct.duplicates`.

The draw goes by content: a row's turn comes by a hash of the seed, its instruction and its answer, so the same rows in
another order give the same draw.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from rolellm.construct.duplicates import repeats
from rolellm.construct.scripts.parse import detect_language
from rolellm.construct.settings import SampleSettings
from rolellm.core.errors import DataError, SettingsError
from rolellm.core.files import write_json
from rolellm.core.fingerprint import hash_file, hash_json
from rolellm.core.jsonl import read_jsonl, write_jsonl
from rolellm.core.settings import dump
from rolellm.core.text import HAN, half_in
from rolellm.version import __version__

_SUFFIXES: Final = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
_NAME: Final = re.compile(r"\w[\w.-]*/\w[\w.-]*(?::.+)?")
_INSTRUCTIONS: Final = ("instruction", "question", "prompt", "query", "definition", "problem", "input")
_INPUTS: Final = ("input", "inputs", "context")
_TARGETS: Final = ("target", "targets", "output", "outputs", "response", "answer", "answers", "completion", "solution")
_TALKS: Final = ("messages", "conversations", "conversation", "items")
_SIDES: Final = {"user": 0, "human": 0, "prompter": 0, "assistant": 1, "gpt": 1, "chatgpt": 1, "bot": 1}
# BELLE puts talk of several turns into one text; what follows it is the answer to the last.
_TURNS: Final = re.compile(r"^(?:Human|Assistant)[:：]", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns hold the instruction and its answer.

    Attributes:
        instruction: The instruction's column; of conversations, their column.
        target: The answer's column; ``None`` with conversations.
        input: A column of what the instruction is about, which is put below it; blank in many rows.
    """

    instruction: str
    target: str | None
    input: str | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """A data set as it was read.

    Attributes:
        name: As it was asked for; of a file or folder its own name only.
        split: Of which split, where it has splits.
        columns: Where instruction and answer were found.
        fingerprint: Of its content.
        rows: Instruction and answer of each row, in its order; an empty text where there is none.
    """

    name: str
    split: str | None
    columns: Columns
    fingerprint: str
    rows: Sequence[tuple[str, str]]


def read_source(
    dataset: str, *, split: str | None = None, instruction_column: str | None = None, target_column: str | None = None
) -> Source:
    """Read a data set of instructions.

    Args:
        dataset: A file (JSON, JSON Lines, CSV, Parquet), a folder of such files or one of ``save_to_disk``, or the name
            of a data set on the Hub, ``OWNER/NAME`` or ``OWNER/NAME:CONFIG``.
        split: By default ``train``; a single file has none.
        instruction_column: Detected by its usual names by default.
        target_column: Detected by its usual names by default.

    Raises:
        SettingsError: For a column that is not there, or none that is known by name; names the columns.
        DataError: When it cannot be read, or has no rows.
    """
    path = Path(dataset)
    if path.is_file():
        if split is not None:
            raise SettingsError(f"{dataset} is one file and has no splits; leave --split out")
        rows = _file_rows(path)
        # Objects of JSON Lines need not all have the same keys.
        names = list(dict.fromkeys(str(name) for row in rows[:1000] for name in row))
        columns = _columns(names, instruction_column, target_column, dataset)
        return Source(path.name, None, columns, hash_file(path), [_pair(row, columns) for row in rows])
    if not path.is_dir() and (_NAME.fullmatch(dataset) is None or path.suffix.lower() in _SUFFIXES):
        raise DataError("no such file or folder, and no name of a data set on the Hub (OWNER/NAME)", path=dataset)
    wanted = split or "train"
    with _loaded(dataset, wanted) as data:
        columns = _columns(data.column_names, instruction_column, target_column, dataset)
        used = [name for name in asdict(columns).values() if name is not None]
        texts = [_pair(row, columns) for row in data.select_columns(used)]
    name = path.resolve().name if path.is_dir() else dataset
    return Source(name, wanted, columns, hash_json(texts), texts)


def _file_rows(path: Path) -> list[Mapping[str, Any]]:
    suffix = path.suffix.lower()
    rows: list[Mapping[str, Any]]
    if suffix in (".jsonl", ".ndjson"):
        rows = [row for _, row in read_jsonl(path)]
    elif suffix == ".json":
        rows = _json_rows(path)
    elif suffix in (".csv", ".tsv"):
        rows = _csv_rows(path)
    elif suffix == ".parquet":
        with _loaded(str(path), "train") as data:
            rows = list(data)
    else:
        raise DataError(f"cannot tell what kind of file this is; known are {', '.join(_SUFFIXES)}", path=path)
    if not rows:
        raise DataError("no rows in it", path=path)
    return [_flat(row) for row in rows]


def _flat(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row of Self-Instruct with the input and output of its first instance; any other as it is."""
    held = row.get("instances")
    first = held[0] if isinstance(held, list) and held else None
    return {**row, **first} if isinstance(first, Mapping) else row


def _json_rows(path: Path) -> list[Mapping[str, Any]]:
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        if getattr(error, "msg", None) == "Extra data":
            # JSON Lines go by this name, too.
            return [row for _, row in read_jsonl(path)]
        raise DataError(f"not valid JSON in UTF-8 ({error})", path=path) from error
    if isinstance(value, Mapping):
        lists = [item for item in value.values() if isinstance(item, list)]
        value = lists[0] if len(lists) == 1 else [value]
    if not isinstance(value, list) or not all(isinstance(row, Mapping) for row in value):
        raise DataError("expected a list of objects, or an object that holds one", path=path)
    return value


def _csv_rows(path: Path) -> list[Mapping[str, Any]]:
    """Texts as they are: "N/A" is an answer, and 007 is not 7."""
    separator = "\t" if path.suffix.lower() == ".tsv" else ","
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            return list(csv.DictReader(stream, delimiter=separator))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"not valid CSV in UTF-8 ({error})", path=path) from error


@contextmanager
def _loaded(dataset: str, split: str) -> Iterator[Any]:
    """The split as `datasets` loads it; what it makes on the way of files on this machine is left nowhere."""
    import datasets

    path = Path(dataset)
    with tempfile.TemporaryDirectory(prefix="rolellm-") as cache:
        try:
            if path.is_file():
                data = datasets.load_dataset("parquet", data_files=dataset, split=split, cache_dir=cache)
            elif (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
                held = datasets.load_from_disk(dataset)
                data = held if isinstance(held, datasets.Dataset) else held[split]
            elif path.is_dir():
                # datasets cannot name what "." is.
                data = datasets.load_dataset(str(path.resolve()), split=split, cache_dir=cache)
            else:
                name, _, config = dataset.partition(":")
                data = datasets.load_dataset(name, config or None, split=split)
        except Exception as error:
            # What datasets, pyarrow, pandas and the Hub's client raise has no one base.
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
            expected = "a file, a folder or a data set on the Hub (OWNER/NAME)"
            raise DataError(f"cannot read split {split!r} of {dataset} ({reason}); expected {expected}") from error
        yield data


def _columns(names: Sequence[str], instruction: str | None, target: str | None, dataset: str) -> Columns:
    by_name = {name.casefold(): name for name in reversed(names)}
    for wanted in (instruction, target):
        if wanted is not None and wanted not in names:
            raise SettingsError(f"{dataset} has no column {wanted!r}; it has {', '.join(names)}")
    talk = _first(by_name, _TALKS) if instruction is None else instruction
    if talk is not None and target is None and talk.casefold() in _TALKS:
        return Columns(talk, None)
    found = instruction or _first(by_name, _INSTRUCTIONS)
    answer = target or _first(by_name, _TARGETS)
    if found is None or answer is None:
        lacking = "instruction" if found is None else "target"
        raise SettingsError(
            f"cannot tell which column of {dataset} holds the {lacking}; it has {', '.join(names)}; name it with "
            f"--{lacking}-column"
        )
    # A column that the user named says all that is wanted.
    inputs = [name for name in _INPUTS if by_name.get(name) != found]
    about = _first(by_name, inputs) if instruction is None else None
    return Columns(found, answer, about)


def _first(by_name: Mapping[str, str], wanted: Sequence[str]) -> str | None:
    return next((by_name[name] for name in wanted if name in by_name), None)


def _pair(row: Mapping[str, Any], columns: Columns) -> tuple[str, str]:
    if columns.target is None:
        return _talk(row.get(columns.instruction))
    asked, answer = _text(row.get(columns.instruction)), _text(row.get(columns.target))
    if asked.startswith(("Human:", "Human：")):
        asked, *later = (turn.strip() for turn in _TURNS.split(asked)[1:])
        answer = next(filter(None, later), answer)
    about = "" if columns.input is None else _text(row.get(columns.input))
    return "\n".join(filter(None, (asked, about))) if asked else "", answer


def _text(value: Any) -> str:
    if isinstance(value, list) and value:
        # Several answers; the first is as good as any.
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    return str(value).strip()


def _talk(value: Any) -> tuple[str, str]:
    """The first question of a conversation with the answer to it; one that opens otherwise has neither."""
    items = value if isinstance(value, list) else []
    if not all(isinstance(item, Mapping) for item in items):
        return "", ""
    sides = [_SIDES.get(str(item.get("role", item.get("from", ""))).casefold()) for item in items]
    # Whatever comes before the first turn of either side is a system message.
    first = next((place for place, side in enumerate(sides) if side is not None), 0)
    if sides[first : first + 2] != [0, 1]:
        return "", ""
    asked, answer = (_text(item.get("content", item.get("value"))) for item in items[first : first + 2])
    return asked, answer


_LETTER: Final = re.compile(r"[^\W\d_]")


@dataclass(frozen=True, slots=True)
class Drawn:
    """An instruction that was drawn: its text, its role-free answer, its data set and its row there, from 0."""

    instruction: str
    target: str
    dataset: int
    row: int


@dataclass(frozen=True, slots=True)
class Sample:
    """What was drawn.

    Attributes:
        settings: How.
        sources: From what.
        counts: How many were asked of each source.
        drawn: By source, then in the order of the draw.
        dropped: Of each source, how many rows were left out and why.
    """

    settings: SampleSettings
    sources: Sequence[Source]
    counts: Sequence[int]
    drawn: tuple[Drawn, ...]
    dropped: Sequence[Mapping[str, int]]

    def summary(self) -> dict[str, Any]:
        """For the manifest, and for ``--json``: what was read, left out and drawn, of each source."""
        had = Counter(item.dataset for item in self.drawn)
        sources = [
            {
                "name": source.name,
                "split": source.split,
                "columns": asdict(source.columns),
                "fingerprint": source.fingerprint,
                "rows": len(source.rows),
                "dropped": dict(self.dropped[number]),
                "asked": self.counts[number],
                "drawn": had[number],
            }
            for number, source in enumerate(self.sources)
        ]
        return {
            "drawn": len(self.drawn),
            "asked": sum(self.counts),
            "sources": sources,
            "settings": dump(self.settings),
        }

    def write(self, path: str | Path) -> Path:
        """Write the instructions, and next to them ``NAME.meta.json``, each complete or not at all.

        Returns:
            The path of the second file.
        """
        target = Path(path)
        write_jsonl(target, map(self._line, self.drawn))
        meta = target.with_name(f"{target.name}.meta.json")
        write_json(meta, {"rolellm": __version__, "sha256": hash_file(target), **self.summary()})
        return meta

    def _line(self, item: Drawn) -> dict[str, Any]:
        source = self.sources[item.dataset]
        place = {"dataset": source.name, "split": source.split, "row": item.row}
        return {"instruction": item.instruction, "target": item.target, "source": place}


def sample_instructions(sources: Sequence[Source], counts: Sequence[int], settings: SampleSettings) -> Sample:
    """Draw instructions.

    Args:
        sources: Data sets, as `rolellm.construct.instructions.read_source` reads them.
        counts: How many from each; fewer come where there are no more. What is drawn from one is no near-duplicate of
            what was drawn from those before it.
        settings: How.

    Raises:
        SettingsError: When the counts do not fit the sources.
        DataError: When a source has no usable row; says why.
        MissingExtraError: With ``bm25``, where ``bm25s`` is not installed.
    """
    if len(counts) != len(sources) or min(counts, default=0) < 1:
        raise SettingsError(f"{len(sources)} data sets and the counts {list(counts)}; give each a count of 1 or more")
    if settings.language is None:
        # The language of most instructions; English where they are even.
        zh = [detect_language(asked) == "zh" for source in sources for asked, _ in source.rows if asked]
        settings = replace(settings, language="zh" if 2 * sum(zh) > len(zh) else "en")
    drawn: list[Drawn] = []
    dropped: list[Counter[str]] = []
    for number, (source, count) in enumerate(zip(sources, counts, strict=True)):
        fit, lost = _fit(source, settings)
        if not fit:
            raise DataError(f"{source.name}: none of its {len(source.rows)} rows is usable ({_told(lost)})")
        ordered = sorted(fit, key=lambda row: _turn(source.rows[row], settings.seed))
        taken, repeated = _draw([item.instruction for item in drawn], source, ordered, count, settings)
        drawn += [Drawn(*source.rows[row], number, row) for row in taken]
        dropped.append(lost + Counter({"near_duplicate": repeated} if repeated else {}))
    return Sample(settings, sources, counts, tuple(drawn), tuple(dropped))


def _draw(
    before: Sequence[str], source: Source, ordered: Sequence[int], count: int, settings: SampleSettings
) -> tuple[list[int], int]:
    """The rows to take in the order of their turns, and how many of those looked at repeat another."""
    size = count
    while True:
        # More than is wanted, as some will be near-duplicates; of the rest nothing need be compared.
        size = min(int(size * 1.25) + 100, len(ordered))
        texts = [*before, *(source.rows[row][0] for row in ordered[:size])]
        repeated = repeats(texts, settings.language or "en", settings.duplicates, settings.similarity)
        kept = [place for place in range(len(before), len(texts)) if place not in repeated]
        if len(kept) >= count or size == len(ordered):
            taken = kept[:count]
            # With all that was asked for, what comes after the last one was not looked at.
            last = taken[-1] if len(taken) == count else len(texts) - 1
            lost = sum(len(before) <= place <= last for place in repeated)
            return [ordered[place - len(before)] for place in taken], lost
        size = 2 * size


def _fit(source: Source, settings: SampleSettings) -> tuple[list[int], Counter[str]]:
    """The usable rows, and why the others are not."""
    first = {pair: row for row, pair in reversed([*enumerate(source.rows)])}
    repeated = ("repeated_row" if first[pair] < row else None for row, pair in enumerate(source.rows))
    reasons = [_unfit(*pair, settings) or again for pair, again in zip(source.rows, repeated, strict=True)]
    return [row for row, reason in enumerate(reasons) if reason is None], Counter(filter(None, reasons))


def _unfit(instruction: str, target: str, settings: SampleSettings) -> str | None:
    if not instruction:
        return "no_instruction"
    if not target:
        return "no_target"
    if half_in(instruction, target):
        return "half_a_character"
    if settings.language == "zh":
        if len(instruction) > settings.max_chars:
            return "too_long"
    elif len(instruction.split()) > settings.max_words:
        return "too_long"
    # An instruction may quote the other language; a Chinese character says as much as several letters.
    han, letters = len(HAN.findall(instruction)), len(_LETTER.findall(instruction))
    own = 4 * han > letters if settings.language == "zh" else 2 * han <= letters
    return None if own else "other_language"


def _turn(pair: tuple[str, str], seed: int) -> bytes:
    text = f"{seed}\0{pair[0]}\0{pair[1]}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _told(lost: Mapping[str, int]) -> str:
    return ", ".join(f"{reason.replace('_', ' ')}: {count}" for reason, count in lost.items()) or "there are none"
