"""``rolellm show``: the passport of an exported character."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rolellm.cli.options import with_options
from rolellm.core.result import Result


@with_options
def run_show(file: Annotated[Path, typer.Argument(metavar="FILE")]) -> Result:
    """Show the passport of an exported character: what it is, and what is known of it.

    Args:
        file: A folder of rolellm export, or a file in it: role.json, safetensors or GGUF.
    """
    from rolellm.exporting.passport import read_passport

    return read_passport(file)
