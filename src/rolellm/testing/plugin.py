"""The pytest plugin: files named ``*.character.yaml`` are collected where a model is named; each assertion is an item.

All assertions of a file that were selected are asked about at once, before the first of them. Replies are kept in
pytest's cache folder, so that a second run asks only what is new. Pytest imports this module in every run: what it
needs is imported when there is a file to test.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_SHOWN = 3


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--character-model``."""
    parser.getgroup("rolellm").addoption(
        "--character-model",
        metavar="MODEL",
        help="The model that *.character.yaml files test: YAML settings, a folder, or a Hub id.",
    )


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> CharacterFile | None:
    """Collect a character's tests."""
    found = file_path.name.endswith(".character.yaml")
    return CharacterFile.from_parent(parent, path=file_path) if found else None


class CharacterFile(pytest.File):
    """A character's test file."""

    def collect(self) -> Iterator[CharacterItem]:
        """Its assertions; none where no model is named."""
        from rolellm.playing.roles import find_part
        from rolellm.testing.suite import assertions, read_tests

        self.tests = read_tests(self.path)
        self.model = self.config.getoption("--character-model") or self.tests.model
        self.results: dict[str, Any] = {}
        self.stopped: Exception | None = None
        if self.model is not None:
            for one in assertions(self.tests, find_part(self.tests.role)):
                yield CharacterItem.from_parent(self, name=one.name)

    def ask(self) -> None:
        """Ask the model about the assertions that were selected; once, also where that fails."""
        from rolellm.testing.run import model_of, run_tests

        if self.stopped is not None:
            raise self.stopped
        names = {item.name for item in self.session.items if item.parent is self}
        cache = getattr(self.config, "cache", None)
        folder = tempfile.mkdtemp(prefix="rolellm-") if cache is None else cache.mkdir("rolellm")
        # Processes of pytest-xdist cannot share a journal.
        folder = Path(folder) / self.path.stem / os.environ.get("PYTEST_XDIST_WORKER", "main")
        try:
            found = run_tests(self.tests, model_of(str(self.model)), folder, names)
        except Exception as error:
            self.stopped = error
            raise
        self.results = {one["name"]: one for one in found["assertions"]}

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *more: Any) -> Any:
        """What is wrong with the file, in words."""
        return _told(excinfo.value) or super().repr_failure(excinfo, *more)


class CharacterItem(pytest.Item):
    """An assertion."""

    parent: CharacterFile

    def runtest(self) -> None:
        """Look at its verdict."""
        if not self.parent.results:
            self.parent.ask()
        found = self.parent.results[self.name]
        self.user_properties.append(("flaky", found["flaky"]))
        if found["verdict"] != "passed":
            raise UnkeptError(found)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *more: Any) -> Any:
        """What failed, in words."""
        return _told(excinfo.value) or super().repr_failure(excinfo, *more)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Where it is."""
        return self.path, None, self.name


def _told(error: BaseException) -> str | None:
    from rolellm.core.errors import RoleLLMError
    from rolellm.core.sanitize import visible

    lines = str(error).splitlines() if isinstance(error, UnkeptError | RoleLLMError) else []
    return "\n".join(map(visible, lines)) or None


class UnkeptError(Exception):
    """An assertion that does not hold."""

    def __init__(self, found: dict[str, Any]) -> None:
        share = found["share"]
        lines = [f"{found['name']}: {found['verdict']}" + (", flaky" if found["flaky"] else "")]
        if share is not None:
            low, high = share["ci95"]
            lines[0] += f"; {share['mean']:.0%} of {share['n']} replies pass [{low:.0%}, {high:.0%}]"
        wrong = [trial for trial in found["trials"] if trial["problem"] or trial["ended"]]
        for trial in wrong[:_SHOWN]:
            lines += [f"  asked: {trial['messages'][-1]}", *(f"  reply: {text}" for text in trial["replies"][-1:])]
            lines += [f"  {trial['problem'] or trial['ended']}"]
        super().__init__("\n".join(lines))
