"""``rolellm eval``: answers, scores, style and verdicts of one or several models, in one folder with one page.

The rows are those of a config of RoleBench, or one's own: then each reply of a dialogue is asked for again after the
real turns before it, and the interval of a figure is over dialogues.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rolellm.core.errors import DataError, MissingExtraError, RoleLLMError, SettingsError
from rolellm.core.files import open_atomic, write_json
from rolellm.core.folders import name_call, use_working_folder
from rolellm.core.locks import lock_folder
from rolellm.core.records import Row
from rolellm.core.result import Result
from rolellm.core.settings import Advanced, Field, dump, read, settings, suggest_keywords
from rolellm.core.table import PERCENT, Cell, Format, Interval, Table, TableRow
from rolellm.core.text import format_count, make_safe_name
from rolellm.llm.llm import LLM
from rolellm.llm.vllm import keep_servers
from rolellm.models.local_model import DType
from rolellm.models.training_record import TrainedOn

if TYPE_CHECKING:
    from rolellm.judging.result import JudgingResult
    from rolellm.llm.local import LocalChat
    from rolellm.reporting.findings import PairTest
    from rolellm.reporting.page import PageContent
    from rolellm.scenes.comparison import SceneComparison
    from rolellm.scenes.scene import Scene
    from rolellm.scoring.own_turns import OwnTurns
    from rolellm.scoring.score_report import ScoreReport
    from rolellm.scoring.statistics.intervals import ClusteredSample
    from rolellm.scoring.style import StyleResult

_SETTINGS_FILES = (".yaml", ".yml", ".json")
#: The real replies of one's own rows, which every judged model is compared with.
SAID = "what was said"
#: The released baseline, which every judged model is compared with where the rows have its replies.
BASELINE = "RoleGPT (released)"
_SCENES = (
    "Shares of a scene's turns, by rule, averaged over scenes. Spoke for another: the turn had another character's "
    "name in front of a line; what went on so was cut. Knew what it had not witnessed: it had the words of a secret of "
    "the scene that its character neither knew nor heard; without secrets, a dash."
)


@settings
class EvalSettings:
    """Answers and scores.

    Attributes:
        config: Config of RoleBench; by default the only one of the data folder, else what the first run was trained on,
            else instruction-generalization-eng.
        split: Split to answer.
        data_dir: A local copy of the release, or a data set of your own.
        limit: Answer only N rows, drawn evenly from roles and subsets, for a first look; a larger N keeps them.
        max_new_tokens: Maximum tokens per reply.
        temperature: Sampling temperature; 0 is greedy. The paper's replies use 0.7.
        engine: For local models: builtin, vllm, or vLLM's path; auto: vLLM where found with a GPU.
        dtype: The weights' type of local models; bfloat16 is several times faster on a CPU with AMX.
    """

    config: str | None = None
    split: Advanced[str] = "test"
    data_dir: Path | None = None
    limit: int | None = Field(default=None, ge=1)
    max_new_tokens: Advanced[int] = Field(default=200, ge=1)
    temperature: float = Field(default=0.0, ge=0)
    engine: str = "auto"
    dtype: Advanced[DType] = "auto"


@dataclass(frozen=True, slots=True)
class OwnData:
    """Rows of one's own, as `rolellm.data.own_rows.load_own_rows` takes them.

    Attributes:
        source: A file or folder, an id on the Hub, a dataset, or rows as mappings.
        columns: Columns that have other names than their form expects.
        skip_bad: Skip bad rows and count them.
    """

    source: Any
    columns: Mapping[str, str] = field(default_factory=dict)
    skip_bad: bool = False


@dataclass(frozen=True, slots=True)
class OwnFigures:
    """Figures of a system on rows of one's own beside Rouge-L; dialogues are the clusters.

    Attributes:
        told_apart: Share of replies that the style meter tells from what was said; a half is chance. None where there
            are too few.
        loss: Of a token of what was said; None for models behind an API.
    """

    told_apart: Interval | None
    loss: Interval | None

    def to_dict(self) -> dict[str, Any]:
        """Return both as JSON objects."""
        from rolellm.scoring.statistics.intervals import encode_interval

        return {"told_apart": encode_interval(self.told_apart), "loss": encode_interval(self.loss)}


@dataclass(frozen=True, slots=True, repr=False)
class EvalResult(Result):
    """The findings of an evaluation.

    Attributes:
        out: Its folder: ``answers/NAME.jsonl``, ``NAME.score.json``, ``judged/``, ``scenes/NAME/``, ``report.html``,
            ``eval.json``.
        page: The report.
        findings: What was found, in sentences.
        reports: Each system's scores.
        style: Each system's share of replies in the style of their role, where the meter could be trained.
        judged: What the judge found, where there is one.
        own: Figures of rows of one's own by system; see `OwnFigures`.
        data: Where rows of one's own come from.
        scenes: The rule checks of the scenes that the systems played, where there are any.
        content: What the report shows.
    """

    out: Path
    reports: Mapping[str, ScoreReport]
    style: Mapping[str, StyleResult] = field(default_factory=dict)
    judged: JudgingResult | None = None
    own: Mapping[str, OwnFigures] = field(default_factory=dict)
    data: str | None = None
    scenes: SceneComparison | None = None
    page: Path = Path()
    findings: tuple[str, ...] = ()
    content: PageContent = field(kw_only=True, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Return findings, metrics, style and the judge's result as one JSON object."""
        metrics = {name: report.to_dict()["metrics"] for name, report in self.reports.items()}
        style = {name: result.to_dict() for name, result in self.style.items()}
        own = {name: figures.to_dict() for name, figures in self.own.items()}
        judged = self.judged and self.judged.to_dict()
        return {
            "out": str(self.out),
            "report": str(self.page),
            "findings": list(self.findings),
            "metrics": metrics,
            "style": style,
            "judged": judged,
            "data": self.data,
            "own": own,
            "scenes": self.scenes and self.scenes.to_dict(),
        }

    def tables(self) -> tuple[Table, ...]:
        """Build the table of the systems, and those of scenes."""
        tables = [self._build_table()] if self.reports else []
        if self.scenes:
            tables += self.scenes.tables()
        return tuple(tables)

    def _build_table(self) -> Table:
        from rolellm.scoring.score_report import METRICS
        from rolellm.scoring.statistics.intervals import name_clusters

        measures: dict[str, str] = {name: name for name in (*METRICS, "avg")}
        if self.own:
            measures = {"CUS": "Rouge-L"}
        columns = dict.fromkeys(measures.values(), Format(3))
        rows: dict[str, list[Cell]] = {}
        for name, report in self.reports.items():
            metrics = report.leading.metrics
            rows[name] = [metrics.get(measure) for measure in measures]
        told_apart = {name: figures.told_apart for name, figures in self.own.items()}
        if any(told_apart.values()):
            columns["told apart %"] = PERCENT
            for name, share in told_apart.items():
                rows[name].append(share)
        if self.own:
            columns["loss per token"] = Format(3)
            for name, figures in self.own.items():
                rows[name].append(figures.loss)
        if self.judged:
            columns["win rate %"] = PERCENT
            wins = {system.name: system.measures().get("win_rate") for system in self.judged.leading.models}
            for name, cells in rows.items():
                cells.append(wins.get(name))
        recipe = next(iter(self.reports.values())).recipe
        if self.own:
            rows = name_clusters(rows, "dialogue")
        lines = [TableRow((name,), tuple(cells)) for name, cells in rows.items()]
        return Table("Systems", ("System",), tuple(columns), tuple(lines), recipe, columns)

    def remarks(self) -> Sequence[str]:
        """Return the findings."""
        return self.findings

    def plot(self, path: str | Path) -> Path:
        """Save the picture that the report opens with as an SVG file: each system's figures with their intervals.

        Args:
            path: The file to write.

        Raises:
            DataError: Where only scenes were played.
        """
        if not self.content.parts:
            raise DataError("nothing to draw: only scenes were played", path=self.out)
        picture = self.content.parts[0].draw_overview()[0]
        target = Path(path)
        with open_atomic(target) as stream:
            stream.write(picture)
        return target

    def _repr_html_(self) -> str:
        pictures = [picture for part in self.content.parts[:1] for picture in part.draw_overview()]
        return "\n".join([Result._repr_html_(self), *pictures])


