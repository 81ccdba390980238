"""Python code in a model's folder is never run, whoever loads it and whatever is on standard input."""

import ast
import io
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rolellm.core.errors import RoleLLMError
from rolellm.llm.tokens import TokenCounter
from rolellm.models.load import load_whole, open_tokenizer
from rolellm.models.local_model import LocalModel
from rolellm.training.bases import load_tokenizer, read_base_config
from rolellm.training.recipe import BaseRecipe, Recipe

LOADERS = {"from_pretrained", "from_config"}


def unguarded(source: str) -> list[str]:
    """The calls that load from a model's folder without ``trust_remote_code=False``, but for those that run none."""
    found = []
    for call in ast.walk(ast.parse(source)):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in LOADERS):
            continue
        given = {word.arg: ast.unparse(word.value) for word in call.keywords}
        if (
            ast.unparse(call.func.value) not in ("PeftModel", "PeftConfig", "GenerationConfig")
            and given.get("trust_remote_code") != "False"
        ):
            found.append(ast.unparse(call))
    return found


def test_each_call_that_loads_says_that_no_code_is_run(root: Path) -> None:
    folders = ("src", "recipes", "examples", "benchmarks", "evaluate_metrics", "dataset_scripts")
    files = [file for folder in folders for file in (root / folder).rglob("*.py")]
    texts = {str(file): file.read_text(encoding="utf-8") for file in files}
    assert sum("from_pretrained(" in text for text in texts.values()) >= 5
    assert {file: calls for file, text in texts.items() if (calls := unguarded(text))} == {}


@pytest.fixture
def trap(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Path, Path]]:
    """A copy of a model with code of its own, which leaves a mark; standard input says yes to everything."""

    def lay(kind: str) -> tuple[Path, Path]:
        folder = Path(shutil.copytree(tiny_model, tmp_path / "model"))
        mark = tmp_path / "mark"
        (folder / "own.py").write_text(f"open({str(mark)!r}, 'w')\nclass C: pass\n", encoding="utf-8")
        for name, parts in (
            ("config.json", {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.C"}),
            ("tokenizer_config.json", {"AutoTokenizer": ["own.C", "own.C"]}),
        ):
            content = json.loads((folder / name).read_text(encoding="utf-8")) | {"auto_map": parts}
            if name == "config.json":
                content["model_type"] = kind
            else:
                content["tokenizer_class"] = "OwnTokenizer"
            (folder / name).write_text(json.dumps(content), encoding="utf-8")
        monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 50))
        return folder, mark

    return lay


@pytest.mark.filterwarnings("ignore:You are using a model of type")
@pytest.mark.parametrize(
    "load",
    [
        pytest.param(lambda folder: read_base_config(replace(Recipe(), base=BaseRecipe(path=folder))), id="config"),
        pytest.param(load_tokenizer, id="tokenizer"),
        pytest.param(load_whole, id="weights"),
        pytest.param(open_tokenizer, id="published"),
        pytest.param(lambda folder: LocalModel(str(folder)), id="inference"),
        pytest.param(lambda folder: TokenCounter(folder), id="counting"),
    ],
)
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        pytest.param("own", "Python code that comes with it, which is never run here; use a checkpoint", id="unknown"),
        pytest.param("chatglm", "convert it: `rolellm data convert-chatglm", id="chatglm"),
    ],
)
def test_code_in_a_folder_is_refused_and_not_run(
    load: Callable[[Path], Any], kind: str, words: str, trap: Callable[..., tuple[Path, Path]]
) -> None:
    folder, mark = trap(kind)
    with pytest.raises(RoleLLMError) as caught:
        load(folder)
    assert not mark.exists()
    if "staged" not in str(caught.value) or kind == "own":
        assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
