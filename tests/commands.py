"""``rolellm`` commands through their entry point, in the process of the tests."""

import json
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import pytest

from rolellm.cli.app import main


class Shown(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """What was printed, which must be one object and nothing else."""
        value = json.loads(self.out)
        assert isinstance(value, dict)
        return value

    @property
    def result(self) -> dict[str, Any]:
        """What a command printed that did all of its work."""
        assert self.code == 0, self.err
        return self.json


Command = Callable[..., Shown]


def exit_code(*words: Any) -> int:
    """Runs a command; how it ended."""
    # What the command line sets for its own process, the tests' must not keep.
    with pytest.MonkeyPatch.context() as patch, mock.patch.dict(os.environ):
        patch.setattr(sys, "argv", ["rolellm", *map(str, words)])
        patch.setattr(warnings, "formatwarning", warnings.formatwarning)
        with pytest.raises(SystemExit) as caught:
            main()
    return int(caught.value.code or 0)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs ``rolellm`` with these words."""

    def call(*words: Any) -> Shown:
        code = exit_code(*words)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return Shown(code, out, err)

    return call


def inert(text: str) -> bool:
    """Whether it does nothing to a terminal."""
    return all(character.isprintable() or character == "\n" for character in text)
