import pytest

from rolellm.core.records import Language, Profile
from rolellm.making.profile.portrait import collect_names, find_role_name


@pytest.mark.parametrize(
    ("language", "role", "aliases", "text", "expected"),
    [
        pytest.param("en", "Coriolanus", ("Caius Marcius",), "proud Marcius came", "Marcius", id="part of an alias"),
        pytest.param("en", "Soldier", (), "a soldier among soldiers", None, id="common noun"),
        pytest.param("en", "Captain Ahab", (), "Old Ahab hunts", "Ahab", id="without the title"),
        pytest.param("en", "M", (), "the chief, called M, who", "M", id="one letter"),
        pytest.param(
            "en", "Marcius", ("Caius Marcius", "Caius"), "x Caius Marcius y", "Caius Marcius", id="longest first"
        ),
        pytest.param("zh", "白", (), "白天的白马", None, id="zh: one character"),
        pytest.param("zh", "Sam", (), "他叫Sam的朋友", "Sam", id="zh: Latin name among Chinese"),
    ],
)
def test_names(language: Language, role: str, aliases: tuple[str, ...], text: str, expected: str | None) -> None:
    assert find_role_name(collect_names(Profile(role, language, aliases=aliases)), text) == expected
