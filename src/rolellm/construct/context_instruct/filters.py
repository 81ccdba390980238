"""The filters that candidates go through, in order; the first that turns one down says why, and nothing is thrown away.

The paper keeps confident candidates and drops duplicates (arXiv 2310.00746). The other filters, the order and all
thresholds are our choice. Duplicates come last, so that no pair is dropped for the sake of one that is itself dropped.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, Final, Literal

from rolellm.construct.clean import broken_rules, is_machine
from rolellm.construct.context_instruct.candidates import LEVELS, Candidate
from rolellm.construct.context_instruct.grounding import Grounding, grounding_check
from rolellm.construct.context_instruct.prompts import prompts_hash
from rolellm.construct.context_instruct.segments import Segment
from rolellm.construct.duplicates import repeats
from rolellm.construct.profile.portrait import names_of, titles_of
from rolellm.construct.scripts.parse import detect_language
from rolellm.construct.settings import FilterSettings, Level, Method
from rolellm.construct.sheet import Sheet
from rolellm.core.records import Language
from rolellm.core.text import fold
from rolellm.prompts.leaks import MOST_COPIED, leak_check, share_check


def leans_on_segment(question: str, answer: str, language: Language) -> str | None:
    """Why a pair does not stand by itself; ``None`` for one that does.

    >>> leans_on_segment("Owl, what does the passage say of mice?", "They are small.", "en")
    'the question refers to its source ("the passage")'
    """
    for what, text in (("question", question), ("answer", answer)):
        if found := _SOURCE[language].search(text):
            return f'the {what} refers to its source ("{found.group().strip()}")'
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
            r"|\b(?:the|this|that|your|my) catchphrases?\b"
            r"|\b(?:person|character|speaker|name)s? mentioned\b"
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
            r"|口头禅|(?:^|[，。；,])文中|第[0-9一二三四五六七八九十百]+(?:场|幕|回|章)(?:戏|里|中|的|，|$)"
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


#: Words by which speakers mean themselves; in Chinese also those of emperors, monks, ladies and old men.
_FIRST: Final = MappingProxyType[Language, re.Pattern[str]](
    {
        "en": re.compile(r"\b(?:i|i'\w+|me|my|mine|myself|we|we'\w+|us|our|ours|ourselves|oneself)\b", re.IGNORECASE),
        "zh": re.compile(
            r"[我俺咱吾余朕孤妾臣某予侬奴]|洒家|老孙|俺老|本[宫王座帅官公尊人妃皇]|在下|小生|小人|小的|老夫|老身|老朽|老汉"
            r"|贫[僧道尼]|老衲|哀家|寡人|奴[家婢才]|晚辈|末将|卑职|鄙人|自[己家]"
        ),
    }
)
_OTHERS: Final = MappingProxyType[Language, str](
    {
        # With no other person before it: "what does he fear", not "what did Brom mean when he said".
        "en": r"\b(?:do|does|did|is|was|has|had|can|could|will|would|should) (?:he|she|his|her)\b",
        "zh": "(?<=[，,、：:])[他她](?!们)",
    }
)
_ADDRESSED: Final = MappingProxyType[Language, re.Pattern[str]](
    {
        "en": re.compile(r"\b(?:you|your|yours|yourself|thou|thee|thy|thine)\b", re.IGNORECASE),
        "zh": re.compile("[你您尔汝]|阁下"),
    }
)
_TOLD: Final = MappingProxyType[Language, str](
    {
        "en": r"(?:'s\b|,\s+who\b|\s+(?:is|was|has|had|does|did|would|could|will|can|said|felt|thought|went|took|told"
        r"|gave|knew|[a-z]+(?:ed|s)))\b",
        "zh": r"(?:是|曾|会|说|道|认为|觉得|的|在|把|被|对|很|非常|喜欢|已|便|就|因|为了|想|要|有)",
    }
)
# A sentence whose subject is the role; in Chinese, one that says to the asker what the role is: 石彪是你的敌人.
_SUBJECT: Final = MappingProxyType[Language, str]({"en": r"(?:^|[.!?]\s+){role}\s+[a-z]+", "zh": "是[你您]的"})


def out_of_character(character: Sheet) -> Callable[[str], str | None]:
    """A function that says why an answer is not the role's own; ``None`` for one that is.

    An answer is told *about* the role when it has the role's name, or "the" and a title in it, before a word such as
    "is" or "said" or as the subject of a sentence, and no word by which speakers mean themselves. A role that speaks of
    itself by name so passes once it says "I" as well.

    Args:
        character: Its names, aliases and catchphrases count, and whether it is a machine.
    """
    language = character.language
    machine = is_machine(character.described() or character.background, language)
    titled = "".join(rf"|\b[Tt]he {re.escape(title)}" for title in titles_of(character))
    role = f"(?:{character.named()}{titled})"
    told = re.compile(f"{role}{_TOLD[language]}|{_SUBJECT[language].format(role=role)}")
    script = re.compile(rf"\s*[*\[（(]*{character.named()}[*\]）)]*\s*[:：]")

    def reason(answer: str) -> str | None:
        for breach in broken_rules(answer, language, machine=machine, own=character.catchphrases):
            return f'{breach.reason} ("{breach.found}")'
        if script.match(answer):
            return "opens with the role's name and a colon, as a script does"
        found = told.search(answer)
        if found and not _FIRST[language].search(answer):
            return f'tells about the role ("{found.group()}")'
        return None

    return reason


def not_addressed(character: Sheet) -> Callable[[str], str | None]:
    """A function that says why a question is not put to the role, as in "Owl, what does he eat?"; else ``None``.

    That is one that says no "you", and has the role's name where nobody is called by it ("Why did Owl leave?"), or
    calls the role and speaks of it again by name or as "he" or "she". None of the release's 4,750 English and 1,535
    Chinese role-specific questions has the name so.
    """
    language = character.language
    name = names_of(character).pattern.pattern
    again = re.compile(f"(?:{name}).*?({character.named()}|{_OTHERS[language]})", re.IGNORECASE | re.DOTALL)
    called = re.compile(rf"(?:^|[,，]\s*)(?:\w+\.?\s+)?(?:{name})(?:\s+\w+)?\s*(?:[,，:：?？!！.。]|$)", re.IGNORECASE)
    anywhere = re.compile(f"({name})", re.IGNORECASE)

    def reason(question: str) -> str | None:
        question = question.strip()
        if _ADDRESSED[language].search(question):
            return None
        found = again.match(question) or (None if called.search(question) else anywhere.search(question))
        return f'asks about the role as about somebody else ("{found.group(1)}")' if found else None

    return reason


FilterName = Literal["form", "leak", "confidence", "standalone", "character", "grounding", "duplicate"]
FILTERS: Final[tuple[FilterName, ...]] = (
    *("form", "leak", "confidence", "standalone", "character", "grounding", "duplicate"),
)
#: The longest question and answer: words in English, characters in Chinese. The release's longest have 42 and 146
#: words, 75 and 170 characters (our count).
LONGEST: Final[dict[Language, tuple[int, int]]] = {"en": (60, 200), "zh": (120, 300)}
#: From this length on, nearly the same answer to another question is a duplicate: a small model gave one to seven. A
#: short one, such as "Never!", may suit two questions.
LONG_ANSWER: Final[dict[Language, int]] = {"en": 8, "zh": 15}
#: MinHash similarity from which on it is: none of the release's 6,283 first answers is so near to another of its role.
_SAME_ANSWER: Final = 0.7
#: A clause of this many words, or characters, comes twice where a small model goes round in circles, and in 14 of the
#: release's 19,016 role-specific answers.
_LONG_CLAUSE: Final = 4
_CLAUSE_END: Final = re.compile(r"[,.;:!?，。；：！？、…\n]+")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the filters made of a candidate.

    Attributes:
        candidate: The candidate.
        by: The filter that turned it down; ``None`` of one that is kept.
        reason: Why, in words.
        grounding: What of a pair was found in the script and the profile; ``None`` where that is not checked.
    """

    candidate: Candidate
    by: FilterName | None = None
    reason: str | None = None
    grounding: Grounding | None = None

    @property
    def kept(self) -> bool:
        """Whether it passed all filters."""
        return self.by is None

    def to_dict(self, language: Language) -> dict[str, Any]:
        """As a line of ``kept.jsonl`` or ``dropped.jsonl``."""
        pair = self.candidate
        receipt = {**pair.origin.to_dict(), "templates": prompts_hash(language)}
        receipt["filter"] = {"verdict": "kept" if self.kept else "dropped", "by": self.by, "reason": self.reason}
        if self.grounding is not None:
            receipt["grounding"] = self.grounding.to_dict()
        return {
            "id": pair.id,
            "question": pair.question,
            "answer": pair.answer,
            "type": pair.type,
            "completeness": asdict(pair.completeness),
            "factualness": asdict(pair.factualness),
            "confidence": pair.confidence(language),
            "receipt": receipt,
        }


