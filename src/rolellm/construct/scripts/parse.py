"""A script and the name of a role → turns: read in its format, the role's own put under its name, the rest tallied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rolellm.construct.scripts.aliases import Proposal, nearest, propose
from rolellm.construct.scripts.detect import Detected, detect_format, detect_language
from rolellm.construct.scripts.names import key
from rolellm.construct.scripts.reading import Format, Found, Hints, Reader, Source
from rolellm.construct.scripts.source import read_source, source_of
from rolellm.construct.scripts.turns import TOLD
from rolellm.errors import RecipeError, ScriptError
from rolellm.records import UNKNOWN, Language, Turn
from rolellm.rolebench.profiles import narrates

FORMATS: Final[tuple[Format, ...]] = ("play", "screenplay", "transcript", "novel", "subtitles")

_NAMED: Final = 12


@dataclass(frozen=True, slots=True)
class Parsed:
    """A script, read for one role.

    Attributes:
        role: The name asked for.
        aliases: The other names it was asked for under.
        turns: In the order of the script; what the role says carries `role` as speaker under whatever name.
        speakers: For each turn, the name as the script has it (`UNKNOWN` of speech of nobody known).
        format: What it was read as.
        format_scores: Each format's score, where the format was found out; empty where it was named.
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
        """How many speeches the role has under each of its names, as the script writes them; 0 for one unused."""
        counts = self._tally(own=True)
        used = {key(name) for name in counts}
        return counts | {name: 0 for name in (self.role, *self.aliases) if key(name) not in used}

    @property
    def others(self) -> dict[str, int]:
        """How many speeches every other speaker has, most first."""
        return self._tally(own=False)

    @property
    def unattributed(self) -> tuple[Turn, ...]:
        """Speech of nobody known."""
        return tuple(turn for turn in self.turns if turn.kind == "speech" and turn.speaker == UNKNOWN)

    @property
    def empty(self) -> tuple[Turn, ...]:
        """Speeches of which the script has the name only."""
        return tuple(turn for turn in self.turns if not turn.content)

    def _tally(self, *, own: bool) -> dict[str, int]:
        spoken = [
            name
            for turn, name in zip(self.turns, self.speakers, strict=True)
            if turn.kind == "speech" and (turn.speaker == self.role) == own and (own or turn.speaker != UNKNOWN)
        ]
        return _tallied(spoken)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the turns, for JSON; of what nobody could be found to say, the first few."""
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
    spellings = Counter(names)
    counts: Counter[str] = Counter()
    spelled: dict[str, str] = {}
    for name, count in spellings.most_common():
        counts[key(name)] += count
        spelled.setdefault(key(name), name)
    return {spelled[name]: count for name, count in counts.most_common()}


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
        format: By default found out.
        language: By default found out.
        encoding: Of the file; by default found out.

    Raises:
        RecipeError: For a role or alias without a letter, or an unknown format.
        ScriptError: When the file cannot be read, its format is unclear, or the role never speaks; names who does.
    """
    role, names = _asked(role, aliases)
    if format is not None and format not in FORMATS:
        raise RecipeError(f"no format {format!r:.60}; there are {', '.join(FORMATS)}")
    source = script if isinstance(script, Source) else read_source(script, encoding)
    if not source.text.strip():
        raise ScriptError("there is no text in it; a script with speeches was expected", path=source.path)
    hints = Hints(language or detect_language(source.text), names)
    scores: Mapping[Format, float] = {}
    if format is None:
        detected = _detected(source, hints)
        format, scores = detected.format, detected.scores
    found = _reader(format)(source, hints)
    keys = {key(name) for name in names}
    turns = tuple(_turn(item, source, role, keys, hints.language) for item in found)
    parsed = Parsed(
        role=role,
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


def _asked(role: str, aliases: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    names: dict[str, str] = {}
    for name in (role, *aliases):
        clean = " ".join(source_of(name).text.split()) if isinstance(name, str) else ""
        if not any(map(str.isalnum, clean)):
            raise RecipeError(f"{name!r:.60} is no name: give a role and aliases with letters in them")
        names.setdefault(key(clean), clean)
    spelled = tuple(names.values())
    return spelled[0], spelled


def _detected(source: Source, hints: Hints) -> Detected:
    try:
        return detect_format(source.text, hints)
    except ScriptError as error:
        raise ScriptError(error.problem, path=source.path) from error


def _reader(format: Format) -> Reader:
    if format == "novel":
        from rolellm.construct.scripts.novel import read_novel

        return read_novel
    from rolellm.construct.scripts import play, screenplay, subtitles, transcript

    readers: dict[Format, Reader] = {
        "play": play.read_play,
        "screenplay": screenplay.read_screenplay,
        "transcript": transcript.read_transcript,
        "subtitles": subtitles.read_subtitles,
    }
    return readers[format]


def _turn(found: Found, source: Source, role: str, keys: set[str], language: Language) -> Turn:
    start, end = source.place(found.start, found.end)
    told = TOLD[language]
    if found.kind != "speech":
        if found.speaker == "scene":
            return Turn(told["scene"], found.content, "narration", found.scene, start, end)
        return Turn(told[found.kind], found.content, found.kind, found.scene, start, end)
    if found.speaker is None:
        return Turn(UNKNOWN, found.content, "speech", found.scene, start, end)
    if key(found.speaker) in keys:
        return Turn(role, found.content, "speech", found.scene, start, end)
    # "Narrator: …" is a speech for a reader; for the data set it is narration.
    kind = narrates(found.speaker)
    return Turn(found.speaker, found.content, kind or "speech", found.scene, start, end)


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
