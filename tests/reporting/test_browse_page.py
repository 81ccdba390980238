"""The browsable questions in a real browser, in a page that holds nothing else."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from rolellm.core.records import Row
from rolellm.core.sanitize import make_visible
from rolellm.judging.verdicts import RowOutcome
from rolellm.reporting import browse as browse_module
from rolellm.reporting.browse import Bounds, BrowsePart, browse
from rolellm.reporting.templates import read_template

webdriver = pytest.importorskip("selenium.webdriver")
ActionChains, Keys = webdriver.ActionChains, webdriver.Keys
pytestmark = pytest.mark.browser

ROLES = ("Ada Fenn", "Old Brom", "孙悟空")
MODELS = ("RoleGPT", "first", "second", "null")
COUNT = 1_300
NEEDLE = "a “Quiet” Cove"
HOSTILE = {
    "element": "<script>window.broken = 1</script>",
    "closing": "</script></section><b id=broken>x</b>",
    "image": "<img src=http://example.com/x.png onerror='window.broken = 1'>",
    "address": "javascript:window.broken=1",
    "comment": "<!-- <script>",
    "style": "<style>* { display: none }</style>",
    "hidden": "abc\u202edef\u200b\x1b[31m\x00\ud800",
}


def write(path: Path, parts: list[BrowsePart], before: str = "") -> Path:
    made = browse(parts)
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src '{made.script_sha256}'"
    path.write_text(
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>questions</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<style>{read_template('page.css')}{made.css}</style></head><body>{before}<main>{made.html}</main>"
        f"<script>{made.script}</script>{''.join(made.data)}</body></html>",
        encoding="utf-8",
    )
    return path


def make_part() -> BrowsePart:
    chance = random.Random(0)
    rows = []
    for at in range(COUNT):
        specific = at % 4 == 0
        rows.append(
            Row(
                id=f"row/{at}&x={at}",
                role=ROLES[at % 3],
                language="zh" if at % 3 == 2 else "en",
                subset="role_specific" if specific else "general",
                question=f"Question {at}: what lies in {NEEDLE.upper() if at == 1234 else 'the bay'}?",
                references=(f"Reference {at}.", f"The other reference {at}."),
                reference_types=("script_based",) if specific else (),
                raw_reference=None if specific else "A target of more than a few characters.",
                role_description=f"You are {ROLES[at % 3]}, of whom there is much to tell.",
            )
        )
    answers: dict[str, dict[str, str]] = {name: {} for name in MODELS}
    outcomes: dict[str, dict[str, RowOutcome]] = {}
    for at, one in enumerate(rows):
        for name in MODELS:
            answers[name][one.id] = f"{name} says {at}" + " and more" * chance.randrange(9)
        outcomes[one.id] = {
            name: RowOutcome((None, 1.0, 0.0, 0.5)[place], float(place + 1), (f"Because {name} is {place}.", "Or not."))
            for place, name in enumerate(MODELS)
        }
    del answers["second"][rows[5].id]
    return BrowsePart(
        "a run", rows, answers, outcomes, kinds={"RoleGPT": "baseline", "null": "canary"}, disputed={rows[9].id}
    )


class Page:
    """The questions as a reader finds them."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        driver.get("about:blank")
        # What the browser's own first page asked for.
        driver.get_log("performance")

    def open(self, page: Path, address: str = "") -> None:
        self.driver.get("about:blank")
        self.driver.get(page.as_uri() + address)
        self.wait("return performance.getEntriesByName('browse-shown').length")

    def wait(self, script: str) -> Any:
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.driver, 20, 0.03).until(lambda driver: driver.execute_script(script))

    def shows(self, row: int, status: str) -> None:
        """Wait until this row is shown under this count."""
        try:
            self.wait(
                f"return document.getElementById('browse-question').dataset.row == '{row}'"
                f" && document.getElementById('browse-status').textContent == {json.dumps(status)}"
                " && !document.getElementById('browse-progress').textContent"
            )
        except Exception as error:
            raise AssertionError(f"{self.status!r}, {self.text[:200]!r}") from error

    def shows_nothing(self) -> None:
        """Wait until no question is left."""
        self.wait("return document.getElementById('browse-question').textContent === 'No question matches.'")
        assert self.status == "0 of 1,300 questions"

    def at(self, name: str) -> Any:
        return self.driver.find_element("id", f"browse-{name}")

    @property
    def status(self) -> str:
        return str(self.at("status").text)

    @property
    def text(self) -> str:
        return str(self.at("question").text)

    def choose(self, name: str, words: str) -> None:
        from selenium.webdriver.support.ui import Select

        Select(self.at(name)).select_by_visible_text(words)

    def search(self, words: str) -> None:
        self.at("text").send_keys(Keys.CONTROL, "a", Keys.NULL, Keys.DELETE, words)

    def press(self, *keys: str) -> None:
        ActionChains(self.driver).send_keys(*keys).perform()

    def quiet(self) -> None:
        """Nothing was said on the console, and nothing asked for but the file itself."""
        assert self.driver.get_log("browser") == []
        asked = set()
        for line in self.driver.get_log("performance"):
            message = json.loads(line["message"])["message"]
            if message["method"] in ("Network.requestWillBeSent", "Network.webSocketCreated"):
                url = message["params"].get("request", message["params"])["url"]
                asked.add(url.partition("#")[0].partition(":")[0])
        assert asked <= {"file", "about"}, asked


