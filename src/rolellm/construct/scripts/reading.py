"""What the readers of script formats share: the text they get, and the turns they find in it."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal, NamedTuple

from rolellm.core.records import Language, TurnKind
from rolellm.core.text import HAN, SPACE_BETWEEN_HAN, fold

Format = Literal["play", "screenplay", "transcript", "novel", "subtitles", "table"]


@dataclass(frozen=True, slots=True)
class Source:
    """A script as the readers get it: decoded, newlines as LF, HTML crumbs and control characters taken out.

    Attributes:
        text: What the readers read. It is made of pieces of the source; the last is empty, where the text ends.
        at: Where each piece begins in `text`.
        starts: Where each piece begins in the decoded source.
        ends: Where it ends there, exclusive, if the source spells it in another way, such as ``&ldquo;``; else -1.
        length: Length of the decoded source, in characters.
        encoding: How the file was decoded.
        path: The file, where there is one.
    """

    text: str
    at: Sequence[int]
    starts: Sequence[int]
    ends: Sequence[int]
    length: int
    encoding: str = "utf-8"
    path: Path | None = None

    def place(self, start: int, end: int) -> tuple[int, int]:
        """A span of `text` (end exclusive) as a span of the decoded source."""
        first = self._span(start)[0]
        return first, self._span(end - 1)[1] if end > start else first

    def _span(self, place: int) -> tuple[int, int]:
        number = bisect_right(self.at, place) - 1
        start, end = self.starts[number], self.ends[number]
        if end < 0:
            start += place - self.at[number]
        return start, end if end >= 0 else start + 1


@dataclass(frozen=True, slots=True)
class Found:
    """A turn as a reader finds it.

    Attributes:
        speaker: As the script writes the name, without cues such as ``(V.O.)``; ``None`` where no
            speaker was found; of narration and directions ``narrator`` or ``scene``, and the like.
        content: White space folded and trimmed; empty only of a cue under which the script has nothing.
        kind: ``speech``, ``narration`` or ``direction``.
        scene: Counted from 0.
        start: Where it begins in `Source.text`; quotation marks are not part of it.
        end: Where it ends there, exclusive.
        is_mended: Whether a quotation mark was missing or did not match.
    """

    speaker: str | None
    content: str
    kind: TurnKind
    scene: int
    start: int
    end: int
    is_mended: bool = False


@dataclass(frozen=True, slots=True)
class Hints:
    """What a reader is told beforehand.

    Attributes:
        language: Of the script.
        names: The role asked for and its aliases, as given; readers of running text look for these, too.
        columns: Of a table: the names of its columns ``speaker``, ``text`` and ``scene``, where they are not usual.
    """

    language: Language
    names: Sequence[str] = ()
    columns: Mapping[str, str] = field(default_factory=dict)


#: Finds the turns of one format, in the order of the source; of a text in another format it finds little.
Reader = Callable[[Source, Hints], list[Found]]

#: What closes each kind of bracket.
CLOSING: Final = {"(": ")", "[": "]", "（": "）", "【": "】", "［": "］", "〔": "〕"}
_BRACKETS: Final = re.compile(r"[\[\](){}（）【】［］〔〕]")
_SPOKEN: Final = re.compile(r"[^\W_]")


class Aside(NamedTuple):
    """A piece of a speech that is not spoken: where it is with its brackets, and where the direction in it is."""

    start: int
    end: int
    inner_start: int
    inner_end: int


class Line(NamedTuple):
    """A line of the text: its place, and itself without the newline."""

    start: int
    end: int
    text: str

    @property
    def blank(self) -> bool:
        """Whether there is nothing on it."""
        return not self.text or self.text.isspace()

    @property
    def indent(self) -> int:
        """How many characters of white space it begins with."""
        text = self.text.expandtabs(8)
        return len(text) - len(text.lstrip())


_LINE: Final = re.compile("^.*$", re.MULTILINE)


def lines_of(text: str) -> Iterator[Line]:
    """The lines of a text."""
    return (Line(*match.span(), match[0]) for match in _LINE.finditer(text))


def paragraphs_of(lines: Iterable[Line]) -> Iterator[tuple[Line, bool, bool]]:
    """The lines that are not blank, and whether they are the first and the last of their paragraph."""
    held, first = None, True
    for line in lines:
        if held:
            yield held, first, line.blank
        first = held is None
        held = None if line.blank else line
    if held:
        yield held, first, True


def trim(text: str, start: int, end: int, marks: str = "") -> tuple[int, int]:
    """A span without the white space at its ends, nor any of the marks."""
    while start < end and (text[start].isspace() or text[start] in marks):
        start += 1
    while end > start and (text[end - 1].isspace() or text[end - 1] in marks):
        end -= 1
    return start, end


def bracketed(text: str, start: int, end: int) -> list[Aside]:
    """The outermost bracketed pieces of a span of a text; unmatched brackets are text."""
    asides: list[Aside] = []
    stack: list[tuple[str, int]] = []
    for match in _BRACKETS.finditer(text, start, end):
        mark = match[0]
        if mark in CLOSING:
            stack.append((CLOSING[mark], match.start()))
        elif stack and mark == stack[-1][0]:
            begun = stack.pop()[1]
            while asides and asides[-1].start > begun:
                asides.pop()
            asides.append(Aside(begun, match.end(), begun + 1, match.start()))
    return asides


class Collector:
    """Collects turns in the order of the source.

    Args:
        text: `Source.text`.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.found: list[Found] = []
        self._scene = 0
        # A scene continues through headings that follow each other (ACT I, SCENE I), and includes what comes before
        # the first one (a title, the persons of the play).
        self._told = self._headed = self._spoken = False
        self._speaker: str | None = None
        self._start = self._end = -1
        #: Whether a speech is open, and whether only its speaker's name has been read.
        self.is_open = self.is_waiting = False
        #: An open paragraph outside of speeches.
        self.held: Line | None = None

    def open(self, speaker: str | None, line: Line, said: int, aside: tuple[int, int] = (0, 0)) -> None:
        """Begin a speech; `said` is where it begins in its line, `aside` a bracket next to the name."""
        self.close()
        self.paragraph(line.start + aside[0], line.start + aside[1], "direction")
        self._speaker, self._end = speaker, line.start + said
        self.is_open = self.is_waiting = True
        if line.text[said:].strip():
            self.extend(line, said)

    def hold(self, line: Line) -> None:
        """Begin or continue a paragraph outside of speeches."""
        self.held = Line(self.held.start, line.end, self.held.text) if self.held else line

    def extend(self, line: Line, at: int = 0) -> None:
        """Continue the open speech with a line."""
        self._start = line.start + at if self._start < 0 else self._start
        self._end, self.is_waiting = line.end, False

    def close(self, *, done: bool = True) -> None:
        """End the open speech or paragraph; unless `done`, the speaker may continue after a direction."""
        held, self.held = self.held, None
        if held:
            self.tell_held(held)
        if self.is_open and (self._start >= 0 or (self.is_waiting and done)):
            start = self._start if self._start >= 0 else self._end
            self.say(self._speaker, start, self._end, self.asides(start, self._end))
            self.is_waiting = False
        self._start = -1
        self.is_open = self.is_open and not done

    def tell_held(self, held: Line) -> None:
        """Add a paragraph outside of speeches; of its text, `held` has the first line."""
        self.paragraph(held.start, held.end)

    def asides(self, start: int, end: int) -> list[Aside]:
        """The pieces of a speech that are directions."""
        return bracketed(self.text, start, end)

    def heading(self, start: int, end: int) -> None:
        """Begin a scene with what its heading says; nothing is told of an empty span, which only parts scenes."""
        if self._told and (self._headed or self._spoken):
            self._scene += 1
        self.tell("narration", start, end, "scene")
        self._headed, self._told, self._spoken = True, False, False

    def tell(self, kind: TurnKind, start: int, end: int, speaker: str | None = None) -> None:
        """Add narration or a direction, unless there is nothing in it."""
        start, end = trim(self.text, start, end, "_*〔〕" if kind == "direction" else "")
        if start < end and _SPOKEN.search(self.text, start, end):
            self._add(speaker or ("narrator" if kind == "narration" else "stage direction"), kind, start, end)

    def paragraph(self, start: int, end: int, kind: TurnKind = "narration") -> None:
        """Add text outside of speeches: bracketed pieces as directions, the rest as `kind`."""
        at = start
        for aside in bracketed(self.text, start, end):
            self.tell(kind, at, aside.start)
            inner = aside.inner_start, aside.inner_end
            found = heading_of(self.text[slice(*inner)].replace("\n", " "))
            if found and found[1]:
                self.heading(inner[0] + found[0], inner[0] + found[1])
            else:
                self.tell("direction", *inner)
            at = aside.end
        self.tell(kind, at, end)

    def say(self, speaker: str | None, start: int, end: int, asides: Sequence[Aside] = ()) -> None:
        """Add a speech: what is spoken, and the directions in it, each as a turn of its own and in their order.

        Args:
            speaker: As the script writes the name.
            start: Where the speech begins.
            end: Where it ends.
            asides: Rising, inside the span; one that begins inside another is ignored.
        """
        spans: list[tuple[bool, int, int]] = []
        at = start
        for aside in asides:
            if aside.start >= at:
                spans.append((True, *trim(self.text, at, aside.start)))
                spans.append((False, *trim(self.text, aside.inner_start, aside.inner_end)))
                at = aside.end
        spans.append((True, *trim(self.text, at, end)))
        full = [span for span in spans if span[1] < span[2]]
        for spoken, low, high in full:
            if not spoken:
                self.tell("direction", low, high)
            # The full stop behind a direction is nothing said, but "…" alone is an answer.
            elif len(full) == 1 or _SPOKEN.search(self.text, low, high):
                self._add(speaker, "speech", low, high)
        if not full and not asides:
            # The script has the name and nothing under it.
            self._add(speaker, "speech", spans[0][1], spans[0][1])

    def _add(self, speaker: str | None, kind: TurnKind, start: int, end: int) -> None:
        content = " ".join(self.text[start:end].split())
        self.found.append(Found(speaker, content, kind, self._scene, start, end))
        self._told = True
        self._spoken = self._spoken or kind == "speech"


