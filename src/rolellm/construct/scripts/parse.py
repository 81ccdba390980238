"""A script and the name of a role → turns: read in its format, the role's own put under its name, the rest tallied."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, get_args

from rolellm.construct.scripts import play, screenplay, subtitles, transcript
from rolellm.construct.scripts import reading as headings
from rolellm.construct.scripts.aliases import Proposal, nearest, propose
from rolellm.construct.scripts.reading import Format, Found, Hints, Reader, Source, key, lines_of
from rolellm.construct.scripts.source import read_source, source_of
from rolellm.construct.scripts.turns import TOLD
from rolellm.core.errors import ScriptError, SettingsError
from rolellm.core.records import UNKNOWN, Language, Turn
from rolellm.core.text import HAN
from rolellm.rolebench.profiles import narrates

_SAMPLE: Final = 400_000
# One line in thirty names a speaker, even where speeches are long; a novel has hardly a line that seems to.
_LEAST: Final = 0.03
_LATIN: Final = re.compile("[A-Za-z\u00c0-\u024f]")
# A Chinese character says about as much as three letters; with five, subtitles in both languages are Chinese.
_LETTERS_A_HAN: Final = 5
_QUOTED: Final = re.compile("[“「『\"]|(?:^|(?<=\\s))[‘']", re.MULTILINE)
_ACT: Final = re.compile(r"^[ \t]*(?:ACT|SCENE|Act|Scene)\s+[IVXLC\d]{1,6}\b", re.MULTILINE)
_STAGE: Final = re.compile(r"^[ \t]*[\[_(]{0,2}(?:Enter|Exit|Exeunt|ENTER|EXIT|EXEUNT)\b", re.MULTILINE)


def detect_language(text: str) -> Language:
    """``zh`` where Chinese characters outweigh Latin letters, five of which count as one; else ``en``."""
    sample = _sampled(text)
    return "zh" if len(HAN.findall(sample)) * _LETTERS_A_HAN > len(_LATIN.findall(sample)) else "en"


def detect_format(text: str, hints: Hints, path: Path | None = None) -> tuple[Format, dict[Format, float]]:
    """The format of a script, and each format's score.

    A score is the share of telling lines, 0 to 1; for a novel, the number of quotations per line, at most 1.

    Args:
        text: `Source.text`.
        hints: Names that are known to speak.
        path: The file, for messages.

    Raises:
        ScriptError: When it looks like none of them.
    """
    sample = _sampled(text)
    lines = max(1, sum(not line.blank for line in lines_of(sample)))
    times = sum(subtitles.TIMES.match(line.text) is not None for line in lines_of(sample))
    scores: dict[Format, float] = {
        "subtitles": min(1.0, 3 * times / lines),
        "screenplay": _screenplay(sample, lines),
        "play": _play(sample, hints, lines),
        "transcript": _transcript(sample, hints, lines),
    }
    best = max(scores, key=lambda name: scores[name])
    scores["novel"] = min(1.0, len(_QUOTED.findall(sample)) / lines)
    if scores[best] >= _LEAST:
        return best, scores
    if scores["novel"] > 0:
        return "novel", scores
    shown = ", ".join(f"{name} {score:.3f}" for name, score in scores.items())
    raise ScriptError(
        "the format is not clear: no `NAME:` lines, screenplay cues, subtitle times or quoted speech that come often "
        f"enough (scores: {shown}; at least {_LEAST} expected). Name it: --format play, screenplay, transcript, novel "
        "or subtitles",
        path=path,
    )


def _sampled(text: str) -> str:
    """Two pieces: front matter tells little of what follows."""
    if len(text) <= 2 * _SAMPLE:
        return text
    middle = len(text) // 2
    return text[:_SAMPLE] + "\n\n" + text[middle : middle + _SAMPLE]


def _repeated(counts: Counter[str], asked: set[str]) -> int:
    """Cues of names that come again; a name asked for needs no second time."""
    return sum(count for name, count in counts.items() if count > 1 or name in asked)


def _screenplay(text: str, lines: int) -> float:
    cues = screenplay.cues_of(text)
    slugs = sum(1 for line in lines_of(text) if headings.slug(line.text))
    # Names in capitals on lines of their own are found in tables and poems, too.
    telling = _repeated(cues, set()) if slugs or max(cues.values(), default=0) > 2 else 0
    # The line under a cue is told by it.
    return min(1.0, (2 * telling + (cues.total() - telling if slugs else 0) + 2 * slugs) / lines)


def _play(text: str, hints: Hints, lines: int) -> float:
    cast = play.cast_of(text, hints)
    if cast is None:
        return 0.0
    staged = _ACT.search(text) is not None or _STAGE.search(text) is not None
    if cast.way == "colon" and not staged:
        # A line such as "JOHN: Well." is a transcript's, but for acts and entrances.
        return 0.0
    alone = cast.way.endswith("alone")
    return min(1.0, (2 if alone or staged else 1) * cast.cues / lines)


def _transcript(text: str, hints: Hints, lines: int) -> float:
    asked = {key(name) for name in hints.names}
    labels = []
    for line in lines_of(text):
        label = transcript.label_of(line.text)
        if label is None or headings.heading_of(f"{label.name}:") is not None:
            continue
        # A novel's "the king said:" is followed by a quotation mark.
        if not _QUOTED.match(line.text[label.end :].lstrip()) or key(label.name) in asked:
            labels.append(label.name)
    known = headings.known_names(labels, ())
    counts = Counter(name for name in map(key, labels) if name in known | asked)
    return min(1.0, _repeated(counts, asked) / lines)


FORMATS: Final[tuple[Format, ...]] = get_args(Format)

_NAMED: Final = 12


@dataclass(frozen=True, slots=True)
class Parsed:
    """A script, read for one role.

    Attributes:
        role: The name asked for.
        aliases: The other names it was asked for under.
        turns: In the order of the script; what the role says carries `role` as speaker under whatever name.
        speakers: For each turn, the name as the script has it (`UNKNOWN` where the speaker was not found).
        format: What it was read as.
        format_scores: Each format's score, where the format was detected; empty where it was named.
        language: ``en`` or ``zh``.
        encoding: How the file was decoded.
        proposals: Other speakers that may be the role, for a person to confirm.
        path: The file, where there is one.
        characters: Length of the decoded source.
    """

    role: str
    aliases: tuple[str, ...]
    turns: tuple[Turn, ...]
    speakers: tuple[str, ...]
    format: Format
    format_scores: Mapping[Format, float]
    language: Language
    encoding: str
    proposals: tuple[Proposal, ...] = ()
    path: Path | None = None
    characters: int = 0

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

    @property
    def unattributed(self) -> tuple[Turn, ...]:
        """Speeches whose speaker was not found."""
        return tuple(turn for turn in self.turns if turn.kind == "speech" and turn.speaker == UNKNOWN)

    @property
    def empty(self) -> tuple[Turn, ...]:
        """Speeches of which the script has only the speaker's name."""
        return tuple(turn for turn in self.turns if not turn.content)

    def _tally(self, *, own: bool) -> dict[str, int]:
        spoken = [
            name
            for turn, name in zip(self.turns, self.speakers, strict=True)
            if turn.kind == "speech" and (turn.speaker == self.role) == own and (own or turn.speaker != UNKNOWN)
        ]
        return _tallied(spoken)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the turns, for JSON, with the first few speeches whose speaker was not found."""
        kinds = Counter(turn.kind for turn in self.turns)
        return {
            "script": None if self.path is None else str(self.path),
            "characters": self.characters,
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
            "unattributed": {"turns": len(self.unattributed), "first": _places(self.unattributed)},
            "empty": {"turns": len(self.empty), "first": _places(self.empty)},
            "proposals": [{"name": it.name, "turns": it.turns, "reason": it.reason} for it in self.proposals],
        }


def _places(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    return [
        {"speaker": turn.speaker, "start": turn.start, "end": turn.end, "content": turn.content}
        for turn in turns[:_NAMED]
    ]


def _tallied(names: Sequence[str]) -> dict[str, int]:
    """Speeches by name, most first; spellings of one name under the most frequent one."""
    counts: Counter[str] = Counter()
    spelled: dict[str, str] = {}
    for name, count in Counter(names).most_common():
        counts[spelled.setdefault(key(name), name)] += count
    return dict(counts.most_common())


def parse_script(
    script: str | Path | Source,
    role: str,
    aliases: Sequence[str] = (),
    *,
    format: Format | None = None,
    language: Language | None = None,
    encoding: str | None = None,
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

    Raises:
        SettingsError: For a role or alias without a letter, or an unknown format.
        ScriptError: When the file cannot be read, its format is unclear, or the role never speaks; names who does.
    """
    names = _asked(role, aliases)
    if format is not None and format not in FORMATS:
        raise SettingsError(f"no format {format!r:.60}; there are {', '.join(FORMATS)}")
    source = script if isinstance(script, Source) else read_source(script, encoding)
    if not source.text.strip():
        raise ScriptError("the script is empty; give a file with speeches", path=source.path)
    hints = Hints(language or detect_language(source.text), names)
    scores: Mapping[Format, float] = {}
    if format is None:
        format, scores = detect_format(source.text, hints, source.path)
    found = _reader(format)(source, hints)
    keys = {key(name) for name in names}
    turns = tuple(_turn(item, source, names[0], keys, hints.language) for item in found)
    parsed = Parsed(
        role=names[0],
        aliases=names[1:],
        turns=turns,
        speakers=tuple(
            item.speaker if item.speaker and item.kind == "speech" else turn.speaker
            for item, turn in zip(found, turns, strict=True)
        ),
        format=format,
        format_scores=scores,
        language=hints.language,
        encoding=source.encoding,
        path=source.path,
        characters=source.length,
    )
    return _with_proposals(parsed, source)


