"""A judging run from answers to result: request verdicts, write the folder, and refuse a run that lacks too many.

A jury is several models that each judge everything; the majority counts. They are asked one after the other, into one
journal under one budget.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from rolellm.core.errors import JudgingError, PredictionError, SettingsError
from rolellm.core.files import write_json
from rolellm.core.fingerprint import hash_json
from rolellm.core.folders import use_working_folder
from rolellm.core.locks import check_unlocked
from rolellm.core.records import Row
from rolellm.core.sanitize import make_visible
from rolellm.core.settings import read, suggest_keywords
from rolellm.judging.certificate import find_certificate
from rolellm.judging.judge_models import DEFAULT_JUDGES, Judge, load_judges
from rolellm.judging.overlap_judge import make_words_judge
from rolellm.judging.records import KIND, RESULT, UNSCORED, Comparison, DatasetName, Judgement, list_records
from rolellm.judging.requests import (
    LETTERS,
    JudgeReply,
    RowMaterial,
    VerdictRequest,
    accept_verdicts,
    build_judge_request,
    plan_verdicts,
    prepare_material,
)
from rolellm.judging.result import JudgedBy, JudgingResult, Unscored
from rolellm.judging.settings import JudgingSettings
from rolellm.judging.summary import summarize_judgements
from rolellm.judging.systems import find_family, make_comparison
from rolellm.llm.llm import LLM
from rolellm.llm.model import Answer, Failure, Finish, Model, Outcome, Request
from rolellm.runs import Plan, Records, Round, Step, check_run_folder, run_step
from rolellm.scoring.predictions import (
    MatchFinding,
    Predictions,
    complete_source,
    is_paths,
    make_predictions,
    read_predictions,
)
from rolellm.scoring.rows import get_provenance, read_dataset_rows
from rolellm.scoring.score import hash_rows

#: The columns that rows to be judged must have.
_NEEDED = ("role", "question")


@suggest_keywords(JudgingSettings)
def judge(
    predictions: Mapping[str, Any], dataset: Any = None, *, llm: Any, out: str | Path | None = None, **settings: Any
) -> JudgingResult:
    """Have language models compare the answers of several systems.

    What a run folder already holds is not asked again, so the same call continues a run that stopped.

    Args:
        predictions: Name of a system to its answers: a `datasets.Dataset` with the rows' columns and ``prediction``, a
            file of predictions (or a list of paths), or a list of texts, one per row of ``dataset``.
        dataset: The rows. By default those of the datasets in ``predictions``; else those of ``config`` and ``split``,
            and for files that ``rolellm generate`` wrote, those that they answer.
        llm: The models that judge: a settings file, a dict of the same keys, a `Model`, or `rolellm.LLM`.
        out: The run's folder; by default a new temporary one.
        settings: Any field of `JudgingSettings`.

    Raises:
        DataError: For missing columns, or texts that do not fit the rows.
        SettingsError: For unknown settings, an ``llm`` that names no model, or a baseline that is not there.
        JudgingError: When more verdicts are missing than allowed; the result is in the folder, marked invalid.
        StoppedShortError: At the budget, on Ctrl-C or with a full disk; nothing that was paid for is lost.
        EndpointError: When no endpoint answers.
    """
    chosen = read(JudgingSettings, settings)
    judge_llm = LLM.of(llm, {"words": make_words_judge})
    comparison, data, findings = join_predictions(predictions, dataset, chosen)
    for name, finding in findings:
        sys.stderr.write(f"note: {make_visible(f'{name}: {finding}')}\n")
    with use_working_folder("judge", out) as folder:
        return run_judging(folder, comparison, judge_llm, chosen, data)


def join_predictions(
    predictions: Mapping[str, Any], dataset: Any, settings: JudgingSettings
) -> tuple[Comparison, DatasetName, Sequence[tuple[str, MatchFinding]]]:
    """Join the answers of all systems to the rows.

    Returns:
        What there is to judge, the dataset of its rows as far as it is named, and what a reader must know of each join
        of answers and rows, by system.
    """
    if not isinstance(predictions, Mapping) or not predictions:
        raise SettingsError('expected the predictions of each system by its name, as in {"tuned": answers}')
    data, rows = load_judged_rows(predictions, dataset, settings)
    loaded = {name: _load_predictions(name, answers, rows) for name, answers in predictions.items()}
    where = "these rows"
    if data.config is not None:
        where = f"{data.config}/{data.split}"
    comparison, findings = make_comparison(rows, loaded, settings, where)
    return comparison, data, findings


def load_judged_rows(
    predictions: Mapping[str, Any], dataset: Any, settings: JudgingSettings
) -> tuple[DatasetName, list[Row]]:
    """Load the rows to judge, and their dataset as far as it is named; see `judge` for what may be given."""
    tables = [answers for answers in predictions.values() if hasattr(answers, "column_names")]
    if dataset is None and not tables:
        return _load_release_rows(predictions, settings)
    if dataset is not None:
        tables = [dataset]
    # One question may be answered by some systems only; every row counts once.
    rows: dict[str, Row] = {}
    for table in tables:
        for row in read_dataset_rows(table, needed=_NEEDED):
            rows.setdefault(row.id, row)
    columns = [asdict(row) for row in rows.values()]
    chosen = read_dataset_rows(columns, settings.roles or (), settings.subset)
    names = get_provenance(tables[0])
    config, split = settings.config or names.get("config"), settings.split or names.get("split")
    return DatasetName(config, split), chosen


def _load_release_rows(predictions: Mapping[str, Any], settings: JudgingSettings) -> tuple[DatasetName, list[Row]]:
    """Load the rows of a split of RoleBench: the named one, or the one that files were generated for."""
    from rolellm.data.rolebench import dataset_fingerprint, load_rolebench

    files: list[Path] = []
    for answers in predictions.values():
        if isinstance(answers, str | Path):
            files.append(Path(answers))
        elif is_paths(answers):
            files += answers
    if not files and settings.config is None:
        raise SettingsError("lists of texts need the rows that they answer; give dataset=… or config=…")
    config, split, data_dir = complete_source(files, settings.config, settings.split, settings.data_dir)
    data = DatasetName(config, split, dataset_fingerprint(config, data_dir))
    columns = load_rolebench(config, split, data_dir=data_dir)
    return data, read_dataset_rows(columns, settings.roles or (), settings.subset)


def _load_predictions(name: str, answers: Any, rows: Sequence[Row]) -> Predictions:
    if is_paths(answers):
        return read_predictions(answers)
    try:
        if hasattr(answers, "column_names"):
            return make_predictions(answers, read_dataset_rows(answers, needed=_NEEDED), own=True)
        return make_predictions(answers, rows)
    except (PredictionError, SettingsError) as error:
        raise type(error)(f"{name}: {error}") from error


def run_judging(
    folder: Path, comparison: Comparison, llm: LLM, settings: JudgingSettings, data: DatasetName | None = None
) -> JudgingResult:
    """Compare systems into a run folder; a second run in the same folder asks only for what is new.

    Args:
        folder: New, or an earlier judging run's.
        comparison: Rows and answers, see `rolellm.judging.systems.make_comparison`.
        llm: The models that judge; with ``jury``, each of them judges everything.
        settings: How they judge.
        data: The dataset of the rows, as far as it is named.

    Raises:
        JudgingError: When more verdicts are missing than allowed; the result is in the folder, marked invalid.
        StoppedShortError: At the budget, on Ctrl-C or with a full disk; nothing that was paid for is lost.
        EndpointError: When no endpoint answers.
        SettingsError: When nothing can be compared as asked, or the folder holds something else.
        RunInUseError: When another process judges in it.
    """
    judging = Judging(comparison, settings, data or DatasetName())
    check_run_folder(folder, judging.kind)
    check_unlocked(folder)
    (folder / RESULT).unlink(missing_ok=True)
    run = run_step(judging, llm.with_budget(settings.budget), folder)
    outcome = run.result.result
    homes = (folder.absolute().parent, Path())
    judges = []
    for judge in outcome.judges:
        certificate = find_certificate(judge, homes, outcome.config)
        judges.append(replace(judge, certificate=certificate))
    result = replace(outcome, judges=tuple(judges), spent=run.manifest["spent"], folder=folder)
    write_json(folder / RESULT, result.to_dict())
    unscored = result.diagnostics.unscored
    if (unscored.share or 0) > settings.max_unscored:
        raise JudgingError(_describe_unscored(unscored, folder))
    return result


def _describe_unscored(unscored: Unscored, folder: Path) -> str:
    reason = next(iter(unscored.by_reason), "none given")
    listed = f"{folder / UNSCORED} lists them all"
    advice = "Try a model that follows a schema, or --set retry_failed=true; --set max_unscored=… allows more"
    return f"{unscored.describe()}, most often: {reason:.200}. {listed}. {advice}"


# A letter is all that is asked for by odds; a longer verdict that is cut is refused by its parser.
CUT: Sequence[Finish] = ("length",)


class JudgingOutcome(NamedTuple):
    """The outcome of judging.

    Attributes:
        result: Without what was spent.
        judgements: Every judgement. A request without a verdict is one, too: it is unscored.
        transcripts: The requests without a verdict, with what came instead.
    """

    result: JudgingResult
    judgements: list[Judgement]
    transcripts: list[dict[str, Any]]


#: A judgement, with the failure where there is no verdict.
Verdict = tuple[Judgement, Failure | None]
#: Verdicts by judge model and request.
VerdictLog = dict[tuple[int, int], Verdict]


@dataclass(frozen=True)
class Judging(Step[JudgingOutcome]):
    """The verdicts of language models on the answers of a comparison.

    Attributes:
        comparison: Rows and answers.
        settings: How they are judged; with ``jury``, each model judges everything.
        data: The dataset of the rows, as far as it is named.
        judges: The judges, by their prompts.
        asks: Every verdict to request of each judge model.

    Raises:
        SettingsError: When no verdict can be requested.
    """

    comparison: Comparison
    settings: JudgingSettings
    data: DatasetName
    judges: list[Judge] = field(init=False)
    asks: list[VerdictRequest] = field(init=False)
    kind: ClassVar[str] = KIND

    def __post_init__(self) -> None:
        # What cannot be asked is refused before a folder is made.
        judges = load_judges(self.settings.judges or DEFAULT_JUDGES)
        object.__setattr__(self, "judges", judges)
        object.__setattr__(self, "asks", plan_verdicts(self.comparison, judges, self.settings.seed))

    def plan(self, llm: LLM) -> Plan[JudgingOutcome]:
        """Request every verdict of each judge model, and summarize them."""
        accept = accept_verdicts({judge.settings.parser: judge for judge in self.judges})
        log: VerdictLog = {}
        labels = ["Judging"]
        if self.settings.jury:
            labels = [f"Judging, {model.name}" for model in llm.settings.endpoints or llm.models]
        for index, label in enumerate(labels):
            requests = build_requests(self.comparison, self.asks)
            record = partial(self._record, log, llm, index)
            judging = Round(requests, accept, label, CUT, each=record, total=len(self.asks))
            if self.settings.jury:
                judging = replace(judging, model=index)
            if index < len(labels) - 1:
                # A dry run ends with the last.
                judging = replace(judging, stand_in=_make_stand_in)
            yield judging
        verdicts = [log[key] for key in sorted(log)]
        judgements = [judgement for judgement, _ in verdicts]
        transcripts = [_describe_failure(judgement, failure) for judgement, failure in verdicts if failure]
        judge_models = list(self._describe_judges(llm.models))
        result = summarize_judgements(self.comparison, judgements, judge_models, self.settings, self.data)
        recipe = self._build_recipe(judge_models)
        fingerprint = {"hash": hash_json(recipe), "dataset": recipe["dataset"]}
        return JudgingOutcome(replace(result, fingerprint=fingerprint), judgements, transcripts)

    def _record(self, log: VerdictLog, llm: LLM, index: int, number: int, outcome: Outcome[JudgeReply]) -> None:
        """Record what came of a request; its whole text is kept only where there is no verdict."""
        ask = self.asks[number]
        # Models are only made once they are asked: a dry run needs no key.
        names = name_judges(llm.models, each=self.settings.jury)
        row = self.comparison.rows[ask.row]
        log[index, number] = make_judgement(row.id, names[index], ask, outcome)

    def records(self, outcome: JudgingOutcome) -> Records:
        """Return the files of the run's folder but for the result, which says what was spent."""
        return {**list_records(self.comparison, outcome.judgements), UNSCORED: outcome.transcripts}

    def describe(self, outcome: JudgingOutcome) -> dict[str, Any]:
        """Return the recipe, and a hash over it."""
        return {**self._build_recipe(outcome.result.judges), "hash": outcome.result.fingerprint["hash"]}

    def _build_recipe(self, judges: Sequence[JudgedBy]) -> dict[str, Any]:
        rows = self.comparison.rows
        dataset = {**asdict(self.data), "rows": len(rows)}
        dataset["fingerprint"] = self.data.fingerprint or hash_rows(rows)
        return {
            "dataset": dataset,
            "settings": self.settings.to_dict(),
            "systems": [asdict(system) for system in self.comparison.systems],
            "judges": [judge.describe() for judge in judges],
        }

    def _describe_judges(self, models: Sequence[Model]) -> Iterator[JudgedBy]:
        """Describe each judge model with its prompts, and the systems of its own family."""
        prompts = {str(judge.design): judge.to_dict() for judge in self.judges}
        groups = [models]
        if self.settings.jury:
            groups = [[model] for model in models]
        names = name_judges(models, each=self.settings.jury)
        for name, group in zip(names, groups, strict=True):
            identities = [dict(model.identity) for model in group]
            families = [find_family(str(identity.get("model", name))) for identity in identities]
            family = next(filter(None, families), None)
            systems = [system for system in self.comparison.systems if system.family]
            flagged = [system.name for system in systems if system.family in families]
            yield JudgedBy(name, prompts, identities, family, tuple(flagged))


