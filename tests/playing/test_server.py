"""`rolellm serve`, asked by the real `openai` client, and by clients that leave or send what they should not."""

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from rolellm.models.prompts.render import load_chat_template
from rolellm.playing.player import RolePlayer

from ..models.test_adapters import make_adapter
from .conftest import KEY, write_card

Serving = Callable[..., tuple[str, Any]]
Connect = Callable[..., openai.OpenAI]


@pytest.fixture(scope="module")
def served(serving: Serving, upstream: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any]:
    """The card and a role of RoleBench, in front of the server that streams."""
    card = write_card(tmp_path_factory.mktemp("cards"))
    words = ("--llm", upstream.url, "--model", "parrot", "--set", "api_key_env=UPSTREAM_KEY")
    return serving(str(card), "queen of hearts", *words)


@pytest.fixture(scope="module")
def keyed(serving: Serving, upstream: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The card behind a key, open to the pages of one origin."""
    card = write_card(tmp_path_factory.mktemp("keyed"))
    words = ("--llm", upstream.url, "--model", "parrot", "--key-env", "OURS")
    return serving(str(card), *words, "--set", "allow_origin=http://localhost:3000", OURS="let-me-in-73")[0]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Makes clients of a server, which end with the test."""
    with ExitStack() as stack:

        def open_client(url: str, **more: Any) -> openai.OpenAI:
            options = {"api_key": "none", "max_retries": 0, **more}
            return stack.enter_context(openai.OpenAI(base_url=url, **options))

        yield open_client


@pytest.fixture
def client(served: tuple[str, Any], connect: Connect) -> openai.OpenAI:
    return connect(served[0])


def ask(client: openai.OpenAI, *said: str, model: str = "Ada Fenn", **more: Any) -> Any:
    messages: Any = [
        {"role": "user" if place % 2 == 0 else "assistant", "content": text} for place, text in enumerate(said)
    ]
    return client.chat.completions.create(model=model, messages=messages, **more)


def test_a_client_talks_to_a_role(client: openai.OpenAI, upstream: Any) -> None:
    assert [model.id for model in client.models.list()] == ["Ada Fenn", "Queen of Hearts", "parrot"]
    assert client.models.retrieve("ada fenn").id == "Ada Fenn"
    assert ask(client, "Is the lamp lit?", model="ADA FENN", temperature=0.5).choices[0].message.content == (
        "Is the lamp lit?\n\nAnswer User in one sentence."
    )
    asked = upstream.bodies[-1]
    assert (asked["model"], asked["temperature"]) == ("parrot", 0.5)
    assert asked["messages"][0]["content"].startswith("Speak slowly. You are Ada Fenn")
    assert "whale oil" in asked["messages"][0]["content"]
    assert upstream.headers[-1]["authorization"] == f"Bearer {KEY}"
    assert ask(client, "Why?", model="Queen of Hearts").choices[0].message.content == "Why?"


def test_words_arrive_one_by_one(client: openai.OpenAI, upstream: Any) -> None:
    upstream.go.clear()
    chunks = ask(client, "hold two three four", stream=True, model="Queen of Hearts")
    first = next(chunks)
    upstream.go.set()
    texts = [chunk.choices[0].delta.content for chunk in [first, *chunks]]
    assert texts == ["hold", " two", " three", " four"]


def test_what_a_client_says_to_the_model_goes_after_the_role(client: openai.OpenAI, upstream: Any) -> None:
    messages: Any = [
        {"role": "developer", "content": "Use no emoji."},
        {"role": "assistant", "content": "<think>Many.</think>Seventy-two steps."},
        {"role": "user", "content": [{"type": "text", "text": "Only "}, {"type": "text", "text": "that?"}]},
        {"role": "system", "content": "Be brief."},
    ]
    client.chat.completions.create(model="Ada Fenn", messages=messages)
    system, opening, greeting, question = upstream.bodies[-1]["messages"]
    assert system["content"].endswith("\n\nUse no emoji.")
    assert (opening["role"], greeting) == ("user", {"role": "assistant", "content": "Seventy-two steps."})
    assert question == {"role": "user", "content": "Only that?\n\nAnswer User in one sentence.\n\nBe brief."}


def test_an_unknown_role_names_the_nearest(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="did you mean Queen of Hearts") as caught:
        ask(client, "Why?", model="Queen of Herts")
    assert caught.value.code == "model_not_found"


def test_errors_of_the_other_server_pass_without_its_key_and_address(client: openai.OpenAI, upstream: Any) -> None:
    with pytest.raises(openai.RateLimitError, match="slow down") as caught:
        ask(client, "fail now")
    assert caught.value.response.headers["retry-after"] == "7"
    for hidden in (KEY, upstream.url, str(httpx2.URL(upstream.url).port)):
        assert hidden not in caught.value.response.text
    with pytest.raises(openai.APIError, match="connection broke"):
        list(ask(client, "break after two words", stream=True))
    assert ask(client, "go on", model="Queen of Hearts").choices[0].message.content == "go on"


def test_a_long_talk_loses_its_oldest_turns_and_says_so(
    served: tuple[str, Any], client: openai.OpenAI, upstream: Any
) -> None:
    said = [f"number {number} " * 60 for number in range(21)]
    ask(client, *said, model="Queen of Hearts")
    told = [turn["content"] for turn in upstream.bodies[-1]["messages"]]
    assert told[-1] == said[-1] and said[0] not in told
    assert told[1:] == said[-len(told) + 1 :]
    left_out = f"Queen of Hearts: the context is full: the role does not see {len(said) - len(told) + 1} earlier turns"
    assert left_out in served[1].err.read_text(encoding="utf-8")


def test_a_megabyte_is_refused_and_the_server_goes_on(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="shorten the message") as caught:
        ask(client, "why? " * 200_000)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.APIStatusError) as large:
        ask(client, "why? " * 2_000_000)
    assert large.value.status_code == 413
    assert ask(client, "go on", model="Queen of Hearts").choices[0].message.content == "go on"


