import base64
import json
import random
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolellm.core.records import Row
from rolellm.core.sanitize import make_visible, truncate
from rolellm.judging.verdicts import RowOutcome
from rolellm.reporting import browse as browse_module
from rolellm.reporting.browse import (
    BLOCK_CHARACTERS,
    MAX_TEXT,
    Browse,
    BrowsePart,
    PackedPart,
    browse,
    source_hash,
)


def unpack(packed: str) -> Any:
    return json.loads(zlib.decompress(base64.b64decode(packed, validate=True)))


HOSTILE = (
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "\x00\x1b[31m\r\n\u2028\u2029",
    "\ud800 half, \udfff and half",
    "a\u202eb\u200bc\ufeff",
    "\U000e0041\ufffe\U0001f600 孙悟空",
)
TEXTS = st.one_of(st.sampled_from(HOSTILE), st.text(st.characters(), max_size=60))


def row(number: int, question: str = "Why?", **more: Any) -> Row:
    values = {"references": ("Because.",), "subset": "general", "role": "Fox", "language": "en"} | more
    return Row(id=f"row-{number}", question=question, **values)


def elements(html: str) -> dict[str, Any]:
    """What the page's elements hold, by their ids, in their order."""
    found = re.findall(r'<script type="application/octet-stream" id="browse-([\w-]+)">([\w+/=]*)</script>\n', html)
    assert len(found) == html.count("<script") == html.count("</script")
    return {name: unpack(packed) for name, packed in found}


def read_back(made: Browse, part: int = 0) -> Iterator[list[Any]]:
    """Rows as the page's script puts them together."""
    index = elements(made.html)[f"{part}-index"]
    blocks = elements("".join(made.data))
    table = [text for at in range(len(index["table"])) for text in blocks[f"{part}-table-{at}"]]

    def put(value: Any) -> Any:
        if isinstance(value, list):
            return [put(one) for one in value]
        return table[value] if isinstance(value, int) else value

    for at, start in enumerate(index["starts"]):
        rows = blocks[f"{part}-rows-{at}"]
        assert start + len(rows) == [*index["starts"][1:], len(index["id"])][at]
        yield from map(put, rows)


def expected(part: BrowsePart, one: Row) -> list[Any]:
    def text(value: str | None) -> str | None:
        return None if value is None else make_visible(truncate(value, MAX_TEXT))

    outcomes: Mapping[str, Any] = part.outcomes.get(one.id, {})
    return [
        one.language,
        text(one.question),
        [text(reference) for reference in one.references],
        text(one.raw_reference),
        text(one.role_description),
        [text(given.get(one.id)) for given in part.answers.values()],
        [[text(reason) for reason in outcomes[name].reasons] if name in outcomes else [] for name in part.answers],
    ]


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(TEXTS, st.lists(TEXTS, min_size=1, max_size=3), st.none() | TEXTS, st.none() | TEXTS, TEXTS),
        max_size=6,
    ),
    TEXTS,
)
def test_every_text_comes_back(texts: list[tuple[str, list[str], str | None, str | None, str]], name: str) -> None:
    rows = [
        row(at, question, references=tuple(references), raw_reference=raw, role_description=description, role=answer)
        for at, (question, references, raw, description, answer) in enumerate(texts)
    ]
    answers = {name: {one.id: one.role for one in rows[::2]}, f"{name}2": {one.id: one.question for one in rows}}
    outcomes = {one.id: {name: RowOutcome(reasons=(one.role, *one.references))} for one in rows}
    part = BrowsePart(name, rows, answers, outcomes)
    made = browse([part])
    if rows:
        assert list(read_back(made)) == [expected(part, one) for one in rows]
        index = elements(made.html)["0-index"]
        assert index["systems"][0]["name"] == make_visible(name) and index["name"] == make_visible(name)
        assert [index["roles"][at] for at in index["role"]] == [make_visible(one.role) for one in rows]
    else:
        assert "There are no questions" in made.html and list(made.data) == []
    assert all(make_visible(text) == text for text in (made.html, *made.data))


def test_long_rows_close_a_block_early() -> None:
    rows = [row(at, f"{at}" + "x" * (MAX_TEXT - 10)) for at in range(100)]
    part = BrowsePart("all", rows, {"one": {}})
    starts = elements(browse([part]).html)["0-index"]["starts"]
    assert BLOCK_CHARACTERS // MAX_TEXT - 2 <= starts[1] <= BLOCK_CHARACTERS // MAX_TEXT + 2
    assert [back[1] for back in read_back(browse([part]))] == [one.question for one in rows]