def _make_stand_in(_: Request) -> JudgeReply:
    return JudgeReply(None, ())


def name_judges(models: Sequence[Model], *, each: bool) -> list[str]:
    """Name the judges, each name unique.

    Args:
        models: The models to ask.
        each: Whether each judges everything, and the majority counts. Otherwise they are one judge and share the work,
            as servers of one model do.
    """
    if not each:
        shared_names = [str(model.identity.get("model", model.name)) for model in models]
        return [" + ".join(dict.fromkeys(shared_names))]
    names = [model.name for model in models]
    unique_names = []
    for index, name in enumerate(names, start=1):
        unique_names.append(f"{name} ({index})" if names.count(name) > 1 else name)
    return unique_names


def build_requests(comparison: Comparison, asks: Iterable[VerdictRequest]) -> Iterator[Request]:
    """Build the requests for some verdicts on a comparison, in order."""
    material: RowMaterial | None = None
    for ask in asks:
        row = comparison.rows[ask.row]
        if material is None or material.row is not row:
            material = prepare_material(comparison, row)
        yield build_judge_request(material, ask)


def _describe_failure(judgement: Judgement, failure: Failure) -> dict[str, Any]:
    """Describe a request without a verdict, with its transcript."""
    line: dict[str, Any] = {name: getattr(judgement, name) for name in ("row", "judge", "design", "order")}
    line |= {name: getattr(failure, name) for name in ("kind", "reason", "attempts", "refused")}
    line["messages"] = [asdict(message) for message in failure.request.messages]
    line["reply"] = failure.reply and failure.reply.text
    return line


def make_judgement(row: str, judge: str, ask: VerdictRequest, outcome: Outcome[JudgeReply]) -> Verdict:
    """Make the judgement of an outcome, with the failure where there is no verdict; a copied verdict is none.

    Args:
        row: The row's id.
        judge: The judge's name in the run.
        ask: The verdict that was requested.
        outcome: What came of it.
    """
    judgement = Judgement(row, judge, ask.judge.design, ask.order, None, attempts=outcome.attempts)
    if isinstance(outcome, Answer):
        reply = outcome.value
        judgement = replace(judgement, ranks=reply.ranks, reasons=reply.reasons, key=outcome.key, lead=reply.lead)
        if reply.copied is None:
            return judgement, None
        reason = f"repeats a verdict from {reply.copied} word for word"
        failure = Failure(outcome.request, "malformed", reason, outcome.attempts, outcome.reply, outcome.refused)
        letters = dict(zip(LETTERS, ask.order, strict=False))
        judgement = replace(judgement, copied=letters.get(reply.copied.removeprefix("answer ")))
    else:
        failure = outcome
    return replace(judgement, unscored=f"{failure.kind}: {failure.reason}"), failure
