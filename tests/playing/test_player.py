"""A role and the model that plays it: prompts, streams, talks, and what is refused in a sentence."""

import asyncio
import json
import threading
import time
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rolellm
from rolellm.characters.folder import import_card
from rolellm.characters.roles import Part
from rolellm.core.errors import EndpointError, ModelError, RoleLLMError, RoleLLMWarning, SettingsError
from rolellm.core.jsonl import read_jsonl
from rolellm.core.records import Profile, Row
from rolellm.llm.model import assistant, user
from rolellm.models.local_model import Decoding, Draft, LocalModel, complete_drafts
from rolellm.models.prompts.render import make_messages
from rolellm.playing.player import RolePlayer
from rolellm.playing.settings import TalkSettings
from rolellm.playing.terminal import Terminal

ADA = Profile("Ada", "en", description="You keep the lighthouse.")


@pytest.fixture
def remote(upstream: Any) -> rolellm.LLM:
    return rolellm.LLM(base_url=upstream.url, model="parrot", api_key_env="UPSTREAM_KEY")


# --- streams


@pytest.mark.parametrize(
    "decoding", [Decoding(max_new_tokens=24), Decoding(max_new_tokens=24, temperature=0.9, seed=3)]
)
def test_a_stream_is_the_reply_in_pieces(tiny_model: Path, decoding: Decoding) -> None:
    model = LocalModel(str(tiny_model), device="cpu")
    for question in ("Who are you?", "Why?", "海在哪里？", "Tell me 🐙 a secret."):
        prompt = model.encode([{"role": "user", "content": question}])
        pieces: list[Any] = []
        complete_drafts(model.weights, [Draft(model, prompt, decoding, pieces.append, is_trimmed=True, key="0")])
        whole = pieces.pop()
        assert "".join(pieces) == whole.text and whole == model.generate_batch([prompt], decoding)[0]
        assert all(pieces) and (len(pieces) > 1 or len("".join(pieces)) < 8)


def test_whoever_leaves_a_stream_ends_the_work(tiny_model: Path) -> None:
    before = threading.active_count()
    player = RolePlayer(tiny_model, ADA, max_tokens=300, temperature=0)
    pieces = player.reply("Tell me a secret.", stream=True)
    assert next(pieces)
    pieces.close()
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_a_server_streams(remote: rolellm.LLM, upstream: Any) -> None:
    player = RolePlayer(remote, ADA, max_tokens=50)
    upstream.go.clear()
    pieces = player.reply("hold two three", stream=True)
    assert next(pieces) == "hold"
    # The first word was here before the others were said.
    upstream.go.set()
    assert "".join(pieces) == " two three"
    asked = upstream.bodies[-1]
    assert (asked["stream"], asked["max_tokens"], asked["model"]) == (True, 50, "parrot")
    assert upstream.headers[-1]["authorization"].startswith("Bearer sk-")


def test_a_stream_from_a_server_can_be_left(remote: rolellm.LLM, upstream: Any) -> None:
    pieces = RolePlayer(remote, ADA).reply("wait here", stream=True)
    assert next(pieces) == "wait"
    pieces.close()
    assert upstream.quiet()


def test_a_server_that_does_not_stream(llm_server: Any) -> None:
    server = llm_server(answer=lambda body: "All at once.")
    player = RolePlayer({"base_url": server.url, "model": "local"}, ADA)
    assert list(player.reply("Why?", stream=True)) == ["All at once."]


def test_within_a_running_loop_as_in_a_notebook(remote: rolellm.LLM) -> None:
    async def cell() -> str:
        return RolePlayer(remote, ADA).reply("one two")

    assert asyncio.run(cell()) == "one two"


@pytest.mark.parametrize(
    ("question", "words", "kept"),
    [
        ("fail now", "slow down", ""),
        ("break after two words", "connection", "break after"),
        ("halved", "the reply broke off", "Half a sentence"),
        ("aborted", "the reply broke off", "Half a"),
        ("memory", "out of memory", "Half a"),
    ],
)
def test_a_reply_that_breaks_off_is_an_error_in_a_sentence(
    remote: rolellm.LLM, upstream: Any, question: str, words: str, kept: str
) -> None:
    chat = RolePlayer(remote, ADA).chat()
    with pytest.raises(EndpointError, match=words) as caught:
        chat.say(question)
    assert "sk-upstream" not in str(caught.value) and "\n" not in str(caught.value)
    assert [turn.content for turn in chat.turns] == ([question, kept] if kept else [])
    assert chat.say("go on") == "go on"
    assert upstream.quiet()