#: A number in a heading; for patterns that ignore case.
NUMBER: Final = (
    r"(?:[ivxlcdm]{1,9}|\d{1,4}[a-z]?|(?:the\s+)?(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|"
    r"(?:thir|four|fif|six|seven|eigh|nine)teen|(?:twen|thir|for|fif|six|seven|eigh|nine)ty|first|second|third|fourth|"
    r"fifth|sixth|seventh|eighth|ninth|tenth|last|final)(?:[- ](?:one|two|three|four|five|six|seven|eight|nine))?)"
)
# In English, in Chinese, and in other languages, where they are lines of their own.
_HEADING: Final = re.compile(
    rf"(?i:(?:(?:act|scene|sc)\b\.?\s*{NUMBER}\b|(?:the\s+)?(?:first|second|third|fourth|fifth|last)\s+(?:act|scene)\b"
    r"|scenes?(?=\s*[:：-]))"
    rf"(?:\s*[,;:.]?\s*(?:act|scene|sc)\b\.?\s*{NUMBER}\b)?"
    r"|(?:the\s+)?(?:scene|prologue|epilogue|induction|cold open|teaser|interlude|intermission|opening credits|"
    r"closing credits|end credits|commercial break)(?=\W*$))"
    r"[ \t]*(?:$|[.:：,;—–-]+[ \t]*(?P<rest>.*)$)"
    r"|(?:第\s*[一二三四五六七八九十百零〇两\d]{1,7}\s*[场場幕集折出回章节景]|[场場]景\s*[一二三四五六七八九十\d]{0,3}(?=\s*[：:]|$)|序幕|尾声|楔子|终场)"
    r"(?:\s*第\s*[一二三四五六七八九十百零〇两\d]{1,5}\s*[场場幕折出景])?"
    r"\s*(?:$|[：:，,。.、\s—-]+(?P<rest_zh>.*)$)"
    r"|(?P<act>(?i:(?:[^\W\d_]+\s+|\d{1,2}\.\s*)?"
    r"(?:acte|acto|atto|akt|aufzug|auftritt|scène|scene(?=\s+premi)|szene|scena|escena|действие|явление|сцена)"
    r"(?:\s+(?!(?:de|du|der|di)\b)[^\W_]+)?\s*[.:]?$))"
)
_SLUG: Final = re.compile(
    r"(?:[A-Z]?\d{1,4}[A-Z]?[.)]?\s+)?(?:(?i:INT|EXT)\.?\s?/\s?(?i:INT|EXT)\b\.?|(?i:I\s?/\s?E)\b\.?|(?i:INT|EXT)\.|(?:INT|EXT|EST)\b\.?)"
    r"\s*\S|(?:\d{1,4}\s*[.、)]?\s*)?(?:内景|外景|内/外景|內景)[\s.。，：:、]"
)
_SHORT: Final = 60
_RULE: Final = re.compile(r"(?:[*#~=_—–-]\s*){3,}$")