def _asked(role: str, aliases: Sequence[str]) -> tuple[str, ...]:
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


def _turn(found: Found, source: Source, role: str, keys: set[str], language: Language) -> Turn:
    kind, speaker = found.kind, found.speaker or UNKNOWN
    if kind != "speech":
        is_scene = found.speaker == "scene"
        kind, speaker = ("narration", TOLD[language]["scene"]) if is_scene else (kind, TOLD[language][kind])
    elif found.speaker is not None and key(found.speaker) in keys:
        speaker = role
    elif found.speaker is not None:
        # "Narrator: …" is a speech for a reader; for the data set it is narration.
        kind = narrates(found.speaker) or "speech"
    return Turn(speaker, found.content, kind, found.scene, *source.place(found.start, found.end))


def _with_proposals(parsed: Parsed, source: Source) -> Parsed:
    names = (parsed.role, *parsed.aliases)
    others = parsed.others
    said: dict[str, list[str]] = {}
    for turn in parsed.turns:
        if turn.kind == "speech" and turn.speaker in others:
            said.setdefault(turn.speaker, []).append(turn.content)
    proposals = propose(names, others, source.text, said)
    if not any(parsed.own.values()):
        raise ScriptError(_never_speaks(parsed, names, others, proposals), path=parsed.path)
    return replace(parsed, proposals=proposals)


def _never_speaks(
    parsed: Parsed, names: Sequence[str], others: Mapping[str, int], proposals: Sequence[Proposal]
) -> str:
    asked = " or ".join(f"{name!r:.100}" for name in names)
    read_as = parsed.format if parsed.format.endswith("s") else f"a {parsed.format}"
    if not others:
        return (
            f"nobody is named as a speaker, so {asked} never speaks; it was read as {read_as}. If it is "
            "something else, name its format (--format)"
        )
    most = ", ".join(f"{name:.60} ({count})" for name, count in list(others.items())[:_NAMED])
    close = [item.name for item in proposals]
    close += [name for asked_name in names for name in nearest(asked_name, others) if name not in close]
    near = f". Names like it: {', '.join(dict.fromkeys(close[:_NAMED]))}" if close else ""
    return (
        f"{asked} never speaks; read as {read_as}, these speak most: {most}{near}. Give the name as the script "
        "has it (--role), or add what the script calls the role (--alias)"
    )
