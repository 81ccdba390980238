"""A leaderboard as a static site: scores with intervals and ranks, and with every row the replies behind it.

::

    SITE/
      index.html       tables, plots and filters; all it needs is in the file
      replies/         what was scored: NAME.jsonl, with NAME.jsonl.meta.json where it is known how they were made
      scores/          NAME.json, what `rolellm score --json` prints about them
      safety/          NAME.json, the figures of its `rolellm check safety`, where there was one

What is scored is what is published, so that the command in a row gives the row's numbers.
"""

from __future__ import annotations

import json
import math
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from rolellm.checks.safety import CheckSafety
from rolellm.core.errors import DataError, SettingsError
from rolellm.core.files import open_atomic, write_json
from rolellm.core.fingerprint import hash_file, hash_json
from rolellm.core.jsonl import read_json, write_jsonl
from rolellm.core.settings import dump
from rolellm.core.text import make_safe_name
from rolellm.core.typed_json import strip_folders
from rolellm.judging.records import RESULT, read_run
from rolellm.judging.systems import parse_sources
from rolellm.models.find import is_hub_id
from rolellm.reporting import plots
from rolellm.reporting.browse import source_hash
from rolellm.reporting.page import facts
from rolellm.reporting.safety_section import list_safety_cells
from rolellm.reporting.tables import roles_of
from rolellm.reporting.templates import environment, read_template
from rolellm.runs import Run, find_runs
from rolellm.scoring.predictions import (
    PredictionFile,
    Predictions,
    describe_decoding,
    get_sidecar_path,
    read_predictions,
    read_sidecar,
)
from rolellm.scoring.score import score
from rolellm.scoring.score_report import COLUMNS, METRICS, ScoreReport
from rolellm.scoring.settings import ScoreOptions
from rolellm.scoring.statistics.intervals import Interval
from rolellm.version import __version__

ALL_ROLES = "All roles"
#: What a score report says of how it was made, and ScoreOptions calls the same.
_SCORED = ("protocol", "missing")
#: What a line of published replies holds, where it is known.
_LINE = ("id", "role", "question", "prediction")
#: Where the model's folder may be named, and with it a check of its safety.
_PLACES = ("model", "adapter")
_UNITS = ((10**9, "B"), (10**6, "M"), (10**3, "K"))


@dataclass(frozen=True, slots=True)
class Entry:
    """A system on the board.

    Attributes:
        name: The system's.
        report: The scores of its published replies.
        recipe: What must be equal for two scores to compare: name to value, as text.
        files: What is published of it, relative to the site: its scores, then its replies.
        command: What gives the scores anew, in the folder of the site.
        made: The model, its size and the date, as far as they are known.
        safety: What tuning did to its refusals and unsafe replies; empty where that was not measured.
    """

    name: str
    report: ScoreReport
    recipe: Mapping[str, str]
    files: tuple[str, ...]
    command: str
    made: str
    safety: Sequence[Mapping[str, str]]


def write_leaderboard(
    runs: Sequence[str | Path], out: str | Path, options: ScoreOptions | None = None, *, mixed: bool = False
) -> list[Entry]:
    """Write the site.

    Args:
        runs: Files of predictions and harnesses' logs (``P.jsonl`` or ``NAME=P.jsonl``), score reports
            (``rolellm score --json``) that lie next to their replies, folders of predictions, folders of judging runs;
            and folders of ``rolellm check safety``, each for the system of its model, or of its name (``NAME=FOLDER``).
            One next to a system's replies, or in the model's folder, counts without being named.
        out: The site's folder; other files in it stay.
        options: How to score; config and split are by default those that the runs name.
        mixed: Show runs of unlike recipes, each ranked among its like.

    Raises:
        SettingsError: For runs of unlike recipes without ``mixed``, or two systems of one name.
        DataError: For a run that cannot be read, or a score report that its replies do not bear out.
        SettingsError: For a check of safety of other models than the systems'.
    """
    sources, checks = _sort_checks([*map(str, runs)])
    with tempfile.TemporaryDirectory(prefix="rolellm-") as folder:
        # The folder itself is for our eyes only, and the site is not.
        site, entries = Path(folder) / "site", []
        for name, predictions, chosen, claimed in _read_systems(sources, options or ScoreOptions()):
            check = _find_check(name, predictions, checks)
            entries.append(_publish_system(site, name, predictions, chosen, claimed, check))
        if checks:
            folders = ", ".join(str(check.folder) for _, check in checks)
            raise SettingsError(f"no system is of the model that {folders} checked; say which it is: NAME=FOLDER")
        unlike = _compare_recipes(entries)
        if unlike and not mixed:
            differing = "; ".join(f"{key}: {_describe_values(entries, key, values)}" for key, values in unlike.items())
            raise SettingsError(
                f"these runs do not compare, since they differ in {differing}. Leave some out, or add --mixed, which "
                "ranks each among its like"
            )
        with open_atomic(site / "index.html") as stream:
            stream.write(_render_page(entries, unlike))
        shutil.copytree(site, out, dirs_exist_ok=True)
    return entries


