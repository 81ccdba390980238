"""``rolellm judge``: answers ranked by a language model, blind, in several orders, with canaries among them."""

from __future__ import annotations

import functools
import operator
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rolellm.cli.llm_options import LLM, show_estimate, takes_llm
from rolellm.cli.output import estimate_text, print_table
from rolellm.core.sanitize import label, visible

if TYPE_CHECKING:
    from rolellm.judging.ask import JudgingOptions
    from rolellm.judging.judge_models import Judge
    from rolellm.judging.systems import Entry
    from rolellm.judging.types import Contest


@takes_llm
def judge(
    context: typer.Context,
    files: Annotated[
        list[str],
        typer.Argument(metavar="[NAME=]P.jsonl...", help="Predictions, a contestant each; a NAME given twice is one."),
    ],
    config: Annotated[str, typer.Option("--config", help="Config of the data set, such as sample.")],
    llm: LLM,
    out: Annotated[Path | None, typer.Option("--out", help="The run's folder; by default judge-CONFIG.")] = None,
    split: Annotated[str, typer.Option("--split", help="Split of the data set.")] = "test",
    judges: Annotated[
        list[str] | None,
        typer.Option("--judge", help="role-list, role-pair, or a folder of your own; by default both that ship."),
    ] = None,
    jury: Annotated[
        bool, typer.Option("--jury", help="Each model of --llm judges everything, and the majority counts.")
    ] = False,
    baseline: Annotated[
        str, typer.Option("--baseline", help="rolegpt (the released replies), a contestant, a file, or none.")
    ] = "rolegpt",
    sample: Annotated[
        int | None, typer.Option("--sample", min=1, help="So many rows, drawn by seed; a larger sample holds it.")
    ] = None,
    roles: Annotated[list[str] | None, typer.Option("--role", help="Only rows of this role; may be repeated.")] = None,
    subset: Annotated[Literal["general", "role_specific"] | None, typer.Option("--subset", help="Only these.")] = None,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="A local copy of the release; else $ROLEBENCH_DIR, else the Hub.")
    ] = None,
    rotations: Annotated[int, typer.Option("--rotations", min=1, help="How often each list is shown, turned.")] = 2,
    name_probe: Annotated[
        int, typer.Option("--name-probe", min=0, help="Rows judged again with names shown, to see what they do.")
    ] = 50,
    canaries: Annotated[
        bool, typer.Option("--canaries/--no-canaries", help="A null model and an echo take part.")
    ] = True,
    shown: Annotated[int, typer.Option("--shown", min=1, help="Characters of an answer that a judge is shown.")] = 8000,
    max_unscored: Annotated[
        float, typer.Option("--max-unscored", min=0, max=1, help="The share of verdicts that may be missing.")
    ] = 0.01,
    resamples: Annotated[int, typer.Option("--resamples", min=1, help="Of the bootstrap over questions.")] = 2000,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the sample, the orders and the bootstrap.")] = 0,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Set bad lines of P.jsonl aside; count them.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Have a language model rank answers by style and role knowledge: win rate and average rank, biases measured."""
    from rolellm import dataset_fingerprint, load_rolebench
    from rolellm.cli.output import resumable
    from rolellm.core.errors import JudgingError
    from rolellm.evaluation.rows import rows_of
    from rolellm.judging.ask import JudgingOptions, make_jury
    from rolellm.judging.folder import RESULT, read_json
    from rolellm.judging.judge_models import DEFAULT_JUDGES, load_judges
    from rolellm.judging.orders import Design
    from rolellm.judging.result import ResultOptions
    from rolellm.judging.run import JudgingSetup, run_judging
    from rolellm.judging.systems import Entry, enter, parse_sources

    cards = load_judges(judges or DEFAULT_JUDGES)
    options = JudgingOptions(Design(rotations, name_probe, seed), shown)
    entry = Entry(parse_sources(files), baseline, canaries, sample, seed, f"{config}/{split}", skip_bad)
    rows = rows_of(load_rolebench(config, split, data_dir=data_dir), roles or (), subset)
    contest, findings = enter(rows, entry)
    for name, finding in findings:
        _note(name, str(finding))
    if llm.dry_run:
        _estimate(llm, contest, cards, options, jury=jury, as_json=as_json)
        return
    setup = JudgingSetup(
        config=config,
        split=split,
        dataset_fingerprint=dataset_fingerprint(config, data_dir),
        options=options,
        result=ResultOptions(resamples=resamples, seed=seed, max_unscored=max_unscored),
        run=llm.options,
        models=llm.settings.describe(),
        entry=_entry(entry, roles, subset),
    )
    folder = out or Path(f"judge-{config}")
    try:
        with resumable(context):
            result = run_judging(folder, contest, cards, make_jury(llm.models, each=jury), setup)
    except JudgingError:
        result = read_json(folder / RESULT)
        _print(result, folder, as_json)
        raise
    _print(result, folder, as_json)


def _print(result: dict[str, Any], folder: Path, as_json: bool) -> None:
    from rolellm.cli.output import print_json
    from rolellm.core.sanitize import visible

    if as_json:
        print_json(result)
        return
    # MOVED

    show_result(result)
    run = visible(shlex.quote(str(folder)))
    typer.echo(f"Go on with: rolellm report {run}   or, to judge some yourself: rolellm label {run}")


def _note(name: str, text: str) -> None:
    from rolellm.core.sanitize import visible

    typer.echo(f"note: {visible(f'{name}: {text}')}", err=True)


def _entry(entry: Entry, roles: Sequence[str] | None, subset: str | None) -> dict[str, Any]:
    """How rows and contestants were chosen, for the manifest; files are named by contestants."""
    return {
        "baseline": entry.baseline if entry.baseline in ("rolegpt", "none") else Path(entry.baseline).name,
        "canaries": entry.canaries,
        "sample": entry.sample,
        "seed": entry.seed,
        "roles": list(roles or ()),
        "subset": subset,
    }


def _estimate(
    llm: LLM, contest: Contest, cards: Sequence[Judge], options: JudgingOptions, *, jury: bool, as_json: bool
) -> None:
    """What it would take; with a jury, once for each juror."""
    from rolellm.judging.ask import requests
    from rolellm.judging.orders import planned

    asks = planned(contest, cards, options.design)
    asked = llm.settings.endpoints if jury else [None]
    every = [llm.estimate(requests(contest, asks, options), one) for one in asked]
    show_estimate(functools.reduce(operator.add, every), as_json)


# --- A judging run's result for the terminal: scores and what might have bent them, side by side


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
