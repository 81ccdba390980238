"""Answers by rules to the prompts of all three stages: for demos, notebooks and tests, offline and repeatable.

This is not a language model and knows nothing: it quotes its prompt. What it makes shows that the stages work
together, not how good a real model's data would be.

::

    with Client(folder, [scripted_model()]) as client:
        ...
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from typing import Any, Final

from rolellm.characters.scripts.parse import detect_language
from rolellm.core.errors import ModelError
from rolellm.core.fingerprint import hash_json
from rolellm.core.records import Language
from rolellm.core.settings import read_packaged_yaml
from rolellm.core.text import fold
from rolellm.llm.llm import LLM
from rolellm.llm.model import Price, Request
from rolellm.llm.scripted import ScriptedModel, make_rule_model
from rolellm.making.content_words import extract_content_words
from rolellm.making.instruct.candidates import WORDS, list_focuses

_SENTENCE: Final = re.compile(r"[^.!?…。！？\n]+[.!?…。！？]+")
_COLON: Final = re.compile(r"[:：] ?")
_MATERIAL: Final = re.compile(r"<<<\n(.*)\n>>>", re.DOTALL)
_QUOTED: Final = re.compile(r"[\"“]([^\"“”]+)[\"”]")
_WHO: Final = re.compile(r"^(?:Who is (.+)\? Write the portrait of \1 now|(.+)是谁？现在写出\2的小传)", re.MULTILINE)
_LOUD: Final = re.compile(r"^(\d+)\. .+[!！] ?[(（]", re.MULTILINE)


@functools.cache
def _load_sayings(language: Language) -> dict[str, str]:
    sayings: dict[Language, dict[str, str]] = read_packaged_yaml("rolellm.making", "scripted.yaml")
    return sayings[language]


def scripted_model(*, concurrency: int = 8, price: Price | None = None) -> ScriptedModel:
    """Return the model that answers by these rules; in settings files, ``rules: quotes``.

    Args:
        concurrency: How many calls it takes at once.
        price: What to pretend that its tokens cost.
    """
    return make_rule_model(generate_scripted_reply, "quotes", concurrency, price)


def load_llm(source: Any) -> LLM:
    """Return the language model that a user names, `scripted_model` among them; see `rolellm.llm.llm.LLM.of`."""
    return LLM.of(source, {"quotes": scripted_model})


def generate_scripted_reply(request: Request) -> str:
    """Answer a request of a stage, known by its tag: ``instruct/…``, ``profile/…`` or ``respond/…``.

    Raises:
        ModelError: For any other request.
    """
    stage = request.tag.partition("/")[0]
    if stage == "profile":
        stage = request.tag
    rule = _RULES.get(stage)
    prompt = request.messages[-1].content
    if rule is None or (stage == "instruct" and "\n\n" not in prompt):
        raise ModelError(
            f"the rules `quotes` cannot answer {request.tag or prompt[:60]!r}: they know only the prompts of "
            "`rolellm role build`, `rolellm instruct` and `rolellm respond`; name another model"
        )
    return rule(request, prompt, detect_language(prompt))


def _make_pairs(request: Request, prompt: str, language: Language) -> str:
    """Ask new questions about the words of the material, answered by the sentences they are in."""
    head, _, task = prompt.rpartition("\n\n")
    role, described = (_COLON.split(line, maxsplit=1)[1] for line in head.split("\n", 1))
    match = _MATERIAL.search(head)
    material = match[1] if match else described.rpartition("\n\n")[0]
    phrases = _load_sayings(language)
    earlier = {fold(line.removeprefix("- ")) for line in task.splitlines()}
    forms = list(zip(phrases["questions"].splitlines(), phrases["answers"].splitlines(), strict=True))
    answers: dict[str, str] = {}
    for line in material.splitlines():
        spoken = line
        if match:
            spoken = _COLON.split(line, maxsplit=1)[-1]
        for sentence in _split_sentences(spoken):
            for word in extract_content_words(sentence, language):
                for form, reply in forms:
                    question = form.format_map({"role": role, "word": word})
                    if fold(question) not in earlier:
                        answers[question] = reply.format_map({"word": word, "sentence": sentence})
    questions = sorted(answers, key=_hash_to_number)
    count = int(re.findall(r"\d+", task)[0])
    # Requests of one round differ in their focus; each starts elsewhere, so that they bring different pairs.
    focuses = (*list_focuses(language, "profile"), *list_focuses(language, "script"))
    about = [focus in task for focus in focuses]
    turn = about.index(True) + request.repeat
    start = turn * count % max(len(questions), 1)
    chosen = (questions[start:] + questions[:start])[:count]
    pairs = [_make_pair(question, answers[question], language) for question in chosen]
    return json.dumps({"pairs": pairs}, ensure_ascii=False)


def _make_pair(question: str, answer: str, language: Language) -> dict[str, Any]:
    """Make a pair; every twelfth has something wrong with it, so that each filter has something to do."""
    phrases = _load_sayings(language)
    level = WORDS[language]
    number = _hash_to_number(question)
    complete = level["high"]
    factual = level["medium" if number % 5 == 1 else "high"]
    match number % 60:
        case 0:
            complete = level["low"]
        case 24:
            answer = phrases["machine"]
        case 36:
            answer = phrases["untrue"]
        case 48:
            answer = ""
    reason = phrases["reason"]
    return {
        "question": question,
        "answer": answer,
        "completeness": {"level": complete, "reason": reason},
        "factualness": {"level": factual, "reason": reason},
    }


def _describe_in_third_person(_: Request, prompt: str, language: Language) -> str:
    """Quote what the person says in the excerpts, without the person's name."""
    speakers = _WHO.findall(prompt)
    role = max(speakers[-1]) if speakers else ""
    parts = {part.casefold() for part in re.findall(r"\w{2,}", role)}
    fit = []
    for line in _find_lines(role, prompt):
        for text in _split_sentences(line):
            is_named = any(part in text.casefold() for part in parts)
            if 8 < len(text) < 60 and not re.search(r"[\"“”]", text) and not is_named:
                fit.append(text)
    # No more, or it would be the material copied.
    quoted = list(dict.fromkeys(fit))[:3]
    phrases = _load_sayings(language)
    if not quoted:
        return phrases["third"]
    quotations = " ".join(f"“{text}”" for text in quoted)
    return phrases["third"] + phrases["they_say"] + quotations


