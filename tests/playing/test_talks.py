"""Talks that last: their files, who the user is, greetings, memory, and what a kill or a bad file leaves of them."""

import json
import random
import resource
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import rolellm
from rolellm.characters.folder import import_card, write_character
from rolellm.core.errors import DataError, RoleLLMError, SettingsError
from rolellm.core.jsonl import read_jsonl, write_jsonl
from rolellm.core.records import Profile
from rolellm.llm.model import Request
from rolellm.llm.scripted import ScriptedModel
from rolellm.playing.player import RolePlayer
from rolellm.playing.talks import list_talks

from ..forking import Forking
from .conftest import CARD

ADA = Profile("Ada", "en", description="You keep the lighthouse.")
OTHERS = {
    "alternate_greetings": ["Who knocks?", "", "{{user}}! At last."],
    "extensions": {"depth_prompt": {"prompt": "[{{char}} is cold, {{user}} is not.]", "depth": 2, "role": "system"}},
}


def make_player(source: Any = ADA, **options: Any) -> RolePlayer:
    """A player whose replies are numbered."""
    replies = iter(range(10_000))

    def answer(request: Request) -> str:
        if "Summarize this part" in request.messages[-1].content:
            return f"SUMMARY of {request.messages[-1].content.count('Ada: ')} replies."
        return f"Reply {next(replies)}."

    return RolePlayer(rolellm.LLM.of(ScriptedModel(answer, rules_hash="numbers")), source, **options)


@pytest.fixture
def rich_card(tmp_path: Path) -> Path:
    """The card with all that a talk takes from one."""
    path = tmp_path / "ada.json"
    path.write_text(json.dumps({**CARD, "data": {**CARD["data"], **OTHERS}}))  # type: ignore[dict-item]
    return path


def read_texts(path: Path) -> list[str]:
    return [line["mes"] for _, line in list(read_jsonl(path))[1:]]


def test_a_talk_goes_on_where_it_was_with_all_its_swipes(tmp_path: Path) -> None:
    file = tmp_path / "talks" / "talk.jsonl"
    chat = make_player().chat(file)
    chat.say("Who are you?")
    chat.retry()
    chat.say("And then?")
    before = file.read_bytes()
    chat = make_player().chat(file)
    assert (chat.note, chat.message, len(chat.turns)) == ("", "And then?", 4)
    chat.talk.change(1, "I am Ada.")
    chat.retry()
    kept = [line for _, line in read_jsonl(file)]
    assert kept[2]["swipes"] == ["Reply 0.", "Reply 1.", "I am Ada."] and kept[2]["mes"] == "I am Ada."
    assert (kept[4]["swipes"], kept[4]["swipe_id"]) == (["Reply 2.", "Reply 0."], 1)
    # Saying something else instead begins anew, and a branch leaves the talk as it is.
    other = chat.talk.branch(2)
    assert other.write() == "" and read_texts(other.path) == ["Who are you?", "I am Ada."]
    chat.retry("Why?")
    assert read_texts(file) == ["Who are you?", "I am Ada.", "Why?", "Reply 1."]
    # What another program wrote meanwhile is never overwritten.
    file.write_bytes(before)
    chat.say("So?")
    assert "was changed meanwhile" in chat.note and file.read_bytes() == before
    assert read_texts(chat.talk.path)[-2:] == ["So?", "Reply 2."]


def test_a_chat_of_sillytavern_goes_on_with_what_only_it_understands(tmp_path: Path) -> None:
    file = tmp_path / "chat.jsonl"
    lines = [
        {"chat_metadata": {"note_prompt": "x"}, "user_name": "unused", "character_name": "unused"},
        {"name": "Ada", "is_user": False, "mes": "Come in.", "extra": {"api": "openai"}},
        {"name": "System", "is_system": True, "mes": "hidden"},
        {"name": "Kai", "is_user": True, "mes": "Thanks."},
    ]
    write_jsonl(file, lines)
    chat = make_player().chat(file)
    assert (chat.player.part.user, chat.retry(), len(chat.turns)) == ("Kai", "Reply 0.", 3)
    after = [line for _, line in read_jsonl(file)]
    assert after[1:3] == lines[1:3] and after[0]["chat_metadata"] == {"note_prompt": "x"}


