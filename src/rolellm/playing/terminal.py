"""A chat in the terminal: a line is a message, or a command that begins with ``/``."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from rich.cells import cell_len

from rolellm.characters.cards.convert import choose_user_name
from rolellm.core.errors import RoleLLMError, SettingsError
from rolellm.core.sanitize import make_visible
from rolellm.playing.player import Chat, RolePlayer

# Arrow keys edit a line and bring earlier ones back, where there is such a library.
readline: Any
try:
    import readline
except ImportError:
    readline = None

_HELP = """\
/role ROLE   talk to another role: a folder, a card or a name
/retry       get another reply to your last message
/edit        edit your last message and say it again; /edit TEXT says TEXT in its place
/save FILE   write the talk to FILE
/explain     show the exact prompt of the last reply
/help        show this list
/quit        leave; so does Ctrl-D. Ctrl-C stops a reply
"""


_WIDE = r"\u1100-\u115f\u2e80-\uffdc\U0001f300-\U0003ffff"
#: What lines are broken between: words with the blanks in front of them, and wide characters.
_UNIT = re.compile(rf" *[{_WIDE}]| *[^\s{_WIDE}]+| +|\s")


def _get_width() -> int:
    """The terminal's width; 0 where the output goes elsewhere."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):
        return 0


class Wrapper:
    """Breaks lines between words, in a text that arrives in pieces; its last word is held back until it is whole.

    Args:
        write: Prints a text.
        columns: The width of a line; 0 for no limit.
    """

    def __init__(self, write: Callable[[str], object], columns: int) -> None:
        self._write, self._columns = write, columns
        self._held, self._column = "", 0

    def put(self, text: str) -> None:
        """Print a piece of the text."""
        if not self._columns:
            self._write(text)
            return
        *units, self._held = _UNIT.findall(self._held + text) or [""]
        self._write("".join(map(self._wrap_unit, units)))

    def end(self) -> None:
        """Print what was held back."""
        self._write(self._wrap_unit(self._held))
        self._held = ""

    def _wrap_unit(self, unit: str) -> str:
        if unit == "\n":
            self._column = 0
            return unit
        cells = cell_len(unit)
        if self._column and self._column + cells > self._columns:
            if not (words := unit.lstrip(" ")):
                return ""
            unit, cells, self._column = f"\n{words}", cell_len(words), 0
        # A word that is longer than a line is broken by the terminal.
        self._column += cells if cells <= self._columns else (cells - 1) % self._columns + 1
        return unit


class Terminal:
    """A chat in the terminal.

    Args:
        player: Who to talk to.
        ask: Reads a line, given the words in front of it.
        write: Prints a text as it is.
    """

    def __init__(
        self,
        player: RolePlayer,
        ask: Callable[[str], str] = input,
        write: Callable[[str], object] = lambda text: sys.stdout.write(text) and sys.stdout.flush(),
    ) -> None:
        self._ask, self._write = ask, write
        self._begin(player)

    def _begin(self, player: RolePlayer) -> None:
        self._chat = Chat(player)
        sheet = player.part.sheet
        self._user = choose_user_name(sheet.language, sheet.role)
        self._say(f"You are talking to {sheet.role}. /help lists the commands.\n")
        if self._chat.turns:
            self._say(f"{sheet.role}: {self._chat.turns[0].content}\n")

    def run(self) -> None:
        """Talk until the user leaves."""
        with suppress(EOFError, KeyboardInterrupt):
            while (line := self._ask(f"{self._user}: ").strip()).partition(" ")[0] != "/quit":
                if not line:
                    continue
                try:
                    self._do(line)
                except RoleLLMError as error:
                    self._say(f"error: {error}\n")
        self._write("\n")

    def _do(self, line: str) -> None:
        command, _, argument = line.partition(" ")
        argument = argument.strip()
        match command:
            case "/role" if argument:
                self._begin(self._chat.player.with_role(argument))
            case "/retry":
                self._show_reply(lambda: self._chat.retry(stream=True))
            case "/edit":
                if text := argument or self._edit():
                    self._show_reply(lambda: self._chat.retry(text, stream=True))
            case "/save" if argument:
                self._say(f"saved to {self._chat.save(argument)}\n")
            case "/explain":
                self._say(f"{self._chat.explain()}\n")
            case "/help":
                self._write(_HELP)
            case "/role" | "/save":
                raise SettingsError(f"{command} needs a word after it; /help shows how to use it")
            case _ if command.startswith("/"):
                raise SettingsError(f"there is no command {command}; /help lists the commands")
            case _:
                self._show_reply(lambda: self._chat.say(line, stream=True))

    def _show_reply(self, start: Callable[[], str | Iterator[str]]) -> None:
        lines = Wrapper(self._write, _get_width())
        try:
            pieces = start()
            lines.put(make_visible(f"{self._chat.player.role}: "))
            for piece in pieces:
                lines.put(make_visible(piece))
            if self._chat.note:
                lines.put(make_visible(f" [{self._chat.note}]"))
        except KeyboardInterrupt:
            lines.put(" [stopped]")
        finally:
            lines.end()
            self._write("\n")

    def _edit(self) -> str:
        """The last message as the user edits it; without readline, another one."""
        message = self._chat.message
        if not message:
            raise SettingsError("there is no message yet; say something first")
        if readline is not None:
            readline.set_startup_hook(lambda: readline.insert_text(message))
        try:
            return self._ask(f"{self._user}: ").strip()
        finally:
            if readline is not None:
                readline.set_startup_hook()

    def _say(self, text: str) -> None:
        """Print what may be a model's or a card's: nothing in it steers the terminal."""
        lines = Wrapper(self._write, _get_width())
        lines.put(make_visible(text))
        lines.end()
