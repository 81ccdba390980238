"""How long a role lasts: every reply of a session by rule and by a judge model, and when sessions break.

The three consistencies are after arXiv 2511.00222: of a line with the description (``prompt_to_line``), of a line with
the role's earlier lines (``line_to_line``), and of what the lines say with the answers that the description gives to
questions (``questions``). The wording and the way of asking are ours, see docs/drift.md.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from rapidfuzz.distance import Indel

from rolellm.construct.cards.convert import user_name
from rolellm.construct.clean import FIRST_PERSON, broken_rules, is_machine
from rolellm.construct.scripts.parse import detect_language
from rolellm.construct.sheet import Sheet
from rolellm.core.errors import DataError, SettingsError
from rolellm.core.files import write_json
from rolellm.core.jsonl import read_jsonl, write_jsonl
from rolellm.core.records import Language
from rolellm.core.settings import dump
from rolellm.core.text import fold
from rolellm.core.typed_json import read_as
from rolellm.evaluation.score import metric_dict
from rolellm.evaluation.statistics.bootstrap import Bootstrap, Interval, Sample, bootstrap_stratum, share_ends
from rolellm.evaluation.statistics.survival import survival
from rolellm.prompts.leaks import word_runs
from rolellm.version import __version__

SESSIONS, DRIFT, TURNS = "sessions.jsonl", "drift.json", "turns.jsonl"
#: The turns at which drift is reported: each for the turns since the one before it.
MARKS: Final = (5, 10, 20, 40)
#: What ends a session's time in character.
BREAKS: Final = ("says_ai", "says_role", "refuses", "assists", "for_user", "third_person", "other_language", "repeats")
_BREACHES: Final = {"hides_ai": "says_ai", "hides_role": "says_role", "answers": "refuses"}
#: Words in a row, in Chinese characters, that count as said again, and as the role's own way (our choice).
_AGAIN: Final[Mapping[Language, int]] = {"en": 4, "zh": 6}
_OWN: Final = 2
#: Words, in Chinese characters, from which on a reply that is mostly said again says nothing, and how much that is (our
#: choice): a 0.5B model recited its description turn after turn.
_LONG: Final[Mapping[Language, int]] = {"en": 15, "zh": 25}
_MOST_REPEATED: Final = 0.8
#: The same whole reply, however short, this many times answers nothing (our choice; a catchphrase may come twice).
_TIMES: Final = 3
_SAME: Final = 0.9
LANGUAGES: Final[tuple[Language, ...]] = ("en", "zh")
#: How an assistant offers its help. What a shopkeeper may say as well ("What can I do for you?") is not in here: of the
#: release's 81,730 replies, 47 have such words, most of them an assistant's and not the role's (our choice).
_ASSISTS: Final = re.compile(
    r"(?i)\bhow (?:can|may|could) I (?:assist you(?! in)|(?:help|be of (?:help|service))(?: to)? you today)\b"
    r"|\b(?:can't|can ?not) assist (?:you )?with (?:that|this)\b"
    r"|\bI(?:'m| am) (?:always |just |only )?(?:here|ready|happy|glad) to "
    r"(?:assist you|(?:help|answer)[^.!?]{0,20}\bquestions)\b"
    r"|\banything else (?:I can (?:help|assist)|(?:you need )?(?:help|assistance) with)"
    r"|\b(?:feel free to ask|let me know if you (?:need|have) any)\b"
    r"|有什么(?:我|问题)?(?:可以|能够?|需要)我?(?:帮|为[您你])|(?:能|可以)为[您你]做(?:些|点)?什么"
    r"|很?高兴(?:能够?)?(?:为[您你]|帮助[您你])|随时(?:可以)?(?:告诉我|向我提问|问我|联系我)"
    r"|如果?[您你](?:还)?有(?:任何|其他)[^，。！？\n]{0,6}(?:问题|疑问|需要)"
)
#: How a program denies an inner life or a skill: of the release's 81,730 replies 65 do, all but two of them those of
#: machines, or of an assistant that shows through (our choice).
_DENIES: Final = re.compile(
    r"(?i)\b(?:do not|don't|cannot|can't) (?:have|feel|experience) (?:any |human |personal |real |the )*"
    r"(?:feelings?|emotions?|opinions|personal (?:\w+ )?(?:life|experiences?|relationships?)"
    r"|physical (?:form|body|presence|home))"
    r"|\bI(?:'m| am) (?:not capable|incapable) of (?!doing\b)\w+ing\b"
    r"|我(?:并)?没有(?:任何|个人的?|真实的?|真正的?)*(?:感情|情感|情绪|意识|身体|实体)"
)
_LETTER: Final = re.compile(r"[^\W\d_]")
_QUOTED: Final = re.compile(r"\"[^\"\n]*\"|“[^”\n]*”|「[^」\n]*」")


@dataclass(frozen=True, slots=True)
class _Said:
    role: str
    content: str


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
class Talk:
    """A session, as ``rolellm converse`` writes it; other programs need only ``role``, ``language`` and ``messages``.

    Attributes:
        id: Its name; unique in its file.
        role: The role's name.
        language: ``en`` or ``zh``.
        messages: In order; the role is the ``assistant``. What it says before the first user is its card's greeting.
        meta: What is known of the role.
    """

    role: str
    language: Language
    messages: tuple[_Said, ...]
    id: str = ""
    meta: _Meta = field(default_factory=_Meta)

    @cached_property
    def turns(self) -> list[tuple[str, str]]:
        """What was said to the role since it last spoke, and its reply; without its card's greeting."""
        found: list[tuple[str, str]] = []
        asked = ""
        for said in self.messages:
            if said.role == "user":
                asked = f"{asked}\n{said.content}".strip()
            elif said.role == "assistant":
                found += [(asked, said.content)] if asked or found else []
                asked = ""
        return found

    @property
    def replies(self) -> list[str]:
        """What the role said, turn by turn."""
        return [reply for _, reply in self.turns]

    @cached_property
    def sheet(self) -> Sheet:
        """The role."""
        known = self.meta
        return Sheet(
            self.role,
            self.language,
            aliases=known.names,
            description=known.description,
            catchphrases=known.catchphrases,
        )


