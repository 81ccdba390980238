"""Where a call works that was given no folder."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path


def temporary_folder(stage: str) -> Path:
    """A new temporary folder, named on standard error so that its work can be found and continued.

    Args:
        stage: What works there, such as ``generate``.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"rolellm-{stage}-"))
    sys.stderr.write(f"{stage}: working in {folder}; pass out=… to keep the files elsewhere\n")
    return folder
