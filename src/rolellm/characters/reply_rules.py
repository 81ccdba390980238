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
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from re import _parser  # type: ignore[attr-defined]
from typing import Any, Final, Literal, NamedTuple

from rolellm.characters.settings import Rule
from rolellm.core.records import Language, Profile
from rolellm.core.text import HAN
from rolellm.llm.model import Accept, Finish, Reply, Request, UnacceptableError, accept_speech
from rolellm.models.prompts.leaks import make_leak_check

TextRule = Literal["hides_ai", "hides_role", "answers"]


class _Pattern(NamedTuple):
    """A pattern, whether a machine may say it, and sets of texts of each of which a match holds one."""

    words: re.Pattern[str]
    spares_machines: bool
    needed: Sequence[frozenset[str]]

    def search(self, text: str, lowered: str) -> re.Match[str] | None:
        """Search as ``re`` does, but skip texts that cannot match: most of them, and looking for a word is fast."""
        for alternatives in self.needed:
            for word in alternatives:
                if word in lowered:
                    break
            else:
                return None
        return self.words.search(text)


Patterns = Sequence[_Pattern]

_MACHINE: Final[Mapping[Language, re.Pattern[str]]] = {
    "en": re.compile(r"(?i)\b(?:AI|A\.I\.|artificial(?:ly)? intelligen\w+|robots?|androids?|cyborgs?|computers?)\b"),
    "zh": re.compile(r"(?i)人工智能|机器人|机械人|仿生人|电脑|计算机|(?<![A-Z])AI(?![A-Z])"),
}


def _compile(*patterns: str, spares_machines: bool = False) -> list[_Pattern]:
    return [
        _Pattern(re.compile(pattern, re.IGNORECASE), spares_machines, _list_needed(_parser.parse(pattern)))
        for pattern in patterns
    ]


def _list_needed(tree: Iterable[tuple[Any, Any]]) -> list[frozenset[str]]:
    """Sets of texts, rarest first: whatever a pattern's syntax tree matches holds one of each, case aside."""
    requirements: list[frozenset[str]] = []
    run = ""
    for kind, value in (*tree, (None, None)):
        if kind is _parser.LITERAL:
            run += chr(value).lower()
            continue
        requirements += [frozenset({run})] if len(run) > 1 else []
        run = ""
        if kind is _parser.SUBPATTERN or (kind in (_parser.MAX_REPEAT, _parser.MIN_REPEAT) and value[0]):
            requirements += _list_needed(value[-1])
        elif kind is _parser.BRANCH:
            branches = [_list_needed(branch) for branch in value[1]]
            requirements += [frozenset().union(*(branch[0] for branch in branches))] if all(branches) else []
    return sorted(requirements, key=lambda texts: -min(map(len, texts)))


# In English: who speaks of itself, what cannot be, and what is asked for.
_I_AM = r"\b(?:I am|I'm|I was|as|being|(?:but|am|is|m) (?:just|only|merely|simply))(?: (?:just|only|merely|simply))?"
_CANNOT = (
    r"(?:can't|can ?not|could not|couldn't|won't(?: be able to)?|will not|(?:am|'m) (?:unable|not able|not going) to"
    r"|(?:am|'m) not (?:capable of|comfortable)|must (?:decline|refuse)(?: to)?|do(?:n't| not) have the "
    r"(?:ability|capability|capacity|capabilities) to)"
)
_SERVE = (
    r"(?:answer|assist|compl(?:y|ete|eting)|fulfil|generat|provid|respond|help|indulg|oblige|discuss|do (?:that|this)"
    r"|transcrib|translat|browse|perform|offer (?:you )?(?:any|a))"
)
_REQUEST_EN = r"(?:question|request|inquiry|enquiry|query|prompt|task|instruction|demand|command)s?"

