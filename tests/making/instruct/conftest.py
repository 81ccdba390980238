"""The sample's characters, with what the release has of them apart: description and catchphrases."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from rolellm.core.records import Profile
from rolellm.data.rolebench.release import load_profiles
from rolellm.making.instruct.candidates import Candidate, parse_candidate
from rolellm.making.instruct.segments import Segment


@pytest.fixture(scope="session")
def characters() -> dict[str, Profile]:
    """The four roles of the sample, by name."""
    found = {}
    for profile in load_profiles("sample"):
        description, _, tail = str(profile.description).partition(" Your catchphrase")
        phrases = tuple(re.findall(r'"([^"]+)"', tail))
        found[profile.role] = Profile(
            profile.role, profile.language, profile.turns, description=description, catchphrases=phrases
        )
    return found


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
