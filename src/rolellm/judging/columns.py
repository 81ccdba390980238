"""Two plain lists of answers and the columns of an `evaluate` module, judged as `rolellm.judge` judges datasets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rolellm.core.errors import DataError, SettingsError
from rolellm.core.fingerprint import hash_json
from rolellm.core.records import Row
from rolellm.core.text import replace_surrogates
from rolellm.core.typed_json import map_strings, read_as
from rolellm.judging.result import JudgingResult, Listwise
from rolellm.judging.run import judge
from rolellm.scoring.columns import zip_columns

_WHOSE = {"predictions": "model's", "references": "baseline's"}
_COLUMNS = ("questions", "roles", "descriptions", "knowledge", "subsets", "language", "ids")


def judge_columns(
    predictions: Sequence[str] | None,
    references: Sequence[str] | None,
    *,
    llm: Any = None,
    folder: str | Path = "role-judge",
    name: str = "model",
    baseline_name: str = "baseline",
    **options: Any,
) -> dict[str, Any]:
    """Judge two lists of answers; what is not a column of `rows_from_columns` is a setting of `rolellm.judge`.

    Returns:
        `list_figures` of the model.
    """
    answers, baseline_answers = check_answers(predictions, references)
    if not all(isinstance(text, str) and text.strip() for text in (name, baseline_name)) or name == baseline_name:
        raise SettingsError(f"the model is called {name!r} and the baseline {baseline_name!r}; use two different names")
    rows = build_rows(len(answers), {column: options.pop(column, None) for column in _COLUMNS})
    result = judge(
        {name: answers, baseline_name: baseline_answers},
        rows,
        llm=llm,
        out=folder,
        **{"baseline": baseline_name, **options},
    )
    return list_figures(result, name)


def check_answers(predictions: Sequence[str] | None, references: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Both lists of answers, once they are known to be texts, and as many.

    Raises:
        DataError: (a ``ValueError``) On no answers, lists of different lengths, or a value that is not a text.
    """
    columns = []
    for name, values in (("predictions", predictions), ("references", references)):
        if values is None or isinstance(values, str | bytes) or not hasattr(values, "__len__") or not len(values):
            raise DataError(f"no {name} to judge: give a list of texts, the {_WHOSE[name]} replies")
        odd = next((at for at, value in enumerate(values) if not isinstance(value, str)), None)
        if odd is not None:
            kind = type(values[odd]).__name__
            raise DataError(f"the {_WHOSE[name]} reply of row {odd} must be a text, found {kind}")
        columns.append([replace_surrogates(value) for value in values])
    if len(columns[0]) != len(columns[1]):
        raise DataError(
            f"{len(columns[0])} predictions but {len(columns[1])} references; each row needs a reply of both"
        )
    return columns[0], columns[1]


def build_rows(count: int, columns: Mapping[str, Any]) -> list[Row]:
    """Rows of RoleBench made of plain lists.

    Args:
        count: How many answers there are.
        columns: Lists of that length: ``questions`` and ``roles``; and, each optional, ``descriptions`` (of the roles),
            ``knowledge`` (a text, several, or none a row), ``subsets`` (by default a row with knowledge is
            role-specific), ``language`` (``en``; also one for all rows), and ``ids`` (by default made of role, question
            and language, so that other rows, or another order of them, change nothing about a row).

    Raises:
        DataError: (a ``ValueError``) On lists of another length or values of another kind; names the row.
    """
    missing = [name for name in ("questions", "roles") if columns.get(name) is None]
    if missing:
        raise DataError(f"{' and '.join(missing)} missing: a judge is shown who was asked, and what")
    language = columns.get("language") or "en"
    filled = {**columns, "language": [language] * count if isinstance(language, str) else language}
    id_counts: Counter[str] = Counter()
    rows = []
    for at, values in enumerate(zip_columns(count, filled)):
        row = _make_row(map_strings(values, replace_surrogates), at)
        id_counts[row.id] += 1
        if "ids" in values and (not row.id or id_counts[row.id] > 1):
            raise DataError(f"each row needs an id of its own; row {at} has {row.id!r}")
        # One question may be there with several answers.
        rows.append(row if id_counts[row.id] == 1 else replace(row, id=f"{row.id}-{id_counts[row.id]}"))
    return rows


def _make_row(values: Mapping[str, Any], at: int) -> Row:
    knowledge, subset = values.get("knowledge") or (), values.get("subsets")
    texts = (knowledge,) if isinstance(knowledge, str) else read_as(tuple[str, ...], knowledge, f"row {at}'s knowledge")
    subset = subset if subset is not None else "role_specific" if texts else "general"
    is_general = subset == "general"
    if is_general and len(texts) > 1:
        raise DataError(f"row {at} is general and has {len(texts)} texts of knowledge; it can have one")
    content_id = hash_json([values["roles"], values["questions"], values["language"]])[:16]
    fields = {
        "id": values.get("ids", content_id),
        "role": values["roles"],
        "language": values["language"],
        "subset": subset,
        "question": values["questions"],
        "references": () if is_general else texts,
        "raw_reference": texts[0] if is_general and texts else None,
        "role_description": values.get("descriptions"),
    }
    return read_as(Row, fields, f"row {at}")


def list_figures(result: JudgingResult, name: str) -> dict[str, Any]:
    """List what the `evaluate` module returns of a result: the figures of one system, and the result itself."""
    systems = {system.name: system for system in result.models}
    pairs, lists = systems[name].pairwise, systems[name].listwise or Listwise()
    estimates = {
        "win_rate": (pairs or lists).win_rate,
        "lc_win_rate": pairs and pairs.lc_win_rate,
        "average_rank": lists.average_rank,
        "position_consistency": pairs and pairs.consistency,
    }
    figures: dict[str, Any] = {}
    for key, estimate in estimates.items():
        figures[key] = estimate and estimate.mean
        figures[f"{key}_ci95"] = estimate and estimate.ends and list(estimate.ends)
    canaries = {
        system.name: (system.pairwise or system.listwise or Listwise()).win_rate
        for system in result.models
        if system.kind == "canary"
    }
    return figures | {
        **{share: pairs and getattr(pairs, share) for share in ("wins", "ties", "losses")},
        "canaries": {canary: rate and rate.mean for canary, rate in canaries.items()},
        "unscored": result.diagnostics.unscored.share,
        "problems": list(result.problems),
        "n": result.rows,
        "fingerprint": dict(result.fingerprint),
        "result": result.to_dict(),
    }
