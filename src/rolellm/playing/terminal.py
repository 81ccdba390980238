"""A chat in the terminal: a line is a message, or a command that begins with ``/``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress

from rolellm.construct.cards.convert import user_name
from rolellm.core.errors import RoleLLMError, SettingsError
from rolellm.core.sanitize import visible
from rolellm.playing.player import Chat, RolePlayer

_HELP = """\
/role ROLE   talk to another role: a folder, a card or a name
/retry       get another reply to your last message
/edit TEXT   say TEXT in place of your last message
/save FILE   write the talk to FILE
/explain     show the exact prompt of the last reply
/help        show this list
/quit        leave; so does Ctrl-D. Ctrl-C stops a reply
"""


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
        self._user = user_name(sheet.language, sheet.role)
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
        command, _, rest = line.partition(" ")
        rest = rest.strip()
        match command:
            case "/role" if rest:
                self._begin(self._chat.player.as_role(rest))
            case "/retry":
                self._hear(lambda: self._chat.retry(stream=True))
            case "/edit" if rest:
                self._hear(lambda: self._chat.retry(rest, stream=True))
            case "/save" if rest:
                self._say(f"saved to {self._chat.save(rest)}\n")
            case "/explain":
                self._say(f"{self._chat.explain()}\n")
            case "/help":
                self._write(_HELP)
            case "/role" | "/edit" | "/save":
                raise SettingsError(f"{command} needs a word after it; /help shows how to use it")
            case _ if command.startswith("/"):
                raise SettingsError(f"there is no command {command}; /help lists the commands")
            case _:
                self._hear(lambda: self._chat.say(line, stream=True))

    def _hear(self, start: Callable[[], str | Iterator[str]]) -> None:
        try:
            pieces = start()
            self._say(f"{self._chat.player.role}: ")
            for piece in pieces:
                self._say(piece)
            if self._chat.note:
                self._say(f" [{self._chat.note}]")
        except KeyboardInterrupt:
            self._say(" [stopped]")
        finally:
            self._write("\n")

    def _say(self, text: str) -> None:
        """Print what may be a model's or a card's: nothing in it steers the terminal."""
        self._write(visible(text))
