"""``rolellm export`` and ``rolellm show``: a tuned model for other programs, and its passport."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rolellm.cli.options import with_options
from rolellm.core.settings import dump
from rolellm.exporting.export import Exported, ExportSettings, Format
from rolellm.exporting.passport import Passport


@with_options
def run_export(
    run: Annotated[str, typer.Argument()],
    to: Annotated[Format, typer.Option()],
    out: Annotated[Path, typer.Option()],
    options: ExportSettings,
) -> Exported:
    """Write a tuned model for Ollama, llama.cpp, vLLM or transformers, and check it against the run.

    Args:
        run: A training run, an adapter, a model, or a character's folder.
        to: merged (transformers, SGLang, LM Studio), gguf (llama.cpp), ollama or vllm.
        out: A new folder.
    """
    from rolellm.exporting.export import export

    return export(run, to, out, **dump(options))


@with_options
def run_show(file: Annotated[Path, typer.Argument()]) -> Passport:
    """Show the passport of an exported model: role, data, recipe, base, scores, tests.

    Args:
        file: The folder, or a file in it: role.json, safetensors or GGUF.
    """
    from rolellm.exporting.passport import show

    return show(file)
