"""The page of `rolellm chat --web` in a real browser, in front of a server that says a message's words again."""

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

from .conftest import write_card

ROLELLM = str(Path(sys.executable).parent / "rolellm")

GREETING = "Seventy-two steps, User. Sit down."
HOSTILE = (
    "<img src=x onerror=\"document.title='hurt'\"> **bold** [a](http://evil.example/) <script>hurt()</script> "
    "$x$ $$y$$ `c` <b>b</b> &lt;"
)
ENTER = "\ue007"


class Started:
    """`rolellm chat … --web` at work."""

    def __init__(self, url: str, process: Any, folder: Path) -> None:
        self.url, self.process, self.folder = url, process, folder

    def stop(self) -> str:
        """Stop it, check that it told nothing on standard error since it began, and return what it said."""
        self.process.send_signal(signal.SIGINT)
        said, errors = self.process.communicate(timeout=60)
        assert (errors, self.process.returncode) == ("", 0)
        return said


@pytest.fixture
def start(tmp_path: Path, upstream: Any) -> Iterator[Callable[..., Started]]:
    """Starts the page with the card; ``other.yaml`` is a second model."""
    write_card(tmp_path)
    (tmp_path / "other.yaml").write_text(f"endpoints: [{{base_url: '{upstream.url}', model: owl}}]\n")
    running = []

    def begin(*words: str) -> Started:
        command = [ROLELLM, "chat", "ada.json", "--web", "--base-url", upstream.url, "--model", "parrot", *words]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "GRADIO_TEMP_DIR": str(tmp_path / "gradio")}
        process = subprocess.Popen(
            command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        running.append(process)
        said = process.stderr.readline()
        found = re.search(r"Open (http://127\.0\.0\.1:\d+/[\w-]{22}/) in", said)
        assert found, said + process.stderr.read()
        return Started(found[1], process, tmp_path)

    yield begin
    for process in running:
        process.kill()
        process.communicate()


class Page:
    """What a person sees and presses."""

    def __init__(self, driver: Any, url: str) -> None:
        self.driver = driver
        driver.get(url)
        self.until(lambda: self.said() == [GREETING] * max(1, len(self.names())))

    def shown(self, selector: str) -> list[str]:
        """The texts of what can be seen."""
        find = "return [...document.querySelectorAll(arguments[0])].filter((e) => e.checkVisibility()).map((e) => %s)"
        found = self.driver.execute_script(find % "[e.innerText, e.value]", selector)
        return [value or text for text, value in found]

    def said(self) -> list[str]:
        return self.shown(".message")

    def names(self) -> list[str]:
        return [name.strip() for name in self.shown("label[data-testid=block-label]")]

    def until(self, true: Callable[[], Any]) -> None:
        end = time.monotonic() + 60
        while not true():
            assert time.monotonic() < end, self.driver.find_element("tag name", "body").text
            time.sleep(0.03)

    def press(self, name: str) -> None:
        self.driver.find_element("xpath", f"//button[normalize-space()='{name}']").click()

    def open_settings(self) -> None:
        toggle = self.driver.find_element("css selector", ".sidebar .toggle-button")
        toggle.click()
        time.sleep(0.5)  # It slides.

    def choose(self, what: str, option: str) -> None:
        self.driver.find_element("css selector", f"input[aria-label='{what}']").click()
        self.until(lambda: option in self.shown("ul[role=listbox] li"))
        self.driver.find_element("css selector", f"ul[role=listbox] li[aria-label='{option}']").click()

    def say(self, text: str, *, then: Callable[[], Any]) -> None:
        # A long text would take long to type.
        box = self.driver.find_element("css selector", "textarea[placeholder='Say something']")
        put = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input', {bubbles: true}))"
        self.driver.execute_script(put, box, text)
        box.send_keys(ENTER)
        self.until(then)


@pytest.fixture
def look(chromium: Callable[..., Any]) -> Callable[[Started], Page]:
    return lambda started: Page(chromium(), started.url)


@pytest.mark.browser
def test_a_talk_is_text_and_nothing_leaves_the_machine(start: Any, look: Any, upstream: Any) -> None:
    started = start()
    page = look(started)
    assert "Ada Fenn keeps the lighthouse and counts everything." in page.shown("textarea")
    reply = f"{HOSTILE}\n\nAnswer User in one sentence."
    page.say(HOSTILE, then=lambda: page.said() == [GREETING, HOSTILE, reply])
    inside = "return document.querySelectorAll('.message :is(img, a, b, strong, script, code, .katex)').length"
    assert page.driver.execute_script(inside) == 0
    before = len(upstream.bodies)
    page.press("Retry")
    page.until(lambda: len(upstream.bodies) > before)
    page.until(lambda: page.said() == [GREETING, HOSTILE, reply])
    page.open_settings()
    page.driver.execute_cdp_cmd(
        "Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    )
    page.driver.find_element("css selector", "button[aria-label*=opy]").click()
    who = "Ada Fenn by parrot"
    told = f"{who}: {GREETING}\n\nYou: {HOSTILE}\n\n{who}: {reply}"
    clipboard = "navigator.clipboard.readText().then(arguments[0])"
    page.until(lambda: page.driver.execute_async_script(clipboard) == told)
    assert page.driver.title == "Talk to a role"
    assert page.driver.get_log("browser") == []
    messages = [json.loads(line["message"])["message"] for line in page.driver.get_log("performance")]
    asked = [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]
    root = started.url.rsplit("/", 2)[0]
    ours = (started.url, f"{root}/manifest.json", f"{root}/favicon.ico", "data:", "chrome:")
    assert asked and not [url for url in asked if not url.startswith(ours)]
    started.stop()
    assert not (started.folder / "rolellm-votes").exists()


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1280])
def test_the_talk_comes_first_and_can_be_stopped(start: Any, look: Any, upstream: Any, width: int) -> None:
    page = look(start())
    size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 500}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    box = page.driver.find_element("css selector", "textarea[placeholder='Say something']")
    greeting = page.driver.find_element("css selector", ".message")
    assert 0 <= greeting.rect["y"] < 300 and box.rect["y"] + box.rect["height"] <= 844
    assert page.driver.execute_script("return document.documentElement.scrollWidth") <= width
    page.say("*waves* 2*3*4 **no** * x *", then=lambda: len(page.said()) == 3 and "one sentence" in page.said()[-1])
    actions = page.driver.execute_script("return [...document.querySelectorAll('.message em')].map((e) => e.innerText)")
    assert actions == ["waves", "waves"]
    page.say("drip " + "two " * 200, then=lambda: upstream.open == 1)
    page.press("Stop")
    assert upstream.quiet()
    page.say("go on", then=lambda: page.said()[-1].startswith("go on"))


