"""The journal keeps every whole record, whatever was done to the file."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolellm.core.fingerprint import hash_json
from rolellm.llm import journal as journal_module
from rolellm.llm.journal import JOURNAL, SPENT, Journal, JournalFullError


def key_of(number: int) -> str:
    return hash_json(number)


def raw_of(number: int) -> dict[str, Any]:
    # What looks like a record, or like the end of one, inside a reply.
    trap = '{"key":"' + "0" * 64 + '","sum":"0123456789abcdef"}\n' if number % 5 == 0 else "ja, 好 \u2028"
    return {"text": f"reply {number} {trap}", "nested": {"sum": "0123456789abcdef"}, "n": number}


def fill(folder: Path, count: int) -> Path:
    journal = Journal(folder)
    for number in range(count):
        journal.record_sent(key_of(number), 1, "m", 0.5)
        journal.reply(key_of(number), 1, raw_of(number), 0.25, {"model": "m"})
    journal.close()
    return folder / JOURNAL


@contextmanager
def opened(folder: Path) -> Iterator[Journal]:
    journal = Journal(folder)
    try:
        yield journal
    finally:
        journal.close()


def replies(journal: Journal, number: int) -> list[Any]:
    return [raw for _, raw in journal.read_replies([key_of(number)])]


def test_replies_under_several_keys_come_in_the_order_of_the_file(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        for place, number in enumerate((3, 1, 3, 2)):
            journal.reply(key_of(number), 1, {"place": place}, 0.0, {})
        assert list(journal.read_replies([key_of(1), key_of(3)])) == [
            (1, {"place": 0}),
            (0, {"place": 1}),
            (1, {"place": 2}),
        ]


def test_a_call_without_an_end_counts_as_spent_until_it_ends(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        journal.record_sent(key_of(1), 1, "m", 0.5)
        journal.record_sent(key_of(2), 1, "m", 0.5)
        journal.record_lost(key_of(2), 1, "connection: reset", 0.0)
    with opened(tmp_path) as journal:
        assert (journal.spent, journal.unknown) == (0.0, 0.5)
        # Asked again: nobody knows of the first call, so it goes on counting.
        journal.record_sent(key_of(1), 1, "m", 0.5)
        journal.reply(key_of(1), 1, raw_of(1), 0.125, {})
    with opened(tmp_path) as journal:
        assert (journal.spent, journal.unknown) == (0.125, 0.5)


@settings(max_examples=60)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.text(st.characters())
        | st.sampled_from(['"sum":"', "\ud800", "\n"]),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_reply_comes_back_as_it_went_in(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    folder = tmp_path_factory.mktemp("journal")
    with opened(folder) as journal:
        journal.reply(key_of(1), 1, {"raw": value}, 0.0, {"tag": "x"})
    with opened(folder) as journal:
        assert replies(journal, 1) == [{"raw": value}]
        assert journal.damaged == 0


def test_on_a_full_disk_nothing_is_torn_and_a_call_without_room_counts_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_write = os.write
    with opened(tmp_path) as journal:
        journal.record_sent(key_of(1), 1, "m", 0.5)

        def write(file: int, data: bytes) -> int:
            # Half a line fits: what does fit must not stay.
            if len(data) < 31:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real_write(file, data[:-30])

        monkeypatch.setattr(journal_module.os, "write", write)
        with pytest.raises(JournalFullError, match="disk of"):
            journal.reply(key_of(1), 1, raw_of(1), 0.25, {})
        monkeypatch.undo()
    with opened(tmp_path) as again:
        assert (len(again), again.damaged, again.spent, again.unknown) == (0, 0, 0.0, 0.5)


@pytest.mark.parametrize("end", ["reply", "lost"])
def test_a_kill_between_a_record_and_the_note_of_what_was_spent_is_no_loss(tmp_path: Path, end: str) -> None:
    with opened(tmp_path) as journal:
        journal.record_sent(key_of(1), 1, "m", 0.5)
        before = (tmp_path / SPENT).read_bytes()
        if end == "reply":
            journal.reply(key_of(1), 1, raw_of(1), 0.25, {})
        else:
            journal.record_lost(key_of(1), 1, "timeout", 0.25)
    (tmp_path / SPENT).write_bytes(before)
    with opened(tmp_path) as journal:
        assert (journal.spent, journal.unknown, journal.missing) == (0.25, 0.0, 0.0)


@pytest.mark.parametrize("note", [b"", b"\xff\0", b"12", b"9 nan", b"9 -5", b"x y"])
def test_a_note_of_what_was_spent_that_is_none_is_passed_over(tmp_path: Path, note: bytes) -> None:
    fill(tmp_path, 2)
    (tmp_path / SPENT).write_bytes(note)
    with opened(tmp_path) as journal:
        assert (journal.spent, journal.missing) == (0.5, 0.0)
