"""What calls up an entry of lore, as SillyTavern has it."""

import subprocess
import sys
from typing import Any

import pytest

from rolellm.characters.lore import find_keys, matches_key
from rolellm.core.records import Lore


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        pytest.param("", "anything", False, id="an empty key calls up nothing"),
        pytest.param("art", "Where do we start?", False, id="part of a word"),
        pytest.param("old art", "A cold art.", True, id="of several words each place counts"),
        pytest.param("c++ (old)", "Is C++ (old) dead?", True, id="signs of patterns are text"),
        pytest.param("Straße", "DIE STRASSE", True, id="case folding"),
        pytest.param("/la+mp/", "The laaamp.", True, id="pattern"),
        pytest.param("/tea/milk/", "Have tea.", False, id="a bare slash makes it text"),
        pytest.param(r"/\u738b|caf\u{e9}/iu", "CAFÉ", True, id="characters by number, as in JavaScript"),
        pytest.param(r"/\\u00e9/", r"\u00e9", True, id="after two backslashes it is none"),
    ],
)
def test_keys(key: str, text: str, expected: bool) -> None:
    assert matches_key(key, text) == expected


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
    assert [text for text in texts if find_keys(lore, text)] == called


@pytest.mark.parametrize(
    "key",
    [
        pytest.param("/(a|aa)+$/", id="backtracking"),
        pytest.param("/(?R)/", id="recursion"),
        pytest.param("/(?:a?){999999999}b/", id="a billion copies"),
        pytest.param("/((((a{1000}){1000}){1000}){1000})/", id="repetitions within repetitions"),
        pytest.param(f"/{'|'.join(f'w{number}x' for number in range(15_000))}/", id="an alternation of 100 KB"),
        pytest.param(f"/{'|'.join(f'[ab]{{0,{number}}}c' for number in range(500, 900))}/", id="half a million states"),
        pytest.param(f"/{'(' * 50_000}a{')' * 50_000}b/", id="groups within groups"),
        pytest.param("/\ud800/", id="half a surrogate pair"),
        pytest.param("/([ab]{0,1000}c|[ab]{0,999}d)/", id="many states at once"),
    ],
)
def test_no_pattern_takes_long_or_much(key: str) -> None:
    # In a process of its own, so that its limits are its own.
    program = (
        "import ast, resource, sys; from rolellm.characters.lore import matches_key; "
        "resource.setrlimit(resource.RLIMIT_AS, (3 << 29,) * 2); resource.setrlimit(resource.RLIMIT_CPU, (20, 20)); "
        "matches_key(ast.literal_eval(sys.stdin.read()), 'ab' * 10_000 + '\\ud800!')"
    )
    done = subprocess.run([sys.executable, "-c", program], input=ascii(key), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
