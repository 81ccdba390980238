"""`rolellm chat` in a terminal of its own, as a person sees it."""

import errno
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from rolellm.core.jsonl import read_jsonl
from rolellm.playing.terminal import Wrapper

from .conftest import write_card

ROLELLM = str(Path(sys.executable).parent / "rolellm")


class Typed:
    """A terminal of 40 columns with `rolellm chat` in it."""

    def __init__(self, words: list[str], folder: Path, env: dict[str, str]) -> None:
        self.screen, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
        # Nobody is there to say where the cursor is.
        plain = {"TERM": "xterm", "COLUMNS": "40", "HF_HUB_OFFLINE": "1", "PROMPT_TOOLKIT_NO_CPR": "1"}
        env = {**os.environ, **plain, "XDG_DATA_HOME": str(folder), **env}
        self.process = subprocess.Popen(
            [ROLELLM, "chat", *words],
            **dict.fromkeys(("stdin", "stdout", "stderr"), other),
            env=env,
            cwd=folder,
            start_new_session=True,
            # Its own terminal, so that Ctrl-C interrupts it.
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(other)
        self.raw = b""

    @property
    def said(self) -> str:
        """What was printed, without what moves the cursor."""
        return re.sub(r"\x1b(\[[0-9;?]*[a-zA-Z]|[^a-zA-Z]*$)|\r", "", self.raw.decode(errors="replace"))

    def until(self, pattern: str, start: int = 0) -> str:
        """What is on the screen from a place on, once the pattern is."""
        end = time.monotonic() + 60
        while not re.search(pattern, self.said[start:]):
            assert time.monotonic() < end, self.said
            try:
                self.raw += os.read(self.screen, 4096)
            except OSError as error:
                assert error.errno == errno.EIO
                assert re.search(pattern, self.said[start:]), self.said
        return self.said[start:]

    def type(self, text: str, pattern: str, end: str = "\r") -> str:
        """What comes after a line was typed, up to a pattern."""
        start = len(self.said)
        os.write(self.screen, f"{text}{end}".encode())
        return self.until(pattern, start)


@pytest.fixture
def typed(tmp_path: Path) -> Iterator[Callable[..., Typed]]:
    terminals: list[Typed] = []

    def start(*words: str, **env: str) -> Typed:
        write_card(tmp_path)
        terminals.append(Typed(["ada.json", *words], tmp_path, env))
        return terminals[-1]

    yield start
    for terminal in terminals:
        terminal.process.kill()
        terminal.process.wait()
        os.close(terminal.screen)


def test_lines_break_between_words_and_the_last_message_can_be_edited(typed: Any, upstream: Any) -> None:
    terminal = typed("--llm", upstream.url, "--model", "parrot")
    terminal.until("User:$")
    words = " ".join(f"lighthouse{number}" for number in range(12))
    said = terminal.type(words, r"sentence\.\nUser:$")
    reply = said[said.index("Ada Fenn: ") :].partition("\nUser:")[0]
    assert max(map(len, reply.splitlines())) <= 40
    assert " ".join(reply.split()) == f"Ada Fenn: {words} Answer User in one sentence."
    assert max(map(len, terminal.type("/help", "leaves.\nUser:$").splitlines())) <= 40
    # The message is there to be edited; its last character goes.
    terminal.type("/edit", "lighthouse11$")
    said = terminal.type("\x7f\x7f?", r"sentence\.\nUser:$")
    assert " ".join(said.split()).endswith("lighthouse10 lighthouse? Answer User in one sentence. User:")
    assert upstream.bodies[-1]["messages"][-1]["content"].startswith(f"{words.removesuffix('11')}?\n")
    terminal.type("/quit", "The talk is in")


def test_a_paste_is_one_message_and_only_a_second_interrupt_ends_the_talk(
    typed: Any, upstream: Any, tmp_path: Path
) -> None:
    terminal = typed("--llm", upstream.url, "--model", "parrot")
    terminal.until("User:$")
    terminal.type("\x1b[200~One.\nTwo.\nThree.\x1b[201~", "Three.$", end="")
    terminal.type("", r"sentence\.\nUser:$")
    assert upstream.bodies[-1]["messages"][-1]["content"].startswith("One.\nTwo.\nThree.\n")
    # Alt-Enter begins a line, and one interrupt clears both.
    terminal.type("Half\x1b\rof it", "of it$", end="")
    terminal.type("\x03", "again leaves.\nUser:$", end="")
    (file,) = tmp_path.glob("rolellm/talks/Ada_Fenn/*.jsonl")
    assert len(read_contents(file)) == 3
    terminal.type("wait for it", "Ada Fenn: ?")
    while upstream.bodies[-1]["messages"][-1]["content"].partition("\n")[0] != "wait for it":
        time.sleep(0.01)
    terminal.type("\x03", r"\[stopped\]\nUser:$", end="")
    # The first one since then.
    terminal.type("\x03", "again leaves.\nUser:$", end="")
    terminal.type("\x03", "The talk is in", end="")
    assert terminal.process.wait(30) == 0
    assert read_contents(file)[1] == "One.\nTwo.\nThree."


def read_contents(path: Path) -> list[str]:
    return [line["mes"] for _, line in read_jsonl(path) if "mes" in line]


@pytest.mark.slow
def test_weights_are_loaded_before_anybody_speaks(typed: Any, tiny_model: Path) -> None:
    terminal = typed("--model", str(tiny_model), "--set", "max_tokens=4", OMP_NUM_THREADS="1")
    before = terminal.until("User:$")
    assert before.index("Loading weights") < before.index("You are talking to")
    assert "Loading" not in terminal.type("Why?", r"User:$")


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a\n\n  b  c", ["a", "", "  b  c"]),
        ("one two  ", ["one two"]),
        ("one two three four", ["one two", "three", "four"]),
        ("abcdefghijklmnop qr", ["abcdefghijklmnop", "qr"]),
        ("海上升明月，天涯", ["海上升明", "月，天涯"]),
        ("海上升「月」！他", ["海上升", "「月」！", "他"]),
        ("海上升“月”……", ["海上升", "“月”……"]),
        ("说 hello 吧", ["说 hello", "吧"]),
        ("", [""]),
    ],
)
def test_a_text_in_pieces_breaks_between_words(text: str, lines: list[str], size: int) -> None:
    written: list[str] = []
    wrapper = Wrapper(written.append, 8)
    for start in range(0, len(text), size):
        wrapper.put(text[start : start + size])
    wrapper.end()
    assert "".join(written).split("\n") == lines
    assert all(cell_len(line) <= 8 or " " not in line for line in lines)
