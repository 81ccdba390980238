"""How much GPU memory a recipe takes, by model and method: computed, not measured.

    python benchmarks/memory.py [--json] [--model NAME ...] [--tokens N] [--rank N] [--gpus N]

Models are those of `shapes`, without weights. What a forward pass keeps for the backward pass is counted by running the
real classes of transformers and peft on tensors that have shapes and no contents, two and three layers deep; the rest
is arithmetic on the parameters. All is as this library trains in bf16: what is trained is held in float32 and computed
in bfloat16 under autocast; an adapter's base is held in bfloat16 or, but for embeddings and output layer, in NF4.

Left out are the CUDA context, what the allocator cannot use, and the libraries' own buffers: leave a tenth and a
gigabyte. Trained are four fifths of a pack's tokens: what questions of 40 tokens with five replies of 40 come to.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import warnings
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import torch
from common import environment
from peft import LoraConfig, get_peft_model
from shapes import SHAPES, shape
from torch._subclasses import FakeTensorMode
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM, PreTrainedConfig

Method = Literal["qlora", "lora", "full"]
METHODS: tuple[Method, ...] = ("qlora", "lora", "full")
TRAINED = 0.8
GIB = 2**30

# bitsandbytes 0.50: weights in blocks of 64 with a constant each; with double quantisation constants are bytes, in
# blocks of 256 with a float each. Besides, a layer has the tables of both data types, and the constants' mean.
_BLOCK, _BLOCK_2 = 64, 256
_TABLE, _TABLE_2, _MEAN = 16 * 4, 256 * 4, 4


def _attend(
    _module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, _mask: None, scaling: float, **_: Any
) -> tuple[torch.Tensor, None]:
    """Attention that keeps what FlexAttention keeps: queries, keys, values, its output, and a number a row and head."""
    made = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
    )
    return made.transpose(1, 2).contiguous(), None


# FlexAttention itself does not run on tensors without contents, and transformers hands SDPA a dense mask there.
_ATTENTION = "like-flex"
AttentionInterface.register(_ATTENTION, _attend)
AttentionMaskInterface.register(_ATTENTION, lambda *_, **__: None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What memory is computed for.

    Attributes:
        method: As in a recipe.
        tokens: Tokens of a forward pass.
        rank: Of the adapter, on all linear layers but the output layer.
        checkpointing: Gradient checkpointing.
        half: bf16; otherwise all is in float32, but for 4-bit weights.
        gpus: Over how many FSDP spreads weights, gradients and optimiser states.
    """

    method: Method
    tokens: int = 4096
    rank: int = 64
    checkpointing: bool = True
    half: bool = True
    gpus: int = 1

    @property
    def trained(self) -> int:
        """Tokens that go through the output layer."""
        return round(TRAINED * self.tokens)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes at a time, on one GPU.

    Attributes:
        weights: Parameters.
        gradients: Of what is trained.
        optimizer: AdamW's two moments.
        activations: What the backward pass needs of the forward pass: with checkpointing the input of every layer;
            without, of full tuning also autocast's copies of the weights.
        peak: What comes on top for a moment: these copies, the logits with their gradient, or a layer that is computed
            again.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    peak: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True, slots=True)
class Kept:
    """Bytes that a forward pass keeps for the backward pass: activations, copies of weights, and one layer's input."""

    activations: int
    copies: int
    boundary: int


def memory(config: PreTrainedConfig, run: Run) -> Memory:
    """The memory of a run.

    Args:
        config: The model's.
        run: What is trained, and how.
    """
    model = skeleton(config, run)
    trained = trained_bytes(model)
    two, three = (kept(_deep(config, layers), run) for layers in (2, 3))
    layer, copy_of_layer = three.activations - two.activations, three.copies - two.copies
    layers = config.num_hidden_layers
    # FSDP gathers two layers at a time; autocast keeps its copies of all until the forward pass ends.
    copied = two.copies + (layers - 2 if run.gpus == 1 else 0) * copy_of_layer
    outside = two.activations - 2 * layer
    if run.checkpointing:
        activations, again = layers * two.boundary + outside, layer + copy_of_layer
        momentary = [copied + 2 * run.trained * config.vocab_size]
    else:
        activations, again = layers * layer + outside + copied, 0
        momentary = []
    # In the backward pass of the loss: log-probabilities, their gradient and that of the logits, all in float32.
    momentary.append(12 * run.trained * config.vocab_size)
    # In a layer's: its weights unpacked one by one, and gradients of its widest activations, in float32.
    unpacked = 2 * _largest(model) if run.method == "qlora" else 0
    momentary.append(again + unpacked + 2 * 4 * run.tokens * config.intermediate_size)
    return Memory(
        weights=weight_bytes(model, run) // run.gpus,
        gradients=trained // run.gpus,
        optimizer=2 * trained // run.gpus,
        activations=activations,
        peak=max(momentary),
    )


def skeleton(config: PreTrainedConfig, run: Run) -> Any:
    """The model as it is trained, on the meta device: sizes and types of parameters, and no contents."""
    adapted = run.method != "full"
    with torch.device("meta"):
        dtype = torch.bfloat16 if adapted and run.half else torch.float32
        model = AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation=_ATTENTION, trust_remote_code=False
        )
        if not adapted:
            return model
        lora = LoraConfig(r=run.rank, target_modules="all-linear", task_type="CAUSAL_LM")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
            return get_peft_model(model, lora)


