"""How fast `rolellm generate` answers beside transformers' own batched `generate`: same model, rows and decoding.

    python benchmarks/generate.py [--json] [--data-dir RELEASE] [--model FOLDER] [--rows N] [--roles N] [--samples N]
    python benchmarks/generate.py --gpu --rows 256 --roles 4 --max-new-tokens 128 --batch-sizes 64 256

On a CPU: the LLaMA of 6.8 million random weights of `rocit.py`, or a model of yours, in float32. The rival gets rows
sorted by length in left-padded batches of the sizes named, and its best stands for it. Greedy, both give the same
replies, which is counted; with several samples a question (`num_return_sequences` there), both sample at 0.7 and 0.95.
Sides take turns; a figure is the least processor time of a side, so that a busy machine changes little. Reading the
rows, loading and tokenizing are not in it. On a GPU: random weights in bf16 at the shape of a real model, in batches
as the engine chooses them by default, by the clock. With `--vllm COMMAND` (as `--engine` takes it), the requests also
go through vLLM, one reply a row, its start left out; on a GPU, not measured since.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from common import environment, need_gpu, peak_memory_mb, report
from rocit_data import CONFIG, SIZES, SPLIT

from rolellm.core.records import Row
from rolellm.data.rolebench import load_rolebench
from rolellm.llm.client import Client
from rolellm.llm.llm import LLM
from rolellm.llm.model import Failure, Finish, accept_text
from rolellm.models.local_model import Decoding, LocalModel
from rolellm.models.prompts.render import make_messages
from rolellm.scoring.generate import choose_limits, limit_replies, plan_batches, plan_row_requests
from rolellm.scoring.settings import GenerateSettings
from rolellm.training.recipe import BaseRecipe, Recipe

GOALS = "Goals: 3 times transformers with the 7M LLaMA, 2 times with a real 0.5B model, more with five samples."


def choose(rows: Sequence[Row], roles: int, count: int) -> list[Row]:
    """The first rows of the first roles, as many of each."""
    names = list(dict.fromkeys(row.role for row in rows))[:roles]
    return [row for name in names for row in [row for row in rows if row.role == name][: count // roles]]


def ours(
    model: LocalModel, prompts: list[list[int]], rows: list[Row], settings: GenerateSettings, samples: int
) -> list[str]:
    """Replies by the engine of `rolellm generate`, in the order of the rows and samples."""
    from rolellm.models.prefix_generation import group_prompts

    model._shared = None  # Nothing is left from the turn before.
    keys = [f"{row.id} {sample}" for row in rows for sample in range(samples)]
    asked = [prompt for prompt in prompts for _ in range(samples)]
    every = [row for row in rows for _ in range(samples)]
    groups = group_prompts(asked)
    shared = {place: length for length, places in groups for place in places}
    lengths = list(map(len, asked))
    room = limit_replies(every, lengths, model.context, settings.max_new_tokens)
    replies: dict[int, str] = {}
    for places, _ in plan_batches(lengths, room, choose_limits(model, settings, {}), groups):
        made = model.generate_batch(
            [asked[place] for place in places],
            settings,
            [keys[place] for place in places],
            [shared[place] for place in places],
        )
        replies |= {place: reply.text for place, reply in zip(places, made, strict=True)}
    return [replies[place] for place in range(len(asked))]


def theirs(model: LocalModel, prompts: list[list[int]], decoding: Decoding, size: int, samples: int) -> list[str]:
    """Replies by transformers' `generate`, in the order of the rows and samples."""
    import torch

    network, padding = model._model, model._padding
    sampling = {"do_sample": True, "temperature": decoding.temperature, "top_p": decoding.top_p, "top_k": 0}
    how = {"num_return_sequences": samples, **sampling} if decoding.temperature else {"do_sample": False}
    order = sorted(range(len(prompts)), key=lambda place: -len(prompts[place]))
    replies: dict[int, list[str]] = {}
    for start in range(0, len(order), size):
        places = order[start : start + size]
        longest = max(len(prompts[place]) for place in places)
        ids = torch.tensor([[padding] * (longest - len(prompts[place])) + prompts[place] for place in places])
        mask = torch.tensor([[0] * (longest - len(prompts[place])) + [1] * len(prompts[place]) for place in places])
        with torch.inference_mode():
            output = network.generate(
                input_ids=ids.to(model.device),
                attention_mask=mask.to(model.device),
                max_new_tokens=decoding.max_new_tokens,
                eos_token_id=model.stops,
                pad_token_id=padding,
                **how,
            )
        texts = [model.make_completion((), reply).text for reply in output[:, longest:].tolist()]
        for number, place in enumerate(places):
            replies[place] = texts[number * samples : (number + 1) * samples]
    return [text for place in range(len(prompts)) for text in replies[place]]


def timed(work: Callable[[], list[str]], clock: Callable[[], float]) -> tuple[float, list[str]]:
    """Seconds, and the replies, which a GPU has to finish to be read."""
    begun = clock()
    replies = work()
    return clock() - begun, replies