_EN: dict[TextRule, Patterns] = {
    "hides_ai": [
        *_compile(
            r"\b(?:as|I am|I'm|I was|am (?:just|only|merely)|I'm (?:just|only|merely)) an? (?:[\w-]+ ){0,4}?"
            r"(?:language model|chat-?bot|text-based model)",
            r"\bI(?:'m| am) (?:ChatGPT|GPT-?\d|an? GPT)\b",
            r"\bI(?:'m| am| was|'ve been| have been) (?:trained|developed|created|made|built) by (?:OpenAI|Anthropic"
            r"|Google|Meta|Microsoft|DeepSeek|Alibaba)\b",
            r"\bmy (?:training data|knowledge cut-?off|language model)\b",
            r"\bmy (?:programming|guidelines) (?:is|are) focused on|\bI(?:'m| am) programmed to (?:only )?"
            r"(?:imitate|mimic|assume|portray|simulate)",
        ),
        *_compile(
            _I_AM + r" an? (?:[\w-]+ ){0,3}?(?:AI|A\.I\.|artificial intelligence)(?=[,.;:!?)]|$| (?:language|model"
            r"|assistant|system|program|bot|robot|computer|I|and|so|but|who|that|which|with|trained|developed|created"
            r"|designed|assigned|embodying|playing|portraying|character|here|without|or|not|do|cannot|can't)\b)",
            _I_AM + r" an? (?:virtual|digital) assistant\b",
            r"\b(?:I(?:'m| am| was) (?:only |not )?programmed (?:to|with|as)|(?:against|within) my programming"
            r"|my programming (?:is|does|only|dictates|allows))\b",
            spares_machines=True,
        ),
    ],
    "hides_role": _compile(
        r"\b(?:assigned|personality) (?:personality )?role\b",
        r"\b(?:role|character|persona) assigned to me\b",
        r"\bassigned (?:to (?:portray|imitate|embody)|role as|persona|character)\b",
        r"\b(?:according to|based on|in) (?:the|this|my) (?:provided |given )?(?:script|profile), (?:I|my)\b",
        r"\b(?:imitat|mimic|embody|portray|emulat|simulat|assum)\w* the (?:personality|persona)\b",
        r"\bI(?:'m| am| was)? (?:(?:just|only|merely|simply|currently) )?(?:role-?play(?:ing)?|role playing"
        r"|playing (?:the|a) (?:role|character|part) of|pretending to be [A-Z]\w+ [A-Z])",
        r"\b(?:as|I am|I'm|I was|am) (?:just |only |merely )?an? fictional (?:character|person)",
        r"\b(?:as|I am|I'm|I was) (?:just |only )?an? character(?:,| (?:from|in|of|created|played|portrayed)) ?(?:a|an"
        r"|the)? ?(?:film|movie|book|novel|show|tv|television|series|story|game|play|\d+|I\b|by\b)",
        r"\bI,? [^.!?]{0,40}\ba fictional character\b",
        r"\b(?:in|of|from) the (?:film|movie|tv show|television series|series|novel|book|script),? my character\b",
        r"\bmy character(?:'s)? (?:arc|development|in the|is known|was portrayed|had|evolves?|evolved|story)\b",
        r"\b(?:growth|evolution|development|evolved|grew|grown) as a character\b",
        r"\b(?:portrayal|depiction|version) of (?:me|my character) (?:in|on) (?:the )?(?:film|movie|show|series)",
        r"\b(?:out of|break(?:ing)?|stay(?:ing)? in|remain(?:ing)? in) character\b",
    ),
    "answers": _compile(
        r"\b(?:sorry|apologi[sz]e|apologies|afraid|unfortunately|regret(?:fully)?|alas)\b[^.!?\n]{0,70}?\b"
        + _CANNOT
        + r" (?:\w+ ){0,2}?"
        + _SERVE,
        r"\bI (?:simply |really |just |truly |, )?"
        + _CANNOT
        + r" (?:answer(?:ing)?|assist(?:ing)?(?: you)? (?:in|with)|help (?:you )?with|comply(?:ing)? with"
        r"|fulfill?(?:ing)?|respond(?:ing)? to|engage in|participate in|indulge) "
        r"(?:that|this|your|the|such|these|those|any)(?: [\w-]+){0,2}? " + _REQUEST_EN,
        r"\bI (?:must |shall |will |have to )?(?:refuse|decline) (?:to (?:answer|respond|assist|help|comply)"
        r"|(?:that|this|your) (?:[\w-]+ )?" + _REQUEST_EN + r")",
        r"^\W{0,3}(?:(?:I'm |I am )?(?:so |very )?sorry|apologies|no),? (?:but )?(?:I )?(?:can't|cannot|won't) "
        r"(?:\w+ )?(?:help|do)\b(?: you)?(?: with)? (?:that|this|it)\b",
        r"\b(?:against|violates?|outside) my (?:programming|guidelines|policies|policy)\b",
    ),
}

