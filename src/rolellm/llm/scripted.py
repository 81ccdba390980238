"""A model that is a function: offline, deterministic, and behind the same protocol as any other.

It is for tests, demos and notebooks. It is no language model, and says so in every raw reply.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from rolellm.llm.model import Finish, Json, Price, Reply, Request, UnacceptableError, Usage

#: Makes the text of a reply of a request, or an object, which is sent as JSON.
Rules = Callable[[Request], "str | Json"]


class ScriptedModel:
    """Answers by rules.

    Args:
        answer: Called for each request; the same request has to get the same answer.
        name: What it is called in messages and records.
        rules_hash: Names the rules, so that other rules do not find the replies of these.
        concurrency: How many calls it takes at once.
        price: What to pretend that its tokens cost.
        count: Tokens of a text; by default a word is one.
    """

    #: A budget counts it as costing nothing.
    free = True

    def __init__(
        self,
        answer: Rules,
        *,
        name: str = "scripted",
        rules_hash: str,
        concurrency: int = 8,
        price: Price | None = None,
        count: Callable[[str], int] = lambda text: len(text.split()),
    ) -> None:
        self._answer = answer
        self._rules_hash = rules_hash
        self._count = count
        self.name = name
        self.concurrency = concurrency
        self.price = price or Price()

    @property
    def identity(self) -> Json:
        """Its name and the hash of its rules."""
        return {"backend": "scripted", "model": self.name, "rules": self._rules_hash}

    async def call(self, request: Request, attempt: int = 1) -> Json:
        """Answer by the rules."""
        found = self._answer(request)
        text = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
        usage = {
            "prompt": sum(self._count(message.content) for message in request.messages),
            "completion": self._count(text),
        }
        return {"backend": "scripted", "model": self.name, "text": text, "finish": "stop", "usage": usage}

    def read(self, raw: Json) -> Reply:
        """Read what `call` gave.

        Raises:
            UnacceptableError: For anything else.
        """
        return read_plain(raw, self.name)

    async def close(self) -> None:
        """Nothing is open."""


def read_plain(raw: Json, endpoint: str) -> Reply:
    """Read a raw reply of the plain form ``{"model", "text", "finish", "usage"}``, which models on this machine give.

    Raises:
        UnacceptableError: For another form.
    """
    try:
        finish: Finish = raw["finish"]
        text: str = raw["text"]
        counted: dict[str, Any] = raw["usage"]
        if finish == "stop" and not text.strip():
            finish = "empty"
        return Reply(text, finish, Usage(counted["prompt"], counted["completion"]), raw["model"], endpoint, raw)
    except (KeyError, TypeError) as error:
        raise UnacceptableError(f"the raw reply is not of the form expected ({error!r:.80})", "malformed") from error
