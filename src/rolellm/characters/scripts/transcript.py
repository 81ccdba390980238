"""Transcripts: ``Name: line``; Yuan drama, whose brackets name speakers; Ren'Py; and logs of chats.

Logs keep to one way of opening messages, as plays do to one way of naming speakers: whichever finds most names that
come again. Messages of the program itself, which have a date and no name, are directions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import cache
from typing import Final

from rolellm.characters.scripts.names import find_names, is_name, normalize_name, select_names
from rolellm.characters.scripts.novel import find_subject
from rolellm.characters.scripts.play import Cue, Dialogue, make_cue, read_cue
from rolellm.characters.scripts.reading import (
    Collector,
    ReaderHints,
    ScriptLine,
    ScriptSource,
    ScriptTurn,
    find_heading,
    iterate_lines,
    iterate_paragraphs,
    load_script_patterns,
)
from rolellm.core.text import HAN

_LABEL: Final = load_script_patterns("transcript")["label"]
_LIKELY: Final = re.compile(r"<|\d[:.：]\d\d|^\s.*\"\s*$")
#: How logs open a message, with the date in front of the name or behind it; the message follows, or is below.
_LOGS: Final = load_script_patterns("logs")
_STAMPED: Final = _LOGS.pop("stamped")
_NOTICE: Final = re.compile(r"<[^<>\n]{3,60}>\s*")
# Ren'Py: define e = Character("Eileen").
_CHARACTER: Final = re.compile(r"^[^\S\n]*define (\w+) *= *Character\( *_?\(?[\"']([^\"'\n]+)", re.MULTILINE)
_NARRATION: Final = re.compile(r"\s*\"(?P<told>.+)\"\s*$")
# A label this many times rarer than a name in it may tell what that one does; but not where something is written.
_RARER: Final = 2
_WRITTEN: Final = re.compile("[写寫题題刻印][^，]{0,4}$|[上字是为為如]$")
_KIN: Final = re.compile(r"^[/+&]|[\d甲乙丙丁亲妈娘爸爹父母夫妻子女儿哥弟姐妹叔婶爷奶太奴仆兵长师人]$|家的$")
# Yuan drama: 〔正末云〕 inside of paragraphs; what comes before a comma is done, and a manner may precede the verb.
_STAGED: Final = re.compile(r"[〔（(](?P<told>[^〔〕（）()\n]{1,40}[云唱])[〕）)]")
_MANNER: Final = "诗词带背问"


def read_label(line: str) -> Cue | None:
    """The label of a line such as ``JOHN (sighs): Well.``; whether the name is one is left open."""
    match = _LABEL.match(line)
    if match is None:
        return None
    name, after = match["name"], line[match.end() : match.end() + 1]
    # "10:30" and "http://" are no labels; Chinese leaves no space behind a colon of either width.
    opens = match["mark"] or after.isupper() or after in "\"“'‘([…."
    if match["colon"] == ":" and after.strip() and not HAN.search(name + after) and not opens:
        return None
    return read_cue(match)


def _split_brackets(text: str) -> tuple[list[ScriptLine], dict[int, Cue]]:
    """The lines of a text, parted where a bracket in them names a speaker, and its name."""
    brackets = {match.start(): (match, "".join(match["told"].split())) for match in _STAGED.finditer(text)}
    plain = Counter(words[:-1].rstrip(_MANNER) for _, words in brackets.values() if "，" not in words)
    names = {name for name, count in plain.items() if is_name(name, once=count == 1)}
    cues: dict[int, Cue] = {}
    for offset, (match, words) in brackets.items():
        # Whoever is named last speaks, perhaps played by somebody; 〔唱〕 is the same speaker still.
        clauses = [clause[clause.find("扮") + 1 :] for clause in reversed(words.split("，"))]
        near = (clause[:end] for clause in clauses for end in range(1, len(clause) + 1) if clause[:end] in names)
        if name := next(near, None):
            cues[offset] = make_cue(name, match.end() - offset, (1, len(match[0]) - 1) if "，" in words else (0, 0))
    if not cues:
        return [], cues
    starts = sorted({*cues, *(line.start for line in iterate_lines(text))})
    ends = [after - (text[after - 1] == "\n") for after in starts[1:]]
    return [
        ScriptLine(start, end, text[start:end]) for start, end in zip(starts, [*ends, len(text)], strict=True)
    ], cues


def find_speakers(text: str, names: Sequence[str]) -> tuple[Iterable[ScriptLine], Mapping[int, Cue], str | None]:
    """The lines, by where they begin the labels that name speakers, and which kind of log it is, if any.

    Args:
        text: `Source.text`.
        names: The role's.
    """
    requested = set(map(normalize_name, names))
    best: dict[int, Cue] = {}
    # Not the lines themselves: a long text has as much of these as of anything.
    likely: list[tuple[int, int]] = []
    counts: Counter[str] = Counter()
    data: Counter[str] = Counter()
    for line in iterate_lines(text):
        if label := read_label(line.text):
            best[line.start] = label
            if find_heading(f"{label.name}:") is None:
                counts[normalize_name(label.name)] += 1
                data[normalize_name(label.name)] += _is_data(line.text[label.end :])
        if _LIKELY.search(line.text):
            likely.append((line.start, line.end))
    speakers = select_names((label.name for label in best.values()), names)
    # Nobody says numbers again and again, as behind ``Updated:``.
    speakers &= {name for name, count in counts.items() if not data[name] * 2 > count > 2} | requested
    often = {
        label.name: counts[normalize_name(label.name)]
        for label in best.values()
        if HAN.match(label.name) and normalize_name(label.name) in speakers
    }
    often = {name: count for name, count in often.items() if count > _RARER}

    @cache
    def others_in(label: str) -> frozenset[str]:
        times = _RARER * counts[normalize_name(label)]
        return frozenset(name for name in find_names(label, often) if often[name] > times > 0)

    for offset, label in best.items():
        if contained := others_in(label.name):
            best[offset] = _attribute_action(label, contained)
    # Several who speak at once.
    speakers |= {
        normalize_name(label.name)
        for label in best.values()
        if {normalize_name(part) for part in label.name.split("、")} <= speakers
    }
    best = {offset: label for offset, label in best.items() if normalize_name(label.name) in speakers}
    count, log_format = _count_repeated(best, requested), None
    lines, cues = _split_brackets(text)
    if _count_repeated(cues, requested) > count:
        return lines, cues, log_format
    for log, opening in _LOGS.items() if len(likely) > count else ():
        opened: dict[int, Cue] = {}
        for start, end in likely:
            match = opening.match(text, start, end)
            name = match["name"].strip().strip('~*"').strip() if match else ""
            if match and name:
                opened[start] = make_cue(name, match.end() - start)
        if (repeated := _count_repeated(opened, requested)) > count:
            best, count, log_format = opened, repeated, log
    return iterate_lines(text), best, log_format


def _attribute_action(label: Cue, names: Set[str]) -> Cue:
    """A Chinese label that tells what one of `names` does, such as ``小明点了点头：``, as that one's; else the same."""
    name = None if label.aside[1] or _WRITTEN.search(label.name) else find_subject(label.name, names)
    if name is None or name not in names:
        return label
    suffix = label.name.removeprefix(name)
    # 小明夫人, 刺客甲 and 小明/小红 are others.
    if len(suffix) < 2 or (suffix != label.name and _KIN.search(suffix)):
        return label
    return make_cue(name, label.end, (label.end - 1 - len(suffix), label.end - 1))


