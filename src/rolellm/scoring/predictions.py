"""Files of predictions: reading them, and continuing the one that a run writes.

They are JSON Lines by ``id`` or (role, question), the release's own baseline files, or harnesses' logs.
A file written by ``rolellm generate`` has a sidecar, ``P.jsonl.meta.json``, that says which model, prompt and decoding
settings made it; it goes into the fingerprint of every score, and a run with other settings does not continue the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rolellm.core.errors import DataError, PredictionError, SettingsError, StoppedShortError
from rolellm.core.fingerprint import hash_bytes, hash_file
from rolellm.core.jsonl import parse_object, read_json, write_jsonl
from rolellm.core.records import Prediction, Row
from rolellm.core.settings import describe_changes
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
        """The file for bad lines: ``P.bad.jsonl`` next to ``P.jsonl``."""
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
    file = PredictionFile(path, hash_file(path), len(items), read_sidecar(path), tuple(bad), several)
    reason = ""
    if bad:
        first = bad[0]
        if not skip_bad:
            problem = f"{first.problem}. --set skip_bad=true skips such lines"
            raise PredictionError(problem, path=path, line=first.line) from first
        _set_aside(file)
        reason = f"; all its {len(bad)} lines are bad, see {file.bad_path}"
    if not items:
        raise PredictionError(f"has no predictions{reason}", path=path)
    return items, file


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
        raise PredictionError(f"{error.problem}; {_EXPECTED}", path=path, line=line) from error
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


def _set_aside(file: PredictionFile) -> None:
    """Write each bad line with its number and reason; the file itself is left as it is."""
    reasons = {error.line: error.problem for error in file.bad}
    with file.path.open("rb") as stream:
        lines = []
        for number, raw in enumerate(stream, start=1):
            if number in reasons:
                text = raw.decode("utf-8", "backslashreplace").rstrip("\r\n")
                lines.append({"line": number, "reason": reasons[number], "text": text})
    write_jsonl(file.bad_path, lines)


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
