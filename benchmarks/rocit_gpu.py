"""The comparison on a GPU: QLoRA at the shapes of real models, random weights, bf16, gradient checkpointing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from rocit_compare import LOG, Compared, Plan, compare
from rocit_data import Corpus
from rocit_flops import Weights, flops_of_a_reply, peak_flops
from rocit_runs import Job

from rolellm.training.recipe import Lora, MethodRecipe

# As recipes/rolellama-7b-qlora.yaml.
METHOD = MethodRecipe(name="qlora", lora=Lora(r=64, lora_alpha=16, lora_dropout=0.0))


@dataclass(frozen=True, slots=True)
class Device:
    """Where it is measured.

    Attributes:
        name: As its driver calls it.
        peak: Dense bf16, in FLOP/s; ``None`` where nobody has said.
        place: For torch.
    """

    name: str
    peak: float | None
    place: str = "cuda"

    @classmethod
    def here(cls, teraflops: float | None) -> Device:
        """This machine's GPU.

        Args:
            teraflops: Its peak, where the table does not have it.
        """
        name = torch.cuda.get_device_name()
        return cls(name, teraflops * 1e12 if teraflops else peak_flops(name))


class Base:
    """A frozen base in 4 bits with random weights, the same one for all: what a run leaves on it is taken off again."""

    def __init__(self, config: Any, place: str) -> None:
        self._model = _quantised(config, place)

    def __call__(self) -> Any:
        """The base as it was made."""
        from peft.tuners.tuners_utils import BaseTunerLayer

        if hasattr(self._model, "prefix_sharing"):
            self._model.prefix_sharing.restore()
        for name, module in list(self._model.named_modules()):
            if isinstance(module, BaseTunerLayer):
                self._model.set_submodule(name, module.get_base_layer())
        for left in ("peft_config", "forward"):  # The second is TRL's, in front of the model's own.
            vars(self._model).pop(left, None)
        return self._model


def _quantised(config: Any, place: str) -> Any:
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, trust_remote_code=False)
    generator = torch.Generator(place).manual_seed(0)
    tied = empty.all_tied_weights_keys
    weights = {
        name: _random(one, generator, config.initializer_range, place)
        for name, one in empty.state_dict().items()
        if name not in tied
    }
    method = METHOD.quantization
    bits = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=method.bnb_4bit_quant_type,
        bnb_4bit_use_double_quant=method.bnb_4bit_use_double_quant,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    return type(empty).from_pretrained(
        None,
        config=config,
        state_dict=weights,
        quantization_config=bits,
        dtype=torch.bfloat16,
        device_map={"": place},
        trust_remote_code=False,
    )


def _random(like: torch.Tensor, generator: torch.Generator, spread: float, place: str) -> torch.Tensor:
    if like.dim() == 1:
        return torch.ones(like.shape, dtype=like.dtype, device=place)  # Of a norm, or a bias.
    return torch.empty(like.shape, dtype=like.dtype, device=place).normal_(0, spread, generator=generator)


def attentions() -> tuple[str, ...]:
    """What TRL may use here: FlashAttention where it is installed, else the two that come with torch."""
    from transformers.utils import is_flash_attn_2_available

    return ("flash_attention_2",) if is_flash_attn_2_available() else ("sdpa", "flex_attention")


def measure_gpu(corpus: Corpus, wanted: Plan, shapes: Mapping[str, Any], device: Device) -> dict[str, Any]:
    """The ratios and figures on a GPU; the ratios are those of the last shape.

    Args:
        corpus: The rows.
        wanted: What to measure.
        shapes: Configurations by name.
        device: Where.
    """
    figures: dict[str, Any] = {"device": device.name, "peak_tflops": device.peak and device.peak / 1e12}
    ratios: dict[str, float] = {}
    for name, config in shapes.items():
        LOG.print(f"{name} on {device.name}")
        base = Base(config, device.place)
        compared = compare(_job(corpus, base, device), wanted, row_by_row=False)
        flops = flops_of_a_reply(Weights.of(base(), METHOD.lora.r), compared.examples, wanted.replies)
        ratios = compared.ratios()
        figures |= {f"{name}: {key}": value for key, value in _figures(compared, flops, device).items()}
    return {"ratios": ratios, "figures": figures}


def _job(corpus: Corpus, base: Base, device: Device) -> Job:
    training = replace(
        corpus.training,
        use_cpu=device.place == "cpu",
        bf16=True,
        gradient_checkpointing=True,
        max_grad_norm=0.3,
    )
    return Job(base, corpus.tokenizer, corpus.examples, training, METHOD)


def _figures(compared: Compared, flops: float, device: Device) -> dict[str, Any]:
    """The comparison's own, with model FLOP utilisation over unique tokens and peak memory, in GB (1e9 bytes)."""
    extra: dict[str, Any] = {"ratios": compared.ratios(), "gflops_a_reply": flops / 1e9}
    if device.peak is not None:
        extra["mfu"] = {name: speed.rate * flops / device.peak for name, speed in compared.speeds.items()}
    if device.place != "cpu":
        extra["peak_gb"] = {name: (speed.peak or 0) / 1e9 for name, speed in compared.speeds.items()}
    return compared.figures() | extra
