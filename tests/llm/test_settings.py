"""Settings of models: what a file or a keyword may say, what is refused, and that no key gets out of it."""

import asyncio
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rolellm.core.errors import DataError, ModelError, SettingsError
from rolellm.core.settings import list_keys
from rolellm.llm.batch import STATE, BatchState
from rolellm.llm.client import Client
from rolellm.llm.estimate import estimate
from rolellm.llm.json_reply import make_strict
from rolellm.llm.llm import LLM
from rolellm.llm.local import LocalChat
from rolellm.llm.model import Price, Request, RunOptions, Schema, user
from rolellm.llm.scripted import ScriptedModel
from rolellm.llm.settings import (
    LLMSettings,
    find_key,
    load_settings,
)
from rolellm.llm.tokens import TokenCounter

KEY = "sk-proj-4f9Jq2ZtXw81LmNoPqRs"


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "llm.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def read(tmp_path: Path, text: str) -> LLMSettings:
    return load_settings(write(tmp_path, text))


def test_every_key_of_an_endpoint_reaches_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", KEY)
    text = """
    endpoints:
      - base_url: https://api.example.com/v1/
        model: big
        api_key_env: SOME_KEY
        concurrency: 3
        timeout: 20
        price: {prompt: 1, completion: 2.5, cached: 0.1}
        structured: json_object
        max_tokens_field: max_completion_tokens
        extra_body: {top_k: 20, temperature: null}
    max_attempts: 2
    budget: 1.5
    """
    settings = read(tmp_path, text)
    assert (settings.max_attempts, settings.budget) == (2, 1.5)
    (model,) = LLM.of(settings).models
    assert model.name == settings.endpoints[0].name == "api.example.com/big"
    assert (model.concurrency, model.settings.timeout) == (3, 20.0)
    assert model.price == Price(1.0, 2.5, 0.1)
    body = model.make_body(Request((user("Hi"),)))
    assert body["max_completion_tokens"] == 200
    assert body["top_k"] == 20
    assert "temperature" not in body
    assert model.structured == "json_object"
    assert model.find_key() == KEY


def test_a_local_model_is_named_without_its_path(tmp_path: Path) -> None:
    (tmp_path / "models" / "mine").mkdir(parents=True)
    text = """
    endpoints:
      - {backend: local, model: models/mine, batch_size: 2}
      - {backend: local, model: owner/name}
      - {backend: scripted, rules: sample}
    """
    settings = read(tmp_path, text)
    assert settings.endpoints[0].model == str(tmp_path / "models" / "mine")
    assert [entry.name for entry in settings.endpoints] == ["local/mine", "local/owner/name", "scripted/sample"]


def test_rules_are_named_and_never_imported(tmp_path: Path) -> None:
    def make(*, concurrency: int, price: Price) -> ScriptedModel:
        return ScriptedModel(lambda _: "Aye.", rules_hash="1", concurrency=concurrency, price=price)

    text = "endpoints: [{backend: scripted, rules: %s, concurrency: 3, price: {completion: 2}}]"
    (model,) = LLM.of(write(tmp_path, text % "sample"), {"sample": make}).models
    assert (model.concurrency, model.price) == (3, Price(0.0, 2.0))
    request = Request((user("Well?"),))
    assert model.read(asyncio.run(model.call(request))).text == "Aye."
    for rules in ("os.system", "rolellm.demo"):
        with pytest.raises(SettingsError, match="known: sample"):
            LLM.of(write(tmp_path, text % rules), {"sample": make}).models  # noqa: B018


def test_a_local_model_is_made_of_its_settings(tmp_path: Path, tiny_model: Path) -> None:
    from rolellm.llm.local import LocalChat

    entry = {"backend": "local", "model": str(tiny_model), "batch_size": 2, "device": "cpu", "dtype": "float32"}
    (model,) = LLM.of(write(tmp_path, yaml.safe_dump({"endpoints": [entry]}))).models
    assert isinstance(model, LocalChat)
    assert (model.concurrency, model.model.dtype, model.name) == (2, "float32", "local/tiny")
    with pytest.raises(ModelError):
        LLM.of(write(tmp_path, "endpoints: [{backend: local, model: no/such/model}]")).models  # noqa: B018


