"""Draw general instructions for roles from instruction datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rolellm.cli.options import AsJson, with_options
from rolellm.cli.output import print_json, print_table
from rolellm.construct.settings import SampleSettings
from rolellm.core.errors import SettingsError
from rolellm.core.sanitize import label

app = typer.Typer(help=__doc__, no_args_is_help=True)


@app.command()
@with_options
def sample(
    datasets: Annotated[list[str], typer.Argument(metavar="DATASET…")],
    out: Path,
    settings: SampleSettings,
    count: Annotated[list[int] | None, typer.Option(min=1)] = None,
    split: str | None = None,
    instruction_column: str | None = None,
    target_column: str | None = None,
    overwrite: bool = False,
    as_json: AsJson = False,
) -> None:
    """Draw instructions with their role-free answers, capped in length and without near-duplicates.

    Args:
        datasets: Files or folders (JSON, JSON Lines, CSV, Parquet), or OWNER/NAME[:CONFIG] on the Hub.
        out: The file to write, JSON Lines.
        count: How many in all; repeated, how many from each DATASET. [default: 1500]
        split: Split of folders and Hub datasets; defaults to train.
        instruction_column: Detected by its usual names by default.
        target_column: Detected by its usual names by default.
        overwrite: Replace the file at --out.
    """
    from rolellm.construct.instructions import read_source, sample_instructions

    if out.exists() and not overwrite:
        raise SettingsError(f"{out} exists already; choose another file, or use --overwrite")
    if out.exists() and any(Path(name).exists() and out.samefile(name) for name in datasets):
        raise SettingsError(f"--out {out} is one of the datasets to draw from; name another file")
    counts = _counts(count or [1500], len(datasets))
    sources = [
        read_source(name, split=split, instruction_column=instruction_column, target_column=target_column)
        for name in datasets
    ]
    drawn = sample_instructions(sources, counts, settings)
    meta = drawn.write(out)
    summary = {"out": str(out), "manifest": str(meta), **drawn.summary()}
    if as_json:
        print_json(summary)
        return
    rows = []
    for item in summary["sources"]:
        lost = ", ".join(f"{name.replace('_', ' ')} {number:,}" for name, number in item["dropped"].items()) or "none"
        rows.append((label(item["name"], 40), item["rows"], lost, f"{item['drawn']:,} of {item['asked']:,}"))
    title = f"{summary['drawn']:,} {'Chinese' if drawn.settings.language == 'zh' else 'English'} instructions in {out}"
    print_table(title, ("data set", "rows", "left out", "drawn"), rows)
    if summary["drawn"] < summary["asked"]:
        typer.echo("note: fewer than requested; see what was left out", err=True)


def _counts(given: list[int], datasets: int) -> list[int]:
    if len(given) == datasets:
        return given
    if len(given) > 1:
        raise SettingsError(f"{len(given)} counts for {datasets} data sets; give one for all of them, or one for each")
    if given[0] < datasets:
        raise SettingsError(f"{given[0]} instructions from {datasets} data sets; ask for at least one from each")
    # The first ones take what does not go round.
    share, rest = divmod(given[0], datasets)
    return [share + (number < rest) for number in range(datasets)]
