"""A character's folder that somebody wrote by hand, or that a run must not be put into."""

import json
from pathlib import Path
from typing import Any

import pytest

from rolellm.characters.folder import read_character, write_character
from rolellm.core.errors import DataError
from rolellm.core.records import Profile


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        pytest.param({"role": " "}, "the profile is not valid at role", id="blank role"),
        pytest.param({"language": "fr"}, "at language: .*'en' or 'zh'", id="another language"),
        pytest.param({"lore": [{"content": "a", "keys": [5]}]}, "not valid at lore.0", id="a key that is no text"),
        pytest.param({"description": "a \ud800"}, r"half a surrogate pair \(U\+D800\)", id="half a surrogate pair"),
    ],
)
def test_a_profile_that_is_none(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    path = write_character(Profile("Ada", "en"), tmp_path / "ada") / "profile.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changed), encoding="utf-8")
    with pytest.raises(DataError, match=message) as caught:
        read_character(tmp_path / "ada")
    assert caught.value.path == path
