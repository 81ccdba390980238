"""``rolellm generate``: a local model, or models behind an API, answer a split of the benchmark."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from rolellm.cli.llm_options import scripted_models, show_estimate
from rolellm.cli.options import AsJson, Config, DataDir, Split, with_options
from rolellm.cli.output import print_json, resume_line, say
from rolellm.core.records import Subset
from rolellm.core.settings import settings
from rolellm.evaluation.settings import GenerateSettings
from rolellm.llm.llm import LLM, LLMOptions


@settings
class _Model(LLMOptions):
    """Model.

    Attributes:
        model: A folder with a model, adapter or run of `rolellm train`, or a Hub id; with --base-url, the model to ask
            there.
    """

    model: str | None = None


@with_options
def generate(
    context: typer.Context,
    asked: _Model,
    config: Config,
    out: Path,
    how: GenerateSettings,
    split: Split = "test",
    data_dir: DataDir = None,
    role: list[str] | None = None,
    subset: Subset | None = None,
    limit: Annotated[int | None, typer.Option(min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Answer a split of RoleBench with a local model, in batches, or with models behind an API.

    An interrupted run continues where it stopped.

    Args:
        out: Predictions file, JSON Lines; continued if it exists.
        role: Answer only this role; repeatable.
        subset: Answer only this subset.
        limit: Answer only the first N rows.
    """
    from rolellm.evaluation.resume import stopped_short
    from rolellm.runtime.threads import wait_briefly

    wait_briefly()

    untouched = resume_line(context, "--overwrite") if how.overwrite else None
    with stopped_short(out, resume_line(context), untouched=untouched):
        # The imports take seconds, and Ctrl-C may come within them.
        from rolellm import dataset_fingerprint, load_rolebench
        from rolellm.evaluation.generate import answer_rows, check, planned_requests
        from rolellm.evaluation.rows import rows_of

        remote = asked.llm_file or asked.base_url or asked.batch or asked.dry_run
        llm = LLM.from_options(asked, scripted_models()) if remote else None
        how = replace(how, model=asked.model or "", config=config, split=split, data_dir=data_dir)
        how = replace(how, ray=asked.ray, workers=asked.workers)
        if llm is None:
            # Fetching the data may take minutes: refuse what can be refused without it.
            check(how)
        rows = rows_of(
            load_rolebench(config, split, data_dir=data_dir), role or [], subset, limit, needed=("role", "question")
        )
        how = replace(how, dataset_fingerprint=dataset_fingerprint(config, data_dir))
        if llm is not None and llm.dry_run:
            show_estimate(llm.estimate(planned_requests(rows, how)[0]), as_json)
            return
        summary = answer_rows(rows, out, how, llm)
    if as_json:
        print_json(summary.to_dict())
        return
    if summary.capped:
        say(f"{summary.capped} rows had less than {how.max_new_tokens} tokens left in the model's context.", err=True)
    rate = summary.to_dict()["tokens_per_second"]
    speed = f" ({rate:,.0f} tokens/s)" if rate else ""
    say(
        f"{summary.rows} predictions in {out}, {summary.generated} of them new{speed}: {summary.stop} complete, "
        f"{summary.length} truncated at the token limit, {summary.empty} empty."
    )
    place = [] if data_dir is None else ["--data-dir", str(data_dir)]
    part = [] if split == "test" else ["--split", split]
    say(f"Score them with: {shlex.join(['rolellm', 'score', str(out), '--config', config, *part, *place])}")
