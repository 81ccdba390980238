"""Tests that need more than the lowest versions that pyproject.toml allows."""

from importlib.metadata import version

import pytest
from packaging.version import Version


def needs(package: str, lowest: str, reason: str) -> pytest.MarkDecorator:
    """Skip a test where an older version of a package is installed, and say what that version does instead."""
    return pytest.mark.skipif(Version(version(package)) < Version(lowest), reason=f"{package} before {lowest} {reason}")


#: Whether special tokens in messages are kept as text.
KEEPS_TEXT = Version(version("transformers")) >= Version("5.20")
NEEDS_SANITIZING = needs("transformers", "5.20", "reads special tokens out of messages, which is refused")
