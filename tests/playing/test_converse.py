"""A script is said to roles: sessions are kept and continued."""

import json
from pathlib import Path
from typing import Any

import pytest

from rolellm.characters.folder import write_character
from rolellm.core.errors import SettingsError
from rolellm.core.records import Profile, Turn
from rolellm.llm.llm import LLM
from rolellm.llm.model import Request
from rolellm.llm.scripted import ScriptedModel
from rolellm.playing.converse import Converse
from rolellm.playing.settings import PlaySettings
from rolellm.runs import run_step

from ..commands import Command

ADA = Profile("Ada", "en", (Turn("Ada", "Seventy-two steps."),), description="You keep the lighthouse.")
BROM = Profile("Brom", "en", description="You mend nets.")
LU = Profile("鲁智深", "zh", description="你是个和尚。")


def answer(request: Request) -> str:
    return f"You said: {request.messages[-1].content}"


def sessions(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "sessions.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_text("\ufeffWho are you?\n\n  Why?  \nBye.\n", encoding="utf-8")
    return path


def converse(roles: list[Any], llm: LLM, folder: Path, script: Path, **options: Any) -> Any:
    return run_step(Converse(roles, script, PlaySettings(**options)), llm, folder).to_dict()


def test_roles_talk_at_once_and_a_longer_script_goes_on(tmp_path: Path, script: Path) -> None:
    roles = [ADA, BROM, LU, ADA]
    llm, folder = LLM.of(ScriptedModel(answer, rules_hash="1")), tmp_path / "run"
    done = converse(roles, llm, folder, script)
    assert (done["sessions"], done["replies"], done["spent"]["calls"]) == (4, 12, 12)
    lines = sessions(folder)
    assert [one["id"] for one in lines] == ["Ada/0", "Brom/0", "鲁智深/0", "Ada/1"]
    assert [message["content"] for message in lines[0]["messages"]][:4] == [
        "Who are you?",
        "You said: Who are you?",
        "Why?",
        "You said: Why?",
    ]
    assert lines[0]["meta"]["lines"] == ["Seventy-two steps."] and lines[0]["meta"]["finishes"] == ["stop"] * 3
    before = (folder / "sessions.jsonl").read_bytes()
    again = converse(roles, llm, folder, script)
    assert (again["spent"]["calls"], again["spent"]["from_journal"]) == (0, 12)
    assert (folder / "sessions.jsonl").read_bytes() == before
    script.write_text(script.read_text(encoding="utf-8") + "Really?\n", encoding="utf-8")
    assert converse(roles, llm, folder, script)["spent"]["calls"] == 4


@pytest.mark.parametrize(("roles", "text", "told"), [([], "Who?", "no role"), ([ADA], " \n", "no message")])
def test_nothing_to_say_or_nobody(roles: list[Any], text: str, told: str, tmp_path: Path, script: Path) -> None:
    script.write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError, match=told):
        converse(roles, LLM.of(ScriptedModel(answer, rules_hash="1")), tmp_path / "run", script)


def test_a_role_that_says_nothing_ends_its_session_alone(tmp_path: Path, script: Path) -> None:
    def mute(request: Request) -> str:
        is_silent = request.tag == "Ada" and len(request.messages) > 3
        return " " if is_silent else f"<think>Hm.</think>\n{answer(request)}"

    folder = tmp_path / "run"
    done = converse([ADA, BROM], LLM.of(ScriptedModel(mute, rules_hash="1")), folder, script)
    assert list(done["ended_early"]) == ["Ada/0"]
    assert [len(one["messages"]) for one in sessions(folder)] == [2, 6]
    # Thoughts are not said.
    assert "Hm." not in (folder / "sessions.jsonl").read_text(encoding="utf-8")


def test_the_command_talks_through_a_server(
    tmp_path: Path, llm_server: Any, command: Command, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = llm_server(answer=lambda body: f"{len(body['messages'])} messages, friend.")
    write_character(ADA, tmp_path / "ada")
    monkeypatch.chdir(tmp_path)
    words = ["check", "converse", "ada", "queen of hearts", "--llm", server.url, "--model", "local"]
    done = command(*words, "--out", "talks", "--script", script)
    assert done.code == 0 and "6 replies in 2 sessions" in done.out and "rolellm check drift talks" in done.out, (
        done.err
    )
    assert [one["role"] for one in sessions(tmp_path / "talks")] == ["Ada", "Queen of Hearts"]
    assert sessions(tmp_path / "talks")[0]["messages"][-1]["content"] == "6 messages, friend."


def test_a_model_on_this_machine(tmp_path: Path, tiny_model: Path, script: Path) -> None:
    how: dict[str, Any] = {"max_tokens": 12, "context": 200}
    llm = LLM(backend="local", model=str(tiny_model), adapter=None)
    done = converse([ADA, LU], llm, tmp_path / "run", script, **how)
    assert (done["sessions"], done["replies"]) == (2, 6) or done["ended_early"]
    again = converse([ADA, LU], llm, tmp_path / "run", script, **how)
    assert again["spent"]["calls"] == 0 and again["replies"] == done["replies"]
