"""A script and the name of a role → turns: read in its format, the role's own put under its name, the rest tallied."""

from __future__ import annotations

import importlib
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final, get_args

from rolellm.construct.scripts import play, screenplay, subtitles, table, transcript
from rolellm.construct.scripts.aliases import Proposal, nearest, propose
from rolellm.construct.scripts.reading import Format, Found, Hints, Reader, Source, foreign_act, key, lines_of, slug
from rolellm.construct.scripts.source import read_source, source_of
from rolellm.construct.scripts.turns import TOLD
from rolellm.core.errors import ScriptError, SettingsError
from rolellm.core.records import UNKNOWN, Language, Turn
from rolellm.core.text import HAN
from rolellm.rolebench.profiles import narrates

_SAMPLE: Final = 100_000
# A guess that less than half of the text bears out is none.
_LEAST: Final = 0.5
# Lines, not counting blank ones. Even where speeches are long, as many name a speaker or hold a quotation.
_BLOCK: Final = 40
_LATIN: Final = re.compile("[A-Za-z\u00c0-\u024f]")
# A Chinese character says about as much as three letters; with five, subtitles in both languages are Chinese.
_LETTERS_A_HAN: Final = 5
_QUOTED: Final = re.compile("[“「『\"«„]|(?:^|(?<=\\s))[‘']", re.MULTILINE)
_SAID_QUOTED: Final = re.compile("[^\\S\n]*[“「『\"«„‘']")
# Acts, scenes, entrances and exits.
_STAGED: Final = re.compile(
    r"^[ \t]*(?:(?:ACT|SCENE|Act|Scene)\s+[IVXLC\d]{1,6}|[\[_(]{0,2}(?:Enter|Exit|Exeunt|ENTER|EXIT|EXEUNT))\b",
    re.MULTILINE,
)
_CHINESE_ACT: Final = re.compile(r"^[ \t\u3000]*第[一二三四五六七八九十\d]{1,3}幕", re.MULTILINE)
_TABLES: Final = (".csv", ".tsv", ".jsonl", ".json")
_PREVIEWED: Final = 3
# In a dialogue, at least every fifth speech is another's than the one before.
_MONOLOGUE: Final = 5
# Letters that tell a language, and speeches and characters that are looked at.
_TELLING, _SPEECHES, _ENOUGH = 40, 200, 5000


def detect_language(text: str) -> Language:
    """``zh`` where Chinese characters outweigh Latin letters, five of which count as one; else ``en``."""
    sample = _sampled(text)
    return "zh" if len(HAN.findall(sample)) * _LETTERS_A_HAN > len(_LATIN.findall(sample)) else "en"


def spoken_language(text: str) -> str | None:
    """The language of a text as a code of ISO 639, such as ``de``; ``None`` where that cannot be told."""
    if sum(map(str.isalpha, text)) < _TELLING:
        return None
    import pycld2

    # It takes no character that cannot be printed.
    seen = "".join(char if char.isprintable() else " " for char in text[:_ENOUGH])
    sure, _, [(_, code, *_), *_] = pycld2.detect(seen)
    # "zh-Hant"
    return str(code).split("-")[0] if sure and code != "un" else None


