"""The settings of judging, of comparing two runs, and of labeling: the same in Python and on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rolellm.core.settings import Field, read, settings
from rolellm.evaluation.settings import Resampled, ScoreOptions


@settings
class JudgingSettings(Resampled):
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
    seed: int = Field(default=0, ge=0, description="Random seed for the sample, the orders, and the bootstrap.")
    skip_bad: bool = Field(False, description="Set bad lines of prediction files aside and count them.")
    budget: float | None = Field(
        None,
        ge=0,
        description="US dollars that the run folder may cost in all; needs prices.",
        json_schema_extra={"cli": False},
    )


@settings
class CompareSettings(Resampled):
    """How two runs are compared."""

    pairs: tuple[str, ...] | None = Field(
        None,
        description="NAME_A=NAME_B: also compare these two systems; may be repeated.",
        json_schema_extra={"flag": "pair"},
    )
    top: int = Field(10, ge=0, description="Number of most-changed questions to show.")
    rouge: bool = Field(True, description="For judging runs, also compare Rouge-L of changed answers.")
    config: str | None = Field(None, description="For predictions: config of the dataset, such as sample.")
    split: str = Field("test", description="For predictions: split of the dataset.")
    protocol: str = Field("rouge-score", description="Rouge-L protocol: rouge-score (F1) or paper (recall).")
    data_dir: Path | None = Field(None, description="A local copy of the release; else $ROLEBENCH_DIR, else the Hub.")
    processes: int = Field(1, ge=1, description="Processes that compute Rouge-L.")

    @property
    def score(self) -> ScoreOptions:
        """How answers are scored: row by row, for the intervals are the comparison's own."""
        chosen = {name: getattr(self, name) for name in ("protocol", "config", "split", "processes")}
        return read(ScoreOptions, {**chosen, "resamples": 1})


@settings
class LabelSettings:
    """What people label, and where."""

    annotator: str | None = Field(None, description="Annotator name; defaults to your login.")
    sample: int = Field(50, ge=1, description="Rows (or answers, with --audit) to label.")
    seed: int = Field(default=0, ge=0, description="Random seed for the sample, the same for all.")
    audit: bool = Field(
        False, description="Ask the paper's three questions about one answer at a time instead of ranking."
    )
    system: str | None = Field(None, description="Audit only this system; `reference` means the dataset's own replies.")
    port: int = Field(0, ge=0, le=65535, description="Port of the local page; 0 picks a free one.")


@settings
class AgreementSettings(Resampled):
    """How agreement is measured."""
