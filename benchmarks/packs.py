"""How long the packs of a whole training set take to build, and how much memory: 112,142 rows with five replies each.

    python benchmarks/packs.py [--json] [--data-dir RELEASE] [--rows N] [--replies N] [--budget N]

Prompts are the release's own: each of its descriptions with each of its general instructions, so many of these pairs as
the training set of English instruction generalization has rows, drawn by seed; replies are drawn from the general
references at hand. What is timed begins with tokens and ends with every pack of one epoch laid out: the store that
holds the examples, the order of the run, the sequences. Tokenising is not timed. It runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import environment, peak_memory_mb, report

import rolellm
from rolellm.core.jsonl import read_jsonl
from rolellm.core.records import Row
from rolellm.prompts.encode import encode_prompt
from rolellm.prompts.render import prompt_messages
from rolellm.rocit.packing.examples import Example, Examples, Ragged
from rolellm.rocit.packing.plan import plan
from rolellm.rocit.packing.tree import pack
from rolellm.rocit.recipe import TrainingRecipe

ROWS, REPLIES = 112_142, 5
SAMPLE = Path(rolellm.__file__).parent / "rolebench" / "sample"
# As recipes/rolellama-7b-qlora.yaml.
STEP = 128


def write_tokens(data_dir: Path | None, rows: int, folder: Path) -> None:
    """Tokenise descriptions, instructions and replies, each once, and leave them and the pairs to make in a folder."""
    from rocit_data import load_corpus

    root = data_dir or SAMPLE
    corpus = load_corpus(data_dir)
    profiles = json.loads((root / "profiles-eng" / "desc.json").read_text(encoding="utf-8"))
    questions = [row["instruction"] for _, row in read_jsonl(root / "instructions-eng" / "instructions-general.jsonl")]
    end = corpus.tokenizer.eos_token_id

    def encode(role: str, question: str) -> list[int]:
        row = Row("", role, "en", "general", question, (), role_description=profiles[role])
        return encode_prompt(corpus.tokenizer, prompt_messages(row))

    def cut(ids: list[int]) -> int:
        return ids.index(end) + 1  # The end of the system instruction: a special token, which no text runs across.

    roles = sorted(profiles)
    heads = [ids[: cut(ids)] for ids in (encode(role, "?") for role in roles)]
    tails = [ids[cut(ids) :] for ids in (encode(roles[0], question) for question in questions)]
    chance = np.random.default_rng(0)
    pairs = chance.permutation(len(roles) * len(questions))[:rows]
    for pair in pairs[:20].tolist():
        role, question = divmod(pair, len(questions))
        if encode(roles[role], questions[question]) != heads[role] + tails[question]:
            raise RuntimeError(f"a prompt of {roles[role]} is not the sum of its parts")
    _save(folder / "heads.npz", heads)
    _save(folder / "tails.npz", tails)
    np.savez(folder / "replies.npz", flat=corpus.examples.replies.flat, offsets=corpus.examples.replies.offsets)
    np.save(folder / "pairs.npy", pairs)


def _save(file: Path, sequences: Sequence[list[int]]) -> None:
    held = Ragged.of([np.asarray(ids, np.int32) for ids in sequences])
    np.savez(file, flat=held.flat, offsets=held.offsets)


def _load(file: Path) -> Ragged:
    with np.load(file) as arrays:
        return Ragged(arrays["flat"], arrays["offsets"])


def build(folder: Path, replies: int, budget: int) -> dict[str, float]:
    """Build all packs of one epoch; seconds by stage, the process's memory in MB (1e6 bytes), tokens and packs."""
    heads, tails, texts = (_load(folder / f"{name}.npz") for name in ("heads", "tails", "replies"))
    pairs = np.load(folder / "pairs.npy")
    chance = np.random.default_rng(1)
    chosen = chance.integers(len(texts), size=(len(pairs), replies))
    before = peak_memory_mb()
    clock = [time.perf_counter()]

    def replies_to_prompts() -> Iterator[Example]:
        for number, pair in enumerate(pairs.tolist()):
            role, question = divmod(pair, len(tails))
            prompt = (*heads[role].tolist(), *tails[question].tolist())
            for place, text in enumerate(chosen[number].tolist()):
                yield Example(f"general-{number}", prompt, tuple(texts[text].tolist()), place, str(role))

    examples = Examples.of(replies_to_prompts())
    clock.append(time.perf_counter())
    training = TrainingRecipe(
        per_device_train_batch_size=STEP, pack_tokens=budget, num_train_epochs=1.0, max_length=budget
    )
    passes = plan(examples, training)
    clock.append(time.perf_counter())
    tokens = sum(len(pack(examples, chosen.tolist()).ids) for chosen in _passes(passes))
    clock.append(time.perf_counter())
    stages = dict(zip(("store_s", "plan_s", "layout_s"), np.diff(clock).tolist(), strict=True))
    return stages | {
        "seconds": clock[-1] - clock[0],
        "peak_mb": peak_memory_mb(),
        "peak_mb_before": before,
        "replies": len(examples),
        "tokens_row_by_row": int(examples.lengths.sum()),
        "tokens_in_packs": tokens,
        "packs": len(passes),
    }


def _passes(passes: Any) -> Iterator[Any]:
    return (passes[number] for number in range(len(passes)))


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument(
        "--data-dir", type=Path, help="a local copy of the release (default: $ROLEBENCH_DIR, else the sample)"
    )
    parser.add_argument("--rows", type=int, default=ROWS, help="at most so many rows (default: %(default)s)")
    parser.add_argument("--replies", type=int, default=REPLIES, help="replies a row (default: %(default)s)")
    parser.add_argument("--budget", type=int, default=4096, help="tokens of a pack (default: %(default)s)")
    parser.add_argument("--build", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    options = parse_arguments()
    if options.build:
        print(json.dumps(build(options.build, options.replies, options.budget)))
        return
    given = options.data_dir or os.environ.get("ROLEBENCH_DIR")
    with tempfile.TemporaryDirectory() as folder:
        write_tokens(Path(given) if given else None, options.rows, Path(folder))
        command = [sys.executable, __file__, "--build", folder, "--replies", str(options.replies)]
        done = subprocess.run([*command, "--budget", str(options.budget)], check=True, capture_output=True, text=True)
        figures = json.loads(done.stdout)
    rows = figures["replies"] // options.replies
    result = {
        "ratios": {"tokens": figures["tokens_row_by_row"] / figures["tokens_in_packs"]},
        "figures": figures,
        "n": rows,
        **environment("numpy"),
    }
    notes = [
        f"{rows:,} rows of {options.replies} replies, packs of at most {options.budget} tokens, {STEP} replies a step"
    ]
    if not given:
        notes.append("No --data-dir and no $ROLEBENCH_DIR: prompts and replies of the embedded sample.")
    report("packs", result, notes, options.json)


if __name__ == "__main__":
    main()