@pytest.mark.parametrize(
    ("sent", "status", "said"),
    [
        pytest.param({"content": b"{"}, 400, "not JSON", id="no-json"),
        pytest.param({"content": b"[" * 100_000}, 400, "not JSON", id="deep"),
        pytest.param({"content": b"[]"}, 400, "not a JSON object", id="list"),
        pytest.param({"content": b"{}" + b" " * (8 << 20)}, 413, "longer than 8 MiB", id="long"),
        pytest.param({"json": {"messages": []}}, 404, "no role nothing", id="no-model"),
        pytest.param({"json": {"model": "ada fenn"}}, 400, "a list of messages", id="no-messages"),
        pytest.param({"json": {"model": "ada fenn", "messages": ["Why?"]}}, 400, r"messages[0]", id="a-text"),
        pytest.param(
            {"json": {"model": "ada fenn", "messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}},
            400,
            "messages[0]: content parts of type 'input_audio'",
            id="a-sound",
        ),
        pytest.param(
            {"content": b'{"model": "ada fenn"}', "headers": {"Content-Type": "text/plain"}},
            415,
            "application/json",
            id="from-a-page",
        ),
        pytest.param({"json": {}, "headers": {"Host": "evil.example"}}, 400, "host name", id="another-name"),
        pytest.param({"path": "/v1/embeddings"}, 404, "use POST /v1/chat/completions", id="embeddings"),
        pytest.param({"path": "/v1/models"}, 405, "POST /v1/models is not served here", id="method"),
    ],
)
def test_bad_requests(served: tuple[str, Any], sent: dict[str, Any], status: int, said: str) -> None:
    path, sent = sent.get("path", "/v1/chat/completions"), {name: sent[name] for name in sent if name != "path"}
    if "content" in sent:
        sent = {"headers": {"Content-Type": "application/json"}, **sent}
    answer = httpx2.post(f"{served[0].removesuffix('/v1')}{path}", **sent)
    assert answer.status_code == status, answer.text
    assert said in answer.json()["error"]["message"] and answer.text.count("\n") == 0


def test_the_model_answers_without_a_role_under_its_own_name(client: openai.OpenAI, upstream: Any) -> None:
    messages: Any = [{"role": "user", "content": "Name this talk."}]
    reply = client.chat.completions.create(model="parrot", messages=messages, temperature=0.1)
    assert (reply.model, reply.choices[0].message.content) == ("parrot", "Name this talk.")
    assert upstream.bodies[-1] == {"model": "parrot", "messages": messages, "temperature": 0.1}


def test_a_model_that_is_called_like_a_role_keeps_a_name(
    serving: Serving, upstream: Any, card: Path, connect: Connect
) -> None:
    url, _ = serving(str(card), "--llm", upstream.url, "--model", "ada fenn")
    client = connect(url)
    assert [model.id for model in client.models.list()] == ["Ada Fenn", "ada fenn-plain"]
    ask(client, "Why?", model="ada fenn-plain")
    assert upstream.bodies[-1]["model"] == "ada fenn"


def test_replies_are_by_the_role_and_name_no_folder_address_or_key(client: openai.OpenAI, upstream: Any) -> None:
    reply = ask(client, "echo it")
    chunks = list(ask(client, "echo it", stream=True))
    assert {reply.model, *(chunk.model for chunk in chunks)} == {"Ada Fenn"}
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert said == reply.choices[0].message.content and said.startswith("you sent Bearer [hidden] to ")


def test_health_needs_no_key_and_pages_need_leave(keyed: str) -> None:
    assert httpx2.get(f"{keyed.removesuffix('/v1')}/health").json() == {"status": "ok"}
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}

    def allowed(origin: str, method: str, **headers: str) -> str | None:
        answer = httpx2.request(method, f"{keyed}/chat/completions", headers={"Origin": origin, **headers})
        return answer.headers.get("access-control-allow-origin")

    for headers in (asks, {}):
        method = "OPTIONS" if headers else "POST"
        assert allowed("http://localhost:3000", method, **headers) == "http://localhost:3000"
        assert allowed("http://localhost:3001", method, **headers) is None


def test_a_key_lets_in_as_a_bearer(keyed: str, upstream: Any, connect: Connect) -> None:
    given = {"Bearer let-me-in-73": 200, "bearer  let-me-in-73": 200, "let-me-in-73": 401, "Basic let-me-in-73": 401}
    for header, status in given.items():
        assert httpx2.get(f"{keyed}/models", headers={"Authorization": header}).status_code == status
    with pytest.raises(openai.AuthenticationError, match="send the server's key"):
        connect(keyed, api_key="wrong").models.list()
    assert ask(connect(keyed, api_key="let-me-in-73"), "Why?").choices
    # Without a variable for it, no key goes there.
    assert "authorization" not in upstream.headers[-1]


def test_another_server_that_is_not_there(serving: Serving, card: Path, connect: Connect) -> None:
    url, _ = serving(str(card), "--llm", "http://127.0.0.1:9/v1", "--model", "parrot")
    with pytest.raises(openai.InternalServerError, match="nothing answers at the address") as caught:
        ask(connect(url), "Why?")
    assert caught.value.status_code == 502


def test_clients_that_leave_leak_nothing(served: tuple[str, Any], client: openai.OpenAI, upstream: Any) -> None:
    url, process = served
    folder = Path(f"/proc/{process.pid}/fd")
    host, port = url.removeprefix("http://").removesuffix("/v1").split(":")
    body = json.dumps({"model": "Ada Fenn", "stream": True, "messages": [{"role": "user", "content": "wait here"}]})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()

    async def leave(place: int) -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        # Some leave within the request, some before the first word, some after it.
        writer.write(request[: -9 if place % 3 == 0 else None])
        await writer.drain()
        if place % 3 == 2:
            assert b"200 OK" in await reader.readline()
        writer.transport.abort()

    async def all_leave(count: int) -> None:
        for start in range(0, count, 50):
            await asyncio.gather(*(leave(start + place) for place in range(50)))

    asyncio.run(all_leave(50))
    assert upstream.quiet()
    before = len(list(folder.iterdir()))
    asyncio.run(all_leave(250))
    assert upstream.quiet()
    assert ask(client, "go on", model="Queen of Hearts").choices[0].message.content == "go on"
    assert len(list(folder.iterdir())) <= before + 2


def change(url: str, method: str, path: str = "", key: str = "let-me-in-73", **body: Any) -> httpx2.Response:
    """Ask for a change of the cast."""
    headers = {"Authorization": f"Bearer {key}"}
    return httpx2.request(method, f"{url}/roles{path}", headers=headers, json=body or None, timeout=60)


def test_roles_come_and_go_with_a_key(served: tuple[str, Any], keyed: str, connect: Connect, tmp_path: Path) -> None:
    client = connect(keyed, api_key="let-me-in-73")
    assert change(keyed, "POST", role="queen of hearts").json()["id"] == "Queen of Hearts"
    assert [model.id for model in client.models.list()] == ["Ada Fenn", "Queen of Hearts", "parrot"]
    assert ask(client, "Why?", model="Queen of Hearts").choices[0].message.content == "Why?"
    refusals = {
        "two roles are called 'Queen of Hearts'": change(keyed, "POST", role="Queen of Hearts"),
        "llama.cpp's server has no adapter": change(keyed, "POST", role="Long John Silver", adapter=str(tmp_path)),
        "no role 'nobody'": change(keyed, "POST", role="nobody"),
        "send role": change(keyed, "POST", name="nobody"),
        "there is no role 'nobody'": change(keyed, "DELETE", "/nobody"),
        "wrong or missing API key": change(keyed, "POST", key="x", role="Long John Silver"),
        "with a key only": change(served[0], "POST", role="Long John Silver"),
    }
    for words, response in refusals.items():
        assert (response.status_code >= 400, words in response.json()["error"]["message"]) == (True, True), words
    assert change(keyed, "DELETE", "/queen%20of%20hearts").json()["deleted"]
    with pytest.raises(openai.NotFoundError, match=r"no role 'Queen of Hearts'.*Ada Fenn"):
        ask(client, "Why?", model="Queen of Hearts")


def test_adapters_of_llama_cpp_are_named_in_each_request(
    card: Path, serving: Serving, upstream: Any, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "adapters", ["bo", "ada"])
    words = (f"{card}=ada.gguf", "queen of hearts", "long john silver=eve.gguf", "--llm", upstream.url)
    client = connect(serving(*words, "--model", "parrot")[0])
    for role, scale in (("Ada Fenn", 1.0), ("Queen of Hearts", 0.0), ("parrot", 0.0)):
        ask(client, "Why?", model=role)
        body = upstream.bodies[-1]
        assert (body["model"], body["lora"]) == ("parrot", [{"id": 0, "scale": 0.0}, {"id": 1, "scale": scale}])
    with pytest.raises(openai.BadRequestError, match=r"no adapter eve.gguf, only bo.gguf, ada.gguf"):
        ask(client, "Why?", model="Long John Silver")


@pytest.mark.slow
def test_a_cast_has_its_adapters_on_one_base(
    tiny_model: Path, tmp_path: Path, serving: Serving, connect: Connect
) -> None:
    base = Path(shutil.copytree(tiny_model, tmp_path / "base"))
    (base / "chat_template.jinja").write_text(load_chat_template(), encoding="utf-8")
    adapters = [make_adapter(base, tmp_path / f"adapter-{seed}", seed) for seed in (0, 1)]
    roles = [f"queen of hearts={adapters[0]}", "Long John Silver"]
    url, process = serving(*roles, "--base", str(base), "--key-env", "OURS", OURS="let-me-in-73")
    client = connect(url, timeout=60, api_key="let-me-in-73")
    reply = ask(client, "Why?", model="queen of hearts", max_tokens=8, temperature=0)
    player = RolePlayer(str(base), "queen of hearts", adapter=adapters[0], max_tokens=8, temperature=0)
    assert reply.choices[0].message.content.strip() == player.reply("Why?")
    assert (reply.usage.prompt_tokens > 50, reply.model) == (True, "Queen of Hearts")
    streamed = ask(client, "Why?", model="queen of hearts", max_tokens=8, temperature=0, stream=True)
    texts = [chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices]
    assert "".join(texts) == reply.choices[0].message.content != ""
    assert [model.id for model in client.models.list()] == ["Queen of Hearts", "Long John Silver", "base"]
    drawn = {
        ask(client, "Why?", model="base", max_tokens=8, temperature=2, seed=seed).choices[0].message.content
        for seed in (1, 2, 2)
    }
    assert len(drawn) == 2
    _check_local(client, process)
    fox = write_card(tmp_path)
    assert change(url, "POST", role=str(fox), adapter=adapters[1]).json()["id"] == "Ada Fenn"
    added = RolePlayer(str(base), fox, adapter=adapters[1], max_tokens=8, temperature=0)
    reply = ask(client, "Why?", model="Ada Fenn", max_tokens=8, temperature=0)
    assert reply.choices[0].message.content.strip() == added.reply("Why?")
    response = change(url, "POST", role="鲁智深", adapter=str(base))
    assert "is not an adapter" in response.json()["error"]["message"]
    assert change(url, "DELETE", "/Ada%20Fenn").json()["deleted"]
    with pytest.raises(openai.NotFoundError, match="no role 'Ada Fenn'"):
        ask(client, "Why?", model="Ada Fenn")


@pytest.mark.slow
def test_a_model_without_a_chat_template_is_served_in_the_form_of_the_paper(
    tiny_model: Path, serving: Serving, connect: Connect
) -> None:
    url, process = serving("queen of hearts", "--model", str(tiny_model))
    client = connect(url, timeout=60)
    player = RolePlayer(tiny_model, "queen of hearts", max_tokens=8, temperature=0)
    reply = ask(client, "Why?", model="queen of hearts", max_tokens=8, temperature=0)
    assert reply.choices[0].message.content.strip() == player.reply("Why?")
    _check_local(client, process)


def _check_local(client: openai.OpenAI, process: Any) -> None:
    """A turn of the role is gone on with, and what its context cannot hold is refused at once."""

    def go_on(*said: str, length: int, **more: Any) -> str:
        reply = ask(client, *said, model="queen of hearts", max_tokens=length, temperature=0, **more)
        return str(reply.choices[0].message.content)

    # The same tokens come, whoever said the first ones.
    begun = go_on("Why?", length=1)
    assert begun
    whole = go_on("Why?", length=6)
    assert begun + go_on("Why?", begun, length=5, extra_body={"continue_final_message": True}) == whole
    assert go_on("Why?", length=6, stop=whole[2]) == whole.partition(whole[2])[0]
    assert go_on("Why?", length=6, stop=[]) == whole
    # A stream holds back what may begin a text that ends it.
    streamed = ask(
        client, "Why?", model="queen of hearts", max_tokens=6, temperature=0, stop=["no!", whole[2]], stream=True
    )
    texts = [chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices]
    assert "".join(texts) == whole.partition(whole[2])[0]
    # Open WebUI offers dozens with each message.
    tools: Any = [{"type": "function", "function": {"name": "look", "description": "why? " * 1000}}]
    assert go_on("Why?", length=6, tools=tools) == whole
    for field, value in (("n", 2), ("tool_choice", "required")):
        with pytest.raises(openai.BadRequestError, match=f"ignores {field}; leave that out"):
            go_on("Why?", length=6, **{field: value})
    with pytest.raises(openai.BadRequestError, match="too many for a context of 512"):
        ask(client, "why? " * 200_000, model="queen of hearts")
    said = process.err.read_text(encoding="utf-8")
    assert "does not say how long" not in said and process.poll() is None
