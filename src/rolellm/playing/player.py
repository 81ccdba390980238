"""`rolellm.RolePlayer`: a role and the model that plays it; and a chat with it.

::

    player = rolellm.RolePlayer("runs/hamlet", "hamlet")
    player.reply("Who are you?")
    chat = player.chat()
    for piece in chat.say("What do you read?", stream=True): ...
    chat.save("talk.jsonl")

A prompt has the system turn that training used, a card's circumstances and example talk, the lore that the last turns
call up, and the talk. When it does not fit into the context, the oldest turns go first, then lore; nothing is cut.
"""

from __future__ import annotations

import copy
import warnings
from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, overload

from rolellm.construct.cards.convert import user_name
from rolellm.construct.lore import called_up
from rolellm.construct.rolegpt.prompts import Found, RolePrompts
from rolellm.construct.scripts.turns import write_turns
from rolellm.construct.settings import PromptSettings
from rolellm.core.errors import EndpointError, ModelError, SettingsError
from rolellm.core.fingerprint import hash_json
from rolellm.core.records import Turn
from rolellm.core.settings import read
from rolellm.core.text import number_of
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
    system,
    user,
    without_thoughts,
)
from rolellm.models.local_model import Decoding, LocalModel
from rolellm.playing.roles import Part, find_part
from rolellm.playing.settings import PlaySettings
from rolellm.prompts.render import OPENING, system_template

#: The share of the context that lore may fill, and that is kept for a long reply. The first is SillyTavern's default.
_SHARE = 4
#: The most characters for which a token can stand, on average over a text; what is longer need not be counted.
_CHARACTERS = 16
#: The end of a turn in which lore's keys are looked for, in characters (our choice).
_SCANNED = 20_000
#: What is said of replies that are not whole.
_NOTES: dict[Finish, str] = {
    "length": "cut off at the limit of tokens; --max-tokens allows more",
    "filtered": "cut off by the server's content filter",
    "refused": "the server refused to answer",
}


class ContextWarning(UserWarning):
    """The context is full: earlier turns or lore were left out of a prompt."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is sent for a reply.

    Attributes:
        messages: The system turn, then the talk; the last message is the user's.
        lore: What the last turns called up.
        dropped: Earlier turns that were left out.
        dropped_lore: Lore that was called up and left out.
        tokens: Of the prompt; for a model behind an API an estimate, unless it has a tokenizer.
    """

    messages: tuple[Message, ...]
    lore: tuple[Found, ...]
    dropped: int
    dropped_lore: int
    tokens: int

    @property
    def warning(self) -> str:
        """What was left out, in a sentence; empty where nothing was."""
        left_out = [number_of(self.dropped, "earlier turn")] * bool(self.dropped)
        left_out += [f"{number_of(self.dropped_lore, 'piece')} of lore"] * bool(self.dropped_lore)
        return f"the context is full: the role does not see {' and '.join(left_out)}" if left_out else ""


