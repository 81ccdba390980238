"""``rolellm convert-chatglm``: a published ChatGLM2-6B or ChatGLM3-6B as a native checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rolellm.cli.options import AsJson, with_options
from rolellm.rocit.chatglm.config import DType, Family


@with_options
def convert_chatglm(
    src: Annotated[Path, typer.Argument(metavar="SRC")],
    dst: Annotated[Path, typer.Argument(metavar="DST")],
    dtype: DType | None = None,
    family: Family | None = None,
    allow_differences: bool = False,
    as_json: AsJson = False,
) -> None:
    """Turn a published ChatGLM2-6B or ChatGLM3-6B into a native GlmForCausalLM with a fast tokenizer.

    Streams shard by shard; runs none of the checkpoint's code.

    Args:
        src: The published checkpoint's folder.
        dst: New folder for the converted model.
        dtype: Data type of the weights; defaults to the checkpoint's own.
        family: The model's family, if the folder does not name it.
        allow_differences: Continue if the tokenizer splits some text differently from the original.
    """
    from rolellm.cli.output import print_json
    from rolellm.rocit.chatglm.convert import convert_chatglm as run

    made = run(src, dst, dtype=dtype, family=family, allow_differences=allow_differences)
    if as_json:
        print_json(made.to_dict())
        return
    typer.echo(
        f"{made.parameters:,} parameters of {made.family} in {made.dtype}, {made.files} files: {made.out}\n"
        f"The tokenizer was compared with SentencePiece on {made.tokenizer['texts']:,} texts: "
        f"{made.tokenizer['differing']} differ."
    )