@suggest_keywords(EvalSettings)
def evaluate(
    models: str | Path | Sequence[str | Path] | Mapping[str, Any],
    *,
    data: Any = None,
    columns: Mapping[str, str] | None = None,
    skip_bad: bool = False,
    scenes: Sequence[str | Path] = (),
    judge: Any = None,
    out: str | Path | None = None,
    **options: Any,
) -> EvalResult:
    """Answer, score and judge, on RoleBench or on rows of your own, in one call that can be repeated to continue.

    The numbers are those of `rolellm.generate`, `rolellm.score`, `rolellm.style` and `rolellm.judge`, which this calls.

    Args:
        models: One model or several: a folder with a model, an adapter or a training run; a Hub id; or a settings file
            of endpoints (``llm.yaml``). A mapping gives names, and so does ``NAME=MODEL``.
        data: Rows of your own to answer: a file or folder (JSON Lines, JSON, CSV, Parquet), an id on the Hub, a
            `datasets.Dataset`, or a list of dicts. Dialogues that a model was trained on are left out. By default, what
            the first training run among the models was trained on, where that was such rows.
        columns: With `data`: columns that have other names, as in ``{"prompt": "question"}``.
        skip_bad: With `data`: skip bad rows and count them.
        scenes: Files of scenes that each model plays alone (docs/scenes.md); without rows, nothing else is done.
        judge: Models that compare the answers, and direct the scenes of all: a settings file, a dict, or `rolellm.LLM`.
        out: The folder; by default a new temporary one. With the folder of an earlier call, what is there is kept.
        options: Any field of `EvalSettings`.

    Raises:
        SettingsError: For unknown options, no model, or two of one name.
        ModelError: When a model cannot be loaded, or a prompt leaves no room for a reply.
        StoppedShortError: On Ctrl-C, at the budget or with a full disk; nothing that is done is lost.
        EndpointError: When no endpoint answers.
    """
    from rolellm.scenes.scene import read_scene

    chosen = read(EvalSettings, options)
    systems = name_systems(models)
    stages = [read_scene(path) for path in scenes]
    with use_working_folder("eval", out) as folder, lock_folder(folder), name_call(folder):
        own = None
        if data is not None:
            own = OwnData(data, columns or {}, skip_bad)
        return _evaluate(folder, systems, judge, chosen, own, stages)


