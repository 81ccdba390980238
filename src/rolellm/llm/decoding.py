"""How tokens are chosen: greedily, or by sampling that is seeded by content."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rolellm.errors import RecipeError
from rolellm.fingerprint import hash_json

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Decoding:
    """How a reply is decoded.

    Greedy is the default for local models (our choice: it can be reproduced). The paper's replies use temperature 0.7,
    top_p 0.95 and at most 200 new tokens (secondary source, see the facts in the documentation).

    Attributes:
        max_new_tokens: The most tokens a reply may have, its end token included.
        temperature: 0 decodes greedily; above 0 samples.
        top_p: Sampling keeps the smallest set of tokens whose probabilities reach this sum.
        seed: Together with a row's id it decides that row's draws, whatever stands beside it in a batch.

    Raises:
        RecipeError: For a value out of range.
    """

    max_new_tokens: int = 200
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise RecipeError(f"max_new_tokens is {self.max_new_tokens}; it has to be at least 1")
        if not 0 <= self.temperature < float("inf"):
            raise RecipeError(f"temperature is {self.temperature}; it has to be 0 (greedy) or above, and finite")
        if not 0 < self.top_p <= 1:
            raise RecipeError(f"top_p is {self.top_p}; it has to be above 0 and at most 1")

    def describe(self) -> dict[str, Any]:
        """The settings that matter, for a fingerprint: greedy decoding has no top_p and no seed."""
        if self.temperature == 0:
            return {"strategy": "greedy", "max_new_tokens": self.max_new_tokens}
        return {
            "strategy": "sample",
            "max_new_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": self.seed,
        }


def draws(seed: int, key: str, count: int) -> list[float]:
    """The random numbers in [0, 1) that decide a reply, one a token.

    They come from the content alone, so a reply survives reordering, resuming and another batch size.

    Args:
        seed: The run's seed.
        key: What is being answered, such as a row's id.
        count: How many; a longer list opens with the shorter one.
    """
    source = random.Random(int(hash_json([seed, key]), 16))
    return [source.random() for _ in range(count)]


class ContentSeededChoice:
    """A logits processor that samples each row with its own draws, by inverting its cumulative distribution.

    It leaves one token per row with a finite score, so greedy decoding after it is sampling. `transformers` itself
    draws from one generator for the whole batch, where a row's reply hangs on its neighbours.

    Args:
        numbers: Draws in [0, 1), of shape (batch, new tokens).
        prompt_length: Length of the padded prompts, in tokens.
    """

    def __init__(self, numbers: Sequence[Sequence[float]], prompt_length: int) -> None:
        self._numbers = numbers
        self._prompt_length = prompt_length

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Choose: scores of shape (batch, vocabulary) in, the same shape out, -inf everywhere but at the choice."""
        import torch

        step = input_ids.shape[1] - self._prompt_length
        drawn = torch.tensor([row[step] for row in self._numbers], dtype=scores.dtype, device=scores.device)
        # In the order of the vocabulary, not of the scores: near ties would swap places between batch sizes.
        cumulative = scores.softmax(dim=-1).cumsum(dim=-1)
        total = cumulative[:, -1:].contiguous()
        chosen = torch.searchsorted(cumulative, drawn[:, None] * total, right=True)
        # Rounding may put a draw just below 1 on the total itself; the last token with any probability takes it.
        chosen = torch.minimum(chosen, torch.searchsorted(cumulative, total))
        return torch.full_like(scores, -torch.inf).scatter(1, chosen, 0.0)