ALL = "1,300 of 1,300 questions"
LENGTHS = """
    return [...document.querySelectorAll("#browse-question .figures span:last-child")]
        .map((one) => Number(one.textContent.split(" ")[0]));
"""
STARS = "return CSS.highlights.get('browse-found')?.size ?? 0"


def test_filters_and_order(chromium: Callable[..., Any], tmp_path: Path) -> None:
    page = Page(chromium())
    page.open(write(tmp_path / "page.html", [make_part()]))
    page.shows(0, ALL)
    for words in ("Question 0:", "Reference 0.", "RoleGPT says 0", "null says 0", "Because first is 1.", "rank 2"):
        assert words in page.text
    assert "The other reference" not in page.text and "of whom there is much" not in page.text
    assert not page.at("off").is_displayed() and not page.at("part").is_displayed()

    page.choose("role", "Old Brom")
    page.shows(1, "433 of 1,300 questions")
    page.choose("category", "Role-specific, script-based")
    page.shows(4, "108 of 1,300 questions")
    page.at("clear").click()
    page.shows(4, ALL)
    assert page.at("at").get_attribute("value") == "5"

    page.choose("outcome", "first: won")
    page.shows(0, ALL)
    page.choose("outcome", "first: lost")
    page.shows_nothing()
    assert not page.at("next").is_enabled() and not page.at("at").is_enabled()
    page.choose("outcome", "second: no answer")
    page.shows(5, "1 of 1,300 questions")
    assert "no answer" in page.text
    page.choose("outcome", "judges or orders disagree")
    page.shows(9, "1 of 1,300 questions")
    page.at("clear").click()
    page.shows(9, ALL)

    page.choose("sort", "lengths furthest apart")
    page.wait("return document.getElementById('browse-question').dataset.row !== '9'")
    lengths = page.driver.execute_script(LENGTHS)
    assert len(lengths) == 4 and max(lengths) - min(lengths) >= 8 * len(" and more")
    page.quiet()


def test_search(chromium: Callable[..., Any], tmp_path: Path) -> None:
    page = Page(chromium())
    page.open(write(tmp_path / "page.html", [make_part()]))
    # Upper and lower case, full-width letters, and a phrase.
    page.search('"ａ “quiet” cove')
    page.shows(1234, "1 of 1,300 questions")
    assert page.driver.execute_script(STARS) == 1
    # Words from the question, an answer, a reference, a reason and the id.
    page.search("1299: second reference because row/1299")
    page.shows(1299, "1 of 1,300 questions")
    assert page.driver.execute_script(STARS) >= 5
    # A role is filtered by, and its description found nowhere.
    page.search("much to tell")
    page.shows_nothing()
    assert page.driver.execute_script(STARS) == 0
    page.search("target")
    page.shows(1, "975 of 1,300 questions")
    page.choose("role", "孙悟空")
    page.shows(2, "325 of 1,300 questions")
    page.search("")
    page.shows(2, "433 of 1,300 questions")
    page.quiet()


def test_ways_from_one_question_to_another(chromium: Callable[..., Any], tmp_path: Path) -> None:
    page = Page(chromium())
    second = BrowsePart("another run", make_part().rows[:3], {"first": {}})
    file = write(tmp_path / "page #1.html", [make_part(), second], "<p id=above>before</p><input id=other>")
    page.open(file)
    page.press("j", "j", Keys.ARROW_RIGHT, "k")
    page.shows(2, ALL)
    page.at("next").click()
    page.at("next").click()
    page.at("previous").click()
    page.shows(3, ALL)
    page.press("j")
    page.shows(4, ALL)
    page.wait("return location.hash === '#q=' + encodeURIComponent('row/4&x=4')")
    assert page.driver.find_element("css selector", ".permalink").get_attribute("href") == page.driver.current_url
    # In a field, letters are letters; with Ctrl or Alt, keys are the browser's.
    page.driver.find_element("id", "other").send_keys("jjj")
    page.driver.execute_script("document.activeElement.blur()")
    ActionChains(page.driver).key_down(Keys.CONTROL).send_keys("j").key_up(Keys.CONTROL).perform()
    page.shows(4, ALL)
    page.press("/")
    page.at("text").send_keys("jk")
    page.shows_nothing()
    page.at("clear").click()
    page.at("at").send_keys(Keys.CONTROL, "a", Keys.NULL, "1300", Keys.ENTER)
    page.shows(1299, ALL)
    page.at("at").send_keys(Keys.CONTROL, "a", Keys.NULL, "1301", Keys.ENTER)
    page.shows(1299, ALL)
    assert page.at("at").get_attribute("value") == "1300"

    page.open(file, f"#q={quote('row/700&x=700', safe='')}")
    page.shows(700, ALL)
    page.choose("role", "Old Brom")
    page.driver.execute_script(f"location.hash = 'q={quote('row/5&x=5', safe='')}'")
    page.shows(5, ALL)
    page.choose("part", "another run")
    page.shows(0, "3 of 3 questions")
    page.at("next").click()
    page.wait("return location.hash.endsWith('&run=2')")
    address = "#" + page.driver.current_url.partition("#")[2]
    page.open(file, address)
    page.shows(1, "3 of 3 questions")
    page.open(file, "#q=nobody")
    page.shows(0, "No question has the id nobody.")
    page.open(file, "#above")
    page.shows(0, ALL)
    page.quiet()


