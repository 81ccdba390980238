"""How fast exchanges are found by BM25 among as many as the whole of RoleBench has, beside the packages one might use.

    python benchmarks/retrieval.py [--json] [--pairs N] [--queries N] [--language en|zh]

The pairs are made up, as the release's dialogue cannot be shipped: their words follow the frequencies of a real
vocabulary (Chinese: jieba's dictionary with its counts; English: the embedded sample's words by rank, and behind them
made-up ones, as Zipf's law has them), their lengths a log-normal law with the median of a line and its answer. A query
is as long as a general instruction and drawn from the same words, so all of it is known to the index: the hard case.

``rank_bm25`` is measured where it is installed (it is no dependency), on a few queries, for it takes seconds for one.
Each rival gets the same words, so that only indexing and search are compared. Of ours, wall and CPU time are given: a
busy machine changes the first and hardly the second. Everything runs in one thread.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import environment, make_parser, peak_memory_mb, report
from rich.console import Console

import rolellm
from rolellm.core.records import Language
from rolellm.core.text import load_chinese_tokenizer
from rolellm.models.prompts.retrieval import TextIndex

SAMPLE = Path(rolellm.__file__).parent / "data" / "rolebench" / "sample"
PAIRS, QUERIES, SHOWN = 140_000, 500, 5
SLOW_QUERIES = 5
GOAL_INDEX, GOAL_QUERY = 10.0, 2.0
VOCABULARY = 30_000
LOG = Console(stderr=True)


@dataclass(frozen=True)
class Corpus:
    """Pairs to look through, and queries."""

    language: Language
    texts: list[str]
    queries: list[str]


def english_words() -> tuple[list[str], np.ndarray]:
    """The sample's words, most frequent first, and made-up ones behind them, with the probabilities of Zipf's law."""
    counts: Counter[str] = Counter()
    for path in sorted(SAMPLE.rglob("*.jsonl")):
        if "-zh" not in str(path.relative_to(SAMPLE)):
            text = path.read_text(encoding="utf-8").casefold()
            counts.update(word for word in text.replace('"', " ").replace("\\n", " ").split() if word.isalpha())
    words = [word for word, _ in counts.most_common()]
    syllables = [first + vowel for first in "bdfgklmnprstvz" for vowel in ("a", "e", "i", "o", "u", "an", "er")]
    number = 0
    while len(words) < VOCABULARY:
        rest, made = number, ""
        for _ in range(3):
            rest, place = divmod(rest, len(syllables))
            made += syllables[place]
        words.append(made)
        number += 7
    weights = 1 / (np.arange(len(words)) + 2.7)
    return words, weights / weights.sum()


def chinese_dictionary() -> tuple[list[str], np.ndarray]:
    """The words of jieba's dictionary with the frequencies that it gives them."""
    load_chinese_tokenizer()
    import jieba

    with jieba.get_dict_file() if hasattr(jieba, "get_dict_file") else jieba.dt.get_dict_file() as stream:
        lines = [line.decode("utf-8").split() for line in stream]
    words = [line[0] for line in lines]
    weights = np.array([max(float(line[1]), 1.0) for line in lines])
    return words, weights / weights.sum()


def make(language: Language, pairs: int, queries: int) -> Corpus:
    """Pairs and queries of a language, the same in each run."""
    random = np.random.default_rng(0)
    words, weights = english_words() if language == "en" else chinese_dictionary()
    # A line and its answer: about 22 words, in Chinese about 30 characters; an instruction: about 25 words.
    median, query = (22, 25) if language == "en" else (18, 14)
    joiner = " " if language == "en" else ""

    def texts(count: int, middle: float) -> list[str]:
        lengths = np.clip(random.lognormal(np.log(middle), 0.7, count), 2, 12 * middle).astype(int)
        drawn = random.choice(len(words), p=weights, size=int(lengths.sum())).tolist()
        ends = np.cumsum(lengths).tolist()
        starts = [0, *ends[:-1]]
        return [joiner.join(words[item] for item in drawn[a:b]) for a, b in zip(starts, ends, strict=True)]

    return Corpus(language, texts(pairs, median), texts(queries, query))


