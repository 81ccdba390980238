"""The settings of judging and of labeling: the same in Python and on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from rolellm.core.settings import Advanced, Field, dump, settings

_UNSAID = ("config", "split", "judges", "jury", "data_dir", "budget")


@settings
class JudgingSettings:
    """Judging.

    Attributes:
        config: Config of RoleBench; by default the one that the predictions were generated for.
        split: Split of the dataset; by default as recorded, else test.
        judges: role-list, role-pair, role-odds, or the folder of your own judge; defaults to the first two.
        jury: Have each model of --llm judge everything; the majority counts.
        baseline: rolegpt (the released replies), a system, a file, or none.
        limit: Judge only N rows, drawn by seed; a larger N keeps them.
        roles: Judge only this role's rows; repeatable.
        subset: Judge only this subset.
        data_dir: A local copy of the release; else $ROLEBENCH_DIR, else the Hub.
        canaries: Also judge a null model and an echo.
        max_unscored: Maximum share of missing verdicts.
        seed: Random seed for the sample and the orders.
        budget: US dollars that the run folder may cost in all; needs prices.
    """

    config: str | None = None
    split: Advanced[str | None] = None
    judges: tuple[str, ...] | None = Field(None, json_schema_extra={"flag": "judge"})
    jury: bool = False
    baseline: str = "rolegpt"
    limit: int | None = Field(None, ge=1)
    roles: tuple[str, ...] | None = Field(None, json_schema_extra={"flag": "role"})
    subset: Advanced[Literal["general", "role_specific"] | None] = None
    data_dir: Path | None = None
    canaries: Advanced[bool] = True
    max_unscored: Advanced[float] = Field(0.01, ge=0, le=1)
    seed: Advanced[int] = Field(default=0, ge=0)
    budget: float | None = Field(None, ge=0, json_schema_extra={"cli": False})

    def to_dict(self) -> dict[str, Any]:
        """Return what decides verdicts and figures, without paths; judges are described by themselves."""
        values = {name: value for name, value in dump(self).items() if name not in _UNSAID}
        return values | {"baseline": Path(self.baseline).name}


@settings
class LabelSettings:
    """Labels.

    Attributes:
        annotator: Annotator name; defaults to your login.
        limit: Rows to label.
        port: Port of the local page; 0 picks a free one.
    """

    annotator: str | None = None
    limit: int = Field(50, ge=1)
    port: Advanced[int] = Field(0, ge=0, le=65535)
