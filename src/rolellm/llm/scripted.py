"""A model that is a function: offline, deterministic, and behind the same protocol as any other.

It is for tests, demos and notebooks. It is not a language model, and says so in every raw reply.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar

from rolellm.core.errors import ModelError, RoleLLMError
from rolellm.core.fingerprint import hash_file
from rolellm.llm.model import CallError, Finish, Json, Price, Reply, Request, UnacceptableError, Usage
from rolellm.llm.tokens import TokenCounter

#: Makes the text of a reply of a request, or an object, which is sent as JSON.
Rules = Callable[[Request], "str | Json"]


@dataclass(eq=False)
class ScriptedModel:
    """Answers by rules.

    Attributes:
        answer: Called for each request; the same request has to get the same answer.
        name: What it is called in messages and records.
        rules_hash: Names the rules, so that other rules do not find the replies of these.
        concurrency: How many calls it takes at once.
        price: What to pretend that its tokens cost.
        count: Tokens of a text; by default a word is one.
    """

    #: A budget counts it as costing nothing.
    free: ClassVar = True

    answer: Rules
    _: KW_ONLY
    rules_hash: str
    name: str = "scripted"
    concurrency: int = 8
    price: Price = field(default_factory=Price)
    count: Callable[[str], int] = lambda text: len(text.split())

    @property
    def identity(self) -> Json:
        """Its name and the hash of its rules."""
        return {"backend": "scripted", "model": self.name, "rules": self.rules_hash}

    async def call(self, request: Request, attempt: int = 1) -> Json:
        """Answer by the rules.

        Raises:
            ModelError: When the rules fail on the request: they are made for other prompts.
        """
        try:
            result = self.answer(request)
        except (RoleLLMError, CallError):
            raise
        except (LookupError, TypeError, ValueError) as error:
            raise ModelError(
                f"the rules `{self.name}` cannot answer {request.tag!r:.80} ({error!r:.80}); name another model"
            ) from error
        text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
        prompt_tokens = sum(self.count(message.content) for message in request.messages)
        usage = {"prompt": prompt_tokens, "completion": self.count(text)}
        return {"backend": "scripted", "model": self.name, "text": text, "finish": "stop", "usage": usage}

    def read(self, raw: Json) -> Reply:
        """Read what `call` gave.

        Raises:
            UnacceptableError: For anything else.
        """
        return read_plain(raw, self.name)

    async def close(self) -> None:
        """Nothing is open."""


def make_rule_model(answer: Rules, name: str, concurrency: int, price: Price | None) -> ScriptedModel:
    """Make a model of rules that ship, which are named by the hash of their module.

    Args:
        answer: The rules, a function.
        name: The name of the model.
        concurrency: Maximum calls at once.
        price: The price to pretend for its tokens.
    """
    rules_hash, count = hash_file(inspect.getfile(answer)), TokenCounter().count
    return ScriptedModel(
        answer, name=name, rules_hash=rules_hash, concurrency=concurrency, price=price or Price(), count=count
    )


def read_plain(raw: Json, endpoint: str) -> Reply:
    """Read a raw reply of the plain form ``{"model", "text", "finish", "usage"}``, which models on this machine give.

    Raises:
        UnacceptableError: For another form.
    """
    try:
        finish: Finish = raw["finish"]
        text: str = raw["text"]
        counted: dict[str, Any] = raw["usage"]
        usage = Usage(counted["prompt"], counted["completion"], counted.get("cached", 0))
        if finish == "stop" and not text.strip():
            finish = "empty"
        return Reply(text, finish, usage, raw["model"], endpoint, raw)
    except (KeyError, TypeError) as error:
        raise UnacceptableError(f"the raw reply is not of the form expected ({error!r:.80})", "malformed") from error
