"""A guard while a role is played: it reads each turn of the user and each reply, and stops what it finds unsafe.

A reply is held back until the guard has read it: a call for each sentence, or fewer where sentences arrive faster than
the guard answers. Texts go to the guard and nowhere else; what is kept of them are counts.
"""

from __future__ import annotations

import asyncio
import copy
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic

from rolellm.core.errors import SettingsError
from rolellm.core.records import Language
from rolellm.core.text import format_count
from rolellm.llm.guards import Guard
from rolellm.llm.model import CallError, T, UnacceptableError, strip_thoughts
from rolellm.llm.settings import MakeScripted

#: The most characters of a text that a call shows, and the most of them that were not read before (our choice).
_SHOWN: Final = 4000
_NEW: Final = 3000
#: Characters after which a sentence is taken for whole, whatever is in it (our choice).
_LONGEST: Final = 1000
# Up to the last one: in English a short sentence goes together with the next, and a title or an initial ends none.
_SENTENCE_ENDS: Final = (
    re.compile(r"(?s).{20,}(?<!\b[A-Z])(?<!\b(?:Mr|Ms|Dr|St))(?<!\bMrs)[.!?…][\"'”’)\]*_]*(?=\s)"),
    re.compile(r"(?s).*[。！？\n]"),
)


class StopWords(str):
    """The operator's words in place of what a guard stopped: the last piece of a reply."""


@dataclass
class GuardCounts:
    """What a guard did so far, in numbers.

    Attributes:
        turns: Turns of the user that it was asked about.
        replies: Replies.
        calls: Calls to it.
        stopped: Turns and replies that were stopped.
        categories: How many of them it found unsafe, by the categories that it named.
        failures: Calls without a verdict, by what went wrong; ``unreadable`` is one in words of another form.
    """

    turns: int = 0
    replies: int = 0
    calls: int = 0
    stopped: int = 0
    categories: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)

    def to_dict(self) -> dict[str, Any]:
        """Return one JSON object."""
        return {**vars(self), "categories": dict(self.categories), "failures": dict(self.failures)}

    def describe(self) -> str:
        """Say them in a sentence."""

        def join(counts: Mapping[str, int]) -> str:
            return f" ({', '.join(f'{name}: {count:,}' for name, count in sorted(counts.items()))})" if counts else ""

        read = f"{format_count(self.turns, 'turn')} and {format_count(self.replies, 'reply', 'replies')} checked"
        failures = format_count(self.failures.total(), "guard failure") + join(self.failures)
        return f"guard: {read}, {self.stopped:,} stopped{join(self.categories)}, {failures}"