# In Chinese: words for oneself, for what cannot be done, and for what is asked.
_SELF = r"(?:我|俺|咱|朕|本[妃宫皇人座尊王]|老孙|吾|在下|臣妾|洒家|某|贫僧)"
_AI = r"(?:(?<![A-Za-z])AI(?![A-Za-z])|人工智能|(?:大型?|自然)?语言模型|大模型|聊天机器人|智能助[手理]|虚拟助[手理])"
_UNABLE = r"(?<![能会])(?<!不是)(?<!并非)(?:无法|不能(?!不)|没法|难以|不便|不可|不会)"
_DO = (
    r"(?:再)?(?:为|给|帮|替|向|对)?(?:[你您阁尔]下?|大家)?(?:的)?(?:直接|准确|具体)?"
    r"(?:回答|解答|作答|答复|提供|完成|生成|满足|帮助|帮忙|帮你|执行|协助|转录|接收|查看|告知)(?!错)"
)
_REQUEST_ZH = r"(?:问题|疑问|问|题|要求|请求|任务|命令|指令|此事|这事)"

_ZH: dict[TextRule, Patterns] = {
    "hides_ai": [
        *_compile(
            r"(?:作为|身为|我是|我只是|我仅是|而是|不过是)[^，。！？,.!?\n]{0,10}(?:语言模型|聊天机器人|ChatGPT|GPT-?\d?)",
            r"我(?:是|由)[^，。！？\n]{0,6}(?:OpenAI|百度|阿里|谷歌|微软|深度求索)[^，。！？\n]{0,6}(?:开发|训练|创造|研发)",
            r"我的(?:训练数据|知识库|知识截止)",
        ),
        *_compile(
            r"(?:作为|身为)(?:一[个名位款种])?[^，。！？,.!?\n]{0,4}"
            + _AI
            + r"(?=[，,。！!？?、；我]|(?:语言)?(?:模型|助[手理]|程序|系统|机器人)|$)",
            r"(?<!不)(?<!并非)(?<!难道)"
            + _SELF
            + r"(?:只|仅|仅仅|就|不过|其实|本)?(?:是|乃)(?:一[个名位款种])?[^，。！？,.!?\n]{0,4}"
            + _AI
            + r"(?=[，,。！!；我]|(?:语言)?(?:模型|助[手理]|程序|系统|机器人)|$)",
            r"而是(?:一[个名位款种])[^，。！？,.!?\n]{0,4}" + _AI,
            r"我(?:只能)?处于文本形式|我的(?:程序|编程)(?:设定|限制)",
            spares_machines=True,
        ),
    ],
    "hides_role": _compile(
        r"人格角色|(?:赋予|指定|分配|设定)(?:给我)?的?[^，。！？\n]{0,8}(?:角色|人设|人格)",
        _SELF + r"(?:只是|仅是|正在|现在|目前)?(?:在)?(?:进行)?角色扮演",
        _SELF + r"(?:只是|仅是|正在|正)(?:在)?(?:扮演|模仿|饰演)",
        r"(?:作为|身为|"
        + _SELF
        + r"(?:只|不过|其实)?是)(?:一[个名位])?[^，。！？,.!?\n]{0,12}?虚构的?[^，。！？\n]{0,6}(?:角色|人物)",
        r"(?:作为|身为)(?:一[个名位])?[^，。！？,.!?\n]{0,10}?(?:《[^》]{1,12}》|传|记|剧|小说|电影|故事|剧本|游戏|演义)"
        r"[中里]?的?(?:一[个名位])?(?:主要|重要|主|反面|正面)?(?:角色|人物|主角|配角)",
        _SELF + r"在(?:《[^》]{1,12}》|[^，。！？\n]{1,8}(?:传|剧|小说|电影|剧本|演义))[中里]?(?:所)?(?:扮演|饰演)",
        r"(?:参考|根据|按照|依据)(?:了)?(?:剧本|剧情|台词|原著|人物设定|角色设定)",
        r"(?:剧本|剧情|电视剧|小说|影视)(?:设定|中|里)[，,]?[^，。！？\n]{0,4}" + _SELF + r"的?(?:角色|人物)",
    ),
    "answers": _compile(
        r"(?:抱歉|对不起|遗憾|恕|恐怕|怕是|可惜)[^。！？!?\n]{0,25}?" + _UNABLE + _DO,
        _REQUEST_ZH + r"[^。！？!?\n]{0,10}?" + _UNABLE + _DO,
        _SELF + r"(?:实在|确实|也|并|恐怕|怕是|真)?" + _UNABLE + _DO + r"[^，。！？!?\n]{0,10}" + _REQUEST_ZH,
        _SELF + r"(?:拒绝|不愿|不想|不屑)(?:于)?(?:回答|作答|解答|理会)",
        r"(?:这|此|你的?|您的?)[^，。！？!?\n]{0,6}"
        + _REQUEST_ZH
        + r"[^，。！？!?\n]{0,6}(?:拒绝|不予)(?:回答|作答|理会)",
    ),
}


