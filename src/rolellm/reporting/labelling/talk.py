"""The page of ``rolellm chat --web``: talks with a role, or with two models and a blind vote on their replies.

All that it shows is in the talks' files (`rolellm.playing.talks`). Votes are kept as a judging run without judges
(`rolellm.judging.records`), for ``rolellm label --agreement``: a row for each vote, both replies to its message, and
which was preferred.
"""

from __future__ import annotations

import random
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import asdict
from html import escape
from pathlib import Path
from threading import Lock
from typing import Any

import gradio as gr

from rolellm.characters.folder import find_picture
from rolellm.core.errors import RoleLLMError, SettingsError
from rolellm.core.fingerprint import hash_json
from rolellm.core.locks import lock_folder
from rolellm.core.records import Row
from rolellm.judging.people.labels import Label, append_label, check_annotator, hash_content, label_path
from rolellm.judging.records import RESULT, Comparison, System, read_run, write_run
from rolellm.llm.model import Message, assistant, user
from rolellm.playing.player import Chat, RolePlayer
from rolellm.playing.settings import TalkSettings
from rolellm.playing.talks import choose_talk_folder, choose_talk_path, describe_talk, list_swipes, list_talks

#: Seconds between two views of a reply: each is sent, and drawn, whole.
_PAUSE = 0.1
#: Seconds to wait for the end of a reply that was stopped.
_PATIENCE = 5.0
_View = dict[Any, Any]


