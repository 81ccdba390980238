"""Two plain lists of answers and the columns of an `evaluate` module, judged as `rolellm.judge` judges datasets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rolellm.core.errors import DataError
from rolellm.core.fingerprint import hash_json
from rolellm.core.text import replace_surrogates
from rolellm.core.typed_json import map_strings
from rolellm.judging.result import JudgingResult
from rolellm.judging.run import judge
from rolellm.scoring.columns import zip_columns

#: The two systems, as results name them.
MODEL, BASELINE = "model", "baseline"


def judge_columns(
    predictions: Sequence[str] | None,
    references: Sequence[str] | None,
    *,
    questions: Sequence[str],
    roles: Sequence[str],
    descriptions: Sequence[str | None] | None = None,
    knowledge: Sequence[Any] | None = None,
    llm: Any = None,
    folder: str | Path = "role-judge",
    **settings: Any,
) -> dict[str, Any]:
    """Judge two lists of answers; ``settings`` are those of `rolellm.judge`, the other columns those of `build_rows`.

    Returns:
        Each of `rolellm.judging.result.MEASURES` of the model, with its ``…_ci95``; ``canaries`` (win rates),
        ``problems``, ``n``, and ``result``, the whole result.
    """
    check_answers(predictions, references)
    assert predictions is not None and references is not None
    rows = build_rows(len(predictions), questions, roles, descriptions, knowledge)
    systems = {MODEL: map_strings(list(predictions), replace_surrogates)}
    systems[BASELINE] = map_strings(list(references), replace_surrogates)
    result = judge(systems, rows, llm=llm, out=folder, **{"baseline": BASELINE, **settings})
    return list_figures(result)


def check_answers(predictions: Sequence[str] | None, references: Sequence[str] | None) -> None:
    """Check that there are as many predictions as references, and at least one.

    Raises:
        DataError: (a ``ValueError``) Where not.
    """
    if predictions is None or references is None or not len(predictions):
        raise DataError("no predictions to judge: give two lists of texts, the model's and the baseline's replies")
    zip_columns(len(predictions), {"predictions": predictions, "references": references})


def build_rows(
    count: int,
    questions: Sequence[str],
    roles: Sequence[str],
    descriptions: Sequence[str | None] | None = None,
    knowledge: Sequence[Any] | None = None,
) -> list[dict[str, Any]]:
    """Build rows of plain lists; a row with knowledge is role-specific.

    Args:
        count: The number of answers.
        questions: Questions.
        roles: Roles.
        descriptions: The roles' descriptions.
        knowledge: A text, several, or none a row.

    Raises:
        DataError: (a ``ValueError``) On lists of another length or values of another kind.
    """
    lists = {"questions": questions, "roles": roles, "descriptions": descriptions, "knowledge": knowledge}
    counts: Counter[str] = Counter()
    rows = []
    for values in map_strings(zip_columns(count, lists), replace_surrogates):
        # By content, so that other rows, or another order of them, change nothing about a row.
        row_id = hash_json([values["roles"], values["questions"]])[:16]
        counts[row_id] += 1
        if counts[row_id] > 1:
            row_id += f"-{counts[row_id]}"
        row = {"id": row_id, "role": values["roles"], "question": values["questions"], "subset": "general"}
        row["role_description"] = values.get("descriptions")
        row["references"] = values.get("knowledge")
        if row["references"]:
            row["subset"] = "role_specific"
        rows.append(row)
    return rows


def list_figures(result: JudgingResult) -> dict[str, Any]:
    """List what the `evaluate` module returns of a result: the model's figures, and the result itself."""
    measures = {system.name: system.measures() for system in result.models}
    figures: dict[str, Any] = {}
    for key, estimate in measures[MODEL].items():
        figures[key] = estimate and estimate.mean
        figures[f"{key}_ci95"] = estimate and estimate.ends and list(estimate.ends)
    canaries = {}
    for system in result.models:
        if system.kind == "canary":
            measure = "win_rate" if system.pairwise else "list_win_rate"
            rate = measures[system.name][measure]
            canaries[system.name] = rate and rate.mean
    figures |= {"canaries": canaries, "problems": list(result.problems), "n": result.rows}
    return {**figures, "result": result.to_dict()}
