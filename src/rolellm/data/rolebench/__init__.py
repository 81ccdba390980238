"""RoleBench: the release's layout, read and joined into rows, and built into what ``datasets`` loads."""

from __future__ import annotations

from pathlib import Path

from rolellm.data.rolebench.register import load_rolebench

__all__ = ["dataset_fingerprint", "load_rolebench"]


def dataset_fingerprint(config: str | None = None, data_dir: str | Path | None = None) -> str:
    """The content hash of a config's rows: SHA-256 over the release files read; it goes with every score.

    Args:
        config: A config's name, as for :func:`load_rolebench`.
        data_dir: As for :func:`load_rolebench`.
    """
    from rolellm.data.rolebench.schema import get_config
    from rolellm.data.rolebench.source import find_only_config, locate

    chosen = get_config(config or find_only_config(data_dir))
    return locate(chosen, data_dir).fingerprint(chosen)
