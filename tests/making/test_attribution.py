"""A novel's quotations, attributed by a model: what is asked, what is taken of a reply, and what is not."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import rolellm
from rolellm.characters.scripts.parse import clean_names, read_script
from rolellm.characters.scripts.source import make_source
from rolellm.cli.app import app
from rolellm.core.errors import ScriptError
from rolellm.llm.llm import LLM
from rolellm.llm.model import Request
from rolellm.llm.scripted import ScriptedModel
from rolellm.making.attribution import Attribute
from rolellm.runs import run_step

NOVEL = """\
CHAPTER I

“You are late,” said Mara.

“The road was bad.” Tobin put down his hat. “It always is.”

“Always?”

On the door was a board: “No visitors.”

“Sit down, Toby,” she said.

CHAPTER II

Tobin, whom his mother called Toby, laughed. “Not yet.”
"""
RIGHT = {
    "“You are": "Mara",
    "“The road": "Tobin",
    "“Always": "Mara",
    "“No visitors": None,
    "“Sit down": "Mara",
    "“Not yet": "Tobin",
}


def right(asked: str) -> dict[str, str | None]:
    """The right answer to a passage."""
    shown = asked.partition("\n\nWho speaks")[0]
    return {
        number: next(name for begins, name in RIGHT.items() if text.startswith(begins))
        for number, text in re.findall(r"\[(\d+)\] (“[^”]*)", shown)
    }


class Model(ScriptedModel):
    """Answers passages with what a function makes of the right answer."""

    def __init__(self, change: Callable[[dict[str, Any], int], Any] = lambda found, _: found) -> None:
        self.asked: list[Request] = []
        self.change = change
        super().__init__(self._reply, rules_hash="novel", concurrency=1)

    def _reply(self, request: Request) -> Any:
        self.asked.append(request)
        return self.change(right(request.messages[3].content), len(self.asked))


def parsed(folder: Path, model: Model) -> Any:
    reading = read_script(make_source(NOVEL), format="novel")
    run = run_step(Attribute(reading, clean_names("Mara", ())), LLM.of(model), folder)
    return run.result[0], {**run.summary, "failed": run.failed}


def speeches(found: Any) -> list[tuple[str, str]]:
    return [(turn.speaker, turn.content) for turn in found.turns if turn.kind == "speech"]


def test_each_number_gets_its_speaker_and_nobody_is_narration(tmp_path: Path) -> None:
    model = Model()
    found, counts = parsed(tmp_path, model)
    assert speeches(found) == [
        ("Mara", "You are late,"),
        ("Tobin", "The road was bad."),
        ("Tobin", "It always is."),
        ("Mara", "Always?"),
        ("Mara", "Sit down, Toby,"),
        ("Tobin", "Not yet."),
    ]
    assert "No visitors." in [turn.content for turn in found.turns if turn.kind == "narration"]
    assert not found.unattributed
    assert (counts["asked"], counts["answered"], counts["nobody"]) == (7, 6, 1)
    shown = model.asked[0].messages[-1].content
    # A paragraph of English has one number.
    assert "[2] “The road was bad.” Tobin put down his hat. “It" in shown


def test_a_number_without_a_usable_name_stays_open(tmp_path: Path) -> None:
    def change(answer: dict[str, Any], _: int) -> dict[str, Any]:
        """An invented name for one number, and none for another."""
        return {number: "Ahab" if number == "3" else name for number, name in answer.items() if number != "2"}

    found, counts = parsed(tmp_path, Model(change))
    assert [turn.content for turn in found.unattributed] == ["The road was bad.", "It always is.", "Always?"]
    assert (counts["refused"], counts["missing"], counts["failed"]) == (1, 2, 0)


def test_bad_json_is_asked_again_and_then_given_up(tmp_path: Path) -> None:
    model = Model(lambda found, call: "Mara, I think." if call == 1 else found)
    found, _ = parsed(tmp_path, model)
    assert not found.unattributed
    assert [message.role for message in model.asked[1].messages][-2:] == ["assistant", "user"]

    with pytest.raises(ScriptError, match="names nobody"):
        parsed(tmp_path / "never", Model(lambda found, _: "{}"))


@pytest.fixture
def novel(tmp_path: Path) -> Path:
    path = tmp_path / "novel.txt"
    path.write_text(NOVEL, encoding="utf-8")
    return path


def command(novel: Path, *words: str) -> Any:
    line = ["role", "parse", str(novel), "--role", "Mara", "--out", str(novel.with_name("mara.jsonl")), *words]
    return CliRunner().invoke(app, [*line, "--format", "novel"])


def test_the_command_with_a_model(novel: Path, llm_server: Callable[..., Any]) -> None:
    def answer(body: dict[str, Any]) -> str:
        return json.dumps(right(body["messages"][-1]["content"]))

    server = llm_server(answer)
    model = ["--llm", server.url, "--model", "local"]
    result = command(novel, *model, "--dry-run", "--json")
    assert result.exit_code == 0 and json.loads(result.stdout)["requests"] == 1
    assert not novel.with_name("mara.jsonl").exists()
    result = command(novel, *model, "--json")
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert summary["own"] == {"Mara": 3}
    assert summary["attribution"]["answered"] == 6 and summary["unattributed"] == 0
    assert (novel.with_name("mara.attribution") / "journal.jsonl").is_file()
    again = command(novel, *model)
    assert "0 calls" in again.stdout and "7 quotations asked about: 6 answered, 1 nobody" in again.stdout


def test_from_script_takes_a_model(novel: Path, tmp_path: Path) -> None:
    mara = rolellm.Character.from_script(novel, role="Mara", format="novel", llm=Model(), out=tmp_path / "replies")
    assert sum(turn.speaker == "Mara" for turn in mara.turns) == 3
    assert (tmp_path / "replies" / "journal.jsonl").is_file()
