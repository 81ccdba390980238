"""Ages under eighteen that a role's text gives, so that whoever plays it knows.

Doubtful cases are left out: an age that somebody once had (past tense, "at the age of"), one that a relative or a thing
has, a limit or a difference is not taken for the role's. What is only implied is not found.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from rolellm.core.errors import RoleLLMWarning

_EN: Final = "one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|(?:thir|four|fif|six|seven)teen"
_DIGITS: Final = "一二三四五六七八九"
#: Numerals of 1 to 17, and pairs such as 十五六, which mean either.
_HAN_NUMERALS: Final = frozenset(
    [*_DIGITS, "两", "十", *(f"十{digit}" for digit in _DIGITS[:7])]
    + ["".join(pair) for pair in pairwise(_DIGITS)]
    + [f"十{first}{second}" for first, second in pairwise(_DIGITS[:8])]
)
_HAN_NUMBER: Final = rf"[零〇{_DIGITS}两十百千万几\d]"

_NUMBER: Final = rf"(?:1[0-7]|[1-9]|{_EN})"
_BIG: Final = r"(?:hundred|thousand|million|billion|centur|decade|month|week|day)"
_AGES: Final = re.compile(
    rf"(?i)(?<![\w.,-]){_NUMBER}[ -]?(?:(?:years?|yrs?)[ -]?olds?\b|y/?o\b|y\.o\.)"
    rf"|\baged?\b\W{{1,6}}{_NUMBER}(?![\w%+]|[.,]\d|[ -](?:{_BIG}|and [a-z]+ {_BIG}))"
    rf"|\b(?:s?he|I|you|{{{{char}}}})(?: is| am| are|[’']s|[’']m|[’']re)(?: (?:only|just|now|still|currently|about))?"
    rf" (?!one\b|two\b|three\b){_NUMBER}(?=[.,;!)\n]|\Z)(?![.,]\d)"
)
_HAN_AGES: Final = re.compile(
    rf"(?<!{_HAN_NUMBER})(?<![.第])({_HAN_NUMBER}+)\s*[周虚]?岁"
    r"(?=[^\w\s]|\s|\Z|左右|上下|了|少[女年]|女|男|小|大|的(?!时|那|生日|年纪))"
    rf"|(?:年龄|年方|芳龄)\W{{0,4}}({_HAN_NUMBER}+)(?!\d|年)"
)
_KIN: Final = (
    r"(?:(?:grand|step)?(?:sons?|daughters?|child(?:ren)?|kids?)|bab(?:y|ies)|(?:half-|step)?(?:brothers?|sisters?)"
    r"|siblings?|twins|nieces?|nephews?|cousins?|dogs?|cats?|horses?|pets?)"
)
_THING: Final = (
    r"(?:whisk|scotch|wine|bottle|house|castle|building|car\b|truck|tree|tradition|secret|myster|case\b|ship)"
)
#: What speaks against an age: in the sentence before it, and after it.
_BEFORE: Final = re.compile(
    r"(?i)\b(?:his|her|their|my|your|our|whose|\S+[’']s) (?:[\w-]+ ){0,2}"
    + rf"(?:{_KIN}|pupils?|students?|friends?)\b[^.]*\Z"
    r"|\b(?:when|since|until|till|before|after|at|by|from|was|were|been|turn(?:s|ed|ing)?|became|not|ago|if)\b[^,]{0,30}\Z"
    r"|\b(?:over|under|below|above|least|most|than|minimum|average|children|kids|people|students)[ -]\Z"
    r"|\b(?:hundred and|hundred|thousand|[a-z]+ty)[ -]\Z"
)
_AFTER: Final = re.compile(rf"(?i)[ -](?:c|w)ould\b|[ -]can\b|[ -](?:[\w-]+ )?(?:{_KIN}\b|{_THING})")
_IS_A: Final = re.compile(r"(?i)(?:\b(?:is|am|are|as)|[’']s|[:,*])\s+(?:an?|the)\s+\Z")
_HAN_BEFORE: Final = re.compile(
    r"比|儿子|女儿|孩子|[弟妹孙侄甥徒]|当年|当时|那时|那一?年|曾|[未不]满\Z"
    r"|(?:[大小差长早]|相差)[了他她我你您]?\Z|(?:[自从当到至在于等]|自从)\Z"
)


def find_minor_age(*texts: str) -> str:
    """Find an age under eighteen that a role's texts give, in English or Chinese.

    Returns:
        The words that give it; empty where there are none.

    >>> find_minor_age("{{char}} is a shy 17-year-old girl."), find_minor_age("She has ruled for 16 years.")
    ('17-year-old', '')
    >>> find_minor_age("小翠今年十六岁，爱笑。"), find_minor_age("他的女儿五岁。")
    ('十六岁', '')
    """
    return next((words for text in texts for words in (*_iterate_ages(text), *_iterate_han_ages(text))), "")


def _iterate_ages(text: str) -> Iterator[str]:
    for match in _AGES.finditer(text):
        before = re.split(r"[.!?;\n]\s", text[max(match.start() - 100, 0) : match.start()])[-1]
        is_other = _AFTER.match(text, match.end()) and not _IS_A.search(before)
        if not is_other and not _BEFORE.search(before):
            yield " ".join(match[0].split())


def _iterate_han_ages(text: str) -> Iterator[str]:
    for match in _HAN_AGES.finditer(text):
        numeral = match[1] or match[2]
        is_minor = numeral in _HAN_NUMERALS or (numeral.isdecimal() and 0 < int(numeral) < 18)
        before = re.split(r"[。！？；，\n]", text[max(match.start() - 30, 0) : match.start()])[-1]
        if is_minor and not _HAN_BEFORE.search(before):
            yield match[0]


def describe_minor_age(*texts: str) -> str:
    """Say that a role's texts give an age under eighteen; empty where they do not."""
    words = find_minor_age(*texts)
    return f"its text gives an age under eighteen (“{words}”); nothing is refused for that: you decide" if words else ""


def warn_of_minor_age(role: str, *texts: str) -> None:
    """Point out an age under eighteen in a role's texts; what it is played in is for the operator to decide.

    Warns:
        RoleLLMWarning: Where there is one.
    """
    if note := describe_minor_age(*texts):
        warnings.warn(f"{role}: {note}", RoleLLMWarning, stacklevel=3)
