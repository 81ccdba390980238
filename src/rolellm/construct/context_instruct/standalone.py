"""Questions and answers that need the segment at hand, or speak of it; and answers that say there is none.

A pair is put to a model that sees no segment. So neither may point at "the passage", and a question whose answer the
segment does not hold is no question. The patterns are ours; docs/context_instruct.md has how often they hit on the
release.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Final

from rolellm.records import Language


def leans_on_segment(question: str, answer: str, language: Language) -> str | None:
    """Why a pair does not stand by itself; ``None`` for one that does.

    >>> leans_on_segment("Owl, what does the passage say of mice?", "They are small.", "en")
    'the question speaks of its source ("the passage")'
    """
    for what, text in (("question", question), ("answer", answer)):
        if found := _SOURCE[language].search(text):
            return f'the {what} speaks of its source ("{found.group().strip()}")'
    if found := _UNKNOWN[language].search(answer):
        return f'the answer is that there is none ("{found.group().strip()}")'
    if _NOTHING[language].fullmatch(answer.strip()):
        return "the answer says nothing"
    return None


_THING_EN = r"(?:passage|excerpt|segment|snippet|transcript|script|screenplay|text|profile|material|dialogue|narrative)"
_SOURCE: Final = MappingProxyType[Language, re.Pattern[str]](
    {
        "en": re.compile(
            # Not "the passage of time", "a segment of society", "the passage to India".
            r"\b(?:the|this|that|these|given|provided|above|following) (?:passages?|excerpts?|segments?|snippets?"
            r"|transcripts?|screenplay|source (?:text|material)|character (?:profile|description))"
            r"\b(?! (?:of|to|through|into|from|between|under|beneath|behind|way)\b)"
            r"|\b(?:according to|based on|as (?:stated|described|mentioned|shown|seen) in|mentioned in|described in"
            rf"|appears? in|from) (?:the|this|your) (?:\w+ )?{_THING_EN}\b"
            rf"|\b(?:the|this|that) (?:given |provided |above )?{_THING_EN} (?:above|provided|given|states?|says?"
            r"|mentions?|describes?|shows?|suggests?|implies)\b"
            r"|\b(?:in|of|during) (?:the|this|that) (?:\w+ )?(?:script|screenplay|stage direction)\b"
            r"|\b(?:scene|act|chapter) (?:\d+|[ivx]+|one|two|three|four|five)\b"
            r"|\b(?:in|during) (?:the|this|that) (?:first|second|third|last|opening|final|next) "
            r"(?:scene|act|chapter)\b",
            re.IGNORECASE,
        ),
        "zh": re.compile(
            r"(?:本|这|该|上述|以上|上面|给定|所给|前述|下面)(?:个|段|一段|的)*(?:片段|文本|剧本|原文|材料|段落|节选|选段|文段|资料|对白|简介|描述)"
            r"|(?:根据|依据|按照|参照|从|由|在)(?:这|本|该|上述|以上|给定|所给)?(?:段|个|份)?"
            r"(?:剧本|文本|原文|材料|片段|段落|节选|文段|角色简介|角色描述)"
            r"|(?:剧本|文本|原文|材料|片段|段落|节选|文段|简介|描述)(?:中|里|内|提到|写道|显示|说明)"
            r"|(?:^|[，。；,])文中|第[0-9一二三四五六七八九十百]+(?:场|幕|回|章)(?:戏|里|中|的|，|$)"
        ),
    }
)
_UNKNOWN: Final = MappingProxyType[Language, re.Pattern[str]](
    {
        "en": re.compile(
            r"\b(?:is|are|was|were)(?:n't| not) (?:explicitly |clearly |directly )?"
            r"(?:mentioned|specified|stated|described|provided|given) (?:in|here|there|by|anywhere)\b"
            r"|\b(?:no|not enough|insufficient) (?:information|context|details?) (?:is |are |was |were )?(?:about|on"
            r"|given|provided|available|in)\b"
            r"|\bthere is no (?:mention|information|indication)\b|\bcannot be (?:determined|answered|inferred)\b"
            r"|^(?:not (?:mentioned|specified|stated|applicable)|unknown|n/?a)\b",
            re.IGNORECASE,
        ),
        "zh": re.compile(
            r"(?:并未|未|没有|没)(?:明确|具体|直接)?(?:提及|提到|说明|交代|写明|给出)"
            r"|(?:无法|不能)(?:确定|得知|判断|推断)(?:答案)?[。.]?$|^(?:不详|未知|暂无|无)[。.]?$|信息不足"
        ),
    }
)
_NOTHING: Final = MappingProxyType[Language, re.Pattern[str]](
    {
        "en": re.compile(
            r"(?:well,? )?I (?:really |truly |simply )?(?:don't|do not|cannot|can't) (?:know|say|tell)\W*",
            re.IGNORECASE,
        ),
        "zh": re.compile(r"我?(?:也|真|实在|并)?(?:不知道|不清楚|不晓得|说不清|说不上来)\W*"),
    }
)
