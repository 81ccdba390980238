"""The labelling page in a real browser, by the keyboard alone."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rolellm.judging.people.labels import AuditLabel, RankingLabel, read_labels
from rolellm.judging.records import read_run
from rolellm.reporting.labelling import LabelServer

from ...judge_runs import CONTESTANTS, make_comparison, make_rows, write_run

webdriver = pytest.importorskip("selenium.webdriver")
pytestmark = pytest.mark.browser

ENTER, LEFT, RIGHT, BACK, TAB, ESCAPE = "\ue007", "\ue012", "\ue014", "\ue003", "\ue004", "\ue00c"
HOSTILE = (
    "<script>fetch('http://evil.example/a')</script><img src=http://evil.example/b.png onerror=alert(1)>"
    "<style>@import url(http://evil.example/c)</style></p></article>"
    "<meta http-equiv=refresh content='0;url=//evil.example'>"
    "\u202egnp.exe javascript:alert(1)"
)


class Page:
    """What a person sees and presses."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def __call__(self, name: str) -> str:
        return str(self.driver.find_element("id", name).text)

    def press(self, *keys: str) -> None:
        for key in keys:
            webdriver.ActionChains(self.driver).send_keys(key).perform()

    def wait(self, name: str, text: str) -> None:
        end = time.monotonic() + 10
        while text not in self(name):
            assert time.monotonic() < end, f"#{name} says {self(name)!r}, not {text!r}"
            time.sleep(0.02)

    def places(self) -> list[str]:
        return [one.text for one in self.driver.find_elements("css selector", "article .place")]

    def script(self, code: str) -> Any:
        return self.driver.execute_script(code)

    def asked(self) -> set[str]:
        """All addresses that the browser asked for since the last time."""
        found = set()
        for line in self.driver.get_log("performance"):
            message = json.loads(line["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                found.add(message["params"]["request"]["url"])
        return found

    def check(self, server: LabelServer) -> None:
        """No complaint of the browser, and nothing asked of anybody but the server."""
        assert self.driver.get_log("browser") == []
        # A new browser's own first page is still asking for parts of itself.
        assert not [url for url in self.asked() if not url.startswith((server.url, "data:", "chrome:"))]


Open = Callable[..., Page]
Serve = Callable[..., LabelServer]


@pytest.fixture
def open_page(chromium: Callable[..., Any]) -> Open:
    def start(server: LabelServer, **size: int) -> Page:
        page = Page(chromium(**size))
        page.driver.get(server.url)
        page.wait("position", "of")
        return page

    return start


def test_a_sample_is_ranked_by_the_keyboard_alone(serve: Serve, open_page: Open, folder: Path) -> None:
    server = serve(sample=4)
    page = open_page(server)
    assert page("position") == "1 of 4" and page("left") == "4 left" and "birds" in page("question")
    assert not page.driver.find_element("id", "description").is_displayed()

    page.press("0")
    assert page("references").startswith("On day")
    page.press("0", "=")
    page.wait("problem", "Press the best letter first")
    page.press("b", "b")
    page.wait("problem", "is already ranked")
    page.press("=", "A", BACK, "=", BACK, ENTER)
    page.wait("problem", "Not ranked yet: A, C")
    assert page("said") == "B › …"
    page.press("=", "a", "c")
    assert page("said") == "B = A › C" and page.places() == ["place 1 (tie)", "place 1 (tie)", "place 3"]
    page.press(ENTER)
    page.wait("position", "2 of 4")
    assert page("left") == "3 left"

    page.press("s")
    page.wait("position", "3 of 4")
    # What is begun stays while one looks elsewhere, and is not saved.
    page.press("c", "a", LEFT)
    page.wait("left", "skipped")
    page.press(LEFT)
    page.wait("left", "saved")
    assert page("said") == "A = B › C"
    page.press(RIGHT)
    page.wait("position", "2 of 4")
    page.press(RIGHT)
    page.wait("position", "3 of 4")
    assert page("said") == "C › A › …"

    # A reload goes on at the same row; a new page at the first that is open.
    page.driver.refresh()
    page.wait("position", "3 of 4")
    assert page("said") == "Best first: press a letter"
    page.press("c", "a", "b", ENTER)
    page.wait("position", "4 of 4")
    page.driver.get("about:blank")
    page.driver.get(server.url)
    page.wait("position", "4 of 4")

    # Second thoughts on the first row.
    page.driver.get(f"{server.url}#1")
    page.wait("position", "1 of 4")
    page.press(ENTER)
    page.wait("position", "4 of 4")
    for number in (3, 2, 1):
        page.press(LEFT)
        page.wait("position", f"{number} of 4")
    page.press(BACK, BACK, BACK, "c", "b", "a", ENTER)
    page.wait("position", "4 of 4")

    page.press("?")
    assert "undo the last one" in page("key-list")
    # The keys below do nothing while they are read.
    page.press("a", ESCAPE)
    assert page("said") == "Best first: press a letter"
    before = {name: name in page.driver.page_source for name in (*CONTESTANTS, "rolellm label --agreement")}
    page.press("b", "c", "a", ENTER)
    page.wait("end-title", "Done")
    assert page("end-counts") == "3 ranked, 1 skipped." and "rolellm label --agreement the-run" in page("commands")
    assert not any(before.values())
    assert not [name for name in CONTESTANTS if name in page.driver.page_source]
    page.press(LEFT)
    page.wait("position", "4 of 4")
    page.check(server)

    lines = (folder / "labels" / "anna.jsonl").read_text().splitlines()
    assert [json.loads(line)["ranks"] for line in lines] == [[1.5, 1.5, 3], None, [2, 3, 1], [3, 2, 1], [3, 1, 2]]
    ranked = [label for label in read_labels(read_run(folder), "anna", RankingLabel).values() if not label.skipped]
    assert all(0 < label.seconds < 60 for label in ranked)


def test_the_mouse_works_and_leaves_the_keys_to_the_page(serve: Serve, open_page: Open, folder: Path) -> None:
    server = serve(sample=2)
    page = open_page(server)
    cards = page.driver.find_elements("css selector", "article button")
    cards[2].click()
    page.driver.find_element("id", "tie").click()
    cards[0].click()
    page.driver.find_element("id", "undo").click()
    cards[1].click()
    page.press("a", ENTER)
    page.wait("position", "2 of 2")
    # Who tabs to a button means the button.
    page.press(TAB, TAB, TAB, TAB)
    page.script("document.querySelector('article button').focus()")
    page.press(ENTER)
    page.wait("said", "A › …")
    page.driver.find_element("id", "skip").click()
    page.wait("end-title", "Done")
    page.driver.find_element("id", "again").click()
    page.wait("position", "1 of 2")
    assert page("said") == "C › B › A"
    page.check(server)


def test_the_audit_is_answered_by_three_keys(serve: Serve, open_page: Open, folder: Path) -> None:
    server = serve(audit=True, sample=3)
    page = open_page(server)
    assert page("position") == "1 of 3" and not page.driver.find_element("id", "tie").is_displayed()
    page.press("1", "3", ENTER)
    page.wait("problem", "Not answered yet: 2")
    page.press("2", "2", "3", "3", BACK)
    assert page("said") == "yes · no · …"
    page.press("3", "3", "3", ENTER)
    page.wait("position", "2 of 3")
    page.driver.find_elements("css selector", ".choices button")[1].click()
    page.press("2", "3", "1", ENTER)
    page.wait("position", "3 of 3")
    page.driver.refresh()
    page.wait("position", "3 of 3")
    page.press("s")
    page.wait("end-title", "Done")
    assert page("end-counts") == "2 audited, 1 skipped."
    for number in (3, 2):
        page.press(LEFT)
        page.wait("position", f"{number} of 3")
    assert page("said") == "yes · yes · yes"
    assert not [name for name in CONTESTANTS if name in page.driver.page_source]
    page.check(server)
    said = [
        (one.instruction, one.style, one.correct) for one in read_labels(read_run(folder), "anna", AuditLabel).values()
    ]
    assert said == [(True, False, None), (True, True, True), (None, None, None)]


def test_a_hostile_text_stays_text_and_a_phone_needs_no_scrolling_sideways(
    serve: Serve, open_page: Open, folder: Path
) -> None:
    texts = [HOSTILE, "x" * 3000, "一" * 500 + "\t" * 40 + "word " * 400]
    write_run(folder, make_comparison(make_rows(1), answer=lambda number, row: texts[number % 3]))
    for audit in (False, True):
        server = serve(audit=audit)
        page = open_page(server, width=390, height=844)
        page.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride", {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
        )
        page.press("0")
        count = 3 if audit else 1
        for number in range(count):
            page.wait("position", f"{number + 1} of {count}")
            assert page.script("return [innerWidth, document.documentElement.scrollWidth]") == [390, 390]
            far = "Math.max(...[...document.querySelectorAll('body *')].map(e => e.getBoundingClientRect().right))"
            assert page.script(f"return {far}") <= 390
            shown = page.script("return [...document.querySelectorAll('article .text')].map(e => e.textContent)")
            assert set(shown) <= {HOSTILE.replace("\u202e", "⟨U+202E⟩"), *texts[1:]}
            assert (
                page.script("return document.querySelectorAll('article :is(script, img, style, meta, a)').length") == 0
            )
            page.press(RIGHT)
        page.check(server)


def test_a_server_that_is_gone_is_said_and_nothing_is_lost_from_the_page(
    serve: Serve, open_page: Open, folder: Path
) -> None:
    server = serve(sample=2)
    page = open_page(server)
    page.press("c", "b", "a")
    server.shutdown()
    server.server_close()
    page.press(ENTER)
    page.wait("problem", "Start it again")
    assert page("said") == "C › B › A" and page("position") == "1 of 2"
