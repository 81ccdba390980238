"""What a damaged release says, and what is kept of it."""

import json
from typing import Any

import pytest
from datasets import load_dataset

from rolellm.core.errors import DataError
from rolellm.data.rolebench.release import split_catchphrases

TEST = "rolebench-eng/instruction-generalization/general/test.jsonl"
GOOD = {"role": "Fox", "question": "Name a tree.", "generated": ["An oak."]}
LINE = json.dumps(GOOD)


def add_row(**row: Any) -> str:
    """A good line, and one with another row."""
    return f"{LINE}\n{json.dumps({'role': 'Fox', 'question': 'q', 'generated': ['a', 'b']} | row)}\n"


DAMAGE = [
    pytest.param(f"{LINE}\nnot json\n{LINE}\n", 2, "not valid JSON", id="broken-json"),
    pytest.param(f'{LINE}\n{{"question": "q", "generated": ["a"]}}\n', 2, "at role: Field required", id="no-role"),
    pytest.param(add_row(type=["script_based"]), 2, r"one `type` a reply \(2\)", id="types-do-not-match"),
    pytest.param(add_row(generated=["a\ud800"]), 2, r"U\+D800", id="half-a-surrogate"),
]


@pytest.mark.parametrize(("content", "line", "words"), DAMAGE)
def test_damage_names_file_line_and_expectation(content, line, words, write_release):
    folder = write_release(**{TEST: content})
    with pytest.raises(DataError, match=words) as caught:
        load_dataset("rolebench", data_dir=str(folder))
    assert caught.value.path == folder / TEST
    assert caught.value.line == line
    assert "rolellm data audit" in str(caught.value)


SURROGATES = (
    '{"instruction": "Dig\\ud800.", "target": "a", "role": "Fox", "question": "Q\\ud800", "generated": ["a"]}\n'
)
DESCRIPTIONS = "profiles-eng/desc.json"


@pytest.mark.filterwarnings("ignore:rolebench 'instructions'")
@pytest.mark.parametrize(
    ("path", "content", "words"),
    [
        pytest.param(DESCRIPTIONS, '{"Fox": "\\ud800"}', "half a surrogate", id="half-a-surrogate"),
        pytest.param(TEST, "", "the file is empty", id="empty"),
        pytest.param(TEST.replace("test", "rolegpt_baseline"), SURROGATES, "half a", id="baseline"),
    ],
)
def test_any_file_that_is_not_as_published_is_named(path, content, words, write_release):
    folder = write_release(**{path: content})
    with pytest.raises(DataError, match=words) as caught:
        load_dataset("rolebench", "instructions" if path.startswith("instr") else None, data_dir=str(folder))
    assert caught.value.path == folder / path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A fox.", ("A fox.", [])),
        ('A fox. Your catchphrase is: "Sour!"', ("A fox.", ["Sour!"])),
        ('A fox. Your catchphrases are: "Sour!" / "A-ha?"', ("A fox.", ["Sour!", "A-ha?"])),
        ("一只狐狸。 Your catchphrases are: “酸！” / “哈”", ("一只狐狸。", ["酸！", "哈"])),
    ],
)
def test_split_catchphrases(text, expected):
    assert split_catchphrases(text) == expected
