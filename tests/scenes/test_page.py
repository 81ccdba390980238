"""`rolellm scene --web` in a real browser."""

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rolellm.core.fingerprint import hash_json

from ..pages import Browser, Started


@pytest.mark.browser
def test_a_person_plays_on_the_page_and_sees_what_the_character_witnesses(
    root: Path,
    tmp_path: Path,
    llm_server: Callable[..., Any],
    start_page: Callable[..., Started],
    chromium: Callable[..., Any],
) -> None:
    server = llm_server(lambda body: f"[secret] (nods) <b>Word</b> {hash_json(body['messages'])[:20]}.")
    price = {"prompt": 1000, "completion": 1000}
    endpoint = {"base_url": server.url, "model": "local", "price": price}
    (tmp_path / "llm.yaml").write_text(json.dumps({"endpoints": [endpoint]}), encoding="utf-8")
    shutil.copy(root / "examples" / "ada.png", tmp_path)
    characters = [
        {"name": "Ada", "card": "ada.png"},
        {"name": "Brom", "description": "A ferryman.", "present": "1-2, 5-", "motivation": "You are cold."},
        {"name": "Cleo", "description": "A thief.", "present": "2-"},
    ]
    opening = [{"Ada": "(waves) [secret] Come up."}]
    values = {"setting": "A tower.", "characters": characters, "opening": opening, "turns": 6}
    (tmp_path / "scene.yaml").write_text(json.dumps(values), encoding="utf-8")
    words = ("scene", "scene.yaml", "--llm", "llm.yaml", "--me", "Brom")

    started = start_page(*words, "--budget", "0.01")
    driver = chromium(width=390, height=844)
    page = Browser(driver, started.url)

    def tells(text: str) -> bool:
        return text in driver.find_element("tag name", "body").text

    page.wait(lambda: tells("It is your turn, Brom."))
    introduction, first, change = page.read()
    assert "You are cold." in introduction
    assert first.split("\n") == ["Ada", "(waves) Come up."]
    page.say("[I shiver.] Good evening.")
    page.wait(lambda: tells("beyond the budget"))
    started.process.send_signal(signal.SIGINT)
    assert "Resume with" in started.process.communicate(timeout=60)[1]

    started = start_page(*words)
    page = Browser(driver, started.url)
    page.wait(lambda: tells("It is your turn, Brom."))
    assert page.read()[2:] == [change, "Brom\n[I shiver.] Good evening."]
    driver.refresh()
    page.wait(lambda: tells("It is your turn, Brom."))
    page.say("Farewell.")
    page.wait(lambda: tells("The scene has ended."))
    # Turns 3 and 4 were played while Brom was away.
    farewell, last = page.read()[4:]
    assert farewell == "Brom\nFarewell." and last.startswith("Cleo\n(nods) <b>Word</b> ")
    assert "secret" not in driver.page_source
    loaded = "return [...document.querySelectorAll('.message img')].map((one) => one.naturalWidth)"
    assert driver.execute_script(loaded) == [256]
    assert driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    assert "2 turns" not in started.stop()