def judge(candidates: Sequence[Candidate], character: Sheet, settings: FilterSettings) -> list[Verdict]:
    """Put candidates through the filters.

    Args:
        candidates: In the order in which they were made.
        character: Whose they are.
        settings: Which filters.

    Returns:
        A verdict each, in the same order. Of near-duplicates the surest is kept, of equally sure ones the first.

    Raises:
        MissingExtraError: For BM25 without ``bm25s``.
    """
    alone = _alone(character, settings)
    verdicts = [alone(candidate) for candidate in candidates]
    if settings.no_duplicates:
        return verdicts
    language = character.language
    looks: tuple[tuple[str, str, int, Method, float | None], ...] = (
        ("question", "asks", 0, settings.duplicates, settings.similarity),
        ("answer", "says", LONG_ANSWER[language], "minhash", _SAME_ANSWER),
    )
    for part, says, least, method, similarity in looks:
        texts = {
            place: text
            for place, verdict in enumerate(verdicts)
            if verdict.kept and _length(text := getattr(candidates[place], part), language) >= least
        }
        rest = sorted(texts, key=lambda place: -_sureness(candidates[place]))
        alike = repeats([texts[place] for place in rest], language, method, similarity)
        for repeat, (first, value) in alike.items():
            place, other = rest[repeat], rest[first]
            reason = f'{says} what {candidates[other].id} {says} ("{texts[other]}"): similarity {value:.2f}'
            verdicts[place] = Verdict(candidates[place], "duplicate", reason, verdicts[place].grounding)
    return verdicts


