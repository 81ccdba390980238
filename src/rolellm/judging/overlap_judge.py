"""Judges by rules: with preferences, biases and noise that are known, or by shared words. None is a language model.

They read the fences of a judge's prompt, so they are asked as any judge is: through `rolellm.llm`, with its journal.

::

    def quality(material, answer):
        return 2.0 if "whale" in answer else 0.0

    judge = scripted_judge(Preferences(quality, position=0.5, noise=1.0))
    with Client(folder, [judge]) as client:
        ...
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Final, NamedTuple

from rolellm.core.errors import ModelError, SettingsError
from rolellm.core.fingerprint import hash_json
from rolellm.core.sanitize import label
from rolellm.core.text import HAN
from rolellm.judging.prompts import read_fenced
from rolellm.llm.model import Json, Price, Request
from rolellm.llm.scripted import ScriptedModel
from rolellm.llm.tokens import TokenCounter

# --- How much an answer shares with what a judge is shown, in words: what the judge of demos goes by


_RUN: Final = re.compile(rf"{HAN.pattern}+|(?:(?!{HAN.pattern})[^\W_])+")


def shared_words(material: Mapping[str, str], answer: str) -> float:
    """How much of an answer is in the references and the description, less what it copies of what it was given.

    Chinese counts by pairs of characters. From -2 (nothing but a copy) to 1.5.
    """
    own = _words(answer)
    if not own:
        return -2.0
    references = [_overlap(own, _words(text)) for name, text in material.items() if name.startswith("reference")]
    given = _words(f"{material.get('description', '')}\n{material.get('question', '')}")
    copied = set(zip(given, given[1:], given[2:], strict=False))
    runs = list(zip(own, own[1:], own[2:], strict=False))
    share = sum(run in copied for run in runs) / len(runs) if runs else 0.0
    return max(references, default=0.0) + _overlap(own, _words(material.get("description", ""))) / 2 - 2 * share


# A row's texts come back in every order and every list.
@functools.lru_cache(maxsize=256)
def _words(text: str) -> tuple[str, ...]:
    """Latin words in small letters, and Chinese pairs of characters, in order."""
    found: list[str] = []
    for run in _RUN.findall(text.casefold()):
        if HAN.match(run):
            found += [run[place : place + 2] for place in range(max(len(run) - 1, 1))]
        else:
            found.append(run)
    return tuple(found)


def _overlap(first: Sequence[str], second: Sequence[str]) -> float:
    """F1 of two texts' sets of words."""
    own, other = set(first), set(second)
    return 2 * len(own & other) / (len(own) + len(other)) if own and other else 0.0


# --- Judges by rules: with preferences, biases and noise that are known, or by shared words


#: How good an answer is: of the fenced texts of the prompt by their names, and the answer.
Quality = Callable[[Mapping[str, str], str], float]

_ANSWER: Final = re.compile(r"answer ([A-Z])")
_REFUSAL: Final = "I am sorry, but I cannot compare these answers."
_FENCE_LINE: Final = re.compile(r"^<<<([0-9a-f]{16}) ", re.MULTILINE)


