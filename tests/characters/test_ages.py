"""Ages under eighteen in the texts of cards and roles, and who is told of them."""

import json
from pathlib import Path

import pytest

from rolellm.characters.ages import find_minor_age
from rolellm.characters.cards.folder import import_card
from rolellm.characters.roles import find_part
from rolellm.core.errors import RoleLLMWarning

from ..commands import Command


@pytest.mark.parametrize(
    "text",
    [
        "17 years old",
        "Mara is a shy 14-year-old boy from the hills.",
        "a sixteen-year-old",
        "She is a 16yo who climbs.",
        "15 y/o, freckled",
        "Age: 16",
        "**Age:** sixteen",
        'Age("17" + "Seventeen")',
        "[Name = Ivy; Age = 13; Hair = red]",
        "Ivy, aged 12, keeps bees.",
        "{{char}} is a 16-year-old daughter of a miller",
        "You are fifteen, and you know the sea.",
        "I'm only seventeen!",
        "She looks 14 years old.",
        "年龄：17",
        "年龄（16岁）",
        "小翠今年十六岁，爱笑。",
        "芳龄十六",
        "约十五六岁的少女",
        "她刚满12岁。",
        "我今年十岁了。",
    ],
)
def test_an_age_is_found(text: str) -> None:
    assert find_minor_age("Tall and quiet.", text)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("She has ruled for 16 years.", id="duration"),
        pytest.param("Her daughter is 5 years old.", id="relative"),
        pytest.param("He lives with his 10-year-old son.", id="relative-after"),
        pytest.param("She was 16 years old when the war began.", id="past"),
        pytest.param("At the age of 12, he lost his father.", id="at-the-age-of"),
        pytest.param("He left home at age 15.", id="at-age"),
        pytest.param("He pours a 16-year-old whisky.", id="thing"),
        pytest.param("Even a 5-year-old could see it.", id="saying"),
        pytest.param("She is 116 years old.", id="longer-number"),
        pytest.param("Age: 1,016", id="thousands"),
        pytest.param("Age: 16 centuries", id="centuries"),
        pytest.param("Age: twenty-five years old", id="in-words"),
        pytest.param("two hundred and sixteen years old", id="hundreds"),
        pytest.param("Age: 18", id="eighteen"),
        pytest.param("No one over 17 years old may enter.", id="limit"),
        pytest.param("Rated 4.5 by 17 people.", id="numbers"),
        pytest.param("她二十六岁，比他小三岁。", id="zh-difference"),
        pytest.param("十六岁那年，他离开了家。", id="zh-past"),
        pytest.param("他的女儿五岁。", id="zh-relative"),
        pytest.param("一百一十六岁", id="zh-hundreds"),
        pytest.param("吾皇万岁，千岁！", id="zh-hail"),
        pytest.param("未满十四岁的不得入内", id="zh-limit"),
        pytest.param("", id="empty"),
    ],
)
def test_what_is_not_the_age_of_the_role_is_left_out(text: str) -> None:
    assert find_minor_age(text) == ""


def write_card(folder: Path, description: str) -> Path:
    path = folder / "ivy.json"
    data = {"name": "Ivy", "description": description, "first_mes": "Hello."}
    path.write_text(json.dumps({"spec": "chara_card_v2", "spec_version": "2.0", "data": data}), encoding="utf-8")
    return path


def test_whoever_reads_a_card_first_is_told_once(tmp_path: Path, command: Command) -> None:
    card = write_card(tmp_path, "Ivy keeps bees. Age: 16")
    with pytest.warns(RoleLLMWarning, match="Ivy: its text gives an age under eighteen .“Age: 16”."):
        find_part(card)
    with pytest.warns(RoleLLMWarning) as warned:
        import_card(card, tmp_path / "ivy")
    assert len(warned) == 1
    # The folder is there now, and its maker was told.
    find_part(card)
    find_part(tmp_path / "ivy")
    with pytest.warns(RoleLLMWarning) as warned:
        assert command("role", "import-card", card, "--out", tmp_path / "again").code == 0
    assert len(warned) == 1


def test_a_grown_up_is_imported_in_silence(tmp_path: Path) -> None:
    import_card(write_card(tmp_path, "Ivy is 36 years old, and her daughter is 5 years old."), tmp_path / "ivy")
