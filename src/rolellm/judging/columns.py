"""Judging of plain lists, for those who hold answers in memory and no data set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from rolellm.core.errors import DataError, SettingsError
from rolellm.core.fingerprint import hash_json
from rolellm.core.records import Language, Row, Subset
from rolellm.core.text import whole_text
from rolellm.judging.ask import JudgingOptions, make_jury
from rolellm.judging.judge_models import DEFAULT_JUDGES, load_judges
from rolellm.judging.orders import Design
from rolellm.judging.overlap_judge import words_judge
from rolellm.judging.result import ResultOptions
from rolellm.judging.run import JudgingSetup, run_judging
from rolellm.judging.systems import CANARIES, canary_answers, family_of
from rolellm.judging.types import Contest, Contestant, ContestantKind
from rolellm.llm.model import RunOptions
from rolellm.llm.settings import LLMSettings, load_models, load_settings

if TYPE_CHECKING:
    from rolellm.llm.settings import MakeScripted

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


# --- Judging of plain lists, for those who hold answers in memory and no data set


_RULES: Mapping[str, MakeScripted] = {"words": words_judge}
#: Figures of a result that `judge_columns` also gives by themselves, each with ``…_ci95``.
ESTIMATES = ("win_rate", "lc_win_rate", "average_rank", "position_consistency")


@dataclass(frozen=True, slots=True)
class ColumnsSetup:
    """Who judges, where, and how.

    Attributes:
        llm: The models to ask: a settings file (docs/endpoints.md), or what was read from one.
        folder: The run's; what it holds of an earlier run is not asked again.
        judges: Names or folders; by default both that ship.
        name: What the model is called.
        baseline_name: What the baseline is called.
        canaries: Whether the attackers take part.
        resamples: Of every bootstrap and permutation test.
        seed: Of them, and of the orders.
        name_probe: Rows judged a second time with the names shown.
        rotations: How often each list is shown, turned.
        budget: US dollars that the folder may cost in all; ``None`` for what the settings say.
        jury: Each model judges everything, and the majority counts.
        max_unscored: The share of verdicts that may be missing.
    """

    llm: str | Path | LLMSettings | None = None
    folder: str | Path = "role-judge"
    judges: Sequence[str | Path] | None = None
    name: str = "model"
    baseline_name: str = "baseline"
    canaries: bool = True
    resamples: int = 2000
    seed: int = 0
    name_probe: int = 50
    rotations: int = 2
    budget: float | None = None
    jury: bool = False
    max_unscored: float = 0.01


def judge_columns(
    predictions: Sequence[str], baseline: Sequence[str], columns: JudgeColumns, setup: ColumnsSetup
) -> dict[str, Any]:
    """Judge answers held in memory exactly as ``rolellm judge`` judges files.

    Args:
        predictions: The model's answers, one text a row; may be empty texts.
        baseline: Those that it is compared with.
        columns: What is known of the rows.
        setup: Who judges, where, and how.

    Returns:
        The figures of the model: each of `ESTIMATES` with its ``…_ci95``, ``wins``, ``ties`` and ``losses`` (shares of
        rows), ``canaries`` (name to win rate), ``unscored`` (share of verdicts that are missing), ``problems`` in
        words, ``n`` (rows), ``fingerprint``, and ``result``: everything, as ``result.json`` in the folder has it. What
        there is nothing of is ``None``. Where only lists were judged, win rates are those of the lists.

    Raises:
        DataError: (a ``ValueError``) On lists that do not fit together, or values that are no texts.
        SettingsError: (a ``ValueError``) Without a model to ask, for settings that cannot be, or a folder of other
        files. JudgingError: When more verdicts are missing than allowed; the result is in the folder, marked invalid.
        StoppedShortError: At the budget, on Ctrl-C or with a full disk; nothing that was paid for is lost.
        EndpointError: When no endpoint answers.
    """
    mine, theirs = check_answers(predictions, baseline)
    if setup.llm is None:
        raise SettingsError("llm is missing: name the settings file of a model that judges (docs/endpoints.md)")
    judges = load_judges(DEFAULT_JUDGES if setup.judges is None else setup.judges)
    contest = _contest(columns.rows(len(mine)), mine, theirs, setup)
    settings = setup.llm if isinstance(setup.llm, LLMSettings) else load_settings(setup.llm)
    jury = make_jury(load_models(settings, _RULES), each=setup.jury)
    result = run_judging(setup.folder, contest, judges, jury, _judging_setup(setup, settings))
    return _figures(result, setup.name)


def _judging_setup(setup: ColumnsSetup, settings: LLMSettings) -> JudgingSetup:
    budget = settings.budget if setup.budget is None else setup.budget
    return JudgingSetup(
        options=JudgingOptions(Design(setup.rotations, setup.name_probe, setup.seed)),
        result=ResultOptions(setup.resamples, setup.seed, setup.max_unscored),
        run=RunOptions(max_attempts=settings.max_attempts, budget=budget),
        models=settings.describe(),
        entry={"baseline": setup.baseline_name, "canaries": setup.canaries},
    )


def _contest(rows: Sequence[Row], mine: Sequence[str], theirs: Sequence[str], setup: ColumnsSetup) -> Contest:
    names = [setup.name, setup.baseline_name, *(one.name for one in CANARIES)]
    if not all(isinstance(name, str) and name.strip() for name in names) or len(set(names)) < len(names):
        raise SettingsError(
            f"the model is called {setup.name!r} and the baseline {setup.baseline_name!r}; they need different names, "
            f"other than {names[2]!r} and {names[3]!r}"
        )
    ids = [row.id for row in rows]
    sides: tuple[tuple[str, ContestantKind, Sequence[str]], ...] = (
        (setup.name, "model", mine),
        (setup.baseline_name, "baseline", theirs),
    )
    found = [
        (Contestant(name, kind, None, family_of(name), {"sha256": hash_json(list(texts))}), texts)
        for name, kind, texts in sides
    ]
    entered: list[tuple[Contestant, Mapping[str, str]]] = [
        (one, dict(zip(ids, texts, strict=True))) for one, texts in found
    ]
    entered += canary_answers(rows) if setup.canaries else []
    return Contest(rows, [one for one, _ in entered], {one.name: answers for one, answers in entered})


def _figures(result: Mapping[str, Any], name: str) -> dict[str, Any]:
    models = {one["name"]: one for one in result["models"]}
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
        "canaries": {one["name"]: _win_rate(one) for one in result["models"] if one["kind"] == "canary"},
        "unscored": result["diagnostics"]["unscored"]["share"],
        "problems": list(result["problems"]),
        "n": result["rows"],
        "fingerprint": dict(result["fingerprint"]),
        "result": dict(result),
    }


def _win_rate(model: Mapping[str, Any]) -> float | None:
    found = (model["pairwise"] or model["listwise"] or {}).get("win_rate")
    return found["mean"] if found else None
