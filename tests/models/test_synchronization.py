"""Rows that were folded on the host go through a model, and their gradients back, without waiting for its device."""

from typing import Any

import pytest
import torch

from rolellm.models.prefix_sharing import fold_batch, share_prefixes

from ..training.models import new_model, with_adapter
from ..training.test_families import VOCABULARY
from .test_prefix_sharing import role_batch

pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
BATCH = role_batch()


def take_pass(backbone: Any, device: str, rows: Any) -> None:
    """A pass and its gradients as far as the hidden states; what TRL's head and its metrics do is theirs."""
    inputs = {name: values.to(device) for name, values in BATCH.items() if name != "labels"}
    states = backbone(**inputs, folded_rows=rows, use_cache=False).last_hidden_state
    states.float().sum().backward()


@pytest.mark.parametrize("family", ["Llama", "Gemma2", "Qwen3"])
def test_a_pass_reads_no_number_back(family: str) -> None:
    """On torch's ``meta`` device there is none to read: whatever would wait for a number fails."""
    model = with_adapter(new_model(family, VOCABULARY)).to("meta").train()
    sharing = share_prefixes(model, attention="blocks")
    backbone = model.get_base_model().base_model
    with pytest.raises((NotImplementedError, RuntimeError)):
        take_pass(backbone, "meta", None)
    take_pass(backbone, "meta", fold_batch(BATCH))
    assert sharing.folded_tokens


@pytest.mark.gpu
@pytest.mark.parametrize("attention", ["flex", "blocks"])
def test_on_a_gpu_a_pass_waits_for_nothing(attention: Any) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    model = with_adapter(new_model("Llama", VOCABULARY, hidden_size=128, head_dim=32)).cuda().train()
    share_prefixes(model, attention=attention)
    backbone = model.get_base_model().base_model
    rows = fold_batch(BATCH)
    # The first pass compiles.
    take_pass(backbone, "cuda", rows)
    inputs = {name: values.cuda() for name, values in BATCH.items() if name != "labels"}
    torch.cuda.set_sync_debug_mode("error")
    try:
        states = backbone(**inputs, folded_rows=rows, use_cache=False).last_hidden_state
        states.float().sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_labels_other_than_those_that_rows_were_folded_with_are_noticed() -> None:
    """A trainer may make labels of its own; their number is compared on the device."""
    from trl.trainer import utils

    if not hasattr(utils, "add_fused_lm_head"):
        pytest.skip("TRL before 1.16 scores without a fused head")
    model = new_model("Llama", VOCABULARY)
    utils.add_fused_lm_head(model)
    share_prefixes(model)
    rows = fold_batch(BATCH)
    model(**BATCH, folded_rows=rows, fused_lm_head=True)
    labels = BATCH["labels"].clone()
    labels[0] = -100
    with pytest.raises(RuntimeError):
        model(**BATCH | {"labels": labels}, folded_rows=rows, fused_lm_head=True)
