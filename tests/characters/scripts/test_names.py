"""When two spellings are one name, and what can be a name at all."""

import pytest

from rolellm.characters.scripts.names import is_name, strip_extensions


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("JOHN (O.S.) (CONT'D)", "JOHN"),
        ("JOHN (CONT’D) ^", "JOHN"),
        ("**Jo**", "Jo"),
        ("悟空（画外音）", "悟空"),
        ("(V.O.)", "(V.O.)"),
    ],
)
def test_what_scripts_hang_on_to_a_name_goes(written: str, name: str) -> None:
    assert strip_extensions(written) == name


NAMES = (
    "First Citizen|A Patrician|All|Senators, &C|MRS. HALE|D. Hale|Jean-Luc|1st Guard|Anne of Cleves|All The Lords|"
    "Both Tribunes|郭翁|赵云|小猴甲|阿尔弗雷德·诺贝尔|Émile|MARTIN LUTHER KING JR."
)
WORDS = (
    "Listen|Well|But|He said|Note|Scene|and then|I say unto you|What is it?||—|10|Well, I'll hear it, sir|悟空道|"
    "那人笑道|时间|他说|诗曰|话说天下大势分久必合合久必分|好，我来"
)


@pytest.mark.parametrize(
    ("text", "is_one"), [(text, texts is NAMES) for texts in (NAMES, WORDS) for text in texts.split("|")]
)
def test_names_and_other_words(text: str, is_one: bool) -> None:
    assert is_name(text, once=True) is is_one
