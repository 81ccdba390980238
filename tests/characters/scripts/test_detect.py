"""Formats and languages found out."""

import pytest

from rolellm.characters.scripts.parse import FORMATS, detect_format
from rolellm.characters.scripts.reading import Format, ReaderHints
from rolellm.core.errors import ScriptError

NOVEL = "“I shall go,” said Anne, and she went to the door. “Nobody will stop me.”\n\n“Nobody,” said her aunt.\n"
ZH_NOVEL = '悟空道："师父，我去也！"\n祖师道："你去罢。"\n悟空道："去也！"\n悟空听了大喜，纵身一跳。\n'
LABELS = "Note: buy milk\nTime: ten\nPlace: here\n"
LIST = "BREAD\nMILK\nEGGS\n\nBUTTER\nTEA\n"


@pytest.mark.parametrize(
    ("text", "format"),
    [
        pytest.param(NOVEL, "novel", id="novel"),
        pytest.param(ZH_NOVEL, "novel", id="Chinese novel, whose lines look like labels"),
    ],
)
def test_formats(text: str, format: Format) -> None:
    found, scores = detect_format(text, ReaderHints("en"))
    assert found == format, scores
    assert all(0 <= score <= 1 for score in scores.values())
    assert set(scores) == set(FORMATS)


@pytest.mark.parametrize("text", ["Nothing is said here.\n", LABELS, LIST, "12 13 14\n" * 9])
def test_no_format_is_said_in_words(text: str) -> None:
    with pytest.raises(ScriptError, match=r"the format is not clear.*--format play, screenplay, transcript, novel"):
        detect_format(text, ReaderHints("en"))
