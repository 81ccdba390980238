"""A request on its way through a run, and whether a reply settles it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Generic

from rolellm.llm.model import (
    Accept,
    Answer,
    Failure,
    FailureKind,
    Finish,
    Json,
    Model,
    Reply,
    Request,
    T,
    UnacceptableError,
    request_key,
)

_ENDED: dict[Finish, str] = {
    "length": "the reply was cut off at its most tokens",
    "filtered": "the server's content filter took the reply",
    "refused": "the model refused",
    "empty": "the reply is empty",
}


@dataclass(slots=True)
class Task(Generic[T]):
    """A request on its way.

    Attributes:
        place: What the caller knows it by.
        request: What is asked.
        keys: What a reply of each model is kept under.
        tries: Calls that count against `allowed`: replies ever paid for, and faults in this run.
        paid: Replies ever paid for.
        allowed: The most tries.
        refused: Why replies were not taken.
        last: How the last try failed.
        followers: Requests that ask the same, and are settled with it.
    """

    place: int
    request: Request
    keys: tuple[str, ...]
    tries: int = 0
    paid: int = 0
    allowed: int = 0
    refused: list[str] = field(default_factory=list)
    last: tuple[FailureKind, str, Reply | None] = ("connection", "was not asked", None)
    followers: list[tuple[int, Request]] = field(default_factory=list)

    def failure(self) -> Failure:
        """What becomes of it when it is given up."""
        kind, reason, reply = self.last
        return Failure(self.request, kind, reason, self.tries, reply, tuple(self.refused))


@dataclass(slots=True)
class Counts:
    """What happened so far: for the progress bar, and for the summary."""

    done: int = 0
    failed: int = 0
    in_flight: int = 0
    calls: int = 0
    from_journal: int = 0


def judge(task: Task[T], model: Model, raw: Json, accept: Accept[T], also: Collection[Finish]) -> Answer[T] | None:
    """Make an answer of a raw reply; where it is none, the task knows why.

    Args:
        task: Its `paid` counts this reply already.
        model: Who gave the reply, and can read it.
        raw: As the journal has it.
        accept: Makes a value of the reply, or refuses it.
        also: Ways to end, beside ``stop``, that are for `accept` to judge.
    """
    reply: Reply | None = None
    try:
        reply = model.read(raw)
        if reply.finish == "stop" or reply.finish in also:
            value = accept(task.request, reply)
            key = request_key(model, task.request)
            return Answer(task.request, value, reply, task.paid, tuple(task.refused), key)
        kind: FailureKind = reply.finish
        reason = _ENDED[reply.finish]
    except UnacceptableError as error:
        kind, reason = error.kind, error.reason
    except RecursionError:
        kind, reason = "malformed", "the reply is nested too deeply"
    task.last = kind, reason, reply
    task.refused.append(reason)
    return None