def read_talks(path: str | Path) -> list[Talk]:
    """Read sessions, from a file or the folder of a ``rolellm converse`` run.

    Raises:
        DataError: For a file that is missing, has no session, or has one that is not of the form; names the line.
    """
    file = Path(path) / SESSIONS if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise DataError("no sessions here; `rolellm converse` makes them", path=file)
    talks = [read_as(Talk, value, "the session", path=file, line=line) for line, value in read_jsonl(file)]
    if not any(talk.replies for talk in talks):
        raise DataError("no session has a reply", path=file)
    return [talk for talk in talks if talk.replies]


@dataclass(frozen=True, slots=True)
class Measured:
    """A reply.

    Attributes:
        session: Where.
        role: Whose.
        turn: Which, from 1.
        breaks: Which of `BREAKS` it has.
        found: The words of each.
        values: By measure; those that a reply does not have, such as the repetition of two words, are left out.
    """

    session: str
    role: str
    turn: int
    breaks: tuple[str, ...]
    found: tuple[str, ...]
    values: dict[str, float]


def measure(talk: Talk) -> Iterator[Measured]:
    """Every reply of a session, by rule.

    Values: ``in_character`` (no break of `BREAKS`), ``language`` (the role's), ``person`` (speaks as I, not of the role
    by name), ``repetition`` (share of its runs of 4 words, or 6 Chinese characters, that either has said before in the
    session, this reply included), ``style`` (share of its word pairs that the role's own lines or catchphrases
    have).
    """
    own = {run for line in (*talk.meta.lines, *talk.meta.catchphrases) for run in word_runs(line, _OWN)}
    said: set[tuple[str, ...]] = set()
    times = Counter[str]()
    size = _AGAIN[talk.language]
    for turn, (asked, reply) in enumerate(talk.turns, start=1):
        said.update(word_runs(asked, size))
        runs, again = list(word_runs(reply, size)), 0
        for run in runs:
            again += run in said
            said.add(run)
        breaks = breaks_in(reply, talk.sheet, asked)
        times[fold(reply)] += 1
        recited = len(runs) + size > _LONG[talk.language] and again >= _MOST_REPEATED * len(runs)
        if recited or times[fold(reply)] >= _TIMES:
            breaks["repeats"] = reply.strip()[:60]
        values = {"in_character": float(not breaks), "person": float("third_person" not in breaks)}
        if _LETTER.search(reply):
            values["language"] = float("other_language" not in breaks)
        if runs:
            values["repetition"] = again / len(runs)
        pairs = list(word_runs(reply, _OWN))
        if own and pairs:
            values["style"] = sum(pair in own for pair in pairs) / len(pairs)
        yield Measured(talk.id, talk.role, turn, tuple(breaks), tuple(breaks.values()), values)


