"""How long a role lasts: every reply of a session by rule and by a judge model, and when sessions break.

The judge's three consistencies are after arXiv 2511.00222: of a line with the description (``prompt_to_line``), of a
line with the role's earlier lines (``line_to_line``), and of what the lines say with the answers that the description
gives to questions (``questions``). The wording and the way of asking are ours, see docs/checks.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Final

from rolellm.characters.cards.convert import choose_user_name
from rolellm.checks.breaks import AGAIN, BREAKS, LETTER, find_breaks
from rolellm.checks.check import Check
from rolellm.core.errors import DataError, SettingsError
from rolellm.core.jsonl import read_jsonl
from rolellm.core.records import Language, Profile
from rolellm.core.text import fold
from rolellm.core.typed_json import read_as
from rolellm.llm.json_reply import accept_json, make_object_schema
from rolellm.llm.llm import LLM
from rolellm.llm.model import Accept, Answer, Message, Reply, Request, Sampling, Schema, system, user
from rolellm.models.prompts.fences import draw_nonce, fence_text, make_harmless
from rolellm.models.prompts.leaks import list_word_runs
from rolellm.models.prompts.render import load_template
from rolellm.playing.converse import SESSIONS
from rolellm.runs import Plan, Round
from rolellm.scoring.statistics.intervals import SHARE, ClusteredSample, Interval, encode_interval, estimate_share
from rolellm.scoring.statistics.kaplan_meier import estimate_survival, find_half_life

#: The turns at which drift is reported: each for the turns since the one before it.
MARKS: Final = (5, 10, 20, 40)
#: Words in a row, in Chinese characters, that count as the role's own way (our choice).
_OWN: Final = 2
#: Words, in Chinese characters, from which on a reply that is mostly said again says nothing, and how much that is (our
#: choice): a 0.5B model recited its description turn after turn.
_LONG: Final[Mapping[Language, int]] = {"en": 15, "zh": 25}
_MOST_REPEATED: Final = 0.8
#: The same whole reply, however short, this many times answers nothing (our choice; a catchphrase may come twice).
_TIMES: Final = 3
GRADES: Final = ("character", "knowledge", "coherence", "interest")
#: Greedy, with room for reasons (our choice).
_SAMPLING: Final = Sampling(temperature=0.0, top_p=1.0, max_tokens=500)
#: Maximum characters of a line and of the description that a judge is shown, and maximum earlier lines (our choice).
_LINE, _DESCRIPTION, _EARLIER = 800, 4000, 20


_TEXT: Final = {"type": "string"}
_VERDICT: Final = {"type": "object", "properties": {"reason": _TEXT, "consistent": {"type": "boolean"}}}
_GRADE: Final = {
    "type": "object",
    "properties": {"reason": _TEXT, "grade": {"type": "integer", "enum": [1, 2, 3, 4, 5]}},
}
_QUESTION: Final = {"type": "object", "properties": {"question": _TEXT, "answer": _TEXT}}
_WORDS: Final = {"type": "string", "enum": ["agrees", "contradicts", "silent"]}
_SCHEMAS: Final[Mapping[str, Schema]] = {
    "line": make_object_schema("drift_line", description=_VERDICT, earlier=_VERDICT),
    "session": make_object_schema("drift_session", **dict.fromkeys(GRADES, _GRADE)),
    "questions": make_object_schema("drift_questions", questions={"type": "array", "items": _QUESTION}),
    "answers": make_object_schema("drift_answers", answers={"type": "array", "items": _WORDS}),
}
#: A verdict for a dry run, whatever was asked.
_STAND_IN: Final[Mapping[str, Any]] = {
    "description": {"consistent": True},
    "earlier": {"consistent": True},
    **{name: {"grade": 3} for name in GRADES},
    "questions": [{"question": "–", "answer": "–"}],
    "answers": [],
}


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


def read_talks(path: str | Path) -> list[Talk]:
    """Read sessions, from a file or the folder of a ``rolellm check converse`` run.

    Raises:
        DataError: For a file that is missing, has no session, or has one that is not of the form; names the line.
    """
    file = Path(path) / SESSIONS if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise DataError("no sessions here; `rolellm check converse` makes them", path=file)
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
    own = {run for line in (*talk.meta.lines, *talk.meta.catchphrases) for run in list_word_runs(line, _OWN)}
    seen_runs: set[tuple[str, ...]] = set()
    times = Counter[str]()
    size = AGAIN[talk.language]
    for turn, (prompt, reply) in enumerate(talk.turns, start=1):
        seen_runs.update(list_word_runs(prompt, size))
        runs, again = list(list_word_runs(reply, size)), 0
        for run in runs:
            again += run in seen_runs
            seen_runs.add(run)
        breaks = find_breaks(reply, talk.sheet, prompt)
        times[fold(reply)] += 1
        recited = len(runs) + size > _LONG[talk.language] and again >= _MOST_REPEATED * len(runs)
        if recited or times[fold(reply)] >= _TIMES:
            breaks["repeats"] = reply.strip()[:60]
        values = {"in_character": float(not breaks), "person": float("third_person" not in breaks)}
        if LETTER.search(reply):
            values["language"] = float("other_language" not in breaks)
        if runs:
            values["repetition"] = again / len(runs)
        pairs = list(list_word_runs(reply, _OWN))
        if own and pairs:
            values["style"] = sum(pair in own for pair in pairs) / len(pairs)
        yield Measured(talk.id, talk.role, turn, tuple(breaks), tuple(breaks.values()), values)


def summarize_sessions(talks: Sequence[Talk], measured: Sequence[Measured]) -> dict[str, Any]:
    """Summarize a system's sessions as one JSON object.

    Args:
        talks: Its sessions.
        measured: Their replies, with what a judge said of them in the values.

    Returns:
        ``windows`` (measures for the turns up to each mark), ``curve`` (Kaplan-Meier, of sessions without a break),
        ``half_life`` with its interval (``null`` where it lies beyond the last turn), ``first_breaks`` by kind, and
        ``examples``, the first of each kind.
    """
    firsts: dict[str, Measured] = {}
    for reply in measured:
        if reply.breaks:
            firsts.setdefault(reply.session, reply)
    turns = [firsts[talk.id].turn if talk.id in firsts else len(talk.replies) for talk in talks]
    curve = estimate_survival(turns, [talk.id in firsts for talk in talks])
    roles = {talk.id: talk.role for talk in talks}
    rows = []
    for first, last in list_windows(talks):
        inside = [reply for reply in measured if first <= reply.turn <= last]
        names = sorted({name for reply in inside for name in reply.values})
        # After the last turn at which an unbroken session was watched, only a share of none is known.
        share = curve[min(last, len(curve)) - 1]
        is_known = last <= len(curve) or not share.mean
        row = {"from": first, "to": last, "unbroken": _encode_share(share) if is_known else None}
        rows.append(row | {name: _encode_share(estimate_metric(inside, name, roles)) for name in names})
    kinds, broken = [reply.breaks[0] for reply in firsts.values()], Counter(reply.turn for reply in firsts.values())
    turns_of = {talk.id: talk.turns for talk in talks}
    examples: dict[str, dict[str, Any]] = {}
    for reply in firsts.values():
        message, text = turns_of[reply.session][reply.turn - 1]
        example = {"session": reply.session, "turn": reply.turn, "message": message, "reply": text}
        examples.setdefault(reply.breaks[0], example)
    half_life, ends = find_half_life(curve)
    return {
        "recipe": {name: getattr(talks[0].meta, name) for name in ("model", "user", "sampling")},
        "sessions": len(talks),
        "roles": len({talk.role for talk in talks}),
        "replies": len(measured),
        "broken": len(firsts),
        "first_breaks": {kind: kinds.count(kind) for kind in BREAKS if kind in kinds},
        "examples": examples,
        "half_life": {"turns": half_life, "ci95": ends and list(ends)},
        "curve": [
            {"turn": turn, "at_risk": share.n, "broken": broken[turn], "unbroken": _encode_share(share)}
            for turn, share in enumerate(curve, start=1)
        ],
        "windows": rows,
    }


def list_windows(talks: Sequence[Talk]) -> list[tuple[int, int]]:
    """The first and the last turn of each stretch that is reported: up to each of `MARKS`, and up to the end."""
    last = max(len(talk.replies) for talk in talks)
    ends = [*(mark for mark in MARKS if mark < last), last]
    return list(zip([1, *(end + 1 for end in ends)], ends, strict=False))


def _encode_share(value: Interval) -> dict[str, Any]:
    return {name: item for name, item in (encode_interval(value) or {}).items() if name != "questions"}


def estimate_metric(measured: Iterable[Measured], name: str, roles: Mapping[str, str]) -> Interval:
    """A measure's mean over replies that have it, with intervals over sessions, and over the roles of sessions."""
    cases = [(reply.values[name], reply.session, roles[reply.session]) for reply in measured if name in reply.values]
    share = estimate_share(ClusteredSample(*map(list, zip(*cases, strict=True))), SHARE)
    return share._replace(method=share.method.replace("question", "session"))


