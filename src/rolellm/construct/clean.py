"""The four rules that replies of the release were cleaned by: complete; no AI; no role player; no refusal.

The rules are the release's (arXiv 2310.00746); how they are told is ours: patterns that ask for a first person, so that
a role may speak *about* artificial intelligence, stage plays and unanswerable questions. A refusal counts in whatever
voice: "This question We shall not answer" leaves the instruction without an answer as well.

How often they hit on the release, replies counted once a role: docs/rolegpt.md.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from rolellm.construct.clean_patterns import MACHINE, PATTERNS
from rolellm.llm.model import Accept, Finish, Reply, Request, UnacceptableError
from rolellm.records import Language
from rolellm.text import HAN

Rule = Literal["complete", "hides_ai", "hides_role", "answers"]

#: The rules in the order in which they are checked, and what is said of a reply that breaks one.
RULES: Final = MappingProxyType[Rule, str](
    {
        "complete": "is not complete",
        "hides_ai": "says that it is an AI",
        "hides_role": "says that it plays a role",
        "answers": "refuses to answer",
    }
)


@dataclass(frozen=True, slots=True)
class Breach:
    """A rule that a reply breaks, and the words that break it."""

    rule: Rule
    found: str

    @property
    def reason(self) -> str:
        """In words, the same for all breaches of a rule, so that they can be counted."""
        return RULES[self.rule]


def broken_rules(
    reply: str,
    language: Language,
    *,
    finish: Finish = "stop",
    machine: bool = False,
    own: Collection[str] = (),
) -> list[Breach]:
    """The rules that a reply breaks, at most once each, in the order of `RULES`; none for a clean one.

    Args:
        reply: The text.
        language: What patterns to look for: ``en`` or ``zh``.
        finish: How the reply ended; one cut off at its token limit is not complete.
        machine: Whether the role is an AI, a robot or a computer itself (see `is_machine`). It may say so, but not
            that it is a language model.
        own: Words of the role's own, such as catchphrases, that break nothing: "I'm afraid I can't do that".
    """
    found = [] if _is_complete(reply, finish) else [Breach("complete", reply.strip()[-30:])]
    text = _without(reply, own, language)
    for rule, patterns in PATTERNS[language].items():
        for pattern, spares_machines in patterns:
            hit = None if machine and spares_machines else pattern.search(text)
            if hit is not None:
                found.append(Breach(rule, " ".join(hit.group().split())))
                break
    return found


def clean_text(
    language: Language, *, machine: bool = False, own: Collection[str] = (), rules: Collection[Rule] = tuple(RULES)
) -> Accept[str]:
    """The `accept` that takes a reply's text, trimmed, where it breaks none of the rules.

    Args:
        language: Of the replies.
        machine: See `broken_rules`.
        own: See `broken_rules`.
        rules: Those to hold replies to.

    Returns:
        A function that raises `rolellm.llm.model.UnacceptableError` with the reason of the first rule that is broken.
    """

    def accept(_: Request, reply: Reply) -> str:
        for breach in broken_rules(reply.text, language, finish=reply.finish, machine=machine, own=own):
            if breach.rule in rules:
                raise UnacceptableError(breach.reason)
        return reply.text.strip()

    return accept


def is_machine(description: str | None, language: Language) -> bool:
    """Whether a description says that the role is an AI, a robot or a computer."""
    return description is not None and MACHINE[language].search(description) is not None


def _is_complete(reply: str, finish: Finish) -> bool:
    if finish == "length":
        return False
    if _STARRED.search(reply.rstrip()):
        return True
    end = len(reply.rstrip(_TRAILING))
    while end and (reply[end - 1].isspace() or unicodedata.category(reply[end - 1]) in _PICTURES):
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
    if text[-1] in _GOES_ON or text.count('"') % 2 or (item is None and len(text) > len(line)):
        return False
    rest = line[item.end() :] if item else line
    return len(rest.split()) <= _SHORT_WORDS and len(HAN.findall(rest)) <= _SHORT_CHARACTERS


def _is_quotation(reply: str) -> bool:
    """Whether a quotation ends the text that was opened, such as a headline that was asked for; or a block of code."""
    text = reply.rstrip()
    for mark in ('"', "```"):
        if text.endswith(mark):
            return text.count(mark) % 2 == 0
    return any(text.endswith(closing) and opening in text for opening, closing in _QUOTES)


def _without(text: str, own: Collection[str], language: Language) -> str:
    text = text.replace("’", "'")
    for words in own:
        phrase = words.replace("’", "'").strip().rstrip(".!?。！？")
        if _breaks(phrase, language):
            text = re.sub(re.escape(phrase), " ", text, flags=re.IGNORECASE)
    return text


@functools.lru_cache(maxsize=4096)
def _breaks(phrase: str, language: Language) -> bool:
    return any(pattern.search(phrase) for patterns in PATTERNS[language].values() for pattern, _ in patterns)


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
