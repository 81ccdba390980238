"""A leaderboard as a static site: scores with intervals and ranks, and with every row the replies behind it.

::

    SITE/
      index.html       tables, plots and filters; all it needs is in the file
      replies/         what was scored: NAME.jsonl, with NAME.jsonl.meta.json where it is known how they were made
      scores/          NAME.json, what `rolellm score --json` prints about them

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

from rolellm.core.errors import DataError, SettingsError
from rolellm.core.files import whole_file, write_json
from rolellm.core.fingerprint import hash_file, hash_json
from rolellm.core.jsonl import read_json, write_jsonl
from rolellm.core.settings import dump
from rolellm.core.text import safe_name
from rolellm.evaluation.predictions import PredictionFile, Predictions, read_predictions, read_sidecar, sidecar_path
from rolellm.evaluation.score import METRICS, ScoreReport, score
from rolellm.evaluation.settings import ScoreOptions
from rolellm.evaluation.statistics.bootstrap import Interval
from rolellm.judging.folder import RESULT, read_run
from rolellm.judging.systems import parse_sources
from rolellm.report import plots
from rolellm.report.browse import source_hash
from rolellm.report.page import facts
from rolellm.report.score_table import COLUMNS, roles_of
from rolellm.report.templates import environment, read
from rolellm.version import __version__

ALL_ROLES = "All roles"
#: What a score report says of how it was made, and ScoreOptions calls the same.
_SCORED = ("protocol", "missing", "resamples", "seed")
#: What a line of published replies holds, where it is known.
_LINE = ("id", "role", "question", "prediction")
#: Names of a limit on new tokens, ours first, then those of lm-evaluation-harness, inspect_ai and lighteval.
_LIMITS = ("max_new_tokens", "max_gen_toks", "max_tokens")


@dataclass(frozen=True, slots=True)
class Entry:
    """A system on the board.

    Attributes:
        name: The system's.
        report: The scores of its published replies.
        recipe: What must be equal for two scores to compare: name to value, as text.
        files: What is published of it, relative to the site: its scores, then its replies.
        command: What gives the scores anew, in the folder of the site.
    """

    name: str
    report: ScoreReport
    recipe: Mapping[str, str]
    files: tuple[str, ...]
    command: str


def leaderboard(
    runs: Sequence[str | Path], out: str | Path, options: ScoreOptions | None = None, *, mixed: bool = False
) -> list[Entry]:
    """Write the site.

    Args:
        runs: Files of predictions and harnesses' logs (``P.jsonl`` or ``NAME=P.jsonl``), score reports
            (``rolellm score --json``) that lie next to their replies, folders of predictions, folders of judging runs.
        out: The site's folder; other files in it stay.
        options: How to score; config and split are by default those that the runs name.
        mixed: Show runs of unlike recipes, each ranked among its like.

    Raises:
        SettingsError: For runs of unlike recipes without ``mixed``, or two systems of one name.
        DataError: For a run that cannot be read, or a score report that its replies do not bear out.
    """
    with tempfile.TemporaryDirectory(prefix="rolellm-") as folder:
        # The folder itself is for our eyes only, and the site is not.
        site, entries = Path(folder) / "site", []
        for name, predictions, chosen, claimed in _systems(list(map(str, runs)), options or ScoreOptions()):
            entries.append(_published(site, name, predictions, chosen, claimed))
        unlike = _unlike(entries)
        if unlike and not mixed:
            differing = "; ".join(f"{key}: {_values(entries, key, values)}" for key, values in unlike.items())
            raise SettingsError(
                f"these runs do not compare, since they differ in {differing}. Leave some out, or add --mixed, which "
                "ranks each among its like"
            )
        with whole_file(site / "index.html") as stream:
            stream.write(_page(entries, unlike))
        shutil.copytree(site, out, dirs_exist_ok=True)
    return entries


def _systems(
    runs: Sequence[str], options: ScoreOptions
) -> Iterator[tuple[str, Predictions, ScoreOptions, ScoreReport | None]]:
    """Each system's name, replies, how to score them, and the score report that was given for them."""
    sources: list[str] = []
    for run in runs:
        folder = Path(run)
        if (folder / RESULT).is_file():
            judged = read_run(folder)
            named = judged.named.dataset
            chosen = replace(options, config=options.config or named.config, split=options.split or named.split)
            for one in judged.comparison.systems:
                if one.kind != "canary":
                    answers = judged.comparison.answers[one.name]
                    made = [file.get("generation") for file in one.source.get("files", ())]
                    file = PredictionFile(folder, "", len(answers), made[0] if len(made) == 1 else None)
                    replies = Predictions.from_texts(list(answers), list(answers.values()))
                    yield one.name, replace(replies, files=(file,)), chosen, None
        elif folder.is_dir():
            found = [str(path) for path in sorted(folder.rglob("*.jsonl")) if read_sidecar(path)]
            if not found:
                raise DataError(
                    "neither a judging run nor predictions with a .meta.json are in this folder", path=folder
                )
            sources += found
        else:
            sources.append(run)
    for name, paths in parse_sources(sources).items():
        chosen, claimed = options, None
        if paths[0].suffix == ".json" and "metrics" in (value := read_json(paths[0])):
            claimed = ScoreReport.from_dict(value)
            said = {key: getattr(claimed.options, key) for key in ("config", "split", *_SCORED)}
            chosen, paths = replace(options, **said), _replies_of(paths[0], claimed)
        yield name.removesuffix(".json"), read_predictions(paths, skip_bad=options.skip_bad), chosen, claimed


