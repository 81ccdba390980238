"""A judge by rules, for demos and offline runs: it counts shared words. It is not a language model.

It reads the fences of a judge's prompt, so it is asked as any judge is: through `rolellm.llm`, with its journal.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rolellm.core.errors import ModelError
from rolellm.core.fingerprint import hash_json
from rolellm.core.text import HAN
from rolellm.judging.prompts import read_fenced
from rolellm.llm.model import Price, Request
from rolellm.llm.scripted import ScriptedModel
from rolellm.llm.tokens import TokenCounter

_RUN = re.compile(rf"{HAN.pattern}+|(?:(?!{HAN.pattern})[^\W_])+")


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


def words_judge(concurrency: int = 8, price: Price | None = None) -> ScriptedModel:
    """The judge of demos, in settings files the rules ``words``: it counts shared words and knows nothing.

    It prefers answers that share words with the references and the description and copies neither the question nor
    the description. A win shows that the pipeline works; it says nothing about how good an answer is.

    Args:
        concurrency: How many calls it takes at once.
        price: What to pretend that its tokens cost.
    """
    return ScriptedModel(
        by_shared_words,
        name="words",
        rules_hash=hash_json([inspect.getsource(sys.modules[__name__])]),
        concurrency=concurrency,
        price=price or Price(),
        count=TokenCounter().count,
    )


def by_shared_words(request: Request) -> dict[str, Any]:
    """The verdict on a request, by how much each answer shares with what is known."""
    material, answers = shown_in(request)
    return verdict(request, {letter: shared_words(material, text) for letter, text in answers.items()}, 0.005)


def shown_in(request: Request) -> tuple[dict[str, str], dict[str, str]]:
    """What a judge's request shows, read from its fences: other texts by their names, and answers by their letters.

    Raises:
        ModelError: For a request that does not show two answers.
    """
    fences = read_fenced(request.messages[-1].content)
    answers = {name[-1]: text for name, text in fences.items() if re.fullmatch("answer [A-Z]", name)}
    if len(answers) < 2:
        raise ModelError(
            f"the rules `words` can only judge: {request.tag!r} does not show two answers; name another model"
        )
    return {name: text for name, text in fences.items() if not name.startswith("answer ")}, answers


def verdict(request: Request, scores: Mapping[str, float], tie_within: float = 0.0) -> dict[str, Any]:
    """A verdict by scores, higher is better, in the form that the request's judge asks for.

    Args:
        request: Whose schema names the criteria; the verdict is the same on all.
        scores: The score of each answer by its letter.
        tie_within: Scores no further apart than this are a tie.
    """
    ranks = {letter: 1 + sum(other > own + tie_within for other in scores.values()) for letter, own in scores.items()}
    asked: Mapping[str, Any] = request.schema.schema.get("properties", {}) if request.schema else {}
    if "ranking" not in asked and (asked or len(scores) == 2):
        best = [letter for letter, rank in ranks.items() if rank == 1]
        told = ", ".join(f"{letter} {score:.3f}" for letter, score in scores.items())
        whole = {"reason": f"By rule, no language model: {told}.", "better": best[0] if len(best) == 1 else "tie"}
        return whole if "better" in asked or not asked else dict.fromkeys(asked, whole)
    criteria = asked["ranking"]["items"]["properties"] if "ranking" in asked else ("rank",)
    return {
        "ranking": [
            {"answer": letter, "reason": f"By rule, no language model: {scores[letter]:.3f}."}
            | {key: rank for key in criteria if key not in ("answer", "reason")}
            for letter, rank in ranks.items()
        ]
    }
