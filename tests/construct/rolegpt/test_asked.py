"""Reading the instructions that a role is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolellm.construct.rolegpt.respond import Asked, instructions_of
from rolellm.core.errors import DataError

LINES = """\
{"instruction": "Name a colour.", "target": "Red."}

{"question": "Fox, who has the key?", "answer": "The parrot.", "type": "script_based", "role": "Fox"}
{"instruction": "Name a colour.", "target": "Blue."}
{"instruction": "Why?", "target": null}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "asked.jsonl"
    path.write_text(text, encoding="utf-8")
    return path


def test_instructions_and_questions(tmp_path: Path) -> None:
    assert instructions_of(write(tmp_path, LINES), "Fox").asked == [
        Asked("Name a colour.", "Red."),
        Asked("Fox, who has the key?", None, {"answer": "The parrot.", "type": "script_based"}),
        Asked("Why?"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", "no instructions", id="empty"),
        pytest.param('{"prompt": "x"}', r":1: expected a text `instruction` or `question` \(keys: prompt\)", id="keys"),
        pytest.param('{"instruction": " "}', ":1: expected a text `instruction`, found ' '", id="blank"),
        pytest.param('{"instruction": "a"}\n{"question": 7}', ":2: expected a text `question`, found 7", id="number"),
        pytest.param('{"instruction": "a", "target": ["b"]}', "expected `target` to be a text or null", id="target"),
        pytest.param('{"question": "a", "role": "Owl"}', "this line is for 'Owl', and the profile is 'Fox'", id="role"),
        pytest.param('{"instruction": "a"', ":1: not valid JSON", id="cut off"),
        pytest.param(
            '{"instruction": "a", "n": ' + "9" * 5000 + "}", ":1: not valid JSON", id="a number of 5,000 digits"
        ),
        pytest.param('{"instruction": "a \\ud800"}', r":1: half a surrogate pair \(U\+D800\)", id="half a pair"),
        pytest.param('{"instruction": "a", "note": ["\\udc00"]}', ":1: half a surrogate pair", id="half a pair beside"),
    ],
)
def test_files_that_will_not_do(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        instructions_of(write(tmp_path, text), "Fox")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no such file; .* makes one, and Python takes a list of texts or a Dataset"):
        instructions_of(tmp_path / "none.jsonl", "Fox")
