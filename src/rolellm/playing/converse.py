"""A simulated user talks with roles for many turns: sessions for ``rolellm drift``.

All sessions go on together: a turn asks for the users' messages at once, then for the roles' replies. Both are kept in
journals, so that the same call in the same folder continues where it stopped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from rolellm.construct.cards.convert import user_name
from rolellm.construct.clean import broken_rules
from rolellm.construct.sheet import Sheet
from rolellm.core.errors import ModelError, SettingsError
from rolellm.core.files import write_json
from rolellm.core.jsonl import write_jsonl
from rolellm.core.records import Language
from rolellm.core.settings import dump
from rolellm.core.text import fold, number_of
from rolellm.llm.client import Client
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
    assistant,
    speech_of,
    system,
    user,
    without_thoughts,
)
from rolellm.playing.player import Prompt, RolePlayer
from rolellm.playing.settings import ConverseSettings, PlaySettings
from rolellm.prompts.leaks import leak_check
from rolellm.prompts.render import OPENING, load_template
from rolellm.rolebench.release import split_catchphrases
from rolellm.runtime.progress import Progress
from rolellm.version import __version__

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
    """A talk of a simulated user with a role.

    Attributes:
        player: Who plays the role.
        number: Which of the sessions with this role it is, from 0.
        messages: What was said, a card's greeting included.
        finishes: How each reply ended.
        defects: What is wrong with messages of the user that were taken all the same, such as ``3: repeats …``.
        dropped: Earlier turns that each reply's prompt had no room for.
        ended: Why it ended early; empty where it did not.
    """

    player: RolePlayer
    number: int
    messages: list[Message] = field(default_factory=list)
    finishes: list[Finish] = field(default_factory=list)
    defects: list[str] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    ended: str = ""

    def to_dict(self, **meta: Any) -> dict[str, Any]:
        """As a line of ``sessions.jsonl``: messages, and in ``meta`` all that measuring drift needs of the role."""
        sheet = self.player.part.sheet
        described = sheet.described() or ""
        catchphrases = list(sheet.catchphrases) or split_catchphrases(described)[1]
        own = [turn.content for turn in sheet.turns if turn.kind == "speech" and turn.speaker == sheet.role]
        return {
            "id": f"{sheet.role}/{self.number}",
            "role": sheet.role,
            "language": sheet.language,
            "messages": [{"role": message.role, "content": message.content} for message in self.messages],
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

    def user_request(self, persona: str | None) -> Request:
        """What a model is asked for the user's next message: the last turns, with the speakers changed over."""
        role, language = self.player.role, self.player.part.sheet.language
        told = load_template(language, "converse_user").fill(
            role=role, persona=persona or load_template(language, "converse_persona").text
        )
        recalled = self.messages[-_RECALLED:]
        turns = [(user if turn.role == "assistant" else assistant)(turn.content) for turn in recalled]
        if not turns or turns[0].role == "assistant":
            turns.insert(0, user(OPENING[language]))
        # Small models go by what comes last.
        turns[-1] = user(f"{turns[-1].content}\n\n{load_template(language, 'converse_next').text}")
        sampling = Sampling(max_tokens=_USER_TOKENS, seed=self.player.settings.seed)
        return Request((system(told), *turns), sampling, repeat=self.number, tag=f"user/{role}")


def user_words(sheet: Sheet) -> Accept[str]:
    """The `accept` that takes a simulated user's words: without a name in front, and nothing said for the role.

    Words that small models copy (from the prompt, from the talk) and a user who claims to be the role are asked for
    again; where nothing better comes, they are taken.

    Args:
        sheet: Who is talked to.
    """
    role, language = re.escape(sheet.role), sheet.language
    own = re.compile(rf"(?i)\A\W*(?:{'|'.join(user_name(one, sheet.role) for one in _LANGUAGES)})\s*[:：]\s*")
    others = re.compile(rf"(?mi)^\W*{role}\s*[:：]")
    claims = re.compile(rf"(?i)\b(?:I am|I'm|as) (?:the )?{role}|我(?:就)?是{role}|{role}(?:来也|在此)")
    leak = leak_check(language, sheet.described() or "")

    def accept(request: Request, reply: Reply) -> str:
        words = others.split(own.sub("", without_thoughts(reply.text)))[0]
        if reply.finish == "length":
            whole = _LAST_END.match(words)
            words = whole[1] if whole else words
        words = " ".join(words.split()).strip(_MARKS)
        if not words:
            raise UnacceptableError("says nothing for the user")
        said = "\n".join(fold(message.content) for message in request.messages[1:])
        breaches = {breach.rule for one in _LANGUAGES for breach in broken_rules(words, one)} - {"complete"}
        problems = {
            "speaks as an assistant": breaches,
            "claims to be the role": claims.search(words),
            "repeats what was said": fold(words) in said,
            "repeats the instructions": leak(words),
        }
        if found := tuple(problem for problem, hit in problems.items() if hit):
            raise UnacceptableError(found[0], usable=words, defects=found)
        return words

    return accept


