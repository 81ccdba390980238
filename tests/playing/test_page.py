"""The page of `rolellm chat --web`: what each model is asked, votes, and the page in a real browser."""

import asyncio
import json
import subprocess
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from rolellm.core.jsonl import read_jsonl
from rolellm.judging.people.agreement import measure_agreement
from rolellm.judging.records import read_run
from rolellm.llm.llm import LLM
from rolellm.llm.scripted import ScriptedModel
from rolellm.playing.player import RolePlayer
from rolellm.playing.settings import TalkSettings

from ..pages import ROLELLM, Browser, Started
from .conftest import write_card


@pytest.fixture
def make_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A page of models that answer with their name and the number of messages; its talks are in a folder."""
    pytest.importorskip("gradio")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    from rolellm.reporting.labelling.talk import TalkPage

    def make_player(name: str) -> RolePlayer:
        model = ScriptedModel(lambda request: f"{name} {len(request.messages)}", rules_hash=name)
        return RolePlayer(LLM.of(model), "queen of hearts")

    def make(*names: str) -> Any:
        players = {name: make_player(name) for name in names}
        page = TalkPage(players, "queen of hearts", TalkSettings(), tmp_path / "votes", "anna")
        asyncio.run(build(page))
        return page

    async def build(page: Any) -> None:
        # Without a loop that runs, Gradio begins one, and never ends it.
        page.build()

    return make


class Event:
    """What Gradio says of a thumb, a click or a change."""

    def __init__(self, index: int, value: str = "") -> None:
        self.index, self.value = index, value


class Seen:
    """What a page shows."""

    def __init__(self, page: Any, view: dict[Any, Any]) -> None:
        self.texts = [item["content"] for item in view[page._chatbot]]
        self.name = view[page._talks].value
        self.talks = [label.partition(" (")[0] for label, _ in view[page._talks].choices]
        self.box = view[page._box].value


def say(page: Any, name: str, message: str) -> Seen:
    """Say something."""
    *_, view = page.say(name, message)
    return Seen(page, view)


def test_both_models_get_the_same_prompt_and_votes_are_kept(make_page: Any, tmp_path: Path) -> None:
    page = make_page("fox", "owl")
    name = Seen(page, page.show_talk("")).name
    assert sorted(say(page, name, "Who?").texts) == ["Who?", "fox 2", "owl 2"]
    page.vote(name, Event(1))
    seen = say(page, name, "Why?")
    assert sorted(seen.texts[3:]) == ["fox 4", "owl 4"]
    for index in (4, 3):
        page.vote(name, Event(index))
    run = read_run(tmp_path / "votes")
    assert [row.question for row in run.comparison.rows] == ["Who?", "Why?"]
    lines = (tmp_path / "votes" / "labels" / "anna.jsonl").read_text().splitlines()
    said = [list(json.loads(line)["said"].values()) for line in lines]
    assert said == [["1", "2"], ["2", "1"], ["1", "2"]]
    assert measure_agreement(run).annotators[0].labelled == 2
    # The preferred reply stands, and the other one is among its swipes.
    ((_, last),) = list(read_jsonl(next(page.folder.iterdir())))[-1:]
    assert last["mes"] == seen.texts[3] and sorted(last["swipes"]) == ["fox 4", "owl 4"]
    page.edit(name, Event(3, "changed"))
    with pytest.raises(Exception, match="no vote"):
        page.vote(name, Event(3))


def test_talks_are_listed_edited_swiped_and_branched(make_page: Any) -> None:
    page = make_page("fox")
    first = Seen(page, page.show_talk("")).name
    say(page, first, "Who?")
    assert say(page, first, "Why?").texts == ["Who?", "fox 2", "Why?", "fox 4"]
    page.edit(first, Event(1, "A fox."))
    page.edit(first, Event(2, "How?"))
    assert Seen(page, page.edit(first, Event(3, "So."))).texts == ["Who?", "A fox.", "How?", "So."]
    assert Seen(page, page.swipe(first, 0)).texts[3] == "fox 4"
    branch = Seen(page, page.branch(first, 1))
    assert (branch.texts, branch.talks[1:]) == (["Who?", "A fox."], ["Who?", "Who?"])
    # A message is typed again without its reply.
    again = Seen(page, page.branch(first, 2))
    assert (again.texts, again.box) == (["Who?", "A fox."], "How?")
    # Another program goes on with the talk, and a page that begins later shows all.
    (path,) = (path for path in page.folder.iterdir() if path.name == first)
    make_page("owl").say(first, "And?")
    assert [*make_page("owl").say(first, "And?")]
    assert Seen(page, page.show_talk(first)).texts[4:] == ["And?", "owl 6"]
    assert len(Seen(page, page.show_talk("")).talks) == 4 and path.exists()
    with pytest.raises(Exception, match="not a talk"):
        (page.folder / "x.jsonl").write_text("{}")
        page.show_talk("x.jsonl")


@pytest.mark.filterwarnings("ignore:the talk is not kept")
def test_a_talk_that_cannot_be_kept_goes_on_on_the_page(make_page: Any, tmp_path: Path) -> None:
    page = make_page("fox")
    (tmp_path / "rolellm").touch()
    seen = say(page, Seen(page, page.show_talk("")).name, "Who?")
    assert say(page, seen.name, "Why?").texts == ["Who?", "fox 2", "Why?", "fox 4"]


def test_a_folder_of_something_else_is_no_folder_of_votes(make_page: Any, tmp_path: Path) -> None:
    (tmp_path / "votes").mkdir()
    (tmp_path / "votes" / "notes.txt").touch()
    with pytest.raises(Exception, match="holds other files"):
        make_page("fox")


@pytest.fixture
def start(tmp_path: Path, upstream: Any, start_page: Callable[..., Started]) -> Callable[..., Started]:
    """Starts the page with the card; ``other.yaml`` is a second model."""
    write_card(tmp_path)
    (tmp_path / "other.yaml").write_text(f"endpoints: [{{base_url: '{upstream.url}', model: owl}}]\n")

    def begin(*words: str, role: str = "ada.json") -> Started:
        return start_page("chat", role, "--llm", upstream.url, "--model", "parrot", *words)

    return begin


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
    started = start("--set", "against=other.yaml")
    driver = chromium()
    page = Browser(driver, started.url)
    page.wait(lambda: page.read() == ["Seventy-two steps, User. Sit down."])
    page.say("*waves* <script>document.title='hurt'</script> ![x](http://evil.example/x.png) 2")
    page.wait(lambda: len(page.read()) == 4 and all("one sentence" in text for text in page.read()[2:]))
    assert driver.execute_script("return document.querySelectorAll('.message script').length") == 0
    before = len(upstream.bodies)
    page.press("Retry")
    page.wait(lambda: len(upstream.bodies) == before + 2 and len(page.read()) == 4)
    page.press("Like")
    page.wait(lambda: (tmp_path / "rolellm-votes" / "labels").is_dir())
    page.say("fail now")
    page.wait(lambda: "there was no reply" in driver.find_element("tag name", "body").text)
    page.wait(lambda: page.box.get_attribute("value") == "fail now")
    messages = [json.loads(line["message"])["message"] for line in driver.get_log("performance")]
    asked = [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]
    # The browser notes it as asked for, and then as blocked.
    reached = [one["params"]["response"]["url"] for one in messages if one["method"] == "Network.responseReceived"]
    root = started.url.partition("?")[0]
    assert asked and not [url for url in reached if not url.startswith((root, "data:", "chrome:"))]
    assert "rolellm label --agreement rolellm-votes" in started.stop()


@pytest.mark.browser
def test_a_talk_outlives_a_reload_and_is_edited_branched_and_downloaded(
    start: Any, chromium: Callable[..., Any], tmp_path: Path
) -> None:
    Image.new("RGB", (64, 64), "teal").save(tmp_path / "ada.png", pnginfo=make_text_chunk(tmp_path / "ada.json"))
    started = start("--me", "Kai", role="ada.png")
    page = Browser(chromium(width=390, height=844), started.url)
    page.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    page.wait(lambda: page.read() == ["Seventy-two steps, Kai. Sit down."])
    page.say("drip one two three four five six seven")
    page.wait(lambda: len(page.read()) == 3 and page.read()[2].startswith("drip one two three"))
    # What was there of a reply that is stopped, or left by a reload, is kept.
    page.driver.find_element("css selector", ".stop-button").click()
    page.wait(lambda: not page.driver.find_elements("css selector", ".stop-button"))
    assert len(page.read()) == 3 and "sentence" not in page.read()[2]
    page.say("drip again two three four five six seven")
    page.wait(lambda: len(page.read()) == 5 and page.read()[4].startswith("drip again two three"))
    page.driver.refresh()
    page.wait(lambda: len(page.read()) == 5 and page.read()[4].startswith("drip again two three"))
    page.press("Edit", 1)
    page.driver.find_elements("css selector", ".message textarea")[0].send_keys(" EDITED")
    page.press("Submit", 0)
    page.wait(lambda: "EDITED" in page.read()[1])
    page.driver.find_elements("css selector", ".message")[2].click()
    page.press("Branch after 3")
    page.wait(lambda: len(page.read()) == 3)
    assert len(list(tmp_path.glob("rolellm/talks/Ada_Fenn/*.jsonl"))) == 2
    page.press("Download")
    page.wait(lambda: list(tmp_path.glob("*.jsonl")))
    (file,) = tmp_path.glob("*.jsonl")
    assert [line["mes"] for _, line in list(read_jsonl(file))[1:]] == page.read()
    # No copy of a talk stays behind.
    assert not list((tmp_path / "gradio").rglob("*.jsonl"))
    # The picture is there, and the input has the width of the page.
    loaded = "return [...document.querySelectorAll('.avatar-container img')].every((one) => one.naturalWidth == 64)"
    assert page.driver.execute_script(loaded)
    assert page.driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    width = page.driver.execute_script("return innerWidth")
    assert page.box.size["width"] > 0.7 * width
    started.stop()


def make_text_chunk(card: Path) -> PngInfo:
    """The text of a picture that holds a card."""
    chunk = PngInfo()
    chunk.add_text("chara", b64encode(card.read_bytes()).decode())
    return chunk


@pytest.mark.slow
def test_a_port_that_is_taken(start: Any, tmp_path: Path, upstream: Any) -> None:
    taken = upstream.url.rsplit(":", 1)[1].removesuffix("/v1")
    words = ["chat", "ada.json", "--web", "--llm", "other.yaml", "--set", f"port={taken}"]
    done = subprocess.run([ROLELLM, *words], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "not available" in done.stderr and done.stderr.count("\n") == 1
