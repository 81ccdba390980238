"""Loading a checkpoint."""

from __future__ import annotations

from pathlib import Path

from rolellm.models.load import load_whole


def test_the_output_layer_gets_states_that_it_multiplies_at_once(tiny_model: Path) -> None:
    # Otherwise PyTorch copies the frozen layer for each row in half precision, which no figure of a result shows.
    import torch

    model = load_whole(tiny_model).requires_grad_(requires_grad=False)
    seen = []
    model.get_output_embeddings().register_forward_hook(lambda _, args, __: seen.append(args[0]))
    with torch.no_grad():
        model(torch.ones(3, 5, dtype=torch.long), logits_to_keep=1)
    assert [(states.shape[:2], states.is_contiguous()) for states in seen] == [((3, 1), True)]