def _convert_to_second_person(_: Request, prompt: str, language: Language) -> str:
    match = _MATERIAL.search(prompt)
    text = match[1] if match else ""
    phrases = _load_sayings(language)
    text = text.replace(phrases["third"], phrases["second"])
    return text.replace(phrases["they_say"], phrases["you_say"])


def _pick_catchphrases(_: Request, prompt: str, language: Language) -> str:
    """Choose the first exclamations."""
    most = int(re.findall(r"\d+", prompt)[-1])
    numbers = map(int, _LOUD.findall(prompt)[:most])
    return json.dumps({"chosen": list(numbers)})


def _make_reply(request: Request, prompt: str, language: Language) -> str:
    """Reply with the question's longest word, and a sentence of the role's own out of the prompt."""
    role = request.tag.partition("/")[2].rpartition("/")[0]
    excerpt_lines = _find_lines(role, prompt)
    lines = [message.content for message in request.messages if message.role == "assistant"] + excerpt_lines
    question = prompt.rpartition("\n\n")[2] if excerpt_lines else prompt
    own = [sentence for line in lines for sentence in _split_sentences(line)]
    own = own or _QUOTED.findall(request.messages[0].content) or [_load_sayings(language)["default"]]
    sentence = own[_hash_to_number(f"{question}/{request.repeat}") % len(own)]
    word = max(extract_content_words(question, language), key=len, default="").capitalize()
    if not word:
        return sentence
    return _load_sayings(language)["reply"].format_map({"word": word, "sentence": sentence})


_RULES: Final[dict[str, Callable[[Request, str, Language], str]]] = {
    "instruct": _make_pairs,
    "profile/third": _describe_in_third_person,
    "profile/second": _convert_to_second_person,
    "profile/catchphrases": _pick_catchphrases,
    "respond": _make_reply,
}


def _find_lines(role: str, text: str) -> list[str]:
    return re.findall(rf"^{re.escape(role)}[:：](.*)", text, re.MULTILINE)


def _split_sentences(text: str) -> list[str]:
    return [sentence.strip("()（）“”\"' ") for sentence in _SENTENCE.findall(text)]


def _hash_to_number(text: str) -> int:
    return int(hash_json(text)[:8], 16)
