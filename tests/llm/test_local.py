"""A model on this machine: calls that wait go together, and replies hang on nothing but what is asked."""

import asyncio
import json
import math
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from rolellm.core.errors import RoleLLMWarning
from rolellm.llm.local import LocalChat
from rolellm.llm.model import (
    CallError,
    Model,
    Request,
    Sampling,
    request_key,
    system,
    user,
)
from rolellm.models.local_model import LocalModel


def requests(count: int, **sampling: Any) -> list[Request]:
    given = Sampling(**({"max_tokens": 12} | sampling))
    return [Request((system("You are a fox."), user(f"Why, {number}?")), given) for number in range(count)]


@pytest.fixture(scope="module")
def local(tiny_model: Path) -> LocalModel:
    return LocalModel(str(tiny_model), device="cpu")


def ask(chat: LocalChat, asked: list[Request], attempt: int = 1) -> list[Any]:
    async def go() -> list[Any]:
        try:
            return await asyncio.gather(*(chat.call(one, attempt) for one in asked), return_exceptions=True)
        finally:
            await chat.close()

    return asyncio.run(go())


def test_it_is_a_model(local: LocalModel, tiny_model: Path) -> None:
    chat = LocalChat(local)
    assert isinstance(chat, Model)
    assert chat.name == f"local/{tiny_model.name}"
    (raw,) = ask(chat, requests(1))
    reply = chat.read(raw)
    assert json.loads(json.dumps(raw)) == raw
    assert reply.finish in ("stop", "length", "empty")
    messages = [{"role": message.role, "content": message.content} for message in requests(1)[0].messages]
    assert reply.usage.prompt == len(local.encode(messages))
    assert 1 <= reply.usage.completion <= 12


def test_a_template_without_a_system_role_gets_the_text_in_the_user_s_turn(tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
        "{% endif %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    with pytest.warns(RoleLLMWarning, match="no system role; the system text goes in front of the first user turn"):
        model = LocalModel(str(folder), device="cpu")
    (asked,) = requests(1)
    (raw,) = ask(LocalChat(model), [asked])
    prompt = "<user>You are a fox.\n\nWhy, 0?<assistant>"
    ids = model.encode([asdict(message) for message in asked.messages])
    assert model.tokenizer.decode(ids) == prompt
    assert LocalChat(model).read(raw).usage.prompt == len(ids)


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the batches that go through a model."""
    sizes: list[int] = []
    real = LocalModel.generate_batch

    def note_size(self: LocalModel, prompts: Any, decoding: Any, keys: Any = None) -> Any:
        sizes.append(len(prompts))
        return real(self, prompts, decoding, keys)

    monkeypatch.setattr(LocalModel, "generate_batch", note_size)
    return sizes


def test_calls_that_wait_go_together(local: LocalModel, sizes: list[int]) -> None:
    ask(LocalChat(local, batch_size=4), requests(10))
    assert sizes == [4, 4, 2]


def test_replies_hang_on_nothing_else(local: LocalModel) -> None:
    asked = requests(9, temperature=1.0, top_p=1.0)
    together = ask(LocalChat(local, batch_size=9), asked)
    apart = [ask(LocalChat(local, batch_size=1), [one])[0] for one in asked]
    backwards = ask(LocalChat(local, batch_size=2), asked[::-1])[::-1]
    texts = [[reply["text"] for reply in replies] for replies in (together, apart, backwards)]
    assert texts[0] == texts[1] == texts[2]
    assert len({raw["text"] for raw in together}) > 1


def test_different_settings_go_in_different_batches(local: LocalModel) -> None:
    mixed = [*requests(2, max_tokens=3), *requests(2, max_tokens=6), *requests(1, temperature=0.0)]
    raws = ask(LocalChat(local), mixed)
    assert [raw["usage"]["completion"] <= most for raw, most in zip(raws, [3, 3, 6, 6, 12], strict=True)] == [True] * 5


@pytest.mark.parametrize(
    ("sampling", "found"),
    [
        pytest.param({"top_p": 0.0}, "top_p", id="top_p"),
        pytest.param({"max_tokens": 0}, "no room", id="no tokens"),
    ],
)
def test_settings_that_it_does_not_know(sampling: dict[str, Any], found: str, local: LocalModel) -> None:
    (error,) = ask(LocalChat(local), requests(1, **sampling))
    assert (error.kind, error.retry) == ("bad_request", False)
    assert found in error.reason


def test_a_prompt_that_is_too_long(local: LocalModel) -> None:
    long = Request((user("word " * 3000),))
    short = requests(1)[0]
    error, raw = ask(LocalChat(local), [long, short])
    assert "no room" in error.reason
    assert raw["text"] is not None


def test_the_identity_is_the_content(local: LocalModel, tiny_model: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(tiny_model, elsewhere)
    same = LocalChat(LocalModel(str(elsewhere), device="cpu"))
    (request,) = requests(1)
    assert request_key(same, request) == request_key(LocalChat(local), request)
    config = json.loads((elsewhere / "config.json").read_text())
    (elsewhere / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-3}))
    changed = LocalChat(LocalModel(str(elsewhere), device="cpu"))
    assert request_key(changed, request) != request_key(same, request)


def test_weights_that_cannot_be_loaded_reach_every_call(tiny_model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tiny_model, broken)
    (broken / "model.safetensors").write_bytes(b"\0" * 64)
    errors = ask(LocalChat(LocalModel(str(broken), device="cpu")), requests(3))
    assert {type(error).__name__ for error in errors} == {"ModelError"}


def test_log_probabilities_of_the_first_token(local: LocalModel) -> None:
    greedy = {"temperature": 0.0, "top_p": 1.0, "max_tokens": 1}
    with_odds, without = ask(LocalChat(local), [*requests(1, top_logprobs=5, **greedy), *requests(1, **greedy)])
    likeliest = with_odds["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    shares = [math.exp(one["logprob"]) for one in likeliest]
    assert len(shares) == 5 and shares == sorted(shares, reverse=True) and sum(shares) <= 1.001
    assert likeliest[0]["token"].strip() == without["text"]
    (refused,) = ask(LocalChat(local), requests(1, top_logprobs=5))
    assert isinstance(refused, CallError) and "max_tokens" in str(refused)
