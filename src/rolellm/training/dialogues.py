"""Dialogues as tokens: one example for a whole dialogue, in which all replies are trained.

A chat template is rendered once with a mark in the place of each reply. What lies between the marks is tokenized by
itself, and so are the replies, as they go on from their prompts. So a dialogue's tokens are linear in its length. Where
a template writes a prompt otherwise once it is past, each reply gets an example of its own, after the turns before it.

Rows are read one after the other, and their tokens lie in a file without a name: a million take no more memory than a
few numbers each.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import weakref
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from rolellm.core.errors import DataError, ModelError, RecipeError
from rolellm.core.fingerprint import hash_bytes
from rolellm.core.progress import open_bar
from rolellm.core.text import format_count
from rolellm.data.own_rows import Dialogue, OwnRows, Turn
from rolellm.models.prompts.encode import (
    TurnEncoder,
    compile_added_tokens,
    encode_prompt,
    encode_replies,
    find_end_token,
)
from rolellm.models.training_record import TrainedOn, hash_instruction
from rolellm.training.examples import Example
from rolellm.training.recipe import TrainingRecipe
from rolellm.training.rows import describe_skipped, draw_place, find_held_out_limit, find_question

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Index = npt.NDArray[np.int64]
_BLOCK: Final = 1024
# Dialogues of which every prompt is compared with what inference would send.
_CHECKED: Final = 16
# Private-use characters, which no text has and no template changes.
_MARK: Final = "\U000f0010{}\U000f0011"


@dataclass(frozen=True, slots=True)
class Encoded:
    """Tokens of a dialogue, or of one of its replies and the turns before it.

    Attributes:
        ids: All tokens.
        spans: Where trained replies start and stop, end tokens included.
    """

    ids: array[int]
    spans: Sequence[tuple[int, int]]

    def cut(self, max_length: int, *, truncate: bool) -> Encoded | None:
        """Keep the replies that fit; with `truncate`, also the beginning of the next one. None where there is none."""
        spans = []
        for start, stop in self.spans:
            if stop <= max_length:
                spans.append((start, stop))
            elif truncate and start < max_length:
                spans.append((start, max_length))
        if not spans:
            return None
        _, end = spans[-1]
        return Encoded(self.ids[:end], spans)


class DialogueEncoder:
    """Encodes dialogues, each as one example where the chat template allows it.

    Args:
        tokenizer: The base's tokenizer, with the chat template that inference will use.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._encode_turns = TurnEncoder(tokenizer)
        self._end = find_end_token(tokenizer)
        self._end_text = str(tokenizer.convert_ids_to_tokens(self._end))
        self._added = compile_added_tokens(tokenizer)
        self._is_stable = bool(tokenizer.chat_template)
        self._unchecked = _CHECKED

    def __call__(self, dialogues: Sequence[Dialogue]) -> Iterator[list[Encoded] | ModelError]:
        """Encode dialogues; each gives one or, where the template does not allow that, one for each reply.

        An error tells why a dialogue cannot be trained: the template refuses it, or would ignore what its turns have.
        """
        split_dialogues = [self._split(dialogue) for dialogue in dialogues]
        whole_dialogues = self._encode_parts(list(filter(None, split_dialogues)))
        for dialogue, parts in zip(dialogues, split_dialogues, strict=True):
            encoded = next(whole_dialogues) if parts else None
            if encoded is not None and self._unchecked:
                self._unchecked -= 1
                self._is_stable = self._is_stable and self._has_exact_prompts(dialogue, encoded)
            if encoded is not None and self._is_stable:
                yield [encoded]
                continue
            try:
                yield [self._encode_reply(dialogue, number) for number in dialogue.replies]
            except ModelError as error:
                yield error

    def _split(self, dialogue: Dialogue) -> list[str]:
        """Split a dialogue's text at its replies: what asks for the first, the first, what follows, and so on.

        Nothing where the template does not allow one example.
        """
        last = dialogue.replies[-1]
        turns = list(dialogue.messages[: last + 1])
        if not self._is_stable or dialogue.options or not all(map(self._is_plain, turns)):
            return []
        marked = list(turns)
        for number in dialogue.replies:
            marked[number] = {**turns[number], "content": _MARK.format(number)}
        try:
            text, marked_text = self._tokenizer.apply_chat_template([turns, marked], tokenize=False)
        except Exception:  # Templates raise what they like; `_encode_reply` says it in words of ours.
            return []
        parts: list[str] = []
        for number in dialogue.replies:
            before, _, marked_text = marked_text.partition(_MARK.format(number))
            parts.append(before)
            parts.append(turns[number]["content"])
            if not marked_text.startswith(self._end_text):
                return []
        # A template may change replies, such as by leaving out their thoughts.
        if text != "".join(parts) + marked_text:
            return []
        return parts

    def _is_plain(self, turn: Turn) -> bool:
        has_more = turn.keys() > {"role", "content"}
        # A special token in a text has to stay text, which takes the slower way.
        return not has_more and self._added.search(turn["content"]) is None

    def _encode_parts(self, split_dialogues: Sequence[Sequence[str]]) -> Iterator[Encoded]:
        """Tokenize the parts of many dialogues together."""
        between: list[str] = []
        replies: list[str] = []
        for parts in split_dialogues:
            between += parts[::2]
            replies += parts[1::2]
        if not between:
            return
        batch = self._tokenizer(between, add_special_tokens=False, return_attention_mask=False, verbose=False)
        replies_ids = encode_replies(self._tokenizer, replies)
        pairs = zip(batch["input_ids"], replies_ids, strict=True)
        for parts in split_dialogues:
            ids = array("i")
            spans: list[tuple[int, int]] = []
            for before, reply in islice(pairs, len(parts) // 2):
                # What comes before a reply begins with the end token of the last one.
                ids.extend(before)
                start = len(ids)
                ids.extend(reply)
                spans.append((start, len(ids) + 1))
            ids.append(self._end)
            yield Encoded(ids, spans)

    def _has_exact_prompts(self, dialogue: Dialogue, encoded: Encoded) -> bool:
        """Tell whether each reply comes after exactly what inference would send."""
        for number, (start, stop) in zip(dialogue.replies, encoded.spans, strict=True):
            prompt = encode_prompt(self._tokenizer, dialogue.messages[:number])
            if encoded.ids[:start].tolist() != prompt or encoded.ids[stop - 1] != self._end:
                return False
        return True

    def _encode_reply(self, dialogue: Dialogue, number: int) -> Encoded:
        """Encode a reply after the turns before it."""
        before = dialogue.messages[:number]
        turn = dialogue.messages[number]
        keys: set[str] = set().union(*before, turn)
        if dialogue.options or keys > {"role", "content"}:
            prompt, reply = self._encode_turns(before, [turn], dialogue.options)
        else:
            prompt = encode_prompt(self._tokenizer, before)
            (reply,) = encode_replies(self._tokenizer, [turn["content"]])
            reply = [*reply, self._end]
        ids = array("i", prompt + reply)
        return Encoded(ids, [(len(prompt), len(ids))])


class DialogueTable:
    """Dialogues as arrays of numbers: first written, then split and read.

    Attributes:
        replies: Number of replies that are trained.
        long: Number of dialogues that do not fit whole.
        bare_roles: Roles of dialogues without a system turn.
    """

    def __init__(self, training: TrainingRecipe) -> None:
        self._training = training
        self.replies = self.long = 0
        self._digest = hashlib.sha256()
        self._roles: set[str] = set()
        self.bare_roles: set[str] = set()
        # Of dialogues: when the held-out ones are drawn by lot, the place in it.
        self._draws = array("d")
        # Of questions: a hash, and the number of the dialogue.
        self._questions = array("Q")
        self._askers = array("q")
        # Of examples.
        self._row_ids: list[str] = []
        self._owners = array("q")
        self._families = array("Q")
        # Those that do not fit are among them.
        self._hashes = array("q")
        self._token_stops = array("q", [0])
        self._spans = array("q")
        self._span_stops = array("q", [0])
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # It lives as long as the table.
        weakref.finalize(self, self._file.close)
        self._tokens: npt.NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self._draws)

    @property
    def repeats(self) -> int:
        """Number of examples that are equal to an earlier one."""
        return len(self._hashes) - len(np.unique(self._hashes))

    @property
    def fingerprint(self) -> str:
        """A hash of all dialogues."""
        return self._digest.hexdigest()

    def add(self, dialogue: Dialogue, encoded: Sequence[Encoded]) -> None:
        """Add a dialogue with the replies that fit."""
        training, number = self._training, len(self)
        content = json.dumps([dialogue.id, dialogue.messages, dialogue.replies, dialogue.role, dialogue.options])
        self._digest.update(content.encode())
        if dialogue.role is not None:
            self._roles.add(dialogue.role)
            if dialogue.messages[0]["role"] != "system":
                self.bare_roles.add(dialogue.role)
        questions = []
        for reply in dialogue.replies:
            question = find_question(dialogue.messages[:reply])
            questions.append(hash_instruction(question))
        self._draws.append(draw_place(questions[0], training.seed))
        self._questions.extend(int(question, 16) for question in questions)
        self._askers.extend([number] * len(questions))
        beginning = hash_bytes(dialogue.messages[0]["content"].encode())
        family = int(beginning[:16], 16)
        is_long = False
        for whole in encoded:
            self._hashes.append(hash(whole.ids.tobytes()))
            cut = whole.cut(training.max_length, truncate=training.truncate_replies)
            is_long = is_long or cut != whole
            if cut is not None:
                self._append(cut, dialogue.id, number, family)
        self.long += is_long

    def _append(self, encoded: Encoded, row_id: str, owner: int, family: int) -> None:
        self._file.write(encoded.ids)
        stop = self._token_stops[-1] + len(encoded.ids)
        self._token_stops.append(stop)
        for span in encoded.spans:
            self._spans.extend(span)
        self._span_stops.append(len(self._spans))
        self._row_ids.append(row_id)
        self._owners.append(owner)
        self._families.append(family)
        self.replies += len(encoded.spans)

    def read(self, number: int) -> Example:
        """Read an example."""
        if self._tokens is None:
            self._file.flush()
            self._tokens = np.memmap(self._file, np.int32, "r")
        first, last = self._token_stops[number : number + 2]
        ids = array("i", self._tokens[first:last].tobytes())
        first, last = self._span_stops[number : number + 2]
        spans = self._spans[first:last]
        start_of_first = spans[0]
        gaps = []
        # From the stop of each reply to the start of the next one.
        edges = zip(spans[1:-1:2], spans[2::2], strict=True)
        for stop, start in edges:
            gaps.append((stop - start_of_first, start - start_of_first))
        row_id = self._row_ids[number]
        family = str(self._families[number])
        return Example(row_id, ids[:start_of_first], ids[start_of_first:], family=family, gaps=gaps)

    def split(self, share: float) -> tuple[DialogueSplit, DialogueSplit]:
        """Split off what is held out, as `find_held_out_limit` has it."""
        limit = find_held_out_limit(self._draws, share)
        is_held_out = np.asarray(self._draws) < limit
        return self._select(~is_held_out), self._select(is_held_out)

    def _select(self, is_chosen: npt.NDArray[np.bool_]) -> DialogueSplit:
        owners, askers = np.asarray(self._owners), np.asarray(self._askers)
        examples = TableExamples(self, np.flatnonzero(is_chosen[owners]))
        questions = np.unique(np.asarray(self._questions)[is_chosen[askers]])
        instructions = frozenset(f"{question:016x}" for question in questions.tolist())
        record = TrainedOn(frozenset(self._roles), instructions)
        return DialogueSplit(examples, int(is_chosen.sum()), record)


