"""Draws general instructions from instruction data sets, as the paper did from Super-NaturalInstructions, COIG, BELLE.

The paper (arXiv 2310.00746) caps English ones at 100 words and Chinese ones at 100 characters, and removes
near-duplicates by BM25 similarity; its threshold is open. Ours: `rolellm.making.duplicates`.

The draw goes by content: a row's turn comes by a hash of the seed, its instruction and its answer, so the same rows in
another order give the same draw.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from rolellm.characters.scripts.parse import detect_language
from rolellm.core.errors import DataError, SettingsError
from rolellm.core.files import write_json
from rolellm.core.fingerprint import hash_file, hash_json
from rolellm.core.jsonl import write_jsonl
from rolellm.core.row_files import SUFFIXES, read_rows
from rolellm.core.settings import dump
from rolellm.core.text import HAN, find_surrogate
from rolellm.making.duplicates import find_repeats
from rolellm.making.settings import SampleSettings
from rolellm.version import __version__

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
    """The columns of the instruction and its answer.

    Attributes:
        instruction: The instruction's column; of conversations, their column.
        target: The answer's column; ``None`` with conversations, and where there are no answers.
        input: A column of what the instruction is about, which is put below it; blank in many rows.
    """

    instruction: str
    target: str | None
    input: str | None = None

    @property
    def is_talk(self) -> bool:
        """True if the column holds conversations, with the answers."""
        return self.target is None and self.instruction.casefold() in _TALKS


@dataclass(frozen=True, slots=True)
class InstructionSource:
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


def read_instruction_source(
    dataset: str, *, split: str | None = None, instruction_column: str | None = None, target_column: str | None = None
) -> InstructionSource:
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
        rows = [row for _, row in read_instruction_rows(path)]
        # Objects of JSON Lines need not all have the same keys.
        names = list(dict.fromkeys(str(name) for row in rows[:1000] for name in row))
        columns = _find_columns(names, instruction_column, target_column, dataset)
        return InstructionSource(path.name, None, columns, hash_file(path), [read_pair(row, columns) for row in rows])
    if not path.is_dir() and (_NAME.fullmatch(dataset) is None or path.suffix.lower() in SUFFIXES):
        raise DataError("no such file or folder, and no name of a data set on the Hub (OWNER/NAME)", path=dataset)
    split_name = split or "train"
    with _load_split(dataset, split_name) as data:
        columns = _find_columns(data.column_names, instruction_column, target_column, dataset)
        used = [name for name in asdict(columns).values() if name is not None]
        texts = [read_pair(row, columns) for row in data.select_columns(used)]
    name = path.resolve().name if path.is_dir() else dataset
    return InstructionSource(name, split_name, columns, hash_json(texts), texts)


def read_instruction_rows(path: Path) -> list[tuple[int, Mapping[str, Any]]]:
    """Read the rows of a file of instructions; as `rolellm.core.row_files.read_rows`."""
    return [(number, _flatten_instance(row)) for number, row in read_rows(path)]


def _flatten_instance(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Merge the first instance of a Self-Instruct row into it; return any other row as it is."""
    instances = row.get("instances")
    first = instances[0] if isinstance(instances, list) and instances else None
    return {**row, **first} if isinstance(first, Mapping) else row


@contextmanager
def _load_split(dataset: str, split: str) -> Iterator[Any]:
    """Load a split with `datasets`; the temporary files it makes of local data are deleted."""
    import datasets

    path = Path(dataset)
    with tempfile.TemporaryDirectory(prefix="rolellm-") as cache:
        try:
            if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
                saved = datasets.load_from_disk(dataset)
                data = saved if isinstance(saved, datasets.Dataset) else saved[split]
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


def _find_columns(names: Sequence[str], instruction: str | None, target: str | None, dataset: str) -> Columns:
    for column in (instruction, target):
        if column is not None and column not in names:
            raise SettingsError(f"{dataset} has no column {column!r}; it has {', '.join(names)}")
    columns = detect_columns(names, instruction, target)
    if columns is None or (columns.target is None and not columns.is_talk):
        lacking = "instruction" if columns is None else "target"
        raise SettingsError(
            f"cannot tell which column of {dataset} holds the {lacking}; it has {', '.join(names)}; name it with "
            f"--{lacking}-column"
        )
    return columns


def detect_columns(names: Iterable[str], instruction: str | None = None, target: str | None = None) -> Columns | None:
    """Find the columns of instruction and answer by their usual names; ``None`` without an instruction."""
    by_name = {name.casefold(): name for name in reversed([*names])}
    talk = _pick_first(by_name, _TALKS) if instruction is None else instruction
    if talk is not None and target is None and talk.casefold() in _TALKS:
        return Columns(talk, None)
    column = instruction or _pick_first(by_name, _INSTRUCTIONS)
    if column is None:
        return None
    # A column that the user named says all that is wanted.
    inputs = [name for name in _INPUTS if by_name.get(name) != column]
    about = _pick_first(by_name, inputs) if instruction is None else None
    return Columns(column, target or _pick_first(by_name, _TARGETS), about)


def _pick_first(by_name: Mapping[str, str], candidates: Sequence[str]) -> str | None:
    return next((by_name[name] for name in candidates if name in by_name), None)


def read_pair(row: Mapping[str, Any], columns: Columns) -> tuple[str, str]:
    """Read a row's instruction, with its input, and the answer; an empty text where there is none."""
    if columns.is_talk:
        return _read_talk(row.get(columns.instruction))
    question, answer = (_read_text(row.get(name)) if name else "" for name in (columns.instruction, columns.target))
    if question.startswith(("Human:", "Human：")):
        question, *later = (turn.strip() for turn in _TURNS.split(question)[1:])
        answer = next(filter(None, later), answer)
    about = "" if columns.input is None else _read_text(row.get(columns.input))
    return "\n".join(filter(None, (question, about))) if question else "", answer


