"""The options that commands which ask models share, through a command that has them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from rolellm.cli.llm_options import make_llm
from rolellm.cli.options import AsJson, with_options
from rolellm.cli.output import print_result
from rolellm.core.errors import SettingsError
from rolellm.llm.llm import LLM, CallOptions, ModelOptions
from rolellm.llm.model import Request, RunOptions, Sampling, system, user
from rolellm.llm.settings import ModelSettings

HERE = ("--llm", "http://localhost:8000/v1", "--model", "small")
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
import pathlib
sys.path.insert(0, str(pathlib.Path(sys.argv.pop(1))))
from test_llm_options import app
from rolellm.core.errors import SettingsError
try:
    app()
except SettingsError as error:
    print(error, file=sys.stderr)
    sys.exit(2)
"""

app = typer.Typer()
seen: list[LLM] = []


@app.command()
@with_options
def ask(
    count: Annotated[int, typer.Argument()],
    model: ModelOptions,
    calls: CallOptions,
    as_json: AsJson = False,
) -> None:
    """Ask something so many times."""
    llm = make_llm(model, calls)
    seen.append(llm)
    requests = (Request((system("Be brief."), user(str(number))), Sampling(max_tokens=50)) for number in range(count))
    if llm.dry_run:
        print_result(llm.estimate(requests), as_json)


def call(*words: str) -> LLM:
    seen.clear()
    done = CliRunner().invoke(app, ["4", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return seen[0]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "llm.yaml"
    path.write_text(PRICED, encoding="utf-8")
    return path


def test_a_server_on_the_command_line() -> None:
    llm = call(*HERE, "--set", "api_key_env=SOME_KEY")
    (entry,) = llm.settings.endpoints
    assert entry == ModelSettings(base_url="http://localhost:8000/v1", model="small", api_key_env="SOME_KEY")
    assert llm.options == RunOptions()
    assert not llm.dry_run
    (model,) = call(*HERE).models
    assert model.name == "localhost:8000/small"


def test_a_file_and_what_goes_before_it(file: Path) -> None:
    llm = call("--llm", str(file))
    assert llm.options == RunOptions(max_attempts=3, budget=2.5)
    llm = call("--llm", str(file), "--budget", "0", "--set", "retry_failed=true")
    assert llm.options == RunOptions(max_attempts=3, budget=0.0, retry_failed=True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param((), "no model is named", id="nothing"),
        pytest.param(HERE[:2], "A server needs --model", id="address-alone"),
        pytest.param(HERE[2:], "--model needs --llm URL", id="model-alone"),
        pytest.param(("--llm", "FILE", *HERE[2:]), "--model is for a server; put it in", id="both"),
    ],
)
def test_bad_usage_is_refused_in_words(file: Path, words: tuple[str, ...], said: str) -> None:
    given = [str(file) if word == "FILE" else word for word in words]
    done = CliRunner().invoke(app, ["4", *given])
    assert isinstance(done.exception, SettingsError)
    assert said in str(done.exception)
    assert "sk-1234567890" not in str(done.exception)
    if "put it in" not in said:
        # Both ways, and one that costs nothing.
        for way in ("--llm http", "--llm FILE", "localhost", "backend: local"):
            assert way in str(done.exception)


def dry_run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", DRY, str(Path(__file__).parent), "100", *words, "--dry-run"]
    # As at a user's: nothing in the environment keeps other libraries off the network.
    environment = {name: value for name, value in os.environ.items() if "OFFLINE" not in name}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)


def test_a_dry_run_opens_no_socket_and_prints_one_object(file: Path) -> None:
    done = dry_run("--llm", str(file), "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["requests"] == found["low"]["calls"] == 100
    assert found["worst"]["calls"] == 300
    assert 0 < found["low"]["cost"] < found["expected"]["cost"] < found["worst"]["cost"]
    assert found["exact"] is False


def test_a_dry_run_without_prices() -> None:
    done = CliRunner().invoke(app, ["100", *HERE, "--dry-run"], catch_exceptions=False)
    assert "no price" in done.output
    assert "No price is given for localhost:8000/small." in done.output
    assert "Tokens are estimated" in done.output


def test_the_hook_of_these_tests_would_end_a_process_that_connects() -> None:
    code = DRY.split("import pathlib")[0] + "import socket\nsocket.create_connection(('127.0.0.1', 9))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 9