def test_the_example_can_be_read(root: Path) -> None:
    settings = load_settings(root / "recipes" / "llm" / "example.yaml")
    assert [entry.backend for entry in settings.endpoints] == ["openai", "openai", "local"]
    text = (root / "recipes" / "llm" / "example.yaml").read_text(encoding="utf-8")
    documented = (root / "docs" / "models.md").read_text(encoding="utf-8")
    for name in list_keys(LLMSettings):
        name = name.rpartition(".")[2]
        assert f"`{name}`" in documented
        assert name == "rules" or f"{name}:" in text


# --- `llm=`


SMALL = {"base_url": "http://localhost:8000/v1", "model": "small"}


def test_a_server_its_limits_and_its_price() -> None:
    llm = LLM(**SMALL, concurrency=3, max_attempts=2, budget=1, price={"prompt": 1}, retry_failed=True)
    assert llm.options == RunOptions(max_attempts=2, budget=1.0, retry_failed=True)
    (model,) = llm.models
    assert (model.name, model.concurrency, model.price.prompt) == ("localhost:8000/small", 3, 1.0)
    assert llm.estimate([Request((user("Who?"),))]).worst.calls == 2
    assert not llm.counter.exact


def test_a_file_a_dict_an_llm_and_a_model_are_the_same_thing(tmp_path: Path) -> None:
    file = tmp_path / "llm.yaml"
    file.write_text("endpoints: [{base_url: http://localhost:8000/v1, model: small}]\nmax_attempts: 2\n")
    listed = {"endpoints": [SMALL], "max_attempts": 2}
    for given in (file, str(file), listed, {**SMALL, "max_attempts": 2}, LLM(**SMALL, max_attempts=2)):
        llm = LLM.of(given)
        assert [model.name for model in llm.models] == ["localhost:8000/small"]
        assert llm.describe() == {
            "endpoints": [
                {
                    "name": "localhost:8000/small",
                    "backend": "openai",
                    **SMALL,
                    "structured": "auto",
                    "extra_body": {},
                }
            ],
            "max_attempts": 2,
            "budget": None,
        }
        assert llm.options.max_attempts == 2
    scripted = ScriptedModel(lambda _: "Aye.", rules_hash="1")
    llm = LLM.of(scripted)
    assert llm.models == [scripted]
    assert llm.describe()["endpoints"][0]["name"] == "scripted"
    assert repr(llm) == "LLM(scripted)"


# --- refusals


ENDPOINT = {"base_url": "http://localhost:8000/v1", "model": "m"}
FAR = "https://api.example.com/v1"
SCRIPTED = ScriptedModel(lambda _: "x", rules_hash="0")

