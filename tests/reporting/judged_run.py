"""A judging run, made up: answers of known worth, judges with known habits, the folder that `rolellm judge` leaves."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rolellm.core.records import Row
from rolellm.judging import records as judging_records
from rolellm.judging.records import Comparison, DatasetName, Judgement, System
from rolellm.judging.settings import JudgingSettings
from rolellm.judging.systems import make_canaries

from ..judge_runs import summarize

ROLES = ("Ada Fenn", "Old Brom", "Captain Thistle", "Sister Quill", "Doctor Marrow", "孙悟空")
BASELINE = "RoleGPT"
#: Log-odds against the baseline, and the share of the reference's words that an answer has.
MODELS = {"RoleLLaMA-7B": (0.6, 0.7), "Vicuna-13B": (-0.5, 0.45), "Alpaca-7B": (-0.7, 0.4), "LLaMA-7B": (-1.8, 0.2)}
_STRENGTHS = {BASELINE: 0.0, **{name: worth for name, (worth, _) in MODELS.items()}, "null": -3.0, "echo": -3.4}
_ASKED = (
    "What is the first thing you see in the morning?",
    "Name three birds and say which you would rather not meet.",
    "How do you keep bread from going stale at sea?",
    "Explain why the tide comes twice a day.",
    "Tell me of a time you were wrong.",
    "Who taught you your trade, and what did it cost?",
)
_WORDS = [
    *("the", "lamp", "was", "lit", "before", "boats", "came", "in", "and", "nobody", "on", "quay", "had", "counted"),
    *("them", "twice", "though", "I", "did", "as", "always", "do", "with", "a", "chalk", "wall", "word", "for", "each"),
    *("that", "late", "or", "lost", "merely", "slow", "fog", "of", "year"),
]
_REASONS = (
    "speaks in the role’s own turns of phrase and knows the quay",
    "correct, but could have been written by anyone",
    "repeats the question and adds little of the role",
)


@dataclass(frozen=True)
class Habits:
    """How the judges err, in log-odds: for what is shown first, and for each 100 characters more."""

    first: float = 0.25
    length: float = 0.4
    unscored: float = 0.004


HABITS = Habits()


def make_rows(roles: Sequence[str] = ROLES, each: int = 6) -> list[Row]:
    """General rows that share their questions between roles, and as many role-specific ones that do not."""
    rows = []
    for role in roles:
        language = "en" if role.isascii() else "zh"
        for at in range(each):
            words = _drawn(role, at).sample(_WORDS, 24)
            styled, plain = f"Aye, {' '.join(words)}.", f"{' '.join(words[:12])}."
            asked = _ASKED[at % len(_ASKED)] + (f" ({at})" if at >= len(_ASKED) else "")
            general = Row(
                f"{role}-g{at}", role, language, "general", asked, (styled,), (), plain, f"As {role}: {styled}"
            )
            kinds = ("script_based",) if at % 2 else ("script_agnostic",)
            own = f"{role}, what did you do in year {at}?"
            rows += [
                general,
                Row(f"{role}-s{at}", role, language, "role_specific", own, (styled,), kinds, None, styled),
            ]
    return [replace(row, role_description=f"You are {row.role}.") for row in rows]


def make_comparison(
    rows: Sequence[Row], *, canaries: bool = True, rename: Mapping[str, str] | None = None
) -> Comparison:
    """The baseline, four models that have more or fewer of the reference's words, and the canaries."""
    names = rename or {}
    people = [System(BASELINE, "baseline", None, "gpt", {"rows": "rolegpt"})]
    answers: dict[str, dict[str, str]] = {BASELINE: {row.id: _answer(BASELINE, row, 0.6) for row in rows}}
    for name, (_, share) in MODELS.items():
        family = "llama" if name in ("LLaMA-7B", "RoleLLaMA-7B") else name.split("-")[0].lower()
        shown = names.get(name, name)
        people.append(
            System(shown, "model", name.lower(), family, {"files": [{"file": "p.jsonl", "sha256": "ab" * 32}]})
        )
        answers[shown] = {row.id: _answer(name, row, share) for row in rows}
    if canaries:
        for one, given in make_canaries(rows):
            people.append(one)
            answers[one.name] = dict(given)
    return Comparison(rows, people, answers)