@dataclass(frozen=True, slots=True)
class TableExamples(Sequence[Example]):
    """Some examples of a table.

    Attributes:
        table: The table.
        numbers: The numbers of the examples in it.
    """

    table: DialogueTable
    numbers: Index

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, number: Any) -> Any:  # Slices are not needed.
        return self.table.read(int(self.numbers[number]))


@dataclass(frozen=True, slots=True)
class DialogueSplit:
    """Dialogues to train on, or held out.

    Attributes:
        examples: Their examples.
        dialogues: Number of dialogues.
        trained_on: Their roles and questions.
    """

    examples: TableExamples
    dialogues: int
    trained_on: TrainedOn


def encode_dialogues(
    rows: OwnRows[Dialogue], tokenizer: PreTrainedTokenizerBase, training: TrainingRecipe
) -> DialogueTable:
    """Read and encode all dialogues of a source, and say in a line what they are.

    Args:
        rows: The source; with ``skip_bad``, rows that the chat template refuses are skipped, too.
        tokenizer: The base's tokenizer.
        training: Its maximum length, ``truncate_replies`` and seed.

    Raises:
        DataError: At a bad row.
        RecipeError: At a row that the chat template refuses, and where no reply fits.
    """
    encode, table = DialogueEncoder(tokenizer), DialogueTable(training)
    source = iter(rows)
    with open_bar("tokenizing", unit="dialogues") as bar:
        while block := list(islice(source, _BLOCK)):
            for dialogue, encoded in zip(block, encode(block), strict=True):
                if not isinstance(encoded, ModelError):
                    table.add(dialogue, encoded)
                    continue
                problem = f"{rows.name}, {dialogue.id}: {encoded}"
                if not rows.skip_bad:
                    raise RecipeError(problem) from encoded
                rows.skipped.append(DataError(problem))
            bar.update(len(block))
    if table.replies == 0:
        limit = f"training.max_length ({training.max_length})"
        raise RecipeError(f"{rows.name}: no reply fits {limit} after the turns before it; raise it")
    return table


def describe_dialogues(rows: OwnRows[Dialogue], table: DialogueTable, max_length: int) -> str:
    """Say what a source holds: "chats.jsonl (ShareGPT): 200 dialogues, 1,412 replies; 12 over 2,048 tokens"."""
    dialogues = format_count(len(table), "dialogue")
    replies = format_count(table.replies, "reply", "replies")
    line = f"{rows.title}: {dialogues}, {replies}"
    if table.long:
        line += f"; {table.long:,} over {max_length:,} tokens, trained up to the last reply that fits"
    if table.repeats:
        line += f"; {table.repeats:,} repeat an earlier one"
    if len(table.bare_roles) > 1:
        line += f"; {len(table.bare_roles):,} roles have no system turn that tells them apart"
    return line + describe_skipped(rows)
