"""The section on roles that were made from scripts: counts as they are, pairs beside their source."""

from dataclasses import replace

from rolellm.reporting.page import PageContent, made_table

from .conftest import MADE, parse
from .rendered import render_page


def test_table_has_each_count_and_no_zeros() -> None:
    table = made_table(MADE)
    assert table.columns == ("Ada", "阿达")
    cells = {row.names[0]: row.cells[0] for row in table.rows}
    assert cells["turns found"] == "1,204 speech, 7 direction"
    assert cells["catchphrases picked"] == "1 of 31 offered"
    assert cells["dropped"] == "11 duplicate, 1 overlap"
    assert cells["asked again"] == "none"
    assert cells["rows in the data set"] == "49 train, 12 test"
    assert cells["tokens, estimated"] == "61,176 in, 6,809 out"


def test_page_has_counts_pairs_and_receipts(content: PageContent) -> None:
    assert 'id="made"' not in render_page(content)
    page = parse(render_page(replace(content, made=MADE)))
    assert page.unbalanced == [] and page.ids.count("made") == 1
    rows = {row[0]: row[1:] for row in page.rows}
    assert rows["kept"] == ["51", "51"]
    assert rows["15"] == ["ADA: I do, and the tide does."]
    text = " ".join(page.text.split())
    assert "Rules answered." in text
    assert "ferry.txt, characters 310–1,204" in text
    assert text.count("Kept · script-based") == 2 and text.count("Dropped: overlap · script-based") == 1
    assert "2 of 9 content words" in text and "abababababababab" in text
