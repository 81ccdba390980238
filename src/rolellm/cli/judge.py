"""``rolellm judge``: answers ranked by a language model, blind, in several orders, with canaries among them."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rolellm.cli.llm_options import estimate_if_dry, make_llm
from rolellm.cli.options import AnsweredSplit, AsJson, Config, with_options
from rolellm.cli.output import present_result, print_result, resumable, say, show_table
from rolellm.core.sanitize import make_visible
from rolellm.core.settings import dump
from rolellm.judging.settings import JudgingSettings
from rolellm.llm.llm import CallOptions, ModelOptions

if TYPE_CHECKING:
    from rolellm.judging.result import JudgingResult
    from rolellm.llm.llm import LLM


@with_options
def run_judge(
    context: typer.Context,
    model_options: ModelOptions,
    call_options: CallOptions,
    settings: JudgingSettings,
    files: Annotated[list[str] | None, typer.Argument(metavar="[NAME=]P.jsonl...")] = None,
    config: Config = None,
    out: Path | None = None,
    split: AnsweredSplit = None,
    certify: bool = False,
    as_json: AsJson = False,
) -> None:
    """Have a language model rank answers, blind and in several orders.

    Gives win rates, average ranks, and the judge's measured biases.

    Args:
        files: Predictions of each system; files with the same NAME are joined.
        out: Run folder; by default judge-CONFIG or certificate-MODEL.
        certify: Examine the judge itself; later win rates show the result.
    """
    from rolellm.core.errors import JudgingError, SettingsError
    from rolellm.core.jsonl import read_json
    from rolellm.judging.records import RESULT
    from rolellm.judging.result import JudgingResult
    from rolellm.judging.run import Judging, join_predictions, judge
    from rolellm.judging.systems import parse_sources
    from rolellm.runs import estimate_step
    from rolellm.scoring.predictions import complete_source

    llm = make_llm(model_options, call_options)
    if certify:
        if files:
            raise SettingsError("--certify judges replies of the dataset; name no files")
        _certify(context, llm, settings, f"{config or 'sample'}/{split or 'test'}", as_json)
        return
    if not files:
        raise SettingsError("no predictions to judge; name their files, or examine the judge itself with --certify")
    answers = parse_sources(files)
    named = (path for paths in answers.values() for path in paths)
    config, split, data_dir = complete_source(named, config, split, settings.data_dir)
    settings, data = replace(settings, data_dir=data_dir), f"{config}/{split}"
    if llm.dry_run:
        comparison, dataset, _ = join_predictions(answers, data, settings)
        present_result(estimate_step(Judging(comparison, settings, dataset), llm), as_json)
        return
    folder = out or Path(f"judge-{config}")
    try:
        with resumable(context):
            result = judge(answers, data, llm=llm, out=folder, **dump(settings))
    except JudgingError:
        _print(JudgingResult.from_dict(read_json(folder / RESULT), folder / RESULT), folder, as_json)
        raise
    _print(result, folder, as_json)


def _certify(context: typer.Context, llm: LLM, settings: JudgingSettings, data: str, as_json: bool) -> None:
    from rolellm.core.text import make_safe_name
    from rolellm.judging.certifying import certify, prepare_certifying

    estimate_if_dry(context, prepare_certifying(data, settings), llm)
    model = (llm.settings.endpoints or llm.models)[0].name.rpartition("/")[2]
    folder = context.params["out"] or Path(make_safe_name(f"certificate-{model}"))
    with resumable(context):
        certificate = certify(llm, data, out=folder, **dump(settings))
    present_result(certificate, as_json)


def _print(result: JudgingResult, folder: Path, as_json: bool) -> None:
    print_result(result, show_result, as_json)
    if not as_json:
        run = make_visible(shlex.quote(str(folder)))
        typer.echo(f"Next: rolellm report {run}   or, to judge some yourself: rolellm label {run}")


def show_result(result: JudgingResult) -> None:
    """Print it: first what a reader must know before the figures."""
    from rolellm.reporting.tables import bias_table, main_table

    for problem in result.problems:
        typer.echo(make_visible(f"warning: {problem}"))
    for line in result.certificates:
        say(line)
    against = f"against {result.baseline}" if result.baseline else "without a baseline"
    title, result = f"{result.rows:,} rows, {against}", result.leading
    for table in (main_table(title, {}, result, None), bias_table(result)):
        if table.rows:
            show_table(table)
    missing = result.diagnostics.unscored
    typer.echo(f"No verdict: {missing.count:,} of {missing.of:,} ({missing.share or 0:.2%})")
