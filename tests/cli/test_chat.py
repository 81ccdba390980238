"""`rolellm chat` as a user has it: lines in, a talk out, and a sentence for whatever goes wrong."""

import json
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from rolellm.characters.folder import write_character
from rolellm.core.records import Profile, Turn

from ..forking import Forking

ROLELLM = str(Path(sys.executable).parent / "rolellm")


@pytest.fixture
def place(tmp_path: Path, llm_server: Any) -> Path:
    """A folder with a character and a settings file."""
    server = llm_server(answer=lambda body: f"{len(body['messages'])} messages. \x1b[31m")
    turns = (Turn("Ada", "Seventy-two steps."),)
    write_character(Profile("Ada", "en", turns, description="You keep the lighthouse."), tmp_path / "ada")
    (tmp_path / "llm.yaml").write_text(f"endpoints: [{{base_url: '{server.url}', model: local}}]\n", encoding="utf-8")
    return tmp_path


def test_a_talk_with_its_commands(place: Path, clean_env: dict[str, str]) -> None:
    lines = ["Who are you?", "And now?", "/retry", "/edit Why?", "/explain", "/save talk.jsonl", "/save llm.yaml"]
    lines += ["/save", "/dance", "/role nobody", "", "/help", "/role ada", "Hello.", "/new", "/load", "/load 2"]
    lines += ["/load nowhere", "/swipe 9", "/load talk.jsonl", "/quit now", "never said"]
    words, given = [ROLELLM, "chat", "ada", "--llm", "llm.yaml"], "\n".join(lines)
    done = subprocess.run(words, cwd=place, env=clean_env, input=given, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "Traceback" not in done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith("Ada: ")]
    assert [line.removeprefix("Ada: ")[0] for line in said] == ["2", "4", "4", "4", "2", "4", "4"]
    # What a model says does not steer the terminal.
    assert "\x1b" not in done.stdout and "␛[31m" in done.stdout
    for words in (
        "[user]\nWhy?",
        "llm.yaml exists already",
        "/save needs a word",
        "no command /dance",
        "no role 'nobody'",
        "no talk in nowhere; /load lists the talks",
    ):
        assert words in done.stdout
    kept = [json.loads(line).get("mes") for line in (place / "talk.jsonl").read_text().splitlines()]
    assert [text.partition(" ")[0] for text in kept[1:]] == ["Who", "2", "Why?", "4"]
    assert "never said" not in done.stdout and "You are talking to" not in done.stdout
    # Each talk is in the character's folder, as it was at its end; `/save` went on in another file.
    files = sorted((place / "ada" / "talks").iterdir())
    assert [len(file.read_text().splitlines()) for file in files] == [5, 3]
    for file in (*files[1:], Path("talk.jsonl")):
        assert f"The talk is in {file.relative_to(place) if file.is_absolute() else file}." in done.stderr


def test_a_model_that_is_nowhere_is_looked_for_once(tmp_path: Path, lukewarm: Forking) -> None:
    requests: list[str] = []

    class Failing(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            requests.append(self.path)
            self.send_response(503)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Failing) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        env = {
            "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
            "HF_HUB_OFFLINE": None,
            "HF_HOME": str(tmp_path),
        }
        done = lukewarm.run(["chat", "Queen of Hearts", "--model", "nobody/nosuch"], tmp_path, env=env)
        server.shutdown()
    assert (done.returncode, len(requests)) == (1, 1), done.stderr
    assert done.stderr.startswith("error: ") and "nobody/nosuch" in done.stderr and done.stderr.count("\n") == 1