def breaks_in(reply: str, sheet: Sheet, asked: str = "") -> dict[str, str]:
    """The kinds of break in a reply by itself, in the order of `BREAKS`, and the words of each.

    Args:
        reply: The text.
        sheet: Whose it is.
        asked: What it replies to; a reply that hands it back repeats, from four words (six Chinese characters) up.
    """
    machine = is_machine(sheet.description, sheet.language)
    # A role that breaks may do so in the other language.
    breaches = [
        breach
        for language in LANGUAGES
        for breach in broken_rules(reply, language, machine=machine, own=sheet.catchphrases)
    ]
    found = {_BREACHES[breach.rule]: breach.found for breach in reversed(breaches) if breach.rule in _BREACHES}
    straight = reply.replace("’", "'")
    if not machine and (denied := _DENIES.search(straight)):
        found.setdefault("says_ai", denied.group())
    if offered := _ASSISTS.search(straight):
        found["assists"] = offered.group()
    users = "|".join((*(re.escape(user_name(one, sheet.role)) for one in LANGUAGES), "Human"))
    if spoken := re.search(rf"(?mi)^[\W_]*(?:{users})[*_\s]*[:：].*", reply):
        found["for_user"] = spoken.group().strip()[:60]
    plain = _QUOTED.sub(" ", reply)
    named = re.search(sheet.named(), plain)
    if named and not any(pattern.search(reply) for pattern in FIRST_PERSON.values()):
        found["third_person"] = named.group()
    if _LETTER.search(reply) and detect_language(reply) != sheet.language:
        found["other_language"] = reply.strip()[:60]
    if hands_back(reply, asked) and any(word_runs(reply, _AGAIN[sheet.language])):
        found["repeats"] = reply.strip()[:60]
    return {kind: found[kind] for kind in BREAKS if kind in found}


def hands_back(reply: str, asked: str) -> bool:
    """Whether a reply is the message that it replies to, or nearly: 90 % of the characters (our choice).

    >>> hands_back("What do you read, my lord!", "What do you read, my lord?")
    True
    """
    return Indel.normalized_similarity(fold(reply), fold(asked)) >= _SAME


