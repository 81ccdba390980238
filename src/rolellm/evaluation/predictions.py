"""Reading predictions: JSON Lines by ``id`` or (role, question), the release's own baseline files, harnesses' logs.

A file written by ``rolellm generate`` has a sidecar, ``P.jsonl.meta.json``, that says which model, prompt and decoding
settings made it; what it says goes into the fingerprint of every score.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rolellm.core.errors import DataError, PredictionError, SettingsError
from rolellm.core.fingerprint import hash_bytes, hash_file
from rolellm.core.jsonl import read_json, write_jsonl
from rolellm.core.records import Prediction, Row
from rolellm.core.typed_json import read_as
from rolellm.evaluation.harness_logs import log_meta, read_logged
from rolellm.evaluation.rows import column_names, generation_of

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
        bad: Lines that were skipped, as errors that know their line.
        several: Lines whose ``generated`` held more than one reply; the first is the one that is scored.
    """

    path: Path
    sha256: str
    count: int
    meta: dict[str, Any] | None = None
    bad: tuple[DataError, ...] = ()
    several: int = 0

    @property
    def bad_path(self) -> Path:
        """Where bad lines go: ``P.bad.jsonl`` next to ``P.jsonl``."""
        return self.path.with_name(f"{self.path.name.removesuffix('.jsonl')}.bad.jsonl")


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
    def from_texts(cls, ids: Sequence[str], texts: Sequence[str]) -> Predictions:
        """Predictions from memory, one an id.

        Raises:
            PredictionError: (a ``ValueError``) When the two differ in length, or a prediction is not a text.
        """
        if len(ids) != len(texts):
            raise PredictionError(f"{len(ids)} rows but {len(texts)} predictions; give one a row")
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                raise PredictionError(f"prediction {number} must be a text, found {type(text).__name__}: {text!r:.60}")
        return cls(tuple(Prediction(text, id=name) for name, text in zip(ids, texts, strict=True)))

    def file_of(self, index: int) -> PredictionFile | None:
        """The file that a prediction came from; ``None`` for one from memory."""
        end = 0
        for file in self.files:
            end += file.count
            if index < end:
                return file
        return None

    def where(self, index: int) -> str:
        """``file:line`` of a prediction, or its place in the list where it came from memory."""
        file = self.file_of(index)
        return f"prediction {index}" if file is None else f"{file.path}:{self.items[index].line}"


def read_predictions(paths: str | Path | Iterable[str | Path], *, skip_bad: bool = False) -> Predictions:
    """Read one or more files of predictions, such as a baseline's general and role-specific halves.

    Args:
        paths: JSON Lines files; a BOM, CRLF and blank lines are accepted, and so is JSON with other keys.
        skip_bad: Move bad lines to ``P.bad.jsonl`` and count them, instead of stopping at the first.

    Raises:
        PredictionError: When a file is not there, has a bad line (named, unless ``skip_bad``) or holds no prediction.
    """
    items: list[Prediction] = []
    files = []
    for path in [paths] if isinstance(paths, str | Path) else paths:
        read, file = _read_file(Path(path), skip_bad=skip_bad)
        items += read
        files.append(file)
    if not files:
        raise PredictionError("no predictions file was given")
    return Predictions(tuple(items), tuple(files))


def _read_file(path: Path, *, skip_bad: bool) -> tuple[list[Prediction], PredictionFile]:
    if not path.is_file():
        raise PredictionError("not a file; expected predictions in JSON Lines", path=path)
    items: list[Prediction] = []
    bad: list[DataError] = []
    several = 0
    for line, value in read_logged(path, bad):
        try:
            items.append(_parse(value, path, line))
        except PredictionError as error:
            bad.append(error)
        else:
            several += "prediction" not in value and len(value["generated"]) > 1
        if bad and not skip_bad:
            break
    bad.sort(key=lambda error: error.line or 0)
    if bad and not skip_bad:
        problem = f"{bad[0].problem}. --skip-bad (skip_bad=True) skips such lines"
        raise PredictionError(problem, path=path, line=bad[0].line) from bad[0]
    file = PredictionFile(path, hash_file(path), len(items), read_sidecar(path), tuple(bad), several)
    if bad:
        _set_aside(file)
    if not items:
        found = f"; all its {len(bad)} lines are bad, see {file.bad_path}" if bad else ""
        raise PredictionError(f"has no predictions{found}", path=path)
    return items, file


