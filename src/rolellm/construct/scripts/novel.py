"""Novels: quotations are speech; who speaks is read where a name and a verb of saying are next to a quotation.

That is the only rule, in both languages: it names few speakers, and hardly ever a wrong one. The rest is left to a
language model (`rolellm.construct.attribution`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import dropwhile
from typing import Final

from rolellm.construct.scripts.quotes import Paragraph, Quotation, around, find_quotations, read_paragraphs
from rolellm.construct.scripts.reading import OPENERS, Found, Hints, Source, trim
from rolellm.core.records import Language, TurnKind


def read_novel(source: Source, hints: Hints) -> list[Found]:
    """Read a novel: quotations are speech, the text between them is narration, headings of chapters are directions.

    Speech that runs over paragraphs without marks between them is one turn; where each paragraph opens with a mark of
    its own, each is a turn of the same speaker. Quoted words in the middle of a sentence stay narration.

    Args:
        source: The text; straight and curly quotes, ``「」``, ``«»`` and English single quotes are known.
        hints: The language; the role's names, which are taken for names whatever they look like.
    """
    text, language = source.text, hints.language
    paragraphs = read_paragraphs(text)
    quotations = [
        one
        for one in find_quotations(text, paragraphs, language)
        if one.is_resumed or _is_spoken(text, one, paragraphs[one.paragraph], language)
    ]
    return list(_turns(text, paragraphs, quotations, _speakers(text, paragraphs, quotations, hints)))


def _turns(
    text: str, paragraphs: list[Paragraph], quotations: Sequence[Quotation], speakers: Sequence[str | None]
) -> Iterator[Found]:
    place, following = 0, 0
    for paragraph in paragraphs:
        told: tuple[str, TurnKind] = ("scene", "direction") if paragraph.is_heading else ("narrator", "narration")
        place = max(place, paragraph.start)
        while following < len(quotations) and quotations[following].left < paragraph.end:
            one = quotations[following]
            yield from _turn(text, *told, paragraph.scene, place, one.left)
            yield from _turn(text, speakers[following], "speech", paragraph.scene, one.start, one.end, one.is_mended)
            place, following = one.right, following + 1
        yield from _turn(text, *told, paragraph.scene, place, paragraph.end)


def _turn(
    text: str, speaker: str | None, kind: TurnKind, scene: int, start: int, end: int, is_mended: bool = False
) -> Iterator[Found]:
    start, end = trim(text, start, end)
    content = " ".join(text[start:end].split())
    if kind == "speech" or any(map(str.isalnum, content)):
        yield Found(speaker, content, kind, scene, start, end, is_mended)


def _is_spoken(text: str, quotation: Quotation, paragraph: Paragraph, language: Language) -> bool:
    """Whether a quotation is set off from the sentence around it; a word or title in its midst is not."""
    before = text[paragraph.start : quotation.left].rstrip()
    if not before or before[-1] in ".,:;!?—–-…。，：；！？”’」』\"'":
        return True
    if _SAID_LAST[language].search(before[-40:]):
        return True
    said = text[quotation.start : quotation.end].rstrip()
    # ``He thought it "a foolish word," and`` goes on; ``he turned "Never!"`` does not.
    return language == "zh" and len(said) > 1 and said[-1] in "。！？…"


# English verbs of saying.
_VERBS: Final = (
    "said|replied|answered|cried|exclaimed|asked|inquired|enquired|demanded|remarked|observed|added|continued|returned|"
    "rejoined|repeated|responded|retorted|whispered|murmured|muttered|shouted|declared|began|called|says|replies|"
    "answers|cries|asks|adds|whispers"
)
_TITLE: Final = r"(?:(?:Mr|Mrs|Ms|Messrs|Mme|Mlle|Dr|St|Prof|Capt|Col|Gen|Lt|Sgt|Rev)\b\.?|M\.|Miss\b)"
_WORD: Final = rf"(?!{_TITLE})[A-Z\u00c0-\u00de](?:[\w-]|[’'](?!s\b)(?=\w)|(?<=\b[A-Z])\.)*"
# A name in English: a run of capitalized words, with its title or article; ``I`` is one, too.
_NAME: Final = (
    rf"(?>[Tt]he\s+)?(?>(?:{_TITLE}\s+)?{_WORD}(?:\s+(?:(?:of\s+the|of|de\s+la|de|du|van|von|the)\s+)?{_WORD})*)"
    r"(?![\w’'])(?!\s+(?:and|or)\s+(?:the\s+|his\s+|her\s+)?[A-Z])"
)
# Chinese verbs of saying.
_SAYS: Final = (
    "(?:说|說|问|問|答|回|回答|笑|喝|叫|喊|骂|罵|叹|嘆|歎|怒|哭|泣|应|應|叱|奏|告|禀|稟|谢|謝|谏|諫|劝|勸|嚷|对|對|呼|插嘴|接口)?"
    "(?:道|曰)|说|說|问|問|答|喊"
)
# How it is said.
_MANNER: Final = (
    "(?:大怒|大笑|大喜|大惊|大驚|大叫|大喝|冷笑|微笑|含笑|苦笑|失笑|陪笑|叹息|连忙|連忙|急忙|慌忙|厉声|厲聲|高声|高聲|大声|大聲|低声|低聲|"
    "轻声|轻轻|悄悄|缓缓|慢慢|只得|正色|抚掌|拍手|点头|點頭|摇头|搖頭|拱手|欠身|拜谢|顿首|叩头|从容|慨然|勃然|愤然|继续|接着|"
    "大|高|进|佯|暗|还|哭|泣|笑|怒|喜|惊|驚|叹|嘆|歎|忙|急|便|又|乃|遂|亦|也|即|因|却|卻|就|都|皆|復|复|方|才|再|忽|先|跪|拜|地)"
)
# What parts clauses; for a class of characters.
_PUNCTUATION: Final = r"。！？；，、：:,.!?;…—\s“”‘’「」『』\"'《》（）()"
# What is not a part of names, and makes more of a clause than a name and a verb.
_NO_NAME: Final = re.compile(
    "[他她它我你您俺咱吾汝尔爾某谁誰其此这這那哪之的了着著在与與和同对對向把被将將使令教叫唤喚命请請谓謂问問告语語言语说說话話道曰报報"
    "见見看听聽闻聞想只却卻又便就也都皆亦乃遂即且而所是有无無不未既已再忽正方才是为為以因于於到至来來去上下出入起前后後里裡内外中间時时"
    "个個们們众眾等人者一二三四五六七八九十两兩百千诗詩词詞书書古常俗偈歌赋赞声聲心口手头頭身笑哭怒喜惊叹骂喝叱指责拜谢]"
)
# The commonest family names: a name of three characters begins with one, else its last is more often a verb.
_FAMILIES: Final = frozenset(
    "赵趙钱錢孙孫李周吴吳郑鄭王冯馮陈陳褚卫衛蒋蔣沈韩韓杨楊朱秦许許何吕呂施张張孔曹严嚴华華金魏陶姜戚谢謝邹鄒喻苏蘇潘葛范範彭鲁魯韦韋马馬"
    "方俞任袁柳鲍鮑史唐费費薛雷贺賀倪汤湯罗羅毕畢郝安常于傅卞齐齊康余元顾顧孟黄黃萧蕭尹姚邵汪毛狄贝貝明戴宋庞龐熊纪紀舒屈项項祝董梁杜阮"
    "翟權楼樓蓝藍季贾賈江童郭梅林钟鐘徐邱骆駱高夏蔡田樊胡凌霍万萬卢盧莫丁邓鄧洪包石崔吉龚龔程邢裴陆陸荣榮翁荀甄曲封储段侯武刘劉龙龍叶葉司黎白蒲赖"
    "乔喬闻党譚谭牛边邊燕温莊庄晏柴瞿阎閻连習习向古易廖耿匡文寇广欧歐沃师巩聂晁冷辛简饶曾沙丰关關查红游权盖荊荆公欧阳诸諸葛宁寧仇祖刁暴"
)
_ADVERB: Final = r"(?:\s+(?!reply\b|only\b)\w+ly)?"
_AFTER: Final = re.compile(
    rf"[\s,—–-]*(?:(?:{_VERBS})(?:\s+out)?{_ADVERB}\s+(?P<inverted>{_NAME})|(?P<straight>{_NAME}){_ADVERB}\s+(?:{_VERBS})"
    r"(?=\s*[,.;:—–]|\s*$|\s+(?:\w+ly|to|with|in|as|at|after|from)\b))"
)
_BEFORE: Final = re.compile(
    rf"(?:^\s*|[.!?][”’\"')]*\s+|,\s+)(?:(?:And|But|Then|So|Now|At\s+(?:last|length|this)),?\s+)?(?P<straight>{_NAME}){_ADVERB}"
    rf"\s+(?:{_VERBS})(?:\s+(?:out|again|\w+ly|(?:to|with|in|at)\s+[^.,:;!?—“”\"]{{1,50}}))?\s*[,:—–-]+\s*$"
)
_NEW_SENTENCE: Final = re.compile(r"(?<!Mr)(?<!Mrs)(?<!Ms)(?<!Dr)(?<!St)[.;:!?]\s+\S")


def _english_after(after: str, ending: str, _: Iterable[str]) -> tuple[str, str] | None:
    match = _AFTER.match(after)
    if match is None or (match["straight"] and ending not in ",!?—–-"):
        return None
    name = _plain(match["inverted"] or match["straight"])
    return (name, after[match.end() :]) if name else None


def _english_before(before: str, _: Iterable[str]) -> str | None:
    match = _BEFORE.search(before[-_FAR:])
    return _plain(match["straight"]) if match else None


def _plain(name: str) -> str | None:
    """A name on one line; nothing of what opens a sentence and names nobody."""
    words = list(dropwhile(lambda word: word.casefold() in OPENERS - {"the", "i"}, name.split()))
    return " ".join(words) if words and words != ["the"] else None


_LAST_CLAUSE: Final = re.compile(rf"[^{_PUNCTUATION}]*$")
_FIRST_CLAUSE: Final = re.compile(rf"\s*(?P<clause>[^{_PUNCTUATION}]{{2,16}})(?:[。，,.]|$)")
_SPOKEN_BY: Final = re.compile(rf"(?P<name>.*?){_MANNER}{{0,2}}(?:{_SAYS})$")


def _chinese_after(after: str, _: str, names: Iterable[str]) -> tuple[str, str] | None:
    match = _FIRST_CLAUSE.match(after)
    name = _spoken_by(match["clause"], names, opens=True) if match else None
    return (name, after[match.end() :]) if match and name else None


def _chinese_before(before: str, names: Iterable[str]) -> str | None:
    # Longer ones are no name and verb; and a paragraph may be a page.
    told = before[-_FAR:].rstrip()
    told = told[:-1] if told.endswith(("：", ":", "，", ",")) else told
    match = _LAST_CLAUSE.search(told)
    # A clause after a comma has its subject before that.
    opens = match is not None and told[: match.start()].rstrip()[-1:] in ("", *'。！？…”」』"')
    return _spoken_by(match[0], names, opens=opens) if match else None


def _spoken_by(clause: str, names: Iterable[str], *, opens: bool) -> str | None:
    """Who speaks by a clause that is a name, perhaps its manner, and a verb of saying."""
    for name in sorted(names, key=len, reverse=True):
        if clause.startswith(name) and (match := _SPOKEN_BY.fullmatch(clause, len(name))) and not match["name"]:
            return name
    match = _SPOKEN_BY.fullmatch(clause) if opens else None
    name = match["name"] if match else ""
    is_name = len(name) == _SHORT or (len(name) == _LONG and name[0] in _FAMILIES)
    return name if is_name and not _NO_NAME.search(name) else None


_SHORT, _LONG = 2, 3
_FAR: Final = 200
_AFTERS: Final = {"en": _english_after, "zh": _chinese_after}
_BEFORES: Final = {"en": _english_before, "zh": _chinese_before}
_SAID_LAST: Final = {"en": re.compile(rf"(?<![\w-])(?:{_VERBS})$"), "zh": re.compile(f"(?:{_SAYS})$")}


def _speakers(
    text: str, paragraphs: Sequence[Paragraph], quotations: Sequence[Quotation], hints: Hints
) -> list[str | None]:
    """Who speaks each quotation, where that is next to it; a speech that goes on keeps its speaker."""
    named_after, named_before, names = _AFTERS[hints.language], _BEFORES[hints.language], hints.names
    found: list[str | None] = []
    rest: str | None = None
    for index, quotation in enumerate(quotations):
        before, after, follows = around(text, paragraphs, quotations, index)
        goes_on = quotation.is_resumed or (follows and rest is not None and not _NEW_SENTENCE.search(rest))
        told = named_after(after, text[quotation.start : quotation.end].rstrip()[-1:], names)
        speaker = told[0] if told else None if goes_on else named_before(before, names)
        rest = told[1] if told else None
        found.append(speaker or (found[-1] if goes_on and found else None))
    # What the last paragraph of a speech says of its speaker holds for the first.
    for index in reversed(range(len(found) - 1)):
        if quotations[index + 1].is_resumed:
            found[index] = found[index] or found[index + 1]
    return found
