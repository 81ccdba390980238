"""Endpoints of the language model's server that every test can start, and the key that they show it."""

from collections.abc import Callable
from typing import Any

import pytest

KEY = "sk-test-Zq81vXw0LmT4cR7yPd2N+hK/9bQe"


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLELLM_TEST_KEY", KEY)


@pytest.fixture
def endpoint(llm_server: Callable[..., Any]) -> Callable[..., Any]:
    """Makes an `Endpoint` of a running server; keyword arguments are settings."""
    from rolellm.llm.endpoint import Endpoint
    from rolellm.llm.settings import ModelSettings

    def make(server: Any, **settings: Any) -> Endpoint:
        given = {"model": "local", "base_url": server.url, "api_key_env": "ROLELLM_TEST_KEY", "timeout": 5.0}
        return Endpoint(ModelSettings(**(given | settings)))

    return make
