"""The page of ``rolellm chat --web``: a role, or two side by side on the same messages, and a blind vote on replies.

Votes are kept as a judging run without judges (`rolellm.judging.folder`), so that ``rolellm agreement`` reads them: a
row for each vote, both replies to its message, and who was preferred.
"""

from __future__ import annotations

import copy
import json
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, Literal

from rolellm.core.errors import RoleLLMError, SettingsError
from rolellm.core.files import write_json
from rolellm.core.records import Row
from rolellm.core.sanitize import visible
from rolellm.core.text import find_name
from rolellm.core.typed_json import read_as
from rolellm.judging.folder import RESULT, read_run, write_comparison, write_judgements, write_manifest
from rolellm.judging.people.labels import RankingLabel, append_label, check_annotator, content_hash, label_path
from rolellm.judging.types import Comparison, System
from rolellm.labelling.server import PageHandler, PageServer, Reply, encoded
from rolellm.models.local_model import LocalModel
from rolellm.playing.player import Chat, RolePlayer
from rolellm.playing.roles import Part, rolebench_roles

_ASSETS: Final = {"talk.html": "html", "page.css": "css", "talk.css": "css", "talk.js": "javascript"}
#: Bytes of a message that are read, and talks that are kept; an older one is forgotten (our choices).
_MOST_BODY: Final = 8 << 20
_MOST_TALKS: Final = 100
#: Places for the votes: the first side is preferred, neither, or the second.
_RANKS: Final = {"first": (1.0, 2.0), "tie": (1.5, 1.5), "second": (2.0, 1.0)}


@dataclass(frozen=True, slots=True)
class _Side:
    """Who is to play what."""

    role: str
    model: str


@dataclass(frozen=True, slots=True)
class _Begin:
    """A new talk."""

    sides: tuple[_Side, ...]
    blind: bool = False


@dataclass(frozen=True, slots=True)
class _Say:
    """A message to all sides of a talk."""

    talk: int
    text: str


@dataclass(frozen=True, slots=True)
class _Vote:
    """Which side of a blind talk replied better to the last message."""

    talk: int
    choice: Literal["first", "tie", "second"]


@dataclass
class _Talk:
    """A talk of the page.

    Attributes:
        names: Who is on each side, as votes name them.
        chats: What each side saw; in a blind talk the sides are in random order.
        hidden: Whether the page does not know the names.
        ready: Whether all sides have replied to the last message, and when they had.
        held: By who answers.
    """

    names: tuple[str, ...]
    chats: tuple[Chat, ...]
    hidden: bool
    ready: float | None = None
    held: Any = field(default_factory=threading.Lock)


