"""How fast DPO and GRPO's update are with `share_prefixes`, next to the same stock TRL trainers without it.

    python benchmarks/preferences.py [--json] [--data-dir RELEASE] [--pairs N] [--steps N] [--completions N] [--tiny]
    python benchmarks/preferences.py --gpu [--shape NAME]     # bf16 with checkpointing, at the shape of a real model

Float32 on a CPU, a LLaMA of 6.8 million random weights, all of them trained, on the English general rows. Both sides
get the same model, the same rows in the same order and the same number of rows an optimizer step; the stock trainer's
rows a pass are tried first, and its best stand for it. What is timed are whole optimizer steps, by torch's own hook;
for GRPO only those that train again on completions that exist (``num_iterations``), so that generation is left out.
`gradient_error` is the distance of the first step's gradients over their norm, which is checked. Only as good as the
machine is idle. On a GPU both sides have Liger's kernels where they are installed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
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
        "gradient_checkpointing": job.config is not None,
        "train_sampling_strategy": "sequential",
        "learning_rate": 1e-6,
    }
    config = getattr(trl, f"{kind.upper()}Config")(**options)
    more = {"reward_funcs": reward_length} if kind == "grpo" else {"ref_model": reference}
    return getattr(trl, f"{kind.upper()}Trainer")(
        model, args=config, train_dataset=rows, processing_class=job.corpus.tokenizer, **more
    )


def reward_length(completions: list[Any], **_: Any) -> list[float]:
    """A reward that differs from completion to completion."""
    return [float(len(completion[0]["content"]) % 7) for completion in completions]


def time_updates(job: Any, per_pass: int, shared: bool) -> tuple[list[float], dict[str, Any]]:
    """Seconds of each optimizer step but the first (GRPO: of those that do not generate), and the first gradients."""
    import copy
    import itertools
    import time
    from contextlib import ExitStack

    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    import rolellm
    from rolellm.training.kernels import use_kernels

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
        from transformers import AutoModelForCausalLM

        from rolellm.training.bases import create_model

        if self.config is None:
            return create_model(self.corpus.recipe, self.corpus.tokenizer)
        return AutoModelForCausalLM.from_config(self.config, trust_remote_code=False)


def compare(job: Job) -> tuple[float, float, dict[str, Any]]:
    """The ratio of the stock trainer's best median to ours, the gradient error, and figures."""
    from statistics import median

    passes = [count for count in (1, 4, 16, 32) if job.kind == "dpo" or count % job.generations == 0 or count >= 4]
    stock = {}
    for count in passes:
        if job.rows % count:
            continue
        try:
            stock[count] = time_updates(job, count, shared=False)
        except RuntimeError as problem:  # Out of memory.
            print(f"{job.kind}, stock, {count} a pass: {str(problem).splitlines()[0]}", file=sys.stderr)
    best = min(stock, key=lambda count: median(stock[count][0]))
    ours, our_gradients = time_updates(job, job.rows, shared=True)
    error = compare_gradients(our_gradients, stock[best][1])
    limit = 1e-5 if job.config is None else HALF_PRECISION[job.kind]
    if error > limit:
        raise RuntimeError(f"{job.kind}: the gradients are not those of the stock trainer ({error:.2g} apart)")
    figures = {f"{job.kind}: stock, {count} a pass, s/step": median(stock[count][0]) for count in stock}
    figures |= {f"{job.kind}: shared, {job.rows} a pass, s/step": median(ours), f"{job.kind}: gradient error": error}
    return median(stock[best][0]) / median(ours), error, figures


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
    parser.add_argument("--gpu", action="store_true", help="bf16 with gradient checkpointing on this machine's GPU")
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