# --- who talks, and how it begins


@pytest.mark.parametrize("kind", ["file", "folder", "built"])
def test_the_user_has_a_name_and_a_persona(kind: str, rich_card: Path, tmp_path: Path) -> None:
    source = rich_card
    if kind != "file":
        source = import_card(rich_card, tmp_path / "ada")
    if kind == "built":
        write_character(Profile("Ada Fenn", "en", description="You count User's steps."), source)
    persona = "{{user}} mends {{char}}'s nets."
    chat = make_player(source).chat(tmp_path / "talk.jsonl", me="Kai", persona=persona, greeting=3)
    assert chat.turns[0].content == "Kai! At last."
    chat.say("Hello.")
    system, _, _, message = (turn.content for turn in chat.prompt.messages)
    assert "Kai knocks at the door" in system and "Who Kai is: Kai mends Ada Fenn's nets." in system
    assert ("You count User's steps." in system) == (kind == "built")
    assert message == "Hello.\n\nAnswer Kai in one sentence."
    # A talk knows whom it is with, also after SillyTavern saved it, which keeps this much of the first line.
    header, *lines = (line for _, line in read_jsonl(tmp_path / "talk.jsonl"))
    unused = dict.fromkeys(("user_name", "character_name"), "unused")
    write_jsonl(tmp_path / "talk.jsonl", [{"chat_metadata": header["chat_metadata"], **unused}, *lines])
    chat = make_player(source).chat(tmp_path / "talk.jsonl")
    chat.say("And?")
    assert "Kai mends" in chat.prompt.messages[0].content
    for name in ("\n", "ada fenn"):
        with pytest.raises(SettingsError, match="--me"):
            make_player(source).chat(me=name)


def test_greetings_are_swipes_and_one_that_does_not_exist_is_refused(rich_card: Path) -> None:
    player = make_player(rich_card)
    assert player.chat(greeting=2).talk.turns[0]["swipes"] == [
        "Seventy-two steps, User. Sit down.",
        "Who knocks?",
        "User! At last.",
    ]
    with pytest.raises(SettingsError, match="no greeting 4: Ada Fenn has 3"):
        player.chat(greeting=4)
    with pytest.raises(SettingsError, match="no greeting 2: Ada has 0"):
        make_player().chat(greeting=2)


def test_a_depth_prompt_is_so_many_turns_from_the_end(rich_card: Path) -> None:
    chat = make_player(rich_card).chat()
    for text in ("One.", "Two.", "Three."):
        chat.say(text)
        messages = [turn.content for turn in chat.prompt.messages[1:] if turn.role == "user"]
        # Two turns follow it; before there are so many, it is at the beginning.
        places = [index for index, content in enumerate(messages) if "[Ada Fenn is cold, User is not.]" in content]
        assert places == [max(0, len(messages) - 2)]


# --- memory


def test_what_falls_out_of_the_context_is_summarized_by_the_model(tmp_path: Path) -> None:
    file = tmp_path / "talk.jsonl"
    chat = make_player(context=600, max_tokens=60).chat(file, memory="summary")
    texts = [f"What about step number {number} of the lighthouse's stairs, which creaks?" for number in range(40)]
    summaries = set()
    for text in texts:
        # A warning that earlier turns are left out would be an error here.
        chat.say(text)
        summaries.add(chat.talk.summary)
        assert chat.prompt.tokens <= 600 - 60
        assert chat.talk.summary in chat.prompt.messages[0].content
    assert 2 < len(summaries) < 12
    # Each turn is either in the prompt or before the summary.
    ends = [index for index, turn in enumerate(chat.talk.turns, start=1) if turn.get("memory")]
    sent = [turn.content for turn in chat.prompt.messages[1:]]
    assert sent == [turn.content for turn in chat.turns[ends[-1] : -1]]
    chat = make_player(context=600, max_tokens=60).chat(file, memory="summary")
    chat.say("And?")
    assert chat.talk.summary in chat.prompt.messages[0].content
    # A summary of a turn that is changed since is none.
    chat.talk.change(0, "Nothing.")
    assert chat.talk.summary == ""
    # A talk of many contexts is summarized piece by piece, and a turn that no prompt has room for is left out.
    chat = make_player(context=600, max_tokens=60).chat(file)
    chat.talk.change(2, "so " * 2000)
    chat.talk.write()
    chat = make_player(context=600, max_tokens=60).chat(file, memory="summary")
    chat.say("So?")
    assert chat.prompt.dropped == 0 and "SUMMARY" in chat.talk.summary


