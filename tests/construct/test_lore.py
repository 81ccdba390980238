"""What calls up an entry of lore, as SillyTavern has it."""

from __future__ import annotations

from typing import Any

import pytest

from rolellm.construct.lore import called_up, stands_in
from rolellm.construct.sheet import Lore
from rolellm.core.errors import SettingsError


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        pytest.param("", "anything", False, id="an empty key calls up nothing"),
        pytest.param(" ", "a b", False, id="a blank one neither"),
        pytest.param("art", "Where do we start?", False, id="part of a word"),
        pytest.param("old art", "A cold art.", True, id="of several words each place counts"),
        pytest.param("c++ (old)", "Is C++ (old) dead?", True, id="signs of patterns are text"),
        pytest.param(".*", "anything", False, id="a pattern without slashes is text"),
        pytest.param("王", "大王来了", True, id="a Chinese key stands within a text"),
        pytest.param("Straße", "DIE STRASSE", True, id="case folding"),
        pytest.param("/la+mp/", "The laaamp.", True, id="pattern"),
        pytest.param("/lamp/", "The Lamp.", False, id="a pattern minds case"),
        pytest.param("/lamp$/im", "The LAMP\nis out.", True, id="but for its flags"),
        pytest.param("/amp/", "The lamp.", True, id="and not whole words"),
        pytest.param("/tea/milk/", "Have tea.", False, id="a bare slash makes it text"),
        pytest.param("/tea/milk/", "Order /tea/milk/ now", True, id="which is found as it is"),
        pytest.param(r"/tea\/milk/", "Order tea/milk now", True, id="an escaped one does not"),
        pytest.param("/(tea/", "Have tea.", False, id="an invalid pattern is text"),
        pytest.param("/tea/x", "Have tea.", False, id="unknown flags make it text"),
    ],
)
def test_keys(key: str, text: str, expected: bool) -> None:
    assert stands_in(key, text) == expected


def test_case_and_whole_words_are_settings() -> None:
    assert not stands_in("Rose", "a rose", case_sensitive=True)
    assert stands_in("Rose", "a Rose", case_sensitive=True)
    assert stands_in("art", "Where do we start?", whole_words=False)


@pytest.mark.parametrize(
    ("logic", "called"),
    [
        pytest.param("and_any", ["fog and bell", "fog, bell, horn"], id="any of them"),
        pytest.param("and_all", ["fog, bell, horn"], id="all of them"),
        pytest.param("not_any", ["fog"], id="none of them"),
        pytest.param("not_all", ["fog", "fog and bell"], id="not all of them"),
    ],
)
def test_secondary_keys_narrow_down(logic: Any, called: list[str]) -> None:
    lore = Lore("The fog.", ("fog",), secondary_keys=("bell", "/horns?/"), logic=logic)
    texts = ["fog", "fog and bell", "fog, bell, horn", "bell and horn"]
    assert [text for text in texts if called_up(lore, text)] == called


def test_a_pattern_that_never_ends_is_named() -> None:
    with pytest.raises(SettingsError, match=r"the lore key '/.a.aa.\+\$/' takes over 1 second .* profile\.json"):
        called_up(Lore("…", ("/(a|aa)+$/",)), "a" * 200 + "!")
