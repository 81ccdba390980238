"""The page of `rolellm chat --web` in a real browser, in front of a server that says a message's words again."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from ..commands import Command
from ..forking import Forked, Forking
from .conftest import address, write_card

HOSTILE = "<img src=x onerror=\"document.title='hurt'\"> **bold** [a](http://evil.example/) <script>hurt()</script>"


class Started:
    """`rolellm chat … --web` at work."""

    def __init__(self, url: str, process: Forked, folder: Path) -> None:
        self.url, self.process, self.folder = url, process, folder
        self.origin = url[: url.index("/", 8)]

    def post(self, what: str, body: Any, **headers: str) -> httpx2.Response:
        return httpx2.post(
            self.url + what, json=body, headers={"Origin": re.match(r"http://[^/]+", self.url)[0], **headers}
        )

    def begin(self, *sides: tuple[str, str], blind: bool = False) -> dict[str, Any]:
        given = [{"role": role, "model": model} for role, model in sides]
        answer = self.post("begin", {"sides": given, "blind": blind})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def say(self, talk: int, text: str) -> list[dict[str, Any]]:
        lines = self.post("say", {"talk": talk, "text": text}).text.split("\n")
        return [json.loads(line) for line in lines if line]

    def stop(self) -> str:
        self.process.send_signal(signal.SIGINT)
        done = self.process.wait()
        assert "Traceback" not in done.stderr and done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def start(tmp_path: Path, upstream: Any, warm: Forking) -> Iterator[Callable[..., Started]]:
    """Starts the page with the card, or another role; ``other.yaml`` is a second model."""
    write_card(tmp_path)
    (tmp_path / "other.yaml").write_text(f"endpoints: [{{base_url: '{upstream.url}', model: owl}}]\n")
    running = []

    def begin(*words: str, role: str = "ada.json") -> Started:
        given = ["chat", role, "--web", "--base-url", upstream.url, "--model", "parrot", *words]
        running.append(warm.start(given, tmp_path, env={"ROLEBENCH_DIR": None}))
        return Started(address(running[-1], r"Open (http://127\.0\.0\.1:\S+) in"), running[-1], tmp_path)

    yield begin
    for process in running:
        process.send_signal(signal.SIGKILL)


class Page:
    """What a person sees and presses."""

    def __init__(self, driver: Any, url: str) -> None:
        self.driver, self.url = driver, url
        driver.get(url)
        self.wait(lambda: self.all("article"))

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements("css selector", selector)

    def texts(self, selector: str) -> list[str]:
        return [one.text for one in self.all(selector) if one.is_displayed()]

    def wait(self, true: Callable[[], Any]) -> None:
        end = time.monotonic() + 20
        while not true():
            assert time.monotonic() < end, self.driver.find_element("tag name", "body").text
            time.sleep(0.03)

    def choose(self, name: str, option: str) -> None:
        from selenium.webdriver.support.ui import Select

        Select(self.all(f"select[aria-label='{name}']")[0]).select_by_visible_text(option)

    def click(self, selector: str) -> None:
        self.all(selector)[0].click()

    def say(self, text: str) -> None:
        before = len(self.all(".asked"))
        self.all("#text")[0].send_keys(text + "\ue007")
        self.wait(lambda: len(self.all(".asked")) > before and self.quiet())

    def quiet(self) -> bool:
        return self.driver.execute_script("return document.body.ariaBusy") == "false"


@pytest.fixture
def look(chromium: Callable[..., Any]) -> Callable[[Started], Page]:
    return lambda started: Page(chromium(), started.url)


@pytest.mark.browser
def test_a_talk_is_text_and_nothing_leaves_the_machine(start: Any, look: Any) -> None:
    started = start()
    page = look(started)
    assert page.texts("article .text") == ["Seventy-two steps, User. Sit down."]
    assert "lighthouse" in page.texts(".about")[0]
    page.say(HOSTILE)
    assert page.texts(".asked") == [HOSTILE]
    assert page.texts("article .text")[-1].startswith(HOSTILE)
    assert not page.all("main img, main a, main b, main strong, main script") and page.driver.title == "Talk to a role"
    page.driver.execute_cdp_cmd(
        "Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    )
    page.click("#copy")
    page.wait(lambda: page.texts("#copy") == ["Copied"])
    copied = page.driver.execute_async_script("navigator.clipboard.readText().then(arguments[0])")
    assert copied.startswith("Ada Fenn by parrot: Seventy-two steps") and f"You: {HOSTILE}" in copied
    assert page.driver.get_log("browser") == []
    messages = [json.loads(line["message"])["message"] for line in page.driver.get_log("performance")]
    asked = [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]
    assert asked and not [url for url in asked if not url.startswith((started.url, "data:", "chrome:"))]
    started.stop()
    assert not (started.folder / "rolellm-votes").exists()


@pytest.mark.browser
def test_two_models_side_by_side_and_a_blind_vote(start: Any, look: Any, command: Command) -> None:
    started = start("--against", "other.yaml")
    page = look(started)
    page.choose("Second role", "Ada Fenn")
    page.click("#blind")
    page.click("#new")
    page.wait(lambda: len(page.all("article")) == 2 and page.quiet())
    page.say("How many gulls?")
    assert page.texts(".who") == ["Left", "Right"] * 2
    assert "parrot" not in page.driver.find_element("id", "talk").text
    assert page.texts("#votes button") == ["Left", "Equal", "Right"]
    page.click("[data-choice=first]")
    page.wait(lambda: page.texts("#problem"))
    assert sorted(page.texts(".who")[:2]) == ["other.yaml", "parrot"] and not page.texts("#votes")
    left = page.texts(".who")[0]
    assert "rolellm agreement rolellm-votes" in started.stop()
    folder = started.folder / "rolellm-votes"
    (label,) = [json.loads(line) for line in next((folder / "labels").glob("*.jsonl")).read_text().splitlines()]
    assert (label["order"][0], label["ranks"]) == (left, [1.0, 2.0])
    found = command("agreement", folder, "--json").json
    assert (found["rows"], found["annotators"][0]["labelled"]) == (1, 1)


def test_votes_add_up_over_talks_and_sessions(start: Any, command: Command) -> None:
    ada, queen = ("Ada Fenn", "parrot"), ("Queen of Hearts", "parrot")
    started = start()
    talk = started.begin(ada, queen, blind=True)
    assert talk["names"] is None
    vote = {"talk": talk["talk"], "choice": "tie"}
    assert "nothing to vote on" in started.post("vote", vote).text
    started.say(talk["talk"], "Why?")
    assert sorted(started.post("vote", vote).json()["names"]) == ["Ada Fenn by parrot", "Queen of Hearts by parrot"]
    # Who is where is known now.
    assert "nothing to vote on" in started.post("vote", vote).text
    assert "nothing to vote on" in started.post("vote", {**vote, "talk": started.begin(ada, queen)["talk"]}).text
    started.stop()
    started = start("--against", "other.yaml")
    talk = started.begin(ada, ("Ada Fenn", "other.yaml"), blind=True)["talk"]
    started.say(talk, "And now?")
    assert started.post("vote", {"talk": talk, "choice": "second"}).status_code == 200
    started.stop()
    assert command("agreement", started.folder / "rolellm-votes", "--json").json["rows"] == 2


def test_bad_messages_get_a_sentence_and_the_page_goes_on(start: Any, upstream: Any) -> None:
    started = start()
    talk = started.begin(("Ada Fenn", "parrot"))["talk"]
    assert "characters, too many for a context of 2,000" in started.say(talk, "why? " * 200_000)[0]["problem"]
    assert "slow down" in started.say(talk, "fail now")[0]["problem"]
    assert [one["problem"] for one in started.say(talk, " ")] == ["the message is empty; say something"]
    for what, body, said in (
        ("say", {"talk": 99, "text": "Why?"}, "no longer kept"),
        ("say", {"talk": talk}, "damaged at text"),
        ("say", {"talk": talk, "text": "x" * (9 << 20)}, "too long"),
        ("begin", {"sides": [{"role": "Ada Fenn", "model": "parrot"}] * 2}, "are the same"),
        ("begin", {"sides": [{"role": "nobody", "model": "parrot"}]}, "no such role"),
        ("dance", {}, "not found"),
    ):
        answer = started.post(what, body)
        assert answer.status_code >= 400 and said in answer.json()["problem"], answer.text
    assert started.post("state", {}, Origin="http://evil.example").status_code == 403
    assert "".join(one.get("text", "") for one in started.say(talk, "go on")).startswith("go on")
    started.stop()


def test_a_browser_that_leaves_takes_its_request_with_it(start: Any, upstream: Any) -> None:
    started = start(role="queen of hearts")
    talk = started.begin(("Queen of Hearts", "parrot"))["talk"]
    upstream.go.clear()
    body = {"talk": talk, "text": "hold two three"}
    with httpx2.stream("POST", started.url + "say", json=body, headers={"Origin": started.origin}) as answer:
        assert "hold" in next(answer.iter_text())
        assert "still being answered" in started.post("say", body).text
    upstream.go.set()
    assert upstream.quiet()
    end = time.monotonic() + 20
    while "still being" in (said := started.post("say", {"talk": talk, "text": "go on"}).text):
        assert time.monotonic() < end
        time.sleep(0.1)
    assert "go" in said
    started.stop()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        pytest.param(["nobody", "--web", "--llm", "other.yaml"], 2, "no role 'nobody'", id="role"),
        pytest.param(["ada.json", "--llm", "other.yaml", "--against", "other.yaml"], 2, "needs --web", id="no-web"),
        pytest.param(["ada.json", "--web", "--llm", "other.yaml", "--against", "other.yaml"], 2, "again", id="same"),
        pytest.param(["ada.json", "--web", "--llm", "other.yaml", "--votes", "."], 2, "holds other files", id="votes"),
        pytest.param(["ada.json", "--web", "--llm", "other.yaml", "--port", "{taken}"], 2, "not available", id="port"),
    ],
)
def test_what_cannot_be_shown(
    start: Any,
    tmp_path: Path,
    upstream: Any,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    code: int,
    said: str,
) -> None:
    taken = upstream.url.rsplit(":", 1)[1].removesuffix("/v1")
    monkeypatch.chdir(tmp_path)
    done = command("chat", *(word.format(taken=taken) for word in words))
    assert (done.code, said in done.err) == (code, True), done.err
    assert done.err.startswith("error: ") and done.err.count("\n") == 1
