"""Transcripts: ``Name: line``; Yuan drama, whose brackets name speakers; Ren'Py; and logs of chats.

Logs keep to one way of opening messages, as plays do to one way of naming speakers: whichever finds most names that
come again. Messages of the program itself, which have a date and no name, are directions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from rolellm.construct.scripts.novel import subject_of
from rolellm.construct.scripts.play import Cue, Dialogue, same_cue
from rolellm.construct.scripts.reading import (
    Aside,
    Collector,
    Found,
    Hints,
    Line,
    Source,
    bare,
    heading_of,
    is_name,
    key,
    known_names,
    lines_of,
    paragraphs_of,
)
from rolellm.core.text import HAN, chinese_tags

_LABEL: Final = re.compile(
    r"[ \t\u3000]{0,60}"
    r"(?:[\[(（【]?\d{1,2}[:：]\d{2}(?:[:：]\d{2})?(?:[.,]\d{1,3})?[\])）】]?[ \t]{0,4}[-–—]?[ \t]{0,4})?"
    r"(?P<mark>[*_]{0,3})"
    r"(?P<name>[^\W_](?:(?:[^:：()（）\[\]【】<>*_\"“”「」『』\n]|(?<=[\w.'])_(?=[\w#])){0,58}[^\s:：()（）\[\]【】<>*_\"“”「」『』])?)"
    r"[*_]{0,3}[ \t\u3000]{0,4}[*_]{0,3}"
    r"(?P<aside>\([^()\n]{0,120}\)|（[^（）\n]{0,120}）|\[[^\[\]\n]{0,120}\]|【[^【】\n]{0,120}】)?[ \t\u3000]{0,4}"
    r"[*_]{0,3}(?P<colon>[:：])[*_]{0,3}"
)
_DATE: Final = (
    r"(?:\d{1,4}[-./年 ](?:\d{1,2}|[^\W\d_]{3,9}\.?)[-./月 ]\d{1,4}日?|[^\W\d_]{3,9}\.? \d{1,2}(?:,? \d{4})?)"
)
_TIME: Final = r"(?:[上下]午)?\d{1,2}[:.：]\d{2}(?:[:.：]\d{2})?(?:[.,]\d{1,6})?(?:\s?[AaPp]\.?\s?[Mm]\b\.?)?"
_BOTH: Final = rf"{_DATE},?[ T]{{0,3}}(?:at )?{_TIME}"
_STAMP: Final = rf"(?:[\[(](?:{_BOTH}|{_TIME})[\])]|(?:{_BOTH}|{_TIME}))"
_STAMPED: Final = re.compile(rf"\s*{_STAMP}")
_LIKELY: Final = re.compile(r"<|\d[:.：]\d\d|^\s.*\"\s*$")
#: How logs open a message, with the date in front of the name or behind it; the message follows, or is below.
_OPENINGS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        # IRC: [10:20] <nick> text; nick is an operator with @ or +.
        rf"\s*(?:{_STAMP}\s*)?<[@+%&~! ]?(?P<name>[^<>\n]{{1,40}})>[ \t]+",
        # WhatsApp: [1/2/23, 10:20:00] Name: text, or 1/2/23, 10:20 - Name: text.
        rf"\s*{_STAMP}(?:\s*[-–—]\s*|\s+)(?P<name>[^\n:：\[\]]{{1,60}})[:：](?=\s|$)[ \t]*",
        rf"\s*{_STAMP}\t\s*(?P<name>[^\n\t]{{1,40}})\t",
        # Discord, WeChat and QQ: the name behind the date, or in front of it, and the message below.
        rf"\s*{_STAMP}\s+(?P<name>[^\s:：][^\n:：]{{0,59}})$",
        # So, too, Otter's transcripts, in which there is only a time.
        rf"\s*(?P<name>[^\s<\[][^\n]{{0,59}}?)"
        rf"(?:(?:,|[ ][—–-])[ ](?:[^\W\d_]+[ ]){{0,2}}{_STAMP}|[ \t]+{_BOTH}|[ \t]{{2,9}}{_TIME}\s*)$",
        # Ren'Py: eileen "Text.", in a block.
        r"\s+(?P<name>[^\W\d]\w*|\"[^\"\n]{1,40}\") +\"(?=[^\"\n].*\"\s*$)",
    )
)
_IRC, _RENPY = 0, 5
_NOTICE: Final = re.compile(r"<[^<>\n]{3,60}>\s*")
# Ren'Py: define e = Character("Eileen").
_CHARACTER: Final = re.compile(r"^\s*define (\w+) *= *Character\( *_?\(?[\"']([^\"'\n]+)", re.MULTILINE)
_TOLD: Final = re.compile(r"\s*\"(?P<told>.+)\"\s*$")
# A label that comes no more often may tell what somebody does; but not where something is written.
_RARE: Final = 2
_WRITTEN: Final = re.compile("[写寫题題刻印][^，]{0,4}$|[上字是为為如]$")
# Yuan drama: 〔正末云〕 inside of paragraphs; what comes before a comma is done, and a manner may precede the verb.
_STAGED: Final = re.compile(r"[〔（(](?P<told>[^〔〕（）()\n]{1,40}[云唱])[〕）)]")
_MANNER: Final = "诗词带背问"


def label_of(line: str) -> Cue | None:
    """The label of a line such as ``JOHN (sighs): Well.``; whether the name is one is left open."""
    match = _LABEL.match(line)
    if match is None:
        return None
    name, after = match["name"], line[match.end() : match.end() + 1]
    # "10:30" and "http://" are no labels; Chinese leaves no space behind a colon of either width.
    opens = match["mark"] or after.isupper() or after in "\"“'‘([…."
    if match["colon"] == ":" and after.strip() and not HAN.search(name + after) and not opens:
        return None
    return same_cue(bare(name), match.end(), match.span("aside") if match["aside"] else (0, 0))


def _staged(text: str) -> tuple[list[Line], dict[int, Cue]]:
    """The lines of a text, parted where a bracket in them names a speaker, and its name."""
    told = {match.start(): (match, "".join(match["told"].split())) for match in _STAGED.finditer(text)}
    plain = Counter(words[:-1].rstrip(_MANNER) for _, words in told.values() if "，" not in words)
    known = sorted((name for name, count in plain.items() if is_name(name, once=count == 1)), key=len)
    cues: dict[int, Cue] = {}
    for place, (match, words) in told.items():
        # Whoever is named last speaks, perhaps played by somebody; 〔唱〕 is the same speaker still.
        clauses = [clause[clause.find("扮") + 1 :] for clause in reversed(words.split("，"))]
        near = (name for clause in clauses for name in known if clause.startswith(name))
        if name := next(near, None):
            cues[place] = same_cue(name, match.end() - place, (1, len(match[0]) - 1) if "，" in words else (0, 0))
    if not cues:
        return [], cues
    starts = sorted({*cues, *(line.start for line in lines_of(text))})
    ends = [after - (text[after - 1] == "\n") for after in starts[1:]]
    return [Line(start, end, text[start:end]) for start, end in zip(starts, [*ends, len(text)], strict=True)], cues


def speakers_of(text: str, names: Sequence[str]) -> tuple[Iterable[Line], Mapping[int, Cue], int | None]:
    """The lines, by where they begin the labels that name speakers, and for a log which of `_OPENINGS` it keeps to.

    Args:
        text: `Source.text`.
        names: The role's.
    """
    asked = set(map(key, names))
    best: dict[int, Cue] = {}
    # Not the lines themselves: a long text has as much of these as of anything.
    likely: list[tuple[int, int]] = []
    said: Counter[str] = Counter()
    data: Counter[str] = Counter()
    for line in lines_of(text):
        if label := label_of(line.text):
            best[line.start] = label
            if heading_of(f"{label.name}:") is None:
                said[key(label.name)] += 1
                data[key(label.name)] += _is_data(line.text[label.end :])
        if _LIKELY.search(line.text):
            likely.append((line.start, line.end))
    known = known_names((label.name for label in best.values()), names)
    # Nobody says numbers again and again, as behind ``Updated:``.
    known &= {name for name, count in said.items() if not data[name] * 2 > count > 2} | asked
    often = {one.name for one in best.values() if said[key(one.name)] > _RARE and HAN.match(one.name)}
    often = {name for name in often if key(name) in known}
    best = {place: _done_by(label, often) if said[key(label.name)] <= _RARE else label for place, label in best.items()}
    # Several who speak at once.
    known |= {key(one.name) for one in best.values() if {key(part) for part in one.name.split("、")} <= known}
    best = {place: label for place, label in best.items() if key(label.name) in known}
    count, kept = _repeated(best, asked), None
    lines, cues = _staged(text)
    if _repeated(cues, asked) > count:
        return lines, cues, kept
    for number, opening in enumerate(_OPENINGS if len(likely) > count else ()):
        opened: dict[int, Cue] = {}
        for start, end in likely:
            match = opening.match(text, start, end)
            name = match["name"].strip().strip('~*"').strip() if match else ""
            if match and name:
                opened[start] = same_cue(name, match.end() - start)
        if (found := _repeated(opened, asked)) > count:
            best, count, kept = opened, found, number
    return lines_of(text), best, kept


def _done_by(label: Cue, names: Collection[str]) -> Cue:
    """A Chinese label that tells what one of `names` does, such as ``小明点了点头：``, as that one's; else the same."""
    if label.name in names or label.aside[1] or _WRITTEN.search(label.name):
        return label
    name = subject_of(label.name, names) if any(name in label.name for name in names) else None
    if name is None or name not in names:
        return label
    rest = label.name.removeprefix(name)
    # 小明夫人, 刺客甲 and 小明/小红 are others.
    if (
        len(rest) < 2
        or rest[0] in "/+&"
        or (rest != label.name and all(tag.startswith("n") for _, tag in chinese_tags()(rest)))
    ):
        return label
    return same_cue(name, label.end, (label.end - 1 - len(rest), label.end - 1))


