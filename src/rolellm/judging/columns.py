"""Two plain lists of answers and the columns of an `evaluate` module, judged as `rolellm.judge` judges datasets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from rolellm.core.errors import DataError, SettingsError
from rolellm.core.fingerprint import hash_json
from rolellm.core.records import Language, Row, Subset
from rolellm.core.text import whole_text
from rolellm.core.typed_json import read_as
from rolellm.judging.figures import JudgingResult
from rolellm.judging.run import judge

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
    **given: Any,
) -> dict[str, Any]:
    """Judge two lists of answers; what is not a column of `rows_from_columns` is a setting of `rolellm.judge`.

    Returns:
        `figures` of the model.
    """
    mine, theirs = check_answers(predictions, references)
    if not all(isinstance(one, str) and one.strip() for one in (name, baseline_name)) or name == baseline_name:
        raise SettingsError(f"the model is called {name!r} and the baseline {baseline_name!r}; use two different names")
    rows = rows_from_columns(len(mine), {column: given.pop(column, None) for column in _COLUMNS})
    result = judge(
        {name: mine, baseline_name: theirs}, rows, llm=llm, out=folder, **{"baseline": baseline_name, **given}
    )
    return figures(result, name)


def check_answers(predictions: Sequence[str] | None, references: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Both lists of answers, once they are known to be texts, and as many.

    Raises:
        DataError: (a ``ValueError``) On no answers, lists of different lengths, or a value that is not a text.
    """
    found = []
    for name, values in (("predictions", predictions), ("references", references)):
        if values is None or isinstance(values, str | bytes) or not hasattr(values, "__len__") or not len(values):
            raise DataError(f"no {name} to judge: give a list of texts, the {_WHOSE[name]} replies")
        odd = next((at for at, value in enumerate(values) if not isinstance(value, str)), None)
        if odd is not None:
            kind = type(values[odd]).__name__
            raise DataError(f"the {_WHOSE[name]} reply of row {odd} must be a text, found {kind}")
        found.append([whole_text(value) for value in values])
    if len(found[0]) != len(found[1]):
        raise DataError(f"{len(found[0])} predictions but {len(found[1])} references; each row needs a reply of both")
    return found[0], found[1]


_Text = Annotated[str, BeforeValidator(lambda given: whole_text(given) if isinstance(given, str) else given)]
_Texts = Annotated[
    tuple[_Text, ...], BeforeValidator(lambda given: (given,) if isinstance(given, str) else given or ())
]


@dataclass(frozen=True)
class _Given:
    """What is known of a row besides its answers; knowledge of a general row is its role-free target."""

    questions: _Text
    roles: _Text
    language: Language
    descriptions: _Text | None
    knowledge: _Texts
    subsets: Subset | None
    ids: _Text | None

    def row(self) -> Row:
        subset: Subset = self.subsets or ("role_specific" if self.knowledge else "general")
        general = subset == "general"
        return Row(
            id=hash_json([self.roles, self.questions, self.language])[:16] if self.ids is None else self.ids,
            role=self.roles,
            language=self.language,
            subset=subset,
            question=self.questions,
            references=() if general else self.knowledge,
            raw_reference=self.knowledge[0] if general and self.knowledge else None,
            role_description=self.descriptions,
        )


def rows_from_columns(count: int, columns: Mapping[str, Any]) -> list[Row]:
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
    whole = {**columns, "language": [language] * count if isinstance(language, str) else language}
    lists = {name: _column(name, whole.get(name), count) for name in _COLUMNS}
    seen: Counter[str] = Counter()
    rows = []
    for at in range(count):
        given = read_as(_Given, {name: values[at] for name, values in lists.items()}, f"row {at}")
        row = given.row()
        if row.subset == "general" and len(given.knowledge) > 1:
            raise DataError(f"row {at} is general and has {len(given.knowledge)} texts of knowledge; it can have one")
        seen[row.id] += 1
        if columns.get("ids") is not None and (given.ids in (None, "") or seen[row.id] > 1):
            raise DataError(f"each row needs an id of its own; row {at} has {given.ids!r}")
        # One question may be there with several answers.
        rows.append(row if seen[row.id] == 1 else replace(row, id=f"{row.id}-{seen[row.id]}"))
    return rows


def _column(name: str, values: Any, count: int) -> Sequence[Any]:
    if values is None:
        return [None] * count
    if isinstance(values, str | bytes) or not hasattr(values, "__len__"):
        raise DataError(f"{name}: expected a list, one value a row, found {type(values).__name__}")
    if len(values) != count:
        raise DataError(f"{count} predictions but {len(values)} values of {name}; each row needs its own")
    return list(values)


def figures(result: JudgingResult, name: str) -> dict[str, Any]:
    """What the `evaluate` module returns of a result: the figures of one system, and the result itself."""
    value = result.to_dict()
    models = {one["name"]: one for one in value["models"]}
    pairs, lists = (models[name][design] or {} for design in ("pairwise", "listwise"))
    estimates = {
        "win_rate": (pairs or lists).get("win_rate"),
        "lc_win_rate": pairs.get("lc_win_rate"),
        "average_rank": lists.get("average_rank"),
        "position_consistency": pairs.get("consistency"),
    }
    found: dict[str, Any] = {}
    for key, estimate in estimates.items():
        found |= {key: estimate and estimate["mean"], f"{key}_ci95": estimate and estimate["ci95"]}
    canaries = {
        one["name"]: (one["pairwise"] or one["listwise"] or {}).get("win_rate")
        for one in value["models"]
        if one["kind"] == "canary"
    }
    return found | {
        **{share: pairs.get(share) for share in ("wins", "ties", "losses")},
        "canaries": {one: rate and rate["mean"] for one, rate in canaries.items()},
        "unscored": value["diagnostics"]["unscored"]["share"],
        "problems": list(value["problems"]),
        "n": value["rows"],
        "fingerprint": dict(value["fingerprint"]),
        "result": value,
    }
