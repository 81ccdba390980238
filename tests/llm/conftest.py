"""A language model's server on this machine, `examples/local_llm.py`, for every test that wants one."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

KEY = "sk-test-Zq81vXw0LmT4cR7yPd2N+hK/9bQe"


@pytest.fixture
def llm_server(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Starts a `LocalLLM` with the arguments given; it ends with the test. Its key is in ``ROLELLM_TEST_KEY``."""
    monkeypatch.syspath_prepend(root / "examples")
    import local_llm

    monkeypatch.setenv("ROLELLM_TEST_KEY", KEY)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with ExitStack() as stack:

        def start(answer: Any = None, **settings: Any) -> Any:
            faults = settings.pop("faults", ())
            given = tuple(local_llm.Faults(**fault) if isinstance(fault, dict) else fault for fault in faults)
            rule = {} if answer is None else {"answer": answer}
            return stack.enter_context(local_llm.LocalLLM(**rule, faults=given, **settings))

        yield start


@pytest.fixture
def endpoint(llm_server: Callable[..., Any]) -> Callable[..., Any]:
    """Makes an `Endpoint` of a running server; keyword arguments are settings."""
    from rolellm.llm.endpoint import Endpoint, EndpointSettings

    def make(server: Any, **settings: Any) -> Endpoint:
        given = {"model": "local", "base_url": server.url, "api_key_env": "ROLELLM_TEST_KEY", "timeout": 5.0}
        return Endpoint(EndpointSettings(**(given | settings)))

    return make