def detect_format(text: str, hints: Hints, path: Path | None = None) -> tuple[Format, dict[Format, float]]:
    """The format of a script, and each format's score.

    A score is the share of the text that bears the format out: of its blocks of 40 lines, those in which a speaker who
    speaks again is named in that way (of a novel: those with quotations). It is 0 unless two speak, or one asked for.

    Args:
        text: `Source.text`.
        hints: Names that are known to speak.
        path: The file, for messages.

    Raises:
        ScriptError: When no score reaches 0.5; shows how the two nearest formats would read it.
    """
    sample = _sampled(text)
    # JSON that is cut off is none.
    whole = text if sample.lstrip()[:1] in ("[", "{") else sample
    if hints.columns or (path is not None and path.suffix.lower() in _TABLES) or table.is_table(whole):
        return "table", {name: float(name == "table") for name in FORMATS}
    found: dict[Format, Sequence[int]] = {
        "subtitles": [line.start for line in lines_of(sample) if subtitles.TIMES.match(line.text)],
        "play": _play(sample, hints),
        "screenplay": _screenplay(sample),
        "transcript": _transcript(sample, hints),
        "novel": [match.start() for match in _QUOTED.finditer(sample)],
    }
    starts = [line.start for line in lines_of(sample) if not line.blank]
    scores: dict[Format, float] = dict.fromkeys(FORMATS, 0.0)
    for name, places in found.items():
        told = {(bisect_right(starts, place) - 1) // _BLOCK for place in places}
        scores[name] = len(told) / max(1, -(-len(starts) // _BLOCK))
    # Verses that end in a colon, too, look like a transcript's lines.
    often = {name: len(places) * (0.8 if name == "transcript" else 1) for name, places in found.items()}
    rank = {"subtitles": 2, "novel": 0}
    best = max(found, key=lambda name: (scores[name] >= _LEAST, rank.get(name, 1), round(scores[name], 1), often[name]))
    if scores[best] >= _LEAST:
        return best, scores
    shown = ", ".join(f"{name} {score:.2f}" for name, score in scores.items())
    message = (
        "the format is not clear: no way of naming speakers, and no quoted speech, goes through the text (scores: "
        f"{shown}; at least {_LEAST} expected). Name it: --format {', '.join(FORMATS)}"
    )
    for name in sorted(filter(scores.get, scores), key=lambda name: -scores[name])[:2]:
        spoken = [turn for turn in _reader(name)(source_of(text[:_SAMPLE]), hints) if turn.kind == "speech"]
        message += f"\nWith --format {name} it would begin:" if spoken else ""
        message += "".join(f"\n  {turn.speaker or UNKNOWN:.40}: {turn.content:.60}" for turn in spoken[:_PREVIEWED])
    raise ScriptError(message, path=path)


def _sampled(text: str) -> str:
    """Two pieces: front matter tells little of what follows."""
    middle = len(text) // 2
    return text if middle <= _SAMPLE else f"{text[:_SAMPLE]}\n\n{text[middle : middle + _SAMPLE]}"


def _spoken(cues: Sequence[tuple[str, int]], asked: Set[str], least: int = 2) -> list[int]:
    """The places of cues, if they are a dialogue's: several speak, in turns, and one of them at least twice.

    Of one who is asked for, once and alone is enough.
    """
    counts = Counter(name for name, _ in cues)
    turns = sum(one != two for (one, _), (two, _) in pairwise(cues))
    is_dialogue = len(counts) > 1 and turns * _MONOLOGUE >= len(cues) and max(counts.values()) >= least
    return [place for _, place in cues] if asked & counts.keys() or is_dialogue else []


def _screenplay(text: str) -> list[int]:
    slugs = [line.start for line in lines_of(text) if slug(line.text)]
    # Names in capitals on lines of their own are found in tables and poems, too.
    return slugs + _spoken(screenplay.cues_of(text), frozenset(), least=2 if slugs else 3)


def _play(text: str, hints: Hints) -> list[int]:
    asked = frozenset(map(key, hints.names))
    cast = play.cast_of(text, asked)
    is_bare = cast is not None and cast.way == "bare"
    staged = _STAGED.search(text) or any(map(foreign_act, lines_of(text))) or (is_bare and _CHINESE_ACT.search(text))
    # A line such as "JOHN: Well." is a transcript's, and names alone are a screenplay's, but for acts and entrances.
    ways = ["colon", "bare", "small", *(["gap"] if any(slug(line.text) for line in lines_of(text)) else [])]
    if cast is None or (cast.way in ways and not staged):
        return []
    return _spoken([(key(cue.name), place) for place, cue in cast.cues.items()], asked)


def _transcript(text: str, hints: Hints) -> list[int]:
    asked = set(map(key, hints.names))
    _, labels, _ = transcript.speakers_of(text, hints.names)
    # A novel's "the king said:" is followed by a quotation mark.
    named = [
        (key(label.name), place)
        for place, label in labels.items()
        if key(label.name) in asked or not _SAID_QUOTED.match(text, place + label.end)
    ]
    return _spoken(named, asked)


FORMATS: Final[tuple[Format, ...]] = get_args(Format)

_NAMED: Final = 12
_LONG: Final = 1000
_TIMES_LONGER: Final = 20
# How many speakers are looked at, of those with the most speeches, and the least that they must have.
_TOP: Final = 5
_MUCH: Final = 20


@dataclass(frozen=True, slots=True)
class Reading:
    """A script as its reader found it, before anybody is asked for.

    Attributes:
        source: The text.
        hints: What the reader was told.
        format: What it was read as.
        format_scores: Each format's score, where the format was detected; empty where it was named.
        found: The turns.
    """

    source: Source
    hints: Hints
    format: Format
    format_scores: Mapping[Format, float]
    found: Sequence[Found]


@dataclass(frozen=True, slots=True)
class Parsed(Reading):
    """A script, read for one role.

    Attributes:
        role: The name asked for.
        aliases: The other names it was asked for under.
        turns: In the order of the script; what the role says carries `role` as speaker under whatever name.
        speakers: For each turn, the name as the script has it (`UNKNOWN` where the speaker was not found).
        proposals: Other speakers that may be the role, for a person to confirm.
    """

    role: str
    aliases: tuple[str, ...]
    turns: tuple[Turn, ...]
    speakers: tuple[str, ...]
    proposals: tuple[Proposal, ...] = ()

    @property
    def language(self) -> Language:
        """``en`` or ``zh``."""
        return self.hints.language

    @property
    def encoding(self) -> str:
        """How the file was decoded."""
        return self.source.encoding

    @property
    def scenes(self) -> int:
        """How many scenes have a turn."""
        return len({turn.scene for turn in self.turns})

    @property
    def own(self) -> dict[str, int]:
        """How many speeches the role has under each of its names, as the script writes them; 0 for unused names."""
        counts = self._tally(own=True)
        used = {key(name) for name in counts}
        return counts | {name: 0 for name in (self.role, *self.aliases) if key(name) not in used}

    @property
    def others(self) -> dict[str, int]:
        """How many speeches every other speaker has, most first."""
        return self._tally(own=False)

    def _tally(self, *, own: bool) -> dict[str, int]:
        """Speeches by name, most first; spellings of one name under the most frequent one."""
        spoken = Counter(
            name
            for turn, name in zip(self.turns, self.speakers, strict=True)
            if turn.kind == "speech" and (turn.speaker == self.role) == own and (own or turn.speaker != UNKNOWN)
        )
        counts: Counter[str] = Counter()
        spelled: dict[str, str] = {}
        for name, count in spoken.most_common():
            counts[spelled.setdefault(key(name), name)] += count
        return dict(counts.most_common())

    @property
    def unattributed(self) -> tuple[Turn, ...]:
        """Speeches whose speaker was not found."""
        return tuple(turn for turn in self.turns if turn.kind == "speech" and turn.speaker == UNKNOWN)

    @property
    def open_share(self) -> float:
        """The share of speeches whose speaker was not found."""
        return len(self.unattributed) / max(1, sum(turn.kind == "speech" for turn in self.turns))

    @property
    def empty(self) -> tuple[Turn, ...]:
        """Speeches of which the script has only the speaker's name."""
        return tuple(turn for turn in self.turns if not turn.content)

    @property
    def long(self) -> tuple[Turn, ...]:
        """Unusually long speeches, which may hold others' speech: over 1,000 characters and 20 times the median."""
        lengths = [len(turn.content) for turn in self.turns if turn.kind == "speech"]
        limit = max(_LONG, _TIMES_LONGER * median(lengths)) if lengths else 0
        return tuple(turn for turn in self.turns if turn.kind == "speech" and len(turn.content) > limit)

    @property
    def spoken_in(self) -> str | None:
        """The language of what is said, as a code of ISO 639, such as ``de``; ``None`` if unclear."""
        return spoken_language(" ".join(turn.content for turn in self.turns[:_SPEECHES]))

    @property
    def left_out(self) -> float:
        """Share of the text that is in no turn: names, headings, what was left out."""
        told = at = 0
        # Rows and messages that share a place are counted once.
        for item in self.found:
            told += max(0, item.end - max(at, item.start))
            at = max(at, item.end)
        return 1 - told / len(self.source.text)

    @property
    def unaddressed(self) -> dict[str, int]:
        """Who speaks much and whom nothing else names: no speech of another, no direction. It may be no name.

        Where only two speak, they need no names.
        """
        others = list(self.others.items()) if len(self.others) > 1 else []
        often = [(name, count) for name, count in others[:_TOP] if count >= _MUCH and name != "I"]
        return {name: count for name, count in often if not self._is_named(key(name))}

    def _is_named(self, name: str) -> bool:
        # Of a Chinese name, what friends call; of others, any word, and what an abbreviation stands for.
        words = rf"\b(?:{'|'.join(map(re.escape, name.split()))})"
        pattern = re.compile(name[-2:] if HAN.search(name) else words, re.IGNORECASE)
        said = zip(self.turns, self.speakers, strict=True)
        return any(pattern.search(turn.content) for turn, speaker in said if key(speaker) != name)

    @property
    def health(self) -> dict[str, Any]:
        """What may have gone wrong: speeches without a speaker, long ones, broken quotation marks, and the like."""
        return {
            "speaker_not_found": round(self.open_share, 4),
            "mended_quotations": sum(item.is_mended for item in self.found),
            "long_speeches": _counted(self.long),
            "one_character_speakers": {
                name: count for name, count in self.others.items() if len(name) == 1 and name != "I"
            },
            "unaddressed_speakers": self.unaddressed,
            "text_in_no_turn": round(self.left_out, 4),
            "language": self.spoken_in,
        }

    def to_dict(self) -> dict[str, Any]:
        """Everything but the turns, for JSON, with the first few speeches whose speaker was not found."""
        kinds = Counter(turn.kind for turn in self.turns)
        return {
            "script": None if self.source.path is None else str(self.source.path),
            "characters": self.source.length,
            "encoding": self.encoding,
            "language": self.language,
            "format": self.format,
            "format_scores": {name: round(score, 4) for name, score in self.format_scores.items()},
            "role": self.role,
            "aliases": list(self.aliases),
            "scenes": self.scenes,
            "turns": {kind: kinds[kind] for kind in ("speech", "narration", "direction")},
            "own": self.own,
            "others": self.others,
            "unattributed": _counted(self.unattributed),
            "empty": _counted(self.empty),
            "health": self.health,
            "proposals": [{"name": it.name, "turns": it.turns, "reason": it.reason} for it in self.proposals],
        }


def _counted(turns: Sequence[Turn]) -> dict[str, Any]:
    kept = ("speaker", "start", "end", "content")
    return {"turns": len(turns), "first": [{name: getattr(turn, name) for name in kept} for turn in turns[:_NAMED]]}


def read_script(
    script: str | Path | Source,
    names: Sequence[str] = (),
    *,
    format: Format | None = None,
    language: Language | None = None,
    encoding: str | None = None,
    columns: Mapping[str, str] | None = None,
) -> Reading:
    """Read a script for everybody in it; arguments as for `parse_script`.

    Raises:
        SettingsError: As `parse_script`.
        ScriptError: When the file cannot be read, or its format is unclear.
    """
    if format is not None and format not in FORMATS:
        raise SettingsError(f"no format {format!r:.60}; there are {', '.join(FORMATS)}")
    source = script if isinstance(script, Source) else read_source(script, encoding)
    if not source.text.strip():
        raise ScriptError("the script is empty; give a file with speeches", path=source.path)
    hints = Hints(language or detect_language(source.text), names, columns or {})
    scores: Mapping[Format, float] = {}
    if format is None:
        format, scores = detect_format(source.text, hints, source.path)
    return Reading(source, hints, format, scores, _reader(format)(source, hints))


def parse_script(
    script: str | Path | Source,
    role: str,
    aliases: Sequence[str] = (),
    *,
    format: Format | None = None,
    language: Language | None = None,
    encoding: str | None = None,
    columns: Mapping[str, str] | None = None,
) -> Parsed:
    """Read a script for one role.

    A speech is the role's where its speaker's whole name is the role's or an alias, without regard to case and
    punctuation: ``Young MARCIUS`` is not ``Marcius``. Offsets are places in the decoded file.

    Args:
        script: The file; or a `Source`, such as `source_of` makes of a text.
        role: The name that its speeches are to carry.
        aliases: Other names that the script has for it.
        format: Detected by default.
        language: Detected by default.
        encoding: The file's text encoding; detected by default.
        columns: Of a table, by what they hold: ``{"speaker": "name", "text": "line"}``, and ``scene``; usual names are
            known.

    Raises:
        SettingsError: For a role or alias without a letter, an unknown format, or a column that the table lacks.
        ScriptError: When the file cannot be read, its format is unclear, or the role never speaks; names who does.
    """
    names = asked_names(role, aliases)
    reading = read_script(script, names, format=format, language=language, encoding=encoding, columns=columns)
    return parsed_for(names, reading)


def parsed_for(names: Sequence[str], reading: Reading, proposals: Sequence[Proposal] | None = None) -> Parsed:
    """What a script has for one role.

    Args:
        names: The role, then its aliases, as `asked_names` gives them.
        reading: The script.
        proposals: Names that may be the role's; by default those for which the script itself gives a reason.

    Raises:
        ScriptError: When the role never speaks; names who does.
    """
    keys = {key(name) for name in names}
    turns = tuple(_turn(item, reading, names[0], keys) for item in reading.found)
    speakers = tuple(
        item.speaker if item.speaker and item.kind == "speech" else turn.speaker
        for item, turn in zip(reading.found, turns, strict=True)
    )
    read = reading.source, reading.hints, reading.format, reading.format_scores, reading.found
    parsed = Parsed(*read, names[0], tuple(names[1:]), turns, speakers)
    others = parsed.others
    if proposals is None:
        said: dict[str, list[str]] = {}
        for turn in turns:
            if turn.kind == "speech" and turn.speaker in others:
                said.setdefault(turn.speaker, []).append(turn.content)
        proposals = propose(names, others, reading.source.text, said)
    if not any(parsed.own.values()):
        raise ScriptError(_never_speaks(parsed, others, proposals), path=reading.source.path)
    return replace(parsed, proposals=tuple(proposals))


def asked_names(role: str, aliases: Sequence[str]) -> tuple[str, ...]:
    """The role and its aliases on one line each, without what cannot be seen; none twice.

    Raises:
        SettingsError: For one without a letter.
    """
    names: dict[str, str] = {}
    for name in (role, *aliases):
        clean = " ".join(source_of(name).text.split()) if isinstance(name, str) else ""
        if not any(map(str.isalnum, clean)):
            raise SettingsError(f"{name!r:.60} is not a name: give a role and aliases with letters in them")
        names.setdefault(key(clean), clean)
    return tuple(names.values())


def _reader(format: Format) -> Reader:
    # Only now: the patterns of novels take long to compile.
    module = importlib.import_module(f"rolellm.construct.scripts.{format}")
    reader: Reader = getattr(module, f"read_{format}")
    return reader


def _turn(found: Found, reading: Reading, role: str, keys: set[str]) -> Turn:
    kind, speaker, called = found.kind, found.speaker or UNKNOWN, TOLD[reading.hints.language]
    if found.speaker == "scene" and kind != "speech":
        kind, speaker = "narration", called["scene"]
    elif kind != "speech":
        speaker = called[kind]
    elif key(speaker) in keys:
        speaker = role
    elif found.speaker:
        # "Narrator: …" is a speech for a reader; for the data set it is narration.
        kind = narrates(speaker) or "speech"
    return Turn(speaker, found.content, kind, found.scene, *reading.source.place(found.start, found.end))


def _never_speaks(parsed: Parsed, others: Mapping[str, int], proposals: Sequence[Proposal]) -> str:
    names = (parsed.role, *parsed.aliases)
    asked = " or ".join(f"{name!r:.100}" for name in names)
    if not others:
        foreign = parsed.format == "novel" and parsed.spoken_in not in ("en", "zh", None)
        language = f", of which only English and Chinese ones are read: this seems to be {parsed.spoken_in!r}"
        return (
            f"nobody is named as a speaker, so {asked} never speaks; it was read with --format {parsed.format}"
            f"{language if foreign else ''}. If it is something else, name its format"
        )
    most = ", ".join(f"{name} ({count})" for name, count in list(others.items())[:_NAMED])
    close = [item.name for item in proposals] + [near for name in names for near in nearest(name, others)]
    near = f". Names like it: {', '.join([*dict.fromkeys(close)][:_NAMED])}" if close else ""
    near += ". If the role is the narrator, add --alias I" if "I" in others and parsed.format == "novel" else ""
    return (
        f"{asked} never speaks; read with --format {parsed.format}, these speak most: {most}{near}. Give the name as "
        "the script has it (--role), or add what the script calls the role (--alias)"
    )