class TalkServer(PageServer):
    """Serves the page.

    Args:
        models: By name, who plays; each plays the first role at the start.
        votes: The folder of the votes.
        annotator: Who votes.
        port: 0 for any that is free.

    Raises:
        SettingsError: When the port cannot be had, or the folder is not one of votes.
        DataError: For damaged votes.
    """

    def __init__(self, models: Mapping[str, RolePlayer], votes: Path, annotator: str, *, port: int = 0) -> None:
        self.models, self.votes, self.annotator = models, votes, check_annotator(annotator)
        first = next(iter(models.values()))
        self.roles = {first.role: first.part}
        for name, sheet in rolebench_roles().items():
            self.roles.setdefault(find_name(name, self.roles) or name, Part(sheet))
        # Asked of the server once, for all talks.
        contexts = [player.context for player in models.values()]
        assert contexts
        _kept(votes)
        self._talks: OrderedDict[int, _Talk] = OrderedDict()
        self._numbers = count()
        # One model of this machine answers once at a time.
        self._turns = {id(one.model): threading.Lock() for one in models.values() if isinstance(one.model, LocalModel)}
        super().__init__(_ASSETS, _TalkHandler, port=port)

    def state(self) -> dict[str, Any]:
        """What can be chosen."""
        roles = [{"name": name, "about": visible(part.sheet.described() or "")} for name, part in self.roles.items()]
        return {"roles": roles, "models": list(self.models)}

    def begin(self, asked: _Begin) -> dict[str, Any]:
        """A new talk.

        Raises:
            SettingsError: For an unknown role or model, or two sides that are the same.
        """
        sides = list(asked.sides)
        if len(sides) not in (1, 2) or len(set(sides)) < len(sides):
            raise SettingsError("the two sides are the same; choose another role or another model for one of them")
        if asked.blind:
            random.shuffle(sides)
        chats = [Chat(self._player(side)) for side in sides]
        same = len({side.role for side in sides}) == 1
        names = tuple(side.model if same and len(sides) == 2 else f"{side.role} by {side.model}" for side in sides)
        talk = _Talk(names, tuple(chats), asked.blind and len(sides) == 2)
        number = next(self._numbers)
        self._talks[number] = talk
        while len(self._talks) > _MOST_TALKS:
            self._talks.popitem(last=False)
        greetings = [visible(chat.turns[0].content) if chat.turns else "" for chat in chats]
        return {"talk": number, "names": None if talk.hidden else names, "greetings": greetings}

    def _player(self, side: _Side) -> RolePlayer:
        if side.role not in self.roles or side.model not in self.models:
            raise SettingsError("no such role or model; reload the page")
        player = self.models[side.model].as_role(self.roles[side.role])
        if not isinstance(player.model, LocalModel):
            # A model behind an API has its connections to itself: sides are answered at the same time.
            player.model = copy.copy(player.model)
        return player

    def talk(self, number: int) -> _Talk:
        """A talk by its number.

        Raises:
            SettingsError: For one that is not kept, or is being answered.
        """
        found = self._talks.get(number)
        if found is None:
            raise SettingsError("this talk is no longer kept; start a new one")
        if found.held.locked():
            raise SettingsError("the last message is still being answered; wait for it")
        return found

    def say(self, asked: _Say) -> Generator[bytes]:
        """The replies of all sides to a message, as they arrive: one JSON object a line, ``side`` and its ``text``.

        A side that cannot reply has a ``problem`` in place of it. Empty lines find out whether somebody still listens.
        """
        talk = self.talk(asked.talk)
        arrived: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        left = threading.Event()

        def answer(side: int, chat: Chat) -> None:
            try:
                with self._turns.get(id(chat.player.model), nullcontext()):
                    pieces: Any = () if left.is_set() else chat.say(asked.text, stream=True)
                    if chat.prompt is not None and (chat.prompt.dropped or chat.prompt.dropped_lore):
                        arrived.put({"side": side, "note": "The context is full: earlier turns or lore are left out."})
                    said = False
                    for piece in pieces:
                        said |= bool(piece)
                        arrived.put({"side": side, "text": visible(piece)})
                        if left.is_set():
                            pieces.close()
                    if not said:
                        arrived.put({"side": side, "problem": "the reply is empty; say it again or something else"})
            except RoleLLMError as error:
                arrived.put({"side": side, "problem": visible(str(error))})
            except Exception as error:
                arrived.put({"side": side, "problem": f"the model failed: {type(error).__name__}; see the terminal"})
                raise
            finally:
                arrived.put(None)

        def lines() -> Generator[bytes]:
            with talk.held:
                talk.ready, failed = None, False
                started = [threading.Thread(target=answer, args=one, daemon=True) for one in enumerate(talk.chats)]
                for one in started:
                    one.start()
                open_sides = len(started)
                try:
                    while open_sides:
                        try:
                            found = arrived.get(timeout=1)
                        except Empty:
                            yield b"\n"
                            continue
                        open_sides -= found is None
                        failed |= found is not None and "problem" in found
                        if found is not None:
                            yield json.dumps(found).encode() + b"\n"
                    talk.ready = None if failed else time.monotonic()
                finally:
                    left.set()

        return lines()

    def vote(self, asked: _Vote) -> dict[str, Any]:
        """Keep a vote, and say who was on which side.

        Raises:
            SettingsError: When there is nothing to vote on, or it was voted on before.
            RunInUseError: While another page keeps one.
        """
        talk = self.talk(asked.talk)
        if not talk.hidden or talk.ready is None:
            raise SettingsError("there is nothing to vote on; start a blind talk and wait for both replies")
        question, first, second = talk.chats[0].turns[-2].content, *(chat.turns[-1].content for chat in talk.chats)
        parts = [chat.player.part.sheet for chat in talk.chats]
        answers = dict(zip(talk.names, (first, second), strict=True))
        roles = sorted({part.role for part in parts})
        about = parts[0].described() if len(roles) == 1 else None
        row = Row("", " / ".join(roles), parts[0].language, "general", question, (), role_description=about)
        seconds = round(time.monotonic() - talk.ready, 1)
        ranks = _RANKS[asked.choice]
        _keep(self.votes, row, answers, RankingLabel("", self.annotator, talk.names, ranks, seconds, ""))
        talk.hidden = False
        return {"names": talk.names, "kept": str(self.votes)}


def _kept(folder: Path) -> Comparison:
    """The votes in a folder so far."""
    if not (folder / RESULT).is_file():
        if folder.exists() and any(one.name != ".lock" for one in folder.iterdir()):
            raise SettingsError(f"{folder} holds other files; name another folder with --votes")
        return Comparison([], [], {})
    run = read_run(folder)
    if not run.manifest.get("votes"):
        raise SettingsError(f"{folder} is a run with judges, not a folder of votes; name another one with --votes")
    return run.comparison


def _keep(folder: Path, row: Row, answers: Mapping[str, str], label: RankingLabel) -> None:
    from rolellm.runtime.locks import locked

    with locked(folder):
        before = _kept(folder)
        row = replace(row, id=f"vote-{len(before.rows) + 1:05}")
        label = replace(label, row=row.id, answers=content_hash(row, answers))
        names = list(dict.fromkeys([*(one.name for one in before.systems), *answers]))
        given = {name: dict(before.answers.get(name, {})) for name in names}
        for name, text in answers.items():
            given[name][row.id] = text
        comparison = Comparison([*before.rows, row], [System(name) for name in names], given)
        write_manifest(folder, {"votes": True, "systems": [asdict(one) for one in comparison.systems]})
        write_comparison(folder, comparison)
        write_judgements(folder, ())
        append_label(label_path(folder, label.annotator, RankingLabel), label)
        write_json(folder / RESULT, {})


class _TalkHandler(PageHandler):
    server: TalkServer
    sent, most = "message", _MOST_BODY

    def get(self, name: str) -> Reply:
        return encoded(self.server.state()) if name == "state" else super().get(name)

    def post(self, name: str, read: Callable[[], dict[str, Any]]) -> Reply:
        server = self.server
        ways: dict[str, tuple[Any, Callable[[Any], Any]]] = {
            "begin": (_Begin, server.begin),
            "say": (_Say, server.say),
            "vote": (_Vote, server.vote),
        }
        if name not in ways:
            return super().post(name, read)
        kind, work = ways[name]
        found = work(read_as(kind, read(), "the message"))
        return encoded(found) if isinstance(found, dict) else (found, "application/x-ndjson")
