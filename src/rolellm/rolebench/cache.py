"""Built configs in the cache, keyed by content: the same release files are built once, anywhere they lie."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from rolellm.rolebench.build import finish, warn_missing, write_config
from rolellm.rolebench.schema import Config, get_config
from rolellm.rolebench.source import Source, locate


def cache_root() -> Path:
    """Where built configs lie: ``$HF_HOME/rolellm/rolebench`` (the Hub client's own home)."""
    from huggingface_hub.constants import HF_HOME

    return Path(HF_HOME) / "rolellm" / "rolebench"


def built_folder(
    config: Config,
    data_dir: str | Path | None = None,
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    skip_bad: bool = False,
) -> Path:
    """The script-free folder of one config, built now if this content was not built before.

    Args:
        config: Which one.
        data_dir: A local copy of the release; by default as :func:`~rolellm.rolebench.source.locate` finds it.
        revision: Another revision of the release on the Hub.
        token: For the Hub.
        skip_bad: Set bad rows aside in ``skipped.jsonl`` instead of stopping at the first.

    Raises:
        ReleaseNotFoundError: When there is no release, or nothing in it for this config.
        ReleaseFormatError: At the first bad row, unless ``skip_bad``.
    """
    from filelock import FileLock

    source = locate(config, data_dir, revision=revision, token=token)
    key = f"{config.name}-{source.fingerprint(config)[:16]}" + ("-skip" if skip_bad else "")
    folder = cache_root() / key / "rolebench"
    if (folder / "README.md").is_file():
        warn_missing(config, source)
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / "build.lock"):
        if not (folder / "README.md").is_file():
            _build_into(folder, config, source, skip_bad)
    return folder


def _build_into(folder: Path, config: Config, source: Source, skip_bad: bool) -> None:
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".building-"))
    try:
        finish(scratch, [write_config(scratch, config, source, skip_bad=skip_bad)])
        shutil.rmtree(folder, ignore_errors=True)
        scratch.replace(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def dataset_fingerprint(config: str | None = None, data_dir: str | Path | None = None) -> str:
    """The content hash of a config's rows: goes with every score (our choice: SHA-256 over the release files read).

    Args:
        config: A config's name; the default one when left out.
        data_dir: A local copy of the release; by default as ``load_dataset("rolebench")`` finds it.
    """
    chosen = get_config(config)
    return locate(chosen, data_dir).fingerprint(chosen)