def milliseconds(
    search: Callable[[str], Any], queries: Sequence[str], clock: Callable[[], float] = time.perf_counter
) -> np.ndarray:
    """What each query takes."""
    search(queries[0])
    found = []
    for query in queries:
        start = clock()
        search(query)
        found.append((clock() - start) * 1e3)
    return np.array(found)


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and the result."""
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def measure(corpus: Corpus) -> tuple[dict[str, float], dict[str, Any]]:
    """The ratios to the rivals and the figures of one language."""
    words = None
    cutting = 0.0
    if corpus.language == "zh":
        cut = load_chinese_tokenizer()
        cutting, words = timed(lambda: [cut(text) for text in corpus.texts])
    busy = time.process_time()
    building, index = timed(lambda: TextIndex(corpus.texts, corpus.language))
    busy = time.process_time() - busy
    LOG.print(f"{corpus.language}: index in {building:.1f} s")
    took = milliseconds(lambda query: index.rank(query, SHOWN), corpus.queries)
    busily = milliseconds(lambda query: index.rank(query, SHOWN), corpus.queries, time.process_time)
    small, _ = timed(lambda: TextIndex(corpus.texts[:1400], corpus.language))
    misplaced = sum(not np.array_equal(index.rank(query, SHOWN), whole_order(index, query)) for query in corpus.queries)
    figures = {
        "index_seconds": building,
        "index_cpu_seconds": busy,
        "index_seconds_of_1400_pairs": small,
        "query_ms_mean": float(took.mean()),
        "query_ms_p95": float(np.percentile(took, 95)),
        "query_ms_max": float(took.max()),
        "query_cpu_ms_mean": float(busily.mean()),
        "query_cpu_ms_p95": float(np.percentile(busily, 95)),
        "queries_in_other_order_than_a_full_sort": misplaced,
        "characters_a_pair": sum(map(len, corpus.texts)) / len(corpus.texts),
        "words_a_query": sum(len(index.words(query)) for query in corpus.queries) / len(corpus.queries),
    }
    if words is not None:
        figures["cutting_words_seconds"] = cutting
    listed = [index.words(text) for text in corpus.texts]
    ratios = {}
    for name, rival in (("bm25s", by_bm25s), ("rank_bm25", by_rank_bm25)):
        if importlib.util.find_spec(name) is None:
            LOG.print(f"{name} is not installed: left out")
            continue
        seconds, search, some = rival(listed, index)
        theirs = milliseconds(search, corpus.queries[:some])
        ratios[name] = float(theirs.mean() / took[:some].mean())
        figures[f"{name}_index_seconds_of_cut_words"] = seconds
        figures[f"{name}_query_ms_mean"] = float(theirs.mean())
        figures[f"{name}_query_ms_p95"] = float(np.percentile(theirs, 95))
    return ratios, figures


def whole_order(index: TextIndex, query: str) -> np.ndarray:
    """The best places, from sorting all of them."""
    return np.argsort(-index.scores(query), kind="stable")[:SHOWN]


Rival = tuple[float, Callable[[str], Any], int]


def by_bm25s(listed: list[list[str]], index: TextIndex) -> Rival:
    """The package that ours stands on, by its own `retrieve`; it leaves ties to chance."""
    import bm25s

    found = bm25s.BM25()
    seconds, _ = timed(lambda: found.index(listed, create_empty_token=False, show_progress=False))

    def search(query: str) -> Any:
        return found.retrieve([index.words(query) or [""]], k=SHOWN, show_progress=False)

    return seconds, search, QUERIES


def by_rank_bm25(listed: list[list[str]], index: TextIndex) -> Rival:
    """The package most code on the web uses."""
    from rank_bm25 import BM25Okapi

    seconds, found = timed(lambda: BM25Okapi([words or [""] for words in listed]))
    places = list(range(len(listed)))
    return seconds, lambda query: found.get_top_n(index.words(query), places, n=SHOWN), SLOW_QUERIES


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--pairs", type=int, default=PAIRS, metavar="N", help="dialogue pairs (default: %(default)s)")
    parser.add_argument("--queries", type=int, default=QUERIES, metavar="N", help="queries (default: %(default)s)")
    parser.add_argument("--language", choices=("en", "zh"), help="only this one")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    arguments = parse_arguments()
    if arguments.pairs < 1 or arguments.queries < 1:
        sys.exit("give 1 pair and 1 query at least")
    languages: tuple[Language, ...] = (arguments.language,) if arguments.language else ("en", "zh")
    ratios: dict[str, float] = {}
    figures: dict[str, Any] = {"load_at_start": os.getloadavg()[0] if hasattr(os, "getloadavg") else None}
    for language in languages:
        found, measured = measure(make(language, arguments.pairs, arguments.queries))
        ratios |= {f"{name}_{language}": value for name, value in found.items()}
        figures |= {f"{language}_{name}": value for name, value in measured.items()}
    figures["peak_memory_mb"] = peak_memory_mb()
    packages = ["bm25s", "jieba", "numpy", *(["rank-bm25"] if importlib.util.find_spec("rank_bm25") else [])]
    result = {
        "ratios": ratios,
        "figures": figures,
        "n": {"pairs": arguments.pairs, "queries": arguments.queries},
        **environment(*packages),
    }
    notes = [
        f"goals: an index in under {GOAL_INDEX:g} s, a query in under {GOAL_QUERY:g} ms; ratios are of query times"
    ]
    report("retrieval", json.loads(json.dumps(result)), notes, arguments.json)


if __name__ == "__main__":
    main()
