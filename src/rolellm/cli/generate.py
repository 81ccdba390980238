"""``rolellm generate``: a local model answers a split of the benchmark."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from rolellm.cli.output import resume_line


def generate(
    context: typer.Context,
    model: Annotated[
        str, typer.Option("--model", help="A directory with a model, adapter or run of `rolellm train`; or a Hub id.")
    ],
    config: Annotated[str, typer.Option("--config", help="Config of the data set, such as sample.")],
    out: Annotated[Path, typer.Option("--out", help="Predictions file, JSON Lines; completed if begun already.")],
    split: Annotated[str, typer.Option("--split", help="Split of the data set.")] = "test",
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="A local copy of the release; else $ROLEBENCH_DIR, else the Hub.")
    ] = None,
    adapter: Annotated[str | None, typer.Option("--adapter", help="A PEFT adapter to put on a full model.")] = None,
    role: Annotated[list[str] | None, typer.Option("--role", help="Only this role; may be repeated.")] = None,
    subset: Annotated[
        Literal["general", "role_specific"] | None, typer.Option("--subset", help="Only this subset.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the first so many rows.")] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Prompts in one forward pass.")] = 8,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1, help="The longest reply, in tokens.")] = 200,
    temperature: Annotated[
        float, typer.Option("--temperature", min=0, help="0 is greedy; the paper's replies use 0.7.")
    ] = 0.0,
    top_p: Annotated[float, typer.Option("--top-p", min=0, max=1, help="The paper's replies use 0.95.")] = 1.0,
    seed: Annotated[int, typer.Option("--seed", help="For sampling; each row draws by seed and id.")] = 0,
    system_template: Annotated[
        Path | None, typer.Option("--system-template", help="Another system instruction, with {role}, {description}.")
    ] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option("--device", help="auto: CUDA if any.")] = "auto",
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        typer.Option("--dtype", help="auto: the model's own on CUDA, float32 on a CPU."),
    ] = "auto",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Begin again where --out is there already.")] = False,
    profile: Annotated[
        Literal["description", "retrieval"] | None,
        typer.Option("--profile", help="What a prompt says of the role; by default as the model was tuned."),
    ] = None,
    retrieved: Annotated[
        int | None, typer.Option("--retrieved", min=1, help="With retrieval, how many exchanges.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse rows that the model was trained on, by its manifest.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Answer a split of RoleBench with a local model: batched, resumable by row, the settings in P.jsonl.meta.json."""
    from rolellm.evaluation.resume import stopped_short
    from rolellm.runtime.threads import wait_briefly

    wait_briefly()

    untouched = resume_line(context, "--overwrite") if overwrite else None
    with stopped_short(out, resume_line(context), untouched=untouched):
        # The imports take seconds, and Ctrl-C may come within them.
        from rolellm import dataset_fingerprint, load_rolebench
        from rolellm.evaluation.generate import GenerateSettings
        from rolellm.evaluation.generate import generate as run
        from rolellm.evaluation.predictions import select_rows
        from rolellm.models.local_model import Decoding

        settings = GenerateSettings(
            model=model,
            adapter=adapter,
            decoding=Decoding(max_new_tokens, temperature, top_p, seed),
            system_template=system_template,
            batch_size=batch_size,
            device=device,
            dtype=dtype,
            config=config,
            split=split,
            overwrite=overwrite,
            strict=strict,
            profile=profile,
            retrieved=retrieved,
            data_dir=data_dir,
        )
        # The data may take minutes to fetch: what can be refused without them is refused now.
        settings.check(out)
        data = load_rolebench(config, split, data_dir=data_dir)
        rows = select_rows(data, role or [], subset, limit)
        settings = replace(settings, dataset_fingerprint=dataset_fingerprint(config, data_dir))
        summary = run(rows, out, settings)
    if as_json:
        from rolellm.cli.output import print_json

        print_json(summary.to_dict())
        return
    if summary.capped:
        typer.echo(
            f"{summary.capped} rows had less than {max_new_tokens} tokens left in the model's context.", err=True
        )
    rate = summary.to_dict()["tokens_per_second"]
    speed = f" ({rate:,.0f} tokens/s)" if rate else ""
    typer.echo(
        f"{summary.rows} predictions in {out}: {summary.generated} generated now{speed}; {summary.stop} ended "
        f"themselves, {summary.length} were cut off at their limit, {summary.empty} are empty."
    )
    typer.echo(f"Score them with: {shlex.join(_score_command(out, config, split, data_dir))}")


def _score_command(out: Path, config: str, split: str, data_dir: Path | None) -> list[str]:
    place = [] if data_dir is None else ["--data-dir", str(data_dir)]
    return ["rolellm", "score", str(out), "--config", config, *([] if split == "test" else ["--split", split]), *place]
