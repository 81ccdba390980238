"""Drift of roles in long sessions: every reply of a session measured by rule, and when sessions break."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Final

from rolellm.checks.breaks import AGAIN, BREAKS, LETTER, find_breaks
from rolellm.core.errors import DataError, SettingsError
from rolellm.core.jsonl import read_jsonl
from rolellm.core.records import Language, Profile
from rolellm.core.result import Result
from rolellm.core.table import ABSENT, Table, TableRow
from rolellm.core.text import fold
from rolellm.core.typed_json import read_as
from rolellm.llm.llm import LLM
from rolellm.llm.model import Message
from rolellm.models.prompts.leaks import list_word_runs
from rolellm.playing.converse import SESSIONS
from rolellm.runs import MANIFEST, Plan, Records, Run, Step
from rolellm.scoring.statistics.intervals import (
    SHARE,
    ClusteredSample,
    Interval,
    Measured,
    estimate_share,
    name_clusters,
)

#: The turns at which drift is reported: each for the turns since the one before it.
MARKS: Final = (5, 10, 20, 40)
#: Columns of the table by measure, in their order.
COLUMNS: Final[Mapping[str, str]] = {
    "unbroken": "Unbroken sessions %",
    "in_character": "In character %",
    "language": "Language %",
    "person": "Person %",
    "repetition": "Repetition %",
    "style": "Style %",
}
#: Words, or Chinese characters, of the runs by which style is compared.
_PAIR: Final = 2
#: Words, or Chinese characters, from which on a reply that is mostly said again says nothing, and how much of it: a
#: 0.5B model recited its description turn after turn.
_LONG: Final[Mapping[Language, int]] = {"en": 15, "zh": 25}
_MOST_REPEATED: Final = 0.8
#: The same whole reply, however short, this many times answers nothing; a catchphrase may come twice.
_TIMES: Final = 3


@dataclass(frozen=True, slots=True)
class _Meta:
    model: str = ""
    user: str = ""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    description: str = ""
    catchphrases: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class RecordedTalk:
    """A session, as ``rolellm check converse`` writes it; only role, language and messages are required.

    Attributes:
        id: Its name; unique in its file.
        role: The role's name.
        language: ``en`` or ``zh``.
        messages: In order; the role is the ``assistant``. What it says before the first user is its card's greeting.
        meta: What is known of the role.
    """

    role: str
    language: Language
    messages: tuple[Message, ...]
    id: str = ""
    meta: _Meta = field(default_factory=_Meta)

    @cached_property
    def turns(self) -> list[tuple[str, str]]:
        """Pairs of what was said to the role since it last spoke, and its reply; without its card's greeting."""
        pairs: list[tuple[str, str]] = []
        prompt = ""
        for message in self.messages:
            if message.role == "user":
                prompt = f"{prompt}\n{message.content}".strip()
            elif message.role == "assistant":
                pairs += [(prompt, message.content)] if prompt or pairs else []
                prompt = ""
        return pairs

    @property
    def replies(self) -> list[str]:
        """The role's replies, turn by turn."""
        return [reply for _, reply in self.turns]

    @cached_property
    def sheet(self) -> Profile:
        """The role."""
        meta = self.meta
        return Profile(
            self.role,
            self.language,
            aliases=meta.names,
            description=meta.description,
            catchphrases=meta.catchphrases,
        )


def read_talks(path: str | Path) -> list[RecordedTalk]:
    """Read sessions, from a file or the folder of a ``rolellm check converse`` run.

    Raises:
        DataError: For a file that is missing, has no session, or has one that is not of the form; names the line.
    """
    file = Path(path)
    if file.is_dir():
        file /= SESSIONS
    if not file.is_file():
        raise DataError("no sessions here; `rolellm check converse` makes them", path=file)
    talks = [read_as(RecordedTalk, value, "the session", path=file, line=line) for line, value in read_jsonl(file)]
    if not any(talk.replies for talk in talks):
        raise DataError("no session has a reply", path=file)
    return [talk for talk in talks if talk.replies]


@dataclass(frozen=True, slots=True)
class MeasuredReply:
    """A reply, measured by rule.

    Attributes:
        session: The session's name.
        role: The role's name.
        turn: Its number in the session, from 1.
        breaks: The kinds of `BREAKS` that it has, and the words of each.
        values: By measure; a measure that the reply does not have, such as the repetition of two words, is left out.
    """

    session: str
    role: str
    turn: int
    breaks: dict[str, str]
    values: dict[str, float]


