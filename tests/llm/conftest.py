"""Servers of language models with endpoints of them, and the key that they show."""

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


#: Starts a server and makes an endpoint of it.
Serve = Callable[..., tuple[Any, Any]]


@pytest.fixture
def serve(llm_server: Callable[..., Any], endpoint: Callable[..., Any]) -> Serve:
    """Starts a server with what it is given, and makes an endpoint of it with the settings in `at`.

    Every call ends in `fault`, where one is named; it tells to wait for 1.25 seconds, if it tells.
    """

    def start(
        answer: Any = None, *, fault: str | None = None, at: dict[str, Any] | None = None, **settings: Any
    ) -> tuple[Any, Any]:
        faults = {"faults": [{"rate": 1.0, "kinds": [fault], "wait": 1.25}]} if fault else {}
        server = llm_server(answer, **faults, **settings)
        return server, endpoint(server, **(at or {}))

    return start
