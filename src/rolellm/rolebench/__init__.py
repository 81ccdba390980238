"""RoleBench: the release's layout, read and joined into rows, and built into what ``datasets`` loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rolellm.core.errors import SettingsError

__all__ = ["dataset_fingerprint", "load_rolebench"]


def load_rolebench(
    config: str | None = None,
    split: str | None = None,
    *,
    data_dir: str | Path | None = None,
    **options: Any,
) -> Any:
    """Load RoleBench as ``load_dataset("rolebench", config, split=split)`` does, for those who like a plain function.

    Args:
        config: One of :data:`rolellm.rolebench.schema.CONFIGS`; by default ``instruction-generalization-eng``.
        split: ``train``, ``test``, or a slice such as ``test[:10]``; all splits when left out.
        data_dir: A local copy of the release; else ``$ROLEBENCH_DIR``, else the Hub at the pinned revision.
        options: Passed on to ``datasets.load_dataset`` (``streaming``, ``num_proc``, ``cache_dir``, …), plus
            ``skip_bad=True`` to set bad rows of the release aside.

    Returns:
        A ``datasets.Dataset``, or a ``DatasetDict`` by split when no split is named.

    Raises:
        SettingsError: For an unknown config or split; names those that are there.
        ReleaseNotFoundError: When the release is in none of the three places.
        ReleaseFormatError: At a row that is not as published; names file and line.
    """
    import datasets

    from rolellm.rolebench.register import NAME, register

    register()
    try:
        return datasets.load_dataset(NAME, config, split=split, data_dir=data_dir, **options)
    except ValueError as error:
        # `datasets` has no error of its own for this.
        if not str(error).startswith(("Unknown split", "Bad split")):
            raise
        raise SettingsError(
            f"{config or NAME}: {error} A missing split may be a file that the release here lacks."
        ) from error


def dataset_fingerprint(config: str | None = None, data_dir: str | Path | None = None) -> str:
    """The content hash of a config's rows, which goes with every score.

    Args:
        config: A config's name, as for :func:`load_rolebench`.
        data_dir: As for :func:`load_rolebench`.
    """
    from rolellm.rolebench import build as cache

    return cache.dataset_fingerprint(config, data_dir)