def draw_judgements(comparison: Comparison, judges: Sequence[str], habits: Habits = HABITS) -> list[Judgement]:
    """Pairs in both orders, lists in two rotations, and a probe with names on every fourth row."""
    names = [one.name for one in comparison.systems]
    found = []
    for row in comparison.rows:
        for judge in judges:
            for name in names[1:] if comparison.baseline else []:
                orders = [(name, names[0]), (names[0], name)]
                found += [_judged(comparison, row, judge, order, habits) for order in orders]
                if _drawn("probe", row.id).random() < 0.25:
                    favoured = replace(habits, first=habits.first + 0.5)
                    found += [replace(_judged(comparison, row, judge, order, favoured), named=True) for order in orders]
            order = _drawn("order", row.id).sample(names, len(names))
            half = len(order) // 2
            found += [
                _judged(comparison, row, judge, tuple(o), habits, True) for o in (order, order[half:] + order[:half])
            ]
    return found


def write_run(
    folder: Path,
    comparison: Comparison,
    judgements: Sequence[Judgement],
    *,
    config: str | None = "instruction-generalization-eng",
    resamples: int = 200,
    judges: Sequence[Mapping[str, Any]] | None = None,
) -> Path:
    """The folder of a finished run."""
    who = list(
        judges if judges is not None else (judge(name) for name in dict.fromkeys(one.judge for one in judgements))
    )
    options = JudgingSettings(resamples=resamples)
    judging_records.write_run(
        folder,
        comparison,
        judgements,
        summarize(comparison, judgements, who, options, DatasetName(config, "test")),
        dataset={"config": config, "split": "test", "fingerprint": "c0ffee" * 8, "rows": len(comparison.rows)},
        judges=who,
        orders={"pairs": "both", "rotations": 2, "name_probe": 0.25, "seed": 0},
        statistics={"resamples": resamples, "seed": 0, "max_unscored": 0.01},
        hash="feed" * 16,
    )
    return folder


def judge(name: str) -> dict[str, Any]:
    """What a manifest says of a judge; one whose name has "llama" in it is of that family."""
    prompts = {
        design: {
            "name": f"role-{design}",
            "version": "1",
            "hash": f"{len(design):02d}" * 32,
            "decoding": {"temperature": 0},
        }
        for design in ("pairwise", "listwise")
    }
    return {
        "name": name,
        "prompts": prompts,
        "model": [{"model": name}],
        "family": "llama" if "llama" in name.lower() else "judge",
        "flagged": ["LLaMA-7B", "RoleLLaMA-7B"] if "llama" in name.lower() else [],
    }


def make_run(
    folder: Path, *, each: int = 6, judges: Sequence[str] = ("llama-judge", "other-judge"), **more: Any
) -> Path:
    """All of it at once."""
    comparison = make_comparison(make_rows(each=each))
    return write_run(folder, comparison, draw_judgements(comparison, judges), **more)


def _answer(name: str, row: Row, share: float) -> str:
    chance, words = _drawn(name, row.id), row.references[0].split()
    kept = [word if chance.random() < share else chance.choice(_WORDS) for word in words]
    more = chance.choices(_WORDS, k=chance.randrange(30 if name.startswith("Vicuna") else 8))
    return " ".join([*kept, *more])


def _judged(
    comparison: Comparison, row: Row, judge: str, order: tuple[str, ...], habits: Habits, listwise: bool = False
) -> Judgement:
    chance = _drawn(judge, row.id, *order)
    lengths = [len(comparison.answers[name].get(row.id, "")) for name in order]
    mean = sum(lengths) / len(lengths)
    worth = [
        _strength(comparison, name)
        + habits.length * (length - mean) / 100
        + habits.first * (place == 0)
        + 0.8 * _logistic(_drawn(judge, row.id, name))
        + 0.2 * _logistic(chance)
        for place, (name, length) in enumerate(zip(order, lengths, strict=True))
    ]
    touched = {name: ("instruction",) for name in order if "echo" in name}
    if chance.random() < habits.unscored:
        return Judgement(
            row.id, judge, "listwise" if listwise else "pairwise", order, None, unscored="no JSON", touched=touched
        )
    best = sorted(range(len(order)), key=lambda at: -worth[at])
    ranks = [float(best.index(at) + 1) for at in range(len(order))]
    if len(order) == 2 and abs(worth[0] - worth[1]) < 0.15:
        ranks = [1.5, 1.5]
    reasons = tuple(f"It {chance.choice(_REASONS)}." for _ in order)
    return Judgement(
        row.id, judge, "listwise" if listwise else "pairwise", order, tuple(ranks), reasons, touched=touched
    )


def _strength(comparison: Comparison, name: str) -> float:
    at = [one.name for one in comparison.systems].index(name)
    return list(_STRENGTHS.values())[at]


def _logistic(chance: random.Random) -> float:
    share = min(max(chance.random(), 1e-9), 1 - 1e-9)
    return math.log(share / (1 - share))


def _drawn(*seed: object) -> random.Random:
    return random.Random(repr(seed))
