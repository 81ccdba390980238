"""A judging run, made up: answers of known worth, judges with known habits, the folder that `rolellm judge` leaves."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rolellm.core.records import Row
from rolellm.judging import records as judging_records
from rolellm.judging.records import Comparison, DatasetName, Judgement, System
from rolellm.judging.settings import JudgingSettings
from rolellm.judging.systems import make_canaries

from ..judge_runs import Simulator, summarize

ROLES = ("Ada Fenn", "Old Brom", "Captain Thistle", "Sister Quill", "Doctor Marrow", "孙悟空")
BASELINE = "RoleGPT"
#: Log-odds against the baseline, and the share of the reference's words that an answer has.
MODELS = {"RoleLLaMA-7B": (0.6, 0.7), "Vicuna-13B": (-0.5, 0.45), "Alpaca-7B": (-0.7, 0.4), "LLaMA-7B": (-1.8, 0.2)}
_STRENGTHS = (0.0, *(worth for worth, _ in MODELS.values()), -3.0, -3.4)
_TEXT = """the lamp was lit before boats came in and nobody on quay had counted them twice though I did as always do
with a chalk wall word for each that late or lost merely slow fog of year"""
_WORDS = _TEXT.split()


def make_rows(roles: Sequence[str] = ROLES, each: int = 6) -> list[Row]:
    """General rows that share their questions between roles, and as many role-specific ones that do not."""
    rows = []
    for role in roles:
        language = "en" if role.isascii() else "zh"
        for at in range(each):
            words = _drawn(role, at).sample(_WORDS, 24)
            styled, plain = f"Aye, {' '.join(words)}.", f"{' '.join(words[:12])}."
            question = f"Explain tide no. {at}."
            reply = f"As {role}: {styled}"
            rows.append(Row(f"{role}-g{at}", role, language, "general", question, (styled,), (), plain, reply))
            kinds = ("script_based",) if at % 2 else ("script_agnostic",)
            question = f"{role}, what did you do in year {at}?"
            rows.append(Row(f"{role}-s{at}", role, language, "role_specific", question, (styled,), kinds, None, styled))
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
        source = {"files": [{"file": "p.jsonl", "sha256": "ab" * 32}]}
        people.append(System(shown, "model", name.lower(), family, source))
        answers[shown] = {row.id: _answer(name, row, share) for row in rows}
    if canaries:
        for one, given in make_canaries(rows):
            people.append(one)
            answers[one.name] = dict(given)
    return Comparison(rows, people, answers)


def draw_judgements(comparison: Comparison, judges: Sequence[str], unscored: float = 0.004) -> list[Judgement]:
    """Pairs in both orders and lists in two rotations.

    The judges like what is shown first, and long answers.
    """
    names = [one.name for one in comparison.systems]
    strengths = dict(zip(names, _STRENGTHS, strict=False))
    made = Simulator(strengths, first=0.25, length=0.4, tie=0.1, noise=0.8, answers=comparison)
    found = []
    for judge in judges:
        if comparison.baseline:
            found += made.pairs(judge)
        found += made.lists(judge)
    for index, one in enumerate(found):
        if _drawn(one.judge, one.row, *one.order).random() < unscored:
            found[index] = replace(one, ranks=None, reasons=(), unscored="no JSON")
    return found


def write_run(
    folder: Path,
    comparison: Comparison,
    judgements: Sequence[Judgement],
    *,
    config: str = "instruction-generalization-eng",
    judges: Sequence[dict[str, Any]] = (),
) -> Path:
    """The folder of a finished run."""
    who = list(judges) or [judge(name) for name in dict.fromkeys(one.judge for one in judgements)]
    result = summarize(comparison, judgements, who, JudgingSettings(), DatasetName(config, "test"))
    judging_records.write_run(
        folder,
        comparison,
        judgements,
        result,
        dataset={"config": config, "split": "test", "fingerprint": "c0ffee" * 8, "rows": len(comparison.rows)},
        judges=who,
        hash="feed" * 16,
    )
    return folder


def judge(name: str) -> dict[str, Any]:
    """What a manifest says of a judge; one whose name has "llama" in it is of that family."""
    rest = {"version": "1", "hash": "08" * 32, "decoding": {"temperature": 0}}
    prompts = {design: {"name": f"role-{design}", **rest} for design in ("pairwise", "listwise")}
    flagged = ["LLaMA-7B", "RoleLLaMA-7B"] if "llama" in name.lower() else []
    family = "llama" if flagged else "judge"
    return {"name": name, "prompts": prompts, "model": [{"model": name}], "family": family, "flagged": flagged}


def make_run(folder: Path, each: int = 6) -> Path:
    """All of it at once."""
    comparison = make_comparison(make_rows(each=each))
    return write_run(folder, comparison, draw_judgements(comparison, ["llama-judge", "other-judge"]))


def _answer(name: str, row: Row, share: float) -> str:
    chance, words = _drawn(name, row.id), row.references[0].split()
    kept = [word if chance.random() < share else chance.choice(_WORDS) for word in words]
    more = chance.choices(_WORDS, k=chance.randrange(30 if name.startswith("Vicuna") else 8))
    return " ".join([*kept, *more])


def _drawn(*seed: object) -> random.Random:
    return random.Random(repr(seed))
