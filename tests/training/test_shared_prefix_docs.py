"""The numbers and the picture of dev/shared_prefix.md are what the code makes of the lengths that it names."""

import re
import runpy
from pathlib import Path

import pytest

from .examples import role_rows
from .test_schedule import folded_tokens

LENGTHS = (225, 40, 40)
REPLIES = 5


def table(root: Path, heading: str) -> list[list[float]]:
    """The numbers of the table whose heading begins so; cells without one are left out."""
    text = (root / "dev" / "shared_prefix.md").read_text(encoding="utf-8")
    lines = text[text.index(heading) :].split("\n\n")[0].splitlines()[2:]
    return [[float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*(?:\.\d+)?", line)] for line in lines]


def folded(replies: int) -> int:
    """Tokens of a pass over so many replies of one role."""
    examples = role_rows(1, -(-replies // REPLIES), REPLIES, lengths=LENGTHS)
    return folded_tokens(examples, list(range(replies)))


def test_what_a_group_of_one_role_gives(root: Path) -> None:
    *groups, unlimited = table(root, "| replies in the group |")
    assert len(groups) == 5
    for group, a_reply, times in groups:
        assert a_reply == pytest.approx(folded(int(group)) / group, abs=0.051)
        assert times == pytest.approx(sum(LENGTHS) * group / folded(int(group)), abs=0.051)
    assert unlimited == pytest.approx([40 + 40 / REPLIES, sum(LENGTHS) / 48], abs=0.051)


@pytest.mark.parametrize("name", ["shared_prefix", "stages"])
def test_a_picture_is_the_one_that_is_drawn(root: Path, name: str) -> None:
    file = root / "docs" / "img" / f"{name}.py"
    drawing = runpy.run_path(str(file))["drawing"]()
    assert file.with_suffix(".svg").read_text(encoding="utf-8") == drawing
