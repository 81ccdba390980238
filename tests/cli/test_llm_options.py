"""The options that commands which ask models share, through a command that has them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rolellm.llm.llm import LLM, CallOptions, ModelOptions
from rolellm.llm.model import RunOptions
from rolellm.llm.settings import ModelSettings

from ..commands import Command

HERE = "http://localhost:8000/v1"
PRICED = """
endpoints:
  - base_url: https://api.example.com/v1
    model: big
    api_key_env: A_KEY_THAT_IS_NOT_SET
    price: {prompt: 3, completion: 6}
max_attempts: 3
budget: 2.5
"""
# Whatever opens a socket or looks a host up ends the process, and cannot be caught.
DRY = """
import os, sys

def audit(event, args):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        os.write(2, f"{event} {args}".encode())
        os._exit(9)

sys.addaudithook(audit)
"""


@pytest.fixture
def priced(place: Path) -> Path:
    (place / "llm.yaml").write_text(PRICED, encoding="utf-8")
    return place


def test_options_go_before_a_file(priced: Path) -> None:
    chosen = ModelOptions(llm=str(priced / "llm.yaml"))
    assert LLM.from_options(chosen).options == RunOptions(max_attempts=3, budget=2.5)
    limited = LLM.from_options(chosen, CallOptions(budget=0.0, retry_failed=True))
    assert limited.options == RunOptions(max_attempts=3, budget=0.0, retry_failed=True)
    server = LLM.from_options(ModelOptions(llm=HERE, model="small", api_key_env="SOME_KEY"))
    assert server.settings.endpoints == (ModelSettings(base_url=HERE, model="small", api_key_env="SOME_KEY"),)


def test_a_dry_run_opens_no_socket_and_prints_one_object(priced: Path) -> None:
    # As at a user's: nothing in the environment keeps other libraries off the network.
    environment = {name: value for name, value in os.environ.items() if "OFFLINE" not in name}
    words = ["instruct", "fox", "--llm", "llm.yaml", "--dry-run", "--json"]
    command = [sys.executable, "-c", f"{DRY}from rolellm.cli.app import main\nmain()", *words]
    done = subprocess.run(command, cwd=priced, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["worst"]["calls"] == 3 * found["requests"] == 3 * found["low"]["calls"] > 0
    assert 0 < found["low"]["cost"] < found["expected"]["cost"] < found["worst"]["cost"]
    assert found["exact"] is False


def test_a_dry_run_without_prices(place: Path, command: Command) -> None:
    done = command("instruct", place / "fox", "--llm", HERE, "--model", "small", "--dry-run")
    for words in ("no price", "No price is given for localhost:8000/small.", "Tokens are estimated"):
        assert words in done.out


def test_the_hook_of_these_tests_would_end_a_process_that_connects() -> None:
    code = f"{DRY}import socket\nsocket.create_connection(('127.0.0.1', 9))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 9
