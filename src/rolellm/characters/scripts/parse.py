"""A script and the name of a role → turns: read in its format, the role's own put under its name, the rest tallied."""

from __future__ import annotations

import importlib
import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, get_args

from rolellm.characters.scripts import play, screenplay, subtitles, table, transcript
from rolellm.characters.scripts.names import find_similar, normalize_name
from rolellm.characters.scripts.reading import (
    Format,
    Reader,
    ReaderHints,
    ScriptSource,
    ScriptTurn,
    is_foreign_act,
    is_slug,
    iterate_lines,
    load_script_patterns,
)
from rolellm.characters.scripts.source import make_source, read_source
from rolellm.characters.scripts.turns import NARRATORS
from rolellm.core.errors import ScriptError, SettingsError
from rolellm.core.records import UNKNOWN, Language, Turn, TurnKind
from rolellm.core.result import Result
from rolellm.core.settings import describe_alternatives
from rolellm.core.table import Table
from rolellm.core.text import HAN
from rolellm.data.rolebench.release import get_turn_kind

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
_CHINESE_ACT: Final = re.compile(r"^[ \t\u3000]*第[一二三四五六七八九十\d]{1,3}幕", re.MULTILINE)
_TABLES: Final = (".csv", ".tsv", ".jsonl", ".json")
#: What may become of a quotation that a model was asked about: a person of the text speaks it, nobody does (it is
#: narration), the name is not in the passage, or none, or the reply does not have it.
OUTCOMES: Final = ("answered", "nobody", "refused", "missing")
# Names that are listed.
_LISTED = 15
# In a dialogue, at least every fifth speech is another's than the one before.
_MONOLOGUE: Final = 5
# Letters that tell a language, and speeches and characters that are looked at.
_TELLING, _SPEECHES, _ENOUGH = 40, 200, 5000


def detect_language(text: str) -> Language:
    """``zh`` where Chinese characters outweigh Latin letters, five of which count as one; else ``en``."""
    sample = _sample_text(text)
    letters = len(_LATIN.findall(sample))
    characters = len(HAN.findall(sample))
    return "zh" if characters * _LETTERS_A_HAN > letters else "en"


def detect_spoken_language(text: str) -> str | None:
    """The language of a text as a code of ISO 639, such as ``de``; ``None`` where that cannot be told."""
    if sum(map(str.isalpha, text)) < _TELLING:
        return None
    import pycld2

    # It takes no character that cannot be printed.
    printable = "".join(char if char.isprintable() else " " for char in text[:_ENOUGH])
    is_sure, _, languages = pycld2.detect(printable)
    code = str(languages[0][1])
    if not is_sure or code == "un":
        return None
    # "zh-Hant"
    return code.split("-")[0]


def is_noise(text: str) -> bool:
    """Tell whether a text is no language: of 40 characters or more, mostly signs, or letters of no known language.

    >>> is_noise("Aye."), is_noise("qwz xkrt vvpl jjhq ozzx wqpt kkzr bnnx qqzt llpw")
    (False, True)
    """
    characters = [character for character in text[:_ENOUGH] if not character.isspace()]
    if len(characters) < _TELLING:
        return False
    if sum(map(str.isalpha, characters)) < _TELLING:
        return 2 * sum(map(str.isalnum, characters)) < len(characters)
    return detect_spoken_language(text) is None


