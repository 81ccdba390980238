"""``rolellm compare``: two judging runs, or two files of predictions, side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from rolellm.cli.options import AsJson, with_options
from rolellm.cli.output import ABSENT, estimate_text, print_json, print_table
from rolellm.core.sanitize import label, visible
from rolellm.judging.settings import CompareSettings

_NAME, _VALUE, _TEXT = 40, 60, 300


@with_options
def compare(
    first: Annotated[str, typer.Argument(metavar="RUN_A")],
    second: Annotated[str, typer.Argument(metavar="RUN_B")],
    settings: CompareSettings,
    as_json: AsJson = False,
) -> None:
    """Show what changed between two runs, what is significant, and which questions changed most.

    Args:
        first: Folder of a judging run, or a prediction file (P.jsonl).
        second: A second one of the same kind.
    """
    from rolellm.judging.compare import compare as run

    result = run(first, second, settings)
    if as_json:
        print_json(result)
    else:
        _print(result)


def _print(result: Mapping[str, Any]) -> None:
    for problem in result["problems"]:
        typer.echo(f"warning: {visible(problem)}", err=True)
    shared = result["shared"]
    typer.echo(visible(f"A: {result['a']['name']}\nB: {result['b']['name']}"))
    typer.echo(f"{shared['rows']:,} rows in both, {shared['questions']:,} questions")
    for side in ("a", "b"):
        if alone := shared[f"only_{side}"]:
            typer.echo(f"In {side.upper()} alone: {', '.join(label(name, _NAME) for name in alone)}")
    settings = [
        (label(one["name"], _NAME * 2), _value(one["before"]), _value(one["after"])) for one in result["settings"]
    ]
    if settings:
        print_table("What changed", ("setting", "A", "B"), settings)
    else:
        typer.echo("No setting differs.")
    if result["anonymous"]:
        typer.echo("A answered the fame-free twins of B: B - A is what the names add.")
    columns = ("system", "measure", "A", "B", "B - A", "p", "p adjusted (Holm)", "rows")
    title = "What is significant: on the rows of both, 95 % intervals, p by a paired permutation test over questions"
    print_table(title, columns, [_change(one) for one in result["changes"]])
    for number, move in enumerate(result["moved"], start=1):
        _print_move(number, move)


def _change(one: Mapping[str, Any]) -> tuple[str, ...]:
    percent = one["measure"] in ("win_rate", "lc_win_rate")
    scale, digits = (100, 1) if percent else (1, 2 if one["measure"] == "average_rank" else 4)
    names = {"win_rate": "win rate %", "lc_win_rate": "length-controlled %", "average_rank": "average rank"}
    values = (estimate_text(one[key], scale=scale, digits=digits) for key in ("before", "after", "difference"))
    tests = (ABSENT if one[key] is None else f"{one[key]:.4f}" for key in ("p", "p_adjusted"))
    rows = one["before"]["n"]
    return (_system(one), names.get(one["measure"], one["measure"]), *values, *tests, f"{rows:,}")


def _system(one: Mapping[str, Any]) -> str:
    names = dict.fromkeys((one["system"], one["system_b"]))
    return " → ".join(label(name, _NAME) for name in names)


def _value(value: Any) -> str:
    if value is None:
        return ABSENT
    return label(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), _VALUE)


def _print_move(number: int, move: Mapping[str, Any]) -> None:
    before, after = (f"{move[key]:.4g}" for key in ("before", "after"))
    typer.echo(f"\n{number}. {_system(move)}, {move['measure'].replace('_', ' ')} {before} → {after}")
    typer.echo(f"   {label(move['role'], _NAME)}: {label(move['question'], _TEXT)} ({label(move['row'], _NAME)})")
    before, after = (
        ABSENT if move[key] is None else label(move[key], _TEXT) for key in ("answer_before", "answer_after")
    )
    typer.echo(f"   A and B: {before}" if move["same_answer"] else f"   A: {before}\n   B: {after}")