def _repeated(labels: Mapping[int, Cue], asked: set[str]) -> int:
    """How often a name is found that comes again."""
    counts = Counter(key(label.name) for label in labels.values())
    return sum(count for name, count in counts.items() if count > 1 or name in asked)


def _is_data(spoken: str) -> bool:
    """Whether a text is numbers and dates rather than words."""
    return sum(map(str.isdigit, spoken)) > sum(map(str.isalpha, spoken))


def read_transcript(source: Source, hints: Hints) -> list[Found]:
    """The turns of a transcript; lines without a name continue the speech above them, up to a blank line.

    In a chat log they do so up to the next message, and in the midst of a sentence over blank lines, too.
    """
    lines, labels, kept = speakers_of(source.text, hints.names)
    if kept is None:
        speech = Dialogue(source.text, {key(label.name) for label in labels.values()}, bracketed=True)
        for line, first, _ in paragraphs_of(lines):
            # Pages break sentences.
            if first and not speech.is_waiting and not line.text.lstrip()[0].islower():
                speech.close()
            speech.line(line, labels.get(line.start), first=first)
        speech.close()
        return speech.found
    out = _Log(source.text)
    called = dict(_CHARACTER.findall(source.text)) if kept == _RENPY else {}
    for line in lines:
        label = labels.get(line.start)
        if kept == _RENPY:
            # All else is the program's.
            if told := _TOLD.match(line.text, label.end - 1 if label else 0):
                place = line.start + told.start("told"), line.start + told.end("told")
                out.say(called.get(label.name, label.name), *place) if label else out.tell("narration", *place)
        elif label is not None and _is_notice(source, line.start + label.end, line.end):
            out.close()
            out.tell("direction", line.start + label.end, line.end)
        elif label is not None:
            out.open(label.name, line, label.end)
        elif out.is_open and kept != _IRC and not _STAMPED.match(line.text):
            if not line.blank:
                out.extend(line)
        elif not line.blank:
            # What the program says, such as who joined; in IRC, a message is one line.
            out.close()
            out.tell("direction", line.start, line.end)
    out.close()
    return out.found


def _is_notice(source: Source, start: int, end: int) -> bool:
    """Whether a message is the program's: ``<Media omitted>``, or behind an invisible mark, as in WhatsApp on iOS."""
    is_marked = 0 < start < end and source.place(start, end)[0] > source.place(start - 1, start)[1]
    return is_marked or _NOTICE.fullmatch(source.text, start, end) is not None


class _Log(Collector):
    def asides(self, start: int, end: int) -> list[Aside]:
        """None: people in chats put what they say into brackets, too."""
        return []
