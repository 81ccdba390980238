"""``rolellm convert-chatglm``: a published ChatGLM2-6B or ChatGLM3-6B as a native checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rolellm.rocit.chatglm.config import DType, Family


def convert_chatglm(
    src: Annotated[Path, typer.Argument(metavar="SRC", help="The published checkpoint's folder.")],
    dst: Annotated[Path, typer.Argument(metavar="DST", help="The folder to make.")],
    dtype: Annotated[
        DType | None, typer.Option("--dtype", help="The weights' type, in place of the checkpoint's own.")
    ] = None,
    family: Annotated[
        Family | None, typer.Option("--family", help="Which of the two it is, where the folder does not say.")
    ] = None,
    allow_differences: Annotated[
        bool,
        typer.Option(
            "--allow-differences", help="Go on when the tokenizer cuts some text otherwise than the original."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Turn a published ChatGLM2-6B or ChatGLM3-6B into a native GlmForCausalLM with a fast tokenizer.

    Streams shard by shard; runs none of the checkpoint's code.
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
