"""Prompts with script lines for a profile: what is an exchange, which BM25 shows, and how they read."""

import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolellm.core.errors import MissingExtraError, SettingsError
from rolellm.core.records import Profile, Row, Turn
from rolellm.data.rolebench.release import load_profiles
from rolellm.models.prompts import retrieval
from rolellm.models.prompts.render import Template, load_system_template, make_messages
from rolellm.models.prompts.retrieval import RetrievalPrompts, TextIndex, find_exchanges

from ...training.examples import say, tell

FOX = "Fox"


def row(question: str, role: str = FOX, language: Any = "en") -> Row:
    return Row("r1", role, language, "general", question, ("Yes.",), role_description="You are a fox.")


def pairs(turns: list[Turn]) -> list[tuple[str, str]]:
    return [(item.before.content, item.line.content) for item in find_exchanges(Profile(FOX, "en", tuple(turns)))]


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        pytest.param([say("Crow", "a"), say(FOX, "b")], [("a", "b")], id="line and answer"),
        pytest.param([say("Crow", "a"), tell("n"), say(FOX, "b")], [("a", "b")], id="narration between is passed over"),
        pytest.param([tell("n"), say("Crow", "a"), say(FOX, "b")], [("a", "b")], id="speech wins over narration"),
        pytest.param([tell("m"), tell("n"), say(FOX, "b")], [("n", "b")], id="else the nearest narration"),
        pytest.param([Turn("x", "sits", "direction"), say(FOX, "b")], [], id="a direction is no question"),
        pytest.param([say("Crow", "a"), say(FOX, "b"), say(FOX, "c")], [("a", "b")], id="nothing is answered twice"),
        pytest.param([say("Crow", "a", 0), say(FOX, "b", 1)], [], id="another scene"),
        pytest.param([], [], id="no turn"),
    ],
)
def test_exchanges(turns: list[Turn], expected: list[tuple[str, str]]) -> None:
    assert pairs(turns) == expected


def placed(speaker: str, content: str, start: int, kind: Any = "speech", scene: int = 0) -> Turn:
    return Turn(speaker, content, kind, scene, start, start + len(content))


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        pytest.param(
            [placed("Crow", "a", 0), placed(FOX, "Well,", 10), tell("said he,"), placed(FOX, "then.", 26)],
            [("a", "Well, then.")],
            id="said he",
        ),
        pytest.param(
            [
                placed("Crow", "Why", 0),
                placed("scene", "sighs", 5, "direction"),
                placed("Crow", "me?", 12),
                say(FOX, "b"),
            ],
            [("Why me?", "b")],
            id="a direction in what is answered",
        ),
        pytest.param(
            [placed("Crow", "a", 0), placed(FOX, "One.", 10), tell("A long tale."), placed(FOX, "Two.", 300)],
            [("a", "One."), ("A long tale.", "Two.")],
            id="far apart are two lines",
        ),
        pytest.param(
            [placed("?", "Who", 0), placed("?", "there?", 5), placed(FOX, "b", 20)],
            [("there?", "b")],
            id="two that nobody knows may be two people",
        ),
        pytest.param(
            [placed("Crow", "a", 0), placed(FOX, "One.", 10), placed(FOX, "Two.", 16, scene=1)],
            [("a", "One.")],
            id="a scene ends between",
        ),
    ],
)
def test_what_the_source_parts_by_a_word_or_two_is_one_line(turns: list[Turn], expected: list[tuple[str, str]]) -> None:
    assert pairs(turns) == expected


@pytest.fixture(scope="module")
def sample() -> list[Profile]:
    return load_profiles("sample")


@pytest.mark.parametrize(
    ("role", "language", "question", "first"),
    [
        pytest.param("Queen of Hearts", "en", "Who jams a rose?", "Who jams a rose?", id="English"),
        pytest.param("Long John Silver", "en", "An island?", "poor hand at drawin", id="the line before counts"),
        pytest.param("诸葛亮", "zh", "陈朗拆的信封里写了什么？", "上面写的什么", id="Chinese"),
    ],
)
def test_the_best_exchange_comes_first(
    sample: list[Profile], role: str, language: Any, question: str, first: str
) -> None:
    prompts = RetrievalPrompts(sample)
    examples = prompts.find_examples(row(question, role, language))
    assert first in examples[0].line.content
    assert len(examples) == 5
    system, user = prompts(row(question, role, language))
    assert user == {"role": "user", "content": question}
    assert "\n\n".join(item.format(language) for item in examples) in system["content"]
    assert "You are a fox." not in system["content"]


def test_the_two_forms_say_the_same_but_for_the_profile() -> None:
    """So that the ablation compares profiles and nothing else."""
    question = row("Why?")
    described = make_messages(question)[0]["content"].splitlines()
    lines = RetrievalPrompts([Profile(FOX, "en", (say("Crow", "a"), say(FOX, "b")))])(question)[0]["content"]
    assert [line for line in described if line not in lines.splitlines()] == ["This is who you are: You are a fox."]
    assert "Crow: a\nFox: b" in lines


@pytest.mark.parametrize(
    "profiles",
    [
        pytest.param([], id="no profile"),
        pytest.param([Profile(FOX, "en", (say(FOX, "b"),))], id="no exchange"),
        pytest.param([Profile(FOX, "zh", (say("Crow", "a"), say(FOX, "b")))], id="the other language"),
    ],
)
def test_a_role_without_exchanges_is_asked_without_any(profiles: list[Profile]) -> None:
    system = RetrievalPrompts(profiles)(row("Why?"))[0]["content"]
    assert system == "\n\n".join(
        part.replace("{role}", FOX)
        for part in load_system_template("en", retrieval=True).text.split("\n\n")
        if "{examples}" not in part
    )
    assert "story" not in system


def test_a_template_of_the_users_own(tmp_path: Path) -> None:
    file = tmp_path / "own.txt"
    file.write_bytes(b"Be {role}.\r\n\r\nLike:\r\n{examples}\r\n")
    prompts = RetrievalPrompts([Profile(FOX, "en", (say("Crow", "a"), say(FOX, "b")))], path=file)
    assert prompts(row("Why?"))[0]["content"] == "Be Fox.\n\nLike:\nCrow: a\nFox: b"
    assert prompts(row("Why?", "Owl"))[0]["content"] == "Be Owl."
    assert prompts.hashes["en"] == prompts.hashes["zh"] == Template("Be {role}.\n\nLike:\n{examples}").hash


@pytest.mark.parametrize(
    ("write", "message"),
    [
        pytest.param(lambda file: None, "no system template", id="not there"),
        pytest.param(lambda file: file.write_text("Be {role}."), r"no slot \{examples\}; ", id="no examples"),
        pytest.param(lambda file: file.write_text("Hello"), r"\{role\} and no \{examples\}", id="neither"),
    ],
)
def test_a_template_that_will_not_do(tmp_path: Path, write: Callable[[Path], object], message: str) -> None:
    write(tmp_path / "own.txt")
    with pytest.raises(SettingsError, match=message):
        RetrievalPrompts([], path=tmp_path / "own.txt")


# --- BM25


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