def detect_format(text: str, hints: ReaderHints, path: Path | None = None) -> tuple[Format, dict[Format, float]]:
    """The format of a script, and each format's score.

    A score is the share of the text that bears the format out: of its blocks of 40 lines, those in which a speaker who
    speaks again is named in that way (of a novel: those with quotations). It is 0 unless two speak, or one asked for.

    Args:
        text: `Source.text`.
        hints: Names that are known to speak.
        path: The file, for messages.

    Raises:
        ScriptError: When no score reaches 0.5; gives the scores.
    """
    sample = _sample_text(text)
    # JSON that is cut off is none.
    table_text = sample
    if sample.lstrip()[:1] in ("[", "{"):
        table_text = text
    is_named_so = path is not None and path.suffix.lower() in _TABLES
    if hints.columns or is_named_so or table.is_table(table_text):
        return "table", {name: float(name == "table") for name in FORMATS}
    evidence = _collect_evidence(sample, hints)
    starts = [line.start for line in iterate_lines(sample) if not line.blank]
    scores: dict[Format, float] = dict.fromkeys(FORMATS, 0.0)
    block_count = max(1, math.ceil(len(starts) / _BLOCK))
    for name, places in evidence.items():
        blocks = {(bisect_right(starts, place) - 1) // _BLOCK for place in places}
        scores[name] = len(blocks) / block_count

    def rank(name: Format) -> tuple[bool, int, float, float]:
        kind = {"subtitles": 2, "novel": 0}.get(name, 1)
        count = float(len(evidence[name]))
        if name == "transcript":
            # Verses that end in a colon, too, look like a transcript's lines.
            count *= 0.8
        return scores[name] >= _LEAST, kind, round(scores[name], 1), count

    best = max(evidence, key=rank)
    if scores[best] >= _LEAST:
        return best, scores
    score_list = ", ".join(f"{name} {score:.2f}" for name, score in scores.items() if score)
    raise ScriptError(
        "the format is not clear: no way of naming speakers, and no quoted speech, goes through the text (scores: "
        f"{score_list or 'all 0'}; at least {_LEAST} expected). Write each speech on a line as NAME: TEXT, or name the "
        f"format: rolellm role parse --format {', '.join(FORMATS)}",
        path=path,
    )


def _collect_evidence(sample: str, hints: ReaderHints) -> Mapping[Format, Sequence[int]]:
    """Collect the places in a text that speak for each format."""
    times = [line.start for line in iterate_lines(sample) if subtitles.TIMES.match(line.text)]
    return {
        "subtitles": times,
        "play": _locate_play_cues(sample, hints),
        "screenplay": _locate_cues(sample),
        "transcript": _locate_labels(sample, hints),
        "novel": [match.start() for match in _QUOTED.finditer(sample)],
    }


def _sample_text(text: str) -> str:
    """Two pieces: front matter tells little of what follows."""
    middle = len(text) // 2
    if middle <= _SAMPLE:
        return text
    return f"{text[:_SAMPLE]}\n\n{text[middle : middle + _SAMPLE]}"


def _keep_dialogue(cues: Sequence[tuple[str, int]], requested: Set[str], least: int = 2) -> list[int]:
    """The places of cues, if they are a dialogue's: several speak, in turns, and one of them at least twice.

    Of one who is asked for, once and alone is enough.
    """
    counts = Counter(name for name, _ in cues)
    names = [name for name, _ in cues]
    starts = [start for _, start in cues]
    if requested & counts.keys():
        return starts
    turns = sum(name != next_name for name, next_name in pairwise(names))
    if len(counts) < 2 or turns * _MONOLOGUE < len(cues):
        return []
    if max(counts.values()) >= least:
        return starts
    return []


def _locate_cues(text: str) -> list[int]:
    slugs = [line.start for line in iterate_lines(text) if is_slug(line.text)]
    # Names in capitals on lines of their own are found in tables and poems, too.
    return slugs + _keep_dialogue(screenplay.list_cues(text), frozenset(), least=2 if slugs else 3)


def _locate_play_cues(text: str, hints: ReaderHints) -> list[int]:
    requested = frozenset(map(normalize_name, hints.names))
    cast = play.detect_cast(text, requested)
    if cast is None:
        return []
    # A line such as "JOHN: Well." is a transcript's, and names alone are a screenplay's, but for acts and entrances.
    needs_acts = cast.way in ("colon", "bare", "small")
    if cast.way == "gap":
        needs_acts = any(is_slug(line.text) for line in iterate_lines(text))
    if needs_acts and not _has_acts(text, cast.way):
        return []
    cues = [(normalize_name(cue.name), start) for start, cue in cast.cues.items()]
    return _keep_dialogue(cues, requested)


def _has_acts(text: str, way: play.Way) -> bool:
    if load_script_patterns("play")["acts"].search(text):
        return True
    if way == "bare" and _CHINESE_ACT.search(text):
        return True
    return any(map(is_foreign_act, iterate_lines(text)))


def _locate_labels(text: str, hints: ReaderHints) -> list[int]:
    requested = set(map(normalize_name, hints.names))
    labels = transcript.find_speakers(text, hints.names)
    named: list[tuple[str, int]] = []
    for start, cue in labels.items():
        name = normalize_name(cue.name)
        # A novel's "the king said:" is followed by a quotation mark.
        if name in requested or not _SAID_QUOTED.match(text, start + cue.end):
            named.append((name, start))
    return _keep_dialogue(named, requested)


FORMATS: Final[tuple[Format, ...]] = get_args(Format)


@dataclass(frozen=True, slots=True)
class ScriptReading:
    """A script as its reader found it, before anybody is asked for.

    Attributes:
        source: The text.
        hints: What the reader was told.
        format: What it was read as.
        format_scores: Each format's score, where the format was detected; empty where it was named.
        found: The turns.
    """

    source: ScriptSource
    hints: ReaderHints
    format: Format
    format_scores: Mapping[Format, float]
    found: Sequence[ScriptTurn]

    def list_speakers(self) -> list[str]:
        """List who speaks most, each with the number of speeches."""
        counts = Counter(turn.speaker for turn in self.found if turn.kind == "speech" and turn.speaker)
        return [f"{name} ({count:,})" for name, count in counts.most_common(_LISTED)]


@dataclass(frozen=True, slots=True)
class ParsedScript(ScriptReading):
    """A script, read for one role.

    Attributes:
        role: The name asked for.
        aliases: The other names it was asked for under.
        turns: In the order of the script; what the role says carries `role` as speaker under whatever name.
        speakers: For each turn, the name as the script has it (`UNKNOWN` where the speaker was not found).
    """

    role: str
    aliases: tuple[str, ...]
    turns: tuple[Turn, ...]
    speakers: tuple[str, ...]

    @property
    def own(self) -> dict[str, int]:
        """The number of the role's speeches under each of its names, as the script writes them; 0 for unused names."""
        counts = self._tally(own=True)
        used = set(map(normalize_name, counts))
        for name in (self.role, *self.aliases):
            if normalize_name(name) not in used:
                counts[name] = 0
        return counts

    @property
    def others(self) -> dict[str, int]:
        """The number of speeches of every other speaker, most first."""
        return self._tally(own=False)

    def _tally(self, *, own: bool) -> dict[str, int]:
        """Speeches by name, most first; spellings of one name under the most frequent one."""
        spoken: Counter[str] = Counter()
        for turn, name in zip(self.turns, self.speakers, strict=True):
            is_own = turn.speaker == self.role
            if turn.kind == "speech" and is_own == own and (own or turn.speaker != UNKNOWN):
                spoken[name] += 1
        counts: Counter[str] = Counter()
        spellings: dict[str, str] = {}
        for name, count in spoken.most_common():
            spelling = spellings.setdefault(normalize_name(name), name)
            counts[spelling] += count
        return dict(counts.most_common())

    @property
    def kinds(self) -> dict[TurnKind, int]:
        """The number of turns of each kind."""
        counts = Counter(turn.kind for turn in self.turns)
        return {kind: counts[kind] for kind in get_args(TurnKind)}

    @property
    def unattributed(self) -> tuple[Turn, ...]:
        """Speeches whose speaker was not found."""
        return tuple(turn for turn in self.turns if turn.kind == "speech" and turn.speaker == UNKNOWN)

    @property
    def spoken_in(self) -> str | None:
        """The language of what is said, as a code of ISO 639, such as ``de``; ``None`` if unclear."""
        opening = " ".join(turn.content for turn in self.turns[:_SPEECHES])
        return detect_spoken_language(opening)


@dataclass(frozen=True, slots=True, repr=False)
class ScriptSummary(Result):
    """A script that was read for one role and written.

    Attributes:
        parsed: The script.
        out: The file that its turns were written to.
        attribution: What a model was asked about a novel's speakers, and what it answered.
    """

    parsed: ParsedScript
    out: Path
    attribution: Mapping[str, Any] = field(default_factory=dict)

    @property
    def asked(self) -> int:
        """The number of requests."""
        return int(self.attribution.get("requests", 0))

    @property
    def failed(self) -> int:
        """The number of requests without an answer."""
        return int(self.attribution.get("failed", 0))

    def to_dict(self) -> dict[str, Any]:
        """Return how the script was read, and the numbers of scenes, turns by kind, and speeches by name."""
        parsed = self.parsed
        path = parsed.source.path
        return {
            "out": str(self.out),
            "script": path and str(path),
            "encoding": parsed.source.encoding,
            "language": parsed.hints.language,
            "spoken_in": parsed.spoken_in,
            "format": parsed.format,
            "format_scores": {name: round(score, 4) for name, score in parsed.format_scores.items()},
            "role": parsed.role,
            "scenes": len({turn.scene for turn in parsed.turns}),
            "turns": parsed.kinds,
            "own": parsed.own,
            "others": parsed.others,
            "unattributed": len(parsed.unattributed),
            "attribution": dict(self.attribution),
        }

    def tables(self) -> tuple[Table]:
        """Build the table of what was read."""
        counts = self.to_dict()
        score = "as named"
        if counts["format_scores"]:
            score = f"score {counts['format_scores'][counts['format']]:.2f}"
        speakers = [f"{name} {count:,}" for name, count in counts["others"].items()]
        if len(speakers) > _LISTED:
            speakers[_LISTED:] = [f"{len(speakers) - _LISTED} more"]
        rows: dict[str, str | int] = {
            "read as": f"{counts['format']} ({score})",
            "encoding, language": f"{counts['encoding']}, {counts['language']}",
            "scenes": counts["scenes"],
            **counts["turns"],
            f"{counts['role']}'s": sum(counts["own"].values()),
        }
        for name, count in counts["own"].items():
            rows[f"  as {name}"] = count
        rows["other speakers"] = ", ".join(speakers) or "none"
        rows["speaker not found"] = counts["unattributed"]
        return (Table.from_rows(counts["script"] or "", ("", "turns"), list(rows.items())),)

    def remarks(self) -> list[str]:
        """Return what a model answered, and where the turns are."""
        remarks: list[str] = []
        if self.attribution:
            counts = self.attribution
            outcomes = ", ".join(f"{counts[name]:,} {name}" for name in OUTCOMES)
            remarks.append(f"{counts['asked']:,} quotations asked about: {outcomes}.")
            spent = counts["spent"]
            remarks.append(f"{spent['calls']:,} calls, {spent['from_journal']:,} requests from the journal.")
        remarks.append(f"{len(self.parsed.turns):,} turns in {self.out}")
        return remarks

    def notes(self) -> list[str]:
        """Return a note on a language without prompts."""
        language = self.parsed.spoken_in
        if language in ("en", "zh", None):
            return []
        return [f"note: the language is probably {language}; prompts exist in English and Chinese only"]


def read_script(
    script: str | Path | ScriptSource,
    names: Sequence[str] = (),
    *,
    format: Format | None = None,
    language: Language | None = None,
    encoding: str | None = None,
    columns: Mapping[str, str] | None = None,
) -> ScriptReading:
    """Read a script for everybody in it. Offsets are places in the decoded file.

    Args:
        script: The file; or a `ScriptSource`, such as `make_source` makes of a text.
        names: Names that are known to speak.
        format: Detected by default.
        language: Detected by default.
        encoding: The file's text encoding; detected by default.
        columns: Of a table, by what they hold: ``{"speaker": "name", "text": "line"}``, and ``scene``; usual names are
            known.

    Raises:
        SettingsError: For an unknown format, or a column that the table lacks.
        ScriptError: When the file cannot be read, or its format is unclear.
    """
    if format is not None and format not in FORMATS:
        raise SettingsError(f"no format {format!r:.60}{describe_alternatives(format, FORMATS)}")
    source = script if isinstance(script, ScriptSource) else read_source(script, encoding)
    if not source.text.strip():
        raise ScriptError("the script is empty; give a file with speeches", path=source.path)
    hints = ReaderHints(language or detect_language(source.text), names, columns or {})
    scores: Mapping[Format, float] = {}
    if format is None:
        format, scores = detect_format(source.text, hints, source.path)
    return ScriptReading(source, hints, format, scores, _get_reader(format)(source, hints))


def parse_script(
    script: str | Path | ScriptSource, role: str, aliases: Sequence[str] = (), **options: Any
) -> ParsedScript:
    """Read a script for one role.

    A speech is the role's where its speaker's whole name is the role's or an alias, without regard to case and
    punctuation: ``Young MARCIUS`` is not ``Marcius``.

    Args:
        script: As for `read_script`.
        role: The name that its speeches are to carry.
        aliases: Other names that the script has for it.
        options: The other parameters of `read_script`.

    Raises:
        SettingsError: For a role or alias without a letter; and as `read_script`.
        ScriptError: When the role never speaks, names who does; and as `read_script`.
    """
    names = clean_names(role, aliases)
    return select_role(names, read_script(script, names, **options))


def select_role(names: Sequence[str], reading: ScriptReading) -> ParsedScript:
    """Select what a script has for one role.

    Args:
        names: The role, then its aliases, as `clean_names` gives them.
        reading: The script.

    Raises:
        ScriptError: When the role never speaks; names who does.
    """
    keys = {normalize_name(name) for name in names}
    turns: list[Turn] = []
    speakers: list[str] = []
    for item in reading.found:
        turn = _make_turn(item, reading, names[0], keys)
        turns.append(turn)
        speakers.append(turn.speaker)
        if item.speaker and item.kind == "speech":
            speakers[-1] = item.speaker
    read = reading.source, reading.hints, reading.format, reading.format_scores, reading.found
    parsed = ParsedScript(*read, names[0], tuple(names[1:]), tuple(turns), tuple(speakers))
    if not any(parsed.own.values()):
        raise ScriptError(_explain_silence(parsed), path=reading.source.path)
    return parsed


def clean_names(role: str, aliases: Sequence[str]) -> tuple[str, ...]:
    """The role and its aliases on one line each, without what cannot be seen; none twice.

    Raises:
        SettingsError: For one without a letter.
    """
    names: dict[str, str] = {}
    for name in (role, *aliases):
        clean = ""
        if isinstance(name, str):
            clean = " ".join(make_source(name).text.split())
        if not any(map(str.isalnum, clean)):
            raise SettingsError(f"{name!r:.60} is not a name: give a role and aliases with letters in them")
        names.setdefault(normalize_name(clean), clean)
    return tuple(names.values())


def _get_reader(format: Format) -> Reader:
    # Only now: the patterns of novels take long to compile.
    module = importlib.import_module(f"rolellm.characters.scripts.{format}")
    reader: Reader = getattr(module, f"read_{format}")
    return reader


def _make_turn(item: ScriptTurn, reading: ScriptReading, role: str, keys: set[str]) -> Turn:
    kind = item.kind
    speaker = item.speaker or UNKNOWN
    narrators = NARRATORS[reading.hints.language]
    if item.speaker == "scene" and kind != "speech":
        kind = "narration"
        speaker = narrators["scene"]
    elif kind != "speech":
        speaker = narrators[kind]
    elif normalize_name(speaker) in keys:
        speaker = role
    elif item.speaker:
        # "Narrator: …" is a speech for a reader; for the data set it is narration.
        kind = get_turn_kind(speaker) or "speech"
    start, end = reading.source.place(item.start, item.end)
    return Turn(speaker, item.content, kind, item.scene, start, end)


def _explain_silence(parsed: ParsedScript) -> str:
    names = (parsed.role, *parsed.aliases)
    speakers = parsed.others
    requested = " or ".join(f"{name!r:.100}" for name in names)
    if parsed.format == "novel" and not speakers:
        if parsed.spoken_in not in ("en", "zh", None):
            return f"only English and Chinese novels are read: this seems to be {parsed.spoken_in!r}"
        return "a novel names nobody as the speaker of a quotation; have a model find who speaks (--llm, or llm=…)"
    if not speakers:
        return (
            f"nobody is named as a speaker, so {requested} never speaks; it was read with --format {parsed.format}. If "
            "it is something else, name its format"
        )
    frequent = [f"{name} ({count})" for name, count in speakers.items()]
    most = ", ".join(frequent[:_LISTED])
    similar: dict[str, None] = {}
    for name in names:
        similar |= dict.fromkeys(find_similar(name, speakers))
    near = ""
    if similar:
        near = f". Names like it: {', '.join(list(similar)[:_LISTED])}"
    return (
        f"{requested} never speaks; read with --format {parsed.format}, these speak most: {most}{near}. Give the name "
        "as the script has it (--role), or add what the script calls the role (--alias, or --set alias=NAME)"
    )
