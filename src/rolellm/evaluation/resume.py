"""What lets `generate` stop anywhere and continue: the sidecar with its settings, and the lines already written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rolellm.core.errors import DataError, PredictionError, SettingsError, StoppedShortError
from rolellm.core.files import write_json
from rolellm.core.jsonl import read_jsonl, write_jsonl
from rolellm.core.records import Row
from rolellm.evaluation.predictions import META_SUFFIX

# How the work was done and what is known of the model, not what was asked for: a run may go on with another of these.
_MAY_CHANGE = ("model", "adapter", "device", "batch_size", "versions", "earlier_runs", "contamination")
_WAY_OUT = "use --overwrite to start over, or another --out"


def sidecar_path(out: Path) -> Path:
    """Where the settings of a predictions file are."""
    return out.with_name(out.name + META_SUFFIX)


@contextmanager
def stopped_short(out: str | Path, resume: str, *, untouched: str | None = None) -> Iterator[None]:
    """Turn Ctrl-C within the block into an error that says what is kept and how to go on.

    Args:
        out: The predictions file that is being written.
        resume: The command that continues.
        untouched: The command to give instead while ``out`` is still the file that it was before the block, which is
            how overwriting one begins.

    Raises:
        StoppedShortError: On KeyboardInterrupt.
    """
    path = Path(out)
    before = _state(path)
    try:
        yield
    except KeyboardInterrupt:
        if untouched is not None and before is not None and _state(path) == before:
            raise StoppedShortError(f"nothing was done; {path} is unchanged", resume=untouched) from None
        count = path.read_bytes().count(b"\n") if path.is_file() else 0
        raise StoppedShortError(f"{count} predictions are kept in {path}", resume=resume) from None


def _state(path: Path) -> tuple[int, int, int] | None:
    if not path.is_file():
        return None
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


@contextmanager
def only_writer(out: Path) -> Iterator[None]:
    """Keep a second process from writing the same file.

    Raises:
        SettingsError: When another process holds it.
    """
    from filelock import FileLock, Timeout

    out.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(out.with_name(f".{out.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise SettingsError(f"another process is writing to {out}; wait for it, or use another --out") from None
    try:
        yield
    finally:
        # Unlinked while still held: filelock refuses a lock whose file is gone, so no second writer slips in.
        with suppress(OSError):
            Path(lock.lock_file).unlink()
        lock.release()


def reconcile(out: Path, meta: Mapping[str, Any]) -> dict[str, Any]:
    """Compare a run's settings with those that the file was begun with.

    Args:
        out: The predictions file; it need not be there.
        meta: The settings of this run.

    Returns:
        The settings to write, with the ways of earlier runs noted where they differ.

    Raises:
        SettingsError: When the file is there with other settings (names them), without a sidecar, or knowing more of
            what the model was trained on.
    """
    if not out.exists() or out.stat().st_size == 0:
        return dict(meta)
    sidecar = sidecar_path(out)
    if not sidecar.is_file():
        raise SettingsError(f"{out} exists without {sidecar.name}, so how it was made is unknown; {_WAY_OUT}")
    try:
        before = json.loads(sidecar.read_bytes())
        if not isinstance(before, dict):
            raise ValueError("not an object")
    except ValueError as error:
        raise SettingsError(f"{sidecar} is not a JSON object ({error}); {_WAY_OUT}") from error
    old, new = (_flat({key: item for key, item in side.items() if key not in _MAY_CHANGE}) for side in (before, meta))
    changed = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
    if changed:
        shown = "; ".join(f"{key} was {_show(old.get(key))} and is now {_show(new.get(key))}" for key in changed)
        raise SettingsError(f"{out} was started with other settings: {shown}. {_WAY_OUT[0].upper()}{_WAY_OUT[1:]}")
    if before.get("contamination") is not None and meta.get("contamination") is None:
        raise SettingsError(
            f"{out} was started with a manifest that says what the model was trained on, and that is missing now; "
            f"restore it, {_WAY_OUT}"
        )
    return {**meta, **_history(before, meta)}


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat |= _flat(item, f"{prefix}{key}.") if isinstance(item, dict) else {f"{prefix}{key}": item}
    return flat


def _show(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return f"{text[:12]}…" if len(text) == 66 else text


def _history(before: Mapping[str, Any], meta: Mapping[str, Any]) -> dict[str, Any]:
    ways = ("model", "adapter", "device", "batch_size", "versions")
    earlier = list(before.get("earlier_runs", []))
    last = {key: before.get(key) for key in ways}
    if last != {key: meta[key] for key in ways} and last not in earlier:
        earlier.append(last)
    return {"earlier_runs": earlier} if earlier else {}


def write_sidecar(out: Path, meta: Mapping[str, Any]) -> None:
    """Write a predictions file's settings next to it, complete or not at all."""
    write_json(sidecar_path(out), meta)


def renew_sidecar(out: Path, **entries: Any) -> None:
    """Bring entries of a finished file's sidecar up to date; the others stay as they are."""
    path = sidecar_path(out)
    before = json.loads(path.read_bytes())
    if any(before.get(key) != value for key, value in entries.items()):
        write_json(path, {**before, **entries})


def finished_lines(out: Path, rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
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
    whole = out.read_bytes().count(b"\n")
    asked = {row.id: row for row in rows}
    bad: list[DataError] = []
    lines: dict[str, dict[str, Any]] = {}
    for number, line in read_jsonl(out, bad=bad):
        if number > whole:
            continue
        row = asked.get(str(line.get("id")))
        if row is None:
            raise PredictionError(f"answers none of the {len(rows)} rows; {_WAY_OUT}", path=out, line=number)
        if (line.get("role"), line.get("question")) != (row.role, row.question):
            raise PredictionError(
                f"answers another question than row {row.id} asks now; {_WAY_OUT}", path=out, line=number
            )
        if not isinstance(line.get("prediction"), str):
            raise PredictionError(f'has no text as "prediction"; {_WAY_OUT}', path=out, line=number)
        lines[row.id] = line
    for error in bad:
        if error.line is not None and error.line <= whole:
            raise error
    return lines


def put_in_order(out: Path, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Rewrite a finished file in the order of its rows, complete or not at all; return its lines."""
    lines = finished_lines(out, rows)
    ordered = [lines[row.id] for row in rows]
    write_jsonl(out, ordered)
    return ordered
