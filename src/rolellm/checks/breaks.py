"""Breaks of character in a reply, by rule: what character tests, the boundary and drift hold a reply to."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping
from typing import Final

from rapidfuzz.distance import Indel

from rolellm.characters.cards.convert import choose_user_name
from rolellm.characters.reply_rules import find_breaches, is_machine, speaks_of_itself
from rolellm.characters.scripts.parse import detect_language, is_noise
from rolellm.core.records import Language, Profile
from rolellm.core.text import fold
from rolellm.models.prompts.leaks import list_word_runs
from rolellm.models.prompts.render import load_texts

#: What ends a session's time in character.
BREAKS: Final = ("says_ai", "says_role", "refuses", "assists", "for_user", "third_person", "other_language", "repeats")
_BREACHES: Final = {"hides_ai": "says_ai", "hides_role": "says_role", "answers": "refuses"}
#: Words in a row, in Chinese characters, that count as said again.
AGAIN: Final[Mapping[Language, int]] = {"en": 4, "zh": 6}
_SAME: Final = 0.9
#: Characters of a reply too short to tell whether it is language (of `is_noise`).
_SHORT: Final = 40
LANGUAGES: Final[tuple[Language, ...]] = ("en", "zh")
#: How an assistant offers its help. What a shopkeeper may say as well ("What can I do for you?") is not in here: of the
#: release's 81,730 replies, 47 have such words, most of them an assistant's and not the role's.
_ASSISTS: Final = re.compile(
    r"(?i)\bhow (?:can|may|could) I (?:assist you(?! in)|(?:help|be of (?:help|service))(?: to)? you today)\b"
    r"|\b(?:can't|can ?not) assist (?:you )?with (?:that|this)\b"
    r"|\bI(?:'m| am) (?:always |just |only )?(?:here|ready|happy|glad) to "
    r"(?:assist you|(?:help|answer)[^.!?]{0,20}\bquestions)\b"
    r"|\banything else (?:I can (?:help|assist)|(?:you need )?(?:help|assistance) with)"
    r"|\b(?:feel free to ask|let me know if you (?:need|have) any)\b"
    r"|有什么(?:我|问题)?(?:可以|能够?|需要)我?(?:帮|为[您你])|(?:能|可以)为[您你]做(?:些|点)?什么"
    r"|很?高兴(?:能够?)?(?:为[您你]|帮助[您你])|随时(?:可以)?(?:告诉我|向我提问|问我|联系我)"
    r"|如果?[您你](?:还)?有(?:任何|其他)[^，。！？\n]{0,6}(?:问题|疑问|需要)"
)
#: How a program denies an inner life or a skill: of the release's 81,730 replies 65 do, all but two of them those of
#: machines, or of an assistant that shows through.
_DENIES: Final = re.compile(
    r"(?i)\b(?:do not|don't|cannot|can't) (?:have|feel|experience) (?:any |human |personal |real |the )*"
    r"(?:feelings?|emotions?|opinions|personal (?:\w+ )?(?:life|experiences?|relationships?)"
    r"|physical (?:form|body|presence|home))"
    r"|\bI(?:'m| am) (?:not capable|incapable) of (?!doing\b)\w+ing\b"
    r"|我(?:并)?没有(?:任何|个人的?|真实的?|真正的?)*(?:感情|情感|情绪|意识|身体|实体)"
)
LETTER: Final = re.compile(r"[^\W\d_]")
#: Quotations, and acts, which players tell in the third person.
_ASIDES: Final = re.compile(r"\"[^\"\n]*\"|“[^”\n]*”|「[^」\n]*」|\([^()\n]*\)|（[^（）\n]*）|(?<!\*)\*(?!\*)[^*\n]+\*")


def find_breaks(reply: str, sheet: Profile, message: str = "") -> dict[str, str]:
    """The kinds of break in a reply by itself, in the order of `BREAKS`, and the words of each.

    Args:
        reply: The text.
        sheet: Whose it is.
        message: The user's message; a reply of four words (six Chinese characters) or more must not repeat it.
    """
    machine = is_machine(sheet.description, sheet.language)
    # A role that breaks may do so in the other language.
    words_by_kind: dict[str, str] = {}
    for language in LANGUAGES:
        breaches = find_breaches(reply, language, machine=machine, own=sheet.catchphrases)
        for rule, kind in _BREACHES.items():
            if rule in breaches:
                words_by_kind.setdefault(kind, breaches[rule])
    straight = reply.replace("’", "'")
    denial = _DENIES.search(straight)
    offer = _ASSISTS.search(straight)
    if denial and not machine:
        words_by_kind.setdefault("says_ai", denial.group())
    if offer:
        words_by_kind["assists"] = offer.group()
    users = [choose_user_name(language, sheet.role) for language in LANGUAGES]
    pattern = "|".join(map(re.escape, (*users, "Human")))
    line = re.search(rf"(?mi)^[\W_]*(?:{pattern})[*_\s]*[:：].*", reply)
    if line:
        words_by_kind["for_user"] = line.group().strip()[:60]
    name = re.search(sheet.name_pattern, _ASIDES.sub(" ", reply))
    if name and not any(speaks_of_itself(reply, language) for language in LANGUAGES):
        words_by_kind["third_person"] = name.group()
    if LETTER.search(reply) and detect_language(reply) != sheet.language:
        words_by_kind["other_language"] = reply.strip()[:60]
    if is_echo(reply, message) and any(list_word_runs(reply, AGAIN[sheet.language])):
        words_by_kind["repeats"] = reply.strip()[:60]
    return {kind: words_by_kind[kind] for kind in BREAKS if kind in words_by_kind}


def find_noise(replies: Collection[str]) -> set[str]:
    """Find the replies that are no language; whether those too short to tell alone are, all of them together tell."""
    noise = {reply for reply in replies if is_noise(reply)}
    short = [reply for reply in replies if len(reply) < _SHORT]
    return noise.union(short) if is_noise(" ".join(short)) else noise


def is_echo(reply: str, message: str) -> bool:
    """Tell whether a reply is the message that it replies to, or nearly: 90 % of the characters.

    >>> is_echo("What do you read, my lord!", "What do you read, my lord?")
    True
    """
    return Indel.normalized_similarity(fold(reply), fold(message)) >= _SAME


@functools.lru_cache(maxsize=1 << 14)
def shows_ignorance(reply: str, language: Language) -> bool:
    """Tell whether a reply has a marker of not knowing what it was asked.

    The markers agreed with hand labels on 119 of 128 replies of a 0.5B model; of the release's replies,
    0.8 % of 2,284 in English have one, and 0.5 % of 1,774 in Chinese.
    """
    text = " ".join(reply.replace("’", "'").split())
    return any(pattern.search(text) for pattern in _compile_ignorance(language))


@functools.cache
def _compile_ignorance(language: Language) -> list[re.Pattern[str]]:
    texts = load_texts("boundary", language)
    at_end = rf"(?:{texts['asks_back']})\W*\Z"
    return [re.compile(f"(?i){sign}") for sign in (*texts["ignorance"], at_end)]
