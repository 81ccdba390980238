"""How long it takes to put a whole training set in order, and to fold each pass of it: 112,142 rows of five replies.

    python benchmarks/packs.py [--json] [--data-dir RELEASE] [--rows N] [--replies N] [--batch N]

Prompts are the release's own: each of its descriptions with each of its general instructions, so many of these pairs as
the training set of English instruction generalization has rows, drawn by seed; replies are drawn from the general
references at hand. Timed are the store that holds the examples, the schedule of one epoch, and for each pass its padded
rows and their folding. Tokenizing is not timed. It runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from statistics import median

import numpy as np
from common import environment, make_parser, peak_memory_mb, report

import rolellm
from rolellm.core.jsonl import read_jsonl
from rolellm.core.records import Row
from rolellm.models.prefix_sharing import fold_rows
from rolellm.models.prompts.encode import encode_prompt
from rolellm.models.prompts.render import make_messages
from rolellm.training.examples import Example
from rolellm.training.recipe import TrainingRecipe
from rolellm.training.schedule import schedule_replies

ROWS, REPLIES = 112_142, 5
SAMPLE = Path(rolellm.__file__).parent / "data" / "rolebench" / "sample"
# As recipes/rolellama-7b-qlora.yaml: replies of an optimizer step, and of a forward pass.
STEP, BATCH = 128, 32


def write_tokens(data_dir: Path | None, rows: int, folder: Path) -> None:
    """Tokenize descriptions, instructions and replies, each once, and leave them and the pairs to make in a folder."""
    from rocit_data import load_corpus

    root = data_dir or SAMPLE
    corpus = load_corpus(data_dir)
    corpus = replace(corpus, rows=corpus.rows[:rows])
    profiles = json.loads((root / "profiles-eng" / "desc.json").read_text(encoding="utf-8"))
    questions = [row["instruction"] for _, row in read_jsonl(root / "instructions-eng" / "instructions-general.jsonl")]
    end = corpus.tokenizer.eos_token_id

    def encode(role: str, question: str) -> list[int]:
        row = Row("", role, "en", "general", question, (), role_description=profiles[role])
        return encode_prompt(corpus.tokenizer, make_messages(row))

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
    _save(folder / "replies.npz", [list(example.reply_ids) for example in corpus.examples])
    np.save(folder / "pairs.npy", pairs)


def _save(file: Path, sequences: Sequence[list[int]]) -> None:
    np.savez(
        file, flat=np.asarray(list(chain.from_iterable(sequences)), np.int32), ends=np.cumsum(list(map(len, sequences)))
    )


def _load(file: Path) -> list[array[int]]:
    with np.load(file) as arrays:
        return [array("i", ids.tolist()) for ids in np.split(arrays["flat"], arrays["ends"][:-1])]


def build(folder: Path, replies: int, batch: int) -> dict[str, float]:
    """Store, schedule and fold one epoch; seconds, the memory of the process in MB (1e6 bytes), tokens and passes."""
    heads, tails, texts = (_load(folder / f"{name}.npz") for name in ("heads", "tails", "replies"))
    pairs = np.load(folder / "pairs.npy")
    chance = np.random.default_rng(1)
    chosen = chance.integers(len(texts), size=(len(pairs), replies))
    before = peak_memory_mb()
    clock = [time.perf_counter()]

    def replies_to_prompts() -> Iterator[Example]:
        for number, pair in enumerate(pairs.tolist()):
            role, question = divmod(pair, len(tails))
            prompt = heads[role] + tails[question]
            for place, text in enumerate(chosen[number].tolist()):
                yield Example(f"general-{number}", prompt, texts[text][:], place, str(role))

    examples = list(replies_to_prompts())
    clock.append(time.perf_counter())
    training = TrainingRecipe(replies_per_step=max(batch, STEP), replies_per_pass=batch, num_train_epochs=1.0)
    schedule = schedule_replies(examples, training)
    clock.append(time.perf_counter())
    peak = peak_memory_mb()  # Before torch, which training holds anyway.
    collated, folded, tokens = _fold_all(examples, schedule.order.reshape(-1, batch).tolist())
    return {
        "store_s": clock[1] - clock[0],
        "schedule_s": clock[2] - clock[1],
        "collate_s": sum(collated),
        "fold_s": sum(folded),
        "collate_ms_a_pass": 1000 * median(collated),
        "fold_ms_a_pass": 1000 * median(folded),
        "slowest_fold_ms": 1000 * max(folded),
        "peak_mb": peak,
        "peak_mb_before": before,
        "replies": len(examples),
        "tokens_row_by_row": sum(example.length for example in examples),
        "tokens_folded": tokens,
        "passes": len(folded),
    }


def _fold_all(examples: list[Example], batches: list[list[int]]) -> tuple[list[float], list[float], int]:
    """Seconds for the padded rows of each pass and for folding them, and the tokens of all trees."""
    from rolellm.training.fit import RowCollator

    collator = RowCollator(examples, pad_id=0)
    collated, folded, tokens = [], [], 0
    for numbers in batches:
        clock = [time.perf_counter()]
        rows = collator([{"example": number} for number in numbers])
        clock.append(time.perf_counter())
        tokens += len(fold_rows(rows["input_ids"].numpy(), rows["attention_mask"].bool().numpy()).ids)
        clock.append(time.perf_counter())
        collated.append(clock[1] - clock[0])
        folded.append(clock[2] - clock[1])
    return collated, folded, tokens


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__, reads_release=True)
    parser.add_argument("--rows", type=int, default=ROWS, help="at most so many rows (default: %(default)s)")
    parser.add_argument("--replies", type=int, default=REPLIES, help="replies a row (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=BATCH, help="replies a forward pass (default: %(default)s)")
    parser.add_argument("--build", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    options = parse_arguments()
    if options.build:
        print(json.dumps(build(options.build, options.replies, options.batch)))
        return
    with tempfile.TemporaryDirectory() as folder:
        write_tokens(options.data_dir, options.rows, Path(folder))
        command = [sys.executable, __file__, "--build", folder, "--replies", str(options.replies)]
        done = subprocess.run([*command, "--batch", str(options.batch)], check=True, capture_output=True, text=True)
        figures = json.loads(done.stdout)
    rows = figures["replies"] // options.replies
    result = {
        "ratios": {"tokens": figures["tokens_row_by_row"] / figures["tokens_folded"]},
        "figures": figures,
        "n": rows,
        **environment("numpy"),
    }
    notes = [f"{rows:,} rows of {options.replies} replies, {options.batch} of them a pass and {STEP} a step"]
    if not options.data_dir:
        notes.append("No --data-dir and no $ROLEBENCH_DIR: prompts and replies of the embedded sample.")
    report("packs", result, notes, options.json)


if __name__ == "__main__":
    main()
