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
from pathlib import Path
from typing import Any, Final

from rolellm.construct.context_instruct.candidates import WORDS
from rolellm.construct.context_instruct.grounding import content_words
from rolellm.construct.context_instruct.prompts import focuses
from rolellm.construct.scripts.parse import detect_language
from rolellm.core.errors import ModelError
from rolellm.core.fingerprint import hash_file, hash_json
from rolellm.core.records import Language
from rolellm.core.text import fold
from rolellm.llm.model import Price, Request
from rolellm.llm.scripted import ScriptedModel
from rolellm.llm.tokens import TokenCounter

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
    """The model that answers by these rules; in settings files, ``rules: quotes``.

    Args:
        concurrency: How many calls it takes at once.
        price: What to pretend that its tokens cost.
    """
    return ScriptedModel(
        scripted_answers,
        name="quotes",
        rules_hash=hash_file(Path(__file__)),
        concurrency=concurrency,
        price=price or Price(),
        count=TokenCounter().count,
    )


def scripted_answers(request: Request) -> str:
    """The reply to a request of a stage, known by its tag: ``instruct/…``, ``profile/…`` or ``respond/…``.

    Raises:
        ModelError: For any other request.
    """
    stage, _, rest = request.tag.partition("/")
    rule = _RULES.get(f"{stage}/{rest.partition('/')[0]}" if stage == "profile" else stage)
    asked = request.messages[-1].content
    if rule is None or (stage == "instruct" and "\n\n" not in asked):
        raise ModelError(
            f"the rules `quotes` cannot answer {request.tag or asked[:60]!r}: they know only the prompts of "
            "`rolellm role build`, `rolellm instruct` and `rolellm respond`; name another model"
        )
    return rule(request, asked, detect_language(asked))


def _pairs(request: Request, asked: str, language: Language) -> str:
    """Questions about the words of the material that were not asked before, answered by the sentences they are in."""
    head, _, task = asked.rpartition("\n\n")
    role, described = (_COLON.split(line, maxsplit=1)[1] for line in head.split("\n", 1))
    found = _MATERIAL.search(head)
    material = found[1] if found else described.rpartition("\n\n")[0]
    said = _SAID[language]
    known = {fold(line.removeprefix("- ")) for line in task.splitlines()}
    made = {
        question: reply.format_map({"word": word, "sentence": sentence})
        for line in material.splitlines()
        for sentence in _sentences(_COLON.split(line, maxsplit=1)[-1] if found else line)
        for word in content_words(sentence, language)
        for form, reply in zip(said["questions"].splitlines(), said["answers"].splitlines(), strict=True)
        if fold(question := form.format_map({"role": role, "word": word})) not in known
    }
    drawn = sorted(made, key=_number)
    count = int(re.findall(r"\d+", task)[0])
    # Requests of one round differ in their focus; each starts elsewhere, so that they bring different pairs.
    about = [focus in task for focus in (*focuses(language, "profile"), *focuses(language, "script"))]
    start = (about.index(True) + request.repeat) * count % max(len(drawn), 1)
    chosen = (drawn[start:] + drawn[:start])[:count]
    return json.dumps({"pairs": [_pair(question, made[question], language) for question in chosen]}, ensure_ascii=False)


def _pair(question: str, answer: str, language: Language) -> dict[str, Any]:
    """The pair; every twelfth has something wrong with it, so that each filter has something to do."""
    said, level = _SAID[language], WORDS[language]
    number = _number(question)
    complete, factual = level["high"], level["medium" if number % 5 == 1 else "high"]
    match number % 60:
        case 0:
            complete = level["low"]
        case 12:
            question = said["source"]
        case 24:
            answer = said["machine"]
        case 36:
            answer += said["untrue"]
        case 48:
            answer = ""
    ratings = ({"level": one, "reason": said["reason"]} for one in (complete, factual))
    return dict(zip(("question", "answer", "completeness", "factualness"), (question, answer, *ratings), strict=True))


def _third(_: Request, asked: str, language: Language) -> str:
    """What the person says in the excerpts, without the person's name."""
    who = _WHO.findall(asked)
    role = max(who[-1]) if who else ""
    parts = {part.casefold() for part in re.findall(r"\w{2,}", role)}
    fit = [
        text
        for line in _lines_of(role, asked)
        for text in _sentences(line)
        if 8 < len(text) < 60 and not re.search(r"[\"“”]", text) and not any(part in text.casefold() for part in parts)
    ]
    # No more, or it would be the material copied.
    quoted = list(dict.fromkeys(fit))[:3]
    said = _SAID[language]
    return said["third"] + (said["they_say"] + " ".join(f"“{text}”" for text in quoted) if quoted else "")


def _second(_: Request, asked: str, language: Language) -> str:
    found = _MATERIAL.search(asked)
    text, said = found[1] if found else "", _SAID[language]
    return text.replace(said["third"], said["second"]).replace(said["they_say"], said["you_say"])


def _catchphrases(_: Request, asked: str, language: Language) -> str:
    """The first exclamations."""
    return json.dumps({"chosen": [int(one) for one in _LOUD.findall(asked)[: int(re.findall(r"\d+", asked)[-1])]]})


def _reply(request: Request, asked: str, language: Language) -> str:
    """The question's longest word, and a sentence of the role's own out of the prompt."""
    role = request.tag.partition("/")[2].rpartition("/")[0]
    shown = _lines_of(role, asked)
    lines = [message.content for message in request.messages if message.role == "assistant"] + shown
    question = asked.rpartition("\n\n")[2] if shown else asked
    own = [sentence for line in lines for sentence in _sentences(line)]
    own = own or _QUOTED.findall(request.messages[0].content) or [_SAID[language]["default"]]
    sentence = own[_number(f"{question}/{request.repeat}") % len(own)]
    word = max(content_words(question, language), key=len, default="").capitalize()
    return _SAID[language]["reply"].format_map({"word": word, "sentence": sentence}) if word else sentence


_RULES: Final[dict[str, Callable[[Request, str, Language], str]]] = {
    "instruct": _pairs,
    "profile/third": _third,
    "profile/second": _second,
    "profile/catchphrases": _catchphrases,
    "profile/knowledge": lambda _, __, language: _SAID[language]["unknown"],
    "respond": _reply,
}


def _lines_of(role: str, text: str) -> list[str]:
    return re.findall(rf"^{re.escape(role)}[:：](.*)", text, re.MULTILINE)


def _sentences(text: str) -> list[str]:
    return [sentence.strip("()（）“”\"' ") for sentence in _SENTENCE.findall(text)]


def _number(text: str) -> int:
    return int(hash_json(text)[:8], 16)
