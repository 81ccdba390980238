"""Answers and rows from memory, for judging: datasets, lists of texts, and the columns of an `evaluate` module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from rolellm.core.errors import DataError
from rolellm.core.fingerprint import hash_json
from rolellm.core.records import Language, Row, Subset
from rolellm.core.text import whole_text
from rolellm.evaluation.predictions import Predictions
from rolellm.evaluation.rows import column_names, rows_of
from rolellm.judging.figures import JudgingResult
from rolellm.judging.systems import SystemSource

# --- Plain lists as rows and answers to judge: checked one by one, so that what is wrong is named with its row


_WHOSE = {"predictions": "model's", "references": "baseline's"}


@dataclass(frozen=True, slots=True)
class JudgeColumns:
    """What is known of each row besides its answers; every list is as long as the answers.

    Attributes:
        questions: What was asked. Rows with the same question form a cluster of the bootstrap.
        roles: Who was to answer.
        descriptions: Of the roles, or ``None`` where there is none.
        knowledge: Reference answers: one text, several, or ``None``. Of a role-specific row by which knowledge is
            measured (at most three are shown); of a general one the role-free target, one text.
        subsets: ``general`` or ``role_specific``; by default role-specific where there is knowledge, else general.
        language: ``en`` or ``zh`` for all rows, or one a row; the language of the judge's prompt.
        ids: Of the rows, by which orders are drawn and runs compared; by default made of role, question and language,
            so that other rows, or another order of them, change nothing about a row.
    """

    questions: Sequence[str] | None
    roles: Sequence[str] | None
    descriptions: Sequence[str | None] | None = None
    knowledge: Sequence[str | Sequence[str] | None] | None = None
    subsets: Sequence[str] | None = None
    language: str | Sequence[str] = "en"
    ids: Sequence[str] | None = None

    def rows(self, count: int) -> list[Row]:
        """Rows of RoleBench made of the lists.

        Args:
            count: How many answers there are.

        Raises:
            DataError: (a ``ValueError``) On lists of another length or values of another kind; names the row.
        """
        missing = [name for name, values in (("questions", self.questions), ("roles", self.roles)) if values is None]
        if missing:
            raise DataError(f"{' and '.join(missing)} missing: a judge is shown who was asked, and what")
        given: dict[str, Sequence[Any] | None] = {
            "question": self.questions,
            "role": self.roles,
            "description": self.descriptions,
            "knowledge": self.knowledge,
            "subset": self.subsets,
            "language": [self.language] * count if isinstance(self.language, str) else self.language,
            "id": self.ids,
        }
        columns = {name: _column(name, values, count) for name, values in given.items()}
        rows = [_row(number, {name: values[number] for name, values in columns.items()}) for number in range(count)]
        return _with_ids(rows, given=self.ids is not None)


def check_answers(predictions: Sequence[str] | None, baseline: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Both lists of answers as texts that have a UTF-8, once they are known to be texts, and as many.

    Raises:
        DataError: (a ``ValueError``) On no answers, lists of different lengths, or what is no text; names the row.
    """
    found = []
    for name, values in (("predictions", predictions), ("references", baseline)):
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


def _column(name: str, values: Sequence[Any] | None, count: int) -> Sequence[Any]:
    if values is None:
        return [None] * count
    if isinstance(values, str | bytes) or not hasattr(values, "__len__"):
        raise DataError(f"{name}: expected a list, one value a row, found {type(values).__name__}")
    if len(values) != count:
        raise DataError(f"{count} predictions but {len(values)} values of {name}; each row needs its own")
    return values