def _read_systems(
    runs: Sequence[str], options: ScoreOptions
) -> Iterator[tuple[str, Predictions, ScoreOptions, ScoreReport | None]]:
    """Yield each system's name, replies, how to score them, and the score report that was given for them."""
    sources: list[str] = []
    for run in runs:
        folder = Path(run)
        if (folder / RESULT).is_file():
            judged = read_run(folder)
            data = judged.dataset
            chosen = replace(options, config=options.config or data.config, split=options.split or data.split)
            for system in judged.comparison.systems:
                if system.kind != "canary":
                    answers = judged.comparison.answers[system.name]
                    generations = [file.get("generation") for file in system.source.get("files", ())]
                    file = PredictionFile(folder, "", len(answers), generations[0] if len(generations) == 1 else None)
                    replies = Predictions.pair_texts(list(answers), list(answers.values()))
                    yield system.name, replace(replies, files=(file,)), chosen, None
        elif folder.is_dir():
            files = [str(path) for path in sorted(folder.rglob("*.jsonl")) if read_sidecar(path)]
            if not files:
                raise DataError(
                    "neither a judging run nor predictions with a .meta.json are in this folder", path=folder
                )
            sources += files
        else:
            sources.append(run)
    for name, paths in parse_sources(sources).items():
        chosen, claimed = options, None
        if paths[0].suffix == ".json" and "metrics" in (value := read_json(paths[0])):
            claimed = ScoreReport.from_dict(value)
            settings = {key: getattr(claimed.options, key) for key in ("config", "split", *_SCORED)}
            chosen, paths = replace(options, **settings), _find_replies(paths[0], claimed)
        yield name.removesuffix(".json"), read_predictions(paths, skip_bad=options.skip_bad), chosen, claimed


def _sort_checks(runs: Sequence[str]) -> tuple[list[str], list[tuple[str, Run[None]]]]:
    """Tell checks of safety, each with the name that was given for its system, from what has replies to score."""
    sources, checks = [], []
    for source in runs:
        name, _, place = ("", "", source) if Path(source).exists() else source.rpartition("=")
        held = [run for run in find_runs(place, CheckSafety.kind) if run.folder == Path(place)]
        checks += [(name, run) for run in held]
        sources += [source] * (not held)
    return sources, checks


def _find_check(name: str, predictions: Predictions, checks: list[tuple[str, Run[None]]]) -> Run[None] | None:
    """Find the check of a system's model: of those given, which are then taken out, or next to replies or model."""
    meta = next((file.meta for file in predictions.files if file.meta), {})
    for index, (named, run) in enumerate(checks):
        if named == name or (not named and _is_of_model(run, meta)):
            del checks[index]
            return run
    places = [*(file.path.parent for file in predictions.files), *map(Path, filter(None, map(meta.get, _PLACES)))]
    held = (run for place in places if place.is_dir() for run in find_runs(place, CheckSafety.kind))
    return next((run for run in held if _is_of_model(run, meta)), None)


def _is_of_model(run: Run[None], meta: Mapping[str, Any]) -> bool:
    """Whether a check is of the model that replied: by its weights, or by name and address."""
    tuned = run.manifest["models"]["endpoints"][0]
    if weights := tuned.get("adapter_hash") or tuned.get("model_hash"):
        return bool(weights == (meta.get("adapter_hash") or meta.get("model_hash")))
    return [tuned] == meta.get("endpoints")


def _find_replies(path: Path, report: ScoreReport) -> list[Path]:
    """Find the replies behind a score report: the files next to it that have the hashes it names."""
    hashes = [file["sha256"] for file in report.fingerprint.get("predictions", ())]
    file_by_hash = {hash_file(file): file for file in path.parent.glob("*.json*") if file.is_file()}
    if not hashes or not all(digest in file_by_hash for digest in hashes):
        raise DataError("the replies behind these scores are not next to them; give the replies themselves", path=path)
    return [file_by_hash[digest] for digest in hashes]


