import pytest

from rolellm.core.records import Language, Profile
from rolellm.making.profile.portrait import collect_names, find_role_name


def find(text: str, role: str, *aliases: str, language: Language = "en") -> str | None:
    return find_role_name(collect_names(Profile(role, language, aliases=aliases)), text)


@pytest.mark.parametrize(
    ("role", "aliases", "text", "expected"),
    [
        pytest.param("CORIOLANUS", (), "Coriolanus's pride", "Coriolanus", id="capitals, possessive"),
        pytest.param("Coriolanus", ("Caius Marcius",), "proud Marcius came", "Marcius", id="part of an alias"),
        pytest.param("Ann", (), "Anna and Susann met Hannah", None, id="within words"),
        pytest.param("Dr. Frank-N-Furter", (), "a Dr Frank N Furter", "Dr Frank N Furter", id="other punctuation"),
        pytest.param("D_Artagnan", (), "young D'Artagnan", "D'Artagnan", id="underscore in the release"),
        pytest.param("The Dude", (), "they call him the Dude", "Dude", id="article"),
        pytest.param("Soldier", (), "a soldier among soldiers", None, id="common noun"),
        pytest.param("Queen of Hearts", (), "a queen whose hearts are cards", None, id="common nouns"),
        pytest.param("Queen of Hearts", (), "the Queen of Hearts", "Queen of Hearts", id="whole name"),
        pytest.param("Captain Ahab", (), "The Captain hunts", None, id="title alone"),
        pytest.param("Captain Ahab", (), "Old Ahab hunts", "Ahab", id="without the title"),
        pytest.param("M", (), "the chief, called M, who", "M", id="one letter"),
        pytest.param("I", (), "Elizabeth I reigns", None, id="a pronoun"),
        pytest.param("???", (), "who? ??? indeed", None, id="no letters"),
        pytest.param("(.*)+", (), "anything at all", None, id="regex"),
        pytest.param("A[b", (), "the A[b of it", "A[b", id="unbalanced bracket"),
        pytest.param("Élodie", (), "brave Élodie", "Élodie", id="accent"),
        pytest.param("Marcius", ("Caius Marcius", "Caius"), "x Caius Marcius y", "Caius Marcius", id="longest first"),
    ],
)
def test_names_in_english(role: str, aliases: tuple[str, ...], text: str, expected: str | None) -> None:
    assert find(text, role, *aliases) == expected


@pytest.mark.parametrize(
    ("role", "aliases", "text", "expected"),
    [
        pytest.param("孙悟空", ("悟空", "大圣"), "齐天大圣大闹天宫", "大圣", id="alias"),
        pytest.param("孙悟空", ("悟空",), "他便是孙悟空", "孙悟空", id="longest first"),
        pytest.param("白", (), "白天的白马", None, id="one character"),
        pytest.param("亨利·鲍尔", (), "一个叫亨利的人", "亨利", id="part before the dot"),
        pytest.param("Sam", (), "他叫Sam的朋友", "Sam", id="Latin name among Chinese"),
        pytest.param("Sam", (), "他是Samuel", None, id="within a Latin word"),
    ],
)
def test_names_in_chinese(role: str, aliases: tuple[str, ...], text: str, expected: str | None) -> None:
    assert find(text, role, *aliases, language="zh") == expected
