"""A chat in the terminal: a line is a message, or a command that begins with ``/``."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import create_output
from rich.cells import cell_len

from rolellm.core.errors import RoleLLMError, SettingsError
from rolellm.core.sanitize import make_visible
from rolellm.playing.player import Chat, RolePlayer
from rolellm.playing.settings import TalkSettings
from rolellm.playing.talks import choose_talk_folder, choose_talk_path, describe_talk, list_swipes, list_talks

_HELP = """\
/role ROLE   talk to another role: a folder, a card or a name
/retry       get another reply to your last message
/swipe N     go back to the Nth reply, or greeting; /swipe shows them all
/edit        edit your last message and say it again; /edit TEXT says TEXT in its place
/new         begin a new talk
/load N      go on with the Nth talk, a talk by its name, or a file; /load lists the talks
/save FILE   go on in another file
/explain     show the exact prompt of the last reply
/help        show this list
/quit        leave; so does Ctrl-D

Alt-Enter begins a new line in a message. Ctrl-C stops a reply or clears the line; twice, it leaves."""


_WIDE = r"\u1100-\u115f\u2e80-\uffdc\U0001f300-\U0003ffff"
#: Punctuation that a line does not end with, and that none begins with.
_OPENING = r"“‘「『（《〈【〔〖［｛"
_CLOSING = r"”’」』）》〉】〕〗］｝、。，．：；？！…·～ー々!?,.:;)%\]}"
#: What lines are broken between: words with the blanks in front of them, and wide characters, with their punctuation.
_UNIT = re.compile(rf" *[{_OPENING}]*(?:[{_WIDE}]|[^\s{_WIDE}]+)[{_CLOSING}]*| +|\s")


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
        self._write = write
        self._columns = columns
        self._held = ""
        self._column = 0

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
            unit = f"\n{words}"
            cells = cell_len(words)
            self._column = 0
        # A word that is longer than a line is broken by the terminal.
        self._column += cells if cells <= self._columns else (cells - 1) % self._columns + 1
        return unit


class Terminal:
    """A chat in the terminal, which is kept after each reply. Without a terminal, each line of the input is a turn.

    Args:
        player: Who to talk to.
        source: Where the role is from, which decides where talks are kept.
        settings: How talks begin and go on.
        resume: Go on with the last talk.
    """

    def __init__(self, player: RolePlayer, source: str | Path, settings: TalkSettings, *, resume: bool = False) -> None:
        self._session: PromptSession[str] | None = None
        if sys.stdin.isatty():
            keys = KeyBindings()
            keys.add("escape", "enter")(_insert_newline)
            self._session = PromptSession(key_bindings=keys, output=create_output(always_prefer_tty=True))
        self._settings = settings
        self._folder = choose_talk_folder(source, player.role)
        talks = list_talks(self._folder)
        if resume and not talks:
            raise SettingsError(f"there is no talk with {player.role} yet; drop --resume")
        self._open(player, talks[0] if resume else None)
        if talks and not resume:
            self._tell(f"The last talk is {talks[0]}; /load 1 or --resume goes on with it.")

    def _open(self, player: RolePlayer, path: Path | None = None) -> None:
        """Begin a talk, or go on with one."""
        self._chat = chat = Chat(player, path or choose_talk_path(self._folder), self._settings)
        self._tell(f"You are talking to {player.role}. /help lists the commands. The talk is kept in {chat.talk.path}.")
        self._tell(chat.note)
        names = {"user": chat.player.part.user_name, "assistant": player.role}
        for turn in chat.turns[-2:]:
            self._say(f"{names[turn.role]}: {turn.content}", is_turn=True)
        if not chat.message and len(player.part.greetings) > 1:
            self._tell("There are more greetings: /swipe shows them all.")

    def run(self) -> None:
        """Talk until the user leaves.

        Raises:
            SettingsError: When the talk cannot be saved.
        """
        is_leaving = self._session is None
        while True:
            try:
                line = self._ask()
                is_leaving = self._session is None
                if line.partition(" ")[0] == "/quit":
                    break
                if line:
                    self._do(line)
            except RoleLLMError as error:
                self._say(f"error: {error}")
            except EOFError:
                break
            except KeyboardInterrupt:
                if is_leaving and not (self._session and self._session.default_buffer.text):
                    break
                is_leaving = True
                self._tell("Ctrl-C again leaves.")
        self._end()

    def _ask(self, text: str = "") -> str:
        """Read a message, which begins as this text."""
        if self._session is None:
            return input().strip()
        return self._session.prompt(f"{self._chat.player.part.user_name}: ", default=text).strip()

    def _do(self, line: str) -> None:
        command, _, argument = line.partition(" ")
        argument = argument.strip()
        match command:
            case "/role" if argument:
                player = self._chat.player.with_role(argument)
                self._end()
                self._folder = choose_talk_folder(argument, player.role)
                self._open(player)
            case "/new":
                self._end()
                self._open(self._chat.player)
            case "/load":
                self._load(argument)
            case "/swipe":
                self._swipe(argument)
            case "/retry":
                self._show_reply(lambda: self._chat.retry(stream=True))
            case "/edit":
                if not self._chat.message:
                    raise SettingsError("there is no message yet; say something first")
                if text := argument or self._ask(self._chat.message):
                    self._show_reply(lambda: self._chat.retry(text, stream=True))
            case "/save" if argument:
                self._say(f"saved to {self._chat.save(argument)}")
            case "/explain":
                self._say(self._chat.explain())
            case "/help":
                self._say(_HELP)
            case "/role" | "/save":
                raise SettingsError(f"{command} needs a word after it; /help shows how to use it")
            case _ if command.startswith("/"):
                raise SettingsError(f"there is no command {command}; /help lists the commands")
            case _:
                self._show_reply(lambda: self._chat.say(line, stream=True))

    def _show_reply(self, start: Callable[[], str | Iterator[str]]) -> None:
        lines = Wrapper(_write, _get_width())
        try:
            summary = self._chat.talk.summary
            pieces = start()
            if self._chat.talk.summary != summary:
                self._tell(f"What {self._chat.player.role} remembers of earlier turns: {self._chat.talk.summary}")
            lines.put(make_visible(f"{self._chat.player.role}: "))
            for piece in pieces:
                lines.put(self._make_visible(piece))
            if self._chat.note:
                lines.put(make_visible(f" [{self._chat.note}]"))
        except KeyboardInterrupt:
            lines.put(" [stopped]")
        finally:
            lines.end()
            _write("\n")

    def _load(self, argument: str) -> None:
        talks = list_talks(self._folder)
        if not argument:
            for number, path in enumerate(talks, start=1):
                self._say(f"{number}  {path.stem}  {describe_talk(path)}")
            return
        names = {str(number): path for number, path in enumerate(talks, start=1)}
        names |= {path.stem: path for path in talks}
        path = names.get(argument, Path(argument))
        if not path.is_file():
            raise SettingsError(f"no talk in {argument}; /load lists the talks")
        self._open(self._chat.player, path)

    def _swipe(self, argument: str) -> None:
        chat = self._chat
        turns = chat.talk.turns
        if not turns:
            raise SettingsError("nothing was said yet; say something first")
        swipes = dict(enumerate(list_swipes(turns[-1]), start=1))
        if not argument:
            for number, text in swipes.items():
                self._say(f"{number}  {text}", is_turn=True)
            return
        if not argument.isdecimal() or int(argument) not in swipes:
            raise SettingsError(f"reply {argument} does not exist here; choose 1 to {len(swipes)}")
        text = swipes[int(argument)]
        chat.talk.change(len(turns) - 1, text)
        self._say(f"{chat.player.role}: {text}", is_turn=True)
        self._tell(chat.talk.write())

    def _end(self) -> None:
        talk = self._chat.talk
        if not talk.is_kept:
            raise SettingsError(f"the talk is not kept, or not its last turns: {talk.path} could not be written")
        if talk.path is not None and talk.path.exists():
            self._tell(f"The talk is in {talk.path}.")

    def _make_visible(self, turn: str) -> str:
        """A turn that does not steer the terminal; without a terminal it is one line."""
        text = make_visible(turn)
        return text if self._session else text.replace("\n", " ")

    def _say(self, text: str, *, is_turn: bool = False) -> None:
        """Print what may be a model's or a card's: nothing in it steers the terminal."""
        _print(_write, self._make_visible(text) if is_turn else make_visible(text))

    def _tell(self, text: str) -> None:
        """Print what is no part of the talk."""
        if text:
            _print(sys.stderr.write, make_visible(text))


def _insert_newline(event: KeyPressEvent) -> None:
    event.current_buffer.insert_text("\n")


def _print(write: Callable[[str], object], text: str) -> None:
    lines = Wrapper(write, _get_width())
    lines.put(f"{text}\n")
    lines.end()


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
