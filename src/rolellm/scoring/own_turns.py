"""Turns of one's own dialogues to answer: each reply is asked for after the real turns before it."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rolellm.core.errors import DataError
from rolellm.core.records import Row
from rolellm.core.text import HAN, format_count
from rolellm.data.own_rows import DIALOGUES, Dialogue, OwnRows, RowForm, load_own_rows
from rolellm.models.prompts.render import make_messages
from rolellm.models.training_record import hash_instruction
from rolellm.scoring.rows import read_dataset_rows

Messages = list[dict[str, str]]


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

    def select(self, indices: Iterable[int]) -> OwnTurns:
        """Keep some of the replies, in the order of the rows."""
        return replace(self, rows=tuple(self.rows[index] for index in sorted(indices)))

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
) -> OwnTurns:
    """Read the replies of one's own rows.

    Args:
        data: As `rolellm.data.own_rows.load_own_rows` takes it: dialogues, or rows with the columns of RoleBench.
        columns: Columns that have other names than their form expects.
        skip_bad: Skip bad rows and count them.
        instructions: Hashes of questions that a model was trained on; a dialogue that begins with one is left out.

    Raises:
        DataError: At a bad row, and where no reply is left.
    """
    forms: tuple[RowForm[Any], ...] = (*DIALOGUES, _ROLEBENCH)
    source = load_own_rows(data, forms, columns=columns, skip_bad=skip_bad, argument="your rows")
    rows: list[Row] = []
    trained: list[Row] = []
    messages: dict[str, Messages] = {}
    counts = {"dialogues": 0, "trained": 0, "tools": 0}
    for item in source:
        counts["dialogues"] += 1
        turns = [(item, make_messages(item))] if isinstance(item, Row) else list(_list_turns(item))
        counts["tools"] += not turns
        is_trained = bool(turns) and hash_instruction(turns[0][0].question) in instructions
        counts["trained"] += is_trained
        for row, prompt in turns:
            name = row.id
            if name in messages:
                name = f"{row.id} ({len(messages) + 1})"
            messages[name] = prompt
            part = trained if is_trained else rows
            part.append(replace(row, id=name))
    notes = _describe_source(source, counts)
    if not rows:
        raise DataError(f"{source.name} has no reply to answer: {'; '.join(notes)}. Name other rows with --data")
    return OwnTurns(source.name, tuple(rows), messages, tuple(trained), notes)


def _describe_source(source: OwnRows[Any], counts: Mapping[str, int]) -> tuple[str, ...]:
    notes = []
    if counts["trained"]:
        dialogues = format_count(counts["dialogues"], "dialogue")
        notes.append(f"{counts['trained']:,} of {dialogues} were trained on and are left out")
    if counts["tools"]:
        notes.append(f"{format_count(counts['tools'], 'dialogue')} with tools left out, which are not evaluated")
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
    is_plain = all(turn.keys() <= {"role", "content"} and turn["role"] != "tool" for turn in dialogue.messages)
    if dialogue.options or not is_plain:
        return
    first = dialogue.messages[0]
    description = first["content"] if first["role"] == "system" else None
    for number in dialogue.replies:
        before = [dict(turn) for turn in dialogue.messages[:number]]
        questions = [turn["content"] for turn in before if turn["role"] == "user"]
        question = questions[-1] if questions else ""
        reply = dialogue.messages[number]["content"]
        row = Row(
            f"{dialogue.id}/{number}",
            dialogue.role or "assistant",
            "zh" if HAN.search(f"{question}{reply}") else "en",
            "general",
            question,
            (reply,),
            role_description=description,
            dialogue=dialogue.id,
        )
        yield row, before