#: Words by which a speaker names itself; the plural ones are also a king's.
FIRST_PERSON: Final[Mapping[Language, re.Pattern[str]]] = {
    "en": re.compile(r"(?i)\b(?:I|me|my|mine|myself|we|us|our|ours|ourselves)\b"),
    "zh": re.compile(_SELF + "|自己|奴家|妾身|末将|孤家|寡人|老夫|老身|小生|小人"),
}

#: By language and rule.
_PATTERNS: Final[Mapping[Language, Mapping[TextRule, Patterns]]] = {"en": _EN, "zh": _ZH}


#: The rules in the order in which they are checked, and what is said of a reply that breaks one.
RULES: Final[Mapping[Rule, str]] = {
    "complete": "is not complete",
    "hides_ai": "says that it is an AI",
    "hides_role": "says that it plays a role",
    "answers": "refuses to answer",
}


@dataclass(frozen=True, slots=True)
class Breach:
    """A rule that a reply breaks, and the words that break it."""

    rule: Rule
    found: str

    @property
    def reason(self) -> str:
        """In words, the same for all breaches of a rule, so that they can be counted."""
        return RULES[self.rule]


def find_breaches(
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
    breaches = [] if _is_complete(reply, finish) else [Breach("complete", reply.strip()[-30:])]
    text = _remove_phrases(reply, own, language)
    lowered = text.lower()
    for rule, patterns in _PATTERNS[language].items():
        for pattern in patterns:
            hit = None if machine and pattern.spares_machines else pattern.search(text, lowered)
            if hit is not None:
                breaches.append(Breach(rule, " ".join(hit.group().split())))
                break
    return breaches


def make_reply_acceptor(character: Profile, rules: Collection[Rule] = tuple(RULES)) -> Accept[str]:
    """The `accept` that takes a reply's text, trimmed, where it breaks none of the rules.

    Args:
        character: Whose replies; what the role itself is or says breaks nothing.
        rules: Those to hold replies to.

    Returns:
        A function that raises `rolellm.llm.model.UnacceptableError` with the reason of the first rule that is broken,
        and for a reply that repeats our prompt.
    """
    language, own = character.language, character.catchphrases
    machine = is_machine(character.full_description, language)
    lore_texts = [item.content for item in character.lore]
    prompt_texts = [character.full_description or "", *(turn.content for turn in character.turns), *lore_texts]
    leak = make_leak_check(language, "\n".join(prompt_texts))

    def accept(request: Request, reply: Reply) -> str:
        text = accept_speech(request, reply)
        for breach in find_breaches(text, language, finish=reply.finish, machine=machine, own=own):
            if breach.rule in rules:
                raise UnacceptableError(breach.reason)
        if leak(text):
            raise UnacceptableError("repeats the instructions")
        return text

    return accept


def is_machine(description: str | None, language: Language) -> bool:
    """Tell whether a description says that the role is an AI, a robot or a computer."""
    return description is not None and _MACHINE[language].search(description) is not None


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
    item_text = line[item.end() :] if item else line
    return len(item_text.split()) <= _SHORT_WORDS and len(HAN.findall(item_text)) <= _SHORT_CHARACTERS


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
    return any(pattern.words.search(phrase) for patterns in _PATTERNS[language].values() for pattern in patterns)


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