def heading_of(line: str) -> tuple[int, int] | None:
    """What a heading says, as a span of the line: what follows its label, else all of it; nothing of any other line.

    Brackets must be off already. A line of asterisks parts scenes and says nothing: an empty span.

    >>> heading_of("Scene 1: The galley.")
    (9, 20)
    """
    text = line.strip().strip("#*_ ")
    if not text or _RULE.match(line.strip()):
        return (0, 0) if line.strip() else None
    start = line.index(text)
    if match := _HEADING.match(text) if len(text) <= 500 else None:
        rest = match["rest"] or match["rest_zh"]
        return start + (match.end() - len(rest) if rest and rest.strip() else 0), start + len(text)
    return (start, start + len(text)) if slug(text) else None


def foreign_act(line: Line) -> bool:
    """Whether a line is an act's or scene's heading in another language than English, such as ``SCÈNE III.``."""
    match = _HEADING.match(line.text.strip()) if len(line.text) < _SHORT else None
    return bool(match and match["act"])


def slug(line: str) -> bool:
    """Whether a line is a screenplay's heading, such as ``INT. KITCHEN - DAY``."""
    return len(line) < 300 and _SLUG.match(line.strip().removeprefix(".")) is not None


def words_of(text: str) -> frozenset[str]:
    """The words of a list."""
    return frozenset(text.split())


