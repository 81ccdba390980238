"""A guard in front of `rolellm serve`, and in a chat: a server on this machine that knows two bad words."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolellm.llm.guards import Guard
from rolellm.llm.llm import LLM
from rolellm.llm.model import Request
from rolellm.llm.scripted import ScriptedModel
from rolellm.playing.guarding import HeldReply, StopWords, TalkGuard
from rolellm.playing.player import RolePlayer

from ..commands import Command
from .conftest import ANSWER, KEY

THREE = "One sentence came already. The second one follows it now. And a third one is the last"
FAILURE = "The safety check is not working"


@pytest.fixture(scope="module")
def start(serving: Callable[..., Any], upstream: Any, write_guard: Callable[..., str]) -> Callable[..., Any]:
    def begin(**keys: Any) -> tuple[str, Any]:
        words = ("--base-url", upstream.url, "--model", "parrot", "--api-key-env", "UPSTREAM_KEY")
        return serving("queen of hearts", "诸葛亮", *words, "--guard", write_guard(**keys))

    return begin


@pytest.fixture(scope="module")
def served(start: Callable[..., Any]) -> tuple[str, Any]:
    return start()


@pytest.fixture
def ask(served: tuple[str, Any], guard: Any) -> Iterator[Callable[..., Any]]:
    guard.reset()
    with openai.OpenAI(base_url=served[0], api_key="none", max_retries=0) as client:

        def send(*texts: str, model: str = "queen of hearts", **more: Any) -> Any:
            roles = ("user", "assistant")
            messages: Any = [{"role": roles[place % 2], "content": text} for place, text in enumerate(texts)]
            return client.chat.completions.create(model=model, messages=messages, **more)

        yield send


def collect(chunks: Any, index: int = 0) -> tuple[str, str]:
    """The text of a streamed reply, and how it ended."""
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    text = "".join(choice.delta.content or "" for choice in choices)
    return text, next(choice.finish_reason for choice in reversed(choices) if choice.finish_reason)


def test_a_reply_costs_a_call_a_sentence_and_one_for_the_turn(ask: Any, guard: Any, upstream: Any) -> None:
    assert collect(ask(THREE, stream=True)) == (THREE, "stop")
    assert 2 <= len(guard.bodies) <= 4
    turn, *replies = guard.bodies
    assert turn["messages"] == [{"role": "user", "content": THREE}]
    assert all(body["messages"][0]["content"] == THREE for body in replies)
    assert replies[-1]["messages"][1] == {"role": "assistant", "content": THREE}
    assert not any(KEY in str(headers) for headers in guard.headers)
    assert upstream.bodies[-1]["model"] == "parrot"
    guard.reset()
    assert ask(THREE).choices[0].message.content == THREE
    assert len(guard.bodies) == 2


def test_nothing_leaves_before_the_guard_has_read_it(ask: Any, guard: Any, upstream: Any) -> None:
    upstream.go.clear()
    chunks = ask("hold two three poison", stream=True)
    upstream.go.set()
    assert collect(chunks) == (ANSWER, "content_filter")
    assert upstream.quiet()


def test_what_came_before_stays_and_the_rest_is_not_awaited(ask: Any, upstream: Any) -> None:
    # A guard that answers at once reads the first sentence alone.
    text, ended = collect(ask("drip dropsallnightlong. Then poison. More", stream=True))
    assert ended == "content_filter"
    assert text == f"drip dropsallnightlong.\n\n{ANSWER}"
    assert upstream.quiet()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("model", "words"), [("queen of hearts", ANSWER), ("parrot", ANSWER), ("诸葛亮", "这个话题我不能继续")]
)
def test_a_turn_that_is_stopped_reaches_no_model(
    ask: Any, upstream: Any, guard: Any, model: str, words: str, stream: bool
) -> None:
    before = len(upstream.bodies)
    reply = ask("Plan an attack.", model=model, stream=stream)
    content, ended = collect(reply) if stream else (reply.choices[0].message.content, reply.choices[0].finish_reason)
    assert content.startswith(words) and ended == "content_filter"
    assert (len(upstream.bodies), len(guard.bodies)) == (before, 1)


def test_a_whole_reply_is_replaced(ask: Any) -> None:
    choice = ask("What is poison made of?").choices[0]
    assert (choice.message.content, choice.finish_reason) == (ANSWER, "content_filter")


def test_each_of_several_replies_is_read(ask: Any) -> None:
    chunks = list(ask("Is it poison? I wonder", stream=True, n=2))
    assert collect(chunks, 0) == (ANSWER, "content_filter")
    assert collect(chunks, 1) == ("IS IT POISON? I WONDER", "stop")
    whole = ask("Is it poison?", n=2)
    assert [choice.message.content for choice in whole.choices] == [ANSWER, ANSWER]
    assert [choice.index for choice in ask("Plan an attack.", n=3).choices] == [0, 1, 2]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("name", "ended"), [("count_gulls", "tool_calls"), ("mix_poison", "content_filter")])
def test_calls_of_tools_are_read_too(ask: Any, guard: Any, name: str, ended: str, stream: bool) -> None:
    tools: Any = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}]
    reply = ask("call it", tools=tools, stream=stream)
    choices = [choice for chunk in reply for choice in chunk.choices] if stream else reply.choices
    assert choices[-1].finish_reason == ended
    calls = [(choice.delta if stream else choice.message).tool_calls for choice in choices]
    assert bool(any(calls)) is (ended == "tool_calls")
    assert guard.bodies[-1]["messages"][1]["content"] == f'{name}{{"what": "gulls"}}'


def test_results_of_tools_are_part_of_the_turn(served: tuple[str, Any], guard: Any) -> None:
    guard.reset()
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "an attack plan"},
    ]
    body = {"model": "parrot", "messages": messages}
    answer = httpx2.post(f"{served[0]}/chat/completions", json=body).json()
    assert answer["choices"][0]["message"]["content"] == ANSWER
    assert guard.bodies[0]["messages"] == [{"role": "user", "content": "an attack plan"}]


def test_the_beginning_of_a_reply_that_is_continued_is_read_with_it(ask: Any, guard: Any) -> None:
    # The parrot says the last message again, which is the beginning here.
    assert ask("Why?", "Because it").choices[0].message.content == "Because it"
    assert guard.bodies[-1]["messages"][1]["content"] == "Because itBecause it"
    assert ask("Why?", "Take the poison and").choices[0].message.content == ANSWER


def test_pictures_are_refused_where_a_guard_could_not_see_them(served: tuple[str, Any]) -> None:
    body = {"model": "parrot", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]}
    answer = httpx2.post(f"{served[0]}/chat/completions", json=body)
    assert (answer.status_code, "images are not supported" in answer.text) == (400, True)


def test_errors_of_the_other_server_pass_after_what_was_read(ask: Any) -> None:
    with pytest.raises(openai.RateLimitError, match="slow down"):
        ask("fail now")
    texts = []
    with pytest.raises(openai.APIError, match="connection broke"):
        texts += [chunk.choices[0].delta.content for chunk in ask("break after two words", stream=True)]
    with pytest.raises(openai.APIError, match="out of memory"):
        list(ask("memory", stream=True))


@pytest.mark.parametrize(("text", "failure"), [("prose it is", "unreadable"), ("Why?", "connection")])
@pytest.mark.parametrize(
    ("keys", "words"),
    [
        pytest.param({}, FAILURE, id="closed"),
        pytest.param({"failure_answer": {"en": "Come back later."}}, "Come back later.", id="own-words"),
        pytest.param({"on_failure": "pass"}, None, id="open"),
    ],
)
def test_without_a_verdict_the_operator_decides(
    upstream: Any, write_guard: Any, keys: dict[str, Any], words: str | None, text: str, failure: str
) -> None:
    down = {"base_url": "http://127.0.0.1:9/v1"} if failure == "connection" else {}
    guard = TalkGuard.of(write_guard(**keys, **down))
    player = RolePlayer(LLM(base_url=upstream.url, model="parrot"), "queen of hearts", guard=guard)
    assert player.reply(text).startswith(words or text)
    assert (guard.counts.stopped, guard.counts.failures) == ((0, {failure: 2}) if words is None else (1, {failure: 1}))
    assert f"what it gives no verdict on is {'let through' if words is None else 'stopped'}" in guard.describe([])[0]


def test_counts_are_all_that_is_kept(start: Callable[..., Any]) -> None:
    import signal

    url, process = start(answer="Not here.")
    for text in ("Plan an attack.", "Name a poison.", "Why?", "prose it is"):
        body = {"model": "queen of hearts", "messages": [{"role": "user", "content": text}]}
        httpx2.post(f"{url}/chat/completions", json=body)
    counts = httpx2.get(f"{url.removesuffix('/v1')}/health").json()["guard"]
    assert counts == {
        "turns": 4,
        "replies": 2,
        "calls": 6,
        "stopped": 3,
        "categories": {"S1": 2, "S9": 2},
        "failures": {"unreadable": 1},
    }
    process.send_signal(signal.SIGTERM)
    told = process.wait().stderr
    assert "guard: 4 turns and 2 replies checked, 3 stopped (S1: 2, S9: 2), 1 guard failure (unreadable: 1)" in told
    assert "was not tested in zh by its makers" in told
    assert not any(word in told for word in ("attack", "poison", "Not here"))


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"answr": "x"}, "did you mean answer"),
        ({"on_failure": "ignore"}, "on_failure"),
        ({"format": "rubrik"}, "did you mean rubric"),
        (
            {"endpoints": [{"base_url": "http://localhost:1/v1", "model": name} for name in "ab"]},
            "a guard is one model",
        ),
    ],
)
def test_a_file_that_is_no_guard(write_guard: Any, command: Command, keys: dict[str, Any], problem: str) -> None:
    file = write_guard(**keys)
    for words in (["serve"], ["chat"]):
        away = ("--base-url", "http://127.0.0.1:9/v1", "--model", "m")
        done = command(*words, "queen of hearts", *away, "--guard", file)
        assert (done.code, problem in done.err) == (2, True), done.err


def test_a_chat_is_guarded_and_keeps_what_was_let_through(upstream: Any, guard: Any, write_guard: Any) -> None:
    guard.reset()
    model = LLM(base_url=upstream.url, model="parrot")
    player = RolePlayer(model, "queen of hearts", guard=write_guard(answer={"en": "Not here."}))
    chat = player.chat()
    assert list(chat.say("Plan an attack.", stream=True)) == [StopWords("Not here.")]
    assert (chat.turns, chat.is_answered, chat.note) == ([], False, "")
    assert chat.say("Why not?") == "Why not?"
    assert chat.say("drip dropsallnightlong. Then poison").endswith("long.\n\nNot here.")
    assert [turn.content for turn in chat.turns][1:] == ["Why not?", chat.message, "drip dropsallnightlong."]
    # Thoughts are not shown, so nobody reads them.
    guard.reset()
    assert player.reply("think") == "A fox."
    assert [body["messages"][-1]["content"] for body in guard.bodies] == ["think", "A fox."]
    assert player.reply("poison") == "Not here."
    assert player.with_role("诸葛亮").reply("attack").startswith("这个话题我不能继续")
    assert player.guard.counts.stopped == 4  # type: ignore[union-attr]


SENTENCES = st.lists(
    st.sampled_from(
        ["Dr. Fenn came at once. ", "No! ", "他来了。", "Why is that so?\n", "x" * 1500, "   ", "3.14 and on "]
    ),
    max_size=8,
)


@given(SENTENCES, st.integers(1, 40), st.booleans())
def test_all_of_a_reply_is_read_before_it_is_let_go(parts: list[str], size: int, is_slow: bool) -> None:
    text, released, shown = "".join(parts), [], []

    def answer(request: Request) -> str:
        shown.append(request.messages[-1].content)
        return "safe"

    model = ScriptedModel(answer, rules_hash="reads", name="llama-guard")
    talk_guard = TalkGuard(Guard(LLM.of(model)))

    async def talk() -> None:
        held = HeldReply[str](talk_guard, "Why?", "en")

        async def arrive() -> None:
            for start in range(0, len(text), size):
                held.put(text[start : start + size], text[start : start + size])
                if is_slow:
                    await asyncio.sleep(0)
            held.end()

        task = asyncio.create_task(arrive())
        async for piece in held.release():
            released.append(piece)
            seen = "".join(released).rstrip()
            assert not seen or any(seen[-900:] in window for window in shown)
        await task

    asyncio.run(asyncio.wait_for(talk(), 20))
    assert "".join(released) == text
    sentences = sum(1 + len(part) // 1000 for part in parts if part.strip())
    assert len(shown) <= sentences and max(map(len, shown), default=0) <= 4000