def read_systems(sources: Sequence[str]) -> dict[str, list[Talk]]:
    """The sessions of each system: of ``NAME=PATH`` under that name, else under the model's.

    Sessions of one system get names of their own where files repeat them.

    Raises:
        SettingsError: For no source.
        DataError: As `read_talks`.
    """
    if not sources:
        raise SettingsError("no sessions; name a file, or the folder of a `rolellm check converse` run")
    systems: dict[str, list[Talk]] = {}
    for source in sources:
        name, separator, path = source.partition("=")
        if not separator or Path(source).exists():
            name, path = "", source
        for talk in read_talks(path):
            sessions = systems.setdefault(name or talk.meta.model or Path(path).stem, [])
            sessions.append(replace(talk, id=f"{len(sessions) + 1}: {talk.id or talk.role}"))
    return systems


def _build_request(talk: Talk, name: str, tag: str, /, **pieces: tuple[str, str]) -> Request:
    """A request of a template; each piece is a name for its fence, and a text."""
    mark = draw_nonce(*(text for _, text in pieces.values()))
    system_text = load_template(talk.language, "drift_system").text
    user_text = load_template(talk.language, f"drift_{name}").fill(
        mark=mark, **{slot: fence_text(title, text, mark) for slot, (title, text) in pieces.items()}
    )
    return Request((system(system_text), user(user_text)), _SAMPLING, schema=_SCHEMAS[name], tag=f"{name}/{tag}")


