"""Tunes a tiny model on the sample, and answers and scores with it: the functions behind train, generate and score.

The recipe is ``recipes/smoke-cpu.yaml``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rolellm.files import write_json
from rolellm.records import Prediction, Row

CONFIG, SPLIT = "sample", "test"
_MAX_NEW_TOKENS = 64


class Tuning:
    """The smoke recipe, carried out in two steps so that its base can answer before it is tuned.

    Args:
        folder: The run's.
    """

    def __init__(self, folder: Path) -> None:
        from rolellm.rocit.config import find_recipe, load_recipe

        self.folder = folder
        self.recipe = load_recipe(find_recipe("smoke-cpu"))

    def base(self) -> Path:
        """Build the base and warm it; return its folder."""
        from rolellm.rocit.bases import build_base
        from rolellm.rocit.prepare import prepare

        prepared = prepare(self.recipe, self.folder)
        return build_base(self.recipe, prepared.rows, self.folder, prepared.tokenizer)

    def tune(self) -> None:
        """Tune the base; an earlier run in the folder is replaced."""
        from rolellm.rocit.trainer import train

        train(self.recipe, self.folder, overwrite=True)

    def describe(self) -> dict[str, Any]:
        """The recipe and its hash, for the report."""
        return {"recipe": self.recipe.to_dict(), "recipe_hash": self.recipe.hash}


def answer(rows: Sequence[Row], model: Path, out: Path, fingerprint: str) -> dict[str, str]:
    """Answer the rows with a model, into a file; return the answers by row id."""
    from rolellm.evaluation.generate import GenerateSettings, generate
    from rolellm.evaluation.predictions import read_predictions
    from rolellm.llm.decoding import Decoding

    settings = GenerateSettings(
        model=str(model),
        decoding=Decoding(max_new_tokens=_MAX_NEW_TOKENS),
        batch_size=16,
        config=CONFIG,
        split=SPLIT,
        dataset_fingerprint=fingerprint,
        overwrite=True,
    )
    generate(rows, out, settings)
    return {item.id: item.prediction for item in read_predictions(out).items if item.id is not None}


def score_answers(rows: Sequence[Row], predictions: Path, fingerprint: str) -> dict[str, Any]:
    """Score a file of answers, and write the score beside it."""
    from rolellm.evaluation.predictions import read_predictions
    from rolellm.evaluation.score import ScoreOptions, score

    options = ScoreOptions(config=CONFIG, split=SPLIT, dataset_fingerprint=fingerprint, strict=True)
    report = score(rows, read_predictions(predictions), options).to_dict()
    write_json(predictions.with_suffix(".score.json"), report)
    return report


def score_baseline(rows: Sequence[Row], fingerprint: str) -> dict[str, Any]:
    """Score the replies that the rows bring along."""
    from rolellm.evaluation.predictions import Predictions
    from rolellm.evaluation.score import ScoreOptions, score

    items = tuple(Prediction(row.rolegpt, id=row.id) for row in rows if row.rolegpt is not None)
    options = ScoreOptions(config=CONFIG, split=SPLIT, dataset_fingerprint=fingerprint)
    return score(rows, Predictions(items), options).to_dict()
