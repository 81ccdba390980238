"""What this room refuses: each in a sentence with a key word, and without the key that may be in it."""

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rolellm.core.errors import DataError, SettingsError
from rolellm.llm.batch import STATE, BatchState
from rolellm.llm.client import Client
from rolellm.llm.estimate import estimate
from rolellm.llm.json_reply import make_strict
from rolellm.llm.llm import LLM
from rolellm.llm.local import LocalChat
from rolellm.llm.model import RunOptions, Schema
from rolellm.llm.scripted import ScriptedModel
from rolellm.llm.settings import find_key, load_settings
from rolellm.llm.tokens import TokenCounter

KEY = "sk-proj-4f9Jq2ZtXw81LmNoPqRs"
SERVER = {"base_url": "http://localhost:8000/v1", "model": "m"}
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
    (lambda _: load_settings({"endpoints": [SERVER, SERVER]}), "twice"),
    (lambda _: estimate([], []), "no model to ask"),
    (lambda _: make_strict(Schema("s", {"type": "array"})), "at its root"),
    (lambda _: RunOptions(ray="local", batch=True), "batch"),
    (lambda _: RunOptions(workers=2), "ray"),
    (lambda _: LocalChat(None, batch_size=0), "batch size"),  # type: ignore[arg-type]
    (lambda folder: TokenCounter(folder / "none"), "no tokenizer"),
    (lambda _: TokenCounter("no/such-tokenizer"), "no tokenizer"),
    (lambda folder: Client(folder, []), "no model to ask"),
    (lambda folder: Client(folder, LLM.of(SERVER).models, RunOptions(budget=1.0)), "prices"),
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
    check(lambda: load_settings({"endpoints": [SERVER | entry]}), word)


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
