"""Predictions and their scores. Start at `generate` (a model answers rows) and `score` (CUS, RAW, SPE, intervals)."""

from typing import TYPE_CHECKING

from rolellm.core.lazy import lazy as _lazy

if TYPE_CHECKING:
    from rolellm.evaluation.rouge import rouge_l as rouge_l

__all__ = ["rouge_l"]

__getattr__, __dir__ = _lazy(__name__, {"rouge_l": "rolellm.evaluation.rouge:rouge_l"})
