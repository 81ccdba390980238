"""What other trainers pin, as published, beside what we need: one environment, or the two that the docs show."""

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent
PINS = tomllib.loads((ROOT / "tests" / "published_pins.toml").read_text(encoding="utf-8"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
#: These need an environment of their own.
APART = {"llamafactory": {"peft", "transformers", "trl"}}


def list_needs() -> Iterator[tuple[str, SpecifierSet]]:
    extras = PROJECT["optional-dependencies"]
    for text in (*PROJECT["dependencies"], *extras["train"], *extras["llm"]):
        requirement = Requirement(text)
        yield canonicalize_name(requirement.name), requirement.specifier


def can_meet(first: SpecifierSet, second: SpecifierSet) -> bool:
    """Tell whether a version satisfies both, among those that they name and the ones right after."""
    for specifier in (*first, *second):
        named = Version(specifier.version.removesuffix(".*"))
        following = Version(f"{named.major}.{named.minor}.{named.micro + 1}")
        if any(first.contains(version) and second.contains(version) for version in (named, following)):
            return True
    return False


@pytest.mark.parametrize("name", [name for name in PINS if name != "date"])
def test_one_environment_holds_both_or_the_docs_name_two(name: str) -> None:
    pins = {package: SpecifierSet(text) for package, text in PINS[name].items() if package != "version"}
    assert pins
    apart = {package for package, needed in list_needs() if package in pins and not can_meet(pins[package], needed)}
    assert apart == APART.get(name, set())
    if apart:
        page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
        assert f"`{name}` {PINS[name]['version']}" in page.partition("## Training elsewhere")[2]
