"""The published numbers of RoleLLM, in one place.

Source: arXiv 2310.00746 (Findings of ACL 2024). Its Rouge-L is what this library calls protocol ``paper``: recall by
PyPI ``rouge`` 1.0.1, the highest among a row's references; numbers under another protocol, or of other rows than the
release's test rows, do not compare with these. All are kept as published. In English role generalization the averages
of LLaMA, Alpaca and Vicuna are not the mean of their three scores (.1700, .2810 and .2469); nothing published says why.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from rolellm.core.fingerprint import hash_json
from rolellm.core.records import Row, Subset
from rolellm.evaluation.statistics.bootstrap import Interval

SOURCE = "arXiv 2310.00746, Findings of ACL 2024"


@dataclass(frozen=True, slots=True)
class PublishedScore:
    """One system's row of a published table; Rouge-L from 0 to 1, ``avg`` as printed there."""

    system: str
    cus: float
    raw: float
    spe: float
    avg: float

    @property
    def scores(self) -> tuple[Interval, ...]:
        """CUS, RAW, SPE and avg; the paper gives neither intervals nor counts."""
        return tuple(map(Interval, (self.cus, self.raw, self.spe, self.avg)))


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A published table, with the config of this library that holds its rows."""

    config: str
    title: str
    rows: tuple[PublishedScore, ...]
    protocol: str = "paper"
    source: str = SOURCE


_TABLES = (
    PublishedTable(
        "instruction-generalization-eng",
        "Instruction generalization, English",
        (
            PublishedScore("RoleGPT", 0.5764, 0.5322, 0.3229, 0.4772),
            PublishedScore("LLaMA", 0.1291, 0.1232, 0.2553, 0.1692),
            PublishedScore("LLaMA-script", 0.0832, 0.0509, 0.1081, 0.0807),
            PublishedScore("Alpaca", 0.2423, 0.3529, 0.2695, 0.2882),
            PublishedScore("Vicuna", 0.2101, 0.2550, 0.2913, 0.2521),
            PublishedScore("RoleLLaMA", 0.3294, 0.3755, 0.3814, 0.3621),
        ),
    ),
    PublishedTable(
        "instruction-generalization-zh",
        "Instruction generalization, Chinese",
        (
            PublishedScore("RoleGPT", 0.5368, 0.5748, 0.2478, 0.4531),
            PublishedScore("ChatGLM2", 0.3938, 0.5060, 0.3099, 0.4032),
            PublishedScore("ChatGLM2-script", 0.1401, 0.3066, 0.0915, 0.1794),
            PublishedScore("RoleGLM", 0.5049, 0.5255, 0.3406, 0.4570),
        ),
    ),
    PublishedTable(
        "role-generalization-eng",
        "Role generalization, English",
        (
            PublishedScore("RoleGPT", 0.6020, 0.5322, 0.2985, 0.4776),
            PublishedScore("LLaMA", 0.1316, 0.1232, 0.2551, 0.2238),
            PublishedScore("Alpaca", 0.2315, 0.3529, 0.2587, 0.3015),
            PublishedScore("Vicuna", 0.2082, 0.2550, 0.2775, 0.2842),
            PublishedScore("RoleLLaMA", 0.4126, 0.4107, 0.2568, 0.3600),
        ),
    ),
)

PUBLISHED: Mapping[str, PublishedTable] = MappingProxyType({table.config: table for table in _TABLES})
"""Config name to the published Rouge-L table."""

WIN_RATES: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "instruction-generalization-eng": MappingProxyType({"Vicuna": 29.26, "Alpaca": 29.30, "RoleLLaMA": 55.82}),
        "instruction-generalization-zh": MappingProxyType({"ChatGLM2": 24.17, "RoleGLM": 36.37}),
        "role-generalization-eng": MappingProxyType({"Alpaca": 16.96, "Vicuna": 37.65, "RoleLLaMA": 49.51}),
    }
)
"""Config name to the judge's published win rate against RoleGPT, in percent."""

RELEASED: dict[str, dict[Subset, tuple[int, str | None]]] = {
    "instruction-generalization-eng": {
        "general": (28_083, None),
        "role_specific": (4_750, "6427d36e1acb0836c4d7b8e71af70886e408cffaba34249a58ad86188066969c"),
    },
    "instruction-generalization-zh": {
        "general": (1_451, "8deac6a6411c8261e0903f067e7557a4710446af5aab4310866e758d4b943b47"),
        "role_specific": (239, "0fa299168bea3899bd485856afc6287691e7744deed5c0f2527604e9afaa7191"),
    },
    "role-generalization-eng": {
        "general": (5_000, "7efcae0838bf5fd4f73d00a1ed99d763af28abd7055df13e6ed4f8987f9ddfc0"),
        "role_specific": (2_534, "ea5d6b01f3859ce0d723be4b0997ad50e8b63024811ee70b75ffb17ec6d61e15"),
    },
}
"""Config to subset to the number of the release's test rows, and their `content_hash` where we have it."""


def published_for(config: str | None, split: str | None, rows: Iterable[Row]) -> PublishedTable | None:
    """The paper's table that may be shown with scores of these rows: they are the release's test rows, not others.

    A partial copy of the release counts as the release where a whole subset is there; a sample of its rows does not,
    since nothing tells its rows from others.

    Args:
        config: The config that the rows claim to be of.
        split: The split that they claim to be of.
        rows: All rows that were scored.
    """
    table, released = PUBLISHED.get(config or ""), RELEASED.get(config or "", {})
    if table is None or split != "test":
        return None
    subsets: dict[Subset, list[Row]] = defaultdict(list)
    for row in rows:
        subsets[row.subset].append(row)
    same = [
        len(found) == released[subset][0] and released[subset][1] in (None, content_hash(found))
        for subset, found in subsets.items()
    ]
    return table if same and all(same) else None


def content_hash(rows: Iterable[Row]) -> str:
    """A hash of roles, questions and references, in any order of the rows."""
    return hash_json(sorted(hash_json([row.role, row.question, *row.references]) for row in rows))