def _parse(value: Mapping[str, Any], path: Path, line: int) -> Prediction:
    replies = value.get("generated")
    first = {"prediction": replies[0]} if isinstance(replies, list) and replies else {}
    try:
        found = read_as(Prediction, {**first, **value, "line": line}, "the prediction")
        if found.id is None and None in (found.role, found.question):
            raise DataError(f"it does not say which row it answers (keys: {', '.join(map(repr, value)) or 'none'})")
    except DataError as error:
        raise PredictionError(f"{error.problem}; {_EXPECTED}", path=path, line=line) from error
    return found


def sidecar_path(path: Path) -> Path:
    """Where the settings of a predictions file are: ``P.jsonl.meta.json`` next to ``P.jsonl``."""
    return path.with_name(path.name + ".meta.json")


def read_sidecar(path: Path) -> dict[str, Any] | None:
    """What the sidecar of a predictions file says, or the results next to a harness's log; ``None`` without either.

    Raises:
        DataError: When it is not a JSON object.
    """
    sidecar = sidecar_path(path)
    return read_json(sidecar) if sidecar.is_file() else log_meta(path)


def _set_aside(file: PredictionFile) -> None:
    """Write each bad line with its number and reason; the file itself is left as it is."""
    reasons = {error.line: error.problem for error in file.bad}
    with file.path.open("rb") as stream:
        lines = [
            {"line": number, "reason": reasons[number], "text": raw.decode("utf-8", "backslashreplace").rstrip("\r\n")}
            for number, raw in enumerate(stream, start=1)
            if number in reasons
        ]
    write_jsonl(file.bad_path, lines)


def is_paths(given: Any) -> bool:
    """Whether this is the path of a file of predictions, or a list of such paths."""
    if isinstance(given, Path | str):
        return True
    return isinstance(given, list | tuple) and bool(given) and all(isinstance(item, Path) for item in given)


def predictions_for(given: Any, rows: Sequence[Row], *, own: bool = False) -> Predictions:
    """Predictions from memory: one text per row, or a dataset's column ``prediction`` (nulls are left out).

    Args:
        given: Texts; or a ``datasets.Dataset`` or rows as mappings, with ``prediction`` and what says which row it
            answers: ``id``, or ``role`` and ``question``.
        rows: The rows.
        own: Whether the rows are the dataset's own, so that each answers itself.

    Raises:
        SettingsError: For a missing column; says which are there.
        PredictionError: When a prediction is not a text, or there are not as many texts as rows.
    """
    if isinstance(given, Sequence) and not any(isinstance(item, Mapping) for item in given):
        return Predictions.from_texts([row.id for row in rows], given)
    return _from_dataset(given, [row.id for row in rows] if own else None)


def _from_dataset(dataset: Any, ids: Sequence[str] | None) -> Predictions:
    columns = column_names(dataset)
    known = ids is not None or "id" in columns or {"role", "question"} <= {*columns}
    if "prediction" not in columns or not known:
        lacking = "prediction" if known else "id, or role and question, which say what row each prediction answers"
        raise SettingsError(f"the predictions lack the column {lacking}; they have: {', '.join(columns)}")
    items = []
    for number, values in enumerate(dataset):
        text = values["prediction"]
        if text is None:
            continue
        if not isinstance(text, str):
            raise PredictionError(f"prediction {number} must be a text, found {type(text).__name__}: {text!r:.60}")
        name = values.get("id") if ids is None else ids[number]
        items.append(Prediction(text, id=name, role=values.get("role"), question=values.get("question")))
    if not items:
        raise PredictionError("there are no predictions")
    meta = generation_of(dataset)
    # How they were made counts as a file's sidecar does: for the fingerprint, and for what the model was trained on.
    made = () if meta is None else (PredictionFile(Path("predictions"), hash_texts(items), len(items), meta),)
    return Predictions(tuple(items), made)


def hash_texts(items: Sequence[Prediction]) -> str:
    """SHA-256 of predictions from memory, in hex."""
    texts = [[item.id, item.role, item.question, item.prediction] for item in items]
    # Escaped: a model's text may hold half a surrogate pair, which UTF-8 cannot.
    return hash_bytes(json.dumps(texts).encode("ascii"))
