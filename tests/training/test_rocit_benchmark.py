"""The training benchmarks count right, and their rivals do the same work."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ..versions import needs

pytestmark = pytest.mark.slow


@pytest.fixture
def on_path(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmarks' helpers, importable as they are for the benchmarks."""
    monkeypatch.syspath_prepend(str(root / "benchmarks"))


@pytest.mark.usefixtures("on_path")
def test_trl_packs_leak_nothing_from_reply_to_reply() -> None:
    """The rival does the same work: its packed gradient is its own row by row."""
    from rocit_data import SMALLEST, draw, load_corpus
    from rocit_runs import Job, Setting, first_gradient, trl_trainer

    from rolellm.training.bases import create_model

    corpus = load_corpus(None, SMALLEST)
    examples = draw(corpus.examples, groups=1, replies=4, seed=0)
    training = replace(corpus.training, per_device_train_batch_size=4, max_grad_norm=1e9)
    job = Job(lambda: create_model(corpus.recipe, corpus.tokenizer), corpus.tokenizer, examples, training)
    gradients: list[dict[str, torch.Tensor]] = []
    for setting in (Setting(rows=4), Setting(pack=2048)):
        with trl_trainer(job, setting) as trainer, first_gradient(trainer.model) as caught:
            trainer.train()
        gradients.append(caught)
    rows, packed = gradients
    for name, gradient in rows.items():
        torch.testing.assert_close(packed[name], gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("frozen", [pytest.param(False, id="all-weights"), pytest.param(True, id="adapter")])
@pytest.mark.usefixtures("on_path")
def test_arithmetic_is_counted_as_torch_counts_it(frozen: bool) -> None:
    from rocit_flops import Weights
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation="eager",  # Products in the open, each pair of tokens computed.
    )
    model: Any = LlamaForCausalLM(config)
    counted = Weights.of(model, rank=4 if frozen else None)
    if frozen:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    tokens, places = 40, torch.tensor([7, 8, 30])
    with FlopCounterMode(display=False) as counter:
        model(torch.arange(tokens)[None], logits_to_keep=places).logits.sum().backward()
    ours = counted.flops(tokens, pairs=tokens**2, scored=len(places))
    # Where no more than the adapters is trained, the first layer owes no gradient to what lies before it.
    assert ours == pytest.approx(counter.get_total_flops(), rel=0.05 if frozen else 1e-9)


@needs("trl", "1.16", "scores without a fused head")
@pytest.mark.usefixtures("on_path")
def test_what_a_run_leaves_on_the_frozen_base_comes_off() -> None:
    from peft import LoraConfig, get_peft_model
    from rocit_gpu import Base
    from transformers import LlamaConfig
    from trl.trainer.utils import add_fused_lm_head

    from rolellm.models.prefix_sharing import share_prefixes

    config = LlamaConfig(
        vocab_size=60, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2
    )
    base = Base(config, "cpu")
    ids = torch.arange(20)[None]
    with torch.no_grad():
        before = base()(ids).logits
        lora = LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
        tuned = get_peft_model(base(), lora)
        add_fused_lm_head(tuned.get_base_model())
        share_prefixes(tuned)
        assert not torch.equal(tuned(ids).logits, before)
        model = base()
        torch.testing.assert_close(model(ids).logits, before, rtol=0, atol=0)
    assert not [name for name, _ in model.named_modules() if "lora" in name]
    assert not hasattr(model, "prefix_sharing")
    get_peft_model(model, lora)  # Warns, and so fails, where the first adapter has left a trace.


@pytest.mark.usefixtures("on_path")
def test_the_gpu_part_runs_on_a_cpu_at_a_tiny_shape() -> None:
    """All of it but the kernels: 4-bit base, adapters put on and taken off between the rivals, figures."""
    from rocit_compare import Plan
    from rocit_data import SMALLEST, load_corpus
    from rocit_gpu import Device, measure_gpu
    from rocit_runs import Setting
    from transformers import LlamaConfig

    corpus = load_corpus(None, SMALLEST)
    config = LlamaConfig(
        vocab_size=600, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2
    )
    wanted = Plan(
        replies=4,
        steps=1,
        roles=2,
        passes=(2, 4),
        rows=(Setting(rows=4),),
        packs=(Setting(pack=1024), Setting(pack=1024, attention="no-such-attention")),
        probe=4,
    )
    measured = measure_gpu(corpus, wanted, {"tiny": config}, Device("a CPU", 1e12, "cpu"))
    figures = measured["figures"]
    assert set(measured["ratios"]) == {"trl_rows", "trl_packed"}
    ours = {"shared prefix, 2 a pass", "shared prefix, 4 a pass"}
    assert set(figures["tiny: mfu"]) == ours | {"TRL row by row", "TRL packed"}
    assert all(0 < share < 1 for share in figures["tiny: mfu"].values())
    assert isinstance(figures["tiny: trl_tried"]["bfd packs of 1024, no-such-attention"], str)
