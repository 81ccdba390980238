"""`/v1/responses` and `/v1/completions` of `rolellm serve`, asked by the real `openai` client."""

from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from .conftest import write_card

TOOL: Any = {"type": "function", "name": "look", "description": "Look.", "parameters": {"type": "object"}}


@pytest.fixture(scope="module")
def client(
    serving: Callable[..., tuple[str, Any]], upstream: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[openai.OpenAI]:
    card = write_card(tmp_path_factory.mktemp("cards"))
    words = ("--llm", upstream.url, "--model", "parrot", "--set", "api_key_env=UPSTREAM_KEY")
    url, _ = serving(str(card), "queen of hearts", *words)
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as opened:
        yield opened


def test_a_response_is_the_role_s(client: openai.OpenAI, upstream: Any) -> None:
    response = client.responses.create(
        model="ada fenn", instructions="Be brief.", input="Is it late?", temperature=0, max_output_tokens=90
    )
    assert response.output_text == "Is it late?\n\nAnswer User in one sentence."
    assert (response.status, response.model) == ("completed", "Ada Fenn")
    asked = upstream.bodies[-1]
    assert (asked["temperature"], asked["max_tokens"], response.temperature) == (0, 90, 0)
    assert asked["messages"][0]["content"].startswith("Speak slowly. You are Ada Fenn")
    assert asked["messages"][0]["content"].endswith("Be brief.")


def test_the_events_of_a_stream_are_openai_s(client: openai.OpenAI) -> None:
    with client.responses.stream(model="Queen of Hearts", input="one two three") as stream:
        events = list(stream)
        final = stream.get_final_response()
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert deltas == ["one", " two", " three"]
    assert final.output_text == "one two three"
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        *("response.created", "response.in_progress"),
        *("response.output_item.added", "response.content_part.added"),
    ]
    assert kinds[-1] == "response.completed"
    assert [event.sequence_number for event in events] == list(range(len(events)))


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
def test_a_tool_is_called_and_its_result_sent_back(client: openai.OpenAI, upstream: Any, streams: bool) -> None:
    if streams:
        with client.responses.stream(model="Queen of Hearts", input="call it", tools=[TOOL]) as stream:
            response: Any = stream.get_final_response()
    else:
        response = client.responses.create(model="Queen of Hearts", input="call it", tools=[TOOL])
    (call,) = response.output
    assert (call.type, call.name, call.arguments) == ("function_call", "look", '{"what": "gulls"}')
    items: Any = [{"role": "user", "content": "call it"}, call.model_dump(exclude_none=True)]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "Eleven."})
    client.responses.create(model="Queen of Hearts", input=items, tools=[TOOL])
    asked = upstream.bodies[-1]["messages"]
    assert asked[-2]["tool_calls"][0]["function"]["name"] == "look"
    assert (asked[-1]["role"], asked[-1]["content"], asked[-1]["tool_call_id"]) == ("tool", "Eleven.", call.call_id)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        pytest.param({"previous_response_id": "resp_1"}, "not kept here", id="state"),
        pytest.param({"tools": [{"type": "web_search"}]}, "functions only", id="a tool of OpenAI's own"),
        pytest.param({"input": [{"type": "item_reference", "id": "x"}]}, "item_reference", id="a reference"),
        pytest.param({"input": []}, "a text or a list of items", id="nothing"),
    ],
)
def test_what_needs_more_than_a_chat_is_refused(client: openai.OpenAI, more: dict[str, Any], words: str) -> None:
    with pytest.raises(openai.BadRequestError, match=words):
        client.responses.create(**{"model": "Queen of Hearts", "input": "Why?", **more})


def test_an_answer_that_breaks_off_is_an_error_event(client: openai.OpenAI) -> None:
    events = list(client.responses.create(model="Queen of Hearts", input="break after two words", stream=True))
    assert (events[-1].type, "connection broke" in events[-1].message) == ("error", True)


def test_images_go_to_the_server_behind(client: openai.OpenAI, upstream: Any) -> None:
    picture = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"}
    item: Any = {"role": "user", "content": [{"type": "input_text", "text": "See?"}, picture]}
    with pytest.raises(openai.APIStatusError):
        # The parrot speaks text only.
        client.responses.create(model="Queen of Hearts", input=[item])
    text, image = upstream.bodies[-1]["messages"][-1]["content"]
    assert (text, image["image_url"]) == ({"type": "text", "text": "See?"}, {"url": "data:image/png;base64,AAAA"})


def test_texts_without_turns_pass_as_they_are(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        # The parrot has chats only.
        client.completions.create(model="Queen of Hearts", prompt="Once")