def read_script(path: Path, turns: int) -> list[str]:
    """The user's messages of a script: its lines that are not blank, as many as there are turns.

    Raises:
        SettingsError: For a file that cannot be read, or has fewer lines than there are turns.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read ({error}); give a UTF-8 text file, one message a line") from error
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) < turns:
        raise SettingsError(
            f"{path} has {number_of(len(lines), 'message')} for {number_of(turns, 'turn')}; "
            f"use --turns {len(lines)} or add lines"
        )
    return lines[:turns]


def converse(
    roles: Sequence[Any], llm: LLM, folder: str | Path, settings: ConverseSettings, *, talker: LLM | None = None
) -> dict[str, Any]:
    """Have a simulated user talk with each role.

    Args:
        roles: As `rolellm.RolePlayer` takes them; a role given twice has two sessions.
        llm: Who plays the roles.
        folder: The run's: ``sessions.jsonl``, ``manifest.json`` and the journals.
        settings: How; without a script, a model is the user.
        talker: The model that is the user; by default the one that plays the roles.

    Returns:
        What was done, as one JSON object.

    Raises:
        SettingsError: For no role, an unknown one, or a script that is too short.
        StoppedShortError: As `rolellm.llm.client.Client.ask`.
        EndpointError: As `rolellm.llm.client.Client.ask`.
    """
    said = None if settings.script is None else read_script(settings.script, settings.turns)
    sessions, target = _sessions(roles, llm, settings), Path(folder)
    played, spoken = llm, talker or llm
    with ExitStack() as stack:
        client = stack.enter_context(Client(target, played.models, replace(played.options, show_progress=False)))
        asker = client
        if talker is not None and said is None:
            options = replace(talker.options, show_progress=False)
            asker = stack.enter_context(Client(target / "user", talker.models, options))
        shown = stack.enter_context(Progress("talking", len(sessions) * settings.turns, unit="turns"))
        for turn in range(settings.turns):
            if said is None:
                _speak(asker, _open(sessions), settings.persona)
            else:
                for session in _open(sessions):
                    session.messages.append(user(said[turn]))
            _reply(client, _open(sessions))
            shown.update(done=sum(len(session.finishes) for session in sessions))
        spent = {"roles": client.spent.to_dict()} | ({} if asker is client else {"user": asker.spent.to_dict()})
    meta = {
        "model": ", ".join(model.name for model in played.models),
        "user": "script" if said is not None else ", ".join(model.name for model in spoken.models),
        "turns": settings.turns,
        "sampling": dump(settings.sampling),
    }
    write_jsonl(target / SESSIONS, (session.to_dict(**meta) for session in sessions))
    summary = {
        "out": str(target / SESSIONS),
        "sessions": len(sessions),
        "replies": sum(len(session.finishes) for session in sessions),
        "ended_early": {session.to_dict()["id"]: session.ended for session in sessions if session.ended},
        "spent": spent,
    }
    how = {"settings": dump(settings), "models": llm.describe(), "user": talker and talker.describe()}
    write_json(target / "manifest.json", {"stage": "converse", "rolellm": __version__, **how, "summary": summary})
    return summary


def _sessions(roles: Sequence[Any], llm: LLM, settings: ConverseSettings) -> list[Session]:
    if not roles:
        raise SettingsError("no role to talk to; name at least one")
    how = {name: value for name, value in dump(settings).items() if name in PlaySettings.__dataclass_fields__}
    first = RolePlayer(llm, roles[0], **how)
    # Asked of the server once, for all roles.
    _ = first.context
    found: list[Session] = []
    for role in roles:
        player = first.as_role(role)
        number = sum(session.player.role == player.role for session in found)
        greeting = [assistant(player.part.greeting)] if player.part.greeting else []
        found.append(Session(player, number, greeting))
    return found


def _open(sessions: Sequence[Session]) -> list[Session]:
    return [session for session in sessions if not session.ended]


def _speak(client: Client, sessions: Sequence[Session], persona: str | None) -> None:
    """One message of each user."""
    requests = [session.user_request(persona) for session in sessions]
    takes = {f"user/{session.player.role}": user_words(session.player.part.sheet) for session in sessions}
    outcomes = client.ask(requests, lambda request, reply: takes[request.tag](request, reply), also=_ALSO)
    for session, outcome in zip(sessions, outcomes, strict=True):
        if isinstance(outcome, Failure):
            session.ended = f"the user: {outcome.reason}"
        else:
            session.messages.append(user(outcome.value))
            session.defects += [f"{len(session.finishes) + 1}: {problem}" for problem in outcome.defects]


def _reply(client: Client, sessions: Sequence[Session]) -> None:
    """One reply of each role."""
    prompts: list[tuple[Session, Prompt]] = []
    for session in sessions:
        try:
            prompts.append((session, session.player.prompt(session.messages)))
        except ModelError as error:
            session.ended = str(error)
            session.messages.pop()
    requests = [replace(one.player.request(prompt, repeat=one.number), tag=one.player.role) for one, prompt in prompts]
    for (session, prompt), outcome in zip(prompts, client.ask(requests, speech_of, also=_ALSO), strict=True):
        if isinstance(outcome, Failure):
            session.ended = f"the role: {outcome.reason}"
            session.messages.pop()
        else:
            session.messages.append(assistant(outcome.value))
            session.finishes.append(outcome.reply.finish)
            session.dropped.append(prompt.dropped)
