"""The settings of a report: the same in Python and on the command line."""

from __future__ import annotations

from pathlib import Path

from rolellm.core.settings import Advanced, settings


@settings
class ReportOptions:
    """Options of a report.

    Attributes:
        protocol: Rouge-L protocol: paper (the default where the paper has a table of the config) or rouge-score.
        config: Config of the prediction files, where their record has none; judging runs name their own.
        split: Split of the prediction files, likewise.
        data_dir: A local copy of the release; else $ROLEBENCH_DIR, else the Hub.
    """

    protocol: Advanced[str | None] = None
    config: str | None = None
    split: Advanced[str | None] = None
    data_dir: Advanced[Path | None] = None
