"""Answers by rules to the prompts of all three stages: for demos, notebooks and tests, offline and repeatable.

This is not a language model and knows nothing: it quotes its prompt. What it makes shows that the stages work
together, not how good a real model's data would be.

::

    with Client(folder, [scripted_model()]) as client:
        ...
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

from rolellm.characters.scripts.parse import detect_language
from rolellm.core.errors import ModelError
from rolellm.core.fingerprint import hash_json
from rolellm.core.records import Language
from rolellm.core.text import fold
from rolellm.llm.llm import LLM
from rolellm.llm.model import Price, Request
from rolellm.llm.scripted import ScriptedModel, make_rule_model
from rolellm.making.instruct.candidates import WORDS
from rolellm.making.instruct.grounding import extract_content_words
from rolellm.making.instruct.prompts import list_focuses

_SENTENCE: Final = re.compile(r"[^.!?…。！？\n]+[.!?…。！？]+")
_COLON: Final = re.compile(r"[:：] ?")
_MATERIAL: Final = re.compile(r"<<<\n(.*)\n>>>", re.DOTALL)
_QUOTED: Final = re.compile(r"[\"“]([^\"“”]+)[\"”]")
_WHO: Final = re.compile(r"^(?:Who is (.+)\? Write the portrait of \1 now|(.+)是谁？现在写出\2的小传)", re.MULTILINE)
_LOUD: Final = re.compile(r"^(\d+)\. .+[!！] ?[(（]", re.MULTILINE)
#: What is said, by language, around what is quoted.
_SAID: Final[dict[Language, dict[str, str]]] = {
    "en": {
        "questions": '{role}, what comes to your mind at the word "{word}"?\n'
        '{role}, why would anybody speak of "{word}" to you?',
        "answers": 'At "{word}" I say: {sentence}\nOf "{word}" I say: {sentence}',
        "reason": "It quotes the material.",
        "source": "According to the script, what do you know?",
        "machine": "As an AI language model, I was not there.",
        "untrue": " Old Zebulon counted 973 of them.",
        "third": "A person with a will of their own and an answer for everyone. They want the last word, and fear to "
        "lose face before those who look on. Whoever gets in their way hears of it at once; whoever is kind to them "
        "is not forgotten, though thanks are seldom said aloud. They talk as they think, quickly and to the point, "
        "and end where others would begin.",
        "they_say": " What they say most often sounds like this: ",
        "second": "You are a person with a will of your own and an answer for everyone. You want the last word, and "
        "fear to lose face before those who look on. Whoever gets in your way hears of it at once; whoever is kind "
        "to you is not forgotten, though thanks are seldom said aloud. You talk as you think, quickly and to the "
        "point, and end where others would begin.",
        "you_say": " What you say most often sounds like this: ",
        "unknown": "Not known. Rules answer here, not a language model; they know only what is in their prompt.",
        "reply": "{word}? {sentence}",
        "default": "So it is.",
    },
    "zh": {
        "questions": "{role}，提起“{word}”，你想到什么？\n{role}，为什么有人同你说“{word}”这两个字？",
        "answers": "提起{word}，我说：{sentence}\n说到{word}，我说：{sentence}",
        "reason": "引自材料。",
        "source": "根据剧本，你知道什么？",
        "machine": "我是一个语言模型。",
        "untrue": "诸葛瑾数过，共有九百七十三个。",
        "third": "一位凡事自有主张、对谁都有话可答、从不让人占了上风的人。他遇事先要问个明白，认准了便不肯回头；最怕"
        "当众失了脸面，也最见不得旁人受屈。别人待他好，他嘴上不说，心里都记着；别人与他作对，当面就要讨个说法。他说话干脆，不绕弯子，往往三言"
        "两语便见了分晓，旁人还没有想好怎么接话，那边已经说完了。",
        "they_say": "他平日里常说：",
        "second": "你是一位凡事自有主张、对谁都有话可答、从不让人占了上风的人。你遇事先要问个明白，认准了便不肯回头；最"
        "怕当众失了脸面，也最见不得旁人受屈。别人待你好，你嘴上不说，心里都记着；别人与你作对，当面就要讨个说法。你说话干脆，不绕弯子，往往"
        "三言两语便见了分晓，旁人还没有想好怎么接话，那边已经说完了。",
        "you_say": "你平日里常说：",
        "unknown": "不知道。这里回答的是几条规则，不是语言模型；除题面所写，一概不知。",
        "reply": "说到{word}，{sentence}",
        "default": "那是自然。",
    },
}


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
    stage, _, step = request.tag.partition("/")
    rule = _RULES.get(f"{stage}/{step.partition('/')[0]}" if stage == "profile" else stage)
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
    phrases = _SAID[language]
    earlier = {fold(line.removeprefix("- ")) for line in task.splitlines()}
    answers = {
        question: reply.format_map({"word": word, "sentence": sentence})
        for line in material.splitlines()
        for sentence in _split_sentences(_COLON.split(line, maxsplit=1)[-1] if match else line)
        for word in extract_content_words(sentence, language)
        for form, reply in zip(phrases["questions"].splitlines(), phrases["answers"].splitlines(), strict=True)
        if fold(question := form.format_map({"role": role, "word": word})) not in earlier
    }
    questions = sorted(answers, key=_hash_to_number)
    count = int(re.findall(r"\d+", task)[0])
    # Requests of one round differ in their focus; each starts elsewhere, so that they bring different pairs.
    about = [focus in task for focus in (*list_focuses(language, "profile"), *list_focuses(language, "script"))]
    start = (about.index(True) + request.repeat) * count % max(len(questions), 1)
    chosen = (questions[start:] + questions[:start])[:count]
    return json.dumps(
        {"pairs": [_make_pair(question, answers[question], language) for question in chosen]}, ensure_ascii=False
    )


def _make_pair(question: str, answer: str, language: Language) -> dict[str, Any]:
    """Make a pair; every twelfth has something wrong with it, so that each filter has something to do."""
    phrases, level = _SAID[language], WORDS[language]
    number = _hash_to_number(question)
    complete, factual = level["high"], level["medium" if number % 5 == 1 else "high"]
    match number % 60:
        case 0:
            complete = level["low"]
        case 12:
            question = phrases["source"]
        case 24:
            answer = phrases["machine"]
        case 36:
            answer += phrases["untrue"]
        case 48:
            answer = ""
    ratings = ({"level": rating, "reason": phrases["reason"]} for rating in (complete, factual))
    return dict(zip(("question", "answer", "completeness", "factualness"), (question, answer, *ratings), strict=True))


def _describe_in_third_person(_: Request, prompt: str, language: Language) -> str:
    """Quote what the person says in the excerpts, without the person's name."""
    speakers = _WHO.findall(prompt)
    role = max(speakers[-1]) if speakers else ""
    parts = {part.casefold() for part in re.findall(r"\w{2,}", role)}
    fit = [
        text
        for line in _find_lines(role, prompt)
        for text in _split_sentences(line)
        if 8 < len(text) < 60 and not re.search(r"[\"“”]", text) and not any(part in text.casefold() for part in parts)
    ]
    # No more, or it would be the material copied.
    quoted = list(dict.fromkeys(fit))[:3]
    phrases = _SAID[language]
    return phrases["third"] + (phrases["they_say"] + " ".join(f"“{text}”" for text in quoted) if quoted else "")


