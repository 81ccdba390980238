"""``rolellm judge``: answers ranked by a language model, blind, in several orders, with canaries among them."""

from __future__ import annotations

import functools
import operator
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rolellm.cli.llm_options import AskedModel, language_model, show_estimate
from rolellm.cli.options import AsJson, Config, Split, with_options
from rolellm.cli.output import print_json, show_table
from rolellm.core.sanitize import visible
from rolellm.core.settings import dump
from rolellm.judging.settings import JudgingSettings

if TYPE_CHECKING:
    from rolellm.judging.figures import JudgingResult


@with_options
def judge(
    context: typer.Context,
    files: Annotated[list[str], typer.Argument(metavar="[NAME=]P.jsonl...")],
    config: Config,
    asked: AskedModel,
    settings: JudgingSettings,
    out: Path | None = None,
    split: Split = "test",
    as_json: AsJson = False,
) -> None:
    """Have a language model rank answers by style and role knowledge: win rate, average rank, and measured biases.

    Args:
        files: Predictions of each system; files with the same NAME are joined.
        out: Run folder; defaults to judge-CONFIG.
    """
    from rolellm.cli.output import resumable
    from rolellm.core.errors import JudgingError
    from rolellm.core.jsonl import read_json
    from rolellm.judging.figures import JudgingResult
    from rolellm.judging.folder import RESULT
    from rolellm.judging.run import compared, judging_requests
    from rolellm.judging.run import judge as run
    from rolellm.judging.systems import parse_sources

    llm, answers, data = language_model(asked), parse_sources(files), f"{config}/{split}"
    if llm.dry_run:
        comparison, _, _ = compared(answers, data, settings)
        # With a jury, once for each judge model.
        jury = llm.settings.endpoints if settings.jury else [None]
        every = [llm.estimate(judging_requests(comparison, settings), one) for one in jury]
        show_estimate(functools.reduce(operator.add, every), as_json)
        return
    folder = out or Path(f"judge-{config}")
    try:
        with resumable(context):
            result = run(answers, data, llm=llm, out=folder, **dump(settings))
    except JudgingError:
        _print(JudgingResult.from_dict(read_json(folder / RESULT), folder / RESULT), folder, as_json)
        raise
    _print(result, folder, as_json)


def _print(result: JudgingResult, folder: Path, as_json: bool) -> None:
    if as_json:
        print_json(result.to_dict())
        return
    show_result(result)
    run = visible(shlex.quote(str(folder)))
    typer.echo(f"Next: rolellm report {run}   or, to judge some yourself: rolellm label {run}")


def show_result(result: JudgingResult) -> None:
    """Print it: first what a reader must know before the figures."""
    from rolellm.report.judged import bias_table, main_table
    from rolellm.report.score_table import to_rich

    for problem in result.problems:
        typer.echo(visible(f"warning: {problem}"))
    against = f"against {result.baseline}" if result.baseline else "without a baseline"
    title = f"{result.rows:,} rows, {against}; 95 % intervals"
    for table in (main_table(title, {}, result, None), bias_table(result)):
        if table.rows:
            show_table(to_rich(table, digits=3))
    missing = result.diagnostics.unscored
    typer.echo(f"No verdict: {missing.count:,} of {missing.of:,} ({missing.share or 0:.2%})")
