"""The page of `rolellm chat --web`: what each model is asked, votes, and the page in a real browser."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from rolellm.judging.people.agreement import measure_agreement
from rolellm.judging.records import read_run
from rolellm.llm.llm import LLM
from rolellm.llm.model import Request
from rolellm.llm.scripted import ScriptedModel
from rolellm.playing.player import RolePlayer

from .conftest import write_card

ROLELLM = str(Path(sys.executable).parent / "rolellm")
ENTER = "\ue007"


def make_page(folder: Path, *names: str) -> Any:
    """A page of models that answer with their name, the number of messages, and all that they said before."""
    gradio = pytest.importorskip("gradio")
    assert gradio
    from rolellm.reporting.labelling.talk import TalkPage

    def make_player(name: str) -> RolePlayer:
        def answer(request: Request) -> str:
            said = [message.content[:3] for message in request.messages if message.role == "assistant"]
            return f"{name} {len(request.messages)} {said}"

        return RolePlayer(LLM.of(ScriptedModel(answer, rules_hash=name)), "queen of hearts")

    return TalkPage({name: make_player(name) for name in names}, folder / "votes", "anna")


def talk(page: Any, *messages: str) -> list[dict[str, Any]]:
    """Say messages one after the other; the history as Gradio keeps it."""
    history: list[dict[str, Any]] = []
    for message in messages:
        *_, replies = page.reply(message, list(history))
        said = [("user", message), *(("assistant", reply) for reply in replies)]
        history += [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in said]
    return history


def read_texts(history: list[dict[str, Any]]) -> list[str]:
    return [item["content"][0]["text"] for item in history]


class Like:
    """What Gradio says of a thumb."""

    def __init__(self, index: int) -> None:
        self.index = index


def test_each_model_sees_its_own_replies_and_votes_are_kept(tmp_path: Path) -> None:
    page = make_page(tmp_path, "fox", "owl")
    history = talk(page, "Who?", "Why?")
    # The talk begins with a user's turn and the system's.
    assert sorted(read_texts(history)[4:]) == ["fox 4 ['fox']", "owl 4 ['owl']"]
    for index in (1, 5, 4):
        page.vote(history, Like(index))
    run = read_run(tmp_path / "votes")
    assert [row.question for row in run.comparison.rows] == ["Who?", "Why?"]
    lines = (tmp_path / "votes" / "labels" / "anna.jsonl").read_text().splitlines()
    assert [json.loads(line)["ranks"] for line in lines] == [[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]]
    assert measure_agreement(run).annotators[0].labelled == 2
    # An edited talk has replies that nobody knows whose they are.
    history[1]["content"][0]["text"] = "changed"
    with pytest.raises(Exception, match="no vote"):
        page.vote(history, Like(1))


def test_a_folder_of_something_else_is_no_folder_of_votes(tmp_path: Path) -> None:
    (tmp_path / "votes").mkdir()
    (tmp_path / "votes" / "notes.txt").touch()
    with pytest.raises(Exception, match="holds other files"):
        make_page(tmp_path, "fox")


class Started:
    """`rolellm chat … --web` at work."""

    def __init__(self, url: str, process: Any) -> None:
        self.url, self.process = url, process

    def stop(self) -> str:
        """Stop it, check that it told nothing on standard error since it began, and return what it said."""
        self.process.send_signal(signal.SIGINT)
        said, errors = self.process.communicate(timeout=60)
        assert (errors, self.process.returncode) == ("", 0)
        return str(said)


@pytest.fixture
def start(tmp_path: Path, upstream: Any) -> Iterator[Callable[..., Started]]:
    """Starts the page with the card; ``other.yaml`` is a second model."""
    write_card(tmp_path)
    (tmp_path / "other.yaml").write_text(f"endpoints: [{{base_url: '{upstream.url}', model: owl}}]\n")
    running = []

    def begin(*words: str) -> Started:
        command = [ROLELLM, "chat", "ada.json", "--web", "--llm", upstream.url, "--model", "parrot", *words]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "GRADIO_TEMP_DIR": str(tmp_path / "gradio")}
        process = subprocess.Popen(
            command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        running.append(process)
        said = process.stderr.readline()
        found = re.search(r"Open (http://127\.0\.0\.1:\d+/\?key=[\w-]{22}) in", said)
        assert found, said + process.stderr.read()
        return Started(found[1], process)

    yield begin
    for process in running:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_only_who_has_the_key_comes_in(start: Any, upstream: Any) -> None:
    started, before = start(), len(upstream.bodies)
    root, key = started.url.split("?key=")
    with httpx2.Client(follow_redirects=True) as visitor:
        assert visitor.get(f"{root}?key={key[:-1]}x").status_code == 401
        for path in ("", "config", "gradio_api/info"):
            assert visitor.get(f"{root}{path}").status_code == 401
        assert visitor.post(f"{root}gradio_api/queue/join", json={}).status_code == 401
        assert visitor.get(started.url).status_code == visitor.get(f"{root}config").status_code == 200
        # A page elsewhere has the cookie sent along with nothing.
        assert "samesite=strict" in httpx2.get(started.url).headers["set-cookie"].lower()
    assert len(upstream.bodies) == before
    started.stop()


@pytest.mark.browser
def test_a_talk_and_a_vote_and_nothing_leaves_the_machine(
    start: Any, chromium: Callable[..., Any], upstream: Any, tmp_path: Path
) -> None:
    started = start("--against", "other.yaml")
    driver = chromium()
    driver.get(started.url)

    def read() -> list[str]:
        find = "return [...document.querySelectorAll('.message')].map((one) => one.innerText.trim())"
        return list(driver.execute_script(find))

    def wait(true: Callable[[], Any]) -> None:
        end = time.monotonic() + 60
        while not true():
            assert time.monotonic() < end, driver.find_element("tag name", "body").text
            time.sleep(0.05)

    def press(name: str) -> None:
        driver.find_elements("css selector", f"button[aria-label='{name}']")[-1].click()

    def say(text: str) -> None:
        box = driver.find_element("css selector", "textarea")
        box.clear()
        box.send_keys(text + ENTER)

    wait(lambda: read() == ["Seventy-two steps, User. Sit down."])
    say("*waves* <script>document.title='hurt'</script> ![x](http://evil.example/x.png) 2")
    wait(lambda: len(read()) == 4 and all("one sentence" in text for text in read()[2:]))
    assert driver.execute_script("return document.querySelectorAll('.message script').length") == 0
    before = len(upstream.bodies)
    press("Retry")
    wait(lambda: len(upstream.bodies) == before + 2 and len(read()) == 4 and "one sentence" in read()[-1])
    press("Like")
    wait(lambda: (tmp_path / "rolellm-votes" / "labels").is_dir())
    press("Undo")
    wait(lambda: len(read()) == 1)
    press("Clear")
    say("fail now")
    wait(lambda: "there was no reply" in driver.find_element("tag name", "body").text)
    messages = [json.loads(line["message"])["message"] for line in driver.get_log("performance")]
    asked = [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]
    # The browser notes it as asked for, and then as blocked.
    reached = [one["params"]["response"]["url"] for one in messages if one["method"] == "Network.responseReceived"]
    root = started.url.partition("?")[0]
    assert asked and not [url for url in reached if not url.startswith((root, "data:", "chrome:"))]
    assert "rolellm label --agreement rolellm-votes" in started.stop()


@pytest.mark.slow
def test_a_port_that_is_taken(start: Any, tmp_path: Path, upstream: Any) -> None:
    taken = upstream.url.rsplit(":", 1)[1].removesuffix("/v1")
    words = ["chat", "ada.json", "--web", "--llm", "other.yaml", "--set", f"port={taken}"]
    done = subprocess.run([ROLELLM, *words], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "not available" in done.stderr and done.stderr.count("\n") == 1