class Seen(NamedTuple):
    """What a judge's request shows.

    Attributes:
        material: The fenced texts that are no answers, by their names: ``question``, ``role``, ``reference 1``, ….
        answers: Letter to answer, in the order shown.
        outside: All that stands outside of fences.
    """

    material: Mapping[str, str]
    answers: Mapping[str, str]
    outside: str


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
        tie_within: Scores no further apart than this are a tie.
        malformed: The share of replies that are no verdict; drawn anew each time a request is asked.
        refused: The share of requests that it refuses, however often they are asked.
        seed: Another seed draws other noise.

    Raises:
        SettingsError: For a number that is negative where it cannot be, or a share over 1.
    """

    quality: Quality
    position: float = 0.0
    length: float = 0.0
    name: Mapping[str, float] = field(default_factory=dict)
    noise: float = 0.0
    tie_within: float = 0.0
    malformed: float = 0.0
    refused: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for setting in ("noise", "tie_within"):
            if not getattr(self, setting) >= 0:
                raise SettingsError(f"{setting} is {getattr(self, setting)}; it has to be 0 or more")
        for setting in ("malformed", "refused"):
            if not 0 <= getattr(self, setting) <= 1:
                raise SettingsError(f"{setting} is {getattr(self, setting)}; it has to be a share from 0 to 1")

    def scores(self, request: Request) -> dict[str, float]:
        """The score of each answer by its letter, in the order shown.

        Raises:
            ModelError: For a request that shows no two answers.
        """
        shown = shown_in(request)
        names = _names_in(shown, self.name)
        last = len(shown.answers) - 1
        drawn_by = request.prompt_hash if self.noise else ""
        return {
            letter: self.quality(shown.material, text)
            + self.position * (1 - place / last)
            + self.length * len(text) / 100
            + self.name.get(names.get(letter, ""), 0.0)
            + (self.noise * _gumbel(self.seed, drawn_by, letter) if self.noise else 0.0)
            for place, (letter, text) in enumerate(shown.answers.items())
        }

    def verdict(self, request: Request) -> dict[str, Any]:
        """What it says of a request, in the form that the request's judge asks for.

        Raises:
            ModelError: For a request that shows no two answers.
        """
        scores = self.scores(request)
        ranks = {
            letter: 1 + sum(other > own + self.tie_within for other in scores.values())
            for letter, own in scores.items()
        }
        # A verdict of its own on each criterion that the schema names, the same on all.
        asked: Mapping[str, Any] = request.schema.schema.get("properties", {}) if request.schema else {}
        if _is_pair(request, len(scores)):
            best = [letter for letter, rank in ranks.items() if rank == 1]
            told = ", ".join(f"{letter} {score:.3f}" for letter, score in scores.items())
            whole = {"reason": f"By rule, no language model: {told}.", "better": best[0] if len(best) == 1 else "tie"}
            return whole if "better" in asked or not asked else dict.fromkeys(asked, whole)
        entry = asked["ranking"]["items"]["properties"] if "ranking" in asked else ("rank",)
        return {
            "ranking": [
                {"answer": letter, "reason": f"By rule, no language model: {scores[letter]:.3f}."}
                | {key: rank for key in entry if key not in ("answer", "reason")}
                for letter, rank in ranks.items()
            ]
        }

    def spoilt(self, request: Request, attempt: int) -> str | None:
        """A reply that is no verdict, where the draw says so."""
        if not self.malformed and not self.refused:
            return None
        if _uniform("refused", self.seed, request.prompt_hash) < self.refused:
            return _REFUSAL
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
    preferences: Preferences,
    *,
    name: str = "scripted judge",
    rules: str | None = None,
    concurrency: int = 8,
    price: Price | None = None,
) -> ScriptedJudge:
    """A judge with known preferences, for tests and simulations.

    Args:
        preferences: What it likes.
        name: What it is called in messages and records.
        rules: Names what `Preferences.quality` does, so that another function does not find its replies in a journal;
            by default the function's own name, which says nothing of values that it closes over.
        concurrency: How many calls it takes at once.
        price: What to pretend that its tokens cost.
    """
    quality = preferences.quality
    told = rules or f"{quality.__module__}.{getattr(quality, '__qualname__', type(quality).__qualname__)}"
    numbers = {key: value for key, value in vars(preferences).items() if key != "quality"}
    return ScriptedJudge(
        preferences,
        name=name,
        rules_hash=hash_json([told, {**numbers, "name": dict(preferences.name)}]),
        concurrency=concurrency,
        price=price,
    )


def words_judge(concurrency: int = 8, price: Price | None = None) -> ScriptedModel:
    """The judge of demos, in settings files the rules ``words``: it counts shared words and knows nothing.

    It prefers answers that share words with the references and the description and copies neither the question nor
    the description. A win shows that the pipeline works; it says nothing about how good an answer is.

    Args:
        concurrency: How many calls it takes at once.
        price: What to pretend that its tokens cost.
    """
    folder = resources.files("rolellm.judging")
    source = [folder.joinpath(name).read_text(encoding="utf-8") for name in ("overlap_judge.py",)]
    return ScriptedJudge(
        Preferences(shared_words, tie_within=0.005),
        name="words",
        rules_hash=hash_json(source),
        concurrency=concurrency,
        price=price,
        count=TokenCounter().count,
    )


def shown_in(request: Request) -> Seen:
    """The texts that a judge's request shows, read from its fences.

    Raises:
        ModelError: For a request that shows no two answers.
    """
    prompt = request.messages[-1].content
    fences = read_fenced(prompt)
    answers = {found.group(1): text for name, text in fences.items() if (found := _ANSWER.fullmatch(name))}
    if len(answers) < 2:
        raise ModelError(
            f"the rules `words` can only judge: {request.tag!r} does not show two answers; name another model"
        )
    material = {name: text for name, text in fences.items() if not _ANSWER.fullmatch(name)}
    return Seen(material, answers, _outside(prompt, fences))


def _outside(prompt: str, fences: Mapping[str, str]) -> str:
    opening = _FENCE_LINE.search(prompt)
    assert opening is not None, "there are fences"
    for name, text in fences.items():
        mark = opening.group(1)
        prompt = prompt.replace(f"<<<{mark} {name}>>>\n{text}\n<<<{mark} end of {name}>>>", "", 1)
    return prompt


def _names_in(shown: Seen, known: Mapping[str, float]) -> dict[str, str]:
    """Letter to system, as far as the prompt names them: ``A is RoleGPT, B is …``."""
    found = {}
    for letter in shown.answers:
        for name in known:
            told = rf"\b{letter} (?:is|是) {re.escape(label(name, 60))}(?=[,，.。\n]|$)"
            if re.search(told, shown.outside):
                found[letter] = name
    return found


def _is_pair(request: Request, answers: int) -> bool:
    if request.schema is not None and request.schema.name in ("better", "ranking"):
        return request.schema.name == "better"
    return answers == 2


def _uniform(*parts: object) -> float:
    """A number in (0, 1), drawn by content."""
    drawn = hashlib.sha256(json.dumps([str(part) for part in parts]).encode()).digest()
    return (int.from_bytes(drawn[:7], "big") + 0.5) / 2**56


def _gumbel(*parts: object) -> float:
    return -math.log(-math.log(_uniform("noise", *parts)))
