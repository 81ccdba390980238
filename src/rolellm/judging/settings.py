"""The settings of a judging run: the same in Python and on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rolellm.core.settings import Field, settings


@settings
class JudgingSettings:
    """Which answers are judged, and how."""

    judges: tuple[str, ...] | None = Field(
        None,
        description="role-list, role-pair, or the folder of your own judge; by default both that ship.",
        json_schema_extra={"flag": "judge"},
    )
    jury: bool = Field(False, description="Have each model of --llm judge everything; the majority counts.")
    baseline: str = Field("rolegpt", description="rolegpt (the released replies), a system, a file, or none.")
    sample: int | None = Field(
        None, ge=1, description="Judge only N rows, drawn by seed; a larger sample contains a smaller one."
    )
    roles: tuple[str, ...] | None = Field(
        None, description="Judge only rows of this role; may be repeated.", json_schema_extra={"flag": "role"}
    )
    subset: Literal["general", "role_specific"] | None = Field(None, description="Judge only this subset.")
    data_dir: Path | None = Field(None, description="A local copy of the release; else $ROLEBENCH_DIR, else the Hub.")
    rotations: int = Field(2, ge=1, description="How many rotations of each list to judge.")
    name_probe: int = Field(50, ge=0, description="Rows to judge again with names shown, to measure their effect.")
    canaries: bool = Field(True, description="Let a null model and an echo take part.")
    shown: int = Field(8000, ge=1, description="Maximum characters of an answer to show to a judge.")
    max_unscored: float = Field(0.01, ge=0, le=1, description="Largest share of verdicts that may be missing.")
    resamples: int = Field(2000, ge=1, description="Bootstrap resamples over questions.")
    seed: int = Field(0, ge=0, description="Random seed for the sample, the orders, and the bootstrap.")
    skip_bad: bool = Field(False, description="Set bad lines of prediction files aside and count them.")
    budget: float | None = Field(
        None,
        ge=0,
        description="US dollars that the run folder may cost in all; needs prices.",
        json_schema_extra={"cli": False},
    )
