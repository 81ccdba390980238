"""The page on which people rank, in a real browser."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rolellm.core.jsonl import write_jsonl

from ...judge_runs import CONTESTANTS, make_comparison, make_rows, write_run

ROLELLM = str(Path(sys.executable).parent / "rolellm")
HOSTILE = "<script>document.title='hurt'</script><img src=http://evil.example/b.png onerror=alert(1)>"


@pytest.mark.browser
@pytest.mark.parametrize("audit", [False, True])
def test_every_item_is_labelled_blind(tmp_path: Path, chromium: Callable[..., Any], audit: bool) -> None:
    pytest.importorskip("gradio")
    folder = write_run(tmp_path / "run", make_comparison(make_rows(3)))
    texts = {"row-000": dict.fromkeys(CONTESTANTS, HOSTILE)}
    answers = [{"id": f"row-{number:03}", "answers": dict.fromkeys(CONTESTANTS, "Aye.")} for number in (1, 2)]
    write_jsonl(folder / "answers.jsonl", [*({"id": key, "answers": value} for key, value in texts.items()), *answers])
    words = [ROLELLM, "label", str(folder), "--annotator", "anna", "--limit", "3", *["--audit"] * audit]
    process = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        url = process.stderr.readline().split(" ")[1]
        driver = chromium()
        driver.get(url)

        def wait_for(text: str) -> None:
            end = time.monotonic() + 60
            while text not in driver.find_element("tag name", "body").text:
                assert time.monotonic() < end, driver.find_element("tag name", "body").text
                time.sleep(0.05)

        def press(name: str) -> None:
            driver.find_element("xpath", f"//button[normalize-space()='{name}']").click()

        wait_for("Item 1 of 3 (open), 3 left")
        press("Save")
        wait_for("the label is not saved")
        for left in (2, 1):
            for group in driver.find_elements("css selector", "fieldset"):
                group.find_elements("css selector", "input[type=radio]")[1].click()
            press("Save")
            wait_for(f"{left} left")
        press("Skip")
        wait_for("All is labeled.")
        press("Back")
        wait_for("rolellm label --agreement")
        page = driver.page_source
        assert driver.title == "Rank answers" and not [name for name in CONTESTANTS if name in page]
        # The texts are plain ones.
        assert driver.execute_script("return document.querySelectorAll('img[src*=evil]').length") == 0
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert "2 of 3 labeled, 1 skipped, 0 left" in said
