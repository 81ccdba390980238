"""One sequence for many replies: what their prompts have in common is in it once (shared-prefix training).

Prompts are compared token by token, as inference would send them, so a prefix is shared exactly as far as the tokens
are equal, and every path through the tree reads as its prompt and reply would alone: no tokenization is cut. Whatever
lies outside a token's own path is hidden from it. See docs/shared_prefix.md; our choice of method (the paper trains row
by row).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from rolellm.rocit.packing.examples import Examples, Ids, Index


@dataclass(frozen=True, slots=True, eq=False)  # Arrays do not compare as one.
class Packed:
    """A tree of replies as one sequence of ``length`` tokens, depth first.

    Attributes:
        ids: ``(length,)`` tokens.
        positions: ``(length,)``: the place of each token on its own path, counted from 0.
        ends: ``(length,)``: where the part of the sequence stops that may look at a token: token ``i`` sees token ``j``
            if ``j <= i < ends[j]``.
        scored: ``(trained,)``: places whose prediction is trained; a prompt's last token stands here once for each of
            its replies.
        targets: ``(trained,)``: what is to be predicted there.
    """

    ids: Ids
    positions: Index
    ends: Index
    scored: Index
    targets: Ids


def pack(examples: Examples, chosen: Iterable[int]) -> Packed:
    """Lay replies out as one sequence.

    Prompts are put in the order of their tokens, so that those that begin alike are next to each other.

    Args:
        examples: All examples.
        chosen: The places of those to pack; each once.
    """
    replies_of: dict[int, list[int]] = {}
    for place in chosen:
        replies_of.setdefault(int(examples.prompt_of[place]), []).append(place)
    order = sorted(replies_of, key=lambda prompt: examples.prompts[prompt].tolist())
    prompts = sum(len(examples.prompts[prompt]) for prompt in order)
    layout = _Layout(prompts + sum(len(examples.replies[place]) for places in replies_of.values() for place in places))
    for prompt in order:
        layout.go_to(examples.prompts[prompt])
        for place in replies_of[prompt]:
            layout.answer(examples.replies[place])
    return layout.packed()


def shared(one: Ids, other: Ids) -> int:
    """How many tokens two prompts begin with in common."""
    length = min(len(one), len(other))
    apart = np.flatnonzero(one[:length] != other[:length])
    return int(apart[0]) if len(apart) else length


class _Layout:
    """A sequence under construction, and the path through it that the next reply goes on from."""

    def __init__(self, room: int) -> None:
        self._ids = np.zeros(room, np.int32)
        self._positions = np.zeros(room, np.int64)
        self._ends = np.zeros(room, np.int64)
        self._scored: list[Index] = []
        self._targets: list[Ids] = []
        self._length = 0
        self._prompt = np.zeros(0, np.int32)
        self._path = np.zeros(0, np.int64)

    def go_to(self, prompt: Ids) -> None:
        """Make the path that of another prompt: close what it does not share, add the rest."""
        common = shared(self._prompt, prompt)
        self._ends[self._path[common:]] = self._length
        self._path = np.concatenate([self._path[:common], self._append(prompt[common:], common)])
        self._prompt = prompt

    def answer(self, reply: Ids) -> None:
        """Hang a reply on the path; its first token is predicted from the prompt's last."""
        places = self._append(reply, len(self._path))
        self._ends[places] = self._length
        self._scored.append(np.concatenate([self._path[-1:], places[:-1]]))
        self._targets.append(reply)

    def packed(self) -> Packed:
        self._ends[self._path] = self._length
        return Packed(
            self._ids[: self._length],
            self._positions[: self._length],
            self._ends[: self._length],
            np.concatenate([np.zeros(0, np.int64), *self._scored]),
            np.concatenate([np.zeros(0, np.int32), *self._targets]),
        )

    def _append(self, ids: Ids, depth: int) -> Index:
        places = np.arange(self._length, self._length + len(ids))
        self._ids[places] = ids
        self._positions[places] = np.arange(depth, depth + len(ids))
        self._length += len(ids)
        return places
