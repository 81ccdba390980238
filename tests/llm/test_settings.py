"""Settings of models: what a file may say, and that no key gets out of it."""

import asyncio
import json
from pathlib import Path

import pytest
import yaml

from rolellm.core.errors import ModelError, SettingsError
from rolellm.core.settings import list_keys
from rolellm.llm.llm import LLM
from rolellm.llm.model import Price, Request, user
from rolellm.llm.scripted import ScriptedModel
from rolellm.llm.settings import (
    LLMSettings,
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
