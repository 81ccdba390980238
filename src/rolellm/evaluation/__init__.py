"""Predictions and their scores. Start at `generate` (a model answers rows) and `score` (CUS, RAW, SPE, intervals)."""

from typing import TYPE_CHECKING

from rolellm.core.lazy import lazy as _lazy

if TYPE_CHECKING:
    from rolellm.evaluation.predictions import Predictions as Predictions
    from rolellm.evaluation.predictions import read_predictions as read_predictions
    from rolellm.evaluation.rouge import RougeScore as RougeScore
    from rolellm.evaluation.rouge import rouge_l as rouge_l
    from rolellm.evaluation.score import ScoreReport as ScoreReport
    from rolellm.evaluation.settings import ScoreOptions as ScoreOptions
    from rolellm.evaluation.statistics import bootstrap_ci as bootstrap_ci

_NAMES = {
    "Predictions": "rolellm.evaluation.predictions:Predictions",
    "RougeScore": "rolellm.evaluation.rouge:RougeScore",
    "ScoreOptions": "rolellm.evaluation.settings:ScoreOptions",
    "ScoreReport": "rolellm.evaluation.score:ScoreReport",
    "bootstrap_ci": "rolellm.evaluation.statistics:bootstrap_ci",
    "read_predictions": "rolellm.evaluation.predictions:read_predictions",
    "rouge_l": "rolellm.evaluation.rouge:rouge_l",
}

__all__ = [*_NAMES]

__getattr__, __dir__ = _lazy(__name__, _NAMES)