class TalkPage:
    """The page.

    Args:
        players: By name, one or two models that play one role.
        source: Where the role is from, which decides where talks are kept.
        settings: How talks begin and go on.
        votes: The folder of the votes.
        annotator: Who votes.
        resume: Show the last talk first.

    Attributes:
        folder: The folder of the talks.

    Raises:
        SettingsError: When the folder is not one of votes, or there is no such greeting.
        DataError: For damaged votes.
    """

    def __init__(
        self,
        players: Mapping[str, RolePlayer],
        source: str | Path,
        settings: TalkSettings,
        votes: Path,
        annotator: str,
        *,
        resume: bool = False,
    ) -> None:
        self._players, self._votes = players, votes
        self._annotator = check_annotator(annotator)
        self._player = next(iter(players.values()))
        self._settings = settings
        self._picture = find_picture(source)
        self.folder = choose_talk_folder(source, self._player.role)
        #: By talk, the replies that may be voted on, by model, in the order in which they were shown.
        self._shown: dict[str, dict[str, str]] = {}
        self._chats: dict[str, Chat] = {}
        self._replying = Lock()
        talks = list_talks(self.folder) if resume else []
        self._last = self._open(talks[0].name if talks else "")
        _read_votes(votes)

    def _open(self, name: str) -> Chat:
        """Open a talk by its file's name, or begin one."""
        path = self.folder / Path(name).name if name else choose_talk_path(self.folder)
        chat = self._chats.get(path.name)
        # Others may have gone on with the talk.
        if chat is None or chat.talk.path != path or not chat.talk.is_current:
            chat = self._chats[path.name] = Chat(self._player, path, self._settings)
        return chat

    def build(self) -> gr.Blocks:
        """Build the page."""
        role = self._player.role
        is_blind = len(self._players) > 1
        # What is downloaded is not copied to Gradio's cache, which stays behind.
        gr.set_static_paths(self.folder)
        with gr.Blocks(title=role, analytics_enabled=False, fill_height=True) as page:
            if is_blind:
                gr.Markdown(
                    "Two models reply, in random order. A thumb up under the better reply keeps your vote and names "
                    "its model."
                )
            with gr.Row():
                self._talks = gr.Dropdown(
                    show_label=False, container=False, allow_custom_value=True, scale=4, min_width=240
                )
                self._branch = gr.Button("Branch", size="sm", min_width=80)
                self._file = gr.DownloadButton("Download", size="sm", min_width=80)
            self._summary = gr.Textbox(label=f"What {role} remembers of earlier turns", visible=False)
            self._chatbot = make_chatbot(
                role,
                editable="all",
                buttons=["copy", "copy_all"],
                avatar_images=(None, self._picture),
                # A thumb up is a vote.
                feedback_options=("Like",) if is_blind else (),
            )
            self._swipes = gr.Radio(type="index", show_label=False, container=False, visible=False)
            self._box = make_box("Say something")
            self._turn = gr.State()
            views = [self._talks, self._branch, self._file, self._summary, self._chatbot, self._swipes, self._turn]
            plain: Any = {"outputs": [*views, self._box], "show_progress": "hidden"}
            replying = {**plain, "concurrency_id": "reply"}
            replies = [
                self._box.submit(self.say, [self._talks, self._box], **replying),
                self._chatbot.retry(self.say, self._talks, **replying),
            ]
            self._box.stop(None, cancels=replies).then(self.show_talk, self._talks, **plain)
            page.load(lambda: self.show_talk(_get_name(self._last)), None, **plain)
            self._talks.input(self.show_talk, self._talks, **plain)
            self._chatbot.select(self.choose_turn, None, **plain)
            self._branch.click(self.branch, [self._talks, self._turn], **plain)
            self._chatbot.edit(self.edit, self._talks, **plain)
            self._swipes.input(self.swipe, [self._talks, self._swipes], **plain)
            self._chatbot.clear(lambda: self.show_talk(""), None, **plain)
            if is_blind:
                self._chatbot.like(self.vote, self._talks)
        return page

    def show(self, chat: Chat, **box: Any) -> _View:
        """Show a talk, with changes to the box in which the user types."""
        turns = chat.turns
        path = chat.talk.path
        name = _get_name(chat)
        self._last = self._chats[name] = chat
        if chat.note:
            gr.Warning(escape(chat.note))
        last = chat.talk.turns[-1] if turns else {"mes": ""}
        swipes = list_swipes(last)
        shown = self._get_shown(chat)
        if shown is not None:
            turns = [*turns[:-1], *map(assistant, shown.values())]
        files = list_talks(self.folder)
        choices = [(f"{describe_talk(file)} ({file.stem[:13]})", file.name) for file in files]
        is_kept = path in files
        choices.insert(0, ("New talk", "" if is_kept else name))
        labels = [f"Reply {number}" for number in range(1, len(swipes) + 1)]
        return {
            self._talks: gr.Dropdown(choices, value=name),
            self._chatbot: [asdict(turn) for turn in turns],
            self._file: gr.DownloadButton(value=str(path) if is_kept else None, interactive=is_kept),
            self._summary: gr.Textbox(chat.talk.summary, visible=bool(chat.talk.summary)),
            self._swipes: gr.Radio(labels, value=labels[swipes.index(last["mes"])], visible=len(swipes) > 1),
            self._branch: "Branch",
            self._turn: None,
            self._box: gr.Textbox(submit_btn=True, stop_btn=False, **box),
        }

    def _get_shown(self, chat: Chat) -> dict[str, str] | None:
        """Get the replies of the last turn that may be voted on."""
        shown = self._shown.get(_get_name(chat))
        if shown is None or chat.turns[-1].content not in shown.values():
            return None
        return shown if {*shown.values()} <= {*list_swipes(chat.talk.turns[-1])} else None

    def show_talk(self, name: str) -> _View:
        """Show a talk as it is, or a new one."""
        # What there is of a reply that was stopped, or left by a reload, is kept first.
        if self._replying.acquire(timeout=_PATIENCE):
            self._replying.release()
        try:
            return self.show(self._open(name))
        except RoleLLMError as error:
            raise gr.Error(escape(str(error)), print_exception=False) from error

    def say(self, name: str, message: str | None = None) -> Iterator[_View]:
        """Yield views as replies arrive, one model after the other, in random order.

        Args:
            name: The talk.
            message: What the user says; by default the last message again.
        """
        names = random.sample(list(self._players), len(self._players))
        with self._replying:
            chat = self._open(name)
            turns = chat.turns
            text = message or chat.message
            if message is not None:
                turns.append(user(message))
            elif turns and turns[-1].role == "assistant":
                turns.pop()
            try:
                replies = yield from self._reply(chat, names, turns, message)
            except RoleLLMError as error:
                # The reason may name the model.
                reason = "there was no reply; ask each model alone to learn why" if len(names) > 1 else str(error)
                gr.Warning(escape(reason))
            else:
                text = ""
                if len(names) > 1:
                    self._shown[_get_name(chat)] = dict(zip(names, replies, strict=True))
            yield self.show(chat, value=text)

    def _reply(
        self, chat: Chat, names: list[str], turns: list[Message], message: str | None
    ) -> Generator[_View, None, list[str]]:
        replies: list[str] = []
        for name in names:
            if len(names) > 1:
                chat.player = self._players[name].with_role(chat.player.part)
            pieces = chat.say(message, stream=True) if message is not None and not replies else chat.retry(stream=True)
            if chat.prompt is not None and chat.prompt.warning:
                gr.Warning(chat.prompt.warning)
            replies.append("")
            due = 0.0
            for piece in pieces:
                replies[-1] += piece
                if time.monotonic() > due:
                    due = time.monotonic() + _PAUSE
                    shown = [asdict(turn) for turn in (*turns, *map(assistant, replies))]
                    yield {self._chatbot: shown, self._box: gr.Textbox("", submit_btn=False, stop_btn=True)}
        return replies

    def edit(self, name: str, event: gr.EditData) -> _View:
        """Change any turn."""
        chat = self._open(name)
        # The second of two replies is a text of the last turn, too.
        index = min(_get_index(event), len(chat.turns) - 1)
        chat.talk.change(index, event.value)
        return self._keep(chat)

    def swipe(self, name: str, swipe: int) -> _View:
        """Let another of the last turn's texts stand."""
        chat = self._open(name)
        chat.talk.change(len(chat.turns) - 1, list_swipes(chat.talk.turns[-1])[swipe])
        return self._keep(chat)

    def _keep(self, chat: Chat, **box: Any) -> _View:
        chat.note = chat.talk.write()
        return self.show(chat, **box)

    def choose_turn(self, event: gr.SelectData) -> _View:
        """Choose the turn to branch after."""
        turn = _get_index(event)
        return {self._turn: turn, self._branch: f"Branch after {turn + 1}"}

    def branch(self, name: str, turn: int | None) -> _View:
        """Copy a talk, up to the turn that was clicked, and go on with the copy."""
        chat = self._open(name)
        turns = chat.turns[: None if turn is None else turn + 1]
        # A message without its reply is typed again.
        message = turns.pop().content if turns and turns[-1].role == "user" else ""
        chat.talk = chat.talk.branch(len(turns))
        return self._keep(chat, value=message)

    def vote(self, name: str, like: gr.LikeData) -> None:
        """Keep a vote for a reply, which then stands, and name its model."""
        chat = self._open(name)
        shown = self._get_shown(chat)
        last = len(chat.turns) - 1
        preferred = _get_index(like) - last
        if shown is None or preferred not in (0, 1):
            raise gr.Error("there is no vote on this reply; say something and wait for both replies")
        best = list(shown)[preferred]
        chat.talk.change(last, shown[best])
        chat.talk.write()
        sheet = self._player.part.sheet
        digest = hash_json([chat.message, *sorted(shown.values())])
        row_id = f"vote-{digest[:12]}"
        about = sheet.full_description
        row = Row(row_id, sheet.role, sheet.language, "general", chat.message, (), role_description=about)
        said = {"place of A": str(1 + preferred), "place of B": str(2 - preferred)}
        label = Label(row.id, tuple(shown), said, hash_content(row, shown))
        try:
            _append_vote(self._votes, row, shown, label, self._annotator)
        except RoleLLMError as error:
            raise gr.Error(escape(str(error)), print_exception=False) from error
        gr.Info(escape(f"Vote kept in {self._votes}: {best} is better."))


