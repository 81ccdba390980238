"""The pytest plugin: with ``--character-model``, each assertion of a file named ``*.character.yaml`` is an item.

Without that option it does nothing: other programs have files of this name, too. All assertions of a file that were
selected are asked about at once, before the first of them. Replies are kept in pytest's cache folder, so that a second
run asks only what is new. Pytest imports this module in every run: what it needs is imported when there is a file to
test.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from rolellm.checks.character_tests import AssertionResult

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
    is_wanted = parent.config.getoption("--character-model") and file_path.name.endswith(".character.yaml")
    return CharacterFile.from_parent(parent, path=file_path) if is_wanted else None


class CharacterFile(pytest.File):
    """A character's test file."""

    def collect(self) -> Iterator[CharacterItem]:
        """Yield its assertions."""
        from rolellm.characters.roles import find_part
        from rolellm.checks.character_tests import list_assertions, read_tests
        from rolellm.core.errors import RoleLLMError
        from rolellm.core.sanitize import make_visible

        self.results: dict[str, AssertionResult] = {}
        self.problem = ""
        try:
            self.tests = read_tests(self.path)
            assertions = list_assertions(self.tests, find_part(self.tests.role))
        except RoleLLMError as error:
            raise self.CollectError(make_visible(str(error))) from None
        for assertion in assertions:
            yield CharacterItem.from_parent(self, name=assertion.name)

    def ask(self) -> None:
        """Ask the model about the assertions that were selected; once, also where that fails."""
        from rolellm.checks.character_tests import CheckCharacter
        from rolellm.core.errors import RoleLLMError
        from rolellm.llm.llm import LLM
        from rolellm.runs import run_step

        if self.results or self.problem:
            return
        model = str(self.config.getoption("--character-model"))
        names = {item.name for item in self.session.items if item.parent is self}
        cache = getattr(self.config, "cache", None)
        folder = tempfile.mkdtemp(prefix="rolellm-") if cache is None else cache.mkdir("rolellm")
        # Processes of pytest-xdist cannot share a journal.
        folder = Path(folder) / self.path.stem / os.environ.get("PYTEST_XDIST_WORKER", "main")
        try:
            run = run_step(CheckCharacter(self.tests, names), LLM.resolve(model), folder)
            self.results = {assertion.name: assertion for assertion in run.result.assertions}
        except RoleLLMError as error:
            self.problem = str(error)


class CharacterItem(pytest.Item):
    """An assertion."""

    parent: CharacterFile

    def runtest(self) -> None:
        """Look at its verdict."""
        from rolellm.core.sanitize import make_visible

        self.parent.ask()
        problem = self.parent.problem
        if problem:
            pytest.fail(make_visible(problem), pytrace=False)
        assertion = self.parent.results[self.name]
        self.user_properties.append(("flaky", assertion.flaky))
        if assertion.verdict != "passed":
            pytest.fail(make_visible(_describe_failure(assertion)), pytrace=False)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Report where it is."""
        return self.path, None, self.name


def _describe_failure(assertion: AssertionResult) -> str:
    head = f"{assertion.name}: {assertion.verdict}"
    if assertion.flaky:
        head += ", flaky"
    share = assertion.share
    if share is not None:
        low, high = share.ends or (0.0, 1.0)
        head += f"; {share.mean:.0%} of {share.n} replies pass [{low:.0%}, {high:.0%}]"
    lines = [head]
    for trial in assertion.failures[:_SHOWN]:
        lines.append(f"  asked: {trial.messages[-1]}")
        lines += [f"  reply: {text}" for text in trial.replies[-1:]]
        lines.append(f"  {trial.problem or trial.ended}")
    return "\n".join(lines)