def name_systems(models: str | Path | Sequence[str | Path] | Mapping[str, Any]) -> dict[str, Any]:
    """Give each model a name: the one before ``=``, else the last part of its folder or id.

    >>> name_systems(["runs/ada", "before=gpt2"])
    {'ada': 'runs/ada', 'before': 'gpt2'}

    Raises:
        SettingsError: For no model, or two of one name.
    """
    if isinstance(models, Mapping):
        return dict(models)
    systems: dict[str, Any] = {}
    listed = [models] if isinstance(models, str | Path) else models
    for model in listed:
        name, equals, source = str(model).partition("=")
        if not equals:
            source = name
            # A Hub id may have a dot, which a settings file's ending is set off by.
            name = Path(source).stem if source.endswith(_SETTINGS_FILES) else Path(source).name
        if name in systems:
            raise SettingsError(f"two models are called {name!r}; name them with NAME=MODEL")
        systems[name or "model"] = source
    if not systems:
        raise SettingsError("name at least one model: a folder, a Hub id or a settings file")
    return systems


def _evaluate(
    folder: Path,
    systems: Mapping[str, Any],
    judge: Any,
    chosen: EvalSettings,
    own: OwnData | None,
    scenes: Sequence[Scene],
) -> EvalResult:
    from rolellm.data.rolebench.schema import DEFAULT_CONFIG
    from rolellm.judging.overlap_judge import make_words_judge
    from rolellm.reporting.page import PageContent

    judge_llm = None
    if judge is not None:
        judge_llm = LLM.of(judge, {"words": make_words_judge})
    models = _check_models(systems, chosen)
    if own is None:
        own, chosen = _choose_data(chosen, systems)
    elif chosen.config or chosen.data_dir:
        raise SettingsError("name a config of RoleBench (--config, --data-dir) or rows of your own (--data), not both")
    files = {name: folder / "answers" / f"{make_safe_name(name)}.jsonl" for name in systems}
    if own is not None:
        turns = _load_own_turns(own, systems, models, chosen.limit)
        result = _evaluate_own(folder, systems, models, files, judge_llm, chosen, turns)
    elif scenes and chosen.config is None and chosen.data_dir is None:
        if judge is not None and not any(scene.is_directed for scene in scenes):
            raise SettingsError("a judge compares answers to rows; name some (--config or --data), or leave it out")
        result = EvalResult(folder, {}, content=PageContent("Scenes"))
    else:
        chosen = replace(chosen, config=chosen.config or DEFAULT_CONFIG)
        result = _evaluate_rows(folder, systems, models, files, judge_llm, chosen)
    if scenes:
        result = _add_scenes(systems, models, chosen, scenes, judge_llm, result)
    return _write_result(systems, chosen, result)


