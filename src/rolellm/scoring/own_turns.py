"""Turns of one's own dialogues to answer: each reply is asked for after the real turns before it."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from operator import itemgetter
from typing import Any, Final

from rolellm.core.errors import DataError
from rolellm.core.records import Language, Row
from rolellm.core.text import HAN, format_count
from rolellm.data.own_rows import DIALOGUES, Dialogue, OwnRows, RowForm, load_own_rows
from rolellm.models.prompts.render import make_messages
from rolellm.models.training_record import hash_instruction
from rolellm.scoring.rows import draw_rows, hash_place, read_dataset_rows

Messages = list[dict[str, str]]
#: Replies of each role that a model was trained on from which floors are drawn: BM25 ranks as many in a second.
MOST_TRAINED: Final = 10_000


@dataclass(frozen=True, slots=True)
class OwnTurns:
    """Replies of one's own rows that models are to give again.

    Attributes:
        name: Where the rows come from.
        rows: A row for each reply: the last user's turn as its question, what was said as its reference.
        messages: Row id to the turns that ask for the reply.
        trained: The same of dialogues that a model was trained on; only floors are drawn from them.
        notes: What was left out, and why.
    """

    name: str
    rows: tuple[Row, ...]
    messages: Mapping[str, Messages]
    trained: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()

    def write_transcripts(self) -> list[Row]:
        """The rows with all turns before a reply as its question, for those who read no messages."""
        rows = []
        for row in self.rows:
            turns = [turn for turn in self.messages[row.id] if turn["role"] != "system"]
            question = row.question
            if len(turns) > 1:
                question = "\n\n".join(f"{turn['role']}: {turn['content']}" for turn in turns)
            rows.append(replace(row, question=question))
        return rows


def load_own_turns(
    data: Any,
    columns: Mapping[str, str] | None = None,
    *,
    skip_bad: bool = False,
    instructions: Container[str] = (),
    limit: int | None = None,
) -> OwnTurns:
    """Read the replies of one's own rows.

    Args:
        data: As `rolellm.data.own_rows.load_own_rows` takes it: dialogues, or rows with the columns of RoleBench. Of
            several splits the test split is read.
        columns: Columns that have other names than their form expects.
        skip_bad: Skip bad rows and count them.
        instructions: Hashes of questions that a model was trained on; a dialogue that begins with one is left out.
        limit: Keep N replies, as `rolellm.scoring.rows.draw_rows` draws them; of a million rows no more are in memory.

    Raises:
        DataError: At a bad row, and where no reply is left.
    """
    forms: tuple[RowForm[Any], ...] = (*DIALOGUES, _ROLEBENCH)
    splits = ("test", "validation", "train")
    source = load_own_rows(data, forms, columns=columns, splits=splits, skip_bad=skip_bad, argument="your rows")
    replies = _Draw(limit)
    trained = _Draw(MOST_TRAINED)
    counts = {"dialogues": 0, "trained": 0, "tools": 0}
    for item in source:
        counts["dialogues"] += 1
        turns = [(item, make_messages(item))] if isinstance(item, Row) else list(_list_turns(item))
        if not turns:
            counts["tools"] += 1
            continue
        first, _ = turns[0]
        is_trained = hash_instruction(first.question) in instructions
        counts["trained"] += is_trained
        draw = trained if is_trained else replies
        for row, prompt in turns:
            draw.add(row, prompt)
    notes = _describe_source(source, counts)
    rows, messages = replies.finish()
    if not rows:
        raise DataError(f"{source.name} has no reply to answer: {'; '.join(notes)}. Name other rows with --data")
    trained_rows, _ = trained.finish()
    return OwnTurns(source.name, tuple(rows), messages, tuple(trained_rows), notes)


class _Draw:
    """Replies, of which each subset and role keep those that come first by lot, always the same.

    Args:
        most: The most that each keeps; by default all.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._count = 0
        self._heaps: dict[tuple[str, str], list[tuple[int, int, Row, Messages]]] = defaultdict(list)

    def add(self, row: Row, messages: Messages) -> None:
        """Add a reply, with the turns that ask for it."""
        self._count += 1
        lot = int(hash_place(row), 16)
        heap = self._heaps[row.subset, row.role]
        heapq.heappush(heap, (-lot, self._count, row, messages))
        if self._most is not None and len(heap) > self._most:
            heapq.heappop(heap)

    def finish(self) -> tuple[list[Row], dict[str, Messages]]:
        """List the rows that are drawn, in their order and with ids of their own, and the turns before each."""
        entries = sorted(chain.from_iterable(self._heaps.values()), key=itemgetter(1))
        indices = draw_rows([row for _, _, row, _ in entries], self._most)
        rows: list[Row] = []
        messages: dict[str, Messages] = {}
        for index in sorted(indices):
            _, number, row, prompt = entries[index]
            name = row.id if row.id not in messages else f"{row.id} ({number})"
            messages[name] = prompt
            rows.append(replace(row, id=name))
        return rows, messages


def _describe_source(source: OwnRows[Any], counts: Mapping[str, int]) -> tuple[str, ...]:
    notes = []
    if counts["trained"]:
        dialogues = format_count(counts["dialogues"], "dialogue")
        notes.append(f"{counts['trained']:,} of {dialogues} were trained on and are left out")
    if counts["tools"]:
        dialogues = format_count(counts["tools"], "dialogue")
        notes.append(f"{dialogues} with tools or names left out, which are not evaluated")
    if source.skipped:
        skipped = format_count(len(source.skipped), "bad row")
        notes.append(f"{skipped} skipped, the first: {source.skipped[0]}")
    return tuple(notes)


def _read_rolebench_row(columns: Mapping[str, Any]) -> Row:
    (row,) = read_dataset_rows([columns])
    if not row.references:
        raise DataError("found no reference; expected at least one reply as references")
    return row


_ROLEBENCH = RowForm("RoleBench", ("role", "question", "references"), _read_rolebench_row)


def _list_turns(dialogue: Dialogue) -> Iterator[tuple[Row, Messages]]:
    """List a dialogue's replies as rows, each with the turns that ask for it; none where turns are more than texts."""
    for turn in dialogue.messages:
        is_plain = turn.keys() <= {"role", "content"} and turn["role"] != "tool"
        if dialogue.options or not is_plain:
            return
    first = dialogue.messages[0]
    description = first["content"] if first["role"] == "system" else None
    for number in dialogue.replies:
        before = list(dialogue.messages[:number])
        questions = [turn["content"] for turn in before if turn["role"] == "user"]
        question = questions[-1] if questions else ""
        reply = dialogue.messages[number]["content"]
        language: Language = "zh" if HAN.search(f"{question}{reply}") else "en"
        row = Row(
            f"{dialogue.id}/{number}",
            dialogue.role or "assistant",
            language,
            "general",
            question,
            (reply,),
            role_description=description,
            dialogue=dialogue.id,
        )
        yield row, before
