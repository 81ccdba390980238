"""Judges by rules with preferences, biases and noise that are known.

::

    def quality(material, answer):
        return 2.0 if "whale" in answer else 0.0

    judge = scripted_judge(Preferences(quality, position=0.5, noise=1.0))
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rolellm.core.fingerprint import hash_json
from rolellm.judging.overlap_judge import make_verdict, read_shown_texts
from rolellm.llm.model import Request
from rolellm.llm.scripted import ScriptedModel
from rolellm.models.prompts.fences import read_fences

#: How good an answer is: of the fenced texts of the prompt by their names, and the answer.
Quality = Callable[[Mapping[str, str], str], float]

_FENCE_LINE = re.compile(r"^<<<([0-9a-f]{16}) ", re.MULTILINE)


@dataclass(frozen=True)
class Preferences:
    """What a scripted judge likes. Each answer gets a score, and the higher one wins.

    A score is ``quality + position·(1 at the first place, falling to 0 at the last) + length·(characters / 100) +
    noise·(a Gumbel draw)``. So an answer better by d wins a pair with the probability ``1 / (1 + exp(-d / noise))``,
    lists follow Plackett and Luce, and strengths come out in units of `noise`.

    Attributes:
        quality: How good an answer is; must not depend on its place.
        position: What the first place earns.
        length: What a hundred characters earn.
        noise: 0 for none. Drawn from the prompt's text, so that the same request gets the same verdict.
        seed: Another seed draws other noise.
    """

    quality: Quality
    position: float = 0.0
    length: float = 0.0
    noise: float = 0.0
    seed: int = 0

    def verdict(self, request: Request) -> dict[str, Any]:
        """What it says of a request, in the form that the request's judge asks for.

        Raises:
            ModelError: For a request that shows no two answers.
        """
        material, answers = read_shown_texts(request)
        last = len(answers) - 1
        drawn_by = request.prompt_hash if self.noise else ""
        scores = {
            letter: self.quality(material, text)
            + self.position * (1 - place / last)
            + self.length * len(text) / 100
            + (self.noise * _gumbel(self.seed, drawn_by, letter) if self.noise else 0.0)
            for place, (letter, text) in enumerate(answers.items())
        }
        return make_verdict(request, scores)


def scripted_judge(
    preferences: Preferences, *, name: str = "scripted judge", rules: str | None = None
) -> ScriptedModel:
    """A judge with known preferences, for tests and simulations.

    Args:
        preferences: What it likes.
        name: What it is called in messages and records.
        rules: Names what `Preferences.quality` does, so that another function does not find its replies in a journal;
            by default the function's own name, which says nothing of values that it closes over.
    """
    quality = preferences.quality
    told = rules or f"{quality.__module__}.{quality.__qualname__}"
    numbers = {key: value for key, value in vars(preferences).items() if key != "quality"}
    return ScriptedModel(preferences.verdict, name=name, rules_hash=hash_json([told, numbers]))


def outside(request: Request) -> str:
    """All that a judge's prompt says outside of its fences."""
    prompt = request.messages[-1].content
    opening = _FENCE_LINE.search(prompt)
    assert opening is not None
    mark = opening.group(1)
    for name, text in read_fences(prompt).items():
        prompt = prompt.replace(f"<<<{mark} {name}>>>\n{text}\n<<<{mark} end of {name}>>>", "", 1)
    return prompt


def _gumbel(*parts: object) -> float:
    """A Gumbel draw, by content."""
    drawn = hashlib.sha256(json.dumps([str(part) for part in ("noise", *parts)]).encode()).digest()
    return -math.log(-math.log((int.from_bytes(drawn[:7], "big") + 0.5) / 2**56))
