"""Predictions: reading their files, joining them to rows, and continuing the file that a run writes.

They are JSON Lines by ``id`` or (role, question), the release's own baseline files, or harnesses' logs.
A file written by ``rolellm generate`` has a sidecar, ``P.jsonl.meta.json``, that says which model, prompt and decoding
settings made it; it goes into the fingerprint of every score, and a run with other settings does not continue the file.

A row takes the first prediction with its ``id``, else the first with its exact (role, question), else the first with
the same (role, question) once white space at the ends is trimmed. So one prediction may answer several rows that ask
the same.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rolellm.core.errors import DataError, PredictionError, SettingsError, StoppedShortError
from rolellm.core.fingerprint import hash_bytes, hash_file
from rolellm.core.jsonl import parse_object, read_json
from rolellm.core.records import Prediction, Row
from rolellm.core.settings import describe_changes
from rolellm.core.text import join_names
from rolellm.core.typed_json import read_as
from rolellm.data.rolebench.source import resolve_config
from rolellm.scoring.harness_logs import read_logged
from rolellm.scoring.rows import get_generation, list_columns

_EXPECTED = (
    'expected {"id" or ("role" and "question"), "prediction": text} or {"role", "question", "generated": [text]}'
)


@dataclass(frozen=True, slots=True)
class PredictionFile:
    """One file of predictions.

    Attributes:
        path: Where it was read from.
        sha256: Of its content, in hex.
        count: Predictions read from it.
        meta: The sidecar's object; ``None`` where there is no sidecar, so that how the file was made is not known.
        several: Lines whose ``generated`` held more than one reply; the first is the one that is scored.
    """

    path: Path
    sha256: str
    count: int
    meta: dict[str, Any] | None = None
    several: int = 0


@dataclass(frozen=True, slots=True)
class Predictions:
    """Predictions in order, with the files that they came from.

    Attributes:
        items: All predictions, file after file.
        files: The files, in order; empty for predictions from memory.
    """

    items: tuple[Prediction, ...]
    files: tuple[PredictionFile, ...] = ()

    @classmethod
    def pair_texts(cls, ids: Sequence[str], texts: Sequence[str]) -> Predictions:
        """Predictions from memory, one an id.

        Raises:
            PredictionError: (a ``ValueError``) When the two differ in length, or a prediction is not a text.
        """
        if len(ids) != len(texts):
            raise PredictionError(f"{len(ids)} rows but {len(texts)} predictions; give one a row")
        items = []
        for number, (name, text) in enumerate(zip(ids, texts, strict=True)):
            _check_text(number, text)
            items.append(Prediction(text, id=name))
        return cls(tuple(items))

    def find_file(self, index: int) -> PredictionFile | None:
        """The file that a prediction came from; ``None`` for one from memory."""
        end = 0
        for file in self.files:
            end += file.count
            if index < end:
                return file
        return None

    def map_texts(self, rows: Sequence[Row], answers: Sequence[int | None]) -> dict[str, str]:
        """Row id to the prediction that answers it, by its number; rows without one are left out."""
        texts = {}
        for row, answer in zip(rows, answers, strict=True):
            if answer is not None:
                texts[row.id] = self.items[answer].prediction
        return texts

    def locate(self, index: int) -> str:
        """``file:line`` of a prediction, or its place in the list where it came from memory."""
        file = self.find_file(index)
        return f"prediction {index}" if file is None else f"{file.path}:{self.items[index].line}"


def read_predictions(paths: str | Path | Iterable[str | Path]) -> Predictions:
    """Read one or more files of predictions, such as a baseline's general and role-specific halves.

    Args:
        paths: JSON Lines files; a BOM, CRLF and blank lines are accepted, and so is JSON with other keys.

    Raises:
        PredictionError: When a file is not there, has a bad line (named) or holds no prediction.
    """
    items: list[Prediction] = []
    files = []
    for path in [paths] if isinstance(paths, str | Path) else paths:
        read, file = _read_file(Path(path))
        items += read
        files.append(file)
    if not files:
        raise PredictionError("no predictions file was given")
    return Predictions(tuple(items), tuple(files))


def _read_file(path: Path) -> tuple[list[Prediction], PredictionFile]:
    if not path.is_file():
        raise PredictionError("not a file; expected predictions in JSON Lines", path=path)
    items: list[Prediction] = []
    several = 0
    try:
        for line, value in read_logged(path):
            items.append(_parse(value, path, line))
            several += "prediction" not in value and len(value["generated"]) > 1
    except DataError as error:
        raise PredictionError(error.problem, path=path, line=error.line) from error
    if not items:
        raise PredictionError("has no predictions", path=path)
    return items, PredictionFile(path, hash_file(path), len(items), read_sidecar(path), several)


def _parse(value: Mapping[str, Any], path: Path, line: int) -> Prediction:
    columns = {**value, "line": line}
    replies = value.get("generated")
    if isinstance(replies, list) and replies:
        columns.setdefault("prediction", replies[0])
    try:
        prediction = read_as(Prediction, columns, "the prediction")
        if prediction.id is None and None in (prediction.role, prediction.question):
            keys = ", ".join(map(repr, value)) or "none"
            raise DataError(f"it does not say which row it answers (keys: {keys})")
    except DataError as error:
        raise DataError(f"{error.problem}; {_EXPECTED}", path=path, line=line) from error
    return prediction


def get_sidecar_path(path: Path) -> Path:
    """Get the path of the settings of a predictions file: ``P.jsonl.meta.json`` next to ``P.jsonl``."""
    return path.with_name(path.name + ".meta.json")


def read_sidecar(path: Path) -> dict[str, Any] | None:
    """Read the sidecar of a predictions file; ``None`` where there is none.

    Raises:
        DataError: When it is not a JSON object.
    """
    sidecar = get_sidecar_path(path)
    return read_json(sidecar) if sidecar.is_file() else None


def describe_decoding(generation: Mapping[str, Any]) -> str:
    """Describe the decoding that a sidecar records."""
    decoding = generation["decoding"]
    words = [str(decoding.get("strategy"))]
    for key in ("num_beams", "temperature", "top_p", "seed"):
        if decoding.get(key):
            words.append(f"{key} {decoding[key]}")
    words.append(f"at most {decoding.get('max_new_tokens')} tokens")
    return ", ".join(words)


def is_paths(value: Any) -> bool:
    """Tell whether a value is the path of a predictions file, or a list of such paths."""
    if isinstance(value, Path | str):
        return True
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(item, Path) for item in value)


def make_predictions(source: Any, rows: Sequence[Row], *, own: bool = False) -> Predictions:
    """Predictions from memory: one text per row, or a dataset's column ``prediction`` (nulls are left out).

    Args:
        source: Texts; or a ``datasets.Dataset`` or rows as mappings, with ``prediction`` and what says which row it
            answers: ``id``, or ``role`` and ``question``.
        rows: The rows.
        own: Whether the rows are the dataset's own, so that each answers itself.

    Raises:
        SettingsError: For a missing column; says which are there.
        PredictionError: When a prediction is not a text, or there are not as many texts as rows.
    """
    if isinstance(source, Sequence) and not any(isinstance(item, Mapping) for item in source):
        return Predictions.pair_texts([row.id for row in rows], source)
    return _read_dataset_predictions(source, [row.id for row in rows] if own else None)


def _read_dataset_predictions(dataset: Any, ids: Sequence[str] | None) -> Predictions:
    columns = list_columns(dataset)
    is_identified = ids is not None or "id" in columns or {"role", "question"} <= {*columns}
    missing = ""
    if not is_identified:
        missing = "id, or role and question, which say what row each prediction answers"
    elif "prediction" not in columns:
        missing = "prediction"
    if missing:
        raise SettingsError(f"the predictions lack the column {missing}; they have: {', '.join(columns)}")
    items = []
    for number, values in enumerate(dataset):
        text = values["prediction"]
        if text is None:
            continue
        _check_text(number, text)
        name = values.get("id") if ids is None else ids[number]
        items.append(Prediction(text, id=name, role=values.get("role"), question=values.get("question")))
    if not items:
        raise PredictionError("there are no predictions")
    predictions = Predictions(tuple(items))
    meta = get_generation(dataset)
    if meta is None:
        return predictions
    # How they were made counts as a file's sidecar does: for the fingerprint, and for what the model was trained on.
    file = PredictionFile(Path("predictions"), hash_predictions(items), len(items), meta)
    return replace(predictions, files=(file,))


def _check_text(number: int, text: Any) -> None:
    if not isinstance(text, str):
        raise PredictionError(f"prediction {number} must be a text, found {type(text).__name__}: {text!r:.60}")


def hash_predictions(items: Sequence[Prediction]) -> str:
    """SHA-256 of predictions from memory, in hex."""
    texts = [[item.id, item.role, item.question, item.prediction] for item in items]
    # Escaped: a model's text may hold half a surrogate pair, which UTF-8 cannot.
    return hash_bytes(json.dumps(texts).encode("ascii"))


#: How a row is looked up, in this order: ``id``, ``exact``, ``trimmed``; and by what.
_Key = tuple[str, str, str]
_EXAMPLES = 3
_QUESTION_WIDTH = 40


@dataclass(frozen=True, slots=True)
class MatchFinding:
    """Something about the join that a reader of the score must know.

    Attributes:
        kind: A short name, such as ``duplicates_differing``.
        count: How many predictions or rows it touches.
        text: What it is and what was done about it, in words.
        examples: The first few, each with its place.
        refused: Whether ``strict`` makes it an error.
    """

    kind: str
    count: int
    text: str
    examples: tuple[str, ...]
    refused: bool = True

    def __str__(self) -> str:
        if not self.examples:
            return self.text
        examples = "; ".join(self.examples)
        more = "; …" if self.count > len(self.examples) else ""
        return f"{self.text}; such as {examples}{more}"


@dataclass(frozen=True, slots=True)
class Matching:
    """The join of predictions to rows.

    Attributes:
        answers: For each row, the index of its prediction, or ``None``.
        unmatched_rows: Indices of rows without a prediction.
        unmatched_predictions: Indices of predictions that answer no row.
        findings: What a reader must know, in order of weight.
    """

    answers: tuple[int | None, ...]
    unmatched_rows: tuple[int, ...]
    unmatched_predictions: tuple[int, ...]
    findings: tuple[MatchFinding, ...]


def match_predictions(rows: Sequence[Row], predictions: Predictions, *, where: str = "these rows") -> Matching:
    """Join predictions to rows.

    Args:
        rows: The rows of one split.
        predictions: In order; where several fit a row, the first wins and the others are reported.
        where: What the rows are, for messages: config and split.

    Raises:
        PredictionError: When no prediction answers any row; says what they look like instead.
    """
    items = predictions.items
    index = _Index(rows, items)
    answers = list(map(index.find_answer, rows))
    used = {answer for answer in answers if answer is not None}
    if not used:
        raise PredictionError(_explain_no_match(rows, predictions, where))
    unmatched_rows = [number for number, answer in enumerate(answers) if answer is None]
    unmatched, differing, same = _sort_unused(items, answers, used, index)
    conflicts = sorted(index.conflicts & used)
    empty = [number for number in sorted(used) if not items[number].prediction.strip()]
    findings = [_report_unanswered(rows, unmatched_rows, where)]
    for kind, numbers, text, is_refused in (
        ("unmatched_predictions", unmatched, f"predictions that match no row of {where} and are not scored", True),
        ("duplicates_differing", differing, _DIFFERING, True),
        ("id_conflicts", conflicts, _CONFLICTS, True),
        ("duplicates_same", same, "predictions that repeat an earlier one word for word (they count once)", False),
        ("empty", empty, "predictions that are empty and score 0", False),
    ):
        examples = []
        for number in numbers[:_EXAMPLES]:
            examples.append(f"{predictions.locate(number)}: {describe_item(items[number])}")
        count = len(numbers)
        findings.append(MatchFinding(kind, count, f"{text}: {count:,}", tuple(examples), is_refused))
    present = tuple(finding for finding in findings if finding.count)
    return Matching(tuple(answers), tuple(unmatched_rows), tuple(unmatched), present)


_DIFFERING = "predictions that differ from an earlier one for the same row (the first counts)"
_CONFLICTS = "predictions that name a row by id but with another role or question (the id counts)"


class _Index:
    """Looks up predictions and rows by id and by text; the first of several wins."""

    def __init__(self, rows: Sequence[Row], items: Sequence[Prediction]) -> None:
        self.rows: dict[_Key, int] = {}
        for number, row in enumerate(rows):
            for key in _list_keys(row.id, row.role, row.question):
                self.rows.setdefault(key, number)
        self.items: dict[_Key, int] = {}
        self.conflicts: set[int] = set()
        for number, item in enumerate(items):
            keys = _list_keys(item.id, item.role, item.question)
            if item.id is not None:
                named = self.rows.get(keys[0])
                if named is not None and _is_contradicting(item, rows[named]):
                    # What it says of itself does not fit together; its text must not answer yet another row.
                    self.conflicts.add(number)
                    keys = keys[:1]
            for key in keys:
                self.items.setdefault(key, number)

    def find_answer(self, row: Row) -> int | None:
        """The prediction that answers a row."""
        keys = _list_keys(row.id, row.role, row.question)
        return next((self.items[key] for key in keys if key in self.items), None)

    def find_row(self, item: Prediction) -> int | None:
        """The row that a prediction would answer if no other did."""
        keys = _list_keys(item.id, item.role, item.question)
        return next((self.rows[key] for key in keys if key in self.rows), None)


def _list_keys(name: str | None, role: str | None, question: str | None) -> list[_Key]:
    keys: list[_Key] = []
    if name is not None:
        keys.append(("id", name, ""))
    if role is not None and question:
        keys += [("exact", role, question), ("trimmed", role.strip(), question.strip())]
    return keys


def _is_contradicting(item: Prediction, row: Row) -> bool:
    for text, own in ((item.role, row.role), (item.question, row.question)):
        if text is not None and text.strip() != own.strip():
            return True
    return False


def _sort_unused(
    items: Sequence[Prediction], answers: Sequence[int | None], used: Collection[int], index: _Index
) -> tuple[list[int], list[int], list[int]]:
    """Predictions that won no row: those that match none, and those that came second with another or the same text."""
    unmatched: list[int] = []
    differing: list[int] = []
    same: list[int] = []
    for number, item in enumerate(items):
        if number in used:
            continue
        row = index.find_row(item)
        winner = None if row is None else answers[row]
        if winner is None:
            unmatched.append(number)
        elif items[winner].prediction == item.prediction:
            same.append(number)
        else:
            differing.append(number)
    return unmatched, differing, same


def _report_unanswered(rows: Sequence[Row], numbers: Sequence[int], where: str) -> MatchFinding:
    parts = Counter(rows[number].subset for number in numbers)
    split = ", ".join(f"{count:,} {subset}" for subset, count in sorted(parts.items()))
    text = f"rows of {where} without a prediction: {len(numbers):,} of {len(rows):,} ({split})"
    examples = [describe_item(rows[number]) for number in numbers[:_EXAMPLES]]
    return MatchFinding("unmatched_rows", len(numbers), text, tuple(examples))


def describe_item(item: Prediction | Row) -> str:
    """A row or a prediction in a few words: role and the start of its question, else its id."""
    if item.role is None or item.question is None:
        return f"id {item.id!a}"
    question = " ".join(item.question.split())
    if len(question) > _QUESTION_WIDTH:
        question = f"{question[:_QUESTION_WIDTH]}…"
    text = f"{item.role}, “{question}”"
    # A terminal must not obey what a model wrote, and half a surrogate pair cannot be printed.
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def _explain_no_match(rows: Sequence[Row], predictions: Predictions, where: str) -> str:
    """Why nothing matches, as far as sidecars, roles and ids tell."""
    if not rows:
        return f"{where} has no rows to score"
    items = predictions.items
    lines = [f"none of the predictions ({len(items):,}) matches any of the {len(rows):,} rows of {where}."]
    for file in predictions.files:
        meta = file.meta or {}
        made_for = "/".join(str(meta[key]) for key in ("config", "split") if meta.get(key))
        if made_for not in ("", where):
            lines.append(f"{file.path} was generated for {made_for}.")
    row_roles = {row.role for row in rows}
    prediction_roles = {item.role for item in items if item.role is not None}
    if prediction_roles and not prediction_roles & row_roles:
        lines.append(f"Their roles are {_list_names(prediction_roles)}, those of the rows {_list_names(row_roles)}.")
    first = items[0]
    name = "" if first.id is None else f", id {first.id!a}"
    lines.append(
        f"Is it another split or config? The first is {predictions.locate(0)}: {describe_item(first)}{name}; "
        f"ids of the rows look like {rows[0].id!r}."
    )
    return " ".join(lines)


def _list_names(names: Iterable[str]) -> str:
    return join_names(sorted(set(names)))


# How the work was done and what is known of the model, not what was asked for: a run may go on with another of these.
_MAY_CHANGE = (
    *("model", "adapter", "device", "batch_size", "batch_tokens", "versions"),
    *("contamination", "data_dir", "base", "parameters", "date"),
)
_WAY_OUT = "use --overwrite to start over, or another --out"


@contextmanager
def explain_interrupt(out: str | Path, resume: str) -> Iterator[None]:
    """Turn Ctrl-C within the block into an error that says what is kept and how to go on.

    Args:
        out: The predictions file that is being written.
        resume: The command that continues.

    Raises:
        StoppedShortError: On KeyboardInterrupt; and the one that the block raised, with ``resume``.
    """
    path = Path(out)
    try:
        yield
    except StoppedShortError as error:
        raise error.name_command(resume) from error
    except KeyboardInterrupt:
        count = path.read_bytes().count(b"\n") if path.is_file() else 0
        raise StoppedShortError(f"{count} predictions are kept in {path}", resume=resume) from None


def complete_source(
    files: Iterable[Path], config: str | None = None, split: str | None = None, data_dir: Path | None = None
) -> tuple[str, str, Path | None]:
    """Complete which rows some predictions answer, from the record beside them.

    Args:
        files: Predictions; the first with a record counts.
        config: What the user named; by default the recorded config, else the only one of the data folder. A record of
            another config does not count.
        split: By default the recorded one, else ``test``.
        data_dir: By default the recorded folder, where it is still there.

    Raises:
        SettingsError: When neither names a config.
    """
    for path in files:
        meta = read_sidecar(path) or {}
        recorded_config = meta.get("config")
        if not recorded_config or config not in (None, recorded_config):
            continue
        recorded_folder = path.parent / str(meta.get("data_dir") or "nowhere")
        if data_dir is None and recorded_folder.is_dir():
            data_dir = recorded_folder
        return str(recorded_config), split or str(meta.get("split") or "test"), data_dir
    return resolve_config(config, data_dir), split or "test", data_dir


def check_settings(out: Path, meta: Mapping[str, Any]) -> None:
    """Compare a run's settings with those that the file was begun with.

    Args:
        out: The predictions file; it need not be there.
        meta: The settings of this run.

    Raises:
        SettingsError: When the file is there with other settings (names them), without a sidecar, or knowing more of
            what the model was trained on.
    """
    is_begun = out.exists() and out.stat().st_size > 0
    if not is_begun:
        return
    sidecar = get_sidecar_path(out)
    try:
        before = read_sidecar(out)
    except DataError as error:
        raise SettingsError(f"{sidecar}: {error.problem}; {_WAY_OUT}") from error
    if before is None:
        raise SettingsError(f"{out} exists without {sidecar.name}, so how it was made is unknown; {_WAY_OUT}")
    old = {key: item for key, item in before.items() if key not in _MAY_CHANGE}
    new = {key: item for key, item in meta.items() if key not in _MAY_CHANGE}
    differences = describe_changes(old, new)
    if differences:
        raise SettingsError(f"{out} was started with other settings: {differences}; {_WAY_OUT}")
    if before.get("contamination") is not None and meta.get("contamination") is None:
        raise SettingsError(
            f"{out} was started with a manifest that says what the model was trained on, and that is missing now; "
            f"restore it, {_WAY_OUT}"
        )


def read_finished_lines(out: Path, rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """The predictions that a file holds already, by row id; a cut-off last line does not count.

    Args:
        out: The predictions file; it need not be there.
        rows: The rows that are asked for.

    Raises:
        DataError: At a broken line within the file.
        PredictionError: At a line that answers none of the rows, or a row that has since changed.
    """
    if not out.exists():
        return {}
    rows_by_id = {row.id: row for row in rows}
    lines = {}
    # A line without its end was cut off; a run that continues drops it.
    complete = out.read_bytes().split(b"\n")[:-1]
    for number, raw in enumerate(complete, start=1):
        line = parse_object(raw + b"\n", out, number)
        row = rows_by_id.get(str(line.get("id")))
        if row is None:
            problem = f"answers none of the {len(rows)} rows"
        elif (line.get("role"), line.get("question")) != (row.role, row.question):
            problem = f"answers another question than row {row.id} asks now"
        elif not isinstance(line.get("prediction"), str):
            problem = 'has no text as "prediction"'
        else:
            lines[row.id] = line
            continue
        raise PredictionError(f"{problem}; {_WAY_OUT}", path=out, line=number)
    return lines
