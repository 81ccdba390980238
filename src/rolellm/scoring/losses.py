"""The loss of what was said, by a local model: how likely it finds the real replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rolellm.core.progress import track_progress
from rolellm.core.records import Row
from rolellm.models.local_model import LocalModel
from rolellm.models.prompts.encode import PromptEncoder, encode_replies, find_end_token
from rolellm.scoring.own_turns import Messages
from rolellm.scoring.statistics.intervals import ClusteredSample


def measure_losses(model: LocalModel, rows: Sequence[Row], messages: Mapping[str, Messages]) -> ClusteredSample:
    """Measure the loss of each token of the first references, end tokens included; dialogues are the clusters.

    Args:
        model: The model; replies are cut at the end of its context.
        rows: What was said.
        messages: Row id to the turns that ask for the reply.
    """
    encode = PromptEncoder(model.tokenizer)
    end = find_end_token(model.tokenizer)
    replies = encode_replies(model.tokenizer, [row.references[0] for row in rows])
    losses: list[float] = []
    clusters: list[str] = []
    roles: list[str] = []
    for row, reply in track_progress(list(zip(rows, replies, strict=True)), "measuring the loss"):
        prompt = encode(messages[row.id])
        token_losses = model.measure_losses(prompt, [*reply, end])
        losses += token_losses
        clusters += [row.dialogue or row.id] * len(token_losses)
        roles += [row.role] * len(token_losses)
    return ClusteredSample(losses, clusters, roles)