def test_a_long_answer_is_cut_and_the_rest_counted() -> None:
    rows = [row(0), row(1)]
    made = browse([BrowsePart("all", rows, {"one": {"row-0": "ab" * 5_000_000, "row-1": ""}})])
    first, second = read_back(made)
    assert first[5] == ["ab" * (MAX_TEXT // 2) + " … [9,980,000 more characters]"]
    assert second[5] == [""]
    assert elements(made.html)["0-index"]["length"] == [[10_000_000, 0]]
    assert sum(map(len, made.data)) < 10_000


def test_what_repeats_is_kept_once() -> None:
    description = "".join(map(chr, range(0x4E00, 0x5000)))
    rows = [row(at, f"Question {at}?", role_description=description) for at in range(1000)]
    made = browse([BrowsePart("all", rows, {"one": {one.id: "The one answer that it always gives." for one in rows}})])
    blocks = elements("".join(made.data))
    assert blocks["0-table-0"] == [description, "The one answer that it always gives."]
    assert json.dumps(blocks, ensure_ascii=False).count(description) == 1
    assert all(back[4] == description for back in read_back(made))


def test_the_table_stands_before_the_rows_that_name_it() -> None:
    long = [f"{number:05} " + "y" * 5000 for number in range(400)]
    rows = [row(at, "Why?", references=(long[at // 2],)) for at in range(800)]
    made = browse([BrowsePart("all", rows, {"one": {}})])
    index, seen = elements(made.html)["0-index"], -1
    assert len(index["table"]) > 2
    for name, block in elements("".join(made.data)).items():
        if "table" in name:
            seen += len(block)
        else:
            assert max(back[2][0] for back in block) <= seen
    assert [back[2] for back in read_back(made)] == [[one.references[0]] for one in rows]


def test_the_index_has_what_filters_need() -> None:
    rows = [
        row(0, role="Fox"),
        row(1, role="Owl", subset="role_specific", reference_types=("script_based",)),
        row(2, role="Fox", subset="role_specific", reference_types=("script_based", "script_agnostic")),
    ]
    outcomes = {
        "row-0": {"new": RowOutcome(1.0, 1.25), "old": RowOutcome(None, 1.75)},
        "row-2": {"new": RowOutcome(2 / 3, None)},
    }
    part = BrowsePart(
        "a run",
        rows,
        {"old": {"row-0": "abc", "row-1": ""}, "new": {"row-0": "d", "row-2": "ef"}},
        outcomes,
        rouge={"new": {"row-0": 0.123456}},
        kinds={"old": "baseline"},
        series={"new": 7},
        disputed={"row-2"},
    )
    index = elements(browse([part]).html)["0-index"]
    assert index["categories"] == ["general", "script_based", "mixed"] and index["category"] == [0, 1, 2]
    assert index["roles"] == ["Fox", "Owl"] and index["role"] == [0, 1, 0]
    assert index["id"] == ["row-0", "row-1", "row-2"]
    assert [(one["name"], one["kind"], one["series"]) for one in index["systems"]] == [
        ("old", "baseline", 1),
        ("new", "model", 2),
    ]
    assert index["length"] == [[3, 0, None], [1, None, 2]]
    assert index["win"] == [None, [1.0, None, 0.6667]]
    assert index["rank"] == [[1.75, None, None], [1.25, None, None]]
    assert index["rouge"] == [None, [0.1235, None, None]]
    assert index["disputed"] == [2]


@pytest.mark.slow
def test_what_would_be_too_large_is_cut_and_the_page_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browse_module, "_SAMPLED", 3)
    chance = random.Random(0)
    rows = [row(at, chance.randbytes(1000).hex()) for at in range(300)]
    outcomes = {one.id: {"a": RowOutcome(reasons=tuple(chance.randbytes(500).hex() for _ in range(6)))} for one in rows}
    part = BrowsePart("all", rows, {"a": {one.id: chance.randbytes(2000).hex() for one in rows}}, outcomes)

    def size(made: Browse) -> int:
        return sum(map(len, made.data))

    whole = browse([part])
    assert "To stay small" not in whole.html and size(whole) == pytest.approx(PackedPart(0, part).estimate(), rel=0.03)
    monkeypatch.setattr(browse_module, "MAX_DATA", size(whole) * 9 // 10)
    fewer = browse([part])
    assert size(fewer) < 0.9 * size(whole) and "holds at most 4 of" in fewer.html and "characters per" not in fewer.html
    back = next(read_back(fewer))
    assert back[1] == rows[0].question and back[6] == [list(outcomes["row-0"]["a"].reasons[:4])]
    assert elements(fewer.html)["0-index"]["left_out"] == [[2] * 300]
    monkeypatch.setattr(browse_module, "MAX_DATA", size(whole) // 4)
    cut_short = browse([part, part])
    assert size(cut_short) < 0.25 * size(whole) and "holds at most 1 of" in cut_short.html
    assert "500 characters per text" in cut_short.html or "250 characters per text" in cut_short.html
    assert "more characters]" in next(read_back(cut_short))[1]
    monkeypatch.setattr(browse_module, "MAX_DATA", 10)
    assert next(read_back(browse([part])))[1] == rows[0].question[:100] + " … [1,900 more characters]"


def test_the_policy_names_the_script() -> None:
    made = browse([BrowsePart("all", [row(0)], {"one": {}})])
    # From the definition: https://www.w3.org/TR/CSP3/ gives this hash for alert('Hello, world.');
    assert source_hash("alert('Hello, world.');") == "sha256-qznLcsROx4GACP2dm0UCKCzCG+HiZ1guq6ZZDob/Tng="
    assert made.script_sha256 == source_hash(made.script)


def test_the_files_that_people_wrote_reach_nothing_outside() -> None:
    made = browse([BrowsePart("all", [row(0)], {"one": {}})])
    for text in (made.script, made.css):
        assert not re.search(r"//\w|@import|url\(|</", text)
    for name in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "fetch(", "Function("):
        assert name not in made.script