#: Words that scripts have before a colon and that name nobody.
NOBODY: Final = words_of(
    "act acts author by cast characters chapter contact copyright credit credits cut date directed director draft "
    "episode exterior font form http https interior language location note notes part persons place plot premise "
    "produced producer ps release scene scenes season setting source stage story summary synopsis teleplay time title "
    "to transcribed transcriber transcript translated translator warning written 时间 地点 人物 人 时 地 景 场景 "
    "场次 场 布景 背景 作者 标题 题目 剧名 片名 编剧 导演 主演 演员 字幕 简介 注 备注 译注 译者注 注释 说明 提示 集 "
    "出场人物 登场人物 剧中人物 登場人物 時間 地點 場景 編劇 導演 改编 原著 译者 序 序幕 尾声 幕 词曰 诗曰 赋曰 诗云 "
    "词云 经云 语云 古云 偈云 偈曰"
)

#: Words that open sentences and no name: a line such as "Listen: I have it" continues with a speech.
OPENERS: Final = words_of(
    "a after again ah also alas although always an and answer any are as at ay aye be because before behold better but "
    "by can come consider could did do does done each either else enough even every except false far few finally for "
    "from further get give go good had has have he hear hence her here hers him his how however i if imagine in indeed "
    "is it its just last let like listen look may maybe me meanwhile mine more most much must my nay never next no "
    "nobody none nor not nothing now o of oh on once only or our ours out over peace perhaps please question remember "
    "result rule same say see she should since so some somebody something stay still such sure take tell than thank "
    "that the their them then there therefore these they thing think this those though thus today tomorrow true under "
    "unless until up us very wait was we well were what whatever when where whether which while who whom whose why "
    "will wish with without would yea yes yet you your yours"
)

#: Small words inside names.
PARTICLES: Final = words_of(
    "a an and at au aux bin da dal de del den der des di du e el en for from ibn in la las le les los of off on or "
    "the to und van von vom with y zu zum c etc s"
)

#: With one of these, a name is as a rule somebody else's: Young MARCIUS is not MARCIUS.
OTHERS: Final = words_of(
    "young younger old older elder little big senior junior sr jr ghost first second third fourth fifth sixth another "
    "other fake false dead mother mom dad son daughter wife husband widow servant voice all both and crowd"
)

#: Chinese titles behind a name.
TITLES_ZH: Final = words_of(
    "将军 先生 小姐 大人 师父 姑娘 公子 老师 医生 教授 队长 大哥 大姐 老爷 丞相 军师 大王 大圣 行者 皇帝 王爷 將軍 "
    "師父 老師 醫生"
)

_WORD: Final = re.compile(r"[^\W_]+")
_APOSTROPHE: Final = re.compile("['’‘ʼ＇`´]")

# Who says what in running Chinese text: "悟空道：" is a part of a sentence. The second kind ends names, too.
_SAYS: Final = re.compile("[说說道曰问問答叫喊喝骂罵笑想是]$")
_MAY_SAY: Final = re.compile("[写寫言呼念唱告报報奏讲講谓謂为為有在的了着過时時后後前上下中里裡]$")
_CHINESE_MARKS: Final = re.compile('[，。！？；、…“”‘’「」『』《》〈〉—―─～,.!?;"]')
# What a camera shows.
_SHOWN: Final = re.compile("(?:特写|[全中近远]景|空镜|镜头|画面|视角)$")
_LONGEST_HAN: Final = 10
_LONGEST_WORDS: Final = 6
_EXTENSION: Final = re.compile(r"\s*(?:[(（\[【][^()（）\[\]【】]{0,60}[)）\]】]|\^)\s*$")
_CONTINUED: Final = re.compile(
    r"\s*[-–—,]*\s*\(?\b(?:cont[’'.]?d?|continued|continuing|V\.?\s?O\.?|O\.\s?[SC]\.?)\)?\s*$", re.IGNORECASE
)


