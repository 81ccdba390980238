"""Settings: one class says what a file, a keyword or an option may hold, and errors name the way out."""

from dataclasses import field, replace
from pathlib import Path, PosixPath
from typing import Any, Literal

import pytest

from rolellm.core.errors import SettingsError
from rolellm.core.settings import Field, dump, parse_yaml, read, read_file, resolve_paths, settings


@settings
class Adapter:
    r: int = Field(16, gt=0)
    targets: tuple[str, ...] = ("all-linear",)


@settings
class Whole:
    adapter: Adapter = field(default_factory=Adapter)
    template: Path | None = None
    out: Path = Path("runs")
    rate: float = Field(1e-4, gt=0)
    kind: Literal["full", "lora"] = "lora"
    flag: bool = False
    steps: int | None = Field(None, ge=1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        pytest.param({"rte": 1}, "f.yaml: unknown key rte; did you mean rate?", id="misspelled"),
        pytest.param({"r": 1}, "unknown key r; did you mean adapter.r?", id="under-the-wrong-section"),
        pytest.param({"adapter": {"r": 0}}, "adapter.r: must be greater than 0, found 0", id="limit-in-a-section"),
        pytest.param({"adapter": 3}, "adapter: must be a section, found 3", id="no-section"),
        pytest.param({"kind": "loar"}, "did you mean lora?", id="misspelled-choice"),
        pytest.param({"steps": True}, "steps: must be a whole number", id="flag-for-a-number"),
        pytest.param({"rate": float("nan")}, "rate: must be a finite number", id="nan"),
        pytest.param([1], "expected keys and values, found a list", id="list"),
    ],
)
def test_errors_name_the_key_and_the_way_out(values: Any, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read(Whole, values, "f.yaml")
    assert message in str(caught.value)


def test_a_secret_value_is_never_repeated() -> None:
    with pytest.raises(SettingsError) as caught:
        read(Whole, {"rate": "sk-123456"}, secret=True)
    assert "sk-123456" not in str(caught.value)


def test_values_have_their_types_and_defaults() -> None:
    made = read(Whole, {"adapter": {"targets": ["q", "v"]}, "template": "t.txt", "rate": 1, "steps": None})
    assert made == Whole(adapter=Adapter(targets=("q", "v")), template=Path("t.txt"), rate=1.0)
    assert read(Whole, dump(made)) == made


def test_objects_are_checked_when_they_are_made_and_when_they_are_changed() -> None:
    with pytest.raises(SettingsError, match="must be greater than 0"):
        replace(Adapter(), r=0)


def test_a_files_paths_are_relative_to_it() -> None:
    values = {"base": {"path": "b", "out": "runs"}, "data": {"path": "/d"}}
    assert resolve_paths(values, Path("/there"), "base.path", "data.path", "prompt.path") == {
        "base": {"path": "/there/b", "out": "runs"},
        "data": {"path": "/d"},
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("a: &x [1]\nb: *x\n", "f:2: not valid YAML: aliases are not supported", id="alias"),
        pytest.param("a: 1\na: 2\n", "key 'a' is written twice", id="twice"),
        pytest.param("a: [", "not valid YAML", id="broken"),
        pytest.param("[" * 20_000, "not valid YAML: nested too deep", id="deep"),
    ],
)
def test_yaml_that_is_refused(text: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_yaml(text, "f")
    assert message in str(caught.value)


def test_yaml_numbers_and_dates() -> None:
    assert parse_yaml("a: 2e-4\nb: 2024-01-01\nc: -1E5", "f") == {"a": 2e-4, "b": "2024-01-01", "c": -1e5}


def test_a_file_far_larger_than_settings_is_refused_at_once(tmp_path: Path) -> None:
    file = tmp_path / "big.yaml"
    file.write_text("# " + "x" * (2 << 20))
    with pytest.raises(SettingsError, match="larger than"):
        read_file(file)


def test_ctrl_c_while_settings_are_written_is_ctrl_c() -> None:
    class Interrupted(PosixPath):
        def __str__(self) -> str:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dump(Whole(out=Interrupted("a")))
