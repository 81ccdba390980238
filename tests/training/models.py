"""Random models of the families that are trained, wide enough apart that a wrong mask shows in their numbers."""

from typing import Any

import torch
import transformers
from peft import LoraConfig, get_peft_model

FAMILIES = ("Llama", "Glm", "Glm4")
# The norm of the difference of two gradients over the norm of one, in float32.
BOUND = 1e-5
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.3,
}


def new_model(family: str, vocabulary: int, **changes: Any) -> Any:
    """A model in float32 whose query heads share keys (grouped-query attention)."""
    ids = {"vocab_size": vocabulary, "max_position_embeddings": 1024, "pad_token_id": 0, "eos_token_id": 2}
    config = getattr(transformers, f"{family}Config")(**(SIZES | ids | changes))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return transformers.AutoModelForCausalLM.from_config(config)


def with_adapter(model: Any) -> Any:
    """The model under a LoRA adapter on all linear layers, already somewhat trained: a new one has no gradient in A."""
    config = LoraConfig(
        r=4, lora_alpha=8, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM", lora_dropout=0.0
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return get_peft_model(model, config)


def gradient(model: Any, loss: Any) -> Any:
    """The gradient of a loss by all weights that are trained, end to end."""
    model.zero_grad()
    loss.backward()
    return torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])


def distance(one: Any, other: Any) -> float:
    """The norm of the difference of two gradients over the norm of the other."""
    return float((one - other).norm() / other.norm())