def test_a_context_is_found_under_any_name_or_named(upstream: Any) -> None:
    player = RolePlayer({"base_url": upstream.url, "model": "any-name"}, ADA)
    assert player.context == 2000
    with pytest.raises(EndpointError, match=r"exceeds the available context size.*; give .* --set context=N"):
        player.reply("long")


@pytest.mark.parametrize(
    ("question", "note", "kept"),
    [
        ("limit", "limit of tokens", "Half a"),
        ("filter", "content filter", "Half a"),
        ("nothing", "the reply is empty", ""),
        ("thoughts", "limit of tokens", ""),
        ("think", "", "A fox."),
    ],
)
def test_a_note_says_what_is_wrong_with_a_reply(remote: rolellm.LLM, question: str, note: str, kept: str) -> None:
    chat = RolePlayer(remote, ADA).chat()
    assert "".join(chat.say(question, stream=True)) == kept
    assert (note in chat.note) and bool(note) == bool(chat.note)
    assert [turn.content for turn in chat.turns] == ([question, kept] if kept else [])
    chat.say("Why?")
    assert (chat.note, chat.turns[-2:]) == ("", [user("Why?"), assistant("Why?")])


def test_an_empty_reply_is_not_sent_on_and_can_be_asked_for_again(remote: rolellm.LLM, upstream: Any) -> None:
    chat = RolePlayer(remote, ADA).chat()
    for text in ("limit", "nothing", "nothing"):
        chat.say(text)
    chat.retry()
    assert [turn["content"] for turn in upstream.bodies[-1]["messages"][1:]] == ["limit", "Half a", "nothing"]
    assert chat.retry("Why?") == "Why?"
    assert [turn.content for turn in chat.turns] == ["limit", "Half a", "Why?", "Why?"]


def test_piped_turns_are_lines_with_their_notes_and_a_talk_goes_on_unsaved(
    remote: rolellm.LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    player = RolePlayer(remote, Part(ADA, after="Be brief."))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))

    def talk(lines: str) -> list[list[str]]:
        """Talk, and read all talks."""
        monkeypatch.setattr("sys.stdin", StringIO(lines))
        Terminal(player, "ada", TalkSettings()).run()
        files = sorted(tmp_path.glob("rolellm/talks/Ada/*.jsonl"))
        return [[line["mes"] for _, line in list(read_jsonl(file))[1:]] for file in files]

    # A talk without a turn leaves no file.
    assert talk("/quit now") == []
    with pytest.raises(SettingsError, match="no talk with Ada yet; drop --resume"):
        Terminal(player, "ada", TalkSettings(), resume=True)
    contents = talk("limit now\n\nHow?")[0]
    note = "cut off at the limit of tokens; --set max_tokens=… allows more"
    assert capsys.readouterr().out == f"Ada: Half a [{note}]\nAda: How?  Be brief.\n"
    assert contents == ["limit now", "Half a", "How?", "How?\n\nBe brief."]
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdin", StringIO("/swipe 1\n"))
        Terminal(player, "ada", TalkSettings(), resume=True).run()
        assert capsys.readouterr().out == "User: How?\nAda: How?  Be brief.\nAda: How?  Be brief.\n"
    # What no file can hold does not end the talk.
    assert talk("How\ud800?")[1][0] == "How\ufffd?"
    # There can be no folder where a file is.
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    capsys.readouterr()
    with pytest.raises(SettingsError, match="the talk is not kept"):
        talk("Why?\nHow?")
    said = capsys.readouterr().out.splitlines()
    assert [line.partition("?")[0] for line in said] == ["Ada: Why", "Ada: How"]
    assert all("[the talk is not kept (" in line for line in said)


def test_a_local_reply_that_is_cut_off_has_a_note(tiny_model: Path) -> None:
    chat = RolePlayer(tiny_model, ADA, max_tokens=2, temperature=0).chat()
    chat.say("Tell me a secret.")
    assert "max_tokens" in chat.note