def trained_bytes(model: Any) -> int:
    """Bytes of the parameters that are trained: so many again their gradients, and twice that AdamW's moments."""
    return sum(int(parameter.nbytes) for parameter in model.parameters() if parameter.requires_grad)


def weight_bytes(model: Any, run: Run) -> int:
    """Bytes of all parameters; with ``qlora``, linear layers other than the output layer and the adapter are NF4."""
    quantised = _quantised(model) if run.method == "qlora" else {}
    plain = sum(int(parameter.nbytes) for name, parameter in model.named_parameters() if name not in quantised)
    return plain + sum(nf4_bytes(size) for size in quantised.values())


def nf4_bytes(size: int, *, double: bool = True) -> int:
    """Bytes that bitsandbytes holds so many weights of one layer in: 4.127 bits each with double quantisation."""
    blocks = -(-size // _BLOCK)
    constants = blocks + 4 * -(-blocks // _BLOCK_2) + _TABLE_2 + _MEAN if double else 4 * blocks
    return -(-size // 2) + constants + _TABLE


def _quantised(model: Any) -> dict[str, int]:
    """Names and sizes of the weights that transformers lets bitsandbytes quantise."""
    head = model.get_output_embeddings()
    return {
        f"{name}.weight": module.weight.numel()
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not head and ".lora_" not in name
    }


def _largest(model: Any) -> int:
    return max(_quantised(model).values())


def _deep(config: PreTrainedConfig, layers: int) -> PreTrainedConfig:
    changed = copy.deepcopy(config)
    changed.num_hidden_layers = layers
    return changed


def kept(config: PreTrainedConfig, run: Run) -> Kept:
    """What a forward pass without checkpointing keeps, counted on tensors without contents."""
    model = skeleton(config, run)
    layers = model.get_decoder().layers if run.method == "full" else model.get_base_model().get_decoder().layers
    with FakeTensorMode():
        held = {
            name: torch.zeros(tensor.shape, dtype=tensor.dtype, requires_grad=tensor.requires_grad)
            for name, tensor in [*model.named_parameters(), *model.named_buffers()]
        }
        arguments = {"input_ids": torch.zeros((1, run.tokens), dtype=torch.long)}
        arguments["logits_to_keep"] = torch.arange(run.trained)
        own = {tensor.untyped_storage()._cdata for tensor in [*held.values(), *arguments.values()]}
        found: dict[bool, dict[int, int]] = {True: {}, False: {}}
        inputs: list[int] = []

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage._cdata not in own:
                found[_is_copy(tensor)][storage._cdata] = storage.nbytes()
            return tensor

        def enter(_layer: Any, given: tuple[torch.Tensor, ...]) -> None:
            inputs.append(given[0].nbytes)

        layers[-1].register_forward_pre_hook(enter)
        autocast = torch.autocast("cpu", torch.bfloat16, enabled=run.half)
        # What is kept is known by its storage, so all of it has to live until it is counted.
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), autocast:
            output = torch.func.functional_call(model, held, (), {**arguments, "use_cache": False})
        activations, copies = sum(found[False].values()), sum(found[True].values())
        del output
    return Kept(activations, copies, inputs[0])


def _is_copy(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a parameter in another type, which autocast made."""
    node = tensor.grad_fn
    while node is not None and type(node).__name__ in ("ToCopyBackward0", "TBackward0"):
        node = node.next_functions[0][0]
    return node is not None and type(node).__name__ == "AccumulateGrad"


def table(rows: list[tuple[str, Run, Memory]]) -> str:
    """The rows as a table in Markdown, in GiB."""
    names = [field.name for field in fields(Memory)]
    lines = [["model", "method", "GPUs", *names, "total"], ["---"] * 2 + ["---:"] * (len(names) + 2)]
    for name, run, found in rows:
        figures = [getattr(found, column) for column in names] + [found.total]
        lines.append([name, run.method, str(run.gpus), *(f"{figure / GIB:.1f}" for figure in figures)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Compute and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", action="append", choices=list(SHAPES), help="only this one; may be repeated")
    parser.add_argument("--tokens", type=int, default=4096, help="of a forward pass, shared prefixes counted once")
    parser.add_argument("--rank", type=int, default=64, help="of the adapter: method.lora.r")
    parser.add_argument("--gpus", type=int, default=8, help="over how many FSDP spreads full tuning in the last row")
    parser.add_argument("--no-checkpointing", action="store_true", help="training.gradient_checkpointing: false")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    size = {"tokens": options.tokens, "rank": options.rank, "checkpointing": not options.no_checkpointing}
    runs = [Run(method=method, **size) for method in METHODS] + [Run(method="full", gpus=options.gpus, **size)]
    rows = [(name, run, memory(shape(name), run)) for name in options.model or SHAPES for run in runs]
    print("computed, not measured; GiB on each GPU; see the head of this file", file=sys.stderr)
    if not options.json:
        print(table(rows))
        return
    figures = {
        f"{name}, {run.method}, {run.gpus}": {**asdict(run), **asdict(found), "total": found.total}
        for name, run, found in rows
    }
    result = {"ratios": {}, "figures": figures, "n": len(figures), "unit": "bytes", "trained": TRAINED}
    print(json.dumps(result | environment("torch", "transformers", "peft", "trl", "bitsandbytes"), indent=2))


if __name__ == "__main__":
    main()