def make_chatbot(label: str, **more: Any) -> gr.Chatbot:
    """Make the view of a talk."""
    return gr.Chatbot(label=label, scale=1, latex_delimiters=[], group_consecutive_messages=False, **more)


def make_box(placeholder: str) -> gr.Textbox:
    """Make the box in which a person types."""
    return gr.Textbox(show_label=False, container=False, placeholder=placeholder, submit_btn=True, autofocus=True)


def _get_name(chat: Chat) -> str:
    return chat.talk.path.name if chat.talk.path else ""


def _get_index(event: Any) -> int:
    index = event.index
    return int(index if isinstance(index, int) else index[0])


def _read_votes(folder: Path) -> Comparison:
    """Read the votes in a folder so far."""
    if not (folder / RESULT).is_file():
        files = list(folder.iterdir()) if folder.exists() else []
        if any(file.name != ".lock" for file in files):
            raise SettingsError(f"{folder} holds other files; name another folder with --set votes=FOLDER")
        return Comparison([], [], {})
    run = read_run(folder)
    if not run.manifest.get("votes"):
        raise SettingsError(f"{folder} is a run with judges, not a folder of votes; name another: --set votes=FOLDER")
    return run.comparison


def _append_vote(folder: Path, row: Row, answers: Mapping[str, str], label: Label, annotator: str) -> None:
    with lock_folder(folder):
        before = _read_votes(folder)
        systems = {system.name: system for system in before.systems}
        all_answers = {name: dict(texts) for name, texts in before.answers.items()}
        for name, text in answers.items():
            systems[name] = System(name)
            all_answers.setdefault(name, {})[row.id] = text
        rows = [voted for voted in before.rows if voted.id != row.id]
        comparison = Comparison([*rows, row], list(systems.values()), all_answers)
        write_run(folder, comparison, votes=True)
        append_label(label_path(folder, annotator), label)