# --- what goes wrong


def test_a_broken_last_line_is_named_and_nothing_is_lost(tmp_path: Path) -> None:
    file = tmp_path / "talk.jsonl"
    make_player().chat(file).say("Who are you?")
    with file.open("a") as stream:
        stream.write('{"name": "Ada", "mes": "Half a')
    before = file.read_bytes()
    chat = make_player().chat(file)
    assert f"{file}:4: not valid JSON" in chat.note
    chat.say("And then?")
    assert str(chat.talk.path) in chat.note and file.read_bytes() == before
    assert read_texts(chat.talk.path) == ["Who are you?", "Reply 0.", "And then?", "Reply 0."]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        pytest.param(
            [{"character_name": "Fox", "chat_metadata": {}}], "is a talk with Fox, not with Ada", id="another"
        ),
        pytest.param([], "not a talk: the first line", id="empty"),
        pytest.param([{"name": "Ada", "is_user": False, "mes": "Aye."}], "not a talk: the first line", id="no-header"),
        pytest.param(
            [
                {"character_name": "Ada", "chat_metadata": {}},
                {"name": "Ada", "is_user": False, "mes": "Aye."},
                {"name": "Fox", "is_user": False, "mes": "Nay."},
            ],
            r"a group's talk \(Ada, Fox\)",
            id="group",
        ),
    ],
)
def test_a_file_that_is_not_a_talk_with_the_role_is_refused(lines: list[Any], words: str, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "talk.jsonl", lines)
    with pytest.raises((SettingsError, DataError), match=words):
        make_player().chat(tmp_path / "talk.jsonl")


def test_a_full_disk_keeps_the_talk_as_it_was_and_the_chat_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "talk.jsonl"
    chat = make_player().chat(file)
    chat.say("Who are you?")
    before = file.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, limits[1]))
    try:
        assert chat.say("And then?") == "Reply 1."
        assert "the talk is not kept (" in chat.note and "File too large" in chat.note
        with pytest.raises(RoleLLMError, match="not kept"):
            chat.save(tmp_path / "other.jsonl")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.read_bytes() == before and list_talks(tmp_path) == [file]
    # With room again, nothing of it is missing.
    chat.say("And now?")
    assert (chat.note, len(read_texts(file))) == ("", 6)


@pytest.mark.slow
def test_a_talk_survives_a_kill_to_its_last_whole_turn(forking: Forking, upstream: Any, rich_card: Path) -> None:
    folder = rich_card.parent
    (folder / "lines.txt").write_text("".join(f"message {number}\n" for number in range(2000)))
    code = "import sys; sys.stdin = open('lines.txt'); from rolellm.cli.app import main; main()"
    words = ["chat", rich_card, "--llm", upstream.url, "--model", "parrot"]
    draw = random.Random(0)
    count, kills = 0, 20
    for number in range(kills):
        more = ["--resume"] * bool(number)
        process = forking.start([*words, *more], folder, code=code, env={"XDG_DATA_HOME": str(folder)})
        until = time.monotonic() + 60
        while not process.out.exists() or process.out.read_text().count("sentence.\n") < 1 + bool(number):
            assert time.monotonic() < until, process.err.read_text()
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 0.1))
        process.send_signal(signal.SIGKILL)
        # A line is whole once its reply is kept; with --resume, the last reply is printed again.
        printed = process.wait().stdout.count("sentence.\n") - bool(number)
        (file,) = list_talks(folder / "rolellm" / "talks" / "Ada_Fenn")
        chat = make_player(rich_card).chat(file)
        turns = chat.turns[1:]
        assert chat.note == "" and [turn.role for turn in turns] == ["user", "assistant"] * (len(turns) // 2)
        assert all(said.content in reply.content for said, reply in zip(turns[::2], turns[1::2], strict=True))
        assert count + printed <= len(turns) // 2 <= count + printed + 1
        count = len(turns) // 2
    assert count >= kills
