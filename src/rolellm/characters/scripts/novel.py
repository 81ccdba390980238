"""Novels: quotations are speech; who speaks is read where a name and a verb of saying are next to a quotation.

That is the only rule, in both languages: it names few speakers, and hardly ever a wrong one. The rest is left to a
language model (`rolellm.making.attribution`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from itertools import dropwhile
from typing import Final

from rolellm.characters.scripts.names import OPENERS, find_names, is_name
from rolellm.characters.scripts.quotes import Paragraph, Quotation, find_quotations, get_narration, read_paragraphs
from rolellm.characters.scripts.reading import ReaderHints, ScriptSource, ScriptTurn, trim
from rolellm.core.records import Language, TurnKind
from rolellm.core.text import load_chinese_tagger


def read_novel(source: ScriptSource, hints: ReaderHints) -> list[ScriptTurn]:
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
        quotation
        for quotation in find_quotations(text, paragraphs, language)
        if quotation.is_resumed or _is_spoken(text, quotation, paragraphs[quotation.paragraph], language)
    ]
    return list(_collect_turns(text, paragraphs, quotations, _find_speakers(text, paragraphs, quotations, hints)))


def _collect_turns(
    text: str, paragraphs: list[Paragraph], quotations: Sequence[Quotation], speakers: Sequence[str | None]
) -> Iterator[ScriptTurn]:
    offset, following = 0, 0
    for paragraph in paragraphs:
        teller: tuple[str, TurnKind] = ("scene", "direction") if paragraph.is_heading else ("narrator", "narration")
        offset = max(offset, paragraph.start)
        while following < len(quotations) and quotations[following].opening < paragraph.end:
            quotation = quotations[following]
            yield from _make_turns(text, *teller, paragraph.scene, offset, quotation.opening)
            yield from _make_turns(
                text,
                speakers[following],
                "speech",
                paragraph.scene,
                quotation.start,
                quotation.end,
                quotation.is_mended,
            )
            offset, following = quotation.closing_end, following + 1
        yield from _make_turns(text, *teller, paragraph.scene, offset, paragraph.end)


def _make_turns(
    text: str, speaker: str | None, kind: TurnKind, scene: int, start: int, end: int, is_mended: bool = False
) -> Iterator[ScriptTurn]:
    start, end = trim(text, start, end)
    content = " ".join(text[start:end].split())
    if kind == "speech" or any(map(str.isalnum, content)):
        yield ScriptTurn(speaker, content, kind, scene, start, end, is_mended)


def _is_spoken(text: str, quotation: Quotation, paragraph: Paragraph, language: Language) -> bool:
    """Tell whether a quotation is set off from the sentence around it; a word or title in its midst is not."""
    # A paragraph may be the whole book.
    before = text[max(paragraph.start, quotation.opening - _FAR) : quotation.opening].rstrip()
    if not before or before[-1] in ".,:;!?—–-…。，：；！？”’」』\"'":
        return True
    if _SAID_LAST[language].search(before[-40:]):
        return True
    speech = text[quotation.start : quotation.end].rstrip()
    # ``He thought it "a foolish word," and`` goes on; ``he turned "Never!"`` does not.
    return language == "zh" and len(speech) > 1 and speech[-1] in "。！？…"


# English verbs of saying.
_VERBS: Final = (
    "said|replied|answered|cried|exclaimed|asked|inquired|enquired|demanded|remarked|observed|added|continued|returned|"
    "rejoined|repeated|responded|retorted|whispered|murmured|muttered|shouted|declared|began|called|says|replies|"
    "answers|cries|asks|adds|whispers"
)
# Any other is one where only a speaker can follow: "…," smiled Tom.
_ANY: Final = rf"(?:{_VERBS}|spoke|thought|sang|swore|put\s+in|went\s+on|broke\s+in|burst\s+out|[a-z]+ed)"
_TITLE: Final = r"(?:(?:Mr|Mrs|Ms|Messrs|Mme|Mlle|Dr|St|Prof|Capt|Col|Gen|Lt|Sgt|Rev)\b\.?|M\.|Miss\b)"
_WORD: Final = rf"(?!{_TITLE})[A-Z\u00c0-\u00de](?:[\w-]|[’'](?!s\b)(?=\w)|(?<=\b[A-Z])\.)*"
# A name in English: a run of capitalized words, with its title or article; ``I`` is one, too.
_NAME: Final = (
    rf"(?>[Tt]he\s+)?(?>(?:{_TITLE}\s+)?{_WORD}(?:\s+(?:(?:of\s+the|of|de\s+la|de|du|van|von|the)\s+)?{_WORD})*)"
    r"(?![\w’'])(?!\s+(?:and|or)\s+(?:the\s+|his\s+|her\s+)?[A-Z])"
)
# Chinese verbs of saying, at the end of what is told; 听说 is none.
_SAYS: Final = re.compile("(?<![听聽闻聞])(?:(?:说|說)[着著道]?|(?:问|問|答|喊|叫|嚷|骂|罵|喝)道?|道|曰)$")
# What parts clauses and sentences, for a class of characters. Persons are listed with 、, which parts none.
_PARTS: Final = r"，；,;…—\s"
_ENDS: Final = r"。！？!?.：:“”‘’「」『』\"'《》（）()"
# Behind a name, these make another subject: 孔明的, 宝玉和.
_NOT_ALONE: Final = (*"的之和与與及等家、", "媳妇", "媳婦")
# What speakers do, and adverbs: jieba takes these for the end of a name that it does not know, 贾政道 …
_ENDINGS: Final = (
    "说說道曰言问問答叫喊喝骂罵叱谓謂奏告禀稟谏諫劝勸呼笑叹嘆歎怒惊驚哭泣听聽闻聞见見看想指拜跪"
    "大入出忙急便又乃遂亦也即因却卻就都皆复復知恐毕畢站"
)
# … and these, too, open clauses without a subject.
_ACTS: Final = _ENDINGS + "应應回喜高低方才再忽先只正连連还還仍更对對向朝冲衝把"
_ADVERB: Final = r"(?:\s+(?:then|again|(?!reply\b|only\b)\w+ly))?"
_AFTER: Final = re.compile(
    rf"[\s,—–-]*(?:{_ANY}(?:\s+out)?{_ADVERB}\s+(?P<inverted>{_NAME})"
    rf"|(?P<straight>{_NAME}){_ADVERB}\s+(?:(?P<sure>{_VERBS})|{_ANY})"
    r"(?=\s*[,.;:—–]|\s*$|\s+(?:\w+ly|to|with|in|as|at|after|from)\b))"
)
_BEFORE: Final = re.compile(
    rf"(?:^\s*|[.!?][”’\"')]*\s+|,\s+)(?:(?:And|But|Then|So|Now|Presently|At\s+(?:last|length|this)),?\s+)?(?P<straight>{_NAME}){_ADVERB}"
    rf"\s+(?:{_VERBS})(?:\s+(?:out|again|\w+ly|(?:to|with|in|at)\s+[^.,:;!?—“”\"]{{1,50}}))?\s*[,:—–-]+\s*$"
)
_NEW_SENTENCE: Final = re.compile(r"(?<!Mr)(?<!Mrs)(?<!Ms)(?<!Dr)(?<!St)[.;:!?]\s+\S")


def _read_english_after(after: str, ending: str, _: Set[str]) -> tuple[str, str] | None:
    match = _AFTER.match(after)
    if match is None or (match["straight"] and ending not in (",!?—–-" if match["sure"] else ",")):
        return None
    name = _clean_speaker(match["inverted"] or match["straight"])
    return (name, after[match.end() :]) if name else None


def _read_english_before(before: str, _: Set[str]) -> str | None:
    match = _BEFORE.search(before[-_FAR:])
    return _clean_speaker(match["straight"]) if match else None


def _clean_speaker(name: str) -> str | None:
    """A name on one line; nothing of what opens a sentence and names nobody."""
    words = list(dropwhile(lambda word: word.casefold() in OPENERS - {"the", "i"}, name.split()))
    return " ".join(words).rstrip("-" if len(words) > 1 else "-.") if words and words != ["the"] else None


# Words in quotation marks are a part of it.
_LAST_SENTENCE: Final = re.compile(rf"(?:[^{_ENDS}]|“[^“”。！？]{{1,12}}”)*$")
_FIRST_CLAUSE: Final = re.compile(rf"\s*(?P<clause>[^{_PARTS}{_ENDS}]{{2,24}})(?:[。，,.]|$)")


def _read_chinese_after(after: str, _: str, names: Set[str]) -> tuple[str, str] | None:
    match = _FIRST_CLAUSE.match(after)
    # Whoever hears it said, or says nothing, is another.
    if match is None or not _SAYS.search(match["clause"]) or re.search("[听聽闻聞没沒]", match["clause"]):
        return None
    name = find_subject(match["clause"], names)
    return (name, after[match.end() :]) if name else None


def _read_chinese_before(before: str, names: Set[str]) -> str | None:
    # A paragraph may be a page.
    narration = before[-_FAR:].rstrip()
    is_colon = narration.endswith(("：", ":"))
    match = _LAST_SENTENCE.search(narration[:-1] if is_colon or narration.endswith(("，", ",")) else narration)
    # Behind a colon, whatever is done is said: 黛玉摇摇头：“…”.
    return find_subject(match[0], names) if match and (is_colon or _SAYS.search(match[0])) else None


def find_subject(sentence: str, names: Set[str]) -> str | None:
    """Whose Chinese sentence it is: the name that opens the last of its clauses that have a subject.

    Args:
        sentence: What leads up to what is said, such as ``小明抬起头，轻轻地说``.
        names: Names that are known.
    """
    # Without its verb: jieba takes 小明说 for 小 and 明说.
    for clause in reversed(re.split(f"[{_PARTS}]+", _SAYS.sub("", sentence))):
        if (subject := _read_subject(clause, names) if clause else None) is not None:
            return None if not subject or clause[len(subject) :].startswith(_NOT_ALONE) else subject
    return None


def _read_subject(clause: str, names: Set[str]) -> str | None:
    """The name that a clause opens with; empty for another subject, nothing where there is none."""
    if known_name := next((clause[:end] for end in range(len(clause), 0, -1) if clause[:end] in names), ""):
        return known_name
    (word, tag), (following, next_tag) = [*load_chinese_tagger()(clause[:_OPENING]), ("", "")][:2]
    if not tag.startswith("nr"):
        # Somebody, and nothing but how it is said: 祖师笑道.
        if tag.startswith("n") and len(word) > 1 and {*clause[len(word) :]} <= {*_ACTS} and word[-1] not in _ACTS:
            return "" if _NO_NAME.search(word) else word
        # A single character may be somebody's given name: 操曰. Another subject follows 只见.
        is_given = len(word) == 1 and word not in _ACTS
        is_subject = tag[:1] in ("n", "r", "m") or is_given or word[-1] in "见見" or following[-1:] in ("见", "見")
        return "" if is_subject else None
    if len(word) == 1 and next_tag.startswith("n") and len(following) <= _MAX_GIVEN:
        # A family name, and what jieba does not know as a name: 曹先生, 匡超人.
        word += following
    # jieba takes a verb for the end of a name that it does not know: 贾政道.
    name = word.rstrip(_ENDINGS)
    return name if len(name) > 1 and not _NO_NAME.search(name) else ""


_NO_NAME: Final = re.compile(
    "[其何此这這那他她它我你吾您谁誰左右亦且谓謂曰见見听聽众眾伏仰呼按执執常俗古书書诗詩词詞歌偈赞讚口心嘴声聲信话話语語言上中里裡下]|^令人"
)
# How much of a clause is looked at for its subject, and the longest given name, in characters.
_OPENING, _MAX_GIVEN = 4, 2
_FAR: Final = 200
_AFTERS: Final = {"en": _read_english_after, "zh": _read_chinese_after}
_BEFORES: Final = {"en": _read_english_before, "zh": _read_chinese_before}
_SAID_LAST: Final = {"en": re.compile(rf"(?<![\w-])(?:{_VERBS})$"), "zh": _SAYS}


# With a label on one quotation in 20, the text is a script in all but its marks. A manner is rarer than its name.
_LABELED: Final = 20
_MANNERS: Final = 2


def _find_labels(text: str, paragraphs: Sequence[Paragraph], quotations: Sequence[Quotation]) -> list[str]:
    """The names that paragraphs begin with as those of a script do: 宝玉：“…”."""
    starts = ((paragraphs[quotation.paragraph].start, quotation.opening) for quotation in quotations)
    openings = (text[start:end].rstrip() for start, end in starts if end - start <= _FAR)
    counts = Counter(before[:-1] for before in openings if before.endswith(("：", ":")) and is_name(before[:-1]))
    names = {name: count for name, count in counts.items() if count > 1 and not _NO_NAME.search(name)}
    # Not the manner, too: 宝玉急切地：“…”.
    own = [
        name
        for name, count in names.items()
        if not any(names[part] > _MANNERS * count for part in find_names(name, names))
    ]
    return own if sum(names[name] for name in own) * _LABELED > len(quotations) else []


def _find_speakers(
    text: str, paragraphs: Sequence[Paragraph], quotations: Sequence[Quotation], hints: ReaderHints
) -> list[str | None]:
    """Find the speaker of each quotation, where a name is next to it; a speech that goes on keeps its speaker."""
    named_after, named_before = _AFTERS[hints.language], _BEFORES[hints.language]
    names = {*hints.names, *(_find_labels(text, paragraphs, quotations) if hints.language == "zh" else ())}
    speakers: list[str | None] = []
    remainder: str | None = None
    for index, quotation in enumerate(quotations):
        before, after, follows = get_narration(text, paragraphs, quotations, index)
        goes_on = quotation.is_resumed or (follows and remainder is not None and not _NEW_SENTENCE.search(remainder))
        # In Chinese, what leads up to a quotation counts alone: 小明道：“走。”小红点头说，“好。”
        leads = hints.language == "zh" and before.rstrip().endswith(("：", ":"))
        match = None if leads else named_after(after, text[quotation.start : quotation.end].rstrip()[-1:], names)
        speaker = match[0] if match else None if goes_on else named_before(before, names)
        remainder = match[1] if match else None
        speakers.append(speaker or (speakers[-1] if goes_on and speakers else None))
    # What the last paragraph of a speech says of its speaker holds for the first.
    for index in reversed(range(len(speakers) - 1)):
        if quotations[index + 1].is_resumed:
            speakers[index] = speakers[index] or speakers[index + 1]
    return speakers
