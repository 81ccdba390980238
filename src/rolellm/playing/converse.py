"""A simulated user talks with roles for many turns: sessions for ``rolellm check drift``.

All sessions go on together: a turn asks for the users' messages at once, then for the roles' replies.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from rolellm.characters.cards.convert import choose_user_name
from rolellm.characters.reply_rules import find_breaches
from rolellm.core.errors import DataError, ModelError, SettingsError
from rolellm.core.foreign import read_text
from rolellm.core.records import Language, Profile
from rolellm.core.settings import dump
from rolellm.core.text import fold, format_count
from rolellm.data.rolebench.release import split_catchphrases
from rolellm.llm.llm import LLM
from rolellm.llm.model import (
    Accept,
    Failure,
    Finish,
    Message,
    Reply,
    Request,
    Sampling,
    UnacceptableError,
    accept_speech,
    assistant,
    strip_thoughts,
    system,
    user,
)
from rolellm.models.prompts.leaks import make_leak_check
from rolellm.models.prompts.render import OPENING, load_template
from rolellm.playing.player import RolePlayer, TalkPrompt, play_roles
from rolellm.playing.settings import ConverseSettings, PlaySettings
from rolellm.runs import Plan, Records, Round, Step

SESSIONS = "sessions.jsonl"
#: The last messages that a simulated user is shown (our choice): an odd number, so that a role's comes first.
_RECALLED = 11
#: The most tokens of a simulated user's message (our choice).
_USER_TOKENS = 120
_LANGUAGES: Final[tuple[Language, ...]] = ("en", "zh")
_MARKS = " \t\"“”'‘’「」"
_LAST_END = re.compile(r"(?s)(.*[.!?…。！？])[^.!?…。！？]*\Z")
#: A reply that was cut off, or that a server's filter refused, is a turn like others.
_ALSO: tuple[Finish, ...] = ("length", "refused")


@dataclass
class Session:
    """A talk with a role.

    Attributes:
        player: Who plays the role.
        number: Which of the sessions with this role it is, from 0.
        messages: What was said, a card's greeting included.
        script: The user's messages; without them, a model is the user.
        more: Goes into the system turn, after all that is said of the role.
        replies: The role's replies.
        finishes: How each reply ended.
        defects: What is wrong with messages of the user that were taken all the same, such as ``3: repeats …``.
        dropped: Earlier turns that each reply's prompt had no room for.
        ended: Why it ended early; empty where it did not.
    """

    player: RolePlayer
    number: int
    messages: list[Message]
    script: Sequence[str] | None = None
    more: str = ""
    replies: list[str] = field(default_factory=list)
    finishes: list[Finish] = field(default_factory=list)
    defects: list[str] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    ended: str = ""

    def to_dict(self, **meta: Any) -> dict[str, Any]:
        """Return a line of ``sessions.jsonl``: messages, and in ``meta`` all that measuring drift needs of the role."""
        sheet = self.player.part.sheet
        described = sheet.full_description or ""
        catchphrases = list(sheet.catchphrases) or split_catchphrases(described)[1]
        own = [turn.content for turn in sheet.turns if turn.kind == "speech" and turn.speaker == sheet.role]
        return {
            "id": f"{sheet.role}/{self.number}",
            "role": sheet.role,
            "language": sheet.language,
            "messages": [asdict(message) for message in self.messages],
            "meta": {
                **meta,
                "names": list(sheet.names),
                "description": described,
                "catchphrases": catchphrases,
                "lines": own,
                "finishes": self.finishes,
                "defects": self.defects,
                "dropped": self.dropped,
                "ended": self.ended,
            },
        }

    def build_user_request(self, persona: str | None) -> Request:
        """Build the request for the user's next message: the last turns, with the speakers changed over."""
        role, language = self.player.role, self.player.part.sheet.language
        instructions = load_template(language, "converse_user").fill(
            role=role, persona=persona or load_template(language, "converse_persona").text
        )
        recalled = self.messages[-_RECALLED:]
        turns = [(user if turn.role == "assistant" else assistant)(turn.content) for turn in recalled]
        if not turns or turns[0].role == "assistant":
            turns.insert(0, user(OPENING[language]))
        # Small models go by what comes last.
        turns[-1] = user(f"{turns[-1].content}\n\n{load_template(language, 'converse_next').text}")
        sampling = Sampling(max_tokens=_USER_TOKENS, seed=self.player.settings.seed)
        return Request((system(instructions), *turns), sampling, repeat=self.number, tag=f"user/{role}")


