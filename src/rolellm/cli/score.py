"""``rolellm score``: CUS, RAW, SPE and avg of predictions, or which role they sound like."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from rolellm.cli.options import AnsweredSplit, AsJson, Config, DataDir, with_options
from rolellm.cli.output import print_sentences
from rolellm.core.errors import SettingsError
from rolellm.core.result import Result
from rolellm.core.settings import dump
from rolellm.scoring.settings import ScoreOptions


@with_options
def run_score(
    options: ScoreOptions,
    files: Annotated[list[Path] | None, typer.Argument(metavar="P.jsonl")] = None,
    config: Config = None,
    split: AnsweredSplit = None,
    data_dir: DataDir = None,
    style: bool = False,
    as_json: AsJson = False,
) -> Result:
    """Score predictions by Rouge-L: CUS, RAW, SPE and avg.

    With 95 % intervals, by role too, the unmatched rows, and the recipe.

    Args:
        files: Predictions, or the release's baseline files; several count as one.
        style: Measure which role the replies sound like instead, next to the meter's accuracy on the references.
    """
    if style:
        from rolellm.scoring.style import style as measure_style

        return measure_style(files or [], config, split=split, data_dir=data_dir)
    if not files:
        raise SettingsError("no predictions to score; name their files")

    from rolellm.reporting.build import answer_scoring
    from rolellm.scoring.score import score

    options = replace(options, config=config, split=split, data_dir=data_dir)
    report = score(files, **dump(options))
    if not as_json:
        print_sentences(answer_scoring(report))
    return report
