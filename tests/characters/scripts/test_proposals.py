"""Other names of a role: what is proposed, and why; and what is not."""

import pytest

from rolellm.characters.scripts.names import propose_aliases


def reasons(role: str, others: list[str], text: str = "", said: dict[str, list[str]] | None = None) -> dict[str, str]:
    found = propose_aliases([role], dict.fromkeys(others, 3), text, said or {})
    assert all(item.turns == 3 for item in found)
    return {item.name: item.reason for item in found}


@pytest.mark.parametrize(
    ("role", "other", "alike"),
    [
        pytest.param("Sherlock", "SHERLOCK HOLMES", True, id="first name"),
        pytest.param("Dr. Watson", "WATSON", True, id="a title less"),
        pytest.param("孙悟空", "悟空", True, id="without the family name"),
        pytest.param("张飞", "张飞将军", True, id="a title behind"),
        pytest.param("Marcius", "Young MARCIUS", False, id="young"),
        pytest.param("悟空", "悟空道人", False, id="more behind the name"),
        pytest.param("Mr. Bennet", "MRS. BENNET", False, id="his wife"),
        pytest.param("Jane Bennet", "ELIZABETH BENNET", False, id="her sister"),
        pytest.param("Captain Orme", "MISS ORME", False, id="his daughter"),
        pytest.param("Second Citizen", "SECOND SENATOR", False, id="numbers"),
        pytest.param("Hamlet", "Ghost of Hamlet", False, id="a ghost"),
        pytest.param("空", "悟空", False, id="one character"),
        pytest.param("悟空", "Wukong", False, id="two scripts"),
    ],
)
def test_likeness(role: str, other: str, alike: bool) -> None:
    assert set(reasons(role, [other, "Somebody", "某人"])) == ({other} if alike else set())
    assert not alike or set(reasons(other, [role, "Somebody", "某人"])) == {role}


@pytest.mark.parametrize(
    ("role", "other", "text", "reason"),
    [
        pytest.param(
            "Coriolanus",
            "MARCIUS",
            "call him\nCAIUS MARCIUS CORIOLANUS! Bear",
            "‘MARCIUS CORIOLANUS’ is one name in the text",
            id="one name",
        ),
        pytest.param("Smith", "THE FOX", "Smith, hereafter called the Fox, left.", "called the Fox", id="called"),
        pytest.param("宋江", "及时雨", "这宋江，人称及时雨，好义。", "人称及时雨", id="Chinese"),
        pytest.param("Coriolanus", "MARCIUS", "MARCIUS\nCORIOLANUS: Who?", None, id="a list of speakers"),
        pytest.param("Coriolanus", "MARCIUS", "Marcius, Coriolanus came.", None, id="two with a comma"),
        pytest.param("Smith", "FOX", "Smithson, called Foxy, left.", None, id="parts of words"),
        pytest.param("张生", "小官人", "张生小官人来了。张生小官人去了。", None, id="together, by chance"),
        pytest.param("Smith", "FOX", "Smith saw them catch a dog called Fox.", None, id="somebody else in between"),
    ],
)
def test_what_the_text_says(role: str, other: str, text: str, reason: str | None) -> None:
    proposed = reasons(role, [other], text)
    assert proposed == {} if reason is None else reason in proposed[other]


@pytest.mark.parametrize(
    ("role", "speech", "named"),
    [
        pytest.param("Marcius", "My name is Caius Marcius, who hath done", True, id="my name is"),
        pytest.param("Marcius", "I am Marcius's friend.", False, id="whose friend"),
        pytest.param("Marcius", "I am looking for Marcius.", False, id="looking for"),
        pytest.param("孙悟空", "我本是花果山水帘洞天生圣人孙悟空。", True, id="Chinese"),
        pytest.param("孙悟空", "我不是孙悟空。", False, id="is not"),
        pytest.param("玉帝", "吾乃玉帝外甥。", False, id="a nephew"),
    ],
)
def test_who_says_to_be_the_role(role: str, speech: str, named: bool) -> None:
    other = "某人" if role[0] > "z" else "Stranger"
    assert (other in reasons(role, [other], said={other: ["Ho!", speech]})) is named


def test_a_part_that_two_names_share_is_nobodys() -> None:
    assert reasons("George Emerson", ["Emerson", "Mr. Emerson"]) == {}
    assert set(reasons("George Emerson", ["Emerson"])) == {"Emerson"}


def test_names_next_to_each_other_are_no_reason() -> None:
    text = "宝玉、宝钗、黛玉同坐。宝玉便是听不得。宝玉笑着叫黛玉。黛玉名唤丫鬟。" * 20
    assert reasons("宝玉", ["宝钗", "黛玉", "丫鬟"], text) == {}
    text = "Elizabeth and Mrs. Hale walked. Mrs. Hale called Elizabeth. It was Elizabeth that Lucas named." * 20
    assert reasons("Elizabeth", ["Mrs. Hale", "Lucas"], text) == {}
    # The speaker of a novel told by "I".
    assert reasons("Holmes", ["I"], "Holmes I knew well. I Holmes asked.") == {}
