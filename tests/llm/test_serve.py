"""`transformers serve`, a real server with a real (tiny) model, asked as a user would ask it."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from rolellm.llm.client import Client
from rolellm.llm.endpoint import Endpoint
from rolellm.llm.model import Answer, Request, RunOptions, Sampling, Schema, system, user
from rolellm.llm.settings import ModelSettings
from rolellm.models.prompts.render import load_chat_template

pytestmark = pytest.mark.slow


@pytest.fixture
def checkpoint(tiny_model: Path, tmp_path: Path) -> Path:
    """The tiny model with a chat template, without which the server takes no chats."""
    folder = tmp_path / "tiny"
    shutil.copytree(tiny_model, folder)
    (folder / "chat_template.jinja").write_text(load_chat_template("rolellama"), encoding="utf-8")
    return folder


@pytest.fixture
def serve(checkpoint: Path, tmp_path: Path, clean_env: dict[str, str]) -> Iterator[str]:
    """`transformers serve` on a port of its own; gives its base URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("transformers")), "serve", str(checkpoint)]
    env = {**clean_env, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    log = tmp_path / "serve.log"
    with log.open("wb") as out:
        process = subprocess.Popen([*command, "--port", str(port), "--device", "cpu"], env=env, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + 120
        while True:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            try:
                urllib.request.urlopen(f"http://localhost:{port}/health", timeout=1).close()
                break
            except OSError:
                time.sleep(0.2)
        yield f"http://localhost:{port}/v1"
    finally:
        process.terminate()
        process.wait(timeout=30)


def test_a_real_server(serve: str, checkpoint: Path, tmp_path: Path) -> None:
    at = Endpoint(ModelSettings(model=str(checkpoint), base_url=serve, concurrency=2, structured="auto"))
    sampling = Sampling(max_tokens=8, temperature=1.0)
    asked = [Request((system("You are a fox."), user(f"Why, {number}?")), sampling) for number in range(4)]
    shaped = Request(asked[0].messages, sampling, schema=Schema("s", {"type": "object", "properties": {}}))
    options = RunOptions(show_progress=False, max_attempts=2)

    with Client(tmp_path / "run", [at], options) as client:
        outcomes = client.ask([*asked, shaped], lambda _, reply: reply, also=("length", "empty"))
        calls = client.spent.calls

    assert all(isinstance(outcome, Answer) for outcome in outcomes), outcomes
    for outcome in outcomes:
        assert outcome.value.finish in ("stop", "length", "empty")
        assert 1 <= outcome.value.usage.completion <= 9
        assert outcome.value.usage.prompt > 0
    assert calls == 5

    with Client(tmp_path / "run", [at], options) as client:
        again = client.ask([*asked, shaped], lambda _, reply: reply, also=("length", "empty"))
        assert client.spent.calls == 0
    assert [getattr(outcome, "value", None) for outcome in again] == [getattr(o, "value", None) for o in outcomes]
    assert os.environ.get("OPENAI_API_KEY") is None