def measure(talk: RecordedTalk) -> Iterator[MeasuredReply]:
    """Measure every reply of a session by rule.

    Values: ``unbroken`` (no break in the session so far), ``in_character`` (no break in the reply), ``language`` (the
    role's), ``person`` (speaks as I, not of the role by name), ``repetition`` (share of its runs of 4 words, or 6
    Chinese characters, that either has said before in the session, this reply included), ``style`` (share of its word
    pairs that the role's own lines or catchphrases have).
    """
    own_pairs: set[tuple[str, ...]] = set()
    for line in (*talk.meta.lines, *talk.meta.catchphrases):
        own_pairs.update(list_word_runs(line, _PAIR))
    seen_runs: set[tuple[str, ...]] = set()
    times = Counter[str]()
    size = AGAIN[talk.language]
    is_unbroken = True
    for turn, (prompt, reply) in enumerate(talk.turns, start=1):
        seen_runs.update(list_word_runs(prompt, size))
        runs = list(list_word_runs(reply, size))
        repeated = 0
        for run in runs:
            repeated += run in seen_runs
            seen_runs.add(run)
        breaks = find_breaks(reply, talk.sheet, prompt)
        text = fold(reply)
        times[text] += 1
        is_long = len(runs) + size > _LONG[talk.language]
        is_recited = is_long and repeated >= _MOST_REPEATED * len(runs)
        if is_recited or times[text] >= _TIMES:
            breaks["repeats"] = reply.strip()[:60]
        is_unbroken = is_unbroken and not breaks
        values = {
            "unbroken": float(is_unbroken),
            "in_character": float(not breaks),
            "person": float("third_person" not in breaks),
        }
        if LETTER.search(reply):
            values["language"] = float("other_language" not in breaks)
        if runs:
            values["repetition"] = repeated / len(runs)
        pairs = list(list_word_runs(reply, _PAIR))
        if own_pairs and pairs:
            values["style"] = sum(pair in own_pairs for pair in pairs) / len(pairs)
        yield MeasuredReply(talk.id, talk.role, turn, breaks, values)


@dataclass(frozen=True, slots=True)
class BreakExample:
    """The first break of one kind.

    Attributes:
        session: The session's name.
        turn: The reply's number in it, from 1.
        message: What was said to the role.
        reply: Its reply.
    """

    session: str
    turn: int
    message: str
    reply: str


@dataclass(frozen=True, slots=True)
class Window:
    """The measures of a stretch of turns.

    Attributes:
        first: Its first turn, from 1.
        last: Its last turn.
        measures: Means with intervals over sessions and roles. ``unbroken`` is the share of the sessions that reach the
            last turn that have no break up to it.
    """

    first: int
    last: int
    measures: dict[str, Measured]


@dataclass(frozen=True, slots=True)
class SystemDrift:
    """The sessions of one system.

    Attributes:
        recipe: The model, the user, and the sampling, as its sessions say.
        sessions: Number of sessions.
        roles: Number of roles.
        replies: Number of replies.
        broken: Number of sessions with a break.
        half_life: The first turn up to which at least half of the sessions that reach it have broken; ``None`` where
            there is none.
        first_breaks: Number of sessions by the kind of their first break.
        examples: The first of each kind.
        windows: Measures by stretch of turns.
    """

    recipe: dict[str, Any]
    sessions: int
    roles: int
    replies: int
    broken: int
    half_life: int | None
    first_breaks: dict[str, int]
    examples: dict[str, BreakExample]
    windows: tuple[Window, ...]


def summarize_sessions(talks: Sequence[RecordedTalk], replies: Sequence[MeasuredReply]) -> SystemDrift:
    """Summarize a system's sessions, whose replies were measured."""
    turns = {talk.id: talk.turns for talk in talks}
    firsts: dict[str, MeasuredReply] = {}
    for reply in replies:
        if reply.breaks:
            firsts.setdefault(reply.session, reply)
    kinds = Counter[str]()
    examples: dict[str, BreakExample] = {}
    for reply in firsts.values():
        kind = next(iter(reply.breaks))
        kinds[kind] += 1
        message, text = turns[reply.session][reply.turn - 1]
        examples.setdefault(kind, BreakExample(reply.session, reply.turn, message, text))
    windows = []
    for first, last in list_windows(talks):
        inside = [reply for reply in replies if first <= reply.turn <= last]
        names = {name for reply in inside for name in reply.values}
        measures: dict[str, Measured] = {}
        for name in sorted(names - {"unbroken"}):
            measures[name] = estimate_measure(inside, name)
        at_end = [reply for reply in inside if reply.turn == last]
        measures["unbroken"] = estimate_measure(at_end, "unbroken")
        windows.append(Window(first, last, measures))
    meta = talks[0].meta
    recipe = {"model": meta.model, "user": meta.user, "sampling": dict(meta.sampling)}
    return SystemDrift(
        recipe=recipe,
        sessions=len(talks),
        roles=len({talk.role for talk in talks}),
        replies=len(replies),
        broken=len(firsts),
        half_life=_find_half_life(replies),
        first_breaks={kind: kinds[kind] for kind in BREAKS if kind in kinds},
        examples=examples,
        windows=tuple(windows),
    )


def _find_half_life(replies: Sequence[MeasuredReply]) -> int | None:
    reached = Counter[int]()
    unbroken = Counter[int]()
    for reply in replies:
        reached[reply.turn] += 1
        unbroken[reply.turn] += int(reply.values["unbroken"])
    for turn in sorted(reached):
        if 2 * unbroken[turn] <= reached[turn]:
            return turn
    return None


