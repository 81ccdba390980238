"""Liger's kernels for a model's norms, rotations and gates, where they give what the model's own layers give.

They work token by token, so folded rows are to them what any rows are. Its fused losses stay off: they would take the
place of the forward pass in which TRL scores tokens, and do not know of folded rows.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rolellm.core.errors import RecipeError, require
from rolellm.training.recipe import TrainingRecipe

#: Types of models in which they are known to change nothing but rounding, with the activation that they compute.
EXACT = {
    **dict.fromkeys(("glm4", "llama", "mistral", "phi3", "qwen2", "qwen3"), "silu"),
    **dict.fromkeys(("gemma2", "gemma3_text"), "gelu_pytorch_tanh"),
}
_KERNELS = ("rope", "rms_norm", "swiglu", "geglu")


def check_kernels(training: TrainingRecipe, config: Any = None) -> bool:
    """Tell whether a training uses the kernels.

    Args:
        training: How to train.
        config: The configuration of the base, where it is there.

    Raises:
        RecipeError: When the recipe asks for them, and they cannot be used.
        MissingExtraError: Likewise, when they are not installed.
    """
    if training.use_liger_kernel is True:
        require("liger_kernel", extra="gpu")
        reason = _explain_unfit(training, config)
        if reason:
            raise RecipeError(f"training.use_liger_kernel: {reason}; leave it out")
        return True
    is_installed = importlib.util.find_spec("liger_kernel") is not None
    is_open = training.use_liger_kernel == "auto"
    return is_open and is_installed and not _explain_unfit(training, config)


def _explain_unfit(training: TrainingRecipe, config: Any) -> str | None:
    # Triton's own interpreter runs them anywhere.
    if training.on_cpu and os.environ.get("TRITON_INTERPRET") != "1":
        return "the kernels need a GPU, and training is on a CPU"
    if config is None:
        return None
    if config.model_type not in EXACT:
        types = ", ".join(sorted(EXACT))
        return f"the base is a model of type {config.model_type}; the kernels are known to be exact for {types}"
    activation = getattr(config, "hidden_activation", None) or config.hidden_act
    if activation != EXACT[config.model_type]:
        return f"the base has the activation {activation}, which the kernels do not compute"
    return None


@contextmanager
def use_kernels(model: Any, training: TrainingRecipe) -> Iterator[tuple[str, ...]]:
    """Let the kernels compute parts of a model; gives the names of the parts, none where they stay off.

    Liger changes transformers' module as well, for all models to come: that is undone at the end.

    Args:
        model: A causal language model, or a PEFT model around one.
        training: How to train.

    Raises:
        RecipeError: As `check_kernels`.
    """
    if hasattr(model, "get_base_model"):
        model = model.get_base_model()
    if not check_kernels(training, model.config):
        yield ()
        return
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN
    from transformers.integrations.liger import apply_liger_kernel

    switches = inspect.signature(MODEL_TYPE_TO_APPLY_LIGER_FN[model.config.model_type]).parameters
    parts = {name: switches[name].default for name in _KERNELS if name in switches}
    # Liger's rotation takes whole heads.
    ropes = model.config.rope_parameters or {}
    if ropes.get("partial_rotary_factor", 1.0) != 1.0:
        parts["rope"] = False
    module = vars(sys.modules[type(model).__module__])
    before = dict(module)
    apply_liger_kernel(model, {**parts, "cross_entropy": False, "fused_linear_cross_entropy": False})
    try:
        yield tuple(name for name, is_on in parts.items() if is_on)
    finally:
        module.update(before)
