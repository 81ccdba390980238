"""``rolellm eval``: answers, scores, style and verdicts of one or several models, in one folder with one page."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolellm.core.errors import DataError, MissingExtraError, SettingsError
from rolellm.core.files import open_atomic, write_json
from rolellm.core.folders import name_call, use_working_folder
from rolellm.core.locks import lock_folder
from rolellm.core.result import Result
from rolellm.core.settings import Advanced, Field, dump, read, settings, suggest_keywords
from rolellm.core.table import PERCENT, Format, Table, TableRow
from rolellm.core.text import make_safe_name
from rolellm.models.local_model import DType

if TYPE_CHECKING:
    from rolellm.judging.result import JudgingResult
    from rolellm.reporting.page import PageContent
    from rolellm.scoring.score_report import ScoreReport
    from rolellm.scoring.style import StyleResult

_SETTINGS_FILES = (".yaml", ".yml", ".json")
#: The released baseline, which every judged model is compared with where the rows have its replies.
BASELINE = "RoleGPT (released)"


@settings
class EvalSettings:
    """Answers and scores.

    Attributes:
        config: Config of RoleBench; by default the only one of the data folder, else instruction-generalization-eng.
        split: Split to answer.
        data_dir: A local copy of the release, or a data set of your own.
        limit: Answer only N rows, drawn evenly from roles and subsets, for a first look; a larger N keeps them.
        max_new_tokens: Maximum tokens per reply.
        temperature: Sampling temperature; 0 is greedy. The paper's replies use 0.7.
        dtype: The weights' type of local models; bfloat16 is several times faster on a CPU with AMX.
    """

    config: str | None = None
    split: Advanced[str] = "test"
    data_dir: Path | None = None
    limit: int | None = Field(default=None, ge=1)
    max_new_tokens: Advanced[int] = Field(default=200, ge=1)
    temperature: float = Field(default=0.0, ge=0)
    dtype: Advanced[DType] = "auto"


@dataclass(frozen=True, slots=True, repr=False)
class EvalResult(Result):
    """What an evaluation found.

    Attributes:
        out: Its folder: ``answers/NAME.jsonl``, ``NAME.score.json``, ``judged/``, ``report.html``, ``eval.json``.
        page: The report.
        findings: What was found, in sentences.
        reports: Each system's scores.
        style: Each system's share of replies in the style of their role, where the meter could be trained.
        judged: What the judge found, where there is one.
        content: What the report shows.
    """

    out: Path
    page: Path
    findings: tuple[str, ...]
    reports: Mapping[str, ScoreReport]
    style: Mapping[str, StyleResult] = field(default_factory=dict)
    judged: JudgingResult | None = None
    content: PageContent = field(kw_only=True, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Return findings, metrics, style and the judge's result as one JSON object."""
        return {
            "out": str(self.out),
            "report": str(self.page),
            "findings": list(self.findings),
            "metrics": {name: report.to_dict()["metrics"] for name, report in self.reports.items()},
            "style": {name: style.to_dict() for name, style in self.style.items()},
            "judged": None if self.judged is None else self.judged.to_dict(),
        }

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame`` with a row for each system, part and metric."""
        import pandas

        frames = [report.to_pandas().assign(system=name) for name, report in self.reports.items()]
        return pandas.concat(frames, ignore_index=True)

    def tables(self) -> tuple[Table]:
        """Build the table of the systems."""
        from rolellm.scoring.score_report import METRICS

        columns: list[str] = [*METRICS, "avg"]
        rows = {}
        for name, report in self.reports.items():
            metrics = report.leading.metrics
            rows[name] = [metrics.get(column) for column in columns]
        formats = {column: Format(3) for column in columns}
        if self.judged:
            columns.append("win rate %")
            formats["win rate %"] = PERCENT
            wins = {system.name: system.measures().get("win_rate") for system in self.judged.leading.models}
            for name, cells in rows.items():
                cells.append(wins.get(name))
        recipe = next(iter(self.reports.values())).recipe
        lines = tuple(TableRow((name,), tuple(cells)) for name, cells in rows.items())
        return (Table("Systems", ("System",), tuple(columns), lines, recipe, formats),)

    def remarks(self) -> Sequence[str]:
        """Return the findings."""
        return self.findings

    def plot(self, path: str | Path) -> Path:
        """Save the picture that the report opens with as an SVG file: each system's figures with their intervals.

        Args:
            path: The file to write.
        """
        picture = self.content.parts[0].draw_overview()[0]
        target = Path(path)
        with open_atomic(target) as stream:
            stream.write(picture)
        return target

    def _repr_html_(self) -> str:
        pictures = self.content.parts[0].draw_overview()
        return "\n".join([Result._repr_html_(self), *pictures])


@suggest_keywords(EvalSettings)
def evaluate(
    models: str | Path | Sequence[str | Path] | Mapping[str, Any],
    *,
    judge: Any = None,
    out: str | Path | None = None,
    **options: Any,
) -> EvalResult:
    """Answer, score and judge: everything that RoleBench says of models, in one call that can be repeated to continue.

    The numbers are those of `rolellm.generate`, `rolellm.score`, `rolellm.style` and `rolellm.judge`, which this calls.

    Args:
        models: One model or several: a folder with a model, an adapter or a training run; a Hub id; or a settings file
            of endpoints (``llm.yaml``). A mapping gives names, and so does ``NAME=MODEL``.
        judge: Models that compare the answers: a settings file, a dict, or `rolellm.LLM`.
        out: The folder; by default a new temporary one. With the folder of an earlier call, what is there is kept.
        options: Any field of `EvalSettings`.

    Raises:
        SettingsError: For unknown options, no model, or two of one name.
        ModelError: When a model cannot be loaded, or a prompt leaves no room for a reply.
        StoppedShortError: On Ctrl-C, at the budget or with a full disk; nothing that is done is lost.
        EndpointError: When no endpoint answers.
    """
    chosen = read(EvalSettings, options)
    systems = name_systems(models)
    with use_working_folder("eval", out) as folder, lock_folder(folder), name_call(folder):
        return _evaluate(folder, systems, judge, chosen)


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


def _evaluate(folder: Path, systems: Mapping[str, Any], judge: Any, chosen: EvalSettings) -> EvalResult:
    from rolellm.data.rolebench.source import resolve_config
    from rolellm.judging.records import read_run
    from rolellm.reporting.build import ReportSources, build_report
    from rolellm.reporting.findings import describe_styles
    from rolellm.reporting.page import write_page
    from rolellm.reporting.settings import ReportOptions

    config = resolve_config(chosen.config, chosen.data_dir)
    source: dict[str, Any] = {"config": config, "split": chosen.split, "data_dir": chosen.data_dir}
    rows = _load_rows(limit=chosen.limit, **source)
    if judge is not None and len(systems) == 1 and not _has_baseline(rows):
        raise SettingsError(
            "a judge compares two systems, and these rows have no released baseline; name a second model, such as the "
            "base: before=BASE"
        )
    files = {name: folder / "answers" / f"{make_safe_name(name)}.jsonl" for name in systems}
    for name, model in systems.items():
        sys.stderr.write(f"{name}: answering {len(rows):,} rows of {config}/{chosen.split}\n")
        _answer(model, rows, files[name], chosen)
    predictions = {name: [path] for name, path in files.items()}
    options = read(ReportOptions, {"protocol": "rouge-score", **source})
    content = build_report(ReportSources(predictions=predictions), options).content
    reports = {name: content.parts[0].scored[name] for name in systems}
    for name, scored in reports.items():
        write_json(folder / f"{make_safe_name(name)}.score.json", scored.to_dict())
    style = _measure_style(predictions, source)
    judged = None
    if judge is not None:
        judged = _judge(folder / "judged", files, rows, judge)
        # A judging run names its own rows.
        options = read(ReportOptions, {"protocol": "rouge-score"})
        content = build_report(ReportSources([read_run(folder / "judged")]), options).content
    content = replace(content, findings=[*content.findings, *describe_styles(style)])
    findings = tuple(content.sentences)
    page = write_page(folder / "report.html", content)
    result = EvalResult(folder, page, findings, reports, style, judged, content=content)
    sources = {name: str(model) for name, model in systems.items()}
    write_json(folder / "eval.json", {"settings": dump(chosen), "systems": sources, **result.to_dict()})
    return result


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


def _answer(model: Any, rows: Any, path: Path, chosen: EvalSettings) -> None:
    from rolellm.scoring.generate import generate

    options: dict[str, Any] = {"max_new_tokens": chosen.max_new_tokens, "temperature": chosen.temperature}
    if chosen.data_dir is not None:
        options["data_dir"] = chosen.data_dir
    path.parent.mkdir(parents=True, exist_ok=True)
    if str(model).endswith(_SETTINGS_FILES):
        generate(None, rows, llm=str(model), out=path, **options)
    else:
        generate(model, rows, out=path, dtype=chosen.dtype, **options)


def _measure_style(predictions: Mapping[str, Sequence[Path]], source: Mapping[str, Any]) -> dict[str, StyleResult]:
    from rolellm.scoring.style import measure_file_style

    try:
        return measure_file_style(predictions, **source)
    except (MissingExtraError, DataError) as error:
        sys.stderr.write(f"note: style is not measured: {error}\n")
        return {}


def _has_baseline(rows: Any) -> bool:
    return "rolegpt" in rows.column_names and any(rows["rolegpt"])


def _judge(out: Path, files: Mapping[str, Path], rows: Any, judge: Any) -> JudgingResult:
    from rolellm.judging.run import judge as run_judge

    predictions: dict[str, Any] = dict(files)
    options: dict[str, Any] = {}
    if _has_baseline(rows):
        predictions[BASELINE] = rows.rename_column("rolegpt", "prediction")
        options["baseline"] = BASELINE
    return run_judge(predictions, rows, llm=judge, out=out, **options)