def _read_text(value: Any) -> str:
    if isinstance(value, list) and value:
        # Several answers; the first is as good as any.
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    return str(value).strip()


def _read_talk(value: Any) -> tuple[str, str]:
    """Read a conversation's first question and the answer to it; one that opens otherwise has neither."""
    items = value if isinstance(value, list) else []
    if not all(isinstance(item, Mapping) for item in items):
        return "", ""
    speakers = [_SIDES.get(str(item.get("role", item.get("from", ""))).casefold()) for item in items]
    # Whatever comes before the first turn of either side is a system message.
    first = next((index for index, speaker in enumerate(speakers) if speaker is not None), 0)
    if speakers[first : first + 2] != [0, 1]:
        return "", ""
    question, answer = (_read_text(item.get("content", item.get("value"))) for item in items[first : first + 2])
    return question, answer


_LETTER: Final = re.compile(r"[^\W\d_]")


class Sample(NamedTuple):
    """Instructions drawn from data sets.

    Attributes:
        lines: The lines of their file: ``instruction``, ``target`` and ``source``.
        summary: What was read, left out and drawn of each source, for the manifest and ``--json``.
    """

    lines: list[dict[str, Any]]
    summary: dict[str, Any]

    def write(self, path: str | Path) -> Path:
        """Write the instructions, and next to them ``NAME.meta.json``, each complete or not at all.

        Returns:
            The path of the second file.
        """
        target = Path(path)
        write_jsonl(target, self.lines)
        meta = target.with_name(f"{target.name}.meta.json")
        write_json(meta, {"rolellm": __version__, "sha256": hash_file(target), **self.summary})
        return meta


def sample_instructions(
    sources: Sequence[InstructionSource], counts: Sequence[int], settings: SampleSettings
) -> Sample:
    """Draw instructions.

    Args:
        sources: Data sets, as `rolellm.making.instructions.read_instruction_source` reads them.
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
        zh = [
            detect_language(instruction) == "zh" for source in sources for instruction, _ in source.rows if instruction
        ]
        settings = replace(settings, language="zh" if 2 * sum(zh) > len(zh) else "en")
    lines: list[dict[str, Any]] = []
    described: list[dict[str, Any]] = []
    for source, count in zip(sources, counts, strict=True):
        fit, dropped = _find_usable_rows(source, settings)
        if not fit:
            raise DataError(f"{source.name}: none of its {len(source.rows)} rows is usable ({_format_counts(dropped)})")
        ordered = sorted(fit, key=lambda row: _hash_pair(source.rows[row], settings.seed))
        rows, repeated = _pick_rows([line["instruction"] for line in lines], source, ordered, count, settings)
        for row in rows:
            instruction, target = source.rows[row]
            origin = {"dataset": source.name, "split": source.split, "row": row}
            lines.append({"instruction": instruction, "target": target, "source": origin})
        description = {
            "name": source.name,
            "split": source.split,
            "columns": asdict(source.columns),
            "fingerprint": source.fingerprint,
            "rows": len(source.rows),
            "dropped": dropped | ({"near_duplicate": repeated} if repeated else {}),
            "asked": count,
            "drawn": len(rows),
        }
        described.append(description)
    totals = {"drawn": len(lines), "asked": sum(counts)}
    return Sample(lines, {**totals, "sources": described, "settings": dump(settings)})


def _pick_rows(
    before: Sequence[str], source: InstructionSource, ordered: Sequence[int], count: int, settings: SampleSettings
) -> tuple[list[int], int]:
    """Pick rows in order, and count how many of those looked at repeat another."""
    size = count
    while True:
        # More than is wanted, as some will be near-duplicates; of the rest nothing need be compared.
        size = min(int(size * 1.25) + 100, len(ordered))
        texts = [*before, *(source.rows[row][0] for row in ordered[:size])]
        repeated = find_repeats(texts, settings.language or "en", settings.duplicates, settings.similarity)
        fresh = [index for index in range(len(before), len(texts)) if index not in repeated]
        if len(fresh) >= count or size == len(ordered):
            chosen = fresh[:count]
            # With all that was asked for, what comes after the last one was not looked at.
            last = chosen[-1] if len(chosen) == count else len(texts) - 1
            lost = sum(len(before) <= index <= last for index in repeated)
            return [ordered[index - len(before)] for index in chosen], lost
        size = 2 * size


def _find_usable_rows(source: InstructionSource, settings: SampleSettings) -> tuple[list[int], dict[str, int]]:
    """Find the usable rows, and why the others are not."""
    first = {pair: row for row, pair in reversed([*enumerate(source.rows)])}
    repeated = ("repeated_row" if first[pair] < row else None for row, pair in enumerate(source.rows))
    reasons = [_explain_misfit(*pair, settings) or again for pair, again in zip(source.rows, repeated, strict=True)]
    return [row for row, reason in enumerate(reasons) if reason is None], dict(Counter(filter(None, reasons)))


def _explain_misfit(instruction: str, target: str, settings: SampleSettings) -> str | None:
    if not instruction:
        return "no_instruction"
    if not target:
        return "no_target"
    if find_surrogate(instruction, target):
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


def _hash_pair(pair: tuple[str, str], seed: int) -> bytes:
    text = f"{seed}\0{pair[0]}\0{pair[1]}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _format_counts(lost: Mapping[str, int]) -> str:
    return ", ".join(f"{reason.replace('_', ' ')}: {count}" for reason, count in lost.items()) or "there are none"
