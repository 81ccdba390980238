"""A Hub of this machine for a module, and processes that fork for each command that uses it."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ..forking import COMMANDS, Forking


@pytest.fixture(scope="module")
def hub_env(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """An environment with a Hub of this machine, `examples/local_hub.py`, for all tests of a module."""
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.syspath_prepend(root / "examples")
        import local_hub

        server = stack.enter_context(local_hub.LocalHub(tmp_path_factory.mktemp("hub")))
        home = tmp_path_factory.mktemp("home")
        ours = {"HF_ENDPOINT": server.endpoint, "HF_TOKEN": local_hub.USER, "HF_HUB_OFFLINE": "0"}
        homes = {"HF_HOME": str(home), "HF_DATASETS_CACHE": str(home / "datasets")}
        yield {**os.environ, **ours, **homes, "HF_HUB_DISABLE_XET": "1"}


@pytest.fixture(scope="module")
def rolellm(hub_env: dict[str, str]) -> Iterator[Forking]:
    """Runs a ``rolellm`` command to its end."""
    with Forking(hub_env, COMMANDS) as forking:
        yield forking


@pytest.fixture(scope="module")
def without_rolellm(hub_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forking]:
    """Runs code that has stock libraries alone, and a Hugging Face home that nothing else touches."""
    env = {**hub_env, "HF_HOME": str(tmp_path_factory.mktemp("elsewhere"))}
    with Forking(env, ("torch", "peft", "transformers")) as forking:
        yield forking
