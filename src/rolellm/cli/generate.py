"""``rolellm generate``: a local model, or models behind an API, answer a split of the benchmark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from rolellm.cli.llm_options import get_scripted_models
from rolellm.cli.options import Config, DataDir, Split, with_options
from rolellm.core.records import Subset
from rolellm.core.result import Result
from rolellm.core.settings import Advanced
from rolellm.llm.llm import LLM, CallOptions, PlayedOptions
from rolellm.scoring.settings import GenerateSettings


@with_options
def run_generate(
    model_options: PlayedOptions,
    call_options: CallOptions,
    out: Path,
    options: GenerateSettings,
    config: Config = None,
    split: Split = "test",
    data_dir: DataDir = None,
    roles: Annotated[list[str] | None, typer.Option("--role")] = None,
    subset: Advanced[Subset | None] = None,
    limit: Annotated[int | None, typer.Option(min=1)] = None,
) -> Result:
    """Answer a split of RoleBench with a local or a served model.

    An interrupted run continues where it stopped.

    Args:
        out: Predictions file, JSON Lines; continued if it exists.
        roles: Answer only this role; repeatable.
        subset: Answer only this subset.
        limit: Answer only N rows, drawn evenly from roles and subsets; a larger N keeps them.
    """
    from rolellm.scoring.predictions import explain_interrupt

    with explain_interrupt(out, "the same command"):
        # The imports take seconds, and Ctrl-C may come within them.
        from rolellm.scoring.generate import answer_rows, check_model, load_asked_rows, plan_row_requests
        from rolellm.scoring.rows import read_dataset_rows

        is_local = model_options.llm is None
        llm = None
        if not is_local or call_options.dry_run:
            llm = LLM.from_options(model_options, call_options, get_scripted_models())
        options = replace(
            options,
            model=model_options.model or "",
            config=config,
            split=split,
            data_dir=data_dir,
        )
        if is_local:
            # Fetching the data may take minutes: refuse what can be refused without it.
            check_model(options)
        options, table = load_asked_rows(options)
        rows = read_dataset_rows(table, roles or [], subset, limit, needed=("role", "question"))
        if llm is not None and llm.dry_run:
            return llm.estimate(plan_row_requests(rows, options)[0])
        return answer_rows(rows, out, options, llm)