def _evaluate_rows(
    folder: Path,
    systems: Mapping[str, Any],
    models: Mapping[str, LocalChat],
    files: Mapping[str, Path],
    judge: LLM | None,
    chosen: EvalSettings,
) -> EvalResult:
    from rolellm.reporting.build import ReportSources, build_report
    from rolellm.reporting.findings import describe_styles
    from rolellm.reporting.settings import ReportOptions
    from rolellm.scoring.rows import get_provenance, read_dataset_rows

    source: dict[str, Any] = {"config": chosen.config, "split": chosen.split, "data_dir": chosen.data_dir}
    rows = _load_rows(limit=chosen.limit, **source)
    if judge is not None and len(systems) == 1 and not _has_baseline(rows):
        raise SettingsError(
            "a judge compares two systems, and these rows have no released baseline; name a second model, such as the "
            "base: before=BASE"
        )
    count = format_count(len(rows), "row")
    asked_rows = read_dataset_rows(rows)
    provenance = {**get_provenance(rows), "data_dir": chosen.data_dir}
    with keep_servers(map(models.get, systems)):
        for name, model in systems.items():
            sys.stderr.write(f"{name}: answering {count} of {chosen.config}/{chosen.split}\n")
            _answer(model, models.get(name), asked_rows, files[name], chosen, provenance)
    predictions = {name: [path] for name, path in files.items()}
    options = read(ReportOptions, {"protocol": "rouge-score", **source})
    content = build_report(ReportSources(predictions=predictions), options).content
    reports = {name: content.parts[0].scored[name] for name in systems}
    style = _measure_style(predictions, source)
    judged = None
    if judge is not None:
        answers: dict[str, Any] = dict(files)
        baseline = None
        if _has_baseline(rows):
            baseline = BASELINE
            answers[baseline] = rows.rename_column("rolegpt", "prediction")
        judged, content = _judge(folder, answers, rows, judge, baseline)
    content = replace(content, findings=[*content.findings, *describe_styles(style)])
    return EvalResult(folder, reports, style, judged, content=content)


