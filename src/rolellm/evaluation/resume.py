"""What lets `generate` stop anywhere and continue: the sidecar with its settings, and the lines already written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rolellm.core.errors import DataError, PredictionError, SettingsError, StoppedShortError
from rolellm.core.jsonl import parse_object
from rolellm.core.records import Row
from rolellm.core.settings import leaves
from rolellm.evaluation.predictions import read_sidecar, sidecar_path

# How the work was done and what is known of the model, not what was asked for: a run may go on with another of these.
_WAYS = ("model", "adapter", "device", "batch_size", "versions")
_MAY_CHANGE = (*_WAYS, "earlier_runs", "contamination")
_WAY_OUT = "use --overwrite to start over, or another --out"


@contextmanager
def stopped_short(out: str | Path, resume: str, *, untouched: str | None = None) -> Iterator[None]:
    """Turn Ctrl-C within the block into an error that says what is kept and how to go on.

    Args:
        out: The predictions file that is being written.
        resume: The command that continues.
        untouched: The command to give instead while ``out`` is still the file that it was before the block, which is
            how overwriting one begins.

    Raises:
        StoppedShortError: On KeyboardInterrupt; and the one that the block raised, with ``resume``.
    """
    path = Path(out)
    before = _state(path)
    try:
        yield
    except StoppedShortError as error:
        raise error.resumed_by(resume) from error
    except KeyboardInterrupt:
        if untouched is not None and before is not None and _state(path) == before:
            raise StoppedShortError(f"nothing was done; {path} is unchanged", resume=untouched) from None
        count = path.read_bytes().count(b"\n") if path.is_file() else 0
        raise StoppedShortError(f"{count} predictions are kept in {path}", resume=resume) from None


def _state(path: Path) -> tuple[int, int, int] | None:
    found = path.stat() if path.is_file() else None
    return found and (found.st_ino, found.st_mtime_ns, found.st_size)


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
    try:
        before = read_sidecar(out)
    except DataError as error:
        raise SettingsError(f"{sidecar}: {error.problem}; {_WAY_OUT}") from error
    if before is None:
        raise SettingsError(f"{out} exists without {sidecar.name}, so how it was made is unknown; {_WAY_OUT}")
    kept = ({key: item for key, item in side.items() if key not in _MAY_CHANGE} for side in (before, meta))
    old, new = map(dict, map(leaves, kept))
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


def _show(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return f"{text[:12]}…" if len(text) == 66 else text


def _history(before: Mapping[str, Any], meta: Mapping[str, Any]) -> dict[str, Any]:
    earlier, last = list(before.get("earlier_runs", [])), {key: before.get(key) for key in _WAYS}
    if last != {key: meta[key] for key in _WAYS} and last not in earlier:
        earlier.append(last)
    return {"earlier_runs": earlier} if earlier else {}


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
    asked, lines = {row.id: row for row in rows}, {}
    # A line without its end was cut off; a run that continues drops it.
    for number, raw in enumerate(out.read_bytes().split(b"\n")[:-1], start=1):
        line = parse_object(raw + b"\n", out, number)
        row = asked.get(str(line.get("id")))
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
