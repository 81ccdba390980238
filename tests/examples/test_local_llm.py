"""`examples/local_llm.py`: OpenAI's own client takes it for the real thing, and it counts what it sees."""

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st


@pytest.fixture(autouse=True)
def _examples(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(root / "examples")
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def post(url: str, body: Any, **headers: str) -> tuple[int, Any]:
    request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def chat(text: str = "Hi", **fields: Any) -> dict[str, Any]:
    return {"model": "local", "messages": [{"role": "user", "content": text}], **fields}


@pytest.fixture
def server() -> Iterator[Any]:
    from local_llm import LocalLLM

    with LocalLLM(price=(1.0, 3.0)) as running:
        yield running


def test_the_command_serves_and_counts(root: Path) -> None:
    command = [sys.executable, str(root / "examples" / "local_llm.py"), "--port", "0", "--price", "1", "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        assert post(url, chat())[0] == 200
        base = url.removesuffix("/v1")
        counts = json.loads(urllib.request.urlopen(f"{base}/local/counts", timeout=10).read())
        assert (counts["calls"], counts["delivered"], counts["distinct"]) == (1, 1, 1)
        assert counts["cost"] > 0
        urllib.request.urlopen(urllib.request.Request(f"{base}/local/reset", b""), timeout=10).close()
        assert json.loads(urllib.request.urlopen(f"{base}/local/counts", timeout=10).read())["calls"] == 0
    finally:
        process.terminate()
        process.wait(timeout=10)
        process.stdout.close()


def test_the_same_request_gets_the_same_answer_and_another_another(server: Any) -> None:
    first, again, seeded, other = (
        post(server.url, body)[1]["choices"] for body in (chat(), chat(), chat(seed=1), chat("Ho"))
    )
    assert first == again
    assert first != seeded
    assert first != other
    assert server.counts.to_dict()["paid_again"] == 1


@given(
    st.recursive(
        st.sampled_from(
            [{"type": kind} for kind in ("string", "integer", "number", "boolean", "null")]
            + [{"enum": ["a", 2]}, {"const": 5}, {"type": "integer", "minimum": 7, "maximum": 9}]
        ),
        lambda inner: (
            st.builds(lambda items: {"type": "array", "items": items, "minItems": 1, "maxItems": 2}, inner)
            | st.builds(
                lambda parts: {"type": "object", "properties": parts, "required": list(parts)},
                st.dictionaries(st.sampled_from("abc"), inner),
            )
            | st.builds(lambda options: {"anyOf": options}, st.lists(inner, min_size=1, max_size=3))
        ),
        max_leaves=6,
    )
)
def test_answers_follow_the_schema(schema: dict[str, Any]) -> None:
    from llm_answers import invented

    asked = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    jsonschema.validate(json.loads(invented(chat(response_format=asked))), schema)


def test_keys_models_and_fields(server: Any) -> None:
    server.change(key="sk-1", model="m", refused_fields=["max_tokens"], structured=["json_object"])
    assert post(server.url, chat())[0] == 401
    key = {"Authorization": "Bearer sk-1"}
    assert post(server.url, chat(), **key)[0] == 404
    assert post(server.url, chat() | {"model": "m"}, **key)[0] == 200
    assert post(server.url, chat(max_tokens=1) | {"model": "m"}, **key)[0] == 400
    asked = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}
    status, body = post(server.url, chat(response_format=asked) | {"model": "m"}, **key)
    assert status == 400
    assert "json_schema" in body["error"]["message"]


@pytest.mark.parametrize("body", [[], {}, {"messages": 5}, {"messages": [5], "model": "m"}, "x", None])
def test_what_is_no_request_gets_a_400(body: Any, server: Any) -> None:
    assert post(server.url, body)[0] == 400


def test_faults_are_drawn_by_seed_content_and_turn() -> None:
    from llm_faults import Faults

    faults = Faults(0.3, seed=4)
    draws = [[faults.drawn(f"key {key}", seen) for seen in range(4)] for key in range(1000)]
    assert draws == [[Faults(0.3, seed=4).drawn(f"key {key}", seen) for seen in range(4)] for key in range(1000)]
    assert draws != [[Faults(0.3, seed=5).drawn(f"key {key}", seen) for seen in range(4)] for key in range(1000)]
    hit = sum(fault is not None for turns in draws for fault in turns)
    assert 1100 < hit < 1300
    assert any(turns[0] is not None and turns[1] is None for turns in draws)
    forever = Faults(0.3, seed=4, forever=True)
    assert all(len({forever.drawn(f"key {key}", seen) for seen in range(4)}) == 1 for key in range(100))
    kinds = Counter(fault for turns in draws for fault in turns if fault)
    assert set(kinds) == set(faults.kinds)
