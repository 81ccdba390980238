"""The published numbers of RoleLLM, in one place.

Source: arXiv 2310.00746 (Findings of ACL 2024). Its Rouge-L is what this library calls protocol ``paper``: recall by
PyPI ``rouge`` 1.0.1, the highest among a row's references; numbers under any other protocol do not belong beside these.
All are kept as published. In English role generalization the averages of LLaMA, Alpaca and Vicuna are not the mean of
the three scores beside them (.1700, .2810 and .2469); nothing published says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

SOURCE = "arXiv 2310.00746, Findings of ACL 2024"


@dataclass(frozen=True, slots=True)
class PublishedScore:
    """One system's row of a published table; Rouge-L from 0 to 1, ``avg`` as printed there."""

    system: str
    cus: float
    raw: float
    spe: float
    avg: float


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
