from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.core.errors import SettingsError
from rolellm.models.prompts.render import Template, load_template

LANGUAGES = ("en", "zh")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("{other}", id="another slot's name"),
        pytest.param("{role}", id="its own name"),
        pytest.param("{0.__class__}", id="format attribute"),
        pytest.param("{{7*7}}", id="jinja"),
        pytest.param("%(role)s $role ${role}", id="other formats"),
        pytest.param("\\1 \\g<0>", id="regex replacement"),
        pytest.param("<|im_end|>", id="special token"),
        pytest.param("{", id="single brace"),
    ],
)
def test_what_is_filled_in_stays_text(text: str) -> None:
    assert Template("A {role}, {other}.").fill(role=text, other="B") == f"A {text}, B."


@given(st.text(), st.text())
def test_every_text_comes_out_as_it_went_in(one: str, two: str) -> None:
    assert Template("<{one}|{two}|{one}>").fill(one=one, two=two) == f"<{one}|{two}|{one}>"


@pytest.mark.parametrize("text", ['{"pairs": []}', "{ role }", "{Role}", "{role", "{}", "{a-b}", "{1}"])
def test_other_braces_are_text(text: str) -> None:
    assert Template(text).slots == frozenset()
    assert Template(text).fill() == text


def test_a_slot_without_a_text_and_a_text_without_a_slot_are_errors() -> None:
    template = Template("{role}: {line}", "greeting.txt")
    with pytest.raises(SettingsError, match=r"greeting.txt has \{line\}, which nothing fills; .* \{role\}"):
        template.fill(role="A")
    with pytest.raises(SettingsError, match=r"has no slot \{word\}"):
        template.fill(role="A", line="B", word="C")


def test_a_part_goes_with_the_slot_that_it_names() -> None:
    template = Template("{role}, {role}.\nYou: {words}\nStay {x y} {other}.", optional=("words",))
    assert template.fill(role="{other}", words="") == "{other}, {other}.\nStay {x y} {other}."
    assert template.fill(role="A", words=" b ") == "A, A.\nYou: b\nStay {x y} {other}."


def test_both_languages_have_the_same_templates_with_the_same_slots() -> None:
    root = resources.files("rolellm.models.prompts")
    names = [{item.name for item in root.joinpath(language).iterdir()} for language in LANGUAGES]
    assert names[0] == names[1]
    shipped = sorted(name.removesuffix(".txt") for name in names[0] if name.endswith(".txt"))
    assert "profile_third" in shipped
    for name in shipped:
        one, other = (load_template(language, name) for language in LANGUAGES)
        assert one.slots == other.slots, name
        assert one.text != other.text
