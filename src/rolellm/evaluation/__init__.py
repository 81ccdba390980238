"""Predictions and their scores: generate, match to rows, Rouge-L, intervals."""

from rolellm.evaluation.predictions import Predictions, read_predictions
from rolellm.evaluation.rouge import RougeScore, rouge_l
from rolellm.evaluation.score import ScoreOptions, ScoreReport, score
from rolellm.evaluation.statistics import bootstrap_ci

__all__ = [
    "Predictions",
    "RougeScore",
    "ScoreOptions",
    "ScoreReport",
    "bootstrap_ci",
    "read_predictions",
    "rouge_l",
    "score",
]
