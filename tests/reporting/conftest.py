"""Made-up systems, rows and answers, and a reader that sees an HTML page as a browser's parser would."""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import pytest

from rolellm.core.records import Row
from rolellm.reporting.page import PageContent
from rolellm.reporting.section import Section
from rolellm.scoring.score_report import ScoreReport

ROLES = {"Sherlock Holmes": "en", "Captain Ahab": "en", "孙悟空": "zh"}
SYSTEMS = {"untuned": 0.1, "tuned": 0.35, "RoleGPT (released baseline)": 0.55}
VOID = {"meta", "link", "br", "hr", "img", "input", "base", "area", "col", "embed", "source", "track", "wbr"}


def _metric(mean: float, n: int) -> dict[str, Any]:
    return {"mean": mean, "ci95": [mean * 0.9, mean * 1.1], "n": n}


def _report(system: str, level: float, roles: list[str]) -> dict[str, Any]:
    chance = random.Random(repr(system))

    def metrics(n: int) -> dict[str, Any]:
        return {name: _metric(round(level + chance.uniform(-0.05, 0.05), 4), n) for name in ("CUS", "RAW", "SPE")}

    overall = metrics(40)
    overall["avg"] = {"mean": sum(metric["mean"] for metric in overall.values()) / 3}
    return {
        "protocol": "rouge-score",
        "config": "sample",
        "split": "test",
        "metrics": overall,
        "by_role": {role: metrics(12) for role in roles},
        "unmatched": {"predictions": 1, "rows": 2},
        "fingerprint": {
            "tokenizer": {"en": "rouge_score"},
            "predictions": {"sha256": f"{chance.getrandbits(256):064x}"},
        },
    }


Values = dict[str, dict[str, Any]]


def make_values(systems: Mapping[str, float] = SYSTEMS, roles: Iterable[str] = ROLES) -> Values:
    """Score reports as `rolellm score --json` prints them, by name: of systems at a level each, and roles."""
    return {name: _report(name, level, list(roles)) for name, level in systems.items()}


def read_reports(values: Values) -> dict[str, ScoreReport]:
    return {name: ScoreReport.from_dict(value) for name, value in values.items()}


@pytest.fixture
def values() -> Values:
    """Three systems' score reports, to be changed."""
    return make_values()


@pytest.fixture
def reports() -> dict[str, ScoreReport]:
    return read_reports(make_values())


@pytest.fixture
def rows() -> list[Row]:
    made = []
    for role, language in ROLES.items():
        for at in range(3):
            asked, own = f"Name {at + 1} birds.", f"{role}, where were you in year {at}?"
            references = ("A gull.", "A crow.")
            made += [
                Row(f"{role}-general-{at}", role, language, "general", asked, references, (), "Gull", f"A wren {at}."),
                Row(f"{role}-own-{at}", role, language, "role_specific", own, ("At sea.",), ("script_based",)),
            ]
    return made


def make_content(reports: dict[str, ScoreReport]) -> PageContent:
    return PageContent(
        title="A small report",
        parts=[Section("", reports)],
        split_note="One question in five was kept from training.",
        summary="Three systems, asked the same.",
        recipe={"epochs": 3, "optimizer": {"name": "adamw"}},
    )


@pytest.fixture
def content(reports: dict[str, ScoreReport]) -> PageContent:
    return make_content(reports)


@dataclass
class Page:
    """What a parser found in a page."""

    tags: list[str] = field(default_factory=list)
    attributes: list[tuple[str, str, str]] = field(default_factory=list)
    text: str = ""
    styles: str = ""
    unbalanced: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)

    @property
    def references(self) -> list[str]:
        names = {"href", "src", "srcset", "action", "data", "poster", "xlink:href", "formaction", "background", "cite"}
        return [value for _, name, value in self.attributes if name in names]

    @property
    def ids(self) -> list[str]:
        return [value for _, name, value in self.attributes if name == "id"]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.page = Page()
        self.open: list[str] = []

    def _record(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.page.tags.append(tag)
        self.page.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._record(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.page.rows.append([])
        if tag in ("td", "th"):
            self.page.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._record(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.page.unbalanced.append(tag)

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            self.page.styles += data
            return
        self.page.text += data
        if {"td", "th"} & set(self.open):
            self.page.rows[-1][-1] += data

    def handle_comment(self, data: str) -> None:
        self.page.unbalanced.append(f"comment {data}")


def parse(html: str) -> Page:
    """Read HTML: tags, attributes, text, table cells, and whatever is not closed in order."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    reader.page.unbalanced += reader.open
    return reader.page
