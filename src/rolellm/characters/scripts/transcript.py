"""Transcripts: ``Name: line``, with or without a date and time in front of the name, as WhatsApp has them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from rolellm.characters.scripts.names import normalize_name, select_names
from rolellm.characters.scripts.play import Cue, DialogueCollector, read_cue
from rolellm.characters.scripts.reading import (
    ReaderHints,
    ScriptSource,
    ScriptTurn,
    find_heading,
    iterate_lines,
    iterate_paragraphs,
    load_script_patterns,
)
from rolellm.core.text import HAN

# In place of a picture, in exports of WhatsApp.
_OMITTED: Final = re.compile("<[^<>]+>")
_LABEL: Final = load_script_patterns("transcript")["label"]


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


def find_speakers(text: str, names: Sequence[str]) -> Mapping[int, Cue]:
    """Find the labels that name speakers, by where their lines begin.

    Args:
        text: `Source.text`.
        names: The role's.
    """
    labels: dict[int, Cue] = {}
    counts: Counter[str] = Counter()
    data: Counter[str] = Counter()
    for line in iterate_lines(text):
        label = read_label(line.text)
        if label is None:
            continue
        labels[line.start] = label
        if find_heading(f"{label.name}:") is None:
            key = normalize_name(label.name)
            counts[key] += 1
            data[key] += _is_data(line.text[label.end :])
    speakers = select_names((label.name for label in labels.values()), names)
    # Nobody says numbers again and again, as behind ``Updated:``.
    numbers = {name for name, count in counts.items() if data[name] * 2 > count > 2}
    requested = set(map(normalize_name, names))
    # Of one who is written small, so are the others.
    if any(label.name.islower() and normalize_name(label.name) in requested for label in labels.values()):
        speakers |= {name for name, count in counts.items() if count > 1}
    speakers &= (counts.keys() - numbers) | requested
    return {offset: label for offset, label in labels.items() if _names_all(label, speakers)}


def _names_all(label: Cue, speakers: set[str]) -> bool:
    """Tell whether a label names speakers only: several may speak at once."""
    if normalize_name(label.name) in speakers:
        return True
    parts = label.name.split("、")
    return len(parts) > 1 and speakers.issuperset(map(normalize_name, parts))


def _is_data(spoken: str) -> bool:
    """Tell whether a text is numbers and dates rather than words."""
    return sum(map(str.isdigit, spoken)) > sum(map(str.isalpha, spoken))


def read_transcript(source: ScriptSource, hints: ReaderHints) -> list[ScriptTurn]:
    """The turns of a transcript; lines without a name continue the speech above them, up to a blank line."""
    labels = find_speakers(source.text, hints.names)
    names = {normalize_name(label.name) for label in labels.values()}
    speech = DialogueCollector(source.text, names, bracketed=True)
    for line, first, _ in iterate_paragraphs(iterate_lines(source.text)):
        # Pages break sentences.
        if first and not speech.is_waiting and not line.text.lstrip()[0].islower():
            speech.close()
        speech.line(line, labels.get(line.start), first=first)
    speech.close()
    return [turn for turn in speech.found if not _OMITTED.fullmatch(turn.content)]
