"""The whole loop on the embedded sample: answer and score untuned, tune, answer and score again, report.

Offline, on a CPU, in minutes. What it runs are the functions behind ``rolellm train``, ``generate`` and ``score``,
with the recipe ``recipes/smoke-cpu.yaml``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rolellm.errors import RecipeError
from rolellm.extras import require
from rolellm.files import write_json
from rolellm.records import Prediction, Row

UNTUNED = "untuned"
TUNED = "tuned"
BASELINE = "RoleGPT (sample)"
_CONFIG, _SPLIT = "sample", "test"
_MAX_NEW_TOKENS = 64
_SUMMARY = "summary.json"


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What a demo left behind.

    Attributes:
        out: Its folder: ``run/`` (the tuned model and its base), ``*.jsonl`` (answers), ``*.score.json``, the report.
        page: The report.
        reports: Each system's score, in the shape of ``rolellm score --json``, in the order to show.
        seconds: Wall time of each stage.
    """

    out: Path
    page: Path
    reports: dict[str, dict[str, Any]]
    seconds: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """As one JSON object: folder, report, wall times and each system's metrics."""
        metrics = {name: report["metrics"] for name, report in self.reports.items()}
        return {"out": str(self.out), "report": str(self.page), "seconds": self.seconds, "metrics": metrics}


def run_demo(out: str | Path, *, say: Callable[[str], None] = lambda _: None) -> DemoResult:
    """Run the loop; an earlier demo in the same folder is replaced.

    Args:
        out: The folder to write.
        say: Called with a line before each stage.

    Raises:
        RecipeError: When ``out`` holds something that no demo left there.
        MissingExtraError: Without the extra ``demo``.
    """
    require("torch", "transformers", "trl", "peft", "accelerate", extra="demo")
    require("matplotlib", extra="demo")
    _settle_libraries()
    folder = Path(out)
    _claim(folder)
    from rolellm.rolebench import dataset_fingerprint, load_rolebench

    clock = _Clock(say)
    clock.start("load", "Loading the sample")
    rows = [Row.from_columns(columns) for columns in load_rolebench(_CONFIG, _SPLIT)]
    fingerprint = dataset_fingerprint(_CONFIG)

    tuning = _Tuning(folder / "run")
    clock.start("base", "Building a tiny LLaMA from the sample's train rows, and warming it on role-free answers")
    base = tuning.base()
    reports = {}
    clock.start(UNTUNED, f"Answering {len(rows)} held-out questions with the untuned model, and scoring")
    answers = {UNTUNED: _answer(rows, base, folder / "untuned.jsonl", fingerprint)}
    reports[UNTUNED] = _score(rows, folder / "untuned.jsonl", fingerprint)
    clock.start("tune", "Tuning it on the sample's train rows (RoCIT)")
    tuning.tune()
    clock.start(TUNED, f"Answering {len(rows)} held-out questions with the tuned model, and scoring")
    answers[TUNED] = _answer(rows, tuning.folder, folder / "tuned.jsonl", fingerprint)
    reports[TUNED] = _score(rows, folder / "tuned.jsonl", fingerprint)
    reports[BASELINE] = _score_baseline(rows, fingerprint)
    clock.start("report", "Writing the report")
    page = _write_page(folder, rows, reports, answers, tuning.describe())
    result = DemoResult(folder, page, reports, clock.stop())
    write_json(folder / _SUMMARY, result.to_dict())
    return result


def _settle_libraries() -> None:
    import torch
    from transformers.utils import logging

    # Bars for reading and writing a model this small would only flicker.
    logging.disable_progress_bar()
    # Faster by half with two threads where both cores are idle, eight times slower where one is not: see decisions.md.
    torch.set_num_threads(1)


