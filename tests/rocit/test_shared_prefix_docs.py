"""The numbers and the picture of docs/shared_prefix.md are what the code makes of the lengths that it names."""

import re
import runpy
from pathlib import Path

import pytest

from rolellm.rocit.packing.examples import Examples
from rolellm.rocit.packing.tree import pack

from .packing.trees import role_rows

LENGTHS = (225, 40, 40)
REPLIES = 5


def table(root: Path, heading: str) -> list[list[float]]:
    """The numbers of the table whose heading begins so; cells without one are left out."""
    text = (root / "docs" / "shared_prefix.md").read_text(encoding="utf-8")
    lines = text[text.index(heading) :].split("\n\n")[0].splitlines()[2:]
    return [[float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*(?:\.\d+)?", line)] for line in lines]


def packed(replies: int) -> int:
    """Tokens of so many replies of one role in one pack."""
    held = Examples.of(role_rows(1, -(-replies // REPLIES), REPLIES, lengths=LENGTHS))
    return len(pack(held, range(replies)).ids)


def test_what_a_budget_gives(root: Path) -> None:
    *budgets, without_end = table(root, "| `training.pack_tokens` |")
    assert len(budgets) == 3
    for budget, questions, replies, tokens, a_reply, times in budgets:
        assert packed(int(replies)) == tokens <= budget < packed(int(replies) + REPLIES)
        assert replies == questions * REPLIES
        assert a_reply == pytest.approx(tokens / replies, abs=0.051)
        assert times == pytest.approx(sum(LENGTHS) / (tokens / replies), abs=0.051)
    assert without_end == pytest.approx([40 + 40 / REPLIES, sum(LENGTHS) / 48], abs=0.051)


def test_what_a_step_gives(root: Path) -> None:
    steps = table(root, "| replies per step |")
    assert len(steps) == 5
    for step, roles, group, a_reply, times in steps:
        assert group == step // roles
        assert a_reply == pytest.approx(packed(int(group)) / group, abs=0.051)
        assert times == pytest.approx(sum(LENGTHS) * group / packed(int(group)), abs=0.051)


def test_the_picture_is_the_one_that_is_drawn(root: Path) -> None:
    file = root / "docs" / "img" / "shared_prefix.py"
    drawing = runpy.run_path(str(file))["drawing"]()
    assert file.with_suffix(".svg").read_text(encoding="utf-8") == drawing
