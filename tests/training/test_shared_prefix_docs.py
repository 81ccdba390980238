"""The numbers and the picture of dev/shared_prefix.md are what the code makes of the lengths that it names."""

import runpy
from pathlib import Path

import pytest


@pytest.mark.parametrize("name", ["shared_prefix", "stages"])
def test_a_picture_is_the_one_that_is_drawn(root: Path, name: str) -> None:
    file = root / "docs" / "img" / f"{name}.py"
    drawing = runpy.run_path(str(file))["drawing"]()
    assert file.with_suffix(".svg").read_text(encoding="utf-8") == drawing
