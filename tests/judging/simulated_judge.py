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
from dataclasses import dataclass, field
from typing import Any

from rolellm.core.fingerprint import hash_json
from rolellm.core.sanitize import label
from rolellm.judging.overlap_judge import make_verdict, read_shown_texts
from rolellm.llm.model import Json, Request
from rolellm.llm.scripted import ScriptedModel
from rolellm.models.prompts.fences import read_fences

#: How good an answer is: of the fenced texts of the prompt by their names, and the answer.
Quality = Callable[[Mapping[str, str], str], float]

_FENCE_LINE = re.compile(r"^<<<([0-9a-f]{16}) ", re.MULTILINE)


@dataclass(frozen=True)
class Preferences:
    """What a scripted judge likes. Each answer gets a score, and the higher one wins.

    A score is ``quality + position·(1 at the first place, falling to 0 at the last) + length·(characters / 100) +
    name + noise·(a Gumbel draw)``. So an answer better by d wins a pair with the probability ``1 / (1 + exp(-d /
    noise))``, lists follow Plackett and Luce, and strengths come out in units of `noise`.

    Attributes:
        quality: How good an answer is; must not depend on its place.
        position: What the first place earns.
        length: What a hundred characters earn.
        name: What a system's name earns, where it is shown.
        noise: 0 for none. Drawn from the prompt's text, so that the same request gets the same verdict.
        malformed: The share of replies that are no verdict; drawn anew each time a request is asked.
        seed: Another seed draws other noise.
    """

    quality: Quality
    position: float = 0.0
    length: float = 0.0
    name: Mapping[str, float] = field(default_factory=dict)
    noise: float = 0.0
    malformed: float = 0.0
    seed: int = 0

    def scores(self, request: Request) -> dict[str, float]:
        """The score of each answer by its letter, in the order shown.

        Raises:
            ModelError: For a request that shows no two answers.
        """
        material, answers = read_shown_texts(request)
        names = _names_in(request, answers, self.name)
        last = len(answers) - 1
        drawn_by = request.prompt_hash if self.noise else ""
        return {
            letter: self.quality(material, text)
            + self.position * (1 - place / last)
            + self.length * len(text) / 100
            + self.name.get(names.get(letter, ""), 0.0)
            + (self.noise * _gumbel(self.seed, drawn_by, letter) if self.noise else 0.0)
            for place, (letter, text) in enumerate(answers.items())
        }

    def verdict(self, request: Request) -> dict[str, Any]:
        """What it says of a request, in the form that the request's judge asks for.

        Raises:
            ModelError: For a request that shows no two answers.
        """
        return make_verdict(request, self.scores(request))

    def spoilt(self, request: Request, attempt: int) -> str | None:
        """A reply that is no verdict, where the draw says so."""
        if not self.malformed:
            return None
        drawn = _uniform("malformed", self.seed, request.prompt_hash, attempt)
        if drawn >= self.malformed:
            return None
        whole = json.dumps(self.verdict(request), ensure_ascii=False)
        kinds = [whole[: len(whole) // 2], "Answer A is better.", '{"ranking": [], "better": "Z"}', "[[A]]", "{}"]
        return kinds[int(drawn / self.malformed * len(kinds))]


class ScriptedJudge(ScriptedModel):
    """Judges by preferences; see `scripted_judge`."""

    def __init__(self, preferences: Preferences, **settings: Any) -> None:
        super().__init__(preferences.verdict, **settings)
        self.preferences = preferences

    async def call(self, request: Request, attempt: int = 1) -> Json:
        """Judge, or spoil the reply."""
        spoilt = self.preferences.spoilt(request, attempt)
        raw = await super().call(request, attempt)
        return raw if spoilt is None else {**raw, "text": spoilt}


def scripted_judge(
    preferences: Preferences, *, name: str = "scripted judge", rules: str | None = None
) -> ScriptedJudge:
    """A judge with known preferences, for tests and simulations.

    Args:
        preferences: What it likes.
        name: What it is called in messages and records.
        rules: Names what `Preferences.quality` does, so that another function does not find its replies in a journal;
            by default the function's own name, which says nothing of values that it closes over.
    """
    quality = preferences.quality
    told = rules or f"{quality.__module__}.{getattr(quality, '__qualname__', type(quality).__qualname__)}"
    numbers = {key: value for key, value in vars(preferences).items() if key != "quality"}
    rules_hash = hash_json([told, {**numbers, "name": dict(preferences.name)}])
    return ScriptedJudge(preferences, name=name, rules_hash=rules_hash, concurrency=8)


def outside(request: Request) -> str:
    """All that a judge's prompt says outside of its fences."""
    prompt = request.messages[-1].content
    opening = _FENCE_LINE.search(prompt)
    assert opening is not None
    mark = opening.group(1)
    for name, text in read_fences(prompt).items():
        prompt = prompt.replace(f"<<<{mark} {name}>>>\n{text}\n<<<{mark} end of {name}>>>", "", 1)
    return prompt


def _names_in(request: Request, answers: Mapping[str, str], known: Mapping[str, float]) -> dict[str, str]:
    """Letter to system, as far as the prompt names them outside of its fences: ``A is RoleGPT, B is …``."""
    prompt = outside(request)
    return {
        letter: name
        for letter in answers
        for name in known
        if re.search(rf"\b{letter} (?:is|是) {re.escape(label(name, 60))}(?=[,，.。\n]|$)", prompt)
    }


def _uniform(*parts: object) -> float:
    """A number in (0, 1), drawn by content."""
    drawn = hashlib.sha256(json.dumps([str(part) for part in parts]).encode()).digest()
    return (int.from_bytes(drawn[:7], "big") + 0.5) / 2**56


def _gumbel(*parts: object) -> float:
    return -math.log(-math.log(_uniform("noise", *parts)))