def _alone(character: Sheet, settings: FilterSettings) -> Callable[[Candidate], Verdict]:
    """What a candidate is by itself, without the others."""
    language = character.language
    asked, voice = not_addressed(character), out_of_character(character)
    grounding_in = grounding_check(character)
    known = f"{character.described()}\n{character.background}"
    leak, copied_share = lru_cache(maxsize=64)(partial(leak_check, language)), share_check(known)
    script = "\n".join(f"{turn.speaker}: {turn.content}" for turn in character.turns)

    @lru_cache(maxsize=64)
    def grounded(segment: Segment) -> Callable[[str, str], Grounding]:
        return grounding_in(segment.text if segment.type == "script_based" else f"{segment.text}\n{script}")

    def turned_down(pair: Candidate, grounding: Grounding | None) -> tuple[FilterName, str] | None:
        evidence = f"{known}\n{pair.origin.segment.text}"
        if copied := leak(evidence)(f"{pair.question}\n{pair.answer}"):
            return "leak", f'repeats our instructions or examples ("{copied}")'
        if not settings.no_confidence and (reason := _unsure(pair, settings.min_confidence)):
            return "confidence", reason
        if not settings.no_standalone and (reason := leans_on_segment(pair.question, pair.answer, language)):
            return "standalone", reason
        if not settings.no_character:
            if reason := asked(pair.question) or voice(pair.answer):
                return "character", reason
            if copied_share(pair.answer) > MOST_COPIED and not _FIRST[language].search(pair.answer):
                return "character", "repeats the description instead of speaking as the role"
        # A profile has the matter of few answers, but no other names and numbers than they may have.
        least = settings.min_grounding if pair.type == "script_based" else 0.0
        ungrounded = grounding.reason(least) if grounding else None
        return ("grounding", ungrounded) if ungrounded else None

    def verdict(pair: Candidate) -> Verdict:
        if reason := pair.problem or ill_formed(pair.question, pair.answer, language):
            return Verdict(pair, "form", reason)
        grounding = None if settings.no_grounding else grounded(pair.origin.segment)(pair.question, pair.answer)
        by, why = turned_down(pair, grounding) or (None, None)
        return Verdict(pair, by, why, grounding)

    return verdict


def ill_formed(question: str, answer: str, language: Language) -> str | None:
    """Why two texts make no pair; ``None`` where they do.

    >>> ill_formed("Owl, who are you?", "Owl, who are you?", "en")
    'the answer repeats the question'
    """
    for what, text, longest in zip(("question", "answer"), (question, answer), LONGEST[language], strict=True):
        if (length := _length(text, language)) > longest:
            unit = "characters" if language == "zh" else "words"
            return f"the {what} has {length} {unit}, more than {longest}"
        if any(unicodedata.category(sign) in ("Cc", "Cf", "Co", "Cs") and sign not in _JOINERS for sign in text):
            return f"the {what} has control characters in it"
        if not any(map(str.isalpha, text)):
            return f"the {what} has no words"
        if detect_language(text) != language:
            return f"the {what} is not in {'Chinese' if language == 'zh' else 'English'}"
    if fold(question) == fold(answer):
        return "the answer repeats the question"
    parts = map(str.strip, _CLAUSE_END.split(answer))
    clauses = [part for part in parts if _length(part, language) >= _LONG_CLAUSE]
    twice = next((clause for place, clause in enumerate(clauses) if clause in clauses[:place]), None)
    return f'the answer says "{twice}" twice' if twice else None


def _length(text: str, language: Language) -> int:
    """In words; of a Chinese text, in characters."""
    return len(text) if language == "zh" else len(text.split())


#: Zero-width joiners, of which emoji are made, and the soft hyphen.
_JOINERS: Final = "\u200c\u200d\u00ad"


def _unsure(pair: Candidate, least: Level) -> str | None:
    for what, rating in (("completeness", pair.completeness), ("factualness", pair.factualness)):
        if rating.level is None:
            return f"no level of {what} could be read" + (f' ("{rating.said[:40]}")' if rating.said else "")
        if LEVELS.index(rating.level) < LEVELS.index(least):
            return f"{what} is {rating.level}, below {least}" + (f": {rating.reason}" if rating.reason else "")
    return None


def _sureness(pair: Candidate) -> int:
    levels = (pair.completeness.level, pair.factualness.level)
    return sum(LEVELS.index(level) + 1 for level in levels if level is not None)
