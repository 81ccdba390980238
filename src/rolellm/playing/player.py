"""`rolellm.RolePlayer`: a role and the model that plays it; and a chat with it.

::

    player = rolellm.RolePlayer("runs/hamlet", "hamlet")
    player.reply("Who are you?")
    chat = player.chat("talk.jsonl")
    for piece in chat.say("What do you read?", stream=True): ...

A prompt has the system turn that training used, a card's circumstances and example talk, the lore that the last turns
call up, and the talk. When it does not fit into the context, the oldest turns go first, then lore; nothing is cut.
"""

from __future__ import annotations

import copy
import warnings
from bisect import bisect_left
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, overload

from rolellm.characters.lore import find_keys
from rolellm.characters.role_prompts import LoreNote, RolePrompts
from rolellm.characters.roles import Part, find_part
from rolellm.characters.settings import PromptSettings
from rolellm.core.errors import EndpointError, ModelError, RoleLLMWarning, SettingsError
from rolellm.core.sanitize import label
from rolellm.core.settings import read, suggest_keywords
from rolellm.core.text import format_count, replace_surrogates
from rolellm.llm.llm import LLM
from rolellm.llm.local import LocalChat
from rolellm.llm.model import (
    CallError,
    Finish,
    Message,
    Model,
    Request,
    UnacceptableError,
    assistant,
    strip_thoughts,
    system,
    user,
)
from rolellm.llm.tokens import count_fewest_tokens
from rolellm.models.prompts.encode import limit_prompt
from rolellm.models.prompts.render import OPENING, load_system_template, load_template
from rolellm.playing.settings import PlaySettings, TalkSettings
from rolellm.playing.talks import Talk

#: Columns of a name or a message where a player or a talk shows itself.
_WIDTH = 80
#: The share of the context that lore may fill: SillyTavern's default.
_SHARE = 4
#: Maximum characters of a talk's end that are searched for lore's keys: more than most contexts hold.
_SCANNED = 40_000
#: What is said of replies that are not whole.
NOTES: dict[Finish, str] = {
    "length": "cut off at the limit of tokens; --set max_tokens=… allows more",
    "filtered": "cut off by the server's content filter",
    "refused": "the server refused to answer",
}


@dataclass(frozen=True, slots=True)
class TalkPrompt:
    """The prompt for a reply.

    Attributes:
        messages: The system turn, then the talk.
        lore: What the last turns called up.
        dropped: Earlier turns that were left out.
        dropped_lore: Lore that was called up and left out.
        tokens: Of the prompt; for a model behind an API an estimate, unless it has a tokenizer.
    """

    messages: tuple[Message, ...]
    lore: tuple[LoreNote, ...]
    dropped: int
    dropped_lore: int
    tokens: int

    @property
    def warning(self) -> str:
        """Names what was left out, in a sentence; empty where nothing was."""
        left_out = []
        if self.dropped:
            left_out.append(format_count(self.dropped, "earlier turn"))
        if self.dropped_lore:
            left_out.append(f"{format_count(self.dropped_lore, 'piece')} of lore")
        return f"the context is full: the role does not see {' and '.join(left_out)}" if left_out else ""