def _evaluate_own(
    folder: Path,
    systems: Mapping[str, Any],
    models: Mapping[str, LocalChat],
    files: Mapping[str, Path],
    judge: LLM | None,
    chosen: EvalSettings,
    own: OwnTurns,
) -> EvalResult:
    from rolellm.models.local_model import LocalModel
    from rolellm.reporting.build import ReportSources, build_report
    from rolellm.scoring.losses import measure_losses
    from rolellm.scoring.statistics.intervals import ClusteredSample, estimate_interval

    names = {row.dialogue or row.id for row in own.rows}
    dialogues = format_count(len(names), "dialogue")
    replies = format_count(len(own.rows), "reply", "replies")
    with keep_servers(map(models.get, systems)):
        for name, model in systems.items():
            sys.stderr.write(f"{name}: answering {replies} in {dialogues} of {own.name}\n")
            _answer(model, models.get(name), own.rows, files[name], chosen, {}, own.messages)
    figures = {}
    sentences = []
    losses: dict[str, ClusteredSample] = {}
    for name, model in systems.items():
        if not _is_settings_file(model):
            local = LocalModel(_name_model(model), dtype=chosen.dtype)
            losses[name] = measure_losses(local, own.rows, own.messages)
        told_apart = _measure_own_style(own, files[name])
        loss = None
        if name in losses:
            loss = estimate_interval(ClusteredSample(losses[name].values, losses[name].clusters))
        figures[name] = OwnFigures(told_apart, loss)
        sentences.append(_describe_figures(name, figures[name]))
    changes = _compare_losses(losses)
    predictions = {name: [path] for name, path in files.items()}
    content = build_report(ReportSources(predictions=predictions, own=own, changes=changes)).content
    (part,) = content.parts
    reports = {name: part.scored[name] for name in systems}
    judged = None
    if judge is not None:
        from datasets import Dataset

        table = Dataset.from_list([asdict(row) for row in own.write_transcripts()])
        answers = {name: _read_replies(own, path) for name, path in files.items()}
        answers[SAID] = [row.references[0] for row in own.rows]
        judged, content = _judge(folder, answers, table, judge, SAID, own, changes)
    content = replace(content, findings=[*content.findings, *sentences])
    return EvalResult(folder, reports, {}, judged, figures, own.name, content=content)


def _write_result(systems: Mapping[str, Any], chosen: EvalSettings, result: EvalResult) -> EvalResult:
    """Write the page and the files of figures."""
    from rolellm.reporting.page import write_page

    folder = result.out
    page = write_page(folder / "report.html", result.content)
    result = replace(result, page=page, findings=tuple(result.content.sentences))
    for name, report in result.reports.items():
        write_json(folder / f"{make_safe_name(name)}.score.json", report.to_dict())
    sources = {name: str(model) for name, model in systems.items()}
    write_json(folder / "eval.json", {"settings": dump(chosen), "systems": sources, **result.to_dict()})
    return result


def _add_scenes(
    systems: Mapping[str, Any],
    models: dict[str, LocalChat],
    chosen: EvalSettings,
    scenes: Sequence[Scene],
    director: LLM | None,
    result: EvalResult,
) -> EvalResult:
    """Have each system play the scenes, and compare them; one director for all, or each directs itself."""
    from rolellm.playing.settings import PlaySettings
    from rolellm.reporting.blocks import Block
    from rolellm.runs import run_step
    from rolellm.scenes.comparison import compare_scenes
    from rolellm.scenes.play import PlayScenes

    settings = PlaySettings(temperature=chosen.temperature, max_tokens=chosen.max_new_tokens)
    step = PlayScenes(scenes, settings, director=director)
    played = {}
    transcripts = []
    with keep_servers(map(models.get, systems)):
        for name, model in systems.items():
            sys.stderr.write(f"{name}: playing {format_count(len(scenes), 'scene')}\n")
            # Weights are not kept for all systems at once.
            llm = LLM.of(models.pop(name, model))
            run = run_step(step, llm, result.out / "scenes" / make_safe_name(name))
            for note in run.notes():
                sys.stderr.write(f"{note}\n")
            played[name] = run.result.scenes
            transcripts += [Block(f"{name}: {scene.title}", code=scene.to_text()) for scene in played[name]]
    comparison = compare_scenes(scenes, played)
    block = Block("Scenes", "scenes", tables=comparison.tables(), notes=[_SCENES], blocks=transcripts, is_folded=False)
    findings = [*result.content.findings, *comparison.remarks()]
    content = replace(result.content, findings=findings, blocks=[*result.content.blocks, block])
    return replace(result, scenes=comparison, content=content)


def _name_model(model: Any) -> str:
    return str(getattr(model, "model_dir", model))


def _is_settings_file(model: Any) -> bool:
    return str(model).endswith(_SETTINGS_FILES)


