"""How fast training with shared prefixes is next to TRL's trainer, row by row and packed, with the same gradients.

    python benchmarks/rocit.py [--json] [--data-dir RELEASE] [--replies N] [--roles N] [--steps N] [--passes N ...]
    python benchmarks/rocit.py --gpu [--shapes NAME ...] [--method lora]   # adapters, bf16, shapes of real models

On a CPU: a LLaMA of 6.8 million random weights, float32, all of them trained. Every side gets the same model, the same
replies once, the same optimizer and the same number of replies a step; whole optimizer steps are timed by torch's own
hook, the first of a run left out. TRL's settings are tried first, and its best stand for it. `tokens` compares what
goes through the model in one epoch of all rows. Only as good as the machine is idle.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

from common import compare_gradients, environment, make_parser, need_gpu, report

from rolellm.core.threads import wait_briefly
from rolellm.training.recipe import TrainingRecipe

if TYPE_CHECKING:
    from rocit_compare import Plan
    from rocit_data import Corpus

PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "bitsandbytes")
# In float32.
GRADIENT = 1e-5
Family = Literal["tiny-llama", "tiny-glm", "tiny-glm4"]
FAMILIES: dict[str, Family] = {"Llama": "tiny-llama", "Glm": "tiny-glm", "Glm4": "tiny-glm4"}


def measure(corpus: Corpus, wanted: Plan) -> dict[str, Any]:
    """The whole result on a CPU, as ``--json`` prints it."""
    from rocit_compare import LOG, compare, token_counts
    from rocit_runs import Job

    from rolellm.training.bases import create_model

    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    job = Job(lambda: create_model(corpus.recipe, corpus.tokenizer), corpus.tokenizer, corpus.examples, corpus.training)
    compared = compare(job, wanted)
    LOG.print("tokens of all rows; gradients")
    tokens = token_counts(job, wanted, compared.settings[0])
    errors = {name: gradient_error(corpus, build) for name, build in FAMILIES.items()}
    if max(errors.values()) > GRADIENT:
        raise RuntimeError(f"the gradients are not TRL's: {errors}")
    ratios = compared.ratios() | {"tokens": tokens["padded"] / tokens[f"{compared.best} a pass"]}
    figures = compared.figures() | {
        "tokens": tokens,
        "gradient_error": max(errors.values()),
        "gradient_error_by_family": errors,
        "weights": job.model().num_parameters(),
        "load_at_start": load,
    }
    return {"ratios": ratios, "figures": figures}


def setup(corpus: Corpus, wanted: Plan) -> dict[str, Any]:
    """What a result was measured on."""
    return {
        "n": wanted.replies * wanted.steps,
        "data": corpus.source,
        "rows": len(corpus.rows),
        "replies_a_step": wanted.replies,
        "roles_a_step": wanted.roles,
        "timed_steps": wanted.steps,
        **environment(*PACKAGES),
    }


def gradient_error(corpus: Corpus, build: Family) -> float:
    """How far the gradient of one step is from TRL's row by row: the norm of the difference over the norm.

    Args:
        corpus: The rows; two dozen replies of two roles are taken.
        build: The family, as in a recipe's ``base.build``.
    """
    from rocit_data import draw
    from rocit_runs import Job, Setting, first_gradient, train_ours, trl_trainer

    from rolellm.training.bases import create_model

    sizes = replace(corpus.recipe.base.tiny, hidden_size=64, intermediate_size=128, layers=2, heads=4)
    recipe = replace(corpus.recipe, base=replace(corpus.recipe.base, build=build, tiny=sizes))
    chosen = draw(corpus.examples, groups=2, replies=12, seed=2)
    # No clipping, so that the gradient is as it was computed; and several passes.
    training = replace(
        corpus.training,
        replies_per_step=24,
        replies_per_pass=8,
        roles_per_step=2,
        max_grad_norm=1e9,
    )
    job = Job(lambda: create_model(recipe, corpus.tokenizer), corpus.tokenizer, chosen, training)
    model = job.model()
    with first_gradient(model) as ours:
        train_ours(job, model)
    with trl_trainer(job, Setting(rows=8)) as trainer, first_gradient(trainer.model) as theirs:
        trainer.train()
    return compare_gradients(ours, theirs)


def plan_of(options: argparse.Namespace, longest: int) -> Plan:
    """What to measure."""
    from rocit_compare import Plan
    from rocit_runs import Setting

    if options.gpu:
        from rocit_gpu import attentions

        # Those that were fastest so far come first.
        rows, packs = [], []
        for count, checkpoints in product((16, 32, 8, 4), (False, True)):
            if count <= options.replies:
                rows.append(Setting(rows=count, attention=attentions()[-1], checkpoints=checkpoints))
        for name, pack, checkpoints in product(attentions(), (8192, 16384, 4096, 2048), (False, True)):
            # A step has to hold a pack.
            if pack <= max(options.replies * 256, 2048):
                packs.append(Setting(pack=pack, attention=name, checkpoints=checkpoints))
    else:
        rows = [Setting(rows=rows) for rows in (1, 2, 4)]
        packs = [Setting(pack=pack) for pack in sorted({-(-longest // 256) * 256, 1024, 2048})]
    passes: tuple[Any, ...] = ("auto",)
    if not options.gpu:
        even = {count for count in options.passes if options.replies % count == 0}
        passes = tuple(sorted(even or {options.replies}))
    return Plan(
        replies=options.replies,
        steps=options.steps,
        roles=options.roles,
        passes=passes,
        rows=tuple(rows),
        packs=tuple(packs),
        probe=min(64 if options.gpu else 16, options.replies),
        seed=options.seed,
        minutes=options.minutes,
        began=time.monotonic(),
    )


def flat(figures: dict[str, Any]) -> dict[str, Any]:
    """Figures for the table: one line each."""
    lines: dict[str, Any] = {}
    for name, value in figures.items():
        label = name.replace("_", " ")
        if isinstance(value, dict):
            lines |= {f"{label}: {key}": shown(one) for key, one in value.items()}
        else:
            lines[label] = shown(value)
    return lines


def shown(value: Any) -> Any:
    """A value as the table has it."""
    if not isinstance(value, list):
        return value
    return ", ".join(f"{one:.3g}" if isinstance(one, float) else str(one) for one in value)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__, reads_release=True)
    parser.add_argument("--replies", type=int, default=128, help="replies an optimizer step (default: %(default)s)")
    parser.add_argument("--roles", type=int, default=TrainingRecipe().roles_per_step, help="roles a step")
    parser.add_argument("--steps", type=int, default=3, help="optimizer steps that are timed (default: %(default)s)")
    parser.add_argument(
        "--passes",
        type=int,
        nargs="+",
        default=[32, 64, 128],
        help="replies a forward pass of ours on a CPU (default: 32 64 128)",
    )
    parser.add_argument("--seed", type=int, default=0, help="for the rows that are trained on")
    parser.add_argument("--tiny", action="store_true", help="the smallest model, to see that all runs")
    parser.add_argument("--gpu", action="store_true", help="adapters on this machine's GPU")
    parser.add_argument(
        "--shapes",
        nargs="+",
        default=["llama-3.2-1b", "llama-7b"],
        help="with --gpu: see shapes.py; tiny runs on a CPU, too",
    )
    parser.add_argument("--memory-gb", type=float, help="with --gpu: use no more of its memory, as on a smaller card")
    parser.add_argument("--minutes", type=float, default=math.inf, help="with --gpu: leave out what takes longer")
    parser.add_argument("--method", choices=["lora", "qlora"], default="qlora", help="with --gpu (default: qlora)")
    parser.add_argument(
        "--peak-tflops", type=float, help="with --gpu: the device's dense bf16 peak, where it is not known"
    )
    options = parser.parse_args()
    if options.replies % options.roles:
        parser.error(f"--replies ({options.replies}) has to be a multiple of --roles ({options.roles})")
    return options


def main() -> None:
    """Measure and print."""
    options = parse_arguments()
    wait_briefly()  # Before torch: the rivals profit as much.
    if options.gpu:
        need_gpu(options.shapes)
    from rocit_data import SIZES, SMALLEST, load_corpus

    notes = []
    if not options.data_dir:
        options.replies, options.steps = min(options.replies, 16), min(options.steps, 2)
        notes.append(f"No --data-dir and no $ROLEBENCH_DIR: the embedded sample, {options.replies} replies a step.")
    corpus = load_corpus(options.data_dir, SMALLEST if options.tiny else SIZES)
    wanted = plan_of(options, max(example.length for example in corpus.examples))
    if options.gpu:
        from rocit_gpu import Device, measure_gpu
        from shapes import shape

        device = Device.here(options.peak_tflops, options.memory_gb)
        shapes = {name: shape(name) for name in options.shapes}
        measured = measure_gpu(corpus, wanted, shapes, device, options.method)
    else:
        measured = measure(corpus, wanted)
    result = measured | setup(corpus, wanted)
    notes.append(
        f"{result['data']}, {result['rows']:,} rows; steps of {result['replies_a_step']} replies in "
        f"{result['roles_a_step']} groups of one role each; {result['timed_steps']} steps timed after one that was not"
    )
    report("rocit", result if options.json else result | {"figures": flat(result["figures"])}, notes, options.json)


if __name__ == "__main__":
    main()