def _publish_system(
    site: Path,
    name: str,
    predictions: Predictions,
    options: ScoreOptions,
    claimed: ScoreReport | None,
    check: Run[None] | None,
) -> Entry:
    """Publish replies, and score what was published; next to the scores, what was checked."""
    items, paths = iter(predictions.items), []
    for at, file in enumerate(predictions.files, start=1):
        path = site / "replies" / f"{make_safe_name(name)}{f'-{at}' if at > 1 else ''}.jsonl"
        if path.exists():
            raise SettingsError(f"two systems would have the file {path.name}; name them apart: NAME=P.jsonl")
        lines = ({key: getattr(item, key) for key in _LINE} for _, item in zip(range(file.count), items, strict=False))
        write_jsonl(path, ({key: value for key, value in line.items() if value is not None} for line in lines))
        if file.meta is not None:
            write_json(get_sidecar_path(path), strip_folders(file.meta))
        paths.append(path)
    report = score(paths, **dump(options))
    value = json.loads(json.dumps(report.to_dict()).replace(f"{site}/", ""))
    means, claimed_means = (
        {key: item and item.mean for key, item in x.metrics.items()} for x in (report, claimed or report)
    )
    if means != claimed_means:
        raise DataError(f"{name}: its replies score {means}, and not {claimed_means} as its score report says")
    scores = f"scores/{make_safe_name(name)}.json"
    write_json(site / scores, value)
    files = [path.relative_to(site).as_posix() for path in paths]
    words = ["rolellm", "score", *files, "--config", str(report.options.config)]
    for key in ("split", *_SCORED, "tokenizer"):
        if (chosen := getattr(report.options, key)) != ("test" if key == "split" else getattr(ScoreOptions(), key)):
            words += [f"--{key}", str(chosen)]
    safety: Sequence[Mapping[str, str]] = ()
    if check is not None:
        safety = list_safety_cells(check.summary)
        write_json(site / "safety" / f"{make_safe_name(name)}.json", {"date": check.manifest["date"], **check.summary})
    return Entry(
        name,
        ScoreReport.from_dict(value).leading,
        _describe_recipe(report),
        (scores, *files),
        shlex.join(words),
        _describe_model(next((file.meta for file in predictions.files if file.meta), {})),
        safety,
    )


def _describe_model(meta: Mapping[str, Any]) -> str:
    """Describe which model replied, how large it is, and when.

    >>> _describe_model({"model": "runs/ada", "base": "Qwen/Qwen2.5-0.5B", "parameters": 494032768})
    'ada on Qwen/Qwen2.5-0.5B · 494M parameters · date unknown'
    """
    names = [meta.get(key) for key in ("adapter", "model", "base")]
    shown = dict.fromkeys(name if is_hub_id(name) else Path(name).name for name in names if name)
    count = meta.get("parameters")
    scale, unit = next((pair for pair in _UNITS if count and count >= pair[0]), (1, ""))
    size = f"{count / scale:.{int(unit == 'B')}f}{unit} parameters" if count else "size unknown"
    return " · ".join([" on ".join(shown) or "model unknown", size, meta.get("date") or "date unknown"])


def _describe_recipe(report: ScoreReport) -> dict[str, str]:
    """Describe what must be equal for two scores to compare. A prompt is not: it is part of the system."""
    fingerprint = report.fingerprint
    answered = [row.id for row, answer in zip(report.rows, report.answers, strict=True) if answer is not None]
    treated = {"skip": "left out", "zero": "counted as 0"}[report.options.missing]
    answered_text = f"{len(answered):,} of {len(report.rows):,} ({hash_json(answered)[:8]}), the others {treated}"
    return {
        "config": str(report.options.config),
        "split": str(report.options.split),
        "data": str(fingerprint["dataset"]["fingerprint"])[:12],
        "protocol": report.options.protocol,
        "tokenizer": ", ".join(fingerprint["tokenizer"].values()),
        "answered rows": "all" if len(answered) == len(report.rows) else answered_text,
        "decoding": " + ".join(
            dict.fromkeys(describe_decoding(file["generation"] or {}) for file in fingerprint["predictions"])
        ),
    }