def _convert_to_second_person(_: Request, prompt: str, language: Language) -> str:
    match = _MATERIAL.search(prompt)
    text, phrases = match[1] if match else "", _SAID[language]
    return text.replace(phrases["third"], phrases["second"]).replace(phrases["they_say"], phrases["you_say"])


def _pick_catchphrases(_: Request, prompt: str, language: Language) -> str:
    """Choose the first exclamations."""
    return json.dumps(
        {"chosen": [int(number) for number in _LOUD.findall(prompt)[: int(re.findall(r"\d+", prompt)[-1])]]}
    )


def _make_reply(request: Request, prompt: str, language: Language) -> str:
    """Reply with the question's longest word, and a sentence of the role's own out of the prompt."""
    role = request.tag.partition("/")[2].rpartition("/")[0]
    excerpt_lines = _find_lines(role, prompt)
    lines = [message.content for message in request.messages if message.role == "assistant"] + excerpt_lines
    question = prompt.rpartition("\n\n")[2] if excerpt_lines else prompt
    own = [sentence for line in lines for sentence in _split_sentences(line)]
    own = own or _QUOTED.findall(request.messages[0].content) or [_SAID[language]["default"]]
    sentence = own[_hash_to_number(f"{question}/{request.repeat}") % len(own)]
    word = max(extract_content_words(question, language), key=len, default="").capitalize()
    return _SAID[language]["reply"].format_map({"word": word, "sentence": sentence}) if word else sentence


_RULES: Final[dict[str, Callable[[Request, str, Language], str]]] = {
    "instruct": _make_pairs,
    "profile/third": _describe_in_third_person,
    "profile/second": _convert_to_second_person,
    "profile/catchphrases": _pick_catchphrases,
    "profile/knowledge": lambda _, __, language: _SAID[language]["unknown"],
    "respond": _make_reply,
}


def _find_lines(role: str, text: str) -> list[str]:
    return re.findall(rf"^{re.escape(role)}[:：](.*)", text, re.MULTILINE)


def _split_sentences(text: str) -> list[str]:
    return [sentence.strip("()（）“”\"' ") for sentence in _SENTENCE.findall(text)]


def _hash_to_number(text: str) -> int:
    return int(hash_json(text)[:8], 16)
