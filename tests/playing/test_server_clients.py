"""`rolellm serve`, asked as SillyTavern, Open WebUI and agents ask: tools, turns to be continued, groups, nudges."""

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from .conftest import write_card

ADVICE = "Answer User in one sentence."
LOOK = {
    "type": "function",
    "function": {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}},
}
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"what": "gulls"}'}}


def turn(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


@pytest.fixture(scope="module")
def url(serving: Callable[..., Any], upstream: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    card = write_card(tmp_path_factory.mktemp("cards"))
    return str(serving(str(card), "queen of hearts", "--llm", upstream.url, "--model", "parrot")[0])


@pytest.fixture
def sent(url: str, upstream: Any) -> Callable[..., list[dict[str, Any]]]:
    """What the other server gets of these messages, after the role's system turn."""

    def send(*messages: Any, model: str = "Ada Fenn", **more: Any) -> list[dict[str, Any]]:
        body = {"model": model, "messages": messages, **more}
        answer = httpx2.post(f"{url}/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        system, *talk = upstream.bodies[-1]["messages"]
        assert system["role"] == "system" and upstream.bodies[-1].get("tools") == more.get("tools")
        return talk

    return send


def test_tool_calls_and_their_results_pass_whole(sent: Any) -> None:
    # As Open WebUI sends them with its own tools, the call without content.
    tools = [{**LOOK, "function": {**LOOK["function"], "name": f"tool_{number}"}} for number in range(36)]  # type: ignore[dict-item]
    call, result = turn("assistant", None, tool_calls=[CALL]), turn("tool", "Eleven.", tool_call_id="call_1")
    question = turn("user", [{"type": "text", "text": "How many gulls?"}])
    asked = turn("user", f"How many gulls?\n\n{ADVICE}")
    # 36 tools take more than half of this context.
    assert sent(question, call, result, tools=tools[:9]) == [asked, call, result]
    assert sent(question, call, result, turn("assistant", "Eleven."), turn("user", "Why?"), tools=tools[:9])[:3] == [
        turn("user", "How many gulls?"),
        call,
        result,
    ]
    said = turn("assistant", "<think>So.</think>Let me look.", tool_calls=[CALL], name="ada")
    assert sent(question, said, result)[1] == said


def test_tools_count_in_the_context(url: str) -> None:
    tools = [{**LOOK, "description": "word " * 400} for _ in range(9)]
    body = {"model": "Ada Fenn", "messages": [turn("user", "Why?")], "tools": tools}
    answer = httpx2.post(f"{url}/chat/completions", json=body)
    assert answer.status_code == 400
    assert "send fewer tools" in answer.json()["error"]["message"]


@pytest.mark.parametrize("prefill", ["Because the lamp", "<think>\n", "Ends in a space "])
def test_a_turn_of_the_role_that_comes_last_is_continued_where_the_client_says_so(sent: Any, prefill: str) -> None:
    talk = (turn("system", "[Start a new Chat]"), turn("user", "Why?"), turn("assistant", prefill))
    for word in ({"continue_final_message": True}, {"add_generation_prompt": False}):
        assert sent(*talk, **word) == [turn("user", f"Why?\n\n{ADVICE}"), turn("assistant", prefill)]
    opening, greeting = sent(turn("assistant", "Seventy-two steps,"), continue_final_message=True)
    assert opening["content"].endswith(ADVICE) and greeting == turn("assistant", "Seventy-two steps,")
    # SillyTavern's /trigger asks for one more.
    for word in ({}, {"continue_final_message": False}):
        onward = turn("user", f"(You go on.)\n\n{ADVICE}")
        assert sent(*talk, **word) == [turn("user", "Why?"), turn("assistant", prefill), onward]
    thoughts = turn("assistant", "<think>So.</think>Because.")
    assert sent(turn("user", "Why?"), thoughts)[1] == turn("assistant", "Because.")
    assert sent(turn("user", "Why?"), thoughts, continue_final_message=True)[1] == thoughts


TOM = {"name": "Tom"}


@pytest.mark.parametrize(
    ("messages", "talk"),
    [
        pytest.param(
            # As SillyTavern sends it, where a name has no spaces.
            [
                turn("user", "Hi.", **TOM),
                turn("assistant", "Aye.", name="Ada_Fenn"),
                turn("assistant", "Me too.", name="Old_Bob"),
            ],
            ["user: Tom: Hi.", "assistant: Aye.", "user: Old Bob: Me too."],
            id="another-character",
        ),
        pytest.param(
            [turn("user", "Hi.", **TOM), turn("user", "Hello.", name="Eve"), turn("user", "All of you!")],
            ["user: Tom: Hi.\n\nEve: Hello.\n\nAll of you!"],
            id="two-users",
        ),
        pytest.param(
            [turn("user", "Hi.", name="____"), turn("assistant", "Aye.", name="___"), turn("user", "Why?", name=7)],
            ["user: Hi.", "assistant: Aye.", "user: Why?"],
            id="no-letters",
        ),
        pytest.param(
            # As SillyTavern sends it by default.
            [
                turn("user", "Hi."),
                turn("assistant", "Ada Fenn: Aye."),
                turn("assistant", "Bob: Me: too."),
                turn("assistant", "Ada Fenn: Why?"),
                turn("user", "So."),
            ],
            ["user: Hi.", "assistant: Aye.", "user: Bob: Me: too.", "assistant: Why?", "user: So."],
            id="names-in-texts",
        ),
        pytest.param(
            [
                turn("user", "Hi. [OOC: be brief]", **TOM),
                turn("assistant", "[He is late.] Aye.", name="Ada_Fenn"),
                turn("assistant", "[secret] (nods) <role_thinking>secret</role_thinking>So am I.", name="Bob"),
                turn("user", "Off with [secret] her head!", name="Queen_of_Hearts"),
                turn("assistant", "【secret", name="Bob"),
            ],
            [
                "user: Tom: Hi. [OOC: be brief]",
                "assistant: [He is late.] Aye.",
                "user: Bob: (nods) So am I.\n\nQueen of Hearts: Off with  her head!",
            ],
            id="others-thoughts",
        ),
        pytest.param(
            [turn("user", "Hi."), turn("assistant", "Note: one."), turn("assistant", "Bob: two."), turn("user", "So.")],
            ["user: Hi.", "assistant: Note: one.\n\nBob: two.", "user: So."],
            id="no-role-is-named",
        ),
        pytest.param(
            [turn("user", "Hi."), turn("assistant", "One."), turn("assistant", "Two."), turn("user", "Why?")],
            ["user: Hi.", "assistant: One.\n\nTwo.", "user: Why?"],
            id="repeated",
        ),
        pytest.param(
            [turn("assistant", "One."), turn("system", "[It rains.]"), turn("assistant", "Two."), turn("user", "Why?")],
            ["user: (You speak first.)", "assistant: One.", "user: [It rains.]", "assistant: Two.", "user: Why?"],
            id="system-between",
        ),
    ],
)
def test_speakers_of_a_group_are_named_and_turns_take_turns(sent: Any, messages: Any, talk: list[str]) -> None:
    received = sent(*messages)
    assert [f"{message['role']}: {message['content']}" for message in received] == [
        *talk[:-1],
        f"{talk[-1]}\n\n{ADVICE}",
    ]


def test_a_system_turn_after_one_of_the_role_is_a_nudge(sent: Any) -> None:
    # SillyTavern's /continue, /impersonate and /trigger.
    nudge = "[Continue your last message without repeating its original content.]"
    talk = sent(turn("user", "Why?"), turn("assistant", "Because the lamp"), turn("system", nudge))
    assert talk == [
        turn("user", "Why?"),
        turn("assistant", "Because the lamp"),
        turn("user", f"{ADVICE}\n\n{nudge}"),
    ]
    assert sent(turn("user", "Why?"), turn("system", nudge)) == [turn("user", f"Why?\n\n{ADVICE}\n\n{nudge}")]


def test_a_role_speaks_first_where_there_is_no_talk(sent: Any, upstream: Any) -> None:
    talk = sent(turn("system", "Be brief."), turn("system", "[Start a new Chat]"))
    assert talk == [turn("user", f"(You speak first.)\n\n{ADVICE}")]
    assert upstream.bodies[-1]["messages"][0]["content"].endswith("Be brief.\n\n[Start a new Chat]")


def test_a_long_talk_with_tools_is_cut_between_turns_of_the_user(sent: Any) -> None:
    results = [turn("tool", f"Eleven. {number} " * 60, tool_call_id="call_1") for number in range(20)]
    talk = [
        message
        for number, result in enumerate(results)
        for message in (turn("user", f"{number}?"), turn("assistant", None, tool_calls=[CALL]), result)
    ]
    kept = sent(*talk, model="Queen of Hearts")
    assert 0 < len(kept) < len(talk) and kept == talk[-len(kept) :]
    assert kept[0]["role"] == "user"


CHINESE = "诸葛亮"


@pytest.fixture(scope="module")
def chinese_url(serving: Callable[..., tuple[str, Any]], upstream: Any, tmp_path_factory: Any) -> str:
    """A server with roles whose names SillyTavern sends as ``___``, ``____``, ``__``, ``__`` and ``Zo_``."""
    folder = tmp_path_factory.mktemp("chinese")
    roles = [CHINESE]
    for name in ("司马仲达", "刘备", "孙权", "Zoë"):
        card = folder / f"{name}.json"
        card.write_text(json.dumps({"spec": "chara_card_v2", "data": {"name": name, "description": "将军。"}}))
        roles.append(str(card))
    return serving(*roles, "--llm", upstream.url, "--model", "parrot")[0]


@pytest.mark.parametrize(
    ("messages", "talk"),
    [
        pytest.param(
            [
                turn("assistant", "何事？", name="___"),
                turn("assistant", "[计]退兵。", name="____"),
                turn("assistant", "[计]好。", name="__"),
                turn("assistant", "[hm] Yes.", name="Zo_"),
                turn("user", "如何？", name="__"),
            ],
            ["何事？", "司马仲达：退兵。\n\n某人：好。\n\nZoë：Yes.\n\n如何？"],
            id="names-without-letters",
        ),
        pytest.param(
            [
                turn("assistant", f"{CHINESE}: 何事？", name="___"),
                turn("assistant", "孙权: [计]好。", name="__"),
                turn("user", "如何？"),
            ],
            ["何事？", "孙权：好。\n\n如何？"],
            id="names-in-texts-as-well",
        ),
        pytest.param(
            [turn("assistant", "何事？", name="__"), turn("assistant", "好。", name="_____"), turn("user", "如何？")],
            ["某人：何事？", "好。", "如何？"],
            id="a-name-that-no-role-has",
        ),
    ],
)
def test_names_that_sillytavern_sends_without_their_letters(
    chinese_url: str, upstream: Any, messages: Any, talk: list[str]
) -> None:
    body = {"model": CHINESE, "messages": messages, "stream": False}
    answer = httpx2.post(f"{chinese_url}/chat/completions", json=body)
    assert answer.json()["choices"][0]["message"]["content"] == talk[-1], answer.text
    texts = [message["content"] for message in upstream.bodies[-1]["messages"]]
    assert texts[-len(talk) :] == talk


@pytest.mark.parametrize(("owner", "fields"), [("vllm", 2), ("sglang", 2), ("llamacpp", 0)])
def test_servers_that_have_to_be_told_to_continue(
    serving: Callable[..., Any], upstream: Any, owner: str, fields: int
) -> None:
    upstream.owner = owner
    url, _ = serving("queen of hearts", "--llm", upstream.url, "--model", "parrot")
    for last, more in (("assistant", fields), ("user", 0)):
        body = {"model": "queen of hearts", "messages": [turn("user", "Why?"), turn(last, "Because")]}
        body["continue_final_message"] = True
        assert httpx2.post(f"{url}/chat/completions", json=body).status_code == 200
        told = {name: upstream.bodies[-1][name] for name in upstream.bodies[-1] if name not in ("model", "messages")}
        assert told == ({"continue_final_message": True, "add_generation_prompt": False} if more else {})


@pytest.mark.parametrize("refuses", [True, False])
def test_tools_that_vllm_would_refuse_are_left_out(
    serving: Callable[..., Any], upstream: Any, monkeypatch: pytest.MonkeyPatch, refuses: bool
) -> None:
    monkeypatch.setattr(upstream, "owner", "vllm")
    monkeypatch.setattr(upstream, "refuses_tools", refuses)
    url, _ = serving("queen of hearts", "--llm", upstream.url, "--model", "parrot")
    body = {"model": "queen of hearts", "messages": [turn("user", "Why?")], "tools": [LOOK]}
    assert httpx2.post(f"{url}/chat/completions", json=body).status_code == 200
    assert ("tools" in upstream.bodies[-1]) is not refuses
