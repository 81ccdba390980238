"""``rolellm score``: CUS, RAW, SPE and avg of predictions, with intervals and the recipe behind them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from rolellm.core.records import Row
    from rolellm.evaluation.score import ScoreReport, Summary


def score(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="P.jsonl...", help="Predictions, or the release's baseline files; several count as one."
        ),
    ],
    config: Annotated[str, typer.Option("--config", help="Config of the data set, such as sample.")],
    split: Annotated[str, typer.Option("--split", help="Split of the data set.")] = "test",
    protocol: Annotated[
        str, typer.Option("--protocol", help="rouge-score (F1), or paper (recall, as in the published tables).")
    ] = "rouge-score",
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", help="Another tokenizer of the protocol, such as characters (Chinese).")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="A local copy of the release; else $ROLEBENCH_DIR, else the Hub.")
    ] = None,
    by_role: Annotated[bool, typer.Option("--by-role", help="Print a table by role, too.")] = False,
    rows_out: Annotated[
        Path | None, typer.Option("--rows-out", help="Write each row's score to this file, JSON Lines.")
    ] = None,
    resamples: Annotated[int, typer.Option("--resamples", min=1, help="Of the bootstrap over questions.")] = 2000,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the bootstrap.")] = 0,
    missing: Annotated[
        Literal["skip", "zero"], typer.Option("--missing", help="Rows without a prediction: leave out, or count as 0.")
    ] = "skip",
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Fail on unmatched rows or predictions, contradictions, and rows trained on."),
    ] = False,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Set bad lines of P.jsonl aside in P.bad.jsonl; count them.")
    ] = False,
    processes: Annotated[int, typer.Option("--processes", min=1, help="Processes that compute Rouge-L.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Score predictions: CUS, RAW, SPE and avg with 95 % intervals, unmatched rows counted, the recipe named."""
    from rolellm import dataset_fingerprint, load_rolebench
    from rolellm.cli.output import print_json, progress_bar
    from rolellm.core.jsonl import write_jsonl
    from rolellm.evaluation.predictions import read_predictions, select_rows
    from rolellm.evaluation.score import ScoreOptions
    from rolellm.evaluation.score import score as run

    options = ScoreOptions(
        protocol=protocol,
        tokenizer=tokenizer,
        config=config,
        split=split,
        missing=missing,
        strict=strict,
        resamples=resamples,
        seed=seed,
        processes=processes,
    )
    predictions = read_predictions(files, skip_bad=skip_bad)
    rows = select_rows(load_rolebench(config, split, data_dir=data_dir))
    options = options.of_data(dataset_fingerprint(config, data_dir))
    with progress_bar("Scoring") as progress:
        report = run(rows, predictions, options, progress=lambda done, total: progress("Scoring", done, total))
    if rows_out:
        write_jsonl(rows_out, (item.to_dict() for item in report.scores))
    for finding in report.findings:
        examples = "".join(f"\n  {example}" for example in finding.examples)
        typer.echo(f"{'warning' if finding.refused else 'note'}: {finding.text}{examples}", err=True)
    if as_json:
        print_json(report.to_dict())
    else:
        _print(report, rows, by_role=by_role)


def _print(report: ScoreReport, rows: Sequence[Row], *, by_role: bool) -> None:
    from rolellm.cli.output import show_table
    from rolellm.report.published import published_for
    from rolellm.report.score_table import published_table, summary_table, to_rich

    tables = [summary_table("Rouge-L, with 95 % intervals", "Rows", _parts(report), _note(report))]
    if by_role:
        tables.append(summary_table("By role", "Role", report.by_role))
    published = published_for(report.options.config, report.options.split, rows)
    if published and published.protocol == report.options.protocol:
        tables.append(published_table(published))
    for table in tables:
        show_table(to_rich(table))


def _note(report: ScoreReport) -> str:
    recipe = report.fingerprint
    tokenizers = ", ".join(dict.fromkeys(recipe["tokenizer"].values()))
    return (
        f"protocol {report.options.protocol} ({recipe['value']}, {recipe['reference_choice']}), tokenizer "
        f"{tokenizers}, {report.options.where}, fingerprint {recipe['hash'][:12]}"
    )


def _parts(report: ScoreReport) -> dict[str, Summary]:
    parts = {"all rows": report.metrics}
    parts |= {"rows not trained on": report.metrics_clean} if report.metrics_clean else {}
    parts |= {f"language {name}": summary for name, summary in report.by_language.items()}
    # Of role-specific rows there is SPE alone.
    return parts | {kind: {"SPE": summary["SPE"]} for kind, summary in report.by_kind.items()}
