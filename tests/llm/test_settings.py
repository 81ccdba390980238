"""Settings of models: what a file may say, and that no key gets out of it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from rolellm.core.errors import ModelError, SettingsError
from rolellm.core.settings import list_keys
from rolellm.llm.model import Price, Request, user
from rolellm.llm.scripted import ScriptedModel
from rolellm.llm.settings import (
    LLMSettings,
    load_models,
    load_settings,
)

SERVER = "endpoints: [{base_url: http://localhost:8000/v1, model: m}]\n"
KEY = "sk-proj-4f9Jq2ZtXw81LmNoPqRs"


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "llm.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def read(tmp_path: Path, text: str) -> LLMSettings:
    return load_settings(write(tmp_path, text))


def read_entry(tmp_path: Path, entry: dict[str, Any]) -> LLMSettings:
    """Settings of one endpoint, with these values changed."""
    values = {"endpoints": [{"base_url": "http://localhost/v1", "model": "m", **entry}]}
    return read(tmp_path, yaml.safe_dump(values))


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
    (model,) = load_models(settings)
    assert model.name == settings.endpoints[0].name == "api.example.com/big"
    assert (model.concurrency, model.settings.timeout) == (3, 20.0)
    assert model.price == Price(1.0, 2.5, 0.1)
    body = model.make_body(Request((user("Hi"),)))
    assert body["max_completion_tokens"] == 200
    assert body["top_k"] == 20
    assert "temperature" not in body
    assert model.structured == "json_object"
    assert model.find_key() == KEY


def test_manifests_get_what_decides_and_no_key_path_or_variable(tmp_path: Path) -> None:
    (tmp_path / "models" / "mine").mkdir(parents=True)
    text = """
    endpoints:
      - {base_url: https://api.example.com/v1, model: big, api_key_env: SOME_KEY, price: {prompt: 1}}
      - {backend: local, model: models/mine, batch_size: 2}
      - {backend: local, model: owner/name}
      - {backend: scripted, rules: sample}
    """
    settings = read(tmp_path, text)
    describe_model = json.dumps(settings.describe())
    assert "SOME_KEY" not in describe_model
    assert str(tmp_path) not in describe_model
    assert settings.endpoints[1].model == str(tmp_path / "models" / "mine")
    assert [entry.name for entry in settings.endpoints[1:]] == ["local/mine", "local/owner/name", "scripted/sample"]
    assert settings.describe()["endpoints"] == [
        {
            "backend": "openai",
            "base_url": "https://api.example.com/v1",
            "model": "big",
            "price": {"prompt": 1.0, "completion": 0.0, "cached": None},
        },
        {"backend": "local", "batch_size": 2, "model": "mine"},
        {"backend": "local", "model": "owner/name"},
        {"backend": "scripted", "rules": "sample"},
    ]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        pytest.param(
            {"api_key": KEY}, "unknown key endpoints[0].api_key; did you mean endpoints.api_key_env?", id="api-key"
        ),
        pytest.param({"OPENAI_API_KEY": KEY}, "unknown key endpoints[0].OPENAI_API_KEY", id="variable-as-key"),
        pytest.param({"api_key_env": KEY}, "may be a key itself and is not shown", id="key-for-its-variable"),
        pytest.param({"extra_body": {"a": [{"api-key": KEY}]}}, "extra_body.api-key: a secret", id="in-the-body"),
        pytest.param({"extra_body": {"Authorization": KEY}}, "a secret does not belong", id="header-in-the-body"),
        pytest.param({"headers": {"Authorization": KEY}}, "unknown key endpoints[0].headers", id="headers"),
        pytest.param({"extra_body": {"auth": {"a": KEY}}}, "extra_body.auth: a secret", id="within-a-key"),
        pytest.param({"timeout": KEY}, "timeout: must be a number, found text", id="for-a-number"),
        pytest.param({"structured": KEY}, "structured: must be 'auto', 'json_schema'", id="for-a-choice"),
        pytest.param({"extra_body": {"a": KEY.encode()}}, "JSON has no value such as bytes", id="as-bytes"),
        pytest.param({"base_url": f"https://u:{KEY}@host/v1"}, "base_url contains", id="password-in-the-url"),
        pytest.param({"base_url": f"https://host/v1?key={KEY}"}, "base_url contains", id="query-in-the-url"),
    ],
)
def test_a_key_is_refused_and_not_shown(tmp_path: Path, entry: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_entry(tmp_path, entry)
    assert words in str(caught.value)
    hide_private: BaseException | None = caught.value
    while hide_private is not None:
        assert KEY not in str(hide_private)
        assert KEY.replace("-", "_") not in str(hide_private)
        hide_private = hide_private.__cause__ or hide_private.__context__


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("", "expected keys and values, found nothing", id="empty"),
        pytest.param("max_attempts: 3", "endpoints is missing", id="no-endpoints"),
        pytest.param("endpoint: [{}]", "did you mean endpoints?", id="typo"),
        pytest.param("endpoints: [{modle: m}]", "did you mean endpoints.model?", id="typo-in-an-entry"),
        pytest.param("base_url: http://x", "did you mean endpoints.base_url?", id="outside-an-entry"),
        pytest.param("endpoints: [{model: m}]", "endpoints[0]: base_url is missing", id="no-address"),
        pytest.param("endpoints: [{base_url: http://x}]", "endpoints[0]: model is missing", id="no-model"),
        pytest.param("endpoints: [{base_url: localhost, model: m}]", "endpoints[0]: base_url is not", id="url"),
        pytest.param("endpoints: [{base_url: 'file:///x', model: m}]", "base_url is not", id="scheme"),
        pytest.param(
            'endpoints: [{base_url: "http://x", model: "a\\nb"}]', "the model name is 'a", id="model-of-lines"
        ),
        pytest.param("endpoints: [{backend: loca}]", "must be 'openai', 'local'", id="backend-typo"),
        pytest.param("endpoints: [{backend: local}]", "model is missing; the local backend needs it", id="local"),
        pytest.param(
            "endpoints: [{backend: local, model: m, base_url: http://x}]",
            "endpoints[0]: base_url: unknown key for the local backend; it has model,",
            id="address-of-a-local-model",
        ),
        pytest.param(
            "endpoints: [{base_url: http://x, model: m, rules: r}]",
            "unknown key for the openai backend",
            id="rules-of-a-server",
        ),
        pytest.param(SERVER.replace("}]", ", price: {prompt: -1}}]"), "price.prompt: must be greater", id="price"),
        pytest.param(SERVER.replace("}]", ", extra_body: {n: 5}}]"), "extra_body.n: this is set", id="more-replies"),
        pytest.param(SERVER.replace("}]", ", extra_body: {stream: true}}]"), "extra_body.stream", id="stream"),
        pytest.param(SERVER.replace("}]", ", extra_body: {max_tokens: null}}]"), "is set for", id="limit-taken-out"),
        pytest.param(SERVER.replace("m}]", "m}, {base_url: http://localhost:8000/v1, model: m}]"), "twice", id="twice"),
        pytest.param("endpoints: [", "llm.yaml:1: not valid YAML", id="broken"),
    ],
)
def test_what_cannot_be_carried_out_is_refused_in_words(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read(tmp_path, text)
    assert words in str(caught.value)
    assert "llm.yaml" in str(caught.value)


def test_rules_are_named_and_never_imported(tmp_path: Path) -> None:
    def make(*, concurrency: int, price: Price) -> ScriptedModel:
        return ScriptedModel(lambda _: "Aye.", rules_hash="1", concurrency=concurrency, price=price)

    text = "endpoints: [{backend: scripted, rules: %s, concurrency: 3, price: {completion: 2}}]"
    (model,) = load_models(write(tmp_path, text % "sample"), {"sample": make})
    assert (model.concurrency, model.price) == (3, Price(0.0, 2.0))
    request = Request((user("Well?"),))
    assert model.read(asyncio.run(model.call(request))).text == "Aye."
    for rules in ("os.system", "rolellm.demo"):
        with pytest.raises(SettingsError, match="known: sample"):
            load_models(write(tmp_path, text % rules), {"sample": make})


def test_a_local_model_is_made_of_its_settings(tmp_path: Path, tiny_model: Path) -> None:
    from rolellm.llm.local import LocalChat

    entry = {"backend": "local", "model": str(tiny_model), "batch_size": 2, "device": "cpu", "dtype": "float32"}
    (model,) = load_models(write(tmp_path, yaml.safe_dump({"endpoints": [entry]})))
    assert isinstance(model, LocalChat)
    assert (model.concurrency, model.model.dtype, model.name) == (2, "float32", "local/tiny")
    with pytest.raises(ModelError):
        load_models(write(tmp_path, "endpoints: [{backend: local, model: no/such/model}]"))


def test_the_example_can_be_read(root: Path) -> None:
    settings = load_settings(root / "recipes" / "llm" / "example.yaml")
    assert [entry.backend for entry in settings.endpoints] == ["openai", "openai", "local"]
    text = (root / "recipes" / "llm" / "example.yaml").read_text(encoding="utf-8")
    documented = (root / "docs" / "models.md").read_text(encoding="utf-8")
    for name in list_keys(LLMSettings):
        name = name.rpartition(".")[2]
        assert f"`{name}`" in documented
        assert name == "rules" or f"{name}:" in text