def _compare_recipes(entries: Sequence[Entry]) -> dict[str, list[str]]:
    """Map each part of the recipe in which the systems differ to its values."""
    values = {key: list(dict.fromkeys(entry.recipe[key] for entry in entries)) for key in entries[0].recipe}
    return {key: differing for key, differing in values.items() if len(differing) > 1}


def _describe_values(entries: Sequence[Entry], key: str, values: Sequence[str]) -> str:
    named = ((value, ", ".join(entry.name for entry in entries if entry.recipe[key] == value)) for value in values)
    return " / ".join(f"{value} ({names})" for value, names in named)


def ranks(score: Interval, scores: Sequence[Interval]) -> tuple[int, int]:
    """Return the best and the worst rank that a score may have among scores, itself included: overlaps settle nothing.

    >>> ranks(Interval(0.5, 0.4, 0.6), [Interval(0.5, 0.4, 0.6), Interval(0.55, 0.5, 0.7), Interval(0.1, 0.0, 0.2)])
    (1, 2)
    """
    low, high = score.ends or (-math.inf, math.inf)
    ends = [span.ends or (-math.inf, math.inf) for span in scores]
    return 1 + sum(span[0] > high for span in ends), len(ends) - sum(span[1] < low for span in ends)


def _render_page(entries: Sequence[Entry], unlike: Mapping[str, Sequence[str]]) -> str:
    columns = [name for name in COLUMNS if any(entry.report.metrics.get(name) for entry in entries)]
    boards: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        boards.setdefault(tuple(entry.recipe[key] for key in unlike), []).append(entry)
    roles = (ALL_ROLES, *roles_of(entry.report for entry in entries))
    facets = {"Role": roles, **{key.capitalize(): values for key, values in unlike.items()}}
    lines = [
        line
        for at in range(len(roles))
        for board in boards.values()
        for line in _build_lines(
            board, roles[at] if at else None, columns, [at, *_list_facet_indexes(board[0], unlike)]
        )
    ]
    top = max((cell["high"] for line in lines for cell in line["cells"] if cell), default=0)
    script = read_template("leaderboard.js")
    return (
        environment()
        .get_template("leaderboard.html.jinja")
        .render(
            entries=[(entry, facts(entry.report.fingerprint)) for entry in entries],
            columns=columns,
            lines=lines,
            facets=facets,
            unlike=unlike,
            recipe={key: value for key, value in entries[0].recipe.items() if key not in unlike},
            top=math.ceil(round(top * 10, 6)) / 10 or 0.1,
            figures=[
                (key, _draw_figures({system.name: system.report for system in board})) for key, board in boards.items()
            ],
            css=Markup(read_template("page.css") + read_template("leaderboard.css")),
            script=Markup(script),
            script_sha256=source_hash(script),
            version=__version__,
        )
    )


def _list_facet_indexes(entry: Entry, unlike: Mapping[str, Sequence[str]]) -> list[int]:
    return [values.index(entry.recipe[key]) for key, values in unlike.items()]


def _build_lines(
    board: Sequence[Entry], role: str | None, columns: Sequence[str], facet_indexes: Sequence[int]
) -> list[dict[str, Any]]:
    """Return the lines of the systems of one recipe, for one role or all, the best first."""
    summaries = [
        (system, system.report.metrics if role is None else system.report.by_role.get(role, {})) for system in board
    ]
    scores = {name: [score for _, summary in summaries if (score := summary.get(name))] for name in columns}
    lines = [
        {
            "entry": entry,
            "role": role,
            "places": facet_indexes,
            "values": [score.mean if (score := summary.get(name)) else -1 for name in columns],
            "cells": [_build_cell(summary.get(name), scores[name]) for name in columns],
        }
        for entry, summary in summaries
        if any(summary.values())
    ]
    return sorted(lines, key=lambda line: (line["values"][-1], line["values"]), reverse=True)


def _build_cell(score: Interval | None, scores: Sequence[Interval]) -> dict[str, Any] | None:
    if score is None:
        return None
    first, last = ranks(score, scores)
    rank = f"{first if first == last else f'{first}–{last}'} of {len(scores)}"
    low, high = score.ends or (score.mean, score.mean)
    return {"mean": score.mean, "low": low, "high": high, "n": score.n, "rank": rank, "ci": score.format_ends(3)}


def _draw_figures(reports: Mapping[str, ScoreReport]) -> list[str]:
    metrics = [metric for metric in METRICS if any(report.metrics.get(metric) for report in reports.values())]
    return [plots.intervals_svg(reports, metric) for metric in metrics]
