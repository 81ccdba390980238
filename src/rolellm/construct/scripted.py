"""Answers by rules to the prompts of all three stages: for demos, notebooks and tests, offline and the same each time.

It is no language model and knows nothing: it quotes what stands in the prompt. What it makes shows that the stages work
together; it shows nothing about how good a real model's data would be.

::

    with Client(folder, [scripted_model()]) as client:
        ...
"""

from __future__ import annotations

import hashlib
import re
from importlib import resources
from typing import Final

from rolellm.construct.context_instruct.words import STOP_WORDS
from rolellm.construct.scripted_pairs import scripted_pairs
from rolellm.construct.scripted_profile import scripted_profile
from rolellm.fingerprint import hash_json
from rolellm.llm.model import Price, Request
from rolellm.llm.scripted import ScriptedModel
from rolellm.llm.tokens import TokenCounter
from rolellm.records import Language
from rolellm.text import HAN, chinese_words

_SENTENCE: Final = re.compile(r"[^.!?…。！？]+[.!?…。！？]+[\"'”’」』）)]*")
_FILES: Final = (
    "scripted.py",
    "scripted_pairs.py",
    "scripted_profile.py",
    "context_instruct/words.py",
)


def scripted_model(*, concurrency: int = 8, price: Price | None = None) -> ScriptedModel:
    """The model that answers so; in settings files the rules ``quotes``.

    Args:
        concurrency: How many calls it takes at once.
        price: What to pretend that its tokens cost.
    """
    return ScriptedModel(
        scripted_answers,
        name="quotes",
        rules_hash=scripted_hash(),
        concurrency=concurrency,
        price=price,
        count=TokenCounter().count,
    )


def scripted_hash() -> str:
    """SHA-256 over the rules' source: other rules do not find the replies of these."""
    folder = resources.files("rolellm.construct")
    return hash_json([folder.joinpath(name).read_text(encoding="utf-8") for name in _FILES])


def scripted_answers(request: Request) -> str:
    """The reply to a request of a stage, told by its tag: ``instruct/…``, ``profile/…`` or ``respond/…``.

    Raises:
        ValueError: For any other request.
    """
    stage = request.tag.partition("/")[0]
    if stage == "instruct":
        return scripted_pairs(request)
    if stage == "profile":
        return scripted_profile(request)
    if stage == "respond":
        return _reply(request)
    raise ValueError(f"these rules answer the stages of making a role; the tag {request.tag!r} is of none of them")


def _draw(text: str, among: int) -> int:
    return int(hashlib.sha256(text.encode("utf-8", "replace")).hexdigest(), 16) % among


def _reply(request: Request) -> str:
    """A sentence about the question's words, and one of the role's own lines out of the prompt."""
    question = request.messages[-1].content
    role = request.tag.partition("/")[2].rpartition("/")[0]
    chinese = len(HAN.findall(question)) * 4 > len(question)
    lines = [message.content for message in request.messages if message.role == "assistant"]
    marks = tuple(f"{role}{colon}" for colon in (":", "："))
    for text in question.splitlines():
        if text.startswith(marks):
            lines.append(text[len(role) + 1 :].strip())
    if lines:
        # Demonstrations as text stand before the question, which then ends the turn.
        question = question.rsplit("\n\n", 1)[-1]
    described = request.messages[0].content
    sentences = [item.strip() for line in lines for item in _SENTENCE.findall(line)]
    sentences += re.findall(r"[\"“]([^\"“”]+[.!?。！？])[\"”]", described)
    own = sentences or ["那是自然。" if chinese else "So it is."]
    pick = _draw(f"{question}/{request.repeat}", len(own))
    words = _words_of(question, chinese)
    if chinese:
        return f"说到{'、'.join(words)}，{own[pick]}" if words else own[pick]
    return f"{' and '.join(words).capitalize()}? {own[pick]}" if words else own[pick]


def _words_of(question: str, chinese: bool) -> list[str]:
    """The longest words of a question, in their order, three at most."""
    language: Language = "zh" if chinese else "en"
    cut = chinese_words()(question) if chinese else re.findall(r"[a-z]{4,}", question.casefold())
    words = [word for word in dict.fromkeys(cut) if word not in STOP_WORDS[language] and len(word) > 1]
    longest = sorted(words, key=lambda word: -len(word))[:3]
    return [word for word in words if word in longest]