def _check_models(systems: Mapping[str, Any], chosen: EvalSettings) -> dict[str, LocalChat]:
    """Load what describes each model, so that none is found missing after hours of answering with another.

    Returns:
        The local models, without weights.
    """
    local = {}
    for name, model in systems.items():
        try:
            if _is_settings_file(model):
                llm = LLM.of(str(model))
            else:
                llm = LLM(backend="local", model=_name_model(model), engine=chosen.engine, dtype=chosen.dtype)
            # Only now are they built.
            models = llm.models
        except RoleLLMError as error:
            raise type(error)(f"{name}: {error}") from error
        if not _is_settings_file(model):
            local[name] = cast("LocalChat", models[0])
    return local


def _load_own_turns(
    data: OwnData, systems: Mapping[str, Any], models: Mapping[str, LocalChat], limit: int | None
) -> OwnTurns:
    """Read what is answered: not what a model was trained on, nor what leaves one no room for a reply."""
    from rolellm.models.prompts.encode import PromptEncoder
    from rolellm.scoring.own_turns import load_own_turns

    instructions = _read_trained_instructions(systems)
    own = load_own_turns(data.source, data.columns, skip_bad=data.skip_bad, instructions=instructions, limit=limit)
    notes = list(own.notes)
    for name, chat in models.items():
        model = chat.model
        if model.context is None:
            continue
        encode = PromptEncoder(model.tokenizer)
        rows = []
        for row in own.rows:
            if len(encode(own.messages[row.id])) < model.context:
                rows.append(row)
        if len(rows) < len(own.rows):
            long = format_count(len(own.rows) - len(rows), "reply", "replies")
            notes.append(f"{long} left out: the turns before fill {name}'s context of {model.context:,} tokens")
            own = replace(own, rows=tuple(rows))
    if not own.rows:
        raise DataError(f"{own.name} has no reply to answer: {'; '.join(notes)}")
    for note in notes:
        sys.stderr.write(f"note: {note}\n")
    return own


def _choose_data(chosen: EvalSettings, systems: Mapping[str, Any]) -> tuple[OwnData | None, EvalSettings]:
    """Choose what is answered where no rows are named: the config, else what a run was trained on."""
    from rolellm.data.rolebench.source import find_only_config

    config = chosen.config or find_only_config(chosen.data_dir)
    if config is not None or chosen.data_dir is not None:
        return None, replace(chosen, config=config)
    for manifest in _read_manifests(systems):
        data = manifest.get("recipe", {}).get("data", {})
        if data.get("path"):
            columns = data.get("columns") or {}
            return OwnData(data["path"], columns, bool(data.get("skip_bad"))), chosen
        if data.get("source") != "dataset":
            folder = data.get("data_dir")
            return None, replace(chosen, config=data.get("config"), data_dir=folder and Path(folder))
    return None, chosen


