"""``rolellm compare``: two judging runs, or two files of predictions, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rolellm.cli.output import ABSENT, estimate_text, print_json, print_table

if TYPE_CHECKING:
    from rolellm.evaluation.settings import ScoreOptions
    from rolellm.judging.compare import RunSide

_NAME, _VALUE, _TEXT = 40, 60, 300


def compare(
    first: Annotated[
        str, typer.Argument(metavar="RUN_A", help="Folder of a judging run, or a prediction file (P.jsonl).")
    ],
    second: Annotated[str, typer.Argument(metavar="RUN_B", help="A second one of the same kind.")],
    pairs: Annotated[
        list[str] | None,
        typer.Option("--pair", metavar="NAME_A=NAME_B", help="Also compare these two systems; may be repeated."),
    ] = None,
    top: Annotated[int, typer.Option("--top", min=0, help="Number of most-changed questions to show.")] = 10,
    rouge: Annotated[
        bool, typer.Option("--rouge/--no-rouge", help="For judging runs, also compare Rouge-L of changed answers.")
    ] = True,
    config: Annotated[
        str | None, typer.Option("--config", help="For predictions: config of the dataset, such as sample.")
    ] = None,
    split: Annotated[str, typer.Option("--split", help="For predictions: split of the dataset.")] = "test",
    protocol: Annotated[
        str, typer.Option("--protocol", help="Rouge-L protocol: rouge-score (F1) or paper (recall).")
    ] = "rouge-score",
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="A local copy of the release; else $ROLEBENCH_DIR, else the Hub.")
    ] = None,
    resamples: Annotated[int, typer.Option("--resamples", min=1, help="Bootstrap resamples over questions.")] = 2000,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Random seed for the bootstrap.")] = 0,
    processes: Annotated[int, typer.Option("--processes", min=1, help="Processes that compute Rouge-L.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Show what changed between two runs, what is significant, and which questions changed most."""
    from rolellm.core.settings import read
    from rolellm.evaluation.settings import ScoreOptions
    from rolellm.judging.compare import CompareOptions
    from rolellm.judging.compare import compare as run

    # Row scores alone are wanted of it: the intervals are the comparison's own.
    values = {"protocol": protocol, "config": config, "split": split, "resamples": 1, "processes": processes}
    score = read(ScoreOptions, values)
    options = CompareOptions(_pairs(pairs or []), top, resamples, seed, rouge, score)
    sides = _sides(first, second, config, data_dir, score)
    result = run(*sides, options)
    if as_json:
        print_json(result)
    else:
        _print(result)


def _pairs(given: Sequence[str]) -> list[tuple[str, str]]:
    from rolellm.core.errors import SettingsError

    found = []
    for text in given:
        before, equals, after = text.partition("=")
        if not (before and equals and after):
            raise SettingsError(f"--pair {text}: expected NAME_A=NAME_B, a system of the first run and of the second")
        found.append((before, after))
    return found


def _sides(
    first: str, second: str, config: str | None, data_dir: Path | None, score: ScoreOptions
) -> tuple[RunSide, RunSide]:
    from rolellm import dataset_fingerprint, load_rolebench
    from rolellm.core.errors import SettingsError
    from rolellm.evaluation.rows import rows_of
    from rolellm.judging.compare import judged_side, scored_side

    files = [path for path in (first, second) if Path(path).is_file()]
    if not files:
        return judged_side(first), judged_side(second)
    if len(files) == 1:
        raise SettingsError(
            f"{files[0]} is a file and the other is not; give two folders of judging runs, or two files of predictions"
        )
    if config is None:
        raise SettingsError("two prediction files need their dataset; add --config, such as --config sample")
    rows = rows_of(load_rolebench(config, score.split or "test", data_dir=data_dir))
    score = replace(score, dataset_fingerprint=dataset_fingerprint(config, data_dir))
    return scored_side(first, rows, score), scored_side(second, rows, score)


def _print(result: Mapping[str, Any]) -> None:
    from rolellm.core.sanitize import label, visible

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
    from rolellm.core.sanitize import label

    names = dict.fromkeys((one["system"], one["system_b"]))
    return " → ".join(label(name, _NAME) for name in names)


def _value(value: Any) -> str:
    import json

    from rolellm.core.sanitize import label

    if value is None:
        return ABSENT
    return label(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), _VALUE)


def _print_move(number: int, move: Mapping[str, Any]) -> None:
    from rolellm.core.sanitize import label

    before, after = (f"{move[key]:.4g}" for key in ("before", "after"))
    typer.echo(f"\n{number}. {_system(move)}, {move['measure'].replace('_', ' ')} {before} → {after}")
    typer.echo(f"   {label(move['role'], _NAME)}: {label(move['question'], _TEXT)} ({label(move['row'], _NAME)})")
    if move["same_answer"]:
        typer.echo(f"   A and B: {_answer(move['answer_before'])}")
    else:
        typer.echo(f"   A: {_answer(move['answer_before'])}\n   B: {_answer(move['answer_after'])}")


def _answer(text: str | None) -> str:
    from rolellm.core.sanitize import label

    return ABSENT if text is None else label(text, _TEXT)
