"""The section on roles that were made from scripts: counts as they are, pairs beside their source, and only text."""

import re
from dataclasses import replace

import pytest

from rolellm.reporting.construct_section import Made, MadePair, MadeRole, Receipt, made_table
from rolellm.reporting.page import PageContent

from .conftest import parse
from .rendered import is_inside, render_page

KEPT = Receipt(
    source="ferry.txt",
    lines=((14, "BROM: Who moors here?"), (15, "ADA: I do, and the tide does.")),
    prompt="ab" * 32,
    model="rules",
    start=310,
    end=1204,
)
PAIR = MadePair("Ada, who moors here?", "I do!", "script_based", "Completeness: high.", KEPT)
DROPPED = replace(PAIR, question="Who is it?", receipt=replace(KEPT, by="grounding", reason="names in neither: Zeb"))
ADA = MadeRole(
    role="Ada",
    language="en",
    script="ferry.txt",
    format="play",
    turns={"speech": 1204, "narration": 0, "direction": 7},
    own_lines=12,
    offered=31,
    catchphrases=("Mind the rope!",),
    candidates=63,
    kept=51,
    dropped={"form": 0, "duplicate": 11, "grounding": 1},
    instructions=10,
    replies=60,
    asked_again={"complete": 2, "hides_ai": 0},
    rows={"train": 49, "test": 12},
    calls=122,
    tokens=(61_176, 6_809),
    pairs=(PAIR, DROPPED),
)
MADE = Made("Rules answered.", "made/release", (ADA, replace(ADA, role="阿达", language="zh", pairs=(PAIR,))))


def test_table_has_each_count_and_no_zeros() -> None:
    heads, lines = made_table(MADE)
    assert heads == ["", "Ada", "阿达"]
    cells = {line[0]: line[1] for line in lines}
    assert cells["turns found"] == "1,204 speech, 7 direction"
    assert cells["dropped"] == "11 duplicate, 1 grounding"
    assert cells["asked again"] == "2 complete"
    assert cells["rows in the data set"] == "49 train, 12 test"
    assert cells["tokens, estimated"] == "61,176 in, 6,809 out"
    assert {len(line) for line in lines} == {3}
    nothing = replace(MADE, roles=(replace(ADA, dropped={"form": 0}),))
    assert ["dropped", "none"] in made_table(nothing)[1]


def test_as_json_it_has_all_counts_and_no_pairs() -> None:
    (ada, _) = MADE.to_dict()["roles"]
    assert ada["kept"] == 51 and ada["rows"] == {"train": 49, "test": 12} and "pairs" not in ada


def test_page_has_counts_pairs_and_receipts(content: PageContent) -> None:
    assert 'id="made"' not in render_page(content)
    html = render_page(replace(content, made=MADE))
    page = parse(html)
    assert page.unbalanced == [] and page.ids.count("made") == 1
    rows = {row[0]: row[1:] for row in page.rows}
    assert rows["kept"] == ["51", "51"]
    assert rows["15"] == ["ADA: I do, and the tide does."]
    text = " ".join(page.text.split())
    assert "Rules answered." in text
    assert "ferry.txt, characters 310–1,204" in text
    assert text.count("Kept · script-based") == 2 and text.count("Dropped: grounding · script-based") == 1
    assert "names in neither: Zeb" in text and "abababababababab" in text


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param("<script>alert(1)</script>", id="script"),
        pytest.param("</td></table></section><img src=x onerror=alert(1)>", id="structure"),
        pytest.param('"><a href="https://example.org">', id="attribute-breaker"),
        pytest.param("\x1b[31mred\x07\x00", id="ansi"),
        pytest.param("\u202edna\u2066x\u200b", id="bidi-and-zero-width"),
        pytest.param("{{ 7 * 7 }}{0.__class__}<|im_end|>", id="template"),
        pytest.param("x" * 10_000_000, id="ten-megabytes"),
    ],
)
def test_text_is_only_text(content: PageContent, payload: str) -> None:
    receipt = Receipt(payload, ((3, payload),), payload, payload, 0, 9, payload, payload)
    pair = MadePair(payload, payload, payload, payload, receipt)
    role = replace(ADA, role=payload, script=payload, format=payload, turns={payload: 3}, pairs=(pair,))
    html = render_page(replace(content, made=Made(payload, payload, (role,))))
    page = parse(html)
    assert page.unbalanced == []
    assert not {"script", "img"} & set(page.tags) and all(is_inside(reference, page) for reference in page.references)
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]", html)
    assert len(html) < 400_000
    if payload.isprintable() and len(payload) < 100:
        assert page.text.count(payload) >= 8
