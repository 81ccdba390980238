"""The whole way with a judge whose preferences, biases and noise are known: prompts, journal, verdicts, result."""

import math
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rolellm.core.records import Row
from rolellm.judging.records import Comparison, System
from rolellm.judging.run import run_judging
from rolellm.judging.settings import JudgingSettings
from rolellm.llm.llm import LLM

from .simulated_judge import Preferences, scripted_judge

QUESTIONS = 160
TRUE = {"base": 0.0, "poor": -1.0, "good": 0.7, "best": 1.5}
FIRST = 0.8


def comparison(strengths: Mapping[str, float], longer: Mapping[str, int] | None = None) -> Comparison:
    """Answers that say how good they are, of a length drawn around 300 characters, longer for some."""
    chance = random.Random(12)
    rows = [Row(f"r{n}", f"Role {n % 4}", "en", "general", f"Question {n}?", ("Aye.",)) for n in range(QUESTIONS)]
    people = [System(name, "baseline" if name == "base" else "model") for name in strengths]
    extra = longer or {}
    answers = {
        name: {
            row.id: f"worth {strength} " + "x" * max(int(chance.gauss(300 + extra.get(name, 0), 120)), 0)
            for row in rows
        }
        for name, strength in strengths.items()
    }
    return Comparison(rows, people, answers)


def worth(_: Mapping[str, str], answer: str) -> float:
    found = re.match(r"worth (-?[\d.]+)", answer)
    assert found is not None
    return float(found[1])


def judge(folder: Path, found: Comparison, **preferences: Any) -> dict[str, Any]:
    known = scripted_judge(Preferences(worth, noise=1.0, **preferences), rules="worth")
    return run_judging(folder, found, LLM.of(known), JudgingSettings()).to_dict()


def inside(value: float, estimate: Mapping[str, Any]) -> bool:
    low, high = estimate["ci95"]
    return bool(low <= value <= high)


def chance_of(lead: float) -> float:
    return 1 / (1 + math.exp(-lead))


def test_the_true_ranking_comes_back_in_spite_of_noise_and_place(tmp_path: Path) -> None:
    # Of seeds 0 to 4 one draws a model over three standard errors off.
    biased = judge(tmp_path, comparison(TRUE), position=FIRST, seed=1)
    models = {one["name"]: one for one in biased["models"]}
    rates = {name: models[name]["pairwise"]["win_rate"]["mean"] for name in TRUE if name != "base"}
    assert sorted(rates, key=rates.__getitem__) == ["poor", "good", "best"]
    ranks = {name: models[name]["listwise"]["average_rank"]["mean"] for name in TRUE}
    assert sorted(ranks, key=ranks.__getitem__) == ["best", "good", "base", "poor"]
    for name in rates:
        # Both orders: the mean of a win from the first and from the second place.
        true = (chance_of(TRUE[name] + FIRST) + chance_of(TRUE[name] - FIRST)) / 2
        assert inside(true, models[name]["pairwise"]["win_rate"]), name
    biases = biased["diagnostics"]["biases"]
    assert biases["first_preferred"]["ci95"][0] > 0.5 and biases["rank_slope"]["ci95"][0] > 0


def test_a_planted_liking_for_length_is_undone(tmp_path: Path) -> None:
    found = comparison({"base": 0.0, "wordy": 0.0, "terse": 0.0}, {"wordy": 80, "terse": -80})
    result = judge(tmp_path, found, length=1.0)
    models = {one["name"]: one["pairwise"] for one in result["models"]}
    assert models["wordy"]["win_rate"]["ci95"][0] > 0.5 > models["terse"]["win_rate"]["ci95"][1]
    for name in ("wordy", "terse"):
        # Equally good: at equal length nobody wins.
        assert inside(0.5, models[name]["lc_win_rate"]), name
        assert models[name]["marginal_length_coefficient"]["ci95"][0] > 0
    biases = result["diagnostics"]["biases"]
    assert biases["longer_preferred"]["ci95"][0] > 0.5 and biases["length_coefficient"]["ci95"][0] > 0
