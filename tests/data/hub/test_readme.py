"""Merging our card into a README: nothing that a person wrote is lost, and nothing of ours stays behind."""

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rolellm.core.errors import HubError
from rolellm.data.hub.readme import BEGIN, END, Readme, merge_card, read_card

OURS = Readme({"license": "mit", "tags": ["role-playing", "lora"]}, "# Model\n\nText.\n")
NEWER = Readme({"license": "apache-2.0", "tags": ["role-playing"], "model-index": [{"name": "m"}]}, "# Newer\n")


def data(content: str) -> dict[str, Any]:
    return read_card(content).data


def test_a_first_card() -> None:
    merged = merge_card(OURS, None, {})
    assert merged == (
        f"---\nlicense: mit\ntags:\n- role-playing\n- lora\n---\n\n{BEGIN}\n\n# Model\n\nText.\n\n{END}\n"
    )


def test_a_card_in_its_place_is_replaced_and_the_rest_stays() -> None:
    theirs = merge_card(OURS, None, {}).replace(BEGIN, f"Before.\n\n{BEGIN}") + "\nAfter.\n"
    merged = merge_card(NEWER, theirs, OURS.data)
    assert read_card(merged).text == f"\nBefore.\n\n{BEGIN}\n\n# Newer\n\n{END}\n\nAfter.\n"
    assert data(merged) == NEWER.data


@pytest.mark.parametrize(
    ("theirs", "text"),
    [
        pytest.param("# Hand-written\n\nYes.\n", "# Hand-written\n\nYes.", id="no-front-matter"),
        pytest.param("---\npipeline_tag: x\n---\n# Hand-written\n", "# Hand-written", id="front-matter"),
        pytest.param("---\nlicense: mit\n---\n", "", id="nothing-but-front-matter"),
        pytest.param("\n\n---\nlicense: mit\n---\nText\n", "Text", id="blank-lines-first"),
        pytest.param("\ufeff---\nlicense: mit\n---\nText\n", "Text", id="byte-order-mark"),
        pytest.param("Text\n\n---\n\nmore\n\n---\n", "Text\n\n---\n\nmore\n\n---", id="rules-are-no-front-matter"),
        pytest.param("", "", id="empty"),
    ],
)
def test_a_readme_without_our_card_is_kept_whole(theirs: str, text: str) -> None:
    merged = merge_card(OURS, theirs, {})
    assert read_card(merged).text.partition(BEGIN)[0].strip() == text
    assert merged.rstrip().endswith(END)
    assert data(merged) == {**data(theirs), **OURS.data}


@pytest.mark.parametrize(
    "front",
    [
        pytest.param("a: &anchor\n- 1\nlicense: &l mit\nb: *l", id="an-alias-of-what-changes"),
        pytest.param("license: mit\n...", id="document-end"),
        pytest.param("# only a comment", id="only-a-comment"),
        pytest.param("language: no", id="norway"),
    ],
)
def test_unusual_front_matter_is_merged_by_meaning(front: str) -> None:
    merged = merge_card(NEWER, f"---\n{front}\n---\nText\n", {})
    assert data(merged) == {**(yaml.safe_load(front) or {}), **NEWER.data}


def test_items_that_a_person_added_to_our_lists_stay_and_our_own_go() -> None:
    theirs = merge_card(OURS, None, {}).replace("- lora", "- lora\n- mine")
    assert data(merge_card(NEWER, theirs, OURS.data))["tags"] == ["role-playing", "mine"]


def test_keys_that_we_write_no_more_go_unless_somebody_changed_them() -> None:
    first = merge_card(NEWER, None, {})
    assert "model-index" not in data(merge_card(OURS, first, NEWER.data))
    changed = first.replace("- name: m", "- name: theirs")
    assert data(merge_card(OURS, changed, NEWER.data))["model-index"] == [{"name": "theirs"}]


def test_line_ends_of_another_system_are_kept() -> None:
    theirs = "---\r\nthumbnail: a.png\r\n---\r\nText\r\n"
    merged = merge_card(OURS, theirs, {})
    assert "\n" not in merged.replace("\r\n", "")
    assert merge_card(OURS, merged, OURS.data) == merged


def test_comments_in_our_text_do_not_end_our_part() -> None:
    merged = merge_card(Readme({"license": "mit"}, f"A role called {END} {BEGIN}"), None, {})
    assert merge_card(OURS, merged, {}).count("rolellm:end") == 1


_WORDS = st.text(st.characters(codec="utf-8", exclude_characters="<>\r"), max_size=40)
# PyYAML does not read back what it writes of these line breaks.
_TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x85\u2028\u2029"), max_size=10)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "x", "y"]), inner, max_size=3),
    max_leaves=5,
)
_DATA = st.dictionaries(st.sampled_from(["license", "tags", "a b", "language", "#", "thumbnail"]), _VALUES, max_size=5)


@given(theirs=_DATA, ours=_DATA, text=_WORDS, after=_WORDS)
def test_merging_twice_is_merging_once(theirs: dict[str, Any], ours: dict[str, Any], text: str, after: str) -> None:
    ours = {"license": "mit", **ours}
    front = yaml.safe_dump(theirs, allow_unicode=True, sort_keys=False) if theirs else ""
    written = f"---\n{front}---\n{text}\n" if front else text
    try:
        before = read_card(written)
    except HubError:
        return  # The text itself looked like front matter, and bad one.
    once = merge_card(Readme(ours, "# Ours"), written, {}) + after
    assert merge_card(Readme(ours, "# Ours"), once, ours) == once
    kept = read_card(once)
    assert kept.text.startswith(before.text.rstrip())
    assert kept.text.endswith(after)
    assert {key: value for key, value in kept.data.items() if key not in ours} == {
        key: value for key, value in before.data.items() if key not in ours
    }