def _row(number: int, values: Mapping[str, Any]) -> Row:
    """A row, its id still what was given, or empty."""
    for name, optional in (("question", False), ("role", False), ("description", True), ("id", True)):
        if not (isinstance(values[name], str) or (optional and values[name] is None)):
            kind = type(values[name]).__name__
            raise DataError(f"the {name} of row {number} must be a text{' or None' * optional}, found {kind}")
    knowledge = _knowledge(number, values["knowledge"])
    by_knowledge: Subset = "role_specific" if knowledge else "general"
    subset: Subset = by_knowledge if values["subset"] is None else values["subset"]
    for name, value, known in (("subset", subset, Subset), ("language", values["language"], Language)):
        if value not in get_args(known):
            raise DataError(f"row {number} is of {name} {value!r}; known: {', '.join(get_args(known))}")
    general = subset == "general"
    if general and len(knowledge) > 1:
        raise DataError(f"row {number} is general and has {len(knowledge)} texts of knowledge; it can have one")
    return Row(
        id=whole_text(values["id"] or ""),
        role=whole_text(values["role"]),
        language=values["language"],
        subset=subset,
        question=whole_text(values["question"]),
        references=() if general else knowledge,
        raw_reference=knowledge[0] if general and knowledge else None,
        role_description=None if values["description"] is None else whole_text(values["description"]),
    )


def _knowledge(number: int, given: Any) -> tuple[str, ...]:
    texts = [given] if isinstance(given, str) else [] if given is None else given
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise DataError(f"the knowledge of row {number} must be a text, a list of texts or None, found {given!r:.60}")
    return tuple(whole_text(text) for text in texts)


def _with_ids(rows: Sequence[Row], *, given: bool) -> list[Row]:
    if given:
        names = [row.id for row in rows]
        twice = next((name for name, times in Counter(names).items() if times > 1 or not name), None)
        if twice is not None:
            raise DataError(f"each row needs an id of its own; {twice!r} is that of {names.count(twice)}")
        return list(rows)
    seen: Counter[str] = Counter()
    named = []
    for row in rows:
        name = hash_json([row.role, row.question, row.language])[:16]
        seen[name] += 1
        # One question may be there with several answers.
        named.append(replace(row, id=name if seen[name] == 1 else f"{name}-{seen[name]}"))
    return named


# --- Datasets, files and texts as the systems of a judging run


#: The columns that rows to be judged must have.
NEEDED = ("role", "question")


def source_of(name: str, answers: Any, rows: Sequence[Row]) -> SystemSource:
    """Where a system's answers are: a file or several (paths), a dataset with ``prediction``, or a list of texts.

    Raises:
        DataError: For a dataset without the column, and for texts that are not as many as the rows.
    """
    if isinstance(answers, str | Path):
        return SystemSource(name, (Path(answers),))
    if hasattr(answers, "column_names"):
        names = column_names(answers)
        if "prediction" not in names:
            raise DataError(f"{name}: the dataset has no column prediction; it has {', '.join(names) or 'none'}")
        own = [row.id for row in rows_of(answers, needed=NEEDED)]
        return SystemSource(name, given=Predictions.from_texts(own, list(answers["prediction"])))
    if isinstance(answers, Sequence) and answers and all(isinstance(one, Path) for one in answers):
        return SystemSource(name, tuple(answers))
    if not isinstance(answers, Sequence):
        kind = type(answers).__name__
        raise DataError(
            f"{name}: expected a dataset with the column prediction, a file, or a list of texts; got {kind}"
        )
    if len(answers) != len(rows):
        raise DataError(f"{name}: {len(answers)} texts for {len(rows)} rows; give one per row of the dataset")
    return SystemSource(name, given=Predictions.from_texts([row.id for row in rows], list(answers)))


# --- Two plain lists, for the `evaluate` module


#: Figures of a result that `judge_columns` also gives by themselves, each with ``…_ci95``.
ESTIMATES = ("win_rate", "lc_win_rate", "average_rank", "position_consistency")


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
    for key in ESTIMATES:
        estimate = estimates[key] or {"mean": None, "ci95": None}
        found |= {key: estimate["mean"], f"{key}_ci95": estimate["ci95"]}
    return found | {
        **{share: pairs.get(share) for share in ("wins", "ties", "losses")},
        "canaries": {one["name"]: _win_rate(one) for one in value["models"] if one["kind"] == "canary"},
        "unscored": value["diagnostics"]["unscored"]["share"],
        "problems": list(value["problems"]),
        "n": value["rows"],
        "fingerprint": dict(value["fingerprint"]),
        "result": value,
    }


def _win_rate(model: Mapping[str, Any]) -> float | None:
    found = (model["pairwise"] or model["listwise"] or {}).get("win_rate")
    return found["mean"] if found else None