def make_user_acceptor(sheet: Profile) -> Accept[str]:
    """The `accept` that takes a simulated user's words: without a name in front, and nothing said for the role.

    Words that small models copy (from the prompt, from the talk) and a user who claims to be the role are asked for
    again; where nothing better comes, they are taken.

    Args:
        sheet: Who is talked to.
    """
    role, language = re.escape(sheet.role), sheet.language
    own = re.compile(rf"(?i)\A\W*(?:{'|'.join(choose_user_name(code, sheet.role) for code in _LANGUAGES)})\s*[:：]\s*")
    role_label = re.compile(rf"(?mi)^\W*{role}\s*[:：]")
    claims = re.compile(rf"(?i)\b(?:I am|I'm|as) (?:the )?{role}|我(?:就)?是{role}|{role}(?:来也|在此)")
    leak = make_leak_check(language, sheet.full_description or "")

    def accept(request: Request, reply: Reply) -> str:
        words = role_label.split(own.sub("", strip_thoughts(reply.text)))[0]
        if reply.finish == "length":
            sentences = _LAST_END.match(words)
            words = sentences[1] if sentences else words
        words = " ".join(words.split()).strip(_MARKS)
        if not words:
            raise UnacceptableError("says nothing for the user")
        talk_text = "\n".join(fold(message.content) for message in request.messages[1:])
        breaches = {rule for code in _LANGUAGES for rule in find_breaches(words, code)} - {"complete"}
        problems = {
            "speaks as an assistant": breaches,
            "claims to be the role": claims.search(words),
            "repeats what was said": fold(words) in talk_text,
            "repeats the instructions": leak(words),
        }
        if defects := tuple(problem for problem, hit in problems.items() if hit):
            raise UnacceptableError(defects[0], usable=words, defects=defects)
        return words

    return accept


def read_user_messages(path: Path, turns: int) -> list[str]:
    """The user's messages of a script: its lines that are not blank, as many as there are turns.

    Raises:
        SettingsError: For a file that cannot be read, or has fewer lines than there are turns.
    """
    try:
        text = read_text(path)
    except DataError as error:
        raise SettingsError(f"{path} cannot be read ({error}); give a UTF-8 text file, one message a line") from error
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) < turns:
        raise SettingsError(
            f"{path} has {format_count(len(lines), 'message')} for {format_count(turns, 'turn')}; "
            f"use --turns {len(lines)} or add lines"
        )
    return lines[:turns]


