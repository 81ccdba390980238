"""Which replies a loss or gradient that is no number comes from.

This module imports torch at its head; import it inside functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

_NAMED = 10


def guilty(model: Any, loss_of: Callable[[int], torch.Tensor], replies: Sequence[int]) -> list[int]:
    """Those of some replies whose loss or gradient is no number by itself; all where none can be told apart.

    Args:
        model: The model; its gradients are lost.
        loss_of: The loss of one reply, a scalar with its graph.
        replies: Places of examples.
    """
    found = []
    for reply in replies:
        model.zero_grad()
        loss = loss_of(reply)
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if not (math.isfinite(float(loss.detach())) and math.isfinite(float(norm))):
            found.append(reply)
    return found or list(replies)


def named(row_ids: Sequence[str]) -> str:
    """Row ids for a message: each once, not more than a few."""
    ids = list(dict.fromkeys(row_ids))
    more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    return ", ".join(ids[:_NAMED]) + more
