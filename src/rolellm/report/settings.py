"""The settings of a report: the same in Python and on the command line."""

from __future__ import annotations

from pathlib import Path

from rolellm.core.settings import Field, settings


@settings
class ReportOptions:
    """How to report.

    Attributes:
        title: Heading of the page.
        protocol: Rouge-L protocol: paper (the default where the paper has a table of the config) or rouge-score.
        config: Config of the prediction files; judging runs name their own.
        split: Split of the prediction files.
        data_dir: A local copy of the release; else $ROLEBENCH_DIR, else the Hub.
        resamples: Bootstrap resamples for Rouge-L.
        processes: Processes that compute Rouge-L.
    """

    title: str | None = None
    protocol: str | None = None
    config: str | None = None
    split: str = "test"
    data_dir: Path | None = None
    resamples: int = Field(2000, ge=1, json_schema_extra={"cli": False})
    processes: int = Field(1, ge=1)
