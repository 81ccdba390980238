"""Judges as data: those that ship, one of the user's own, folders that are none, and families by name."""

import shutil
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import pytest

from rolellm.core.errors import SettingsError
from rolellm.judging.judge_models import load_judge, load_judges
from rolellm.judging.systems import find_family

SHIPPED = Path(str(resources.files("rolellm.judging.judges")))


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A copy of a judge that ships, to be changed."""
    return Path(shutil.copytree(SHIPPED / "role-pair", tmp_path / "own"))


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("judge.yaml", "version: 3", "version: 4"),
        ("schema.json", '"string"}', '"string", "description": "why"}'),
        ("zh.user.txt", "回答", "答复"),
    ],
)
def test_every_file_counts_in_the_hash(own: Path, name: str, old: str, new: str) -> None:
    before = load_judge(own).hash
    assert before == load_judge("role-pair").hash
    _change(name, old, new)(own)
    assert load_judge(own).hash != before


def _drop(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _write(name: str, text: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / name).write_text(text, encoding="utf-8")

    return write


def _change(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / name
        text = file.read_text(encoding="utf-8")
        assert old in text
        file.write_text(text.replace(old, new), encoding="utf-8")

    return change


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        pytest.param(_drop("schema.json"), "schema.json: cannot be read", id="no-schema"),
        pytest.param(_write("schema.json", "{"), "not a valid schema", id="broken-schema"),
        pytest.param(_write("schema.json", "[]"), "expected a JSON schema", id="schema-no-object"),
        pytest.param(_write("judge.yaml", "- a"), "expected keys and values", id="settings-a-list"),
        pytest.param(_change("judge.yaml", "parser: better", "parser: ranking"), "another parser's", id="parser"),
        pytest.param(_change("en.user.txt", "{question}", ""), "{question}", id="slot-missing"),
        pytest.param(_change("en.user.txt", "{question}", "{question} {winner}"), "{winner}", id="slot-unknown"),
    ],
)
def test_a_folder_that_is_no_judge_says_what_is_wrong(own: Path, harm: Callable[[Path], None], said: str) -> None:
    harm(own)
    with pytest.raises(SettingsError) as caught:
        load_judge(own)
    assert said in str(caught.value) and str(own) in str(caught.value)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["no-such"], "expected one of role-list, role-odds, role-pair, or a folder"),
        (["../judges"], "expected one of"),
        (["role-pair", SHIPPED / "role-pair"], "both pairwise"),
        ([], "no judge is named"),
    ],
)
def test_what_is_no_judge_at_all(names: list[str | Path], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        load_judges(names)


# --- families


NAMES = {
    "gpt": "gpt-4o RoleGPT openai/gpt-oss-20b o1-mini openai/o3",
    "claude": "claude-3-5-sonnet-20241022 anthropic.claude-v2:1",
    "llama": "meta-llama/Llama-2-7b-hf RoleLLaMA runs/rolellama-7b/checkpoint-716 /data/gemma/llama-8b",
    "glm": "THUDM/chatglm2-6b RoleGLM glm-4-9b-chat",
    "qwen": "QwQ-32B ollama/qwen2.5 deepseek-ai/DeepSeek-R1-Distill-Qwen-7B C:\\models\\qwen2-7b\\final",
    "stablelm": "stabilityai/stablelm-zephyr-3b",
    "phi": "microsoft/phi-1_5 Phi-3.5-mini-instruct",
}


@pytest.mark.parametrize("family", NAMES)
def test_recognised(family: str) -> None:
    for name in NAMES[family].split():
        assert find_family(name) == family
        assert find_family(f" {name.upper()}") == family


@pytest.mark.parametrize(
    "name",
    [
        *(None, "", "words", "predictions", "runs/a/checkpoint-716", "/", "phi", "delphi", "yield-7b", "/home/yi/run"),
        *("go1", "MiniGPT-4", "ollama", "LLaMA-Factory/saves/mine", "autogpt", "gemmation", "canary: echo", "command"),
    ],
)
def test_not_recognised(name: str | None) -> None:
    assert find_family(name) is None
