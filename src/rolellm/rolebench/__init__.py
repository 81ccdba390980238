"""RoleBench: the release's layout, read and joined into rows, and built into what ``datasets`` loads."""

from __future__ import annotations

from pathlib import Path

from rolellm.rolebench.register import load_rolebench

__all__ = ["dataset_fingerprint", "load_rolebench"]


def dataset_fingerprint(config: str | None = None, data_dir: str | Path | None = None) -> str:
    """The content hash of a config's rows, which goes with every score.

    Args:
        config: A config's name, as for :func:`load_rolebench`.
        data_dir: As for :func:`load_rolebench`.
    """
    from rolellm.rolebench import build as cache

    return cache.dataset_fingerprint(config, data_dir)
