"""Transcripts: ``Name: line``; and logs of chats.

Logs keep to one way of opening messages, as plays do to one way of naming speakers: whichever finds most names that
come again. Messages of the program itself, which have a date and no name, are directions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from rolellm.characters.scripts.names import normalize_name, select_names
from rolellm.characters.scripts.play import Cue, Dialogue, make_cue, read_cue
from rolellm.characters.scripts.reading import (
    Collector,
    ReaderHints,
    ScriptSource,
    ScriptTurn,
    find_heading,
    iterate_lines,
    iterate_paragraphs,
    load_script_patterns,
)
from rolellm.core.text import HAN

_LABEL: Final = load_script_patterns("transcript")["label"]
_LIKELY: Final = re.compile(r"<|\d[:.：]\d\d")
#: How logs open a message, with the date in front of the name or behind it; the message follows, or is below.
_LOGS: Final = load_script_patterns("logs")
_STAMPED: Final = _LOGS.pop("stamped")
_NOTICE: Final = re.compile(r"<[^<>\n]{3,60}>\s*")


def read_label(line: str) -> Cue | None:
    """The label of a line such as ``JOHN (sighs): Well.``; whether the name is one is left open."""
    match = _LABEL.match(line)
    if match is None:
        return None
    name = match["name"]
    after = line[match.end() : match.end() + 1]
    # "10:30" and "http://" are no labels; Chinese leaves no space behind a colon of either width.
    opens = match["mark"] or after.isupper() or after in "\"“'‘([…."
    is_tight = match["colon"] == ":" and after.strip() != ""
    if is_tight and not opens and not HAN.search(name + after):
        return None
    return read_cue(match)


def find_speakers(text: str, names: Sequence[str]) -> tuple[Mapping[int, Cue], str | None]:
    """Find the labels that name speakers, by where their lines begin, and which kind of log it is, if any.

    Args:
        text: `Source.text`.
        names: The role's.
    """
    requested = set(map(normalize_name, names))
    labels: dict[int, Cue] = {}
    # Not the lines themselves: a long text has as much of these as of anything.
    likely: list[tuple[int, int]] = []
    counts: Counter[str] = Counter()
    data: Counter[str] = Counter()
    for line in iterate_lines(text):
        label = read_label(line.text)
        if label is not None:
            labels[line.start] = label
            if find_heading(f"{label.name}:") is None:
                key = normalize_name(label.name)
                counts[key] += 1
                data[key] += _is_data(line.text[label.end :])
        if _LIKELY.search(line.text):
            likely.append((line.start, line.end))
    speakers = select_names((label.name for label in labels.values()), names)
    # Nobody says numbers again and again, as behind ``Updated:``.
    numbers = {name for name, count in counts.items() if data[name] * 2 > count > 2}
    speakers &= (counts.keys() - numbers) | requested
    best = {offset: label for offset, label in labels.items() if _names_all(label, speakers)}
    count = _count_repeated(best, requested)
    log_format = None
    if len(likely) <= count:
        return best, log_format
    for log, opening in _LOGS.items():
        opened: dict[int, Cue] = {}
        for start, end in likely:
            match = opening.match(text, start, end)
            name = match["name"].strip().strip('~*"').strip() if match else ""
            if match and name:
                opened[start] = make_cue(name, match.end() - start)
        repeated = _count_repeated(opened, requested)
        if repeated > count:
            best, count, log_format = opened, repeated, log
    return best, log_format


def _names_all(label: Cue, speakers: set[str]) -> bool:
    """Tell whether a label names speakers only: several may speak at once."""
    if normalize_name(label.name) in speakers:
        return True
    parts = label.name.split("、")
    return len(parts) > 1 and speakers.issuperset(map(normalize_name, parts))


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
    labels, log_format = find_speakers(source.text, hints.names)
    if log_format is not None:
        return _read_log(source, labels, log_format)
    names = {normalize_name(label.name) for label in labels.values()}
    speech = Dialogue(source.text, names, bracketed=True)
    for line, first, _ in iterate_paragraphs(iterate_lines(source.text)):
        # Pages break sentences.
        if first and not speech.is_waiting and not line.text.lstrip()[0].islower():
            speech.close()
        speech.line(line, labels.get(line.start), first=first)
    speech.close()
    return speech.found


def _read_log(source: ScriptSource, labels: Mapping[int, Cue], log_format: str) -> list[ScriptTurn]:
    # People in chats put what they say into brackets, too.
    out = Collector(source.text, has_asides=False)
    for line in iterate_lines(source.text):
        label = labels.get(line.start)
        if label is not None:
            start = line.start + label.end
            if _is_notice(source, start, line.end):
                out.close()
                out.add_told("direction", start, line.end)
            else:
                out.open(label.name, line, label.end)
        elif line.blank:
            continue
        elif out.is_open and log_format != "irc" and not _STAMPED.match(line.text):
            out.continue_speech(line)
        else:
            # What the program says, such as who joined; in IRC, a message is one line.
            out.close()
            out.add_told("direction", line.start, line.end)
    out.close()
    return out.found


def _is_notice(source: ScriptSource, start: int, end: int) -> bool:
    """Tell whether a message is the program's: ``<Media omitted>``, or behind an invisible mark (WhatsApp, iOS)."""
    if 0 < start < end:
        message_start, _ = source.place(start, end)
        _, opening_end = source.place(start - 1, start)
        if message_start > opening_end:
            return True
    return _NOTICE.fullmatch(source.text, start, end) is not None
