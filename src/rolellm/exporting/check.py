"""The check that closes an export: greedy replies and the order of next tokens, of what was written and of the run."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Any, Final

from rolellm.core.errors import ModelError
from rolellm.core.jsonl import read_jsonl
from rolellm.core.records import Language
from rolellm.llm.vllm import open_local
from rolellm.models.local_model import Decoding, LocalModel

PROMPTS: Final = 8
REPLY_TOKENS: Final = 32
_LIKELIEST: Final = 5
_SECONDS: Final = 600
Messages = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class GreedyReply:
    """A greedy reply.

    Attributes:
        text: The reply.
        likeliest: The five likeliest first tokens, likeliest first.
        prompt_tokens: Tokens of the prompt.
    """

    text: str
    likeliest: tuple[str, ...]
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class ExportCheck:
    """What was written against the run.

    Attributes:
        by: What ran it.
        prompts: Number of prompts.
        equal_prompts: Number of those with as many tokens.
        equal_replies: Number of equal greedy replies.
        equal_orders: Number of prompts with the same five likeliest tokens in the same order.
        likely: Number of prompts where the run's likeliest token is one of the five likeliest.
        differences: The first token that differs, of each reply that does.
    """

    by: str
    prompts: int
    equal_prompts: int
    equal_replies: int
    equal_orders: int
    likely: int
    differences: tuple[str, ...] = ()

    @property
    def has_passed(self) -> bool:
        """True where it is the same model: prompts are cut alike, and each first token is among the likeliest."""
        return self.equal_prompts == self.likely == self.prompts

    @property
    def sentence(self) -> str:
        """The check in words."""
        sentence = (
            f"Checked by {self.by}: {self.equal_replies} of {self.prompts} greedy replies equal the run's, and "
            f"{self.equal_orders} orders of the five likeliest next tokens."
        )
        if not self.has_passed:
            sentence += (
                f" It is not the same model: {self.equal_prompts} prompts have as many tokens, and the likeliest token "
                f"is among the five likeliest of {self.likely}."
            )
        return sentence

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON object."""
        return asdict(self)


def make_check_prompts(system: str, language: Language) -> list[Messages]:
    """Make the prompts: general instructions to the role."""
    file = resources.files("rolellm.making").joinpath("general", f"{language}.jsonl")
    with resources.as_file(file) as path:
        rows = [row for _, row in read_jsonl(path)]
    prompts = []
    for row in rows[:: len(rows) // PROMPTS][:PROMPTS]:
        turns = [{"role": "system", "content": system}] if system else []
        prompts.append([*turns, {"role": "user", "content": row["instruction"]}])
    return prompts


def ask_model(model: LocalModel, prompts: Sequence[Messages]) -> list[GreedyReply]:
    """Ask a model of this machine."""
    ids = [model.encode(messages) for messages in prompts]
    completions = model.generate_batch(ids, Decoding(max_new_tokens=REPLY_TOKENS))
    replies = []
    for prompt, completion in zip(ids, completions, strict=True):
        likeliest = [text for text, _ in model.rank_next_tokens(prompt, _LIKELIEST)]
        replies.append(GreedyReply(completion.text, tuple(likeliest), len(prompt)))
    return replies


def ask_server(address: str, prompts: Sequence[Messages]) -> list[GreedyReply]:
    """Ask llama.cpp's server.

    Raises:
        ModelError: When it gives no reply.
    """
    replies = []
    for messages in prompts:
        body = {"messages": messages, "max_tokens": REPLY_TOKENS, "temperature": 0, "logprobs": True}
        # Ours have no penalty; one server has one by default.
        body |= {"top_logprobs": _LIKELIEST, "repeat_penalty": 1.0}
        content = json.dumps(body).encode()
        request = urllib.request.Request(f"{address}/chat/completions", content, {"Content-Type": "application/json"})
        try:
            with open_local(request, timeout=_SECONDS) as response:
                raw = json.load(response)
            choice = raw["choices"][0]
            ranking = choice["logprobs"]["content"][0]["top_logprobs"]
            likeliest = tuple(item["token"] for item in ranking[:_LIKELIEST])
            replies.append(GreedyReply(choice["message"]["content"].strip(), likeliest, raw["usage"]["prompt_tokens"]))
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise ModelError(f"llama.cpp's server gave no reply to a prompt of the check: {error!r}") from error
    return replies


def compare(by: str, run: Sequence[GreedyReply], written: Sequence[GreedyReply], model: LocalModel) -> ExportCheck:
    """Compare replies with those of the run.

    Args:
        by: What made them.
        run: The run's.
        written: Those of what was written.
        model: The run's model, whose tokens the differences are named by.
    """
    pairs = list(zip(run, written, strict=True))
    unequal = [(before.text, after.text) for before, after in pairs if before.text != after.text]
    differences = [_describe_difference(before, after, model) for before, after in unequal]
    return ExportCheck(
        by,
        len(pairs),
        equal_prompts=sum(before.prompt_tokens == after.prompt_tokens for before, after in pairs),
        equal_replies=len(pairs) - len(differences),
        equal_orders=sum(before.likeliest == after.likeliest for before, after in pairs),
        likely=sum(before.likeliest[0] in after.likeliest for before, after in pairs),
        differences=tuple(differences),
    )


def _describe_difference(before: str, after: str, model: LocalModel) -> str:
    """Name the first token at which two replies part."""
    ids = [model.tokenizer(text, add_special_tokens=False)["input_ids"] for text in (before, after)]
    number = len(os.path.commonprefix(ids))  # noqa: RUF071  # Token by token is meant.
    words = [model.tokenizer.decode(tokens[number : number + 1]) for tokens in ids]
    return f"token {number + 1}: {words[0]!r}, now {words[1]!r}"
