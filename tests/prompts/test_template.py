from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.core.errors import SettingsError
from rolellm.prompts.render import Template, fill_slots, load_template

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


def test_fill_slots_leaves_what_has_no_value() -> None:
    assert fill_slots("{role} {other} {x y}", {"role": "{other}"}) == "{other} {other} {x y}"


def test_the_hash_follows_the_text() -> None:
    assert Template("a").hash != Template("b").hash
    assert Template("a", "x").hash == Template("a", "y").hash


def test_a_template_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "own.txt"
    slots = sorted(load_template("en", "profile_second").slots)
    file.write_bytes(b"\xef\xbb\xbfMine: " + "".join(f"{{{slot}}}" for slot in slots).encode() + b"\r\n")
    own = load_template("en", "profile_second", path=file)
    assert own.text == "Mine: {names}{portrait}"
    assert own.hash != load_template("en", "profile_second").hash


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"{portrait}", r"no slot \{names\}", id="slot missing"),
        pytest.param(b"{portrait}{names}{nmaes}", r"has \{nmaes\}, which nothing fills", id="slot unknown"),
        pytest.param("{portrait}{names}ü".encode("latin-1"), "UTF-8", id="not UTF-8"),
        pytest.param(None, "cannot read the template", id="no file"),
    ],
)
def test_a_template_that_will_not_do(tmp_path: Path, content: bytes | None, message: str) -> None:
    file = tmp_path / "own.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SettingsError, match=message):
        load_template("en", "profile_second", path=file)


def test_a_name_that_does_not_ship() -> None:
    with pytest.raises(SettingsError, match=r"no prompt template en/profile_fourth\.txt ships"):
        load_template("en", "profile_fourth")


def test_both_languages_have_the_same_templates_with_the_same_slots() -> None:
    root = resources.files("rolellm.prompts")
    names = [{item.name for item in root.joinpath(language).iterdir()} for language in LANGUAGES]
    assert names[0] == names[1]
    shipped = sorted(name.removesuffix(".txt") for name in names[0] if name.endswith(".txt"))
    assert "profile_third" in shipped
    for name in shipped:
        one, other = (load_template(language, name) for language in LANGUAGES)
        assert one.slots == other.slots, name
        assert one.text != other.text
