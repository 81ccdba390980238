"""BM25: the scores against a plain implementation of the formula, the order of equals, and words in two languages."""

import math
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolellm.core.errors import MissingExtraError
from rolellm.models.prompts import retrieval
from rolellm.models.prompts.retrieval import TextIndex

LINES = (
    "The map goes in the crutch.",
    "A kettle of stew for the captain.",
    "The captain has lost his map and his key.",
    "Rats eat aprons.",
)
WORDS = ("stew", "map", "rats", "key", "parrot", "crutch")


def lucene(texts: list[list[str]], query: list[str], k1: float = 1.5, b: float = 0.75) -> list[float]:
    """BM25 as Lucene computes it, written down from the formula (Kamphuis et al., ECIR 2020)."""
    mean = sum(map(len, texts)) / len(texts)
    scores = []
    for text in texts:
        counts = Counter(text)
        score = 0.0
        for word in query:
            holders = sum(word in other for other in texts)
            if counts[word]:
                idf = math.log(1 + (len(texts) - holders + 0.5) / (holders + 0.5))
                score += idf * counts[word] / (counts[word] + k1 * (1 - b + b * len(text) / mean))
        scores.append(score)
    return scores


word_lists = st.lists(st.sampled_from(WORDS), max_size=8)


@given(texts=st.lists(word_lists, min_size=1, max_size=7).filter(any), query=word_lists)
def test_scores_are_those_of_the_formula(texts: list[list[str]], query: list[str]) -> None:
    index = TextIndex([" ".join(text) for text in texts], "en")
    assert index.scores(" ".join(query)) == pytest.approx(lucene(texts, query), rel=1e-5, abs=1e-7)


@given(texts=st.lists(st.text(max_size=12), max_size=7), query=st.text(max_size=12), count=st.integers(0, 9))
@pytest.mark.parametrize("language", ["en", "zh"])
def test_any_text_is_ranked_by_score_then_place(language: str, texts: list[str], query: str, count: int) -> None:
    index = TextIndex(texts, language)
    scores, top = index.scores(query), index.rank(query, count)
    assert len(index) == len(texts) == len(scores)
    assert len(set(top)) == len(top) == min(count, len(texts))
    assert np.isfinite(scores).all() and (scores >= 0).all()
    ranked = [(-scores[place], place) for place in top]
    assert ranked == sorted(ranked)
    assert all((-scores[other], other) > ranked[-1] for other in set(range(len(texts))) - set(top) if ranked)


@given(scores=st.lists(st.sampled_from([0.0, 0.0, 0.0, 0.5, 1.0, 2.5]), max_size=60), count=st.integers(0, 12))
@settings(max_examples=300)
def test_equals_keep_their_order(scores: list[float], count: int) -> None:
    ranked = retrieval._rank_scores(np.array(scores, np.float32), count)
    assert ranked.tolist() == sorted(range(len(scores)), key=lambda place: (-scores[place], place))[:count]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        pytest.param("驴在哪里？", 1, id="a word of one character"),
        pytest.param("磨坊有多远", 2, id="a word of two"),
        pytest.param("你有ＡＢＣ吗", 3, id="width and case folded"),
        pytest.param("的是我们", 0, id="stop words only"),
    ],
)
def test_chinese(query: str, expected: int) -> None:
    texts = ("洒家来也", "他牵走了那头驴", "夜里，河边的磨坊", "abc 三个字母")
    assert TextIndex(texts, "zh").rank(query, 1) == [expected]


def test_a_missing_package_names_the_line_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(MissingExtraError, match=r'pip install "rolellm\[llm\]"'):
        TextIndex(LINES, "en", extra="llm")


def test_jax_is_not_started_and_stays_there_for_others(tmp_path: Path) -> None:
    """Where JAX is installed, bm25s has it take most of a GPU's memory as soon as it is imported."""
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax/__init__.py").write_text("print('jax is imported')\n", encoding="utf-8")
    (tmp_path / "jax/lax.py").write_text("", encoding="utf-8")
    code = (
        "from rolellm.models.prompts.retrieval import TextIndex\n"
        "print(TextIndex(['a kettle of stew'], 'en').scores('stew') > 0)\n"
        "import jax"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[ True]", "jax is imported"]