def _claim(folder: Path) -> None:
    """Take the folder if it is new, empty, or an earlier demo's."""
    if folder.exists() and not folder.is_dir():
        raise RecipeError(f"{folder} is a file; the demo needs a folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / _SUMMARY).is_file():
        raise RecipeError(f"{folder} holds other files; name another folder with --out")
    write_json(folder / _SUMMARY, {"state": "running"})


class _Clock:
    """Wall time by stage."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._seconds: dict[str, float] = {}
        self._begun: tuple[str, float] | None = None

    def start(self, stage: str, line: str) -> None:
        self.stop()
        self._say(line)
        self._begun = stage, time.monotonic()

    def stop(self) -> dict[str, float]:
        if self._begun is not None:
            stage, begun = self._begun
            self._seconds[stage] = round(time.monotonic() - begun, 2)
            self._begun = None
        return self._seconds


class _Tuning:
    """The smoke recipe, carried out in two steps so that its base can answer before it is tuned."""

    def __init__(self, folder: Path) -> None:
        from rolellm.rocit.config import find_recipe, load_recipe

        self.folder = folder
        self.recipe = load_recipe(find_recipe("smoke-cpu"))

    def base(self) -> Path:
        from rolellm.rocit.bases import build_base
        from rolellm.rocit.prepare import prepare

        prepared = prepare(self.recipe, self.folder)
        return build_base(self.recipe, prepared.rows, self.folder, prepared.tokenizer)

    def tune(self) -> None:
        from rolellm.rocit.trainer import train

        train(self.recipe, self.folder, overwrite=True)

    def describe(self) -> dict[str, Any]:
        return {"recipe": self.recipe.to_dict(), "recipe_hash": self.recipe.hash}


def _answer(rows: Sequence[Row], model: Path, out: Path, fingerprint: str) -> dict[str, str]:
    from rolellm.evaluation.generate import GenerateSettings, generate
    from rolellm.evaluation.predictions import read_predictions
    from rolellm.llm.decoding import Decoding

    settings = GenerateSettings(
        model=str(model),
        decoding=Decoding(max_new_tokens=_MAX_NEW_TOKENS),
        batch_size=16,
        config=_CONFIG,
        split=_SPLIT,
        dataset_fingerprint=fingerprint,
        overwrite=True,
    )
    generate(rows, out, settings)
    return {item.id: item.prediction for item in read_predictions(out).items if item.id is not None}


def _score(rows: Sequence[Row], predictions: Path, fingerprint: str) -> dict[str, Any]:
    from rolellm.evaluation.predictions import read_predictions
    from rolellm.evaluation.score import ScoreOptions, score

    options = ScoreOptions(config=_CONFIG, split=_SPLIT, dataset_fingerprint=fingerprint, strict=True)
    report = score(rows, read_predictions(predictions), options).to_dict()
    write_json(predictions.with_suffix(".score.json"), report)
    return report


def _score_baseline(rows: Sequence[Row], fingerprint: str) -> dict[str, Any]:
    from rolellm.evaluation.predictions import Predictions
    from rolellm.evaluation.score import ScoreOptions, score

    items = tuple(Prediction(row.rolegpt, id=row.id) for row in rows if row.rolegpt is not None)
    options = ScoreOptions(config=_CONFIG, split=_SPLIT, dataset_fingerprint=fingerprint)
    return score(rows, Predictions(items), options).to_dict()


def _write_page(
    folder: Path,
    rows: Sequence[Row],
    reports: Mapping[str, dict[str, Any]],
    answers: Mapping[str, Mapping[str, str]],
    recipe: Mapping[str, Any],
) -> Path:
    from rolellm.report.page import PageContent, write_page

    content = PageContent(
        title="RoleLLM demo",
        summary=(
            "A tiny LLaMA, built from the embedded sample, before and after role-conditioned tuning. The sample's "
            "RoleGPT row is its sixth reply, held out from the references and written by the same hand."
        ),
        split_note=(
            "One instruction of each family of four, and eight questions a role, were held out: no test question "
            "stands in train. The sample's roles are in both."
        ),
        reports=reports,
        rows=rows,
        answers=answers,
        baseline=BASELINE,
        recipe=recipe,
    )
    return write_page(folder / "report.html", content)
