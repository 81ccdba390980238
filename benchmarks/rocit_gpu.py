"""The comparison on a GPU: adapters at the shapes of real models, random weights, bf16, as a recipe ships.

Ours takes the pass that fits (`auto`). TRL's side has the same kernels, and gradient checkpointing only where it is
faster with it. Then each of our parts is switched off or on alone, at the pass that was chosen. The gradient of a step
is compared with TRL's row by row, for each of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any, Literal

import torch
from common import compare_gradients
from rocit_compare import LOG, Compared, Plan, compare, draw_examples
from rocit_data import Corpus, draw
from rocit_flops import Weights, flops_of_a_reply, peak_flops
from rocit_runs import Job, Setting, first_gradient, measure_ours, train_ours, trl_trainer
from rocit_variants import Change, cast_inputs, compile_regions, set_kernel_options, stack_adapters

from rolellm.training.kernels import check_kernels
from rolellm.training.recipe import Lora, MethodRecipe

# As recipes/rolellama-7b-qlora.yaml.
LORA = Lora(r=64, lora_alpha=16, lora_dropout=0.0)
# In bfloat16, two ways to compute a gradient differ by about 2 %, and its norm by less.
GRADIENT, NORM = 0.05, 0.01
# TRL compiles FlexAttention anew for each length of its packs; past the limit, ours would end.
torch._dynamo.config.recompile_limit = 64


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
    def here(cls, teraflops: float | None, gigabytes: float | None = None) -> Device:
        """This machine's GPU, or its CPU where it has none.

        Args:
            teraflops: Its peak, where the table does not have it.
            gigabytes: How much of its memory may be used.
        """
        if not torch.cuda.is_available():
            return cls("CPU", None, "cpu")
        if gigabytes is not None:
            _, total = torch.cuda.mem_get_info()
            torch.cuda.set_per_process_memory_fraction(gigabytes * 1e9 / total)
        name = torch.cuda.get_device_name()
        return cls(name, teraflops * 1e12 if teraflops else peak_flops(name))


class Base:
    """A frozen base with random weights, the same one for all: what a run leaves on it is taken off again."""

    def __init__(self, config: Any, method: MethodRecipe, place: str) -> None:
        self._model = _quantised(config, method, place) if method.name == "qlora" else _dense(config, place)

    def __call__(self) -> Any:
        """The base as it was made."""
        from peft.tuners.tuners_utils import BaseTunerLayer

        if hasattr(self._model, "prefix_sharing"):
            self._model.prefix_sharing.restore()
        for name, module in list(self._model.named_modules()):
            if isinstance(module, BaseTunerLayer):
                self._model.set_submodule(name, module.get_base_layer())
        vars(self._model).pop("peft_config", None)
        for module in self._model.modules():
            # TRL's, Liger's or torch's, in front of the module's own.
            vars(module).pop("forward", None)
            module._compiled_call_impl = None
            if hasattr(module, "gradient_checkpointing"):
                # Trainers turn it on, never off.
                module.gradient_checkpointing = False
        # Of checkpointing, too: they let what is embedded have gradients.
        self._model.get_input_embeddings()._forward_hooks.clear()
        return self._model


def _dense(config: Any, place: str) -> Any:
    from transformers import AutoModelForCausalLM

    with torch.device(place):
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, trust_remote_code=False)


def _quantised(config: Any, method: MethodRecipe, place: str) -> Any:
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
    settings = method.quantization
    bits = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=settings.bnb_4bit_quant_type,
        bnb_4bit_use_double_quant=settings.bnb_4bit_use_double_quant,
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

    if not torch.cuda.is_available():
        return ("sdpa",)
    return ("flash_attention_2",) if is_flash_attn_2_available() else ("flex_attention", "sdpa")


def measure_gpu(
    corpus: Corpus, wanted: Plan, shapes: Mapping[str, Any], device: Device, kind: Literal["lora", "qlora"]
) -> dict[str, Any]:
    """The ratios and figures on a GPU; the ratios are those of the last shape.

    Args:
        corpus: The rows.
        wanted: What to measure.
        shapes: Configurations by name.
        device: Where.
        kind: Adapters on a base in bfloat16, or in 4 bits.

    Raises:
        RuntimeError: When a gradient is not TRL's.
    """
    figures: dict[str, Any] = {"device": device.name, "peak_tflops": device.peak and device.peak / 1e12}
    ratios: dict[str, float] = {}
    method = MethodRecipe(name=kind, lora=LORA)
    for name, config in shapes.items():
        LOG.print(f"{name} ({kind}) on {device.name}")
        base = Base(config, method, device.place)
        job = _job(corpus, base, method, device)
        theirs = compute_theirs(job)
        error = check_gradient("as shipped", _draw_few(job), [], theirs)
        flops = flops_of_a_reply(Weights.of(base(), LORA.r), draw_examples(job, wanted), wanted.replies)
        LOG.print(f"{flops / 1e9:,.0f} GFLOP a reply, of {(device.peak or math.nan) / 1e12:.0f} TFLOP/s")
        compared = compare(job, wanted, row_by_row=False)
        ratios = compared.ratios()
        more = {"gradient error": error, **measure_switches(job, theirs, compared, wanted, device)}
        figures |= {f"{name}: {key}": value for key, value in (_figures(compared, flops, device) | more).items()}
    return {"ratios": ratios, "figures": figures}


def _job(corpus: Corpus, base: Base, method: MethodRecipe, device: Device) -> Job:
    training = replace(corpus.training, use_cpu=device.place == "cpu", bf16=True, max_grad_norm=0.3)
    return Job(base, corpus.tokenizer, corpus.examples, training, method)


def list_switches(job: Job, device: Device) -> dict[str, tuple[Job, list[Change]]]:
    """Jobs in which one thing is otherwise than as shipped, by its name."""
    backend = "inductor" if device.place == "cuda" else "eager"
    switches = {
        "with PEFT's cast of inputs": (job, [Change(cast_inputs)]),
        "with stacked adapters": (job, [Change(stack_adapters)]),
        "FlexAttention with TMA": (job, [Change(partial(set_kernel_options, USE_TMA=True))]),
        "with norms, projections and MLPs compiled": (job, [Change(partial(compile_regions, backend=backend))]),
    }
    if find_spec("flash_attn") and find_spec("flash_attn.cute"):
        switches["FlexAttention by FlashAttention"] = (job, [Change(partial(set_kernel_options, BACKEND="FLASH"))])
    others: dict[str, dict[str, Any]] = {"with 32 replies a pass": {"replies_per_pass": 32}}
    if job.training.gradient_checkpointing is not True:
        others["with gradient checkpointing"] = {"gradient_checkpointing": True}
    if check_kernels(job.training, job.model().config):
        others["without Liger's kernels"] = {"use_liger_kernel": False}
    for name, options in others.items():
        switches[name] = (replace(job, training=replace(job.training, **options)), [])
    return switches


def measure_switches(
    job: Job, theirs: Mapping[str, torch.Tensor], compared: Compared, wanted: Plan, device: Device
) -> dict[str, Any]:
    """The rate under each switch over that without, at the pass that was chosen, and errors of gradients."""
    chosen = compared.ours[compared.best]
    assert chosen.plan is not None
    training = replace(
        job.training,
        replies_per_step=wanted.replies,
        roles_per_step=wanted.roles,
        replies_per_pass=chosen.plan.replies_per_pass,
        gradient_checkpointing=chosen.plan.gradient_checkpointing,
    )
    fixed = replace(job, examples=compared.examples, training=training)
    rate = measure_ours(fixed).rate
    small = list_switches(_draw_few(job), device)
    ratios, errors = {}, {}
    for name, (switched, changes) in list_switches(fixed, device).items():
        ratios[name] = math.nan
        if wanted.is_late(0.9):
            LOG.print(f"{name}: no time was left")
            continue
        try:
            errors[name] = check_gradient(name, *small[name], theirs)
            ratios[name] = measure_ours(switched, changes).rate / rate
            LOG.print(f"{name}: {ratios[name]:.3f} times")
        except Exception as error:  # Out of memory, another gradient, or something that does not compile.
            LOG.print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0]}")
    return {"switches": ratios, "gradients under switches": errors}


def _draw_few(job: Job) -> Job:
    """Two passes of one step, without clipping, so that the gradient is as it was computed."""
    training = replace(job.training, replies_per_step=16, replies_per_pass=8, roles_per_step=2, max_grad_norm=1e9)
    return replace(job, examples=draw(job.examples, groups=2, replies=8, seed=2), training=training)


def compute_theirs(job: Job) -> dict[str, torch.Tensor]:
    """The gradient of one step by TRL row by row."""
    few = _draw_few(job)
    with trl_trainer(few, Setting(rows=4)) as trainer, first_gradient(trainer.model.get_base_model()) as theirs:
        trainer.train()
    return theirs


def check_gradient(name: str, job: Job, changes: list[Change], theirs: Mapping[str, torch.Tensor]) -> float:
    """How far the gradient of one step is from TRL's.

    Raises:
        RuntimeError: When it, or its norm, is too far.
    """
    model = job.model()
    with first_gradient(model) as ours:
        train_ours(job, model, changes)
    error = compare_gradients(ours, theirs)
    ratio = _norm(ours) / _norm(theirs)
    LOG.print(f"gradient {name}: error {error:.2e}, norm {ratio:.4f} of TRL's")
    if not (error < GRADIENT and abs(ratio - 1) < NORM):
        raise RuntimeError(f"{name}, the gradient is not TRL's: error {error:.3g}, norm {ratio:.4f} of its")
    return error


def _norm(gradients: Mapping[str, torch.Tensor]) -> float:
    return float(torch.stack([gradient.norm() for gradient in gradients.values()]).norm())


def _figures(compared: Compared, flops: float, device: Device) -> dict[str, Any]:
    """The comparison's own, with model FLOP utilisation over unique tokens and peak memory, in GB (1e9 bytes)."""
    extra: dict[str, Any] = {"ratios": compared.ratios(), "gflops_a_reply": flops / 1e9}
    extra["plan"] = str(compared.ours[compared.best].plan)
    if device.peak is not None:
        extra["mfu"] = {name: speed.rate * flops / device.peak for name, speed in compared.speeds.items()}
    if device.place != "cpu":
        extra["peak_gb"] = {name: (speed.peak or 0) / 1e9 for name, speed in compared.speeds.items()}
    return compared.figures() | extra
