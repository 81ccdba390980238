"""Candidates as a reply has them."""

from collections.abc import Callable
from typing import Any

import pytest

from rolellm.making.instruct.candidates import Candidate, parse_candidate
from rolellm.making.instruct.segments import Segment


@pytest.fixture
def make_candidate() -> Callable[..., Candidate]:
    """Makes a candidate out of a question, an answer and ratings, from a segment with this text."""
    made = 0

    def make(
        question: str,
        answer: str = "I will, and gladly.",
        *,
        kind: str = "profile",
        text: str = "",
        completeness: Any = "high",
        factualness: Any = "high",
    ) -> Candidate:
        nonlocal made
        segment = Segment("profile" if kind == "profile" else f"{kind}/0000", kind, text, 1)  # type: ignore[arg-type]
        receipt = {"visit": 0, "place": made}
        made += 1
        item = {"question": question, "answer": answer, "completeness": completeness, "factualness": factualness}
        return parse_candidate(item, segment, receipt)

    return make
