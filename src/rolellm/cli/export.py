"""``rolellm export``: a tuned character becomes files that other programs run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from rolellm.cli.options import with_options
from rolellm.core.result import Result
from rolellm.core.settings import Advanced


@with_options
def run_export(
    run: Annotated[str, typer.Argument(metavar="RUN")],
    to: Literal["merged", "gguf", "ollama", "vllm"],
    out: Path,
    role: str | None = None,
    llama_cpp: Path | None = None,
    quantize: str | None = None,
    apart: Advanced[bool] = False,
    license: Advanced[str] = "",
) -> Result:
    """Export a tuned character to Ollama, LM Studio, llama.cpp, vLLM or transformers.

    A passport goes along, which `rolellm show` prints; at the end, what was written is checked against the run.

    Args:
        run: A run of rolellm train, any folder of an adapter or a model, or a character's folder of rolellm make.
        to: What it is for; merged is for transformers, vLLM, SGLang and LM Studio.
        out: New folder.
        role: Whom it plays: a character's folder, a card, or a role of RoleBench; defaults to the run's character.
        llama_cpp: Copy of llama.cpp, for GGUF; defaults to $LLAMA_CPP.
        quantize: Kind of quantized GGUF, such as q4_k_m.
        apart: Write the base and the adapter to a GGUF file each.
        license: License, as the Hub spells it, for the passport.
    """
    from rolellm.exporting.export import export

    return export(run, to, out, role=role, llama_cpp=llama_cpp, quantize=quantize, apart=apart, license=license)