def measure(model: LocalModel, rows: list[Row], options: argparse.Namespace) -> dict[str, Any]:
    """Ratios and figures of one model and number of samples."""
    model.load()
    prompts = [model.encode(make_messages(row)) for row in rows]
    sampling: dict[str, Any] = {"temperature": 0.7, "top_p": 0.95} if options.samples > 1 else {}
    settings = GenerateSettings(max_new_tokens=options.max_new_tokens, **sampling)
    sides: dict[str, Callable[[], list[str]]] = {"ours": lambda: ours(model, prompts, rows, settings, options.samples)}
    for size in options.batch_sizes:
        sides[f"transformers, batches of {size}"] = partial(theirs, model, prompts, settings, size, options.samples)
    seconds: dict[str, float] = {}
    texts: dict[str, list[str]] = {}
    clock = time.process_time if model.device == "cpu" else time.perf_counter
    for turn in range(options.turns):
        # Each side begins as often as it comes last.
        for name, work in list(sides.items())[:: 1 if turn % 2 == 0 else -1]:
            took, texts[name] = timed(work, clock)
            seconds[name] = min(took, seconds.get(name, took))
            print(f"{name}: {took:.2f} s", file=sys.stderr, flush=True)
    count = len(rows) * options.samples
    best = min((name for name in seconds if name != "ours"), key=lambda name: seconds[name])
    figures: dict[str, Any] = {f"replies a second, {name}": count / took for name, took in seconds.items()}
    limits = choose_limits(model, settings, {})
    figures |= {"rows a batch, at most": limits.rows, "tokens a batch, at most": limits.tokens}
    figures["tokens a prompt"] = sum(map(len, prompts)) / len(prompts)
    if options.samples == 1:
        figures["replies equal to those of the best"] = sum(
            one == other for one, other in zip(texts["ours"], texts[best], strict=True)
        )
    ratios = {"transformers": seconds[best] / seconds["ours"]}
    if options.vllm:
        took = time_vllm(model, rows, settings, options.vllm)
        figures["replies a second, vLLM"] = len(rows) / took
        if options.gpu:
            ratios["vllm"] = took * options.samples / seconds["ours"]
    figures["peak memory, MB"] = peak_memory_mb()
    figures["load"] = os.getloadavg()[0]
    return {"ratios": ratios, "figures": figures, "n": count}


def time_vllm(model: LocalModel, rows: list[Row], settings: GenerateSettings, engine: str) -> float:
    """Seconds of the clock for one reply a row through the client, after one that starts the server."""
    llm = LLM(backend="local", model=model.source.base, dtype=model.dtype, engine=engine)
    requests, _ = plan_row_requests(rows, settings)
    with tempfile.TemporaryDirectory() as folder, Client(folder, llm.models, llm.options) as client:
        also: tuple[Finish, ...] = ("length",)
        client.ask([replace(requests[0], repeat=1)], accept_text, also=also)
        begun = time.perf_counter()
        outcomes = client.ask(requests, accept_text, also=also)
        seconds = time.perf_counter() - begun
    if any(isinstance(outcome, Failure) for outcome in outcomes):
        raise SystemExit("vLLM did not answer every row")
    return seconds


def load(folder: Path, options: argparse.Namespace) -> tuple[LocalModel, list[Row]]:
    """The model and the rows; without a model, one of random weights is made in the folder."""
    from rolellm.training.bases import build_tokenizer, create_model

    config, split = ("sample", "train") if options.data_dir is None else (CONFIG, SPLIT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # A partial release says what it lacks; these rows are all there.
        columns = load_rolebench(config, data_dir=options.data_dir)[split]
    general = [row for row in map(Row.from_columns, columns) if (row.language, row.subset) == ("en", "general")]
    rows = choose(general, options.roles, options.rows)
    if options.model is None:
        recipe = Recipe(base=BaseRecipe(build="tiny-llama", tiny=SIZES))
        tokenizer = build_tokenizer(recipe, general[:: max(1, len(general) // 1000)])
        tokenizer.save_pretrained(folder)
        if options.gpu:
            save_shape(options.shape, tokenizer, folder)
        else:
            create_model(recipe, tokenizer).save_pretrained(folder)
    name = str(options.model or folder)
    if options.gpu:
        return LocalModel(name, dtype="bfloat16"), rows
    return LocalModel(name, device="cpu", dtype="float32"), rows


def save_shape(name: str, tokenizer: Any, folder: Path) -> None:
    """Save a model of random weights at the shape of a real one; the tokens are the tokenizer's."""
    import torch
    from shapes import shape
    from transformers import AutoModelForCausalLM

    config = shape(name)
    for token in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(config, token, getattr(tokenizer, token))
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, trust_remote_code=False)
    model.save_pretrained(folder)


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("ROLEBENCH_DIR"))
    parser.add_argument("--model", help="a folder with a model; by default, one of random weights")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--roles", type=int, default=2)
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--max-new-tokens", type=int, default=100)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[8, 16, 32])
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--vllm", help="what starts vLLM, such as 'vllm --gpu-memory-utilization 0.6'")
    parser.add_argument("--gpu", action="store_true", help="on this machine's GPU")
    parser.add_argument("--shape", default="llama-3.2-1b", help="with --gpu: see shapes.py; tiny runs on a CPU, too")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.gpu:
        need_gpu([options.shape])
    with tempfile.TemporaryDirectory() as folder:
        model, rows = load(Path(folder), options)
        result = measure(model, rows, options) | environment("torch", "transformers")
    report("generate", result, [GOALS], options.json)


if __name__ == "__main__":
    main()