def _replies_of(path: Path, report: ScoreReport) -> list[Path]:
    """The replies behind a score report: the files next to it that have the hashes it names."""
    wanted = [file["sha256"] for file in report.fingerprint.get("predictions", ())]
    there = {hash_file(file): file for file in path.parent.glob("*.json*") if file.is_file()}
    if not wanted or not all(one in there for one in wanted):
        raise DataError("the replies behind these scores are not next to them; give the replies themselves", path=path)
    return [there[one] for one in wanted]


def _published(
    site: Path, name: str, predictions: Predictions, options: ScoreOptions, claimed: ScoreReport | None
) -> Entry:
    """Publish replies, and score what was published."""
    items, paths = iter(predictions.items), []
    for at, file in enumerate(predictions.files, start=1):
        path = site / "replies" / f"{safe_name(name)}{f'-{at}' if at > 1 else ''}.jsonl"
        if path.exists():
            raise SettingsError(f"two systems would have the file {path.name}; name them apart: NAME=P.jsonl")
        lines = ({key: getattr(one, key) for key in _LINE} for _, one in zip(range(file.count), items, strict=False))
        write_jsonl(path, ({key: value for key, value in line.items() if value is not None} for line in lines))
        if file.meta is not None:
            write_json(sidecar_path(path), _without_places(file.meta))
        paths.append(path)
    report = score(paths, **dump(options))
    value = json.loads(json.dumps(report.to_dict()).replace(f"{site}/", ""))
    found, given = ({key: one and one.mean for key, one in x.metrics.items()} for x in (report, claimed or report))
    if found != given:
        raise DataError(f"{name}: its replies score {found}, and not {given} as its score report says")
    scores = f"scores/{safe_name(name)}.json"
    write_json(site / scores, value)
    files = [path.relative_to(site).as_posix() for path in paths]
    words = ["rolellm", "score", *files, "--config", str(report.options.config)]
    for key in ("split", *_SCORED, "tokenizer"):
        if (chosen := getattr(report.options, key)) != ("test" if key == "split" else getattr(ScoreOptions(), key)):
            words += [f"--{key}", str(chosen)]
    report = replace(report, value=value, warnings=tuple(value["warnings"]))
    return Entry(name, report, _recipe(report), (scores, *files), shlex.join(words))


