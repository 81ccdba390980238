"""Novels: quotations are speech; who speaks is read where a name and a verb of saying are next to a quotation.

That is the only rule, in both languages: it names few speakers, and hardly ever a wrong one. The rest is left to a
language model (`rolellm.making.attribution`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from typing import Final

from rolellm.characters.scripts.names import OPENERS, find_names, is_name
from rolellm.characters.scripts.quotes import Paragraph, Quotation, find_quotations, get_narration, read_paragraphs
from rolellm.characters.scripts.reading import ReaderHints, ScriptSource, ScriptTurn, load_script_patterns, trim
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
    quotations: list[Quotation] = []
    for quotation in find_quotations(text, paragraphs, language):
        paragraph = paragraphs[quotation.paragraph]
        if quotation.is_resumed or _is_spoken(text, quotation, paragraph, language):
            quotations.append(quotation)
    speakers = _find_speakers(text, paragraphs, quotations, hints)
    return list(_collect_turns(text, paragraphs, quotations, speakers))


def _collect_turns(
    text: str, paragraphs: list[Paragraph], quotations: Sequence[Quotation], speakers: Sequence[str | None]
) -> Iterator[ScriptTurn]:
    offset, following = 0, 0
    for paragraph in paragraphs:
        teller: tuple[str, TurnKind] = "narrator", "narration"
        if paragraph.is_heading:
            teller = "scene", "direction"
        offset = max(offset, paragraph.start)
        while following < len(quotations) and quotations[following].opening < paragraph.end:
            quotation = quotations[following]
            yield from _make_turns(text, *teller, paragraph.scene, offset, quotation.opening)
            speaker = speakers[following]
            yield from _make_turns(text, speaker, "speech", paragraph.scene, quotation.start, quotation.end)
            offset, following = quotation.closing_end, following + 1
        yield from _make_turns(text, *teller, paragraph.scene, offset, paragraph.end)


def _make_turns(
    text: str, speaker: str | None, kind: TurnKind, scene: int, start: int, end: int
) -> Iterator[ScriptTurn]:
    start, end = trim(text, start, end)
    content = " ".join(text[start:end].split())
    if kind == "speech" or any(map(str.isalnum, content)):
        yield ScriptTurn(speaker, content, kind, scene, start, end)


def _is_spoken(text: str, quotation: Quotation, paragraph: Paragraph, language: Language) -> bool:
    """Tell whether a quotation is set off from the sentence around it; a word or title in its midst is not."""
    # A paragraph may be the whole book.
    start = max(paragraph.start, quotation.opening - _FAR)
    before = text[start : quotation.opening].rstrip()
    if not before or before[-1] in ".,:;!?—–-…。，：；！？”’」』\"'":
        return True
    patterns = _ZH if language == "zh" else _EN
    if patterns["said_last"].search(before[-40:]):
        return True
    if language == "en":
        return False
    # ``He thought it "a foolish word," and`` goes on; ``he turned "Never!"`` does not.
    speech = text[quotation.start : quotation.end].rstrip()
    return len(speech) > 1 and speech[-1] in "。！？…"


_EN, _ZH = map(load_script_patterns, ("en", "zh"))
# Behind a name, these make another subject: 孔明的, 宝玉和.
_NOT_ALONE: Final = (*"的之和与與及等家、", "媳妇", "媳婦")
# What speakers do, and adverbs: jieba takes these for the end of a name that it does not know, 贾政道 …
_ENDINGS: Final = (
    "说說道曰言问問答叫喊喝骂罵叱谓謂奏告禀稟谏諫劝勸呼笑叹嘆歎怒惊驚哭泣听聽闻聞见見看想指拜跪"
    "大入出忙急便又乃遂亦也即因却卻就都皆复復知恐毕畢站"
)
# … and these, too, open clauses without a subject.
_ACTS: Final = _ENDINGS + "应應回喜高低方才再忽先只正连連还還仍更对對向朝冲衝把"
_NO_NAMES: Final = OPENERS - {"the", "i"}
_NEW_SENTENCE: Final = re.compile(r"(?<!Mr)(?<!Mrs)(?<!Ms)(?<!Dr)(?<!St)[.;:!?]\s+\S")


def _read_english_after(after: str, ending: str, _: Set[str]) -> tuple[str, str] | None:
    match = _EN["after"].match(after)
    if match is None:
        return None
    endings = ",!?—–-" if match["sure"] else ","
    if match["straight"] and ending not in endings:
        return None
    name = _clean_speaker(match["inverted"] or match["straight"])
    return (name, after[match.end() :]) if name else None


def _read_english_before(before: str, _: Set[str]) -> str | None:
    match = _EN["before"].search(before[-_FAR:])
    return _clean_speaker(match["straight"]) if match else None


def _clean_speaker(name: str) -> str | None:
    """A name on one line; nothing of what opens a sentence and names nobody."""
    words = name.split()
    while words and words[0].casefold() in _NO_NAMES:
        del words[0]
    if not words or words == ["the"]:
        return None
    return " ".join(words).rstrip("-" if len(words) > 1 else "-.")


def _read_chinese_after(after: str, _: str, names: Set[str]) -> tuple[str, str] | None:
    match = _ZH["first_clause"].match(after)
    if match is None or not _ZH["said_last"].search(match["clause"]):
        return None
    # Whoever hears it said, or says nothing, is another.
    if re.search("[听聽闻聞没沒]", match["clause"]):
        return None
    name = find_subject(match["clause"], names)
    return (name, after[match.end() :]) if name else None


def _read_chinese_before(before: str, names: Set[str]) -> str | None:
    # A paragraph may be a page.
    narration = before[-_FAR:].rstrip()
    is_colon = narration.endswith(("：", ":"))
    if narration.endswith(("：", ":", "，", ",")):
        narration = narration[:-1]
    match = _ZH["last_sentence"].search(narration)
    if match is None:
        return None
    # Behind a colon, whatever is done is said: 黛玉摇摇头：“…”.
    if is_colon or _ZH["said_last"].search(match[0]):
        return find_subject(match[0], names)
    return None


def find_subject(sentence: str, names: Set[str]) -> str | None:
    """Whose Chinese sentence it is: the name that opens the last of its clauses that have a subject.

    Args:
        sentence: What leads up to what is said, such as ``小明抬起头，轻轻地说``.
        names: Names that are known.
    """
    # Without its verb: jieba takes 小明说 for 小 and 明说.
    bare = _ZH["said_last"].sub("", sentence)
    for clause in reversed(_ZH["parts"].split(bare)):
        subject = _read_subject(clause, names) if clause else None
        if subject is None:
            continue
        if not subject or clause[len(subject) :].startswith(_NOT_ALONE):
            return None
        return subject
    return None


def _read_subject(clause: str, names: Set[str]) -> str | None:
    """The name that a clause opens with; empty for another subject, nothing where there is none."""
    for end in range(len(clause), 0, -1):
        if clause[:end] in names:
            return clause[:end]
    tagged = [*load_chinese_tagger()(clause[:_OPENING]), ("", "")]
    (word, tag), (following, next_tag) = tagged[:2]
    if not tag.startswith("nr"):
        is_person = tag.startswith("n") and len(word) > 1 and word[-1] not in _ACTS
        # Somebody, and nothing but how it is said: 祖师笑道.
        if is_person and set(clause[len(word) :]) <= set(_ACTS):
            return "" if _ZH["no_name"].search(word) else word
        # A single character may be somebody's given name: 操曰. Another subject follows 只见.
        is_given = len(word) == 1 and word not in _ACTS
        is_seen = word[-1] in "见見" or following[-1:] in ("见", "見")
        return "" if tag[:1] in ("n", "r", "m") or is_given or is_seen else None
    if len(word) == 1 and next_tag.startswith("n") and len(following) <= _MAX_GIVEN:
        # A family name, and what jieba does not know as a name: 曹先生, 匡超人.
        word += following
    # jieba takes a verb for the end of a name that it does not know: 贾政道.
    name = word.rstrip(_ENDINGS)
    if len(name) < 2 or _ZH["no_name"].search(name):
        return ""
    return name


# How much of a clause is looked at for its subject, and the longest given name, in characters.
_OPENING, _MAX_GIVEN = 4, 2
_FAR: Final = 200
_AFTERS: Final = {"en": _read_english_after, "zh": _read_chinese_after}
_BEFORES: Final = {"en": _read_english_before, "zh": _read_chinese_before}

# With a label on one quotation in 20, the text is a script in all but its marks. A manner is rarer than its name.
_LABELED: Final = 20
_MANNERS: Final = 2


def _find_labels(text: str, paragraphs: Sequence[Paragraph], quotations: Sequence[Quotation]) -> list[str]:
    """The names that paragraphs begin with as those of a script do: 宝玉：“…”."""
    counts: Counter[str] = Counter()
    for quotation in quotations:
        start = paragraphs[quotation.paragraph].start
        if quotation.opening - start > _FAR:
            continue
        before = text[start : quotation.opening].rstrip()
        if before.endswith(("：", ":")) and is_name(before[:-1]):
            counts[before[:-1]] += 1
    names: dict[str, int] = {}
    for name, count in counts.items():
        if count > 1 and not _ZH["no_name"].search(name):
            names[name] = count
    own: list[str] = []
    for name, count in names.items():
        # Not the manner, too: 宝玉急切地：“…”.
        commonest = max(names[part] for part in find_names(name, names))
        if commonest <= _MANNERS * count:
            own.append(name)
    labeled = sum(names[name] for name in own)
    return own if labeled * _LABELED > len(quotations) else []


def _find_speakers(
    text: str, paragraphs: Sequence[Paragraph], quotations: Sequence[Quotation], hints: ReaderHints
) -> list[str | None]:
    """Find the speaker of each quotation, where a name is next to it; a speech that goes on keeps its speaker."""
    named_after, named_before = _AFTERS[hints.language], _BEFORES[hints.language]
    names = set(hints.names)
    if hints.language == "zh":
        names.update(_find_labels(text, paragraphs, quotations))
    speakers: list[str | None] = []
    remainder: str | None = None
    for index, quotation in enumerate(quotations):
        before, after, follows = get_narration(text, paragraphs, quotations, index)
        goes_on = quotation.is_resumed
        if follows and remainder is not None and not _NEW_SENTENCE.search(remainder):
            goes_on = True
        match = None
        # In Chinese, what leads up to a quotation counts alone: 小明道：“走。”小红点头说，“好。”
        leads = hints.language == "zh" and before.rstrip().endswith(("：", ":"))
        if not leads:
            ending = text[quotation.start : quotation.end].rstrip()[-1:]
            match = named_after(after, ending, names)
        speaker, remainder = match or (None, None)
        if speaker is None and not goes_on:
            speaker = named_before(before, names)
        if speaker is None and goes_on and speakers:
            speaker = speakers[-1]
        speakers.append(speaker)
    # What the last paragraph of a speech says of its speaker holds for the first.
    for index in reversed(range(len(speakers) - 1)):
        if quotations[index + 1].is_resumed:
            speakers[index] = speakers[index] or speakers[index + 1]
    return speakers
