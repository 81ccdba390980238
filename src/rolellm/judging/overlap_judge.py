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
    words = _split_words(answer)
    if not words:
        return -2.0
    description = material.get("description", "")
    score = _compute_overlap(words, _split_words(description)) / 2
    overlaps = [0.0]
    for name, text in material.items():
        if name.startswith("reference"):
            overlaps.append(_compute_overlap(words, _split_words(text)))
    score += max(overlaps)
    source = _split_words(f"{description}\n{material.get('question', '')}")
    source_runs = set(_list_trigrams(source))
    runs = _list_trigrams(words)
    if runs:
        copied = [run for run in runs if run in source_runs]
        score -= 2 * len(copied) / len(runs)
    return score


def _list_trigrams(words: Sequence[str]) -> list[tuple[str, str, str]]:
    return list(zip(words, words[1:], words[2:], strict=False))


# A row's texts come back in every order and every list.
@functools.lru_cache(maxsize=256)
def _split_words(text: str) -> tuple[str, ...]:
    """Split a text into Latin words in small letters, and Chinese pairs of characters, in order."""
    words: list[str] = []
    for run in _RUN.findall(text.casefold()):
        if HAN.match(run):
            starts = range(max(len(run) - 1, 1))
            words += [run[start : start + 2] for start in starts]
        else:
            words.append(run)
    return tuple(words)


def _compute_overlap(first: Sequence[str], second: Sequence[str]) -> float:
    """Compute F1 of two texts' sets of words."""
    first_words, second_words = set(first), set(second)
    if not first_words or not second_words:
        return 0.0
    shared = first_words & second_words
    return 2 * len(shared) / (len(first_words) + len(second_words))


def make_words_judge(concurrency: int = 8, price: Price | None = None) -> ScriptedModel:
    """Make the judge of demos, in settings files the rules ``words``: it counts shared words and knows nothing.

    It prefers answers that share words with the references and the description and copies neither the question nor
    the description. A win shows that the pipeline works; it says nothing about how good an answer is.

    Args:
        concurrency: How many calls it takes at once.
        price: What to pretend that its tokens cost.
    """
    return make_rule_model(judge_by_words, "words", concurrency, price)


def judge_by_words(request: Request) -> dict[str, Any]:
    """Return the verdict on a request, by how much each answer shares with the material."""
    material, answers = read_shown_texts(request)
    scores = {letter: measure_shared_words(material, text) for letter, text in answers.items()}
    return make_verdict(request, scores, 0.005)


def read_shown_texts(request: Request) -> tuple[dict[str, str], dict[str, str]]:
    """Read what a judge's request shows: the material by its names, and the answers by their letters.

    Raises:
        ModelError: For a request that does not show two answers.
    """
    material: dict[str, str] = {}
    answers: dict[str, str] = {}
    for name, text in read_fences(request.messages[-1].content).items():
        if re.fullmatch("answer [A-Z]", name):
            answers[name[-1]] = text
        else:
            material[name] = text
    if len(answers) < 2:
        problem = f"{request.tag!r} does not show two answers; name another model"
        raise ModelError(f"the rules `words` can only judge: {problem}")
    return material, answers


def make_verdict(request: Request, scores: Mapping[str, float], tie_within: float = 0.0) -> dict[str, Any]:
    """Make a verdict by scores, higher is better, in the form that the request's judge asks for.

    Args:
        request: Whose schema names the criteria; the verdict is the same on all.
        scores: The score of each answer by its letter.
        tie_within: Scores no further apart than this are a tie.
    """
    ranks: dict[str, int] = {}
    for letter, own in scores.items():
        better = [rival for rival in scores.values() if rival > own + tie_within]
        ranks[letter] = 1 + len(better)
    properties: Mapping[str, Any] = {}
    if request.schema is not None:
        properties = request.schema.schema.get("properties", {})
    if "ranking" in properties:
        fields = properties["ranking"]["items"]["properties"]
        entries = []
        for letter, rank in ranks.items():
            entry: dict[str, Any] = dict.fromkeys(fields, rank)
            reason = f"By rule, no language model: {scores[letter]:.3f}."
            entries.append({**entry, "answer": letter, "reason": reason})
        return {"ranking": entries}
    best = [letter for letter, rank in ranks.items() if rank == 1]
    reasons = ", ".join(f"{letter} {score:.3f}" for letter, score in scores.items())
    verdict = {"reason": f"By rule, no language model: {reasons}.", "better": "tie"}
    if len(best) == 1:
        verdict["better"] = best[0]
    if "better" in properties or not properties:
        return verdict
    return dict.fromkeys(properties, verdict)
