"""Waiting threads are told to sleep, unless the user said otherwise, and before torch is there to hear it."""

import os
import subprocess
import sys

import pytest

from rolellm.core.threads import wait_briefly


@pytest.mark.parametrize(
    ("given", "spins"),
    [
        pytest.param({}, "20000", id="nothing-said"),
        pytest.param({"GOMP_SPINCOUNT": "7"}, "7", id="spins-said"),
        pytest.param({"OMP_WAIT_POLICY": "ACTIVE"}, None, id="policy-said"),
    ],
)
def test_what_the_user_said_stands(given: dict[str, str], spins: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "")  # so that what is set below is taken back afterwards
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    wait_briefly()
    assert os.environ.get("GOMP_SPINCOUNT") == spins


def test_the_entry_point_gets_there_before_torch() -> None:
    code = "import sys, rolellm.cli.train, rolellm.training.train, rolellm.core.threads; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