def _read_manifests(systems: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Read the manifests of the training runs among the systems."""
    from rolellm.models.find import find_model
    from rolellm.scoring.generate import read_run_manifests

    for model in systems.values():
        if not _is_settings_file(model):
            yield from read_run_manifests(find_model(_name_model(model)))


def _read_trained_instructions(systems: Mapping[str, Any]) -> frozenset[str]:
    """Read the hashes of all questions that the systems were trained on, as far as their manifests say."""
    records = [TrainedOn.from_dict(manifest.get("trained_on")) for manifest in _read_manifests(systems)]
    return frozenset().union(*(record.instructions for record in records))


def _read_replies(own: OwnTurns, path: Path) -> list[str]:
    """Read a system's replies in the order of the rows; one that is missing is empty."""
    from rolellm.scoring.predictions import read_predictions

    replies = {item.id: item.prediction for item in read_predictions(path).items}
    return [replies.get(row.id, "") for row in own.rows]


def _compare_losses(losses: Mapping[str, ClusteredSample]) -> tuple[PairTest, ...]:
    """Test every two models that find as many tokens in what was said."""
    from rolellm.reporting.findings import LIKELIHOOD, compare_values

    tests = []
    for pair in combinations(losses, 2):
        first, second = (losses[name] for name in pair)
        if first.values and first.clusters == second.clusters:
            values = [-loss for loss in first.values], [-loss for loss in second.values]
            tests.append(compare_values(pair, LIKELIHOOD, values, (first.clusters, first.roles), None))
    return tuple(tests)


def _measure_own_style(own: OwnTurns, path: Path) -> Interval | None:
    from rolellm.scoring.style import LEAST_TURNS, measure_difference

    told_apart = None
    try:
        told_apart = measure_difference(own.rows, _read_replies(own, path))
        if told_apart is None:
            sys.stderr.write(f"note: style is not measured: it needs {LEAST_TURNS} replies in several dialogues\n")
    except MissingExtraError as error:
        sys.stderr.write(f"note: style is not measured: {error}\n")
    return told_apart


def _describe_figures(name: str, figures: OwnFigures) -> str:
    parts = []
    loss = figures.loss
    if loss is not None:
        words = [f"{loss.mean:.3f}", loss.format_ends(3), f"(n = {loss.n:,} tokens; lower is better)"]
        figure = " ".join(filter(None, words))
        parts.append(f"loss per token of what was said {figure}")
    share = figures.told_apart
    if share is not None:
        figure = f"{100 * share.mean:.1f} % {share.format_ends(1, 100)}"
        parts.append(f"style tells its replies from what was said in {figure} of cases (50 % is chance)")
    return f"{name}: {'; '.join(parts) or 'neither loss nor style could be measured'}."


def _load_rows(config: str, split: str, data_dir: Path | None, limit: int | None) -> Any:
    """Load the rows to answer as a dataset: all, or some drawn evenly."""
    from datasets import Dataset

    from rolellm.data.rolebench import load_rolebench
    from rolellm.scoring.rows import draw_rows, read_dataset_rows

    rows = load_rolebench(config, split, data_dir=data_dir)
    if limit is None:
        return rows
    indices = draw_rows(read_dataset_rows(rows), limit)
    # A selection would show a progress bar each time that it gets a column.
    return Dataset.from_dict(rows[indices], info=rows.info, split=rows.split)


def _answer(
    model: Any,
    chat: LocalChat | None,
    rows: Sequence[Row],
    path: Path,
    chosen: EvalSettings,
    provenance: Mapping[str, Any],
    messages: Mapping[str, list[dict[str, str]]] | None = None,
) -> None:
    from rolellm.scoring.generate import answer_rows
    from rolellm.scoring.predictions import explain_interrupt
    from rolellm.scoring.settings import GenerateSettings

    llm = None
    options = dict(provenance)
    if chat is None:
        llm = str(model)
    else:
        options |= {"model": _name_model(model), "engine": chosen.engine, "dtype": chosen.dtype}
    settings = GenerateSettings(max_new_tokens=chosen.max_new_tokens, temperature=chosen.temperature, **options)
    with explain_interrupt(path, f"the same call with out={str(path.parent.parent)!r}"):
        answer_rows(rows, path, settings, llm, messages, chat)


def _measure_style(predictions: Mapping[str, Sequence[Path]], source: Mapping[str, Any]) -> dict[str, StyleResult]:
    from rolellm.scoring.style import measure_file_style

    try:
        return measure_file_style(predictions, **source)
    except (MissingExtraError, DataError) as error:
        sys.stderr.write(f"note: style is not measured: {error}\n")
        return {}


def _has_baseline(rows: Any) -> bool:
    return "rolegpt" in rows.column_names and any(rows["rolegpt"])


def _judge(
    folder: Path,
    answers: Mapping[str, Any],
    rows: Any,
    judge: LLM,
    baseline: str | None,
    own: OwnTurns | None = None,
    changes: tuple[PairTest, ...] = (),
) -> tuple[JudgingResult, PageContent]:
    """Have the answers judged, and lay out the page of the verdicts."""
    from rolellm.judging.records import read_run
    from rolellm.judging.run import judge as run_judge
    from rolellm.reporting.build import ReportSources, build_report
    from rolellm.reporting.settings import ReportOptions

    options = {} if baseline is None else {"baseline": baseline}
    judged = run_judge(answers, rows, llm=judge, out=folder / "judged", **options)
    # A judging run names its own rows.
    options_without_rows = read(ReportOptions, {"protocol": "rouge-score"})
    built = build_report(ReportSources([read_run(folder / "judged")], own=own, changes=changes), options_without_rows)
    return judged, built.content
