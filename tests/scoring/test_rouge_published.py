"""Rouge-L on the release itself: the published figures, and both packages pair for pair."""

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import pytest
from rouge import Rouge
from rouge_score.rouge_scorer import RougeScorer

from rolellm.core.jsonl import read_jsonl
from rolellm.scoring.rouge import rouge_l

pytestmark = pytest.mark.realdata

ENGLISH = "rolebench-eng/instruction-generalization/role_specific"
CHINESE = "rolebench-zh/role_specific"
CHINESE_GENERAL = "rolebench-zh/general"
ROLES = "rolebench-eng/role-generalization/role_specific"


def joined(folder: Path) -> tuple[list[str], list[list[str]]]:
    """The baseline's reply and the references of every row that it answers, joined on (role, question)."""
    replies = {
        (row["role"], row["question"]): row["generated"][0] for _, row in read_jsonl(folder / "rolegpt_baseline.jsonl")
    }
    rows = [row for _, row in read_jsonl(folder / "test.jsonl") if (row["role"], row["question"]) in replies]
    return [replies[row["role"], row["question"]] for row in rows], [row["generated"] for row in rows]


def pairs(folder: Path) -> list[tuple[str, str]]:
    return [(reply, reference) for reply, several in zip(*joined(folder), strict=True) for reference in several]


@pytest.mark.parametrize(
    ("folder", "language", "rows", "published"),
    [
        pytest.param(ENGLISH, "en", 4750, 0.3229, id="instruction-generalization-eng-SPE"),
        pytest.param(CHINESE, "zh", 239, 0.2478, id="instruction-generalization-zh-SPE"),
    ],
)
def test_the_published_figures_come_out(
    real_release: Path, folder: str, language: str, rows: int, published: float
) -> None:
    scores = rouge_l(*joined(real_release / folder), protocol="paper", language=language)
    assert len(scores) == rows
    assert round(fmean(score.recall for score in scores), 4) == published


@pytest.fixture
def deep_recursion() -> Iterator[None]:
    """PyPI's `rouge` recurses once a word or character."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    yield
    sys.setrecursionlimit(limit)


def assert_as_rouge(sample: list[tuple[str, str]], language: str) -> None:
    rouge = Rouge(metrics=["rouge-l"])
    scores = rouge_l([a for a, _ in sample], [b for _, b in sample], protocol="paper", language=language)
    for (prediction, reference), score in zip(sample, scores, strict=True):
        if language == "zh":
            prediction, reference = " ".join(prediction), " ".join(reference)
        expected = rouge.get_scores(prediction, reference)[0]["rouge-l"]
        assert abs(score.precision - expected["p"]) < 1e-9
        assert abs(score.recall - expected["r"]) < 1e-9
        assert abs(score.f1 - expected["f"]) < 1e-9


@pytest.mark.usefixtures("deep_recursion")
@pytest.mark.parametrize(
    ("folder", "language", "count"),
    [
        pytest.param(ENGLISH, "en", 400, id="english"),
        pytest.param(ROLES, "en", 150, id="english-role-generalization"),
        pytest.param(CHINESE, "zh", 60, id="chinese"),
        pytest.param(CHINESE_GENERAL, "zh", 60, id="chinese-general"),
    ],
)
def test_paper_agrees_with_rouge_on_the_release(real_release: Path, folder: str, language: str, count: int) -> None:
    assert_as_rouge(random.Random(7).sample(pairs(real_release / folder), count), language)


def test_rouge_score_agrees_on_the_release(real_release: Path) -> None:
    sample = random.Random(8).sample(pairs(real_release / ENGLISH), 500)
    google = RougeScorer(["rougeL"])
    for (prediction, reference), score in zip(sample, rouge_l(*zip(*sample, strict=True)), strict=True):
        expected = google.score(reference, prediction)["rougeL"]
        assert abs(score.f1 - expected.fmeasure) < 1e-12
        assert abs(score.precision - expected.precision) < 1e-12
        assert abs(score.recall - expected.recall) < 1e-12
