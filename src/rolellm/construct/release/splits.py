"""Which questions and which roles are held out: by rule, from their text alone, and checked.

The released data hold out a fifth of the questions and ten of 95 roles, and break their own rule in places (Chinese
"instruction generalization" has every general test question in train). Here the rule is: of the questions, folded, the
fifth whose hashes are smallest; of the roles, the tenth. The shares are the release's, the rule is our choice.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from rolellm.errors import DataError, RecipeError
from rolellm.fingerprint import hash_json
from rolellm.text import fold


@dataclass(frozen=True, slots=True)
class SplitRule:
    """How splits are made.

    Attributes:
        test_share: Of the questions, for test.
        role_share: Of the roles, held out for role generalization, where none are named.
        held_out: These roles instead.
        seed: Another seed holds out others.

    Raises:
        RecipeError: For a share out of range.
    """

    test_share: float = 0.2
    role_share: float = 0.1
    held_out: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("test_share", "role_share"):
            if not 0 < getattr(self, name) < 1:
                raise RecipeError(f"{name} is {getattr(self, name)}; it has to be above 0 and below 1")

    def test_questions(self, questions: Iterable[str]) -> frozenset[str]:
        """The questions to hold out, folded; none where there is only one."""
        folded = sorted({fold(question) for question in questions})
        return frozenset(self._drawn("question", folded, self.test_share))

    def test_roles(self, roles: Collection[str]) -> frozenset[str]:
        """The roles to hold out: those named, or drawn; none where there is only one role.

        Raises:
            RecipeError: When a named role is not there, or none would be left.
        """
        unknown = sorted(set(self.held_out) - set(roles))
        if unknown:
            raise RecipeError(f"no role {', '.join(unknown)} to hold out; the roles are {', '.join(sorted(roles))}")
        if self.held_out:
            if set(roles) == set(self.held_out):
                raise RecipeError("every role is held out, which leaves none to train on; hold out fewer")
            return frozenset(self.held_out)
        return frozenset(self._drawn("role", sorted(roles), self.role_share))

    def _drawn(self, what: str, names: list[str], share: float) -> list[str]:
        if len(names) < 2:
            return []
        # At least one on each side.
        count = min(max(math.floor(share * len(names) + 0.5), 1), len(names) - 1)
        return sorted(names, key=lambda name: hash_json([self.seed, what, name]))[:count]


def check_disjoint(train: Mapping[str, Collection[str]], test: Mapping[str, Collection[str]], what: str) -> None:
    """Refuse splits that share anything.

    Args:
        train: What each file of train holds, by file.
        test: What each file of test holds, by file.
        what: What it is, for the message.

    Raises:
        DataError: Names the files and the first thing they share.
    """
    for test_file, held_out in test.items():
        for train_file, seen in train.items():
            shared = sorted(set(map(fold, held_out)) & set(map(fold, seen)))
            if shared:
                raise DataError(
                    f"{test_file} and {train_file} share {len(shared)} {what}s, such as {shared[0]!r:.80}; "
                    "a split by rule has none, so this is a fault of the splitter: please report it"
                )