def _describe_role(talk: Talk) -> tuple[str, str]:
    return "character", make_harmless(f"{talk.role}\n{talk.meta.description}", _DESCRIPTION).text


def _format_lines(lines: Sequence[str]) -> str:
    return (
        "\n".join(f"{number}. {make_harmless(line, _LINE).text}" for number, line in enumerate(lines, start=1)) or "–"
    )


def build_line_request(talk: Talk, turn: int) -> Request:
    """Ask whether a reply goes with the description, and with what the role said before.

    Args:
        talk: The session.
        turn: Which reply, from 1.
    """
    earlier = talk.replies[max(turn - 1 - _EARLIER, 0) : turn - 1]
    line = make_harmless(talk.replies[turn - 1], _LINE).text
    pieces = {"earlier": ("earlier lines", _format_lines(earlier)), "line": ("line", line)}
    return _build_request(talk, "line", f"{talk.id}/{turn}", description=_describe_role(talk), **pieces)


def build_session_request(talk: Talk, first: int, last: int) -> Request:
    """Grades for the turns from one to another, both included."""
    start = len(talk.messages) - 2 * len(talk.replies)
    messages = talk.messages[max(start, 0) + 2 * (first - 1) : max(start, 0) + 2 * last]
    names = {"user": choose_user_name(talk.language, talk.role), "assistant": talk.role}
    text = "\n".join(
        f"{names.get(message.role, message.role)}: {make_harmless(message.content, _LINE).text}" for message in messages
    )
    return _build_request(talk, "session", f"{talk.id}/{last}", description=_describe_role(talk), talk=("talk", text))


def build_questions_request(talk: Talk) -> Request:
    """Questions about a role that its description answers; the same for all its sessions."""
    return _build_request(talk, "questions", talk.role, description=_describe_role(talk))


def build_answers_request(talk: Talk, first: int, last: int, questions: str) -> Request:
    """Ask what the role's lines say on some questions."""
    lines = _format_lines(talk.replies[first - 1 : last])
    pieces = {"lines": ("lines", lines), "questions": ("questions", questions)}
    return _build_request(talk, "answers", f"{talk.id}/{last}", **pieces)