class RolePlayer:
    """A role, and the model that plays it.

    Args:
        model: A folder with a model, an adapter or a training run; a Hub id; or a model behind an API: `rolellm.LLM`, a
            dict, or a settings file.
        character: A character's folder, a card, the name of a role of RoleBench, or a `rolellm.Character`.
        adapter: A PEFT adapter to put on a full model.
        options: Fields of `rolellm.playing.settings.PlaySettings`, such as ``temperature`` or ``max_tokens``.

    Attributes:
        part: The role.
        model: The model.
        settings: How it is played.

    Raises:
        SettingsError: For an unknown role (with the nearest names), or a setting that cannot be used.
        DataError: For a folder or a card that cannot be read.
        ModelError: For a model that cannot be loaded.
        MissingExtraError: Without the packages that the model needs.
    """

    @suggest_keywords(PlaySettings)
    def __init__(self, model: Any, character: Any, *, adapter: str | None = None, **options: Any) -> None:
        self.settings = read(PlaySettings, options)
        self._play(find_part(character))
        llm = LLM.resolve(getattr(model, "model_dir", model), adapter, engine="builtin")
        self.model = llm.models[0]
        self._counter = llm.counter

    def _play(self, part: Part) -> None:
        self.part = part
        template = self.settings.system_template
        self._prompts = RolePrompts(part.sheet, PromptSettings(max_prompt_tokens=None, system_template=template))
        self._template = load_system_template(part.sheet.language, template)

    def __repr__(self) -> str:
        ways = "reply(…) answers one question, chat() begins a talk"
        return f"<RolePlayer {label(self.role, _WIDTH)}: {label(self.model.name, _WIDTH)}; {ways}>"

    def with_role(self, character: Any) -> RolePlayer:
        """The same model with another role.

        Raises:
            SettingsError: For an unknown role.
            DataError: For a folder or a card that cannot be read.
        """
        player = copy.copy(self)
        player._play(find_part(character))
        return player

    @property
    def role(self) -> str:
        """The role's name."""
        return self.part.sheet.role

    @overload
    def reply(self, question: str, *, stream: Literal[False] = False) -> str: ...
    @overload
    def reply(self, question: str, *, stream: Literal[True]) -> Iterator[str]: ...
    def reply(self, question: str, *, stream: bool = False) -> str | Iterator[str]:
        """Answer one question, without a talk around it.

        Args:
            question: What is asked.
            stream: Give the text as it arrives.

        Raises:
            ModelError: When the question leaves no room for a reply in the model's context.
            EndpointError: When the server gave no reply.
        """
        pieces = self.answer(self.prompt([user(question)]))
        return pieces if stream else strip_thoughts("".join(pieces))

    def load(self) -> None:
        """Load a local model's weights now, not with the first reply.

        Raises:
            ModelError: When they cannot be loaded.
        """
        if isinstance(self.model, LocalChat):
            self.model.model.load()

    @property
    def opening(self) -> list[Message]:
        """A talk's beginning: the card's greeting, where there is one."""
        return [assistant(text) for text in self.part.greetings[:1]]

    @suggest_keywords(TalkSettings)
    def chat(self, path: str | Path | None = None, **options: Any) -> Chat:
        """A talk, which begins with the card's greeting where there is one.

        Args:
            path: A file in which it is kept, whole after each reply; a talk that is there is gone on with.
            options: Fields of `rolellm.playing.settings.TalkSettings`, such as ``me`` or ``greeting``.

        Raises:
            SettingsError: For a greeting that does not exist, or a talk with another role.
            DataError: For a file that is not a talk.
        """
        return Chat(self, path, read(TalkSettings, options))

    @cached_property
    def context(self) -> int | None:
        """The most tokens of prompt and reply together; ``None`` where nobody says."""
        lengths = (self.settings.context, _ask_context(self.model))
        return min(filter(None, lengths), default=None)

    def prompt(
        self,
        turns: Sequence[Message],
        *,
        more: str = "",
        after: str = "",
        reply_tokens: int | None = None,
        tool_tokens: int = 0,
    ) -> TalkPrompt:
        """Build the prompt for a reply.

        Args:
            turns: The talk. The last message is usually the user's; an assistant's is to be continued.
            more: Goes into the system turn, after all that is said of the role.
            after: Goes after the last message of the user.
            reply_tokens: Maximum tokens of this reply; by default as in the settings.
            tool_tokens: Tokens of the context that the request's tools take.

        Raises:
            ModelError: When the last message alone leaves no room for a reply in the model's context.
            SettingsError: Without any turn.
        """
        if not turns:
            raise SettingsError("there are no turns; give at least one message")
        notes, called_count = self._find_lore(turns)
        context = self.context
        if context is None:
            messages = self._build_messages(turns, notes, more, after)
            return TalkPrompt(messages, tuple(notes), 0, called_count - len(notes), 0)
        reply_tokens = self.settings.max_tokens if reply_tokens is None else reply_tokens
        limit = limit_prompt(context, reply_tokens) - tool_tokens
        if limit < 1:
            raise ModelError(
                f"the tools in the request take about {tool_tokens:,} tokens, too many for a context of {context:,}; "
                "send fewer tools, or use a longer context"
            )
        starts = [index for index, turn in enumerate(turns) if turn.role == "user" or index == 0]
        starts = _drop_overlong(turns, starts, limit, context)
        # What may be left out, the least first: earlier turns, then lore.
        ways = [(start, len(notes)) for start in starts]
        ways += [(starts[-1], count) for count in reversed(range(len(notes)))]

        @cache
        def build_prompt(way: int) -> tuple[tuple[Message, ...], int]:
            start, count = ways[way]
            messages = self._build_messages(turns[start:], notes[:count], more, after)
            return messages, self.count(messages)

        def is_short_enough(way: int) -> bool:
            return build_prompt(way)[1] <= limit

        # Most talks fit whole.
        way = 0 if is_short_enough(0) else bisect_left(range(len(ways)), True, key=is_short_enough)
        if way == len(ways):
            tokens = build_prompt(way - 1)[1] + tool_tokens
            raise ModelError(f"the prompt has {tokens:,} tokens without any earlier turn, too many for {_fit(context)}")
        start, count = ways[way]
        messages, tokens = build_prompt(way)
        return TalkPrompt(messages, tuple(notes[:count]), start, called_count - count, tokens)

    def _find_lore(self, turns: Sequence[Message]) -> tuple[list[LoreNote], int]:
        """Find the lore that the last turns call up, as much as its share of the context takes, and count all of it."""
        scanned = [turn.content[-_SCANNED:] for turn in turns[-self.part.scanned :]]
        newest = scanned[-1]
        lore = self.part.sheet.lore
        notes = []
        for note in self._prompts.notes("\n".join(scanned)[-_SCANNED:], len(lore)):
            # Words alone call up nothing that has keys: its author said when it is wanted.
            if note.by != "words" or not lore[note.place].keys:
                notes.append(note)

        def rank(note: LoreNote) -> int:
            entry = lore[note.place]
            if note.by == "key" and find_keys(replace(entry, secondary_keys=()), newest):
                return 0
            return 1 if entry.constant else 2

        notes.sort(key=rank)
        if self.context is None:
            return notes, len(notes)
        return self._fit_lore(notes, self.context // _SHARE), len(notes)

    def _fit_lore(self, lore: list[LoreNote], room: int) -> list[LoreNote]:
        fitting = []
        for note in lore:
            # Counting what cannot fit would take long.
            if count_fewest_tokens(note.text) > room:
                continue
            tokens = self.count([user(note.text)])
            if tokens <= room:
                fitting.append(note)
                room -= tokens
        return fitting

    def _build_messages(
        self, turns: Sequence[Message], lore: list[LoreNote], more: str, after: str
    ) -> tuple[Message, ...]:
        part = self.part
        trained = self._prompts.messages(turns[-1].content, (), lore)[0].content
        talk = list(turns)
        # Many chat templates want the user to begin, and take no system turn at the end.
        if talk[0].role != "user":
            talk.insert(0, user(OPENING[part.sheet.language]))
        own = [index for index, turn in enumerate(talk) if turn.role == "user"]
        last = own[-1]
        if part.depth_prompt:
            before = [index for index in own if index < len(talk) - part.depth] or own[:1]
            talk[before[-1]] = user(f"{talk[before[-1]].content}\n\n{part.depth_prompt}")
        texts = filter(None, (talk[last].content, part.after, after))
        talk[last] = user("\n\n".join(texts))
        return (system(part.system_turn(self._template, trained, more)), *talk)

    def count(self, messages: Sequence[Message]) -> int:
        """The tokens of a prompt; see `TalkPrompt`."""
        if isinstance(self.model, LocalChat):
            return len(self.model.encode(messages))
        return self._counter.prompt(messages)

    def show(self, prompt: TalkPrompt) -> str:
        """A prompt as the model gets it: the very text for a local model, the messages for one behind an API."""
        if isinstance(self.model, LocalChat):
            ids = self.model.encode(prompt.messages)
            return str(self.model.model.tokenizer.decode(ids, clean_up_tokenization_spaces=False))
        return "\n\n".join(f"[{message.role}]\n{message.content}" for message in prompt.messages)

    def answer(
        self, prompt: TalkPrompt, *, repeat: int = 0, ended: Callable[[Finish], object] | None = None
    ) -> Iterator[str]:
        """The reply to a prompt, as it arrives, without thoughts; leaving the loop early ends the work.

        Args:
            prompt: What to send.
            repeat: Which of several replies to it this is, from 0.
            ended: Called with how the reply ended.

        Raises:
            EndpointError: When the server gave no reply.
        """
        from anyio import CancelScope
        from anyio.from_thread import start_blocking_portal

        model = self.model
        request = self.request(prompt, repeat=repeat)
        stream: Callable[..., AsyncGenerator[str]] = getattr(model, "stream", partial(_call_whole, model))
        arrived: SimpleQueue[str | Exception | None] = SimpleQueue()

        async def work() -> None:
            try:
                async with aclosing(stream(request, ended)) as pieces:
                    async for piece in _skip_thoughts(pieces):
                        arrived.put(piece)
            except (CallError, UnacceptableError) as error:
                is_too_long = getattr(error, "too_long", False)
                more = "; give the length of its context: --set context=N" if is_too_long else ""
                arrived.put(EndpointError(f"{model.name}: {error.reason}{more}"))
            except Exception as error:
                arrived.put(error)
            finally:
                arrived.put(None)
                with CancelScope(shield=True):
                    await model.close()

        # A thread of its own has the event loop: a notebook runs one already.
        with start_blocking_portal() as portal:
            working = portal.start_task_soon(work)
            try:
                while True:
                    piece = arrived.get()
                    if piece is None:
                        break
                    if isinstance(piece, Exception):
                        raise piece
                    yield piece
            finally:
                working.cancel()

    def request(self, prompt: TalkPrompt, *, repeat: int = 0) -> Request:
        """Build the request for a reply: the prompt, and no more tokens than there is room for.

        Args:
            prompt: What to send.
            repeat: Which of several replies to it this is, from 0.
        """
        sampling = self.settings.sampling
        if self.context is not None:
            room = max(1, self.context - prompt.tokens)
            sampling = replace(sampling, max_tokens=min(sampling.max_tokens, room))
        return Request(prompt.messages, sampling, repeat=repeat, tag=self.role)


def play_roles(model: Any, roles: Sequence[Any], **options: Any) -> list[RolePlayer]:
    """Players of several roles by one model; its server is asked for the length of its context once.

    Raises:
        SettingsError: For an unknown role.
    """
    players: list[RolePlayer] = []
    for role in roles:
        player = players[0].with_role(role) if players else RolePlayer(model, role, **options)
        _ = player.context
        players.append(player)
    return players


def _drop_overlong(turns: Sequence[Message], starts: list[int], limit: int, context: int | None) -> list[int]:
    """The starts from which the talk may fit, without counting the tokens of what cannot.

    Raises:
        ModelError: When there are none.
    """
    fewest = 0
    first = len(turns)
    while first > 0:
        fewest += count_fewest_tokens(turns[first - 1].content)
        if fewest > limit:
            break
        first -= 1
    if first > starts[-1]:
        characters = sum(len(turn.content) for turn in turns[starts[-1] :])
        raise ModelError(f"the message has {characters:,} characters, too many for {_fit(context)}")
    return [start for start in starts if start >= first]


def _fit(context: int | None) -> str:
    return f"a context of {context:,}; shorten the message or the role's description, or use a longer context"


def _ask_context(model: Model) -> int | None:
    """Ask a model's server for the length of its context."""
    from anyio.from_thread import start_blocking_portal

    ask: Callable[[], Any] | None = getattr(model, "context", None)
    if ask is None:
        return None
    with start_blocking_portal() as portal:
        length: int | None = portal.call(ask)
        portal.call(model.close)
        return length


async def _skip_thoughts(pieces: AsyncIterator[str]) -> AsyncIterator[str]:
    """Pieces of a reply without the thoughts that it begins with."""
    text, speaks = "", False
    async for piece in pieces:
        text = piece if speaks else (text + piece).lstrip()
        while not speaks and text.startswith("<think>") and "</think>" in text:
            text = text.partition("</think>")[2].lstrip()
        speaks = speaks or not "<think>".startswith(text[:7])
        if speaks:
            yield text
    if not speaks and text and not text.startswith("<think>"):
        yield text


async def _call_whole(model: Model, request: Request, ended: Callable[[Finish], object] | None) -> AsyncGenerator[str]:
    reply = model.read(await model.call(request))
    if ended is not None:
        ended(reply.finish)
    yield reply.text


class Chat:
    """A talk with a role.

    Args:
        player: Who plays it.
        path: A file in which the talk is kept, whole after each reply. A talk that is there is gone on with.
        settings: Who the user is, and how the talk begins and goes on.

    Attributes:
        player: Who plays it.
        talk: The turns, their swipes, and the file.
        prompt: What was sent for the last reply.
        note: What is wrong with the last reply or with the talk's file; empty for nothing.

    Raises:
        SettingsError: For a greeting that does not exist, or a talk with another role.
        DataError: For a file that is not a talk.
    """

    def __init__(self, player: RolePlayer, path: str | Path | None, settings: TalkSettings) -> None:
        part = player.part
        if settings.me or settings.persona:
            part = part.with_user(settings.me or part.user_name, settings.persona)
        file = None if path is None else Path(path)
        self.note = ""
        if file is not None and file.exists():
            self.talk, self.note = Talk.read(file, part)
        else:
            self.talk = Talk.begin(part, file, settings.greeting)
        talk = self.talk
        if part.user:
            talk.set_user(part)
        elif talk.user != (part.user_name, ""):
            part = part.with_user(*talk.user)
        self.player = player.with_role(part)
        self.prompt: TalkPrompt | None = None
        self._memory = settings.memory
        self._unanswered = ""
        self._start = self._repeat = 0

    def __repr__(self) -> str:
        lines = [f"<Chat with {label(self.player.role, _WIDTH)}: {format_count(len(self.turns), 'turn')}>"]
        for turn in self.turns[-2:]:
            speaker = "You" if turn.role == "user" else self.player.role
            lines.append(f"{label(speaker, _WIDTH)}: {label(turn.content, _WIDTH)}")
        return "\n".join(lines)

    @property
    def turns(self) -> list[Message]:
        """What was said: messages of the ``user`` and, for the role, the ``assistant``."""
        return self.talk.messages

    @property
    def message(self) -> str:
        """The user's last message; empty before the first."""
        messages = [turn.content for turn in self.turns if turn.role == "user"]
        return self._unanswered or "".join(messages[-1:])

    @overload
    def say(self, text: str, *, stream: Literal[False] = False) -> str: ...
    @overload
    def say(self, text: str, *, stream: Literal[True]) -> Iterator[str]: ...
    def say(self, text: str, *, stream: bool = False) -> str | Iterator[str]:
        """Say something, and get the reply.

        What arrived of a reply that breaks off is kept as the role's turn; a message with an empty reply is not kept.

        Args:
            text: What to say.
            stream: Give the reply as it arrives.

        Raises:
            SettingsError: When there is nothing in the text.
            ModelError: When it leaves no room for a reply in the model's context.
            EndpointError: When the server gave no reply.

        Warns:
            RoleLLMWarning: When earlier turns or lore no longer fit.
        """
        return self._say(text, len(self.turns), 0, stream)

    def retry(self, text: str | None = None, *, stream: bool = False) -> str | Iterator[str]:
        """Get another reply to the last message, which becomes a swipe, or say something else instead.

        Args:
            text: What to say instead.
            stream: Give the reply as it arrives.

        Raises:
            SettingsError: When nothing was said yet; otherwise as `say`.
        """
        if not self.message:
            raise SettingsError("there is no message yet; say something first")
        start = self._start
        if not self._unanswered:
            start = max(index for index, turn in enumerate(self.turns) if turn.role == "user")
        return self._say(self.message if text is None else text, start, self._repeat + 1, stream)

    def save(self, path: str | Path) -> Path:
        """Write the talk to a new file, in which it is kept from then on; the one before stays as it is.

        Raises:
            SettingsError: When the file is there, or cannot be written.
        """
        target = Path(path)
        if target.exists():
            raise SettingsError(f"{target} exists already; choose another name")
        talk = self.talk.branch(len(self.turns), target)
        fault = talk.write()
        if fault:
            raise SettingsError(fault)
        self.talk = talk
        return target

    def explain(self) -> str:
        """Show what was sent for the last reply, and what was left out of it.

        Raises:
            SettingsError: When nothing was said yet.
        """
        if self.prompt is None:
            raise SettingsError("no message was sent yet; say something first")
        notes = []
        for note in self.prompt.lore:
            notes.append(f"{note.by}: {note.name or note.text[:40]}")
        turns = format_count(self.prompt.dropped, "earlier turn")
        pieces = format_count(self.prompt.dropped_lore, "piece")
        lore = f"lore called up: {'; '.join(notes) or 'none'}"
        return f"{self.player.show(self.prompt)}\n\n{lore}\nleft out: {turns}, {pieces} of lore"

    def _say(self, text: str, start: int, repeat: int, stream: bool) -> str | Iterator[str]:
        if not text.strip():
            raise SettingsError("the message is empty; say something")
        text = replace_surrogates(text)
        turns = [*self.turns[:start], user(text)]
        prompt = self._remember(turns)
        last_warning = "" if self.prompt is None else self.prompt.warning
        if prompt.warning not in ("", last_warning):
            warnings.warn(prompt.warning, RoleLLMWarning, stacklevel=3)
        self.prompt = prompt
        self._unanswered = text
        self._start = start
        self._repeat = repeat
        pieces = self._stream_turn(prompt, text, repeat)
        return pieces if stream else strip_thoughts("".join(pieces))

    def _stream_turn(self, prompt: TalkPrompt, text: str, repeat: int) -> Iterator[str]:
        reply = ""
        self.note = ""
        ends = list[Finish]()
        try:
            for piece in self.player.answer(prompt, repeat=repeat, ended=ends.append):
                reply += piece
                yield piece
        finally:
            reply = strip_thoughts(reply)
            fault = self._keep(text, reply) if reply.strip() else "the reply is empty; ask again"
            end = NOTES.get(ends[0], "") if ends else ""
            self.note = "; ".join(filter(None, (end, fault)))

    def _keep(self, text: str, reply: str) -> str:
        """Keep a turn and its reply; say what is wrong with that, empty for nothing."""
        start = self._start
        talk = self.talk
        if [turn.content for turn in self.turns[start:-1]] == [text]:
            talk.change(start + 1, reply)
        else:
            talk.cut(start)
            talk.add(user(text), assistant(reply))
        self._unanswered = ""
        return talk.write()

    def _remember(self, turns: Sequence[Message]) -> TalkPrompt:
        """Build a prompt; what it has no room for is summarized where that is wanted."""
        start = 0
        summary = ""
        talk = self.talk.turns
        for index, turn in enumerate(talk[: len(turns) - 1], start=1):
            if self._memory == "summary" and "memory" in turn:
                start, summary = index, str(turn["memory"])
        template = load_template(self.player.part.sheet.language, "play_memory")
        while True:
            more = template.fill(summary=summary) if summary else ""
            prompt = self.player.prompt(turns[start:], more=more)
            if self._memory == "none" or not prompt.dropped:
                return prompt
            # Half of what is left goes, too, so that a summary serves for some time.
            end = (start + prompt.dropped + len(turns)) // 2
            while turns[end].role != "user":
                end += 1
            count, summary = self._summarize(turns[start:end], summary)
            if not summary:
                return prompt
            start += count
            talk[start - 1]["memory"] = summary

    def _summarize(self, turns: Sequence[Message], summary: str) -> tuple[int, str]:
        """Have the model summarize as many turns as there is room for, after the summary so far; give their number."""
        player = self.player
        part = player.part
        names = {"user": part.user_name, "role": part.sheet.role}
        template = load_template(part.sheet.language, "play_summary")
        lines = [f"{names.get(turn.role, part.sheet.role)}: {turn.content}" for turn in turns]
        for count in range(len(lines), 0, -1):
            talk = "\n".join([summary, *lines[:count]])
            messages = (user(template.fill(talk=talk, **names)),)
            tokens = player.count(messages)
            if tokens <= limit_prompt(player.context or 0, player.settings.max_tokens):
                reply = "".join(player.answer(TalkPrompt(messages, (), 0, 0, tokens)))
                return count, strip_thoughts(reply).strip() or summary
        # A turn that has no room on its own is left out.
        return 1, summary
