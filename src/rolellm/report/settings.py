"""The settings of a report: the same in Python and on the command line."""

from __future__ import annotations

from pathlib import Path

from rolellm.core.settings import Field, settings


@settings
class ReportOptions:
    """How to report."""

    title: str | None = Field(None, description="Heading of the page.")
    protocol: str | None = Field(
        None,
        description="Rouge-L protocol: paper (the default where the paper has a table of the config) or rouge-score.",
    )
    config: str | None = Field(None, description="Config of the prediction files; judging runs name their own.")
    split: str = Field("test", description="Split of the prediction files.")
    data_dir: Path | None = Field(None, description="A local copy of the release; else $ROLEBENCH_DIR, else the Hub.")
    resamples: int = Field(2000, ge=1, description="Bootstrap resamples for Rouge-L.", json_schema_extra={"cli": False})
    processes: int = Field(1, ge=1, description="Processes that compute Rouge-L.")
