"""A scripted user talks with roles for many turns: sessions for ``rolellm check drift``.

All sessions go on together: a turn asks for all roles' replies at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from rolellm.core.errors import DataError, ModelError, SettingsError
from rolellm.core.foreign import read_text
from rolellm.core.result import Result
from rolellm.core.settings import dump
from rolellm.core.text import format_count
from rolellm.data.rolebench.release import split_catchphrases
from rolellm.llm.llm import LLM
from rolellm.llm.model import Failure, Finish, Message, Request, accept_speech, assistant, user
from rolellm.playing.player import RolePlayer, TalkPrompt, play_roles
from rolellm.playing.settings import PlaySettings
from rolellm.runs import Plan, Records, Round, Step

SESSIONS = "sessions.jsonl"
#: A reply that was cut off, or that a server's filter refused, is a turn like others.
_ALSO: Final[tuple[Finish, ...]] = ("length", "refused")


@dataclass
class Session:
    """A talk with a role.

    Attributes:
        player: Who plays the role.
        number: Which of the sessions with this role it is, from 0.
        messages: What was said, a card's greeting included.
        script: The user's messages.
        replies: The role's replies.
        finishes: How each reply ended.
        dropped: Earlier turns that each reply's prompt had no room for.
        ended: Why it ended early; empty where it did not.
    """

    player: RolePlayer
    number: int
    messages: list[Message]
    script: Sequence[str]
    replies: list[str] = field(default_factory=list)
    finishes: list[Finish] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    ended: str = ""

    def to_dict(self, **meta: Any) -> dict[str, Any]:
        """Return a line of ``sessions.jsonl``: messages, and in ``meta`` all that measuring drift needs of the role."""
        sheet = self.player.part.sheet
        description = sheet.full_description or ""
        own_turns = [turn for turn in sheet.turns if turn.kind == "speech" and turn.speaker == sheet.role]
        catchphrases = list(sheet.catchphrases) or split_catchphrases(description)[1]
        role = {"names": list(sheet.names), "description": description, "catchphrases": catchphrases}
        meta |= {**role, "lines": [turn.content for turn in own_turns]}
        meta |= {"finishes": self.finishes, "dropped": self.dropped, "ended": self.ended}
        head = {"id": f"{sheet.role}/{self.number}", "role": sheet.role, "language": sheet.language}
        return {**head, "messages": [asdict(message) for message in self.messages], "meta": meta}


def read_user_messages(path: str | Path) -> list[str]:
    """Read the user's messages of a script: its lines that are not blank.

    Raises:
        SettingsError: For a file that cannot be read or has no message.
    """
    try:
        text = read_text(Path(path))
    except DataError as error:
        raise SettingsError(f"{path} cannot be read ({error}); give a UTF-8 text file, one message a line") from error
    messages = [line.strip() for line in text.splitlines() if line.strip()]
    if not messages:
        raise SettingsError(f"{path} has no message; write one message a line")
    return messages


@dataclass(frozen=True, slots=True, repr=False)
class ConverseResult(Result):
    """Result of a run.

    Attributes:
        sessions: The lines of ``sessions.jsonl``.
    """

    sessions: tuple[dict[str, Any], ...]

    @property
    def replies(self) -> int:
        """Number of replies."""
        return sum(len(session["meta"]["finishes"]) for session in self.sessions)

    @property
    def ended_early(self) -> dict[str, str]:
        """The sessions that ended before their script, and why."""
        reasons = {session["id"]: session["meta"]["ended"] for session in self.sessions}
        return {name: reason for name, reason in reasons.items() if reason}

    @property
    def has_passed(self) -> bool:
        """True where there is any reply."""
        return self.replies > 0

    def remarks(self) -> list[str]:
        """Return the number of replies and sessions."""
        replies = format_count(self.replies, "reply", "replies")
        return [f"{replies} in {format_count(len(self.sessions), 'session')}."]

    def notes(self) -> list[str]:
        """Return which sessions ended early."""
        return [f"note: {name} ended early: {reason}" for name, reason in self.ended_early.items()]


@dataclass(frozen=True)
class Converse(Step[ConverseResult]):
    """Have a scripted user talk with each role.

    Attributes:
        roles: As `rolellm.RolePlayer` takes them; a role given twice has two sessions.
        script: A text file with the user's messages, one a line.
        settings: How the roles are played.
    """

    roles: Sequence[Any]
    script: str | Path
    settings: PlaySettings
    kind: ClassVar[str] = "converse"

    def plan(self, llm: LLM) -> Plan[ConverseResult]:
        """Ask for a reply of each role, turn by turn.

        Raises:
            SettingsError: For no role, an unknown one, or a script that cannot be read.
        """
        messages = read_user_messages(self.script)
        if not self.roles:
            raise SettingsError("no role to talk to; name at least one")
        sessions: list[Session] = []
        for player in play_roles(llm, self.roles, **dump(self.settings)):
            number = sum(session.player.role == player.role for session in sessions)
            sessions.append(Session(player, number, player.opening, messages))
        yield from hold_sessions(sessions)
        models = ", ".join(model.name for model in llm.models)
        sampling = dump(self.settings.sampling)
        lines = [session.to_dict(model=models, user="script", sampling=sampling) for session in sessions]
        return ConverseResult(tuple(lines))

    def records(self, result: ConverseResult) -> Records:
        """Return the sessions."""
        return {SESSIONS: result.sessions}

    def summarize(self, result: ConverseResult) -> dict[str, Any]:
        """Count sessions and replies; say which sessions ended early, and why."""
        return {"sessions": len(result.sessions), "replies": result.replies, "ended_early": result.ended_early}


def hold_sessions(sessions: Sequence[Session]) -> Plan[None]:
    """Hold sessions side by side, each to the end of its script."""
    turns = max((len(session.script) for session in sessions), default=0)
    for turn in range(turns):
        prompts: list[tuple[Session, TalkPrompt]] = []
        for session in sessions:
            if session.ended or turn >= len(session.script):
                continue
            session.messages.append(user(session.script[turn]))
            try:
                prompts.append((session, session.player.prompt(session.messages)))
            except ModelError as error:
                session.ended = str(error)
                session.messages.pop()
        if not prompts:
            return
        requests = [session.player.request(prompt, repeat=session.number) for session, prompt in prompts]
        label = f"talking, turn {turn + 1}" if turns > 1 else ""
        outcomes = yield Round(requests, accept_speech, label=label, also=_ALSO, stand_in=_make_stand_in)
        for (session, prompt), outcome in zip(prompts, outcomes, strict=True):
            if isinstance(outcome, Failure):
                session.ended = outcome.reason
                session.messages.pop()
                continue
            session.messages.append(assistant(outcome.value))
            session.replies.append(outcome.value)
            session.finishes.append(outcome.reply.finish)
            session.dropped.append(prompt.dropped)


def _make_stand_in(request: Request) -> str:
    """Make a reply for a dry run: half of what is allowed."""
    return "word " * (request.sampling.max_tokens // 2)
