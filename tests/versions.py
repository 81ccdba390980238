"""Tests that need more than the lowest versions that pyproject.toml allows."""

from importlib.metadata import version

import pytest
from packaging.version import Version


def needs(package: str, lowest: str, reason: str) -> pytest.MarkDecorator:
    """Skip a test where an older version of a package is installed, and say what that version does instead."""
    return pytest.mark.skipif(Version(version(package)) < Version(lowest), reason=f"{package} before {lowest} {reason}")
