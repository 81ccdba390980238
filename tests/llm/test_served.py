"""A run that continues notices that a server of one's own serves another model than before."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rolellm.core.errors import SettingsError
from rolellm.llm.served import SERVED, check_served


def test_the_same_model_passes_and_another_is_refused(
    llm_server: Callable[..., Any], endpoint: Callable[..., Any], tmp_path: Path
) -> None:
    says = ["I am the first."]
    server = llm_server(lambda body: says[0])
    check_served([endpoint(server)], tmp_path)
    check_served([endpoint(server)], tmp_path)
    assert server.bodies[0]["temperature"] == 0
    says[0] = "I am another."
    with pytest.raises(SettingsError, match=r"answers the same greedy request differently.*Serve the first one again"):
        check_served([endpoint(server)], tmp_path)
    (tmp_path / SERVED).unlink()
    check_served([endpoint(server)], tmp_path)


def test_a_model_that_the_server_does_not_list_is_refused(
    llm_server: Callable[..., Any], endpoint: Callable[..., Any], tmp_path: Path
) -> None:
    server = llm_server()
    with pytest.raises(SettingsError, match=r"/other: the server does not list this model; it has local\."):
        check_served([endpoint(server, model="other")], tmp_path)


def test_a_server_that_is_down_or_somebody_elses_is_passed_over(
    llm_server: Callable[..., Any], endpoint: Callable[..., Any], tmp_path: Path
) -> None:
    broken = llm_server(faults=[{"rate": 1.0}])
    check_served([endpoint(broken), endpoint(broken, base_url="https://models.example.com/v1")], tmp_path)
    assert not (tmp_path / SERVED).exists()
