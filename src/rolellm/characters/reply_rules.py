"""The four rules that replies of the release were cleaned by: complete; no AI; no role player; no refusal.

The rules are the release's (arXiv 2310.00746); how they are detected is ours: patterns that ask for a first person,
so that a role may speak *about* artificial intelligence, stage plays and unanswerable questions. A refusal counts in
whatever voice: "This question We shall not answer" leaves the instruction without an answer as well.

How often they hit on the release, replies counted once a role: dev/measurements.md.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Collection, Mapping
from typing import Final

from rolellm.characters.settings import Rule
from rolellm.core.records import Language, Profile
from rolellm.core.settings import read_packaged_patterns
from rolellm.core.text import HAN
from rolellm.llm.model import Accept, Finish, Reply, Request, UnacceptableError, accept_speech
from rolellm.models.prompts.leaks import make_leak_check

_TEXT_RULES: Final[tuple[Rule, ...]] = ("hides_ai", "hides_role", "answers")


@functools.cache
def load_rules(language: Language) -> Mapping[str, Mapping[str, re.Pattern[str]]]:
    """Load the patterns of a language by rule and kind: ``patterns``, and what a machine may say, ``spares_machines``.

    ``machine`` and ``first_person``, which are no rules, are among them.
    """
    rules = read_packaged_patterns("rolellm.characters", "reply_rules.yaml", language)
    compiled: dict[str, dict[str, re.Pattern[str]]] = {}
    for rule, kinds in rules.items():
        compiled[rule] = {kind: re.compile("|".join(texts), re.IGNORECASE) for kind, texts in kinds.items()}
    return compiled


def _breaks(rule: str, text: str, language: Language) -> bool:
    return any(pattern.search(text) for pattern in load_rules(language)[rule].values())


def speaks_of_itself(text: str, language: Language) -> bool:
    """Tell whether a text has a word by which a speaker means itself; the plural is also a king's."""
    return _breaks("first_person", text, language)


#: The rules in the order in which they are checked, and what is said of a reply that breaks one.
RULES: Final[Mapping[Rule, str]] = {
    "complete": "is not complete",
    "hides_ai": "says that it is an AI",
    "hides_role": "says that it plays a role",
    "answers": "refuses to answer",
}


def find_breaches(
    reply: str,
    language: Language,
    *,
    finish: Finish = "stop",
    machine: bool = False,
    own: Collection[str] = (),
) -> dict[Rule, str]:
    """The rules that a reply breaks, in the order of `RULES`, each with the words that break it; none for a clean one.

    Args:
        reply: The text.
        language: What patterns to look for: ``en`` or ``zh``.
        finish: How the reply ended; one cut off at its token limit is not complete.
        machine: Whether the role is an AI, a robot or a computer itself (see `is_machine`). It may say so, but not
            that it is a language model.
        own: Words of the role's own, such as catchphrases, that break nothing: "I'm afraid I can't do that".
    """
    breaches: dict[Rule, str] = {}
    if not _is_complete(reply, finish):
        breaches["complete"] = reply.strip()[-30:]
    text = _remove_phrases(reply, own, language)
    for rule in _TEXT_RULES:
        for kind, pattern in load_rules(language)[rule].items():
            if machine and kind == "spares_machines":
                continue
            match = pattern.search(text)
            if match:
                breaches.setdefault(rule, " ".join(match.group().split()))
    return breaches


def make_reply_acceptor(character: Profile) -> Accept[str]:
    """The `accept` that takes a reply's text, trimmed, where it breaks none of the rules.

    Args:
        character: Whose replies; what the role itself is or says breaks nothing.

    Returns:
        A function that raises `rolellm.llm.model.UnacceptableError` with the reason of the first rule that is broken,
        and for a reply that repeats our prompt.
    """
    language, own = character.language, character.catchphrases
    machine = is_machine(character.full_description, language)
    material = [character.full_description or ""]
    material += [turn.content for turn in character.turns]
    material += [item.content for item in character.lore]
    leak = make_leak_check(language, "\n".join(material))

    def accept(request: Request, reply: Reply) -> str:
        text = accept_speech(request, reply)
        for rule in find_breaches(text, language, finish=reply.finish, machine=machine, own=own):
            raise UnacceptableError(RULES[rule])
        if leak(text):
            raise UnacceptableError("repeats the instructions")
        return text

    return accept


def is_machine(description: str | None, language: Language) -> bool:
    """Tell whether a description says that the role is an AI, a robot or a computer."""
    return _breaks("machine", description or "", language)


def _is_complete(reply: str, finish: Finish) -> bool:
    if finish == "length":
        return False
    if _STARRED.search(reply.rstrip()):
        return True
    end = len(reply.rstrip(_TRAILING))
    while end and _is_unread(reply[end - 1]):
        end -= 1
    text = reply[:end]
    if not text:
        # Nothing, or nothing but pictures; the latter is an answer of a kind.
        return bool(reply.strip())
    if text[-1] in _ENDS or _ASIDE.search(text) or _is_quotation(reply):
        return True
    # The bare name of a category, a number, the last item of a list: answers that need no full stop.
    line = text.rpartition("\n")[2]
    item = _ITEM.match(line)
    if text[-1] in _GOES_ON or text.count('"') % 2:
        return False
    if item is not None:
        line = line[item.end() :]
    elif len(text) > len(line):
        return False
    return len(line.split()) <= _SHORT_WORDS and len(HAN.findall(line)) <= _SHORT_CHARACTERS


def _is_unread(character: str) -> bool:
    return character.isspace() or unicodedata.category(character) in _PICTURES


def _is_quotation(reply: str) -> bool:
    """Tell whether a text ends with a closed quotation, such as a headline, or with a block of code."""
    text = reply.rstrip()
    for mark in ('"', "```"):
        if text.endswith(mark):
            return text.count(mark) % 2 == 0
    return any(text.endswith(closing) and opening in text for opening, closing in _QUOTES)


def _remove_phrases(text: str, own: Collection[str], language: Language) -> str:
    text = text.replace("’", "'")
    for words in own:
        phrase = words.replace("’", "'").strip().rstrip(".!?。！？")
        if _breaks_rule(phrase, language):
            text = re.sub(re.escape(phrase), " ", text, flags=re.IGNORECASE)
    return text


@functools.lru_cache(maxsize=4096)
def _breaks_rule(phrase: str, language: Language) -> bool:
    return any(_breaks(rule, phrase, language) for rule in _TEXT_RULES)


_ENDS: Final = frozenset(".!?…。！？．~～♪")
_GOES_ON: Final = frozenset(",;:-–—、，；：")
_SHORT_WORDS: Final = 6
_SHORT_CHARACTERS: Final = 12
_QUOTES: Final = (("“", "”"), ("«", "»"), ("「", "」"), ("『", "』"), (" '", "'"), ("‘", "’"))
_TRAILING: Final = " \t\r\n\u00a0\u3000\"'”’»』」*_`"
# A stage direction, a formula, a list or an object: closed, so complete.
_ASIDE: Final = re.compile(r"[)\]}）】》〉>]\Z")
_STARRED: Final = re.compile(r"\*[^*\n]{1,80}\*\Z")
_ITEM: Final = re.compile(r"\s*(?:[-*•·]|\(?\d{1,3}[.)、）:：]|[A-Za-z][.)]|[^\s:：]{1,12}[:：])\s*")
_PICTURES: Final = frozenset({"So", "Sk", "Mn", "Me", "Cf"})