# --- roles


def test_a_role_of_rolebench_is_asked_as_in_training() -> None:
    from rolellm.data.rolebench.release import Release
    from rolellm.data.rolebench.source import sample_folder

    name = "Queen of Hearts"
    player = RolePlayer({"base_url": "http://localhost:9/v1", "model": "m"}, "queen of hearts", context=4000)
    described = Release(sample_folder()).read_descriptions("en")[name]
    row = Row("0", name, "en", "general", "Why?", (), role_description=described)
    asked = [{"role": turn.role, "content": turn.content} for turn in player.prompt([user("Why?")]).messages]
    assert asked == make_messages(row)


def test_a_release_does_not_hide_the_roles_of_the_sample(write_release: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    release = write_release(**{"profiles-eng/desc.json": '{"Owl": "You are an owl."}'})
    monkeypatch.setenv("ROLEBENCH_DIR", str(release))
    endpoint = {"base_url": "http://localhost:9/v1", "model": "m"}
    assert RolePlayer(endpoint, "Owl").part.sheet.description == "You are an owl."
    assert RolePlayer(endpoint, "Queen of Hearts").part.sheet.role == "Queen of Hearts"


def sent(player: RolePlayer, *said: str) -> str:
    turns = [(assistant if place % 2 else user)(text) for place, text in enumerate(said)]
    return "\n".join(turn.content for turn in player.prompt(turns).messages)


@pytest.mark.parametrize("folder", [False, True], ids=["file", "folder"])
def test_a_card_is_played_as_it_says(card: Path, folder: bool, tmp_path: Path, remote: rolellm.LLM) -> None:
    if folder:
        import_card(card, tmp_path / "ada")
    player = RolePlayer(remote, tmp_path / "ada" if folder else card)
    chat = player.chat()
    assert [turn.content for turn in chat.turns] == ["Seventy-two steps, User. Sit down."]
    chat.say("Is the lamp lit?")
    system, opening, greeting, question = chat.prompt.messages
    assert (opening.role, greeting.content) == ("user", "Seventy-two steps, User. Sit down.")
    assert question.content == "Is the lamp lit?\n\nAnswer User in one sentence."
    parts = ["Speak slowly. You are Ada Fenn", "Ada Fenn keeps the lighthouse", "whale oil", "It is 1871"]
    parts += ["User knocks at the door", "User: How many gulls?\nAda Fenn: Eleven, and one that limps."]
    places = [system.content.index(part) for part in parts]
    assert places == sorted(places)
    assert "fog horn" not in system.content and "{{" not in system.content


def test_lore_comes_with_the_last_two_turns(card: Path, remote: rolellm.LLM) -> None:
    player = RolePlayer(remote, card)
    assert "whale oil" in sent(player, "Hello.", "I clean the lamp.", "Oh?")
    assert "whale oil" not in sent(player, "The lamp?", "Yes.", "Oh?")
    assert "It is 1871." in sent(player, "Hello.")


def test_lore_of_the_newest_message_is_the_last_to_go(card: Path, remote: rolellm.LLM) -> None:
    value = json.loads(card.read_text())
    book = value["data"]["character_book"]["entries"]
    book[0]["content"], book[1]["content"] = ("The lamp and the gulls. " * 20, "The horn. " * 60)
    card.write_text(json.dumps(value))
    prompt = RolePlayer(remote, card, context=1100).prompt([assistant("The lamp, the gulls!"), user("In fog?")])
    assert [note.text[:8] for note in prompt.lore] == ["The horn", "It is 18"]
    assert prompt.dropped_lore == 1


def test_a_card_may_name_the_original_after_the_talk(card: Path, remote: rolellm.LLM) -> None:
    value = json.loads(card.read_text())
    value["data"]["post_history_instructions"] = "{{original}} Be brief."
    card.write_text(json.dumps(value))
    assert sent(RolePlayer(remote, card), "Why?").endswith("Why?\n\nBe brief.")


# --- the context


@settings(max_examples=25)
@given(lengths=st.lists(st.integers(1, 120), min_size=1, max_size=15), context=st.integers(300, 2000))
def test_what_is_sent_fits_and_is_the_end_of_the_talk(lengths: list[int], context: int) -> None:
    player = RolePlayer({"base_url": "http://localhost:9/v1", "model": "m"}, ADA, context=context)
    # The server is not there, so the context is what was given.
    turns = [(user if place % 2 else assistant)("so " * length) for place, length in enumerate(lengths)]
    turns += [] if turns[-1].role == "user" else [user("Why?")]
    prompt = player.prompt(turns)
    assert player.count(prompt.messages) == prompt.tokens <= context
    told = prompt.messages[1:]
    assert list(told[-len(turns[prompt.dropped :]) :]) == turns[prompt.dropped :]
    assert [turn.role for turn in told] == ["user", "assistant"] * (len(told) // 2) + ["user"]
    if prompt.dropped:
        more = max(place for place in range(prompt.dropped) if place == 0 or turns[place].role == "user")
        limit = context - min(400, context // 4)
        assert player.count(player._build_messages(turns[more:], [], "", "")) > limit


def test_old_turns_go_first_and_it_is_said(tiny_model: Path) -> None:
    chat = RolePlayer(tiny_model, ADA, max_tokens=20, temperature=0).chat()
    with pytest.warns(RoleLLMWarning, match=r"does not see \d+ earlier turns"):
        for number in range(12):
            chat.say(f"What do you see from the window at {number} o'clock?")
    assert chat.prompt.dropped > 0
    assert chat.prompt.tokens <= 512
    assert len(chat.turns) == 24


def test_a_turn_of_megabytes_is_left_out_uncounted(tiny_model: Path) -> None:
    turns = [user("Why? " * 2_000_000), assistant("So."), user("And now?")]
    prompt = RolePlayer(tiny_model, ADA).prompt(turns)
    assert (prompt.dropped, prompt.messages[-1].content) == (2, "And now?")


@pytest.mark.parametrize("words", [600, 200_000], ids=["too-long", "a-megabyte"])
def test_a_message_longer_than_the_context_is_refused(tiny_model: Path, words: int) -> None:
    with pytest.raises(ModelError, match=r"a context of 512; shorten the message"):
        RolePlayer(tiny_model, ADA).reply("Why? " * words)


def test_a_megabyte_of_lore_leaves_room_for_the_talk(card: Path, remote: rolellm.LLM) -> None:
    value = json.loads(card.read_text())
    entry = {"keys": [], "constant": True, "enabled": True, "insertion_order": 0}
    more = [{**entry, "content": f"Step {number} creaks. " * 20} for number in range(2500)]
    value["data"]["character_book"]["entries"] += more
    card.write_text(json.dumps(value))
    chat = RolePlayer(remote, card).chat()
    with pytest.warns(RoleLLMWarning, match=r"does not see [\d,]+ pieces of lore"):
        assert chat.say("Why?").startswith("Why?")
    assert 0 < len(chat.prompt.lore) < 100
    assert chat.prompt.tokens < 2000


# --- models


# --- talks


def test_a_talk_can_be_taken_back_explained_and_kept(tiny_model: Path, tmp_path: Path) -> None:
    chat = RolePlayer(tiny_model, ADA, max_tokens=12, temperature=1.0).chat()
    first = chat.say("Who are you?")
    replies = {first, *(chat.retry() for _ in range(3))}
    assert len(replies) > 1
    chat.retry("Where are you?")
    assert [turn.content for turn in chat.turns[:1]] == ["Where are you?"]
    assert len(chat.turns) == 2
    assert "Where are you?" in chat.explain() and "### Response:" in chat.explain()
    assert chat.talk.turns[-1]["mes"] == chat.turns[-1].content
    file = tmp_path / "talk.jsonl"
    chat.save(file)
    chat.say("And what then?")
    kept = [line["mes"] for _, line in list(read_jsonl(file))[1:]]
    assert kept == [turn.content for turn in chat.turns] and len(kept) == 4
    with pytest.raises(SettingsError, match="exists already"):
        RolePlayer(tiny_model, ADA).chat().save(file)


def test_a_talk_needs_words(tiny_model: Path) -> None:
    player = RolePlayer(tiny_model, ADA)
    chat = player.chat()
    for call in (lambda: chat.say(" "), chat.retry, chat.explain, lambda: player.prompt([])):
        with pytest.raises(RoleLLMError, match=r"say something|no turns"):
            call()
