"""The report in a real Chromium: it needs nothing from outside, fits a phone, and follows dark and light."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rolellm.reporting.build import build_report, collect_sources
from rolellm.reporting.page import write_page
from rolellm.reporting.settings import ReportOptions

from .judged_run import make_run

pytestmark = pytest.mark.browser

_COLOURS = """
const of = (selector) => getComputedStyle(document.querySelector(selector));
const ink = [of("body").backgroundColor, of("body").color, of(".panels svg text").fill];
return [...ink, of("tr.band-canary").backgroundColor];
"""
# What stands out of the screen on the right, but for what scrolls by itself.
_OUTSIDE = """
const wide = document.documentElement.clientWidth;
const scrolls = (one) => one.closest(".wide, svg, [hidden], details:not([open])");
return [...document.querySelectorAll("main *, header *")]
  .filter((one) => one.getBoundingClientRect().right > wide + 1 && !scrolls(one))
  .map((one) => one.outerHTML.slice(0, 120));
"""
_FIRST_PICTURE = "return document.querySelector('.hero svg').getBoundingClientRect().bottom"


def metrics(driver: Any, width: int) -> None:
    values = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", values)


def test_on_a_desk_and_on_a_phone_by_day_and_by_night(chromium: Callable[..., Any], tmp_path: Path) -> None:
    run = make_run(tmp_path / "ig-eng", each=4)
    page = write_page(tmp_path / "report.html", build_report(collect_sources([str(run)]), ReportOptions()).content)
    driver = chromium()
    seen = {}
    for scheme in ("light", "dark"):
        feature = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", feature)
        for width in (1200, 390):
            metrics(driver, width)
            driver.get(page.as_uri())
            bottom = driver.execute_script(_FIRST_PICTURE)
            assert bottom <= (800 if width > 600 else 844)
            height = driver.execute_script("return document.documentElement.scrollHeight")
            assert height <= (6_000 if width > 600 else 12_000)
            for folded in (True, False):
                if not folded:
                    driver.execute_script("document.querySelectorAll('details').forEach((one) => one.open = true)")
                assert driver.execute_script("return document.documentElement.scrollWidth") <= width
                assert driver.execute_script(_OUTSIDE) == []
        seen[scheme] = driver.execute_script(_COLOURS)
    light, dark = seen["light"], seen["dark"]
    assert all(first != second for first, second in zip(light, dark, strict=True))
    # Text in pictures is the page's ink.
    assert light[2] == light[1] and dark[2] == dark[1]
    # Nothing was refused by the policy, nothing failed, and nothing was asked of the outside.
    assert driver.get_log("browser") == []
    asked = driver.execute_script("return performance.getEntriesByType('resource').map((one) => one.name)")
    assert asked == []
    # A link opens what it leads to, and pictures can be saved.
    driver.get(f"{page.as_uri()}#roles")
    assert driver.find_element("css selector", "#roles table").is_displayed()
    (link, *_) = driver.find_elements("css selector", "a.file")
    assert link.is_displayed() and link.text == "Download as SVG"
    text = base64.b64decode(link.get_attribute("href").split(",")[1]).decode("utf-8")
    assert text.startswith("<svg")