@pytest.mark.browser
def test_votes_between_two_models_and_two_roles(start: Any, look: Any) -> None:
    started = start("--against", "other.yaml")
    page = look(started)
    assert page.names() == ["parrot", "other.yaml"]
    page.open_settings()
    page.driver.find_element("css selector", "input[type=checkbox]").click()
    page.press("New talk")
    page.until(lambda: page.names() == ["Left", "Right"])
    page.say("How many gulls?", then=lambda: "Equal" in page.shown("button"))
    assert len(page.said()) == 6
    page.press("Left is better")
    page.until(lambda: "is better." in " ".join(page.shown(".toast-body")))
    page.until(lambda: sorted(page.names()) == ["other.yaml", "parrot"] and "Equal" not in page.shown("button"))
    left = page.names()[0]
    page.choose("Second role", "Queen of Hearts")
    page.press("New talk")
    page.until(lambda: len(page.said()) == 1)
    page.say("Why?", then=lambda: "Equal" in page.shown("button"))
    page.press("Equal")
    page.until(lambda: sorted(page.names()) == ["Ada Fenn by parrot", "Queen of Hearts by other.yaml"])
    assert "rolellm label --agreement rolellm-votes" in started.stop()
    folder = started.folder / "rolellm-votes"
    labels = [json.loads(line) for line in next((folder / "labels").glob("*.jsonl")).read_text().splitlines()]
    assert [(labels[0]["order"][0], labels[0]["ranks"]), labels[1]["ranks"]] == [(left, [1.0, 2.0]), [1.5, 1.5]]
    done = subprocess.run([ROLELLM, "label", "--agreement", str(folder), "--json"], capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert (found["rows"], found["annotators"][0]["labelled"]) == (2, 2)


@pytest.mark.browser
def test_what_goes_wrong_is_said_and_the_page_goes_on(start: Any, look: Any, upstream: Any) -> None:
    started = start()
    page = look(started)
    page.open_settings()
    page.choose("Second role", "Ada Fenn")
    page.press("New talk")
    page.until(lambda: "the two sides are the same" in " ".join(page.shown(".toast-body")))
    page.say(" ", then=lambda: "type a message" in " ".join(page.shown(".toast-body")))
    page.say("why? " * 10_000, then=lambda: "characters, too many for a context of 2,000" in page.said()[-1])
    page.say("fail now", then=lambda: "slow down" in page.said()[-1])
    page.say("go on", then=lambda: page.said()[-1].startswith("go on"))
    # A browser that leaves takes its request with it.
    page.say("drip " + "two " * 200, then=lambda: upstream.open == 1)
    page.driver.get("about:blank")
    assert upstream.quiet()
    # A stream that comes after its browser left is nothing to tell the person at the terminal.
    with pytest.raises(httpx2.RemoteProtocolError):
        httpx2.get(f"{started.url}gradio_api/queue/data?session_hash=left")
    started.stop()


@pytest.mark.slow
def test_only_the_page_itself_asks_and_nothing_is_uploaded(start: Any, upstream: Any, tmp_path: Path) -> None:
    started, before = start(), len(upstream.bodies)
    root, token, _ = started.url.rsplit("/", 2)
    join: dict[str, Any] = {"fn_index": 0, "data": [], "session_hash": "s", "event_id": "e"}
    api = f"{started.url}gradio_api"
    assert httpx2.get(started.url).status_code == httpx2.get(f"{api}/info").status_code == 200
    assert httpx2.post(f"{api}/cancel", json=join).status_code == 200
    for origin in ("http://localhost:3000", "https://evil.example", "null"):
        for url in (f"{api}/queue/join", f"{api}/upload"):
            assert httpx2.post(url, json=join, headers={"Origin": origin}).status_code == 403
    assert httpx2.get(started.url, headers={"Host": "evil.example"}).status_code == 403
    for path in ("", "config", "gradio_api/info", "gradio_api/queue/join", f"{token[:-1]}x/"):
        assert httpx2.get(f"{root}/{path}").status_code == 401
    for path in ("upload", "run/predict", "reset", "stream/1", "component_server", "process_recording"):
        files = {"files": ("a.txt", b"x" * 100)}
        assert httpx2.post(f"{api}/{path}", files=files).status_code == 403
    assert httpx2.post(f"{api}/queue/join", content=b" " * (9 << 20)).status_code == 413
    assert [path for path in (tmp_path / "gradio").rglob("*") if path.is_file()] == []
    assert len(upstream.bodies) == before
    started.stop()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(["nobody", "--web", "--llm", "other.yaml"], "no role 'nobody'", id="role"),
        pytest.param(["ada.json", "--llm", "other.yaml", "--against", "other.yaml"], "needs --web", id="no-web"),
        pytest.param(["ada.json", "--web", "--llm", "other.yaml", "--against", "other.yaml"], "again", id="same"),
        pytest.param(
            ["ada.json", "--web", "--llm", "other.yaml", "--votes", "."],
            "holds other files",
            id="votes",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["ada.json", "--web", "--llm", "other.yaml", "--port", "{taken}"],
            "not available",
            id="port",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_cannot_be_shown(start: Any, tmp_path: Path, upstream: Any, words: list[str], said: str) -> None:
    taken = upstream.url.rsplit(":", 1)[1].removesuffix("/v1")
    given = [word.format(taken=taken) for word in words]
    done = subprocess.run([ROLELLM, "chat", *given], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
