"""From examples to tensors: a forward pass as padded rows or as one packed tree, and the loss of either.

This module imports torch at its head; import it inside functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch.nn.functional import cross_entropy, pad
from torch.nn.utils.rnn import pad_sequence

from rolellm.rocit.packing.attention import block_mask, blocks
from rolellm.rocit.packing.examples import IGNORED, Example, Examples
from rolellm.rocit.packing.plan import Plan
from rolellm.rocit.packing.tree import Packed, pack

# Number of lengths that packs are padded to on a GPU, evenly spaced up to the budget, so that kernels are compiled for
# few shapes; multiples of FlexAttention's blocks.
_LENGTHS = 8
_BLOCK = 128

# Positions whose predictions are measured at once.
_SLICE = 256
_NOTHING = torch.empty(1, 1, 0, 0)


class Layout:
    """Turns the number of a forward pass into its tensors; the collator of the training loop.

    Args:
        examples: All examples.
        plan: Which of them each forward pass takes.
        packed: Trees, instead of padded rows.
        pad_id: The token that rows and packs are padded with; it is never seen and never trained.
        pad_to: Pad packs to one of a few lengths up to N tokens, for FlexAttention; ``None`` leaves them as they are.
    """

    def __init__(self, examples: Examples, plan: Plan, *, packed: bool, pad_id: int, pad_to: int | None = None) -> None:
        self.examples = examples
        self.plan = plan
        self._packed = packed
        self._pad_id = pad_id
        self._pad_to = pad_to
        self.flex = pad_to is not None

    def __call__(self, passes: Sequence[Mapping[str, int]]) -> dict[str, Any]:
        """The tensors of one forward pass, and its number: ``[{"pass": number}]``."""
        (one,) = passes
        return {**self.of(self.plan[one["pass"]].tolist()), **one}

    def of(self, chosen: Sequence[int]) -> dict[str, torch.Tensor]:
        """The tensors of any examples, by their places."""
        if not self._packed:
            return padded_rows([self.examples[place] for place in chosen], self._pad_id)
        tree = pack(self.examples, chosen)
        length = max(1, len(tree.ids))
        if self._pad_to is not None:
            step = max(_BLOCK, -(-self._pad_to // (_LENGTHS * _BLOCK)) * _BLOCK)
            length = -(-length // step) * step
        return tree_tensors(tree, length, self._pad_id)


def padded_rows(rows: Sequence[Example], pad_id: int) -> dict[str, torch.Tensor]:
    """Examples as rows of one length: ``input_ids``, ``attention_mask`` and ``labels``, each ``(rows, longest)``.

    Without any it is one padded token, which is seen, since a row that sees nothing has no numbers, and not trained.
    """
    if not rows:
        ids = torch.full((1, 1), pad_id)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.full_like(ids, IGNORED)}
    parts = {
        "input_ids": ([row.input_ids for row in rows], pad_id),
        "attention_mask": ([[1] * len(row.input_ids) for row in rows], 0),
        "labels": ([row.labels for row in rows], IGNORED),
    }
    return {
        name: pad_sequence([torch.tensor(row) for row in values], batch_first=True, padding_value=padding)
        for name, (values, padding) in parts.items()
    }


def tree_tensors(tree: Packed, length: int, pad_id: int) -> dict[str, torch.Tensor]:
    """A packed tree as tensors, padded to a length.

    Returns:
        ``input_ids`` and ``position_ids`` ``(1, length)``, ``ends`` ``(length,)``, ``scored`` and ``targets``
        ``(trained,)``; a padded token sees itself alone, and nothing sees it.
    """
    real = len(tree.ids)
    return {
        "input_ids": pad(torch.from_numpy(tree.ids).long(), (0, length - real), value=pad_id)[None],
        "position_ids": pad(torch.from_numpy(tree.positions), (0, length - real))[None],
        "ends": torch.cat([torch.from_numpy(tree.ends), torch.arange(real + 1, length + 1)]),
        "scored": torch.from_numpy(tree.scored).long(),
        "targets": torch.from_numpy(tree.targets).long(),
    }


def trained_tokens(batch: Mapping[str, torch.Tensor]) -> int:
    """How many tokens the loss of a forward pass falls on."""
    return len(batch["targets"]) if "targets" in batch else int((batch["labels"][:, 1:] != IGNORED).sum())


def summed_loss(
    model: Any,
    batch: Mapping[str, torch.Tensor],
    *,
    flex: bool = False,
    router: torch.Tensor | None = None,
    tally: torch.Tensor | None = None,
) -> torch.Tensor:
    """The negative log-likelihood of a forward pass, in nats, summed over its trained tokens.

    Only positions before a trained token go through the output layer: prompts are most of the tokens.

    Args:
        model: A causal language model of transformers, or what wraps one; for trees, `packing.attention.attend`
            has set its attention.
        batch: Tensors as from `Layout`.
        flex: Trees go through FlexAttention, instead of SDPA block by block.
        router: With rows, the weight at which the load-balancing loss of a mixture of experts is added.
        tally: ``(3,)``: trained tokens, those predicted right, and the entropy of their predictions in nats are added.
    """
    if "targets" in batch:
        places = batch["ends"], batch["position_ids"][0]
        # An empty mask, so that an attention that does not know of blocks fails instead of seeing everything.
        sight = (
            {"attention_mask": block_mask(*places), "tree": cache(partial(block_mask, *places))}
            if flex
            else {"attention_mask": _NOTHING, "tree": blocks(*places)}
        )
        logits = model(
            input_ids=batch["input_ids"],
            position_ids=batch["position_ids"],
            use_cache=False,
            logits_to_keep=batch["scored"],
            **sight,
        ).logits[0]
        # The product keeps a pass without replies in the graph, which processes that train together rely on.
        return _nll(logits, batch["targets"], tally) if len(batch["targets"]) else logits.sum() * 0.0
    labels = batch["labels"][:, 1:]
    scored = (labels != IGNORED).any(dim=0).nonzero().flatten()
    output = model(
        input_ids=batch["input_ids"],
        attention_mask=batch["attention_mask"],
        use_cache=False,
        logits_to_keep=scored,
        **({} if router is None else {"output_router_logits": True}),
    )
    loss = _nll(output.logits.flatten(0, 1), labels[:, scored].flatten(), tally)
    return loss if router is None else loss + router * output.aux_loss


def _nll(logits: torch.Tensor, targets: torch.Tensor, tally: torch.Tensor | None = None) -> torch.Tensor:
    if tally is not None:
        _count(logits.detach(), targets, tally)
    return cross_entropy(logits.float(), targets, ignore_index=IGNORED, reduction="sum")


def _count(logits: torch.Tensor, targets: torch.Tensor, tally: torch.Tensor) -> None:
    # In slices, because a second copy of the logits would not fit next to a large vocabulary's.
    for some, wanted in zip(torch.split(logits, _SLICE), torch.split(targets, _SLICE), strict=True):
        trained = wanted != IGNORED
        scores = some[trained].float()
        logs = scores.log_softmax(-1)
        entropy = -(logs.exp() * logs).sum()
        tally += torch.stack([trained.sum(), (scores.argmax(-1) == wanted[trained]).sum(), entropy])
