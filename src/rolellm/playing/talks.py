"""Talks as files, in the format of SillyTavern's chats: JSON Lines, whole after each turn.

The first line says who talks. Each other line is a turn: ``mes`` is its text, ``swipes`` has all replies that the role
gave there, and ``swipe_id`` is the place of the one that stands. So ``rolellm prefer`` and ``rolellm train`` read a
talk, SillyTavern opens it, and its chats can be loaded; what only others understand stays as it is. Ours is ``memory``:
a summary of all up to that turn.
"""

from __future__ import annotations

import copy
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rolellm.characters.folder import PROFILE
from rolellm.characters.roles import Part
from rolellm.core.errors import DataError, SettingsError
from rolellm.core.jsonl import read_jsonl, write_jsonl
from rolellm.core.sanitize import label
from rolellm.core.text import fold, make_safe_name, replace_surrogates
from rolellm.llm.model import Message, assistant, user

TALKS: Final = "talks"
#: The header's keys for the names of the user and of the role.
_NAMES: Final = {"user_name": True, "character_name": False}
#: The key of who the user is, in what SillyTavern keeps of a header.
_PERSONA: Final = "rolellm_persona"
#: Columns of a message that describes a talk.
_WIDTH: Final = 60


def choose_talk_folder(source: str | Path, role: str) -> Path:
    """Choose where talks with a role are kept: in its own folder, else in the user's data directory."""
    if Path(source, PROFILE).is_file():
        return Path(source, TALKS)
    home = Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser()
    return home / "rolellm" / TALKS / make_safe_name(role)


def choose_talk_path(folder: Path) -> Path:
    """Choose the file of a new talk."""
    return folder / f"{datetime.now():%Y%m%d-%H%M%S-%f}.jsonl"


def list_talks(folder: Path) -> list[Path]:
    """List a folder's talks, the last one first."""
    return sorted(folder.glob("[!.]*.jsonl"), key=_get_stamp, reverse=True)


def describe_talk(path: Path) -> str:
    """Describe a talk by the beginning of the user's first message."""
    try:
        texts = [str(line.get("mes")) for _, line in read_jsonl(path, bad=[]) if line.get("is_user")]
    except (OSError, DataError):
        return ""
    return label(texts[0], _WIDTH) if texts else ""


