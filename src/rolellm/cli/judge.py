"""``rolellm judge``: answers ranked by a language model, blind, in several orders, with canaries among them."""

from __future__ import annotations

import functools
import operator
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from rolellm.cli.llm_options import LLM, show_estimate, takes_llm
from rolellm.cli.options import from_settings
from rolellm.cli.output import estimate_text, print_json, print_table
from rolellm.core.sanitize import label, visible
from rolellm.core.settings import dump
from rolellm.judging.settings import JudgingSettings


@from_settings
@takes_llm
def judge(
    context: typer.Context,
    files: Annotated[
        list[str],
        typer.Argument(metavar="[NAME=]P.jsonl...", help="Predictions of each system; files of one NAME are joined."),
    ],
    config: Annotated[str, typer.Option("--config", help="Config of the dataset, such as sample.")],
    llm: LLM,
    settings: JudgingSettings,
    out: Annotated[Path | None, typer.Option("--out", help="Run folder; defaults to judge-CONFIG.")] = None,
    split: Annotated[str, typer.Option("--split", help="Split of the dataset.")] = "test",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Have a language model rank answers by style and role knowledge: win rate and average rank, biases measured."""
    from rolellm.cli.output import resumable
    from rolellm.core.errors import JudgingError
    from rolellm.judging.folder import RESULT, read_json
    from rolellm.judging.run import judge as run
    from rolellm.judging.systems import parse_sources

    answers = {source.name: list(source.paths) for source in parse_sources(files)}
    data = f"{config}/{split}"
    if llm.dry_run:
        _estimate(llm, answers, data, settings, as_json=as_json)
        return
    folder = out or Path(f"judge-{config}")
    try:
        with resumable(context):
            result = run(answers, data, llm=llm, out=folder, **dump(settings)).to_dict()
    except JudgingError:
        _print(read_json(folder / RESULT), folder, as_json)
        raise
    _print(result, folder, as_json)


def _print(result: dict[str, Any], folder: Path, as_json: bool) -> None:
    if as_json:
        print_json(result)
        return
    show_result(result)
    run = visible(shlex.quote(str(folder)))
    typer.echo(f"Next: rolellm report {run}   or, to judge some yourself: rolellm label {run}")


def _estimate(llm: LLM, answers: Mapping[str, Any], data: str, settings: JudgingSettings, *, as_json: bool) -> None:
    """What it would take; with a jury, once for each judge model."""
    from rolellm.judging.ask import requests
    from rolellm.judging.judge_models import DEFAULT_JUDGES, load_judges
    from rolellm.judging.orders import planned
    from rolellm.judging.run import choose, judging_options

    options, comparison = judging_options(settings), choose(answers, data, settings).comparison
    asks = planned(comparison, load_judges(settings.judges or DEFAULT_JUDGES), options.design)
    asked = llm.settings.endpoints if settings.jury else [None]
    every = [llm.estimate(requests(comparison, asks, options), one) for one in asked]
    show_estimate(functools.reduce(operator.add, every), as_json)


_NAME = 40


def show_result(result: Mapping[str, Any]) -> None:
    """Print it: first what a reader must know before the figures."""
    for problem in result["problems"]:
        typer.echo(visible(f"warning: {problem}"))
    pairs = [model for model in result["models"] if model["pairwise"] is not None]
    lists = [model for model in result["models"] if model["listwise"] is not None]
    if pairs:
        columns = ("", "win rate %", "length-controlled %", "won, tied, lost %", "orders agree %", "rows")
        against = label(str(result["baseline"]), _NAME)
        print_table(f"Against {against}, in both orders, ties as half, with 95 % intervals", columns, map(_pair, pairs))
    if lists:
        heads = ("", "average rank", "above the baseline %", "strength, log-odds", "rows")
        print_table("In lists of all", heads, map(_list, lists))
    for line in _lines(result):
        typer.echo(visible(line))


def _pair(model: Mapping[str, Any]) -> tuple[str, ...]:
    found = model["pairwise"]
    if found["win_rate"] is None:
        return _name(model), "withheld", "", "", _percent(found["consistency"]), ""
    outcomes = ", ".join(f"{100 * found[name]:.1f}" for name in ("wins", "ties", "losses"))
    return (
        _name(model),
        _percent(found["win_rate"]),
        _percent(found["lc_win_rate"]),
        outcomes,
        _percent(found["consistency"]),
        f"{found['win_rate']['n']:,}",
    )


def _list(model: Mapping[str, Any]) -> tuple[str, ...]:
    found = model["listwise"]
    rows = f"{found['average_rank']['n']:,}"
    return (
        _name(model),
        estimate_text(found["average_rank"]),
        _percent(found["win_rate"]),
        estimate_text(found["strength"]),
        rows,
    )


def _name(model: Mapping[str, Any]) -> str:
    flagged = " (judged by its own family)" if model["self_judged_by"] else ""
    return f"{label(model['name'], _NAME)}{' (baseline)' if model['kind'] == 'baseline' else ''}{flagged}"


def _lines(result: Mapping[str, Any]) -> Iterator[str]:
    found = result["diagnostics"]
    place, length, names = found["position"]["pairwise"], found["length"], found["name"]
    if place is not None:
        yield (
            f"place: the answer shown first won {_percent(place['first_preferred'])} % (50: no bias); "
            f"both orders agreed in {_percent(place['consistency'])} %"
        )
    if length["longer_preferred"] is not None:
        yield f"length: the longer answer won {_percent(length['longer_preferred'])} % (50: no bias)"
    if names is not None and names["changed"] is not None:
        yield f"names: shown to the judge, they changed {_percent(names['changed'])} % of {names['probes']:,} outcomes"
    missing = found["unscored"]
    yield f"no verdict: {missing['count']:,} of {missing['of']:,} ({missing['share']:.2%})"


def _percent(value: Mapping[str, Any] | None) -> str:
    return estimate_text(value, scale=100, digits=1)
