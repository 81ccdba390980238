"""Commands that serve a page, and the page in a browser."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROLELLM = str(Path(sys.executable).parent / "rolellm")
ENTER = "\ue007"


class Started:
    """`rolellm … --web` at work."""

    def __init__(self, url: str, process: Any) -> None:
        self.url, self.process = url, process

    def stop(self) -> str:
        """Stop it, check that it told nothing on standard error since it began, and return what it said."""
        self.process.send_signal(signal.SIGINT)
        said, errors = self.process.communicate(timeout=60)
        assert (errors, self.process.returncode) == ("", 0)
        return str(said)


@pytest.fixture
def start_page(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    """Starts a command with ``--web`` in the test's folder."""
    running = []

    def begin(*words: str) -> Started:
        env = {**os.environ, "OMP_NUM_THREADS": "1", "GRADIO_TEMP_DIR": str(tmp_path / "gradio")}
        env["XDG_DATA_HOME"] = str(tmp_path)
        process: Any = subprocess.Popen(
            [ROLELLM, *words, "--web"],
            cwd=tmp_path,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
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


class Browser:
    """The page in a browser."""

    def __init__(self, driver: Any, url: str) -> None:
        self.driver = driver
        driver.get(url)

    def read(self) -> list[str]:
        find = "return [...document.querySelectorAll('.message')].map((one) => one.innerText.trim())"
        return list(self.driver.execute_script(find))

    def wait(self, true: Callable[[], Any]) -> None:
        end = time.monotonic() + 60
        while not true():
            assert time.monotonic() < end, self.driver.find_element("tag name", "body").text
            time.sleep(0.05)

    def press(self, name: str, index: int = -1) -> None:
        """Press a button by its text or label."""
        path = f"//button[starts-with(normalize-space(), '{name}') or @aria-label='{name}']"
        self.wait(lambda: self.driver.find_elements("xpath", path))
        self.driver.find_elements("xpath", path)[index].click()

    @property
    def box(self) -> Any:
        return self.driver.find_elements("css selector", "textarea")[-1]

    def say(self, text: str) -> None:
        self.box.clear()
        self.box.send_keys(text + ENTER)
