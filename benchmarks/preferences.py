"""How fast DPO and GRPO's update are with `share_prefixes`, next to the same stock TRL trainers without it.

    python benchmarks/preferences.py [--json] [--data-dir RELEASE] [--pairs N] [--steps N] [--completions N] [--tiny]
    python benchmarks/preferences.py --gpu [--shape NAME]     # bf16, at the shape of a real model

Float32 on a CPU, a LLaMA of 6.8 million random weights, all of them trained, on the English general rows. Both sides
get the same model, the same rows in the same order and the same number of rows an optimizer step; the stock trainer's
rows a pass are tried, and its best stand for it. What is timed are whole optimizer steps, by torch's own hook;
for GRPO only those that train again on completions that exist (``num_iterations``), so that generation is left out.
`gradient_error` is the distance of the first step's gradients over their norm, which is checked. Only as good as the
machine is idle. On a GPU both sides have Liger's kernels where they are installed, and gradient
checkpointing where it is faster.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from common import compare_gradients, environment, make_parser, need_gpu, report

from rolellm.core.threads import wait_briefly

PACKAGES = ("torch", "transformers", "trl", "accelerate")
#: Updates on one batch of completions; the first of them also generates.
ITERATIONS = 4
#: Errors of gradients in bfloat16. GRPO's advantages cancel each other, so that rounding weighs more: two sizes of the
#: stock trainer's own passes differ by 9 % at the tiny shape, and in float32 shared ones by 2e-7.
HALF_PRECISION = {"dpo": 0.05, "grpo": 0.2}


def build_rows(corpus: Any, kind: str, count: int) -> Any:
    """Rows for a trainer, a role's own next to each other: four questions of one role, then of the next.

    Args:
        corpus: Rows of the release.
        kind: ``dpo`` (the role's reply over the plain one) or ``grpo`` (prompts).
        count: How many rows.
    """
    from datasets import Dataset

    from rolellm.models.prompts.render import make_messages

    rows = sorted((row for row in corpus.rows if row.raw_reference), key=lambda row: row.role)
    chosen = []
    for row in rows[:count]:
        columns: dict[str, Any] = {"prompt": make_messages(row)}
        if kind == "dpo":
            columns["chosen"] = [{"role": "assistant", "content": row.references[0]}]
            columns["rejected"] = [{"role": "assistant", "content": row.raw_reference}]
        chosen.append(columns)
    return Dataset.from_list(chosen)


def build_trainer(job: Job, models: list[Any], rows: Any, folder: str, **options: Any) -> Any:
    """A stock trainer of TRL's with settings that both sides share; DPO's reference is the second model."""
    import trl
    from transformers.trainer_callback import PrinterCallback

    model, reference = models
    kind, training = job.kind, job.training
    options |= {"output_dir": folder, "use_cpu": training.use_cpu, "bf16": training.half_precision}
    options |= {"report_to": "none", "save_strategy": "no"}
    options |= {
        "logging_strategy": "no",
        "disable_tqdm": True,
        "log_level": "error",
        "max_grad_norm": 1e9,
        "lr_scheduler_type": "constant",
    }
    options |= {
        "train_sampling_strategy": "sequential",
        "learning_rate": 1e-6,
    }
    config = getattr(trl, f"{kind.upper()}Config")(**options)
    more = {"reward_funcs": reward_length} if kind == "grpo" else {"ref_model": reference}
    trainer = getattr(trl, f"{kind.upper()}Trainer")(
        model, args=config, train_dataset=rows, processing_class=job.corpus.tokenizer, **more
    )
    # It would print to standard output.
    trainer.remove_callback(PrinterCallback)
    return trainer


def reward_length(completions: list[Any], **_: Any) -> list[float]:
    """A reward that differs from completion to completion."""
    return [float(len(completion[0]["content"]) % 7) for completion in completions]


def time_updates(job: Any, per_pass: int, shared: bool, checkpoints: bool) -> tuple[list[float], dict[str, Any]]:
    """Seconds of each optimizer step but the first (GRPO: of those that do not generate), and the first gradients."""
    import copy
    import gc
    import itertools
    import time
    from contextlib import ExitStack

    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    import rolellm
    from rolellm.training.kernels import use_kernels

    # A trainer and its model refer to each other.
    gc.collect()
    torch.manual_seed(0)
    model = job.make_model()
    models = [model, copy.deepcopy(model)]
    if shared:
        for each in models:
            rolellm.share_prefixes(each)
    ends: list[float] = []
    gradients: dict[str, Any] = {}

    def keep_gradients(*_: Any) -> None:
        if not gradients:
            gradients.update({name: weight.grad.float().cpu() for name, weight in model.named_parameters()})

    def note_end(*_: Any) -> None:
        if not job.training.use_cpu:
            torch.cuda.synchronize()
        ends.append(time.perf_counter())

    options = {"per_device_train_batch_size": per_pass, "gradient_accumulation_steps": job.rows // per_pass}
    options["gradient_checkpointing"] = checkpoints
    if job.kind == "grpo":
        options |= {"num_generations": job.generations, "max_completion_length": job.completion_tokens}
        options |= {"num_iterations": ITERATIONS, "shuffle_dataset": False, "beta": 0.0}
    steps = job.steps * (ITERATIONS if job.kind == "grpo" else 1) + (job.kind == "dpo")
    hooks = [
        register_optimizer_step_pre_hook(keep_gradients),
        register_optimizer_step_post_hook(note_end),
    ]
    try:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            for each in models:
                stack.enter_context(use_kernels(each, job.training))
            rows = build_rows(job.corpus, job.kind, job.dataset_rows)
            build_trainer(job, models, rows, folder, max_steps=steps, **options).train()
    finally:
        for hook in hooks:
            hook.remove()
    lasted = [end - start for start, end in itertools.pairwise(ends)]
    if job.kind == "grpo":
        lasted = [seconds for step, seconds in enumerate(lasted, start=1) if step % ITERATIONS]
    return lasted, gradients


class Job:
    """What both sides of one comparison are given alike."""

    def __init__(self, corpus: Any, kind: str, options: argparse.Namespace) -> None:
        from dataclasses import replace

        import torch
        from shapes import shape

        self.corpus, self.kind, self.steps = corpus, kind, options.steps
        self.config = shape(options.shape) if options.gpu else None
        on_cpu = not options.gpu or not torch.cuda.is_available()
        self.training = replace(corpus.training, use_cpu=on_cpu, bf16=options.gpu)
        self.rows = options.pairs if kind == "dpo" else options.completions
        self.generations, self.completion_tokens = 8, options.completion_tokens
        self.dataset_rows = self.rows * (self.steps + 1) // (1 if kind == "dpo" else self.generations)

    def make_model(self) -> Any:
        """A model of random weights, the same each time."""
        import torch
        from transformers import AutoModelForCausalLM

        from rolellm.training.bases import create_model

        if self.config is None:
            return create_model(self.corpus.recipe, self.corpus.tokenizer)
        with torch.device("cpu" if self.training.use_cpu else "cuda"):
            return AutoModelForCausalLM.from_config(self.config, trust_remote_code=False)


def compare(job: Job) -> tuple[float, float, dict[str, Any]]:
    """The ratio of the stock trainer's best median to ours, the gradient error, and figures."""
    # Without, and with gradient checkpointing.
    modes = (False,) if job.config is None else (False, True)
    sizes = [count for count in (32, 16, 4, 1) if job.rows % count == 0]
    if job.kind == "grpo":
        sizes = [count for count in sizes if count >= 4]
    ours, figures = try_settings(job, [(job.rows, mode) for mode in modes], shared=True)
    stock, more = try_settings(job, [(count, mode) for count in sizes for mode in modes], shared=False)
    error = compare_gradients(ours[1], stock[1])
    limit = 1e-5 if job.config is None else HALF_PRECISION[job.kind]
    norm = measure_norm(ours[1]) / measure_norm(stock[1])
    if not (error < limit and abs(norm - 1) < limit):
        raise RuntimeError(f"{job.kind}: not the gradients of the stock trainer ({error:.2g} apart, norm {norm:.4g})")
    return stock[0] / ours[0], error, figures | more | {f"{job.kind}: gradient error": error}


def try_settings(
    job: Job, settings: Sequence[tuple[int, bool]], shared: bool
) -> tuple[tuple[float, dict[str, Any]], dict[str, Any]]:
    """The best median of the seconds of a step with its first gradients, and the medians of all settings.

    Args:
        job: What is trained.
        settings: Rows a pass, and whether there is gradient checkpointing.
        shared: With shared prefixes.
    """
    from statistics import median

    best: tuple[float, dict[str, Any]] = (math.inf, {})
    figures = {}
    for count, checkpoints in settings:
        kind = "shared" if shared else "stock"
        name = f"{job.kind}: {kind}, {count} a pass{', checkpointing' if checkpoints else ''}, s/step"
        try:
            lasted, gradients = time_updates(job, count, shared, checkpoints)
        except Exception as problem:  # Out of memory, or whatever a compiler may raise.
            print(f"{name}: {str(problem).splitlines()[0]}", file=sys.stderr, flush=True)
            continue
        figures[name] = median(lasted)
        print(f"{name}: {figures[name]:.3f}", file=sys.stderr, flush=True)
        if figures[name] < best[0]:
            best = (figures[name], gradients)
    if not figures:
        raise RuntimeError(f"{job.kind}: no setting works here")
    return best, figures


def measure_norm(gradients: dict[str, Any]) -> float:
    """The norm of all gradients together."""
    import torch

    return float(torch.stack([gradient.norm() for gradient in gradients.values()]).norm())


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__, reads_release=True)
    parser.add_argument("--pairs", type=int, default=32, help="DPO: pairs an optimizer step (default: %(default)s)")
    parser.add_argument(
        "--completions", type=int, default=32, help="GRPO: completions a step, 8 a prompt (default: %(default)s)"
    )
    parser.add_argument("--completion-tokens", type=int, default=64, help="GRPO: tokens of each (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=2, help="optimizer steps that are timed (default: %(default)s)")
    parser.add_argument("--tiny", action="store_true", help="the smallest model, to see that all runs")
    parser.add_argument("--gpu", action="store_true", help="bf16 on this machine's GPU")
    parser.add_argument("--shape", default="llama-3.2-1b", help="with --gpu: see shapes.py; tiny runs on a CPU, too")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    options = parse_arguments()
    wait_briefly()  # Before torch: the rivals profit as much.
    if options.gpu:
        need_gpu([options.shape])
    from rocit_data import SIZES, SMALLEST, load_corpus

    corpus = load_corpus(options.data_dir, SMALLEST if options.tiny else SIZES)
    ratios: dict[str, float] = {}
    figures: dict[str, Any] = {}
    errors: list[float] = []
    for kind in ("dpo", "grpo"):
        ratios[kind], error, more = compare(Job(corpus, kind, options))
        errors.append(error)
        figures |= more
    figures["gradient_error"] = max(errors)
    result = {"ratios": ratios, "figures": figures, "n": options.steps, "data": corpus.source, **environment(*PACKAGES)}
    report("preferences: stock TRL trainers with shared prefixes over without", result, [], options.json)


if __name__ == "__main__":
    main()