#: Keys of an endpoint, and a word of what is said.
ENTRIES: list[tuple[dict[str, Any], str]] = [
    ({"api_key": KEY}, "api_key_env"),
    ({"api_key_env": KEY}, "may be a key itself"),
    ({"extra_body": {"a": [{"api-key": KEY}]}}, "secret"),
    ({"extra_body": {"auth": {"a": KEY}}}, "secret"),
    ({"headers": {"Authorization": KEY}}, "unknown key"),
    ({"base_url": f"https://u:{KEY}@host/v1"}, "base_url"),
    ({"base_url": f"https://host/v1?key={KEY}"}, "base_url"),
    ({"base_url": f"http://:80/{KEY}"}, "base_url"),
    ({"base_url": f"http://host:port/{KEY}"}, "base_url"),
    ({"base_url": f"http://host/{KEY}\x1b[31m"}, "base_url"),
    ({"modle": "m"}, "did you mean endpoints.model"),
    ({"base_url": None}, "missing"),
    ({"model": "a\nb"}, "model name"),
    ({"backend": "local"}, "unknown key for the local backend"),
    ({"rules": "r"}, "unknown key for the openai backend"),
    ({"extra_body": {"n": 5}}, "is set for each request"),
]
#: An address, the variable that is named for its key, what that holds, and a word of what is said.
KEYS: list[tuple[str, str | None, str, str]] = [
    ("https://api.openai.com/v1", None, "", "OPENAI_API_KEY"),
    (FAR, None, "", "api_key_env"),
    ("https://127.evil.com/v1", None, "", "api_key_env"),
    (FAR, "MY_KEY", "  ", "MY_KEY"),
    (FAR, "MY_KEY", f"{KEY}\nX-Evil: 1", "characters"),
    ("http://127.0.0.1:1/v1", "MY_KEY", f"{KEY}é", "characters"),
    ("http://10.0.0.7/v1", "MY_KEY", KEY, "allow_plain_http"),
]
CALLS: list[tuple[Callable[[Path], object], str]] = [
    (lambda _: LLM.of(7), "llm is int"),
    (lambda _: LLM.of("nowhere.yaml"), "does not exist"),
    (lambda _: LLM.of({"model": "small"}), "base_url is missing"),
    (lambda _: load_settings({"endpoints": []}), "endpoints is missing"),
    (lambda _: load_settings({"endpoints": [ENDPOINT, ENDPOINT]}), "twice"),
    (lambda _: estimate([], []), "no model to ask"),
    (lambda _: make_strict(Schema("s", {"type": "array"})), "at its root"),
    (lambda _: RunOptions(ray="local", batch=True), "batch"),
    (lambda _: RunOptions(workers=2), "ray"),
    (lambda _: LocalChat(None, batch_size=0), "batch size"),  # type: ignore[arg-type]
    (lambda folder: TokenCounter(folder / "none"), "no tokenizer"),
    (lambda _: TokenCounter("no/such-tokenizer"), "no tokenizer"),
    (lambda folder: Client(folder, []), "no model to ask"),
    (lambda folder: Client(folder, LLM.of(ENDPOINT).models, RunOptions(budget=1.0)), "prices"),
    (lambda folder: Client(folder, [SCRIPTED], RunOptions(batch=True)).ask([]), "batch: true"),
    (lambda folder: BatchState.of(_write_state(folder, "{")), STATE),
    (lambda folder: BatchState.of(_write_state(folder, '{"run": "x"}')), STATE),
]


def _write_state(folder: Path, content: str) -> Path:
    (folder / STATE).write_text(content)
    return folder


def check(call: Callable[[], object], word: str) -> None:
    with pytest.raises((SettingsError, DataError)) as caught:
        call()
    assert word in str(caught.value)
    assert KEY not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(("entry", "word"), ENTRIES)
def test_settings_that_are_refused(entry: dict[str, Any], word: str) -> None:
    check(lambda: load_settings({"endpoints": [ENDPOINT | entry]}), word)


@pytest.mark.parametrize(("base_url", "variable", "value", "word"), KEYS)
def test_keys_that_are_refused(
    base_url: str, variable: str | None, value: str, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("MY_KEY", value)
    check(lambda: find_key(base_url, variable), word)


def test_where_a_key_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    for base_url in ("http://127.0.0.1:1/v1", "http://[::1]:1/v1", "http://localhost:1/v1", FAR):
        assert find_key(base_url, "MY_KEY") == KEY
    assert find_key("http://gpu-box:8000/v1", "MY_KEY", plain_http=True) == KEY


@pytest.mark.parametrize(("call", "word"), CALLS)
def test_calls_that_are_refused(call: Callable[[Path], object], word: str, tmp_path: Path) -> None:
    check(lambda: call(tmp_path), word)
