"""``rolellm respond`` as a user meets it, against the rules that ship and a server on this machine."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rolellm.core.jsonl import read_jsonl

from ..commands import Command


@pytest.fixture
def run(command: Command) -> Command:
    return partial(command, "respond")


ASK = ("fox", "--instructions", "asked.jsonl", "--llm", "llm.yaml")


PRICED = """
endpoints: [{backend: scripted, rules: quotes, price: {prompt: 1000, completion: 1000}, concurrency: 1}]
"""


def test_a_budget_stops_short_and_a_larger_one_goes_on(place: Path, run: Command) -> None:
    (place / "llm.yaml").write_text(PRICED, encoding="utf-8")
    stopped = run(*ASK, "--budget", "5")
    assert stopped.code == 3
    resume = "rolellm respond fox --instructions asked.jsonl --llm llm.yaml"
    for words in ("stopped: ", resume, "larger --budget", "--budget MORE"):
        assert words in stopped.err
    assert not (place / "fox/respond/replies.jsonl").exists(), "the whole file is written at the end"
    spent = run(*ASK, "--json").result["spent"]
    assert spent["from_journal"] > 0 and spent["calls"] + spent["from_journal"] == 42


def server_words(url: str) -> tuple[str, ...]:
    return (*ASK[:3], "--llm", url, "--model", "m", "--set", "api_key_env=FOX_KEY")


def test_a_notable_share_without_an_answer_is_not_done(
    place: Path, run: Command, monkeypatch: pytest.MonkeyPatch, llm_server: Callable[..., Any]
) -> None:
    def answer(body: dict[str, Any]) -> Any:
        if "Question 3" not in body["messages"][-1]["content"]:
            return "The parrot has the map."
        return {"choices": [{"message": {"content": "The"}, "finish_reason": "content_filter"}]}

    server = llm_server(answer)
    monkeypatch.setenv("FOX_KEY", "a-key-of-the-fox")
    words = (*server_words(server.url), "--replies", "2")
    shown = run(*words)
    assert shown.code == 3
    assert "2 of 14 requests have no answer (14.3%); at most 1% may be missing" in shown.err
    assert shown.err.rstrip().endswith("--set retry_failed=true") and "Go on with" not in shown.out
    assert len(list(read_jsonl(place / "fox/respond/replies.jsonl"))) == 7, "what was answered is written all the same"
    assert server.counts.calls == 14, "the filter would say the same again"


def test_instructions_in_another_language_are_pointed_out(place: Path, run: Command) -> None:
    lines = [{"instruction": text} for text in ("地图在谁那里？", "谁有钥匙？", "Who has the key?")]
    (place / "asked.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    shown = run(*ASK, "--dry-run", "--json")
    assert "2 of 3 instructions are Chinese, and Fox speaks English" in shown.err
    assert shown.result["requests"] == 18