def test_texts_stay_texts(chromium: Callable[..., Any], tmp_path: Path) -> None:
    rows, texts = [], list(HOSTILE.values())
    for kind, text in HOSTILE.items():
        more = {"raw_reference": text, "role_description": text}
        rows.append(Row(f"{kind} {text}", text, "en", "general", text, (text, text), **more))
    answers = {name: {one.id: one.question for one in rows} for name in texts[:3]}
    outcomes = {one.id: {name: RowOutcome(1.0, 1.0, (texts[at],)) for name in answers} for at, one in enumerate(rows)}
    part = BrowsePart(texts[0], rows, answers, outcomes, kinds={texts[1]: texts[1]})
    page = Page(chromium())
    page.open(write(tmp_path / "page.html", [part, part]))
    known = {"script", "section", "h2", "h3", "h4", "p", "div", "span", "b", "bdi", "a", "ul", "li", "kbd", "article"}
    known |= {"form", "label", "select", "optgroup", "option", "input", "button", "nav", "details", "summary"}
    for at, text in enumerate(texts):
        page.shows(at, "7 of 7 questions")
        for summary in page.driver.find_elements("css selector", "#browse-question summary"):
            if summary.find_element("xpath", "..").get_attribute("open") is None:
                summary.click()
        # Role, id, question, description, two references, target, three answers with a reason each.
        assert (
            page.driver.execute_script("return arguments[0].textContent", page.at("question")).count(make_visible(text))
            >= 13
        )
        page.search(make_visible(text))
        page.wait("return document.getElementById('browse-status').textContent !== '7 of 7 questions'")
        page.at("clear").click()
        tags = page.driver.execute_script("return [...document.querySelectorAll('main *')].map((one) => one.localName)")
        assert set(tags) <= known
        page.press("j")
    assert page.driver.execute_script("return window.broken ?? document.getElementById('broken')") is None
    links = page.driver.execute_script("return [...document.querySelectorAll('[href], [src]')].map((one) => one.href)")
    assert len(links) == 1 and links[0].startswith((tmp_path / "page.html").as_uri() + "#q=hidden")
    page.quiet()


def test_a_phone_the_dark_and_paper(
    chromium: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browse_module, "BOUNDS", (Bounds(reasons=1),))
    page = Page(chromium())
    file = write(tmp_path / "page.html", [make_part()])
    phone = {"width": 390, "height": 800, "deviceScaleFactor": 2, "mobile": True}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    page.open(file)
    page.shows(0, ALL)
    assert page.text.count("1 of 2 reasons") == 4
    assert page.driver.execute_script("return [innerWidth, document.documentElement.scrollWidth]") == [390, 390]
    cards = "return [...document.querySelectorAll('.answers .card')].map((one) => one.getBoundingClientRect().left)"
    assert len(set(page.driver.execute_script(cards))) == 1
    page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert len(set(page.driver.execute_script(cards))) == 4

    paper = "return getComputedStyle(document.getElementById('browse-next')).backgroundColor"
    light = page.driver.execute_script(paper)
    scheme = [{"name": "prefers-color-scheme", "value": "dark"}]
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": scheme})
    assert luminance(page.driver.execute_script(paper)) < 60 < 200 < luminance(light)

    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": []})
    assert page.at("off").is_displayed() and "1,300 questions" in page.at("off").text
    assert not page.driver.find_element("id", "browse").is_displayed()
    page.quiet()


def luminance(colour: str) -> float:
    return sum(map(float, re.findall(r"[\d.]+", colour)[:3])) / 3


def test_without_scripts_and_cut_short(chromium: Callable[..., Any], tmp_path: Path) -> None:
    page = Page(chromium())
    file = write(tmp_path / "page.html", [make_part()])
    page.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    page.driver.get(file.as_uri())
    assert "1,300 questions" in page.at("off").text
    assert not page.driver.find_element("id", "browse").is_displayed()
    page.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    html = file.read_text(encoding="utf-8")
    short = tmp_path / "short.html"
    short.write_text(html[: html.index('id="browse-0-rows-2"') - 50], encoding="utf-8")
    page.open(short)
    page.shows(0, ALL)
    page.at("at").send_keys(Keys.CONTROL, "a", Keys.NULL, "1300", Keys.ENTER)
    page.wait("return document.getElementById('browse-status').textContent.startsWith('This cannot be shown')")
    assert "not whole" in page.status
    page.at("at").send_keys(Keys.CONTROL, "a", Keys.NULL, "2", Keys.ENTER)
    page.shows(1, ALL)
