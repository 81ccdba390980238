"""``rolellm judge``: answers ranked by a language model, blind, in several orders, with canaries among them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rolellm.cli.llm_options import make_llm, stop_if_dry
from rolellm.cli.options import AsJson, with_options
from rolellm.cli.output import print_result, print_sentences
from rolellm.core.result import Result
from rolellm.core.settings import dump
from rolellm.judging.settings import JudgingSettings
from rolellm.llm.llm import CallOptions, ModelOptions

if TYPE_CHECKING:
    from rolellm.llm.llm import LLM


@with_options
def run_judge(
    model_options: ModelOptions,
    call_options: CallOptions,
    settings: JudgingSettings,
    files: Annotated[list[str] | None, typer.Argument(metavar="[NAME=]P.jsonl")] = None,
    out: Path | None = None,
    certify: bool = False,
    as_json: AsJson = False,
) -> Result:
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
    from rolellm.reporting.build import answer_judging
    from rolellm.scoring.predictions import complete_source

    llm = make_llm(model_options, call_options)
    if certify:
        if files:
            raise SettingsError("--certify judges replies of the dataset; name no files")
        return _certify(llm, settings, out)
    if not files:
        raise SettingsError("no predictions to judge; name their files, or examine the judge itself with --certify")
    answers = parse_sources(files)
    named = (path for paths in answers.values() for path in paths)
    config, split, data_dir = complete_source(named, settings.config, settings.split, settings.data_dir)
    settings = replace(settings, config=config, split=split, data_dir=data_dir)
    if llm.dry_run:
        comparison, dataset, _ = join_predictions(answers, None, settings)
        stop_if_dry(Judging(comparison, settings, dataset), llm)
    folder = out or Path(f"judge-{config}")
    try:
        result = judge(answers, llm=llm, out=folder, **dump(settings))
    except JudgingError:
        print_result(JudgingResult.from_dict(read_json(folder / RESULT), folder / RESULT), as_json)
        raise
    if not as_json:
        print_sentences(answer_judging(result))
    return result


def _certify(llm: LLM, settings: JudgingSettings, out: Path | None) -> Result:
    from rolellm.core.text import make_safe_name
    from rolellm.judging.certifying import certify, prepare_certifying

    stop_if_dry(prepare_certifying(None, settings), llm)
    model = (llm.settings.endpoints or llm.models)[0].name.rpartition("/")[2]
    folder = out or Path(make_safe_name(f"certificate-{model}"))
    return certify(llm, out=folder, **dump(settings))
