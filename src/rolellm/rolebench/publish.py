"""The built data set as it goes to the Hub: with a card that names the repository, and no path of this machine."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from rolellm.jsonl import write_jsonl
from rolellm.rolebench.build import SKIPPED_FILE, BuiltConfig, build
from rolellm.rolebench.card import LICENCE, write_card


def stage(
    folder: Path,
    repo: str,
    configs: Iterable[str] | None = None,
    *,
    data_dir: str | Path | None = None,
    skip_bad: bool = False,
    licence: str | None = None,
) -> list[BuiltConfig]:
    """Build into a folder what a push sends.

    Args:
        folder: An empty folder.
        repo: The repository, ``OWNER/NAME``.
        configs: As `rolellm.rolebench.build.build` takes them.
        data_dir: Likewise.
        skip_bad: Likewise.
        licence: By default the release's own, Apache-2.0.

    Raises:
        ReleaseNotFoundError: When no release, or nothing for a config that was asked for, is there.
        ReleaseFormatError: At the first bad row, unless ``skip_bad``.
    """
    built = build(folder, configs, data_dir=data_dir, skip_bad=skip_bad)
    write_card(folder, built, home=repo, licence=licence or LICENCE)
    skipped = folder / SKIPPED_FILE
    if skipped.is_file():
        roots = {str(item.source.root) for item in built}
        lines = [json.loads(line) for line in skipped.read_text(encoding="utf-8").splitlines()]
        write_jsonl(skipped, [{**line, "file": _within(line["file"], roots)} for line in lines])
    return built


def _within(path: str, roots: set[str]) -> str:
    """A path relative to the release that it belongs to."""
    inside = (Path(path).relative_to(root) for root in roots if Path(path).is_relative_to(root))
    return next((found.as_posix() for found in inside), Path(path).name)
