"""Judges by rules whose preferences are known, asked as any judge is."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from rolellm.judging.overlap_judge import make_verdict, read_shown_texts
from rolellm.llm.model import Request
from rolellm.llm.scripted import ScriptedModel
from rolellm.models.prompts.fences import read_fences

#: How good an answer is: of the fenced texts of the prompt by their names, and the answer.
Quality = Callable[[Mapping[str, str], str], float]


def make_quality_verdict(quality: Quality, request: Request) -> dict[str, Any]:
    """The verdict of a judge that prefers what is better, in the form that the request's judge asks for."""
    material, answers = read_shown_texts(request)
    return make_verdict(request, {letter: quality(material, text) for letter, text in answers.items()})


def scripted_judge(quality: Quality, name: str = "scripted judge") -> ScriptedModel:
    rules = f"{quality.__module__}.{quality.__qualname__}"
    return ScriptedModel(lambda request: make_quality_verdict(quality, request), name=name, rules_hash=rules)


def outside(request: Request) -> str:
    """All that a judge's prompt says outside of its fences."""
    prompt = request.messages[-1].content
    mark = re.findall(r"^<<<([0-9a-f]{16}) ", prompt, re.MULTILINE)[0]
    for name, text in read_fences(prompt).items():
        prompt = prompt.replace(f"<<<{mark} {name}>>>\n{text}\n<<<{mark} end of {name}>>>", "", 1)
    return prompt