class TalkGuard:
    """A guard of talks.

    Args:
        guard: The guard model.

    Attributes:
        guard: The same.
        settings: What is done with its verdicts.
        counts: What it did so far.

    Raises:
        SettingsError: For a guard of several models, or of an unknown form.
    """

    def __init__(self, guard: Guard) -> None:
        if len(guard.llm.models) > 1:
            raise SettingsError(f"a guard is one model; its settings list {len(guard.llm.models)}, so leave one")
        self.guard, self.settings, self.counts = guard, guard.settings, GuardCounts()
        self._model, self._form = guard.llm.models[0], guard.format

    @classmethod
    def of(cls, source: object, scripted: Mapping[str, MakeScripted] | None = None) -> TalkGuard:
        """The guard that a user names: a settings file, or what else `Guard.of` takes."""
        return source if isinstance(source, TalkGuard) else cls(Guard.of(source, scripted=scripted))

    def copy(self) -> TalkGuard:
        """The same, counts included, with connections of its own, for another event loop."""
        other = copy.copy(self)
        other._model = copy.copy(self._model)
        return other

    async def close(self) -> None:
        """Let go of connections."""
        await self._model.close()

    def describe(self, languages: Iterable[Language]) -> list[str]:
        """Say what it does, and which of the roles' languages its makers did not test."""
        name, outcome = self.guard.name, {"stop": "stopped", "pass": "let through"}[self.settings.on_failure]
        notes = [f"{name} checks turns and replies; what it gives no verdict on is {outcome} (on_failure)"]
        if unknown := sorted({*languages} - {*self._form.languages}):
            notes.append(f"{name} was not tested in {', '.join(unknown)} by its makers; expect it to miss more")
        return notes

    async def check_turn(self, turn: str, language: Language) -> str:
        """Read a turn of the user.

        Returns:
            What to answer in place of a reply; empty where there is nothing to stop.
        """
        self.counts.turns += 1
        return await self._check(turn, None, 0, language)

    async def check_reply(self, turn: str, reply: str, start: int, language: Language) -> str:
        """Read a reply to a turn from a place on; returns as `check_turn`."""
        return await self._check(turn, reply, start, language)

    async def _check(self, turn: str, reply: str | None, start: int, language: Language) -> str:
        text = turn if reply is None else reply
        while start < len(text):
            start = min(start + _NEW, len(text))
            # With as much of what came before as there is room for.
            window = text[max(start - _SHOWN, 0) : start]
            categories = await self._ask(*((window, None) if reply is None else (turn[-_SHOWN:], window)))
            if categories:
                self.counts.categories.update(categories)
            elif categories is None and self.settings.on_failure == "pass":
                continue
            if categories != []:
                self.counts.stopped += 1
                return self.settings.get_words("failure_answer" if categories is None else "answer", language)
        return ""

    async def _ask(self, turn: str, reply: str | None) -> list[str] | None:
        """The categories for which a text is unsafe, none for a safe one; ``None`` without a verdict."""
        self.counts.calls += 1
        failure = "unreadable"
        try:
            raw = await self._model.call(self.guard.build_live_request(turn, reply))
            words = strip_thoughts(self._model.read(raw).text)
            if labels := self._form.read_labels(words):
                return self._form.read_categories(words) if labels["unsafe"] else []
        except CallError as error:
            failure = error.kind
        except UnacceptableError:
            pass
        self.counts.failures[failure] += 1
        return None

    async def watch(
        self, pieces: AsyncIterator[str], turn: str, language: Language, put: Callable[[str], object]
    ) -> None:
        """Let a reply through as the guard reads it, after the turn that it replies to.

        Args:
            pieces: The reply, which is asked for only when the turn is let through.
            turn: What the user said.
            language: The language of the talk.
            put: Takes each piece; the last one is of `StopWords` where something was stopped.
        """
        import anyio

        if words := await self.check_turn(turn, language):
            put(StopWords(words))
            return
        held, problems = HeldReply[str](self, turn, language), list[Exception]()

        async def read() -> None:
            try:
                async for piece in pieces:
                    held.put(piece, piece)
            except Exception as error:
                problems.append(error)
            finally:
                held.end()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            async for piece in held.release():
                put(piece)
            tasks.cancel_scope.cancel()
        if held.words:
            put(StopWords(held.words))
        elif problems:
            raise problems[0]


class HeldReply(Generic[T]):
    """A reply that arrives item by item, and is let go as the guard reads it.

    Args:
        guard: The guard.
        turn: What the user said.
        language: The language of the talk.
        begun: Text that the client gave as the reply's beginning: the guard sees it with the rest.

    Attributes:
        words: The operator's words, once the guard has stopped it: a paragraph of their own after text that was let go.
    """

    def __init__(self, guard: TalkGuard, turn: str, language: Language, begun: str = "") -> None:
        guard.counts.replies += 1
        self._guard, self._turn, self._language = guard, turn, language
        self._text, self._begun, self._read = begun, len(begun), len(begun)
        # Each with the place where its text begins.
        self._items: list[tuple[T, int]] = []
        self._is_ended = False
        self._arrival = asyncio.Event()
        self.words = ""

    def put(self, item: T, text: str) -> None:
        """Add an item with its text, which may be empty."""
        if not self.words:
            self._items.append((item, len(self._text)))
            self._text += text
            self._arrival.set()

    def end(self) -> None:
        """Say that nothing more will arrive."""
        self._is_ended = True
        self._arrival.set()

    async def release(self) -> AsyncIterator[T]:
        """Yield each item when its text has been read, until the end or until the guard stops it."""
        while self._items or not self._is_ended:
            count = self._count_due()
            if count == 0:
                self._arrival.clear()
                await self._arrival.wait()
                continue
            due, self._items = self._items[:count], self._items[count:]
            text = self._text[: self._items[0][1] if self._items else None]
            if text[self._read :].strip():
                words = await self._guard.check_reply(self._turn, text, self._read, self._language)
                if words:
                    self.words = "\n\n" * (self._read > self._begun) + words
                    return
                self._read = len(text)
            for item, _ in due:
                yield item

    def _count_due(self) -> int:
        """Count the items up to the end of the last whole sentence."""
        unread = self._text[self._read :]
        if self._is_ended or len(unread) > _LONGEST or not unread.strip():
            return len(self._items)
        end = max((match.end() for pattern in _SENTENCE_ENDS if (match := pattern.match(unread))), default=0)
        return sum(start < self._read + end for _, start in self._items)
