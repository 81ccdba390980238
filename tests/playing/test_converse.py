"""A simulated user, or a script, talks with roles: sessions are kept and continued, and nobody says another's words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rolellm.characters.folder import write_character
from rolellm.core.errors import SettingsError, StoppedShortError
from rolellm.core.records import Profile, Turn
from rolellm.llm.llm import LLM
from rolellm.llm.model import Reply, Request, UnacceptableError, Usage, user
from rolellm.llm.scripted import ScriptedModel
from rolellm.playing.converse import Converse, make_user_acceptor
from rolellm.playing.settings import ConverseSettings
from rolellm.runs import run_step

from ..commands import Command

ADA = Profile("Ada", "en", (Turn("Ada", "Seventy-two steps."),), description="You keep the lighthouse.")
BROM = Profile("Brom", "en", description="You mend nets.")
THREE = ConverseSettings(turns=3)
LU = Profile("鲁智深", "zh", description="你是个和尚。")


def answer(request: Request) -> str:
    """A user asks by number, a role answers with what it was asked."""
    last = request.messages[-1].content
    if request.tag.startswith("user/"):
        return f"User: Question {len(request.messages)} for {request.tag[5:]}?"
    return f"You said: {last}"


def sessions(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "sessions.jsonl").read_text(encoding="utf-8").splitlines()]


def converse(roles: list[Any], llm: LLM, folder: Path, settings: ConverseSettings, talker: LLM | None = None) -> Any:
    return run_step(Converse(roles, settings, talker), llm, folder).to_dict()


def test_ten_roles_talk_at_once_and_are_kept(tmp_path: Path) -> None:
    roles = [ADA, BROM, LU, ADA]
    model = ScriptedModel(answer, rules_hash="1")
    done = converse(roles, LLM.of(model), tmp_path, THREE)
    assert (done["sessions"], done["replies"], done["spent"]["calls"]) == (4, 12, 24)
    found = sessions(tmp_path)
    assert [one["id"] for one in found] == ["Ada/0", "Brom/0", "鲁智深/0", "Ada/1"]
    for one in found:
        assert [said["role"] for said in one["messages"]] == ["user", "assistant"] * 3
        # A role hears its own user, without the name in front.
        assert all(one["role"] in said["content"] for said in one["messages"])
        assert not any("User:" in said["content"] for said in one["messages"])
    assert found[0]["meta"]["lines"] == ["Seventy-two steps."] and found[0]["meta"]["finishes"] == ["stop"] * 3
    before = (tmp_path / "sessions.jsonl").read_bytes()
    again = converse(roles, LLM.of(model), tmp_path, THREE)
    assert (again["spent"]["calls"], again["spent"]["from_journal"]) == (0, 24)
    assert (tmp_path / "sessions.jsonl").read_bytes() == before
    more = converse(roles, LLM.of(model), tmp_path, ConverseSettings(turns=4))
    assert more["spent"]["calls"] == 8


def test_a_run_that_stops_continues(tmp_path: Path) -> None:
    left = [5]

    def stop(request: Request) -> str:
        left[0] -= 1
        if left[0] < 0:
            raise StoppedShortError("enough", resume="the same command")
        return answer(request)

    with pytest.raises(StoppedShortError):
        converse([ADA, BROM], LLM.of(ScriptedModel(stop, rules_hash="1", concurrency=1)), tmp_path, THREE)
    assert not (tmp_path / "sessions.jsonl").exists()
    done = converse([ADA, BROM], LLM.of(ScriptedModel(answer, rules_hash="1")), tmp_path, THREE)
    assert (done["spent"]["calls"], done["spent"]["from_journal"]) == (7, 5)


def test_a_script_is_said_word_for_word(tmp_path: Path) -> None:
    script = tmp_path / "lines.txt"
    script.write_text("\ufeffWho are you?\n\n  Why?  \nBye.\n", encoding="utf-8")
    llm = LLM.of(ScriptedModel(answer, rules_hash="1"))
    converse([ADA], llm, tmp_path / "run", ConverseSettings(turns=2, script=script))
    (one,) = sessions(tmp_path / "run")
    assert [said["content"] for said in one["messages"]] == [
        "Who are you?",
        "You said: Who are you?",
        "Why?",
        "You said: Why?",
    ]
    assert one["meta"]["user"] == "script"
    with pytest.raises(SettingsError, match="3 messages for 4 turns; use --turns 3"):
        converse([ADA], llm, tmp_path / "run", ConverseSettings(turns=4, script=script))
    with pytest.raises(SettingsError, match="no role"):
        converse([], llm, tmp_path / "run", ConverseSettings(turns=2))


def test_another_model_is_the_user(tmp_path: Path) -> None:
    speaker = LLM.of(ScriptedModel(lambda _: "Aye?", rules_hash="2", name="talker"))
    done = converse(
        [ADA], LLM.of(ScriptedModel(answer, rules_hash="1")), tmp_path, ConverseSettings(turns=1), talker=speaker
    )
    assert done["spent"]["calls"] == 2 and (tmp_path / "user" / "journal.jsonl").is_file()
    assert sessions(tmp_path)[0]["meta"]["user"] == "talker"


def test_a_role_that_says_nothing_ends_its_session_alone(tmp_path: Path) -> None:
    def mute(request: Request) -> str:
        silent = request.tag == "Ada" and len(request.messages) > 3
        return " " if silent else answer(request)

    done = converse([ADA, BROM], LLM.of(ScriptedModel(mute, rules_hash="1")), tmp_path, THREE)
    assert list(done["ended_early"]) == ["Ada/0"]
    assert [len(one["messages"]) for one in sessions(tmp_path)] == [2, 6]


def test_thoughts_are_not_said(tmp_path: Path) -> None:
    model = ScriptedModel(lambda request: f"<think>Hm.</think>\n{answer(request)}", rules_hash="1")
    converse([ADA], LLM.of(model), tmp_path, ConverseSettings(turns=2))
    assert "Hm." not in (tmp_path / "sessions.jsonl").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("User: Who are you?", "Who are you?"),
        ('"Who are you?"\nAda: I keep the light.\nUser: Oh.', "Who are you?"),
        ("Ada: I keep the light.", None),
        ("  \n", None),
    ],
)
def test_the_users_words(text: str, words: str | None) -> None:
    take, request = make_user_acceptor(ADA), Request((user("system"), user("Hello there.")))
    reply = Reply(text, "stop", Usage(), "m", "m", {})
    if words is None:
        with pytest.raises(UnacceptableError):
            take(request, reply)
    else:
        assert take(request, reply) == words


@pytest.mark.parametrize(
    ("text", "defect"),
    [
        ("I am Ada, the keeper.", "claims to be the role"),
        ("As an AI language model, I have no friends.", "speaks as an assistant"),
        ("Hello there.", "repeats what was said"),
        ("You are a curious traveler with an evening to spare.", "repeats the instructions"),
    ],
)
def test_what_a_user_should_not_say_is_taken_at_last(text: str, defect: str) -> None:
    with pytest.raises(UnacceptableError) as caught:
        make_user_acceptor(ADA)(
            Request((user("system"), user("Hello there."))), Reply(text, "stop", Usage(), "m", "m", {})
        )
    assert (caught.value.defects, caught.value.usable) == ((defect,), text)


def test_the_command_talks_through_a_server(
    tmp_path: Path, llm_server: Any, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = llm_server(answer=lambda body: f"{len(body['messages'])} messages, friend.")
    write_character(ADA, tmp_path / "ada")
    (tmp_path / "lines.txt").write_text("Who are you?\nWhy?\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    words = ["check", "converse", "ada", "queen of hearts", "--base-url", server.url, "--model", "local"]
    words += ["--turns", "2", "--out", "talks", "--script", "lines.txt"]
    done = command(*words, "--json")
    assert done.code == 0 and done.json["replies"] == 4, done.err
    assert [one["role"] for one in sessions(tmp_path / "talks")] == ["Ada", "Queen of Hearts"]
    assert sessions(tmp_path / "talks")[0]["messages"][-1]["content"] == "4 messages, friend."
    short = command(*words, "--turns", "3")
    assert short.code == 2 and "use --turns 2" in short.err


def test_a_model_on_this_machine(tmp_path: Path, tiny_model: Path) -> None:
    script = tmp_path / "lines.txt"
    script.write_text("Who are you?\nWhy?\n", encoding="utf-8")
    how = ConverseSettings(turns=2, script=script, max_tokens=12, context=200)
    llm = LLM(backend="local", model=str(tiny_model), adapter=None)
    done = converse([ADA, LU], llm, tmp_path / "run", how)
    assert (done["sessions"], done["replies"]) == (2, 4) or done["ended_early"]
    again = converse([ADA, LU], llm, tmp_path / "run", how)
    assert again["spent"]["calls"] == 0 and again["replies"] == done["replies"]