@dataclass(frozen=True)
class Converse(Step[list[dict[str, Any]]]):
    """Have a simulated user talk with each role; the result is the lines of ``sessions.jsonl``.

    Attributes:
        roles: As `rolellm.RolePlayer` takes them; a role given twice has two sessions.
        settings: How; without a script, a model is the user.
        talker: The model that is the user; by default the one that plays the roles.
    """

    roles: Sequence[Any]
    settings: ConverseSettings
    talker: LLM | None = None
    kind: ClassVar[str] = "converse"

    def plan(self, llm: LLM) -> Plan[list[dict[str, Any]]]:
        """Ask for a message of each user, then for a reply of each role, turn by turn.

        Raises:
            SettingsError: For no role, an unknown one, or a script that is too short.
        """
        settings = self.settings
        script = None if settings.script is None else read_user_messages(settings.script, settings.turns)
        if not self.roles:
            raise SettingsError("no role to talk to; name at least one")
        options = {name: value for name, value in dump(settings).items() if name in PlaySettings.__dataclass_fields__}
        sessions: list[Session] = []
        for player in play_roles(llm, self.roles, **options):
            number = sum(session.player.role == player.role for session in sessions)
            sessions.append(Session(player, number, player.opening, script))
        yield from hold_sessions(sessions, settings.turns, settings.persona, self.talker)
        meta = {
            "model": ", ".join(model.name for model in llm.models),
            "user": "script" if script is not None else ", ".join(model.name for model in (self.talker or llm).models),
            "turns": settings.turns,
            "sampling": dump(settings.sampling),
        }
        return [session.to_dict(**meta) for session in sessions]

    def records(self, result: list[dict[str, Any]]) -> Records:
        """Return the sessions."""
        return {SESSIONS: result}

    def summarize(self, result: list[dict[str, Any]]) -> dict[str, Any]:
        """Count sessions and replies; say which sessions ended early, and why."""
        return {
            "sessions": len(result),
            "replies": sum(len(session["meta"]["finishes"]) for session in result),
            "ended_early": {session["id"]: ended for session in result if (ended := session["meta"]["ended"])},
        }

    def describe(self, result: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the model that is the user."""
        return {"user": self.talker and self.talker.describe()}


def hold_sessions(
    sessions: Sequence[Session], turns: int, persona: str | None = None, talker: LLM | None = None
) -> Plan[None]:
    """Hold sessions side by side, each to the end of its script.

    Args:
        sessions: The sessions.
        turns: How many there are at most.
        persona: Who a simulated user is.
        talker: The model that is the user; by default the one that plays the roles.
    """
    for turn in range(turns):
        label = f"talking, turn {turn + 1}" if turns > 1 else ""
        going = [one for one in sessions if not one.ended and (one.script is None or turn < len(one.script))]
        for session in going:
            if session.script is not None:
                session.messages.append(user(session.script[turn]))
        yield from _ask_users([session for session in going if session.script is None], persona, talker, label)
        yield from _ask_roles([session for session in going if not session.ended], label)


def _stand_in(request: Request) -> str:
    """A message for a dry run: half of what is allowed."""
    return "word " * (request.sampling.max_tokens // 2)


def _ask_users(sessions: Sequence[Session], persona: str | None, talker: LLM | None, label: str) -> Plan[None]:
    """One message of each user."""
    if not sessions:
        return
    requests = [session.build_user_request(persona) for session in sessions]
    takes = {f"user/{session.player.role}": make_user_acceptor(session.player.part.sheet) for session in sessions}
    outcomes = yield Round(
        requests,
        lambda request, reply: takes[request.tag](request, reply),
        label=label,
        also=_ALSO,
        stand_in=_stand_in,
        llm=talker,
        folder="user",
    )
    for session, outcome in zip(sessions, outcomes, strict=True):
        if isinstance(outcome, Failure):
            session.ended = f"the user: {outcome.reason}"
        else:
            session.messages.append(user(outcome.value))
            session.defects += [f"{len(session.finishes) + 1}: {problem}" for problem in outcome.defects]


def _ask_roles(sessions: Sequence[Session], label: str) -> Plan[None]:
    """One reply of each role."""
    prompts: list[tuple[Session, TalkPrompt]] = []
    for session in sessions:
        try:
            prompts.append((session, session.player.prompt(session.messages, more=session.more)))
        except ModelError as error:
            session.ended = str(error)
            session.messages.pop()
    if not prompts:
        return
    requests = [session.player.request(prompt, repeat=session.number) for session, prompt in prompts]
    outcomes = yield Round(requests, accept_speech, label=label, also=_ALSO, stand_in=_stand_in)
    for (session, prompt), outcome in zip(prompts, outcomes, strict=True):
        if isinstance(outcome, Failure):
            session.ended = outcome.reason
            session.messages.pop()
        else:
            session.messages.append(assistant(outcome.value))
            session.replies.append(outcome.value)
            session.finishes.append(outcome.reply.finish)
            session.dropped.append(prompt.dropped)
