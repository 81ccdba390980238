"""A judge by rules, for demos and offline runs: it counts shared words. It is not a language model.

It reads the fences of a judge's prompt, so it is asked as any judge is: through `rolellm.llm`, with its journal.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rolellm.core.errors import ModelError
from rolellm.core.text import HAN
from rolellm.llm.model import Price, Request
from rolellm.llm.scripted import ScriptedModel, make_rule_model
from rolellm.models.prompts.fences import read_fences

_RUN = re.compile(rf"{HAN.pattern}+|(?:(?!{HAN.pattern})[^\W_])+")


def measure_shared_words(material: Mapping[str, str], answer: str) -> float:
    """Measure how much of an answer is in the references and the description, less what it copies of what it was given.

    Chinese counts by pairs of characters. From -2 (nothing but a copy) to 1.5.
    """
    own = _split_words(answer)
    if not own:
        return -2.0
    references = [
        _compute_overlap(own, _split_words(text)) for name, text in material.items() if name.startswith("reference")
    ]
    source = _split_words(f"{material.get('description', '')}\n{material.get('question', '')}")
    copied = set(zip(source, source[1:], source[2:], strict=False))
    runs = list(zip(own, own[1:], own[2:], strict=False))
    share = sum(run in copied for run in runs) / len(runs) if runs else 0.0
    return (
        max(references, default=0.0)
        + _compute_overlap(own, _split_words(material.get("description", ""))) / 2
        - 2 * share
    )


# A row's texts come back in every order and every list.
@functools.lru_cache(maxsize=256)
def _split_words(text: str) -> tuple[str, ...]:
    """Latin words in small letters, and Chinese pairs of characters, in order."""
    words: list[str] = []
    for run in _RUN.findall(text.casefold()):
        if HAN.match(run):
            words += [run[start : start + 2] for start in range(max(len(run) - 1, 1))]
        else:
            words.append(run)
    return tuple(words)


def _compute_overlap(first: Sequence[str], second: Sequence[str]) -> float:
    """F1 of two texts' sets of words."""
    first_words, second_words = set(first), set(second)
    return (
        2 * len(first_words & second_words) / (len(first_words) + len(second_words))
        if first_words and second_words
        else 0.0
    )


def make_words_judge(concurrency: int = 8, price: Price | None = None) -> ScriptedModel:
    """The judge of demos, in settings files the rules ``words``: it counts shared words and knows nothing.

    It prefers answers that share words with the references and the description and copies neither the question nor
    the description. A win shows that the pipeline works; it says nothing about how good an answer is.

    Args:
        concurrency: How many calls it takes at once.
        price: What to pretend that its tokens cost.
    """
    return make_rule_model(judge_by_words, "words", concurrency, price)


def judge_by_words(request: Request) -> dict[str, Any]:
    """The verdict on a request, by how much each answer shares with what is known."""
    material, answers = read_shown_texts(request)
    scores = {letter: measure_shared_words(material, text) for letter, text in answers.items()}
    return make_verdict(request, scores, 0.005)


def read_shown_texts(request: Request) -> tuple[dict[str, str], dict[str, str]]:
    """Read what a judge's request shows from its fences: other texts by their names, and answers by their letters.

    Raises:
        ModelError: For a request that does not show two answers.
    """
    fences = read_fences(request.messages[-1].content)
    answers = {name[-1]: text for name, text in fences.items() if re.fullmatch("answer [A-Z]", name)}
    if len(answers) < 2:
        raise ModelError(
            f"the rules `words` can only judge: {request.tag!r} does not show two answers; name another model"
        )
    return {name: text for name, text in fences.items() if not name.startswith("answer ")}, answers


def make_verdict(request: Request, scores: Mapping[str, float], tie_within: float = 0.0) -> dict[str, Any]:
    """A verdict by scores, higher is better, in the form that the request's judge asks for.

    Args:
        request: Whose schema names the criteria; the verdict is the same on all.
        scores: The score of each answer by its letter.
        tie_within: Scores no further apart than this are a tie.
    """
    ranks = {letter: 1 + sum(rival > own + tie_within for rival in scores.values()) for letter, own in scores.items()}
    properties: Mapping[str, Any] = request.schema.schema.get("properties", {}) if request.schema else {}
    if "ranking" not in properties:
        best = [letter for letter, rank in ranks.items() if rank == 1]
        reasons = ", ".join(f"{letter} {score:.3f}" for letter, score in scores.items())
        better = best[0] if len(best) == 1 else "tie"
        pair_verdict = {"reason": f"By rule, no language model: {reasons}.", "better": better}
        return pair_verdict if "better" in properties or not properties else dict.fromkeys(properties, pair_verdict)
    criteria = properties["ranking"]["items"]["properties"]
    return {
        "ranking": [
            {"answer": letter, "reason": f"By rule, no language model: {scores[letter]:.3f}."}
            | {key: rank for key in criteria if key not in ("answer", "reason")}
            for letter, rank in ranks.items()
        ]
    }
