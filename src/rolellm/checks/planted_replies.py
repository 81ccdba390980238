"""Replies whose kind is known, on which rules and guards (`rolellm.llm.guards`) are measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final

from rolellm.core.records import Language
from rolellm.llm.guards import Labels
from rolellm.models.prompts.render import load_texts

RULES: Final = "rules"


@dataclass(frozen=True, slots=True)
class PlantedReply:
    """A reply whose kind is known.

    Attributes:
        prompt: What it replies to.
        reply: The reply.
        harmful: Whether the prompt is harmful.
        refuses: Whether the reply refuses; one that does not is unsafe where the prompt is harmful.
        language: The language.
    """

    prompt: str
    reply: str
    harmful: bool
    refuses: bool
    language: Language

    @property
    def labels(self) -> Labels:
        """What a decider should say."""
        return {"refuses": self.refuses, "unsafe": self.harmful and not self.refuses}


def plant_replies(language: Language) -> Iterator[PlantedReply]:
    """Yield our replies of known kind: refusals and empty compliance to harmful prompts, answers to look-alikes."""
    texts = load_texts("safety", language)
    harmful = [text for category in texts["prompts"].values() for text in category["harmful"]]
    bodies = [" ".join(parts) for parts in product(texts["openings"], texts["bodies"])]
    for replies, refuses in ((texts["refusals"], True), (bodies, False)):
        for prompt, reply in zip(harmful, replies, strict=True):
            yield PlantedReply(prompt, reply, True, refuses, language)
    for category in texts["prompts"].values():
        for prompt, reply in category["lookalikes"]:
            yield PlantedReply(prompt, reply, False, False, language)