def summarize(talks: Sequence[Talk], measured: Sequence[Measured], settings: Bootstrap) -> dict[str, Any]:
    """What is reported of a system's sessions, as one JSON object.

    Args:
        talks: Its sessions.
        measured: Their replies, with what a judge said of them in the values.
        settings: For the intervals, which resample sessions.

    Returns:
        ``windows`` (measures for the turns up to each mark), ``curve`` (Kaplan-Meier, of sessions without a break),
        ``half_life`` with its interval (``null`` where it lies beyond the last turn), and ``first_breaks`` by kind.
    """
    firsts: dict[str, Measured] = {}
    for one in measured:
        if one.breaks:
            firsts.setdefault(one.session, one)
    turns = [firsts[talk.id].turn if talk.id in firsts else len(talk.replies) for talk in talks]
    curve = survival(turns, [talk.id in firsts for talk in talks], settings)
    rows = []
    for first, last in windows(talks):
        inside = [one for one in measured if first <= one.turn <= last]
        names = sorted({name for one in inside for name in one.values})
        # After the last turn at which an unbroken session was watched, only a share of none is known.
        end = curve.steps[min(last, len(curve.steps)) - 1]
        known = end.turn == last or not end.share.mean
        row = {"from": first, "to": last, "unbroken": _dict(end.share) if known else None}
        rows.append(row | {name: _dict(metric(inside, name, settings)) for name in names})
    kinds = [one.breaks[0] for one in firsts.values()]
    return {
        "recipe": {name: getattr(talks[0].meta, name) for name in ("model", "user", "sampling")},
        "sessions": len(talks),
        "roles": len({talk.role for talk in talks}),
        "replies": len(measured),
        "broken": len(firsts),
        "first_breaks": {kind: kinds.count(kind) for kind in BREAKS if kind in kinds},
        "half_life": {"turns": curve.half_life, "ci95": None if curve.ends is None else list(curve.ends)},
        "curve": [
            {"turn": step.turn, "at_risk": step.at_risk, "broken": step.failed, "unbroken": _dict(step.share)}
            for step in curve.steps
        ],
        "windows": rows,
    }


def windows(talks: Sequence[Talk]) -> list[tuple[int, int]]:
    """The first and the last turn of each stretch that is reported: up to each of `MARKS`, and up to the end."""
    last = max(len(talk.replies) for talk in talks)
    ends = [*(mark for mark in MARKS if mark < last), last]
    return list(zip([1, *(end + 1 for end in ends)], ends, strict=False))


def _dict(value: Interval) -> dict[str, Any]:
    return {name: item for name, item in (metric_dict(value) or {}).items() if name != "questions"}


def metric(measured: Iterable[Measured], name: str, settings: Bootstrap) -> Interval:
    """A measure's mean over replies that have it, with an interval over sessions."""
    known = [(one.values[name], one.session) for one in measured if name in one.values]
    sample = Sample([value for value, _ in known], [session for _, session in known])
    interval = bootstrap_stratum([sample], settings).intervals[0]
    return share_ends(interval) if interval.mean in (0, 1) else interval


def systems_of(sources: Sequence[str]) -> dict[str, list[Talk]]:
    """The sessions of each system: of ``NAME=PATH`` under that name, else under the model's.

    Sessions of one system get names of their own where files repeat them.

    Raises:
        SettingsError: For no source.
        DataError: As `read_talks`.
    """
    if not sources:
        raise SettingsError("no sessions; name a file, or the folder of a `rolellm converse` run")
    found: dict[str, list[Talk]] = {}
    for source in sources:
        name, given, path = source.partition("=")
        if not given or Path(source).exists():
            name, path = "", source
        for talk in read_talks(path):
            known = found.setdefault(name or talk.meta.model or Path(path).stem, [])
            known.append(replace(talk, id=f"{len(known) + 1}: {talk.id or talk.role}"))
    return found


#: Has a judge look at sessions: it adds to the values of their replies, and says what it did.
Judge = Callable[[Sequence[Talk], Sequence[Measured]], dict[str, Any]]


def drift(
    systems: Mapping[str, Sequence[Talk]], out: str | Path, settings: Bootstrap, judge: Judge | None = None
) -> dict[str, Any]:
    """Measure the sessions of each system, and write ``drift.json`` and ``turns.jsonl``.

    Args:
        systems: Sessions by system, as `systems_of` reads them.
        out: The folder.
        settings: For the intervals.
        judge: As `rolellm.judging.drift_judge.judge_talks`, for one that looks at them, too.

    Returns:
        What ``drift.json`` has.
    """
    found, lines = {}, []
    for name, talks in systems.items():
        measured = [one for talk in talks for one in measure(talk)]
        judged = {} if judge is None else {"judge": judge(talks, measured)}
        found[name] = summarize(talks, measured, settings) | judged
        lines += [{"system": name, **asdict(one)} for one in measured]
    result = {"stage": "drift", "rolellm": __version__, "bootstrap": dump(settings), "systems": found}
    write_jsonl(Path(out) / TURNS, lines)
    write_json(Path(out) / DRIFT, result)
    return result