def _make_acceptor() -> Accept[Any]:
    accepts = {name: accept_json(schema, lambda value: value) for name, schema in _SCHEMAS.items()}

    def accept(request: Request, reply: Reply) -> Any:
        return accepts[request.tag.partition("/")[0]](request, reply)

    return accept


def _list_stretches(talks: Sequence[Talk]) -> list[tuple[Talk, int, int]]:
    return [
        (talk, first, min(last, len(talk.replies)))
        for talk in talks
        for first, last in list_windows(talks)
        if first <= len(talk.replies)
    ]


@dataclass(frozen=True)
class MeasureDrift(Check):
    """Measure the sessions of each system, by rule and, where a model is named, by its judgment.

    The judge adds to the values of `Measured`: ``prompt_to_line`` and ``line_to_line`` of every reply; ``questions``
    and the grades, scaled to 0 to 1, of the last reply of each stretch of turns.

    Attributes:
        systems: Sessions by system, as `read_systems` reads them.
    """

    systems: Mapping[str, Sequence[Talk]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    kind: ClassVar[str] = "drift"
    rows: ClassVar[str] = "turns"

    def plan(self, llm: LLM) -> Plan[dict[str, Any]]:
        """Measure every reply, and have a judge read them."""
        summaries, rows = {}, []
        for name, talks in self.systems.items():
            measured = [reply for talk in talks for reply in measure(talk)]
            judged = {"judge": (yield from _judge_talks(talks, measured))} if llm.is_named else {}
            summaries[name] = summarize_sessions(talks, measured) | judged
            rows += [{"system": name, **asdict(reply)} for reply in measured]
        return {"systems": summaries, "turns": rows}


def _judge_talks(talks: Sequence[Talk], measured: Sequence[Measured]) -> Plan[dict[str, int]]:
    """Ask about every line and stretch, and what the description answers; then what the lines say of that.

    Verdicts go into the values. Returns how many requests have no verdict.
    """
    values = {(reply.session, reply.turn): reply.values for reply in measured}
    turns = [(talk, turn) for talk in talks for turn in range(1, len(talk.replies) + 1)]
    stretches = _list_stretches(talks)
    by_role = {request.tag: request for request in map(build_questions_request, talks)}
    accept = _make_acceptor()
    requests = [build_line_request(talk, turn) for talk, turn in turns]
    requests += [build_session_request(*stretch) for stretch in stretches]
    outcomes = yield Round([*requests, *by_role.values()], accept, label="judging", stand_in=lambda _: _STAND_IN)
    verdicts = iter([outcome.value if isinstance(outcome, Answer) else None for outcome in outcomes])
    for (talk, turn), verdict in zip(turns, islice(verdicts, len(turns)), strict=True):
        if verdict:
            values[talk.id, turn]["prompt_to_line"] = float(verdict["description"]["consistent"])
            if turn > 1:
                values[talk.id, turn]["line_to_line"] = float(verdict["earlier"]["consistent"])
    for (talk, _, last), verdict in zip(stretches, islice(verdicts, len(stretches)), strict=True):
        if verdict:
            values[talk.id, last] |= {f"rubric_{name}": (verdict[name]["grade"] - 1) / 4 for name in GRADES}
    questions = {
        tag: "\n".join(
            f"{number}. {make_harmless(pair['question'], 300).text} ({make_harmless(pair['answer'], 200).text})"
            for number, pair in enumerate(verdict["questions"][:5], start=1)
        )
        for tag, verdict in zip(by_role, verdicts, strict=True)
        if verdict
    }
    put = [(stretch, text) for stretch in stretches if (text := questions.get(build_questions_request(stretch[0]).tag))]
    answers = yield Round(
        [build_answers_request(*stretch, text) for stretch, text in put],
        accept,
        label="answering",
        stand_in=lambda _: _STAND_IN,
    )
    for ((talk, _, last), _), outcome in zip(put, answers, strict=True):
        labels = outcome.value["answers"] if isinstance(outcome, Answer) else []
        if decided := labels.count("agrees") + labels.count("contradicts"):
            values[talk.id, last]["questions"] = labels.count("agrees") / decided
    outcomes += answers
    return {"unscored": sum(not isinstance(outcome, Answer) for outcome in outcomes), "of": len(outcomes)}