class RolePlayer:
    """A role, and the model that plays it.

    Args:
        model: A folder with a model, an adapter or a training run; a Hub id; or a model behind an API: `rolellm.LLM`, a
            dict, or a settings file.
        character: A character's folder, a card, the name of a role of RoleBench, or a `rolellm.Character`.
        adapter: A PEFT adapter to put on a full model.
        how: Fields of `rolellm.playing.settings.PlaySettings`, such as ``temperature`` or ``max_tokens``.

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

    def __init__(self, model: Any, character: Any, *, adapter: str | None = None, **how: Any) -> None:
        self.settings = read(PlaySettings, how)
        self._play(find_part(character))
        found = getattr(model, "model_dir", model)
        self.model: LocalModel | Model
        if isinstance(found, str | Path) and not Path(found).is_file():
            self.model = LocalModel(str(found), adapter=adapter)
        elif adapter is not None:
            raise SettingsError("an adapter goes on a folder or a Hub id; name it in the settings file of the model")
        else:
            llm = LLM.of(found)
            first = llm.models[0]
            self.model = first.model if isinstance(first, LocalChat) else first
            self._counter = llm.counter

    def _play(self, part: Part) -> None:
        self.part = part
        template = self.settings.system_template
        self._prompts = RolePrompts(part.sheet, PromptSettings(max_prompt_tokens=None, system_template=template))
        self._template = system_template(part.sheet.language, template)

    def as_role(self, character: Any) -> RolePlayer:
        """The same model with another role.

        Raises:
            SettingsError: For an unknown role.
            DataError: For a folder or a card that cannot be read.
        """
        other = copy.copy(self)
        other._play(find_part(character))
        return other

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
        return pieces if stream else without_thoughts("".join(pieces))

    def chat(self) -> Chat:
        """A talk, which begins with the card's greeting where there is one."""
        return Chat(self)

    @cached_property
    def context(self) -> int | None:
        """The most tokens of prompt and reply together; ``None`` where nobody says."""
        own = self.model.context if isinstance(self.model, LocalModel) else _context(self.model)
        return min(filter(None, (self.settings.context, own)), default=None)

    def prompt(self, turns: Sequence[Message], *, more: str = "", after: str = "") -> Prompt:
        """What is sent for a reply.

        Args:
            turns: The talk; the last message is the user's.
            more: Goes into the system turn, after all that is said of the role.
            after: Goes after the last message.

        Raises:
            ModelError: When the last message alone leaves no room for a reply in the model's context.
            SettingsError: Without any turn.
        """
        if not turns:
            raise SettingsError("there are no turns; the last one has to be the user's message")
        context = self.context
        limit = None if context is None else context - min(self.settings.max_tokens, context // _SHARE)
        if context is not None and len(turns[-1].content) > _CHARACTERS * context:
            raise ModelError(f"the message has {len(turns[-1].content):,} characters, too many for {_fit(context)}")
        notes, called = self._lore(turns)
        starts = [place for place, turn in enumerate(turns) if turn.role == "user" or place == 0]
        ways = [(start, notes) for start in starts]
        ways += [(starts[-1], notes[:count]) for count in reversed(range(len(notes)))]

        @cache
        def made(way: int) -> tuple[tuple[Message, ...], int]:
            start, told = ways[way]
            messages = self._messages(turns[start:], told, more, after)
            return messages, 0 if limit is None else self.count(messages)

        def fits(way: int) -> bool:
            return limit is None or made(way)[1] <= limit

        way = 0 if fits(0) else bisect_left(range(len(ways)), True, key=fits)
        if way == len(ways):
            tokens = made(way - 1)[1]
            raise ModelError(f"the prompt has {tokens:,} tokens without any earlier turn, too many for {_fit(context)}")
        start, told = ways[way]
        return Prompt(made(way)[0], tuple(told), start, called - len(told), made(way)[1])

    def _lore(self, turns: Sequence[Message]) -> tuple[list[Found], int]:
        """The lore that the last turns call up, as far as its share of the context takes it, and how much there is."""
        text = "\n".join(turn.content[-_SCANNED:] for turn in turns[-self.part.scanned :])
        lore = self.part.sheet.lore
        found = self._prompts.shelf.notes(text, len(lore))
        # Words alone call up nothing that has keys: its author said when it is wanted.
        found = [note for note in found if note.by != "words" or not lore[note.place].keys]
        newest = turns[-1].content[-_SCANNED:]

        def rank(note: Found) -> int:
            entry = lore[note.place]
            if note.by == "key" and called_up(replace(entry, secondary_keys=()), newest):
                return 0
            return 1 if entry.constant else 2

        found.sort(key=rank)
        return (found if self.context is None else self._within(found, self.context // _SHARE)), len(found)

    def _within(self, lore: list[Found], room: int) -> list[Found]:
        kept = []
        for note in lore:
            if len(note.text) <= _CHARACTERS * room and (tokens := self.count([user(note.text)])) <= room:
                kept.append(note)
                room -= tokens
        return kept

    def _messages(self, turns: Sequence[Message], lore: list[Found], more: str, after: str) -> tuple[Message, ...]:
        sheet, part = self.part.sheet, self.part
        last = turns[-1].content
        text = self._prompts.messages(last, (), lore)[0].content
        if part.system:
            described = sheet.described() or ""
            ours = self._template.fill(role=sheet.role, description=described)
            original = self._template.fill(role=sheet.role, description="")
            text = f"{part.system.replace('{{original}}', original)}\n\n{described}{text.removeprefix(ours)}"
        text = "\n\n".join(filter(None, (text, *part.told, more)))
        # Many chat templates want the user to begin, and take no system turn at the end.
        opening = [user(OPENING[sheet.language])] * (turns[0].role == "assistant")
        ending = user("\n\n".join(filter(None, (last, part.after, after))))
        return (system(text), *opening, *turns[:-1], ending)

    def count(self, messages: Sequence[Message]) -> int:
        """The tokens of a prompt; see `Prompt`."""
        if isinstance(self.model, LocalModel):
            return len(self.model.encode([asdict(message) for message in messages]))
        return self._counter.prompt(messages)

    def show(self, prompt: Prompt) -> str:
        """A prompt as the model gets it: the very text for a local model, the messages for one behind an API."""
        if isinstance(self.model, LocalModel):
            ids = self.model.encode([asdict(message) for message in prompt.messages])
            return str(self.model.tokenizer.decode(ids, clean_up_tokenization_spaces=False))
        return "\n\n".join(f"[{message.role}]\n{message.content}" for message in prompt.messages)

    def answer(
        self, prompt: Prompt, *, repeat: int = 0, ended: Callable[[Finish], object] | None = None
    ) -> Iterator[str]:
        """The reply to a prompt, as it arrives, without thoughts; leaving the loop early ends the work.

        Args:
            prompt: What to send.
            repeat: Which of several replies to it this is, from 0.
            ended: Called with how the reply ended.

        Raises:
            EndpointError: When the server gave no reply.
        """
        request = self.request(prompt, repeat=repeat)
        if isinstance(self.model, LocalModel):
            sampling = request.sampling
            ids = self.model.encode([asdict(message) for message in prompt.messages])
            decoding = Decoding(
                max_new_tokens=sampling.max_tokens,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                seed=sampling.seed or 0,
            )
            yield from _speech(self.model.stream(ids, decoding, hash_json([ids, repeat]), ended))
        else:
            yield from _speech(_asked(self.model, request, ended))

    def request(self, prompt: Prompt, *, repeat: int = 0) -> Request:
        """What a model behind an API is asked for a reply: the prompt, and no more tokens than there is room for.

        Args:
            prompt: What to send.
            repeat: Which of several replies to it this is, from 0.
        """
        sampling = self.settings.sampling
        if self.context is not None:
            sampling = replace(sampling, max_tokens=max(1, min(sampling.max_tokens, self.context - prompt.tokens)))
        return Request(prompt.messages, sampling, repeat=repeat)


def _fit(context: int | None) -> str:
    return f"a context of {context:,}; shorten the message or the role's description, or use a longer context"


def _context(model: Model) -> int | None:
    """What a model's server says of its context."""
    from anyio.from_thread import start_blocking_portal

    ask: Callable[[], Any] | None = getattr(model, "context", None)
    if ask is None:
        return None
    with start_blocking_portal() as portal:
        found: int | None = portal.call(ask)
        portal.call(model.close)
        return found


def _speech(pieces: Iterator[str]) -> Iterator[str]:
    """Pieces of a reply without the thoughts that it begins with."""
    held, speaks = "", False
    for piece in pieces:
        held = piece if speaks else (held + piece).lstrip()
        while not speaks and held.startswith("<think>") and "</think>" in held:
            held = held.partition("</think>")[2].lstrip()
        speaks = speaks or not "<think>".startswith(held[:7])
        if speaks:
            yield held
    if not speaks and held and not held.startswith("<think>"):
        yield held


def _asked(model: Model, request: Request, ended: Callable[[Finish], object] | None = None) -> Iterator[str]:
    """A reply as it arrives, or in one piece from a model that does not stream."""
    from anyio import CancelScope
    from anyio.from_thread import start_blocking_portal

    arrived: SimpleQueue[str | Exception | None] = SimpleQueue()
    stream: Callable[..., AsyncGenerator[str]] = getattr(model, "stream", partial(_whole, model))

    async def work() -> None:
        try:
            async with aclosing(stream(request, ended)) as pieces:
                async for piece in pieces:
                    arrived.put(piece)
        except (CallError, UnacceptableError) as error:
            more = "; give the length of its context with --context" if getattr(error, "too_long", False) else ""
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
            while (piece := arrived.get()) is not None:
                if isinstance(piece, Exception):
                    raise piece
                yield piece
        finally:
            working.cancel()


async def _whole(model: Model, request: Request, ended: Callable[[Finish], object] | None) -> AsyncGenerator[str]:
    reply = model.read(await model.call(request))
    if ended is not None:
        ended(reply.finish)
    yield reply.text


class Chat:
    """A talk with a role.

    Args:
        player: Who plays it.

    Attributes:
        player: Who plays it.
        turns: What was said: messages of the ``user`` and, for the role, the ``assistant``.
        prompt: What was sent for the last reply.
        note: What is wrong with the last reply, such as that it was cut off; empty for a whole one.
    """

    def __init__(self, player: RolePlayer) -> None:
        self.player = player
        self.turns: list[Message] = [assistant(player.part.greeting)] if player.part.greeting else []
        self.prompt: Prompt | None = None
        self.note = ""
        self._asked = ""
        self._repeat = 0
        self._saved: Path | None = None

    @overload
    def say(self, text: str, *, stream: Literal[False] = False) -> str: ...
    @overload
    def say(self, text: str, *, stream: Literal[True]) -> Iterator[str]: ...
    def say(self, text: str, *, stream: bool = False) -> str | Iterator[str]:
        """Say something, and get the reply. What arrived of a reply that breaks off is kept as the role's turn.

        Args:
            text: What to say.
            stream: Give the reply as it arrives.

        Raises:
            SettingsError: When there is nothing in the text.
            ModelError: When it leaves no room for a reply in the model's context.
            EndpointError: When the server gave no reply.

        Warns:
            ContextWarning: When earlier turns or lore no longer fit.
        """
        return self._say(text, 0, stream)

    def retry(self, text: str | None = None, *, stream: bool = False) -> str | Iterator[str]:
        """Take the last message and its reply back, and say it again or something else.

        Args:
            text: What to say instead.
            stream: Give the reply as it arrives.

        Raises:
            SettingsError: When nothing was said yet; otherwise as `say`.
        """
        if not self._asked:
            raise SettingsError("nothing was said yet; say something first")
        if self.turns[-2:-1] == [user(self._asked)]:
            del self.turns[-2:]
        return self._say(self._asked if text is None else text, self._repeat + 1, stream)

    def save(self, path: str | Path) -> Path:
        """Write the talk as turns, one JSON object a line, as ``rolellm role parse`` writes a script.

        Args:
            path: A new file, or the one that this talk was saved to before.

        Raises:
            SettingsError: When another file is there.
        """
        target = Path(path)
        if target.exists() and target != self._saved:
            raise SettingsError(f"{target} exists already; choose another name")
        sheet = self.player.part.sheet
        names = {"user": user_name(sheet.language, sheet.role), "assistant": sheet.role}
        write_turns(target, (Turn(names[turn.role], turn.content) for turn in self.turns), sheet.role)
        self._saved = target
        return target

    def explain(self) -> str:
        """What was sent for the last reply, and what was left out of it.

        Raises:
            SettingsError: When nothing was said yet.
        """
        if self.prompt is None:
            raise SettingsError("nothing was sent yet; say something first")
        called = [f"{', '.join(note.shared) or 'always'}: {note.before or note.text[:40]}" for note in self.prompt.lore]
        return "\n".join(
            [
                self.player.show(self.prompt),
                "",
                f"lore called up: {'; '.join(called) or 'none'}",
                f"left out: {number_of(self.prompt.dropped, 'earlier turn')}, "
                f"{number_of(self.prompt.dropped_lore, 'piece')} of lore",
            ]
        )

    def _say(self, text: str, repeat: int, stream: bool) -> str | Iterator[str]:
        if not text.strip():
            raise SettingsError("the message is empty; say something")
        before, prompt = self.prompt, self.player.prompt([*self.turns, user(text)])
        self.prompt, self._asked, self._repeat = prompt, text, repeat
        if prompt.warning and (before is None or prompt.warning != before.warning):
            warnings.warn(prompt.warning, ContextWarning, stacklevel=3)
        pieces = self._heard(prompt, text, repeat)
        return pieces if stream else without_thoughts("".join(pieces))

    def _heard(self, prompt: Prompt, text: str, repeat: int) -> Iterator[str]:
        said, self.note, ends = "", "", list[Finish]()
        try:
            for piece in self.player.answer(prompt, repeat=repeat, ended=ends.append):
                said += piece
                yield piece
        finally:
            said = without_thoughts(said)
            if said or ends:
                self.turns += [user(text), assistant(said)]
                empty = "" if said else "the reply is empty; ask again"
                self.note = _NOTES.get(ends[0], empty) if ends else ""