def list_windows(talks: Sequence[RecordedTalk]) -> list[tuple[int, int]]:
    """List the first and the last turn of each stretch that is reported: up to each of `MARKS`, and up to the end."""
    last = max(len(talk.turns) for talk in talks)
    ends = [mark for mark in MARKS if mark < last]
    firsts = [1, *(end + 1 for end in ends)]
    return list(zip(firsts, [*ends, last], strict=True))


def estimate_measure(replies: Iterable[MeasuredReply], name: str) -> Interval:
    """Estimate a measure's mean over the replies that have it, with intervals over sessions and over roles."""
    measured = [reply for reply in replies if name in reply.values]
    values = [reply.values[name] for reply in measured]
    sessions = [reply.session for reply in measured]
    roles = [reply.role for reply in measured]
    share = estimate_share(ClusteredSample(values, sessions, roles), SHARE)
    return name_clusters(share, "session")


def read_systems(sources: Sequence[str]) -> dict[str, list[RecordedTalk]]:
    """Read the sessions of each system: of ``NAME=PATH`` under that name, else under the model's.

    Sessions of one system get names of their own where files repeat them.

    Raises:
        SettingsError: For no source.
        DataError: As `read_talks`.
    """
    if not sources:
        raise SettingsError("no sessions; name a file, or the folder of a `rolellm check converse` run")
    systems: dict[str, list[RecordedTalk]] = {}
    for source in sources:
        name, separator, path = source.partition("=")
        if not separator or Path(source).exists():
            name, path = "", source
        for talk in read_talks(path):
            system = name or talk.meta.model or Path(path).stem
            sessions = systems.setdefault(system, [])
            number = len(sessions) + 1
            sessions.append(replace(talk, id=f"{number}: {talk.id or talk.role}"))
    return systems


@dataclass(frozen=True, slots=True, repr=False)
class DriftResult(Result):
    """Result of a run.

    Attributes:
        systems: By name.
        turns: All replies, each with its system.
    """

    systems: dict[str, SystemDrift]
    turns: tuple[tuple[str, MeasuredReply], ...] = ()

    def tables(self) -> tuple[Table, ...]:
        """Build the table of sessions and breaks, and that of every measure by stretch of turns."""
        return (self._build_table_of_breaks(), self._build_table_of_windows())

    def _build_table_of_breaks(self) -> Table:
        heads = ("Sessions", "Roles", "Broken", "Half broken by turn", "First breaks")
        rows = []
        for name, system in self.systems.items():
            kinds = [f"{kind} {count}".replace("_", " ") for kind, count in system.first_breaks.items()]
            first_breaks = ", ".join(kinds) or "none"
            counts = (system.sessions, system.roles, system.broken, system.half_life or ABSENT)
            rows.append(TableRow((name,), (*map(str, counts), first_breaks)))
        return Table("How long roles last", ("System",), heads, tuple(rows), left=("First breaks",))

    def _build_table_of_windows(self) -> Table:
        measures: set[str] = set()
        for system in self.systems.values():
            measures.update(*(window.measures for window in system.windows))
        columns = [column for column in COLUMNS if column in measures]
        rows = []
        for name, system in self.systems.items():
            for window in system.windows:
                turns = f"{window.first}–{window.last}"
                cells = [window.measures.get(column) for column in columns]
                rows.append(TableRow((name, turns), tuple(cells)))
        heads = tuple(COLUMNS[column] for column in columns)
        return Table("By turn", ("System", "Turns"), heads, tuple(rows), digits=1)


@dataclass(frozen=True)
class MeasureDrift(Step[DriftResult]):
    """Measure the sessions of each system; no model is asked.

    Attributes:
        systems: Sessions by system, as `read_systems` reads them.
    """

    systems: Mapping[str, Sequence[RecordedTalk]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    kind: ClassVar[str] = "drift"

    def plan(self, llm: LLM) -> Plan[DriftResult]:
        """Measure every reply."""
        yield from ()
        summaries: dict[str, SystemDrift] = {}
        turns: list[tuple[str, MeasuredReply]] = []
        for name, talks in self.systems.items():
            replies = [reply for talk in talks for reply in measure(talk)]
            summaries[name] = summarize_sessions(talks, replies)
            turns += [(name, reply) for reply in replies]
        return DriftResult(summaries, tuple(turns))

    def records(self, result: DriftResult) -> Records:
        """Return the replies."""
        return {"turns.jsonl": [{"system": name, **asdict(reply)} for name, reply in result.turns]}

    def summarize(self, result: DriftResult) -> dict[str, Any]:
        """Return the figures."""
        return replace(result, turns=()).to_dict()


def read_drift(runs: Iterable[Run[Any]]) -> DriftResult:
    """Read the systems of one or more finished runs.

    Raises:
        SettingsError: For two systems of one name.
        DataError: For a manifest that is not of the form.
    """
    systems: dict[str, SystemDrift] = {}
    for run in runs:
        result = read_as(DriftResult, run.summary, "the manifest", path=run.folder / MANIFEST)
        shared = result.systems.keys() & systems.keys()
        if shared:
            raise SettingsError(f"two results name a system {min(shared)!r}; name the sessions: NAME=SESSIONS")
        systems |= result.systems
    return DriftResult(systems)
