"""What may make a step faster on a GPU, as callbacks that change the model before its first step.

Each gives the same numbers up to rounding. What pays for itself belongs into `rolellm.training`; what does not is
measured here with every run, so that nobody has to try it again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from peft.tuners.tuners_utils import BaseTunerLayer
from torch.nn import functional
from transformers.trainer_callback import TrainerCallback

# Layers of a family like LLaMA that read the same input.
_TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
_NORMS = ("input_layernorm", "post_attention_layernorm")
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")


class Change(TrainerCallback):  # type: ignore[misc]  # transformers ships no types
    """Changes a model when training begins."""

    def __init__(self, change: Callable[[Any], None]) -> None:
        self._change = change

    def on_train_begin(self, *_: Any, model: Any, **__: Any) -> None:
        """Change it."""
        self._change(model.get_base_model())


def compile_regions(model: Any, backend: str = "inductor") -> None:
    """Compile norms, projections and MLPs: all but attention, since FlexAttention inside of a compiled layer fails."""
    for layer in model.model.layers:
        regions = [getattr(layer, name) for name in _NORMS]
        regions += [getattr(layer.self_attn, name) for name in _PROJECTIONS]
        for region in (*regions, layer.mlp):
            region.compile(backend=backend, dynamic=True)


def stack_adapters(model: Any) -> None:
    """Multiply an input once by the first matrices of all adapters that read it."""
    for module in model.modules():
        for names in _TOGETHER:
            layers: list[Any] = [getattr(module, name, None) for name in names]
            if all(isinstance(layer, LoraLayer) for layer in layers):
                stack = _Stack([layer.lora_A["default"] for layer in layers])
                for number, layer in enumerate(layers):
                    layer.lora_A["default"].forward = stack.make_forward(number)


def cast_inputs(model: Any) -> None:
    """Cast what adapters read to the float32 of their weights, as PEFT does by default."""
    for module in model.modules():
        if isinstance(module, BaseTunerLayer):
            module.cast_input_dtype_enabled = True


def set_kernel_options(model: Any, **options: Any) -> None:
    """Hand FlexAttention options of its kernels."""
    model.prefix_sharing.kernel_options = options


class _Stack:
    """First matrices of adapters, whose products with one input are computed when the first of them is wanted."""

    def __init__(self, layers: Sequence[Any]) -> None:
        self._layers = layers
        self._products: tuple[torch.Tensor, ...] = ()

    def make_forward(self, number: int) -> Callable[[torch.Tensor], torch.Tensor]:
        def forward(states: torch.Tensor) -> torch.Tensor:
            if number == 0:
                stacked = torch.cat([layer.weight for layer in self._layers])
                ranks = [len(layer.weight) for layer in self._layers]
                self._products = torch.split(functional.linear(states, stacked), ranks, dim=-1)
            product = self._products[number]
            if number == len(self._layers) - 1:
                # Nothing is kept for the next layer, or for the backward pass.
                self._products = ()
            return product

        return forward