@lru_cache(maxsize=1 << 12)
def key(name: str) -> str:
    """What two spellings of one name share: its words, without case, width, punctuation and apostrophes.

    Names are one when their keys are equal; a name inside another is another name.

    >>> key("Dr. FRANK-N-FURTER") == key("dr frank n furter")
    True
    >>> key("Young MARCIUS") == key("Marcius")
    False
    """
    folded = _APOSTROPHE.sub("", unicodedata.normalize("NFKC", name)).casefold()
    return SPACE_BETWEEN_HAN.sub("", " ".join(_WORD.findall(folded))) or fold(name)


@lru_cache(maxsize=1 << 12)
def bare(name: str) -> str:
    """A name without the additions of scripts: ``(V.O.)``, ``(CONT'D)``, ``^``, emphasis, a full stop.

    >>> bare("_JOHN_ (V.O.) (CONT'D) ^")
    'JOHN'
    """
    rest = name.strip()
    for _ in range(6):
        cut = _EXTENSION.sub("", rest) if rest[-1:] in ")）]】^" else rest
        cut = _CONTINUED.sub("", cut).strip(" \t\u3000*_@:：")
        if cut == rest or not cut:
            break
        rest = cut
    # The stop of "Jr." or "J." is left: keys do not see it.
    return SPACE_BETWEEN_HAN.sub("", " ".join(rest.split()))


@lru_cache(maxsize=1 << 12)
def is_name(text: str, *, once: bool = False, loose: bool = False) -> bool:
    """Whether a text before a colon can be somebody's name.

    Args:
        text: Such as ``First Citizen``, ``MRS. HALE`` or ``郭翁``.
        once: It is found only once, so it has to look more like a name.
        loose: Its place says so already, so words after the first may be small, as in ``Voice within``.
    """
    name = " ".join(text.split())
    words = _WORD.findall(_APOSTROPHE.sub("", name))
    first = words[0].casefold() if words else ""
    if not words or len(name) > 60 or {fold(name), first} & NOBODY:
        return False
    if HAN.search(name):
        is_long = len(name) > _LONGEST_HAN + 6 * bool(re.search(r"[A-Za-z·・]", name))
        is_told = _SAYS.search(name) or _SHOWN.search(name) or (once and _MAY_SAY.search(name))
        return not (is_long or _CHINESE_MARKS.search(name) or is_told)
    # A sentence, but for "Jr." and "J."; and a list, but for "Senators, &c".
    is_ended = re.search(r"[.!?;,][\"”’']?$", name) and not re.search(r"(?i)\b(?:\w|[js]r|etc|&c)\.$", name)
    is_list = "," in name and not name.isupper() and not re.search(r"(?i)&\s?c|\betc\b", name)
    shaped = (loose and len(words) <= 4) or all(not word[0].islower() or word.casefold() in PARTICLES for word in words)
    # "1 Witch" and "2nd Guard" are names, "10" and "e4" are none.
    begins = re.match(r"\d{1,2}(?:st|nd|rd|th)?$", first) if words[-1][0].isalpha() else None
    begins_well = begins or (words[0][0].isalpha() and not words[0][0].islower())
    if len(words) > _LONGEST_WORDS or is_ended or is_list or not shaped or not begins_well:
        return False
    if first in ("a", "an", "the"):
        return len(words) > 1
    # What comes again with all its words capital is a name: Done Elvire, Will Pell.
    titled = len(words) > 1 and all(word[0].isupper() for word in words)
    return first not in OPENERS or (not once and (titled or name.isupper()))


def known_names(names: Iterable[str], asked: Iterable[str]) -> set[str]:
    """The keys of names asked for, and of what looks like a name; the more so if it comes only once."""
    spelled: dict[str, list[str]] = {}
    for name in names:
        spelled.setdefault(key(name), []).append(name)
    return {*map(key, asked)} | {name for name, same in spelled.items() if is_name(same[0], once=len(same) == 1)}
