"""Typing YAML by dataclasses: what recipes and model settings have in common."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.core.errors import SettingsError
from rolellm.core.typed_yaml import Form, build, laid_over, parse_yaml, typed


@dataclass(frozen=True, kw_only=True)
class Price:
    prompt: float = field(default=0.0, metadata={"low": 0})
    cached: float | None = None


@dataclass(frozen=True, kw_only=True)
class Server:
    url: str | None = None
    price: Price = field(default_factory=Price)
    spare: Price | None = None
    more: dict[str, Any] = field(default_factory=dict)
    folder: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Settings:
    servers: tuple[Server, ...] = ()
    mode: Literal["fast", "slow"] = "fast"
    names: tuple[str, ...] | None = None
    out: Path = Path("out")


FORM = Form(Settings, kept=("out",), also=("extends",))


def read(text: str) -> Settings:
    return build(Settings, typed(FORM, parse_yaml(text, "file"), Path("/here")))


def test_sections_stand_in_lists() -> None:
    made = read(
        """
        servers:
          - url: a
            price: {prompt: 1e-1, cached: 2}
          - {spare: {prompt: 3}, more: {top_k: 5, stop: [a, {b: null}]}, folder: x}
        out: y
        """
    )
    first, second = made.servers
    assert first == Server(url="a", price=Price(prompt=0.1, cached=2.0))
    assert second.spare == Price(prompt=3.0)
    assert second.price == Price()
    assert second.more == {"top_k": 5, "stop": ["a", {"b": None}]}
    assert second.folder == Path("/here/x")
    assert made.out == Path("y")
    assert read("servers: [{price: , url: null}]").servers == (Server(),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("servers: [{ulr: a}]", "unknown key servers[0].ulr; did you mean servers[0].url?", id="in-a-list"),
        pytest.param("url: a", "unknown key url; did you mean servers[].url?", id="outside-its-list"),
        pytest.param("servers: [{prompt: 1}]", ".prompt?", id="outside-its-section"),
        pytest.param("extend: a", "did you mean extends?", id="a-key-of-the-reader"),
        pytest.param(
            "servers: {url: a}", "servers: expected a list, such as - key: value, found a section", id="no-list"
        ),
        pytest.param("servers: []", "servers: the list is empty; it needs one item or more", id="empty"),
        pytest.param("names: []", "names: the list is empty; leave the key out to take all", id="empty-choice"),
        pytest.param("servers: [7]", "servers[0]: expected a section with keys, found 7", id="no-section"),
        pytest.param("servers: [{price: {prompt: -1}}]", "servers[0].price.prompt: has to be at least 0", id="limit"),
        pytest.param("servers: [{more: 3}]", "servers[0].more: expected a section", id="no-mapping"),
        pytest.param(
            "servers: [{more: {1: 2}}]", "servers[0].more: expected keys of text, found 1", id="number-as-key"
        ),
        pytest.param("servers: [{more: {a: 2024-01-02}}]", "servers[0].more.a: JSON has no such value", id="date"),
        pytest.param("servers: [{more: {a: [.nan]}}]", "servers[0].more.a[0]: JSON has no such", id="nan"),
        pytest.param("servers: [{more: {a: &x [*x]}}]", "more: nested too deep", id="holds-itself"),
        pytest.param("mode: fats", "did you mean fast?", id="choice"),
        pytest.param("mode: 2024-99-99", "not valid YAML", id="no-such-date"),
        pytest.param("mode: a\nmode: b", "file:2: not valid YAML: key 'mode' is written twice", id="twice"),
        pytest.param("[" * 3000, "nested too deep", id="deep"),
        pytest.param("mode: !!python/object/apply:os.system [x]", "not valid YAML", id="python-tag"),
    ],
)
def test_what_is_wrong_is_named(text: str, words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read(text)
    assert words in str(caught.value)


def test_aliases_of_aliases_do_not_explode() -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    text = "servers:\n  - more:\n" + "".join(f"      {line}\n" for line in lines)
    with pytest.raises(SettingsError, match="holds more than 10,000 values"):
        read(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_a_mapping_of_json_stays_as_it_is(more: dict[str, Any]) -> None:
    values = typed(FORM, {"servers": [{"more": more}]}, Path())
    assert build(Settings, values).servers[0].more == more


@given(st.text(max_size=60))
def test_any_text_is_yaml_or_refused(text: str) -> None:
    try:
        value = parse_yaml(text, "file")
    except SettingsError as error:
        assert str(error).startswith("file")
        return
    if isinstance(value, dict):
        try:
            typed(FORM, value, Path())
        except SettingsError as error:
            assert str(error)


def test_layers_go_on_top_of_each_other() -> None:
    under = typed(FORM, {"mode": "slow", "names": ["a"]}, Path())
    over = typed(FORM, {"mode": None, "out": "z"}, Path(), nulls=True)
    assert build(Settings, laid_over(under, over)) == Settings(names=("a",), out=Path("z"))


def test_a_file_far_larger_than_any_settings_is_refused_unread() -> None:
    with pytest.raises(SettingsError, match=r"big\.yaml: 100,000,000 characters are too many for settings"):
        parse_yaml("a: 1\n" * 20_000_000, "big.yaml")
