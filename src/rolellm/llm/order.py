"""The order in which requests go out: those that share a long beginning one after another, the longest first.

Servers keep the beginnings of prompts that they have just seen, and charge less for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rolellm.llm.model import Request


def prefix_order(requests: Sequence[Request]) -> list[int]:
    """The places of requests in the order to ask them; requests of one beginning keep their own order.

    A beginning is the first message, by its text. The beginnings that save the most go first: their length times the
    number of requests that need not pay for it anew.
    """
    count = Counter(_beginning(request) for request in requests)
    first: dict[str, int] = {}
    for place, request in enumerate(requests):
        first.setdefault(_beginning(request), place)

    def rank(place: int) -> tuple[int, int, int]:
        beginning = _beginning(requests[place])
        return -len(beginning) * (count[beginning] - 1), first[beginning], place

    return sorted(range(len(requests)), key=rank)


def _beginning(request: Request) -> str:
    return request.messages[0].content if request.messages else ""