class Talk:
    """A talk.

    Args:
        header: Who talks.
        lines: Turns, as SillyTavern has them, and whatever else is in a chat.
        path: The file; ``None`` for none.

    Attributes:
        header: Who talks.
        path: The file.
        is_kept: Whether it could be written last time.
    """

    def __init__(self, header: dict[str, Any], lines: list[dict[str, Any]], path: Path | None = None) -> None:
        self.header = header
        self.path = path
        self.is_kept = True
        self._lines = lines
        self._stamp = 0
        header.setdefault("chat_metadata", {})
        for key, is_user in _NAMES.items():
            names = [turn.get("name") for turn in self.turns if bool(turn.get("is_user")) is is_user]
            # So SillyTavern writes, and means the names of the turns.
            if header.get(key, "unused") == "unused":
                header[key] = names[0] if names else ""

    @classmethod
    def begin(cls, part: Part, path: Path | None, greeting: int) -> Talk:
        """Begin a talk with a role's greeting, whose swipes are the alternate ones.

        Raises:
            SettingsError: When there is no such greeting.
        """
        greetings = part.greetings
        if greeting > max(1, len(greetings)):
            raise SettingsError(
                f"there is no greeting {greeting}: {part.sheet.role} has {len(greetings)}; choose another, such as 1"
            )
        talk = cls({"user_name": "", "character_name": part.sheet.role}, [], path)
        talk.set_user(part)
        if greetings:
            talk.add(assistant(greetings[greeting - 1]))
            talk.turns[0].update(swipes=list(greetings), swipe_id=greeting - 1)
        return talk

    @classmethod
    def read(cls, path: Path, part: Part) -> tuple[Talk, str]:
        """Read a talk with a role; also give what is wrong with the file, empty for nothing.

        A talk with broken lines goes on without them in a new file, and this one stays as it is.

        Raises:
            DataError: For a file that is not a talk.
            SettingsError: For a file that cannot be read, or a talk with another role.
        """
        bad: list[DataError] = []
        try:
            values = [value for _, value in read_jsonl(path, bad=bad)]
        except OSError as error:
            raise SettingsError(f"no talk in {path} ({error.strerror}); /load lists the talks") from error
        if not values or {"character_name", "chat_metadata"}.isdisjoint(values[0]):
            raise DataError("not a talk: the first line does not say who talks", path=path)
        talk = cls(values[0], values[1:], path)
        role = part.sheet.role
        name = talk.header["character_name"]
        if fold(str(name)) not in map(fold, part.sheet.names):
            raise SettingsError(f"{path} is a talk with {name}, not with {role}; name one with {role}")
        names = {str(turn.get("name")) for turn in talk.turns if not turn.get("is_user")}
        if len(names) > 1:
            speakers = ", ".join(sorted(names))
            raise SettingsError(f"{path} is a group's talk ({speakers}); a group talks through `rolellm serve`")
        if bad:
            return talk, f"{bad[0]}. The talk goes on without it"
        talk._stamp = _get_stamp(path)
        return talk, ""

    @property
    def user(self) -> tuple[str, str]:
        """The name of whoever talks to the role, and who that is; each may be empty."""
        return str(self.header["user_name"]), str(self.header["chat_metadata"].get(_PERSONA, ""))

    def set_user(self, part: Part) -> None:
        """Set who talks to the role."""
        self.header["user_name"] = part.user_name
        self.header["chat_metadata"][_PERSONA] = part.persona

    @property
    def summary(self) -> str:
        """The last summary; empty where there is none."""
        memories = [str(turn["memory"]) for turn in self.turns if "memory" in turn]
        return memories[-1] if memories else ""

    @property
    def turns(self) -> list[dict[str, Any]]:
        """What is said: lines with a text, but for hidden ones."""
        return [line for line in self._lines if isinstance(line.get("mes"), str) and not line.get("is_system")]

    @property
    def messages(self) -> list[Message]:
        """The turns as a prompt has them."""
        return [(user if turn.get("is_user") else assistant)(turn["mes"]) for turn in self.turns]

    @property
    def is_current(self) -> bool:
        """Whether nobody else has changed the file since it was read or written."""
        return self.path is None or _get_stamp(self.path) == self._stamp

    def add(self, *messages: Message) -> None:
        """Add turns."""
        for message in messages:
            is_user = message.role == "user"
            name = self.header["user_name" if is_user else "character_name"]
            date = datetime.now(UTC).isoformat()
            text = replace_surrogates(message.content)
            self._lines.append({"name": name, "is_user": is_user, "send_date": date, "mes": text})

    def change(self, index: int, text: str) -> None:
        """Change a turn's text. Of the role's turns, earlier texts are kept as swipes; summaries of it are dropped."""
        turn = self.turns[index]
        text = replace_surrogates(text)
        if not turn.get("is_user"):
            swipes = list(dict.fromkeys([*list_swipes(turn), text]))
            turn |= {"swipes": swipes, "swipe_id": swipes.index(text)}
        turn["mes"] = text
        for later in self.turns[index:]:
            later.pop("memory", None)

    def cut(self, count: int) -> None:
        """Keep the first turns only."""
        for turn in self.turns[count:]:
            self._lines = [line for line in self._lines if line is not turn]

    def branch(self, count: int, path: Path | None = None) -> Talk:
        """Copy the first turns to a talk of their own, by default in a new file next to this one."""
        talk = copy.deepcopy(self)
        talk.cut(count)
        talk._move(path)
        return talk

    def write(self) -> str:
        """Write the file, complete or not at all, and give what is wrong; empty for nothing.

        A file that is broken, or that others have changed since, stays as it is: the talk goes on in a new one.
        """
        if self.path is None:
            return ""
        fault = ""
        if not self.is_current:
            old = self.path
            self._move()
            fault = f"{old} is broken or was changed meanwhile and stays as it is; the talk goes on in {self.path}"
        try:
            write_jsonl(self.path, [self.header, *self._lines])
        except (OSError, SettingsError) as error:
            self.is_kept = False
            return f"the talk is not kept ({error}); fix that, or save it elsewhere"
        self.is_kept = True
        self._stamp = _get_stamp(self.path)
        return fault

    def _move(self, path: Path | None = None) -> None:
        if path is None and self.path is not None:
            path = choose_talk_path(self.path.parent)
        self.path = path
        self._stamp = 0


def list_swipes(turn: dict[str, Any]) -> list[str]:
    """List the texts that a turn has had."""
    swipes = turn.get("swipes") or []
    return swipes if turn["mes"] in swipes else [*swipes, turn["mes"]]


def _get_stamp(path: Path) -> int:
    """When a file was changed; 0 where there is none."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