def _without_places(value: Any) -> Any:
    """A sidecar without the folders of the machine that wrote it."""
    if isinstance(value, Mapping):
        return {key: _without_places(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_places(item) for item in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def _recipe(report: ScoreReport) -> dict[str, str]:
    """What must be equal for two scores to compare. A prompt is not: it is part of the system."""
    found = report.fingerprint
    answered = [row.id for row, answer in zip(report.rows, report.answers, strict=True) if answer is not None]
    treated = {"skip": "left out", "zero": "counted as 0"}[report.options.missing]
    some = f"{len(answered):,} of {len(report.rows):,} ({hash_json(answered)[:8]}), the others {treated}"
    return {
        "config": str(report.options.config),
        "split": str(report.options.split),
        "data": str(found["dataset"]["fingerprint"])[:12],
        "protocol": report.options.protocol,
        "tokenizer": ", ".join(found["tokenizer"].values()),
        "answered rows": "all" if len(answered) == len(report.rows) else some,
        "decoding": " + ".join(dict.fromkeys(_decoding(file["generation"] or {}) for file in found["predictions"])),
    }


def _decoding(made: Mapping[str, Any]) -> str:
    """Decoding in the same words, whichever program decoded."""
    given = made.get("decoding")
    if not given:
        return "not recorded"
    sampled = given.get("do_sample") or (given.get("temperature") or 0) > 0
    found = [str(given.get("strategy") or ("sample" if sampled else "greedy"))]
    more = ("num_beams", "temperature", "top_p", "top_k", "seed") if found != ["greedy"] else ()
    found += [f"{key} {given[key]}" for key in (*more, "until", "stop_seqs") if given.get(key)]
    return ", ".join([*found, f"at most {next((given[key] for key in _LIMITS if given.get(key)), '?')} tokens"])


def _unlike(entries: Sequence[Entry]) -> dict[str, list[str]]:
    """Each part of the recipe in which the systems differ, to its values."""
    values = {key: list(dict.fromkeys(entry.recipe[key] for entry in entries)) for key in entries[0].recipe}
    return {key: found for key, found in values.items() if len(found) > 1}


def _values(entries: Sequence[Entry], key: str, values: Sequence[str]) -> str:
    named = ((value, ", ".join(one.name for one in entries if one.recipe[key] == value)) for value in values)
    return " / ".join(f"{value} ({names})" for value, names in named)


def ranks(score: Interval, scores: Sequence[Interval]) -> tuple[int, int]:
    """The best and the worst place that a score may have among scores, itself one of them: overlaps settle nothing.

    >>> ranks(Interval(0.5, 0.4, 0.6), [Interval(0.5, 0.4, 0.6), Interval(0.55, 0.5, 0.7), Interval(0.1, 0.0, 0.2)])
    (1, 2)
    """
    low, high = score.ends or (-math.inf, math.inf)
    ends = [one.ends or (-math.inf, math.inf) for one in scores]
    return 1 + sum(one[0] > high for one in ends), len(ends) - sum(one[1] < low for one in ends)


def _page(entries: Sequence[Entry], unlike: Mapping[str, Sequence[str]]) -> str:
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
        for line in _lines(board, roles[at] if at else None, columns, [at, *_places(board[0], unlike)])
    ]
    top = max((cell["high"] for line in lines for cell in line["cells"] if cell), default=0)
    script = read("leaderboard.js")
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
            figures=[(key, _figures({one.name: one.report for one in board})) for key, board in boards.items()],
            css=Markup(read("page.css") + read("leaderboard.css")),
            script=Markup(script),
            script_sha256=source_hash(script),
            version=__version__,
        )
    )


def _places(entry: Entry, unlike: Mapping[str, Sequence[str]]) -> list[int]:
    return [values.index(entry.recipe[key]) for key, values in unlike.items()]


def _lines(
    board: Sequence[Entry], role: str | None, columns: Sequence[str], places: Sequence[int]
) -> list[dict[str, Any]]:
    """The lines of the systems of one recipe, for one role or all, the best first."""
    found = [(one, one.report.metrics if role is None else one.report.by_role.get(role, {})) for one in board]
    scores = {name: [score for _, summary in found if (score := summary.get(name))] for name in columns}
    lines = [
        {
            "entry": entry,
            "role": role,
            "places": places,
            "values": [score.mean if (score := summary.get(name)) else -1 for name in columns],
            "cells": [_cell(summary.get(name), scores[name]) for name in columns],
        }
        for entry, summary in found
        if any(summary.values())
    ]
    return sorted(lines, key=lambda line: (line["values"][-1], line["values"]), reverse=True)


def _cell(score: Interval | None, scores: Sequence[Interval]) -> dict[str, Any] | None:
    if score is None:
        return None
    first, last = ranks(score, scores)
    rank = f"{first if first == last else f'{first}–{last}'} of {len(scores)}"
    low, high = score.ends or (score.mean, score.mean)
    return {"mean": score.mean, "low": low, "high": high, "n": score.n, "rank": rank, "ci": score.brackets(3)}


def _figures(reports: Mapping[str, ScoreReport]) -> list[Markup]:
    drawn = [metric for metric in METRICS if any(report.metrics.get(metric) for report in reports.values())]
    return [Markup(plots.intervals_svg(reports, metric).replace(plots.NAMESPACE, "", 1)) for metric in drawn]
