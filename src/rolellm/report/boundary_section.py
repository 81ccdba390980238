"""The table on a knowledge boundary: errors by kind of probe, by rule and by judge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rolellm.report.drift_section import interval
from rolellm.report.score_table import ScoreTable, TableRow


def boundary_table(found: Mapping[str, Any]) -> ScoreTable:
    """Every kind of ``boundary.json``, then hallucination and over-refusal over all their kinds."""
    columns = ("By rule %", "By judge %", "Words of the answer %")
    rows = []
    for name, must_know in (("hallucination", False), ("over_refusal", True)):
        kinds = {kind: one for kind, one in found["kinds"].items() if one["must_know"] is must_know}
        for kind, one in {**kinds, "all": found[name]}.items():
            cells = tuple(interval(one.get(by)) for by in ("rule", "judge", "says_key"))
            rows.append(TableRow((name.replace("_", "-"), kind.replace("_", " ")), cells))
    return ScoreTable(f"Knowledge boundary of {found['role']}", ("Error", "Probes"), columns, tuple(rows))
