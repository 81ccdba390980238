"""How much arithmetic a reply needs when nothing is computed twice, and how much of it a GPU could do.

Counted, in floating-point operations, with a multiplication and an addition as two:

- linear layers, ``N`` weights: 2N forward and 2N for the gradient of what came in, for each unique token; 2N more for
  the gradient of the weights only where they are trained. A frozen base under an adapter so costs 4N, the adapter 6N;
- attention: 4 x width a layer for each pair of a token and one that it sees, and twice that backward;
- the output layer: as a frozen linear layer, at places whose prediction is trained only.

Not counted, though a GPU does it: what gradient checkpointing computes again, unpacking 4-bit weights, norms, softmax,
the optimizer, padding, and anything that a rival computes twice. So model FLOP utilisation (MFU) here is on the low
side: with checkpointing of a frozen base, two thirds is what a GPU at its limit would reach. A unique token is one of
the tree of an optimizer step's replies, in which what rows begin with in common stands once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rolellm.models.prefix_sharing import PrefixTree, fold_rows
from rolellm.training.examples import Example

# Dense bf16 with float32 sums, in FLOP/s, from the vendors' data sheets, by a part of the device's name; longer first.
PEAKS = {
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "RTX 4090": 165e12,
}


def peak_flops(device: str) -> float | None:
    """The peak of a device by its name, or ``None`` for one that is not in the table."""
    return next((peak for name, peak in PEAKS.items() if name in device), None)


@dataclass(frozen=True, slots=True)
class Weights:
    """What of a model takes part in products.

    Attributes:
        linear: Weights of the frozen or trained linear layers, without output layer and adapters.
        head: Weights of the output layer.
        adapter: Weights of the adapters.
        layers: How many there are.
        width: Heads times their size.
        frozen: Whether only the adapters are trained.
    """

    linear: int
    head: int
    adapter: int
    layers: int
    width: int
    frozen: bool

    @classmethod
    def of(cls, model: Any, rank: int | None) -> Weights:
        """Count a model.

        Args:
            model: Without adapters; in 4 bits or not.
            rank: Of an adapter beside every linear layer but the output layer; ``None`` where all weights are trained.
        """
        head = model.get_output_embeddings()
        layers = [one for one in model.modules() if isinstance(one, torch.nn.Linear) and one is not head]
        config = model.config
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return cls(
            # Of the layers, not of the tensors, which in 4 bits have another shape.
            linear=sum(one.in_features * one.out_features for one in layers),
            head=head.in_features * head.out_features,
            adapter=(rank or 0) * sum(one.in_features + one.out_features for one in layers),
            layers=config.num_hidden_layers,
            width=config.num_attention_heads * size,
            frozen=rank is not None,
        )

    def flops(self, tokens: int, pairs: int, scored: int) -> float:
        """The arithmetic of so many unique tokens, pairs that see each other, and places that are scored."""
        each = 4 if self.frozen else 6
        products = (each * self.linear + 6 * self.adapter) * tokens + each * self.head * scored
        return float(products + 12 * self.layers * self.width * pairs)


def fold_examples(examples: list[Example], numbers: Sequence[int]) -> PrefixTree:
    """The tree of some examples."""
    rows = [examples[number].input_ids for number in numbers]
    mask = np.arange(max(map(len, rows))) < np.asarray([len(row) for row in rows])[:, None]
    ids = np.zeros(mask.shape, np.int64)
    ids[mask] = np.concatenate(rows)
    return fold_rows(ids, mask)


def flops_of_a_reply(weights: Weights, examples: list[Example], replies: int) -> float:
    """The mean over steps of so many replies each, as they follow each other in the examples."""
    total = 0.0
    for start in range(0, len(examples), replies):
        numbers = range(start, min(start + replies, len(examples)))
        tree = fold_examples(examples, numbers)
        scored = sum(len(examples[number].reply_ids) for number in numbers)
        total += weights.flops(len(tree.ids), int(np.sum(tree.positions + 1)), scored)
    return total / len(examples)
