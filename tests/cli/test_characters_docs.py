"""The way of docs/characters.md, command by command as it stands there, and the rules behind an HTTP server."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rolellm.cli.app import app, get_exit_code
from rolellm.core.errors import RoleLLMError
from rolellm.data.rolebench import load_rolebench
from rolellm.data.rolebench.source import sample_folder
from rolellm.training.recipe_files import load_recipe

pytestmark = pytest.mark.slow

TRAINED = ("train", "generate", "score")


@pytest.fixture
def served(root, monkeypatch):
    """The rules of the library behind HTTP, with faults and prices."""
    monkeypatch.syspath_prepend(root / "examples")
    from llm_scripted import Scripted
    from local_llm import Faults, LocalLLM

    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with LocalLLM(Scripted(), price=(0.5, 1.5), faults=[Faults(0.1, seed=3)]) as server:
        yield server


@pytest.fixture
def place(tmp_path, monkeypatch, root, served):
    """A folder with what the page's commands read, and its YAML files as they stand there."""
    monkeypatch.chdir(tmp_path)
    page = (root / "docs" / "characters.md").read_text(encoding="utf-8")
    for name, role in (("queen", "Queen of Hearts"), ("silver", "Long John Silver")):
        shutil.copy(sample_folder() / "scripts" / f"{role}.txt", f"{name}.txt")
    shutil.copy(sample_folder() / "instructions-eng" / "instructions-general.jsonl", "instructions.jsonl")
    book = {"entries": [{"keys": ["bell"], "content": "The storm bell was cast from three drowned anchors."}]}
    data = {"name": "Tobin Ash", "description": "{{char}} keeps the tower.", "first_mes": "Two hundred and six steps."}
    card = {"spec": "chara_card_v2", "spec_version": "2.0", "data": {**data, "character_book": book}}
    Path("tobin.json").write_text(json.dumps(card), encoding="utf-8")
    notebook = json.loads((root / "examples" / "03_your_character.ipynb").read_text(encoding="utf-8"))
    (play,) = [source for cell in notebook["cells"] if (source := "".join(cell["source"])).startswith("PLAY")]
    Path("lamp-ship.txt").write_text(play.split('"""')[1].removeprefix("\\\n"), encoding="utf-8")
    for name, text in re.findall(r"```yaml\n# (\S+)\n(.*?)```", page, re.DOTALL):
        Path(name).write_text(text, encoding="utf-8")
    Path("server.yaml").write_text(
        f"endpoints:\n  - base_url: {served.url}\n    model: rules\n    price: {{prompt: 0.5, completion: 1.5}}\n",
        encoding="utf-8",
    )
    return page


def run(*words):
    result = CliRunner().invoke(app, list(map(str, words)))
    if isinstance(result.exception, RoleLLMError):
        return get_exit_code(result.exception), str(result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout


def test_each_command_of_the_page_does_what_it_says(place):
    commands = [shlex.split(line) for line in re.findall(r"^\$ rolellm (.+)$", place, re.MULTILINE)]
    assert len(commands) > 13
    shown = {}
    for words in commands:
        if words[0] in TRAINED:
            continue
        if words[:2] == ["role", "release"]:
            make_silver()
        code, shown[" ".join(words)] = run(*words)
        stops = "--budget" in words
        assert code == (3 if stops else 0), (words, shown[" ".join(words)])
        assert not stops or "Resume with: " in shown[" ".join(words)]
    again = shown["instruct queen --llm rules.yaml --per-role 60 --min-confidence high"]
    assert "0 calls, " in again
    for split in ("train", "test"):
        assert len(load_rolebench("instruction-generalization-eng", split, data_dir="made")) > 15
    assert set(load_rolebench("role-generalization-eng", "test", data_dir="made")["role"]) == {"Long John Silver"}
    recipe = load_recipe(Path("queen.yaml"))
    assert recipe.data.data_dir == Path.cwd() / "made" or recipe.data.data_dir == Path("made")


def test_each_line_that_goes_on_is_complete(place):
    """What a command prints as the next one runs as it stands, from a script to rows."""

    def going_on(*words):
        code, shown = run(*words)
        assert code == 0, shown
        lines = re.findall(r"^Go on with: rolellm (.+)$", shown, re.MULTILINE)
        return [shlex.split(line) for line in lines], shown

    role = ("--role", "QUEEN OF HEARTS")
    assert run("role", "parse", "queen.txt", "--role", "Queen of Hearts", "--out", "queen.jsonl")[0] == 0
    ((instruct,), _) = going_on("role", "build", "queen.jsonl", *role, "--out", "the queen", "--llm", "rules.yaml")
    ((respond,), _) = going_on(*instruct)
    ((release,), _) = going_on(*respond)
    _, shown = going_on(*release)
    python = shown.partition("Load it with:\n")[2].partition("\nOr look")[0]
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(python)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def make_silver():
    role = ("--role", "Long John Silver")
    assert run("role", "parse", "silver.txt", *role, "--out", "silver.jsonl")[0] == 0
    assert run("role", "build", "silver.jsonl", *role, "--out", "silver", "--llm", "rules.yaml")[0] == 0
    assert run("instruct", "silver", "--llm", "rules.yaml", "--per-role", 30)[0] == 0
    wanted = ("--instructions", "instructions.jsonl", "--limit", 5)
    assert run("respond", "silver", *wanted, "--llm", "rules.yaml")[0] == 0
    own = ("--instructions", "silver/instruct/kept.jsonl", "--replies", 1, "--out", "silver/respond-questions")
    assert run("respond", "silver", *own, "--llm", "rules.yaml")[0] == 0
