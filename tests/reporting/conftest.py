"""Made-up systems, rows and answers, and a reader that sees an HTML page as a browser's parser would."""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import pytest

from rolellm.judging.records import DatasetName
from rolellm.judging.result import JudgingResult
from rolellm.judging.settings import JudgingSettings
from rolellm.reporting.page import PageContent, Section
from rolellm.scoring.score_report import ScoreReport

from ..judge_runs import summarize
from .judged_run import draw_judgements, judge, make_comparison, make_rows

ROLES = {"Sherlock Holmes": "en", "Captain Ahab": "en", "孙悟空": "zh"}
SYSTEMS = {"untuned": 0.1, "tuned": 0.35, "RoleGPT (released baseline)": 0.55}
#: Texts that must stay texts, whoever wrote them.
PAYLOADS = [
    pytest.param("<script>alert(1)</script>", id="script"),
    pytest.param("</style></title></svg></table></section></div></details></article><b>", id="closing-tags"),
    pytest.param('"><img src=https://example.org/x.png onerror=alert(1)>', id="remote-image"),
    pytest.param("\x1b[31mred\x1b]8;;https://example.org\x07\x00\x0c\x7f\x85", id="ansi-and-controls"),
    pytest.param("\u202edna\u2066x\u200b\ufeff\u2028\U000e0041", id="bidi-and-zero-width"),
    pytest.param("{{ 7 * 7 }}{% include 'x' %}{# #}{0.__class__}$\\frac{1}$", id="templates"),
    pytest.param("=cmd|'/C calc'!A0 \\end{tabular}\\write18{ls}", id="formula-and-latex"),
    pytest.param("&lt;b&gt; &amp;amp; &#60;script&#62; <!-- <![CDATA[ --> ]]>", id="entities-and-comments"),
    pytest.param("\ud800\udfff \uffff", id="surrogates-and-noncharacters"),
    pytest.param("Z̸̢͍" + "\u0301" * 400, id="stacked-marks"),
    pytest.param("x" * 10_000_000, id="ten-megabytes"),
]
VOID = {"meta", "link", "br", "hr", "img", "input", "base", "area", "col", "embed", "source", "track", "wbr"}


def _metric(mean: float, n: int) -> dict[str, Any]:
    return {"mean": mean, "ci95": [mean * 0.9, mean * 1.1], "n": n}


def _report(system: str, level: float, roles: list[str]) -> dict[str, Any]:
    chance = random.Random(repr(system))

    def metrics(n: int) -> dict[str, Any]:
        return {name: _metric(round(level + chance.uniform(-0.05, 0.05), 4), n) for name in ("CUS", "RAW", "SPE")}

    overall = metrics(40)
    overall["avg"] = {"mean": sum(metric["mean"] for metric in overall.values()) / 3}
    report: dict[str, Any] = {"protocol": "rouge-score", "config": "sample", "split": "test", "metrics": overall}
    report |= {"by_role": {role: metrics(12) for role in roles}, "unmatched": {"predictions": 1, "rows": 2}}
    predictions = {"sha256": f"{chance.getrandbits(256):064x}"}
    return {**report, "fingerprint": {"tokenizer": {"en": "rouge_score"}, "predictions": predictions}}


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


@pytest.fixture(scope="session")
def result() -> dict[str, Any]:
    """The result of a made-up judging run, as JSON."""
    comparison = make_comparison(make_rows())
    judges = [judge("llama-judge"), judge("other-judge")]
    judgements = draw_judgements(comparison, ["llama-judge", "other-judge"])
    return summarize(comparison, judgements, judges, JudgingSettings(), DatasetName("sample", "test"))


@pytest.fixture(scope="session")
def judged(result: dict[str, Any]) -> JudgingResult:
    return JudgingResult.from_dict(result)


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

    handle_startendtag = _record

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


_PAIR = {"question": "Ada, who moors here?", "answer": "I do!", "type": "script_based"}
_ADA = {"role": "Ada", "language": "en", "script": "ferry.txt", "candidates": 63, "kept": 51, "replies": 60}
#: Roles that were made from scripts, as the demo makes them.
MADE = {
    "by": "Rules answered.",
    "release": "made/release",
    "roles": [{**_ADA, "pairs": [_PAIR]}, {**_ADA, "role": "阿达", "language": "zh", "pairs": [_PAIR]}],
}


def make_hostile(value: Any, payload: str) -> Any:
    """The value with the payload for each of its texts that is not a choice of a few."""
    if isinstance(value, dict):
        return {key: item if key == "language" else make_hostile(item, payload) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [make_hostile(item, payload) for item in value]
    return payload if isinstance(value, str) else value
