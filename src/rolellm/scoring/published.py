"""The paper's own figures, and the rows that they hold for.

The published numbers of RoleLLM are in `published.yaml` (source: arXiv 2310.00746 Findings of ACL 2024). Its
Rouge-L is what this library calls protocol ``paper``: recall by PyPI ``rouge`` 1.0.1, the highest among a row's
references; numbers under another protocol, or of other rows than the release's test rows, do not compare with these.
All are kept as published. In English role generalization the averages of LLaMA, Alpaca and Vicuna are not the mean of
their three scores (.1700, .2810 and .2469); nothing published says why.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rolellm.core.fingerprint import hash_json
from rolellm.core.records import Row, Subset
from rolellm.core.settings import read_packaged_yaml
from rolellm.core.typed_json import read_as

Scores = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A published table.

    Attributes:
        title: Its heading.
        rows: System to CUS, RAW, SPE and avg: Rouge-L from 0 to 1, ``avg`` as printed there.
        win_rates: System to the judge's win rate against RoleGPT, in percent.
        released: Subset to the number of the release's test rows, and their `content_hash` where we have it.
    """

    title: str
    rows: Mapping[str, Scores]
    win_rates: Mapping[str, float]
    released: Mapping[Subset, tuple[int, str | None]]
    protocol: str = "paper"
    source: str = "arXiv 2310.00746, Findings of ACL 2024"


#: The paper's tables, by the config of this library that holds their rows.
PUBLISHED: Mapping[str, PublishedTable] = read_as(
    dict[str, PublishedTable], read_packaged_yaml("rolellm.scoring", "published.yaml"), "published.yaml"
)


def published_for(config: str | None, split: str | None, rows: Iterable[Row]) -> PublishedTable | None:
    """Find the paper's table for scores of these rows, if they are the release's test rows, not others.

    A partial copy of the release counts as the release where a whole subset is there; a sample of its rows does not,
    since nothing tells its rows from others.

    Args:
        config: The config that the rows claim to be of.
        split: The split that they claim to be of.
        rows: All rows that were scored.
    """
    table = PUBLISHED.get(config or "")
    if table is None or split != "test":
        return None
    subsets: dict[Subset, list[Row]] = defaultdict(list)
    for row in rows:
        subsets[row.subset].append(row)
    for subset, subset_rows in subsets.items():
        count, released_hash = table.released[subset]
        if len(subset_rows) != count or released_hash not in (None, content_hash(subset_rows)):
            return None
    return table if subsets else None


def content_hash(rows: Iterable[Row]) -> str:
    """Hash roles, questions and references, in any order of the rows."""
    hashes = [hash_json([row.role, row.question, *row.references]) for row in rows]
    return hash_json(sorted(hashes))