def _count_repeated(labels: Mapping[int, Cue], requested: set[str]) -> int:
    """Count the occurrences of names that come again."""
    counts = Counter(normalize_name(label.name) for label in labels.values())
    return sum(count for name, count in counts.items() if count > 1 or name in requested)


def _is_data(spoken: str) -> bool:
    """Tell whether a text is numbers and dates rather than words."""
    return sum(map(str.isdigit, spoken)) > sum(map(str.isalpha, spoken))


def read_transcript(source: ScriptSource, hints: ReaderHints) -> list[ScriptTurn]:
    """The turns of a transcript; lines without a name continue the speech above them, up to a blank line.

    In a chat log they do so up to the next message, and in the midst of a sentence over blank lines, too.
    """
    lines, labels, log_format = find_speakers(source.text, hints.names)
    if log_format is None:
        speech = Dialogue(source.text, {normalize_name(label.name) for label in labels.values()}, bracketed=True)
        for line, first, _ in iterate_paragraphs(lines):
            # Pages break sentences.
            if first and not speech.is_waiting and not line.text.lstrip()[0].islower():
                speech.close()
            speech.line(line, labels.get(line.start), first=first)
        speech.close()
        return speech.found
    # People in chats put what they say into brackets, too.
    out = Collector(source.text, has_asides=False)
    characters = dict(_CHARACTER.findall(source.text)) if log_format == "renpy" else {}
    for line in lines:
        label = labels.get(line.start)
        if log_format == "renpy":
            # All else is the program's.
            if text_match := _NARRATION.match(line.text, label.end - 1 if label else 0):
                span = line.start + text_match.start("told"), line.start + text_match.end("told")
                out.say(characters.get(label.name, label.name), *span) if label else out.add_told("narration", *span)
        elif label is not None and _is_notice(source, line.start + label.end, line.end):
            out.close()
            out.add_told("direction", line.start + label.end, line.end)
        elif label is not None:
            out.open(label.name, line, label.end)
        elif out.is_open and log_format != "irc" and not _STAMPED.match(line.text):
            if not line.blank:
                out.continue_speech(line)
        elif not line.blank:
            # What the program says, such as who joined; in IRC, a message is one line.
            out.close()
            out.add_told("direction", line.start, line.end)
    out.close()
    return out.found


def _is_notice(source: ScriptSource, start: int, end: int) -> bool:
    """Tell whether a message is the program's: ``<Media omitted>``, or behind an invisible mark (WhatsApp, iOS)."""
    is_marked = 0 < start < end and source.place(start, end)[0] > source.place(start - 1, start)[1]
    return is_marked or _NOTICE.fullmatch(source.text, start, end) is not None
