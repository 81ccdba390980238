"""The page of ``rolellm chat --web``: a role, or two side by side on the same messages, and a blind vote on replies.

Votes are kept as a judging run without judges (`rolellm.judging.folder`), so that ``rolellm agreement`` reads them: a
row for each vote, both replies to its message, and who was preferred.
"""

from __future__ import annotations

import copy
import html
import logging
import os
import random
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import gradio as gr
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from rolellm.core.errors import RoleLLMError, SettingsError
from rolellm.core.files import write_json
from rolellm.core.records import Row
from rolellm.core.sanitize import visible
from rolellm.core.text import find_name
from rolellm.judging.folder import RESULT, read_run, write_comparison, write_judgements, write_manifest
from rolellm.judging.people.labels import RankingLabel, append_label, check_annotator, content_hash, label_path
from rolellm.judging.types import Comparison, System
from rolellm.llm.model import user
from rolellm.models.local_model import LocalModel
from rolellm.playing.player import Chat, RolePlayer
from rolellm.playing.roles import Part, rolebench_roles
from rolellm.runtime.locks import locked

_HOST: Final = "127.0.0.1"
#: Seconds between two views of a reply (our choice): each is sent, and drawn, whole.
_PAUSE: Final = 0.1
#: Places for a vote, by its button.
_RANKS: Final = {"Left is better": (1.0, 2.0), "Equal": (1.5, 1.5), "Right is better": (2.0, 1.0)}


@dataclass
class _Talk:
    """A talk of the page.

    Attributes:
        names: Who is on each side, as votes name them.
        chats: What each side saw; in a blind talk the sides are in random order.
        hidden: Whether the page does not know the names.
        text: The last message; ``again`` when it is said again.
        open: The sides that are yet to reply to it.
        replied: Those that have, and ``ready``: when the last of them had.
    """

    names: tuple[str, ...]
    chats: tuple[Chat, ...]
    hidden: bool
    text: str = ""
    again: bool = False
    open: set[int] = field(default_factory=set)
    replied: set[int] = field(default_factory=set)
    ready: float = 0.0

    @property
    def shown(self) -> tuple[str, ...]:
        """What the page calls the sides."""
        return ("Left", "Right") if self.hidden else tuple(map(visible, self.names))


def _is_ours(record: logging.LogRecord) -> bool:
    """Whether a log record is not about a browser that left between two streams, for which Gradio raises a 404."""
    raised = record.exc_info[1] if record.exc_info else None
    cause = raised and raised.__cause__
    return not (isinstance(cause, HTTPException) and cause.status_code == 404)


class TalkPage:
    """The page.

    Args:
        models: By name, who plays; each plays the first role at the start.
        votes: The folder of the votes.
        annotator: Who votes.

    Raises:
        SettingsError: When the folder is not one of votes.
        DataError: For damaged votes.
    """

    def __init__(self, models: Mapping[str, RolePlayer], votes: Path, annotator: str) -> None:
        self.models, self.votes, self.annotator = models, votes, check_annotator(annotator)
        first = next(iter(models.values()))
        self.roles = {first.role: first.part}
        for name, sheet in rolebench_roles().items():
            self.roles.setdefault(find_name(name, self.roles) or name, Part(sheet))
        # Asked of the server once, for all talks.
        self.contexts = [player.context for player in models.values()]
        _kept(votes)
        # One model of this machine answers once at a time.
        self._turns = {id(one.model): threading.Lock() for one in models.values() if isinstance(one.model, LocalModel)}

    @contextmanager
    def serve(self, *, port: int = 0, share: bool = False) -> Iterator[str]:
        """Serve the page while the block runs.

        Args:
            port: 0 for any that is free.
            share: Give it a public address, through a server of Gradio's.

        Yields:
            Where the page is.

        Raises:
            SettingsError: When the port cannot be had.
        """
        try:
            with socket.create_server((_HOST, port)) as free:
                port = free.getsockname()[1]
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else error
            raise SettingsError(f"port {port} is not available ({reason}); omit --port to use any free port") from error
        # No other name that is pointed at this machine gets in.
        hosts = Middleware(TrustedHostMiddleware, allowed_hosts=["*"] if share else [_HOST, "localhost"])
        logging.getLogger("uvicorn.error").addFilter(_is_ours)
        page = self._page()
        _, url, public = page.launch(
            server_name=_HOST,
            server_port=port,
            share=share,
            app_kwargs={"middleware": [hosts]},
            prevent_thread_lock=True,
            quiet=True,
            inline=False,
            ssr_mode=False,
            mcp_server=False,
            enable_monitoring=False,
            run_history=False,
            footer_links=[],
            css=".message-content { white-space: pre-wrap; }",
            theme=gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["monospace"]),
        )
        try:
            yield public or url
        finally:
            page.close(verbose=False)

    def _page(self) -> Any:
        """All that is shown, and what happens when something is pressed."""
        roles, models = list(self.roles), list(self.models)
        two = len(models) > 1
        quick = {"show_progress": "hidden", "concurrency_limit": None}
        with gr.Blocks(title="Talk to a role", analytics_enabled=False, fill_height=True) as page:
            talk, choice = gr.State(), []
            with gr.Row():
                for who, whose, options, model in (
                    ("Role", "Model", roles, models[0]),
                    ("Second role", "Second model", [("nobody", ""), *roles], models[-1]),
                ):
                    start = roles[0] if two or who == "Role" else ""
                    with gr.Column():
                        with gr.Row():
                            role = gr.Dropdown(options, value=start, label=who)
                            choice += [role, gr.Dropdown(models, value=model, label=whose, visible=two)]
                        about = gr.Textbox(self._about(start), max_lines=2, container=False, interactive=False)
                    role.change(self._about, role, about, **quick)
            with gr.Row():
                blind = gr.Checkbox(label="Blind, to vote")
                new = gr.Button("New talk", size="sm")
            with gr.Row(scale=1):
                plain = {"render_markdown": False, "latex_delimiters": [], "group_consecutive_messages": False}
                sides = [gr.Chatbot(buttons=[], height="46vh", **plain) for _ in range(2)]
            with gr.Row(visible=False) as votes:
                buttons = [gr.Button(label) for label in _RANKS]
            with gr.Row():
                text = gr.Textbox(placeholder="Say something", show_label=False, submit_btn="Send", scale=8)
                again = gr.Button("Retry")
            transcript = gr.Textbox(label="Transcript", max_lines=3, buttons=["copy"], interactive=False)
            shown, replies = [votes, transcript, *sides], []
            for trigger, repeat in ((text.submit, False), (again.click, True)):
                asked = trigger(partial(self._say, repeat), [talk, text], [votes, text], **quick)
                for place, side in enumerate(sides):
                    reply = asked.success(partial(self._reply, place), talk, side, **quick)
                    reply.then(self._ended, talk, [votes, transcript], **quick)
                    replies.append(reply)
            starts = [page.load, new.click, *(side.clear for side in sides)]
            gr.on(starts, self._begin, [*choice, blind], [talk, *shown], cancels=replies, **quick)
            for button, ranks in zip(buttons, _RANKS.values(), strict=True):
                button.click(partial(self._vote, ranks), talk, shown, **quick)
        return page

    def _about(self, role: str) -> str:
        return visible(self.roles[role].sheet.described() or "") if role else ""

    def _begin(self, role: str, model: str, second: str, second_model: str, blind: bool) -> tuple[Any, ...]:
        """A new talk."""
        asked = [(role, model), (second, second_model)][: 2 if second else 1]
        if asked[1:] == asked[:1]:
            raise _problem("the two sides are the same; choose another role or another model for one of them")
        if blind:
            random.shuffle(asked)
        same = role == second
        names = tuple(plays if same else f"{who} by {plays}" for who, plays in asked)
        talk = _Talk(names, tuple(Chat(self._player(*one)) for one in asked), blind and len(asked) == 2)
        return talk, *self._ended(talk), *_named(talk, *map(_said, talk.chats))

    def _player(self, role: str, model: str) -> RolePlayer:
        player = self.models[model].as_role(self.roles[role])
        if not isinstance(player.model, LocalModel):
            # A model behind an API has its connections to itself: sides are answered at the same time.
            player.model = copy.copy(player.model)
        return player

    def _say(self, again: bool, talk: _Talk | None, text: str) -> tuple[Any, str]:
        """A message to all sides, or the last one again."""
        if talk is None or talk.open:
            raise _problem("the last message is still being answered, or the talk is gone; wait or start a new one")
        if not (talk.text if again else text.strip()):
            raise _problem("there is nothing to say; type a message")
        talk.text, talk.again = talk.text if again else text, again
        talk.open, talk.replied = set(range(len(talk.chats))), set()
        return gr.update(visible=False), text if again else ""

    def _reply(self, side: int, talk: _Talk) -> Iterator[Any]:
        """What a side shows as its reply arrives; a browser that leaves ends the work with the next piece."""
        if side not in talk.open:
            yield gr.skip()
            return
        chat, said, problem, due = talk.chats[side], "", "", 0.0
        asked, before = _message("user", talk.text), _said(chat)
        again = talk.again and chat.turns[-2:-1] == [user(talk.text)]
        try:
            with self._turns.get(id(chat.player.model), nullcontext()):
                pieces: Any = chat.retry(stream=True) if again else chat.say(talk.text, stream=True)
                before = _said(chat)
                with closing(pieces):
                    for piece in pieces:
                        said += piece
                        if time.monotonic() > due:
                            due = time.monotonic() + _PAUSE
                            yield [*before, asked, _message("assistant", said)]
            if chat.prompt is not None and (chat.prompt.dropped or chat.prompt.dropped_lore):
                problem = "The context is full: earlier turns or lore are left out."
            problem = problem or chat.note
            if not said:
                raise SettingsError("the reply is empty; say it again or something else")
            talk.replied.add(side)
            talk.ready = time.monotonic()
        except RoleLLMError as error:
            # The reason names the model.
            problem = "There was no reply; a talk that is not blind says why." if talk.hidden else str(error)
        finally:
            talk.open.discard(side)
        yield [*before, asked, *(_message("assistant", one) for one in (said, f"⚠ {problem}") if one.strip("⚠ "))]

    def _ended(self, talk: _Talk) -> tuple[Any, str]:
        """Whether there is something to vote on, and the transcript."""
        turns = [
            f"{name if turn.role == 'assistant' else 'You'}: {visible(turn.content)}"
            for name, chat in zip(talk.shown, talk.chats, strict=True)
            for turn in chat.turns
        ]
        return gr.update(visible=talk.hidden and len(talk.replied) == 2), "\n\n".join(turns)

    def _vote(self, ranks: tuple[float, float], talk: _Talk | None) -> tuple[Any, ...]:
        """Keep a vote, and say who was on which side."""
        if talk is None or not talk.hidden or len(talk.replied) < 2:
            raise _problem("there is nothing to vote on; start a blind talk and wait for both replies")
        question, first, second = talk.chats[0].turns[-2].content, *(chat.turns[-1].content for chat in talk.chats)
        parts = [chat.player.part.sheet for chat in talk.chats]
        answers = dict(zip(talk.names, (first, second), strict=True))
        roles = sorted({part.role for part in parts})
        about = parts[0].described() if len(roles) == 1 else None
        row = Row("", " / ".join(roles), parts[0].language, "general", question, (), role_description=about)
        seconds = round(time.monotonic() - talk.ready, 1)
        try:
            _keep(self.votes, row, answers, RankingLabel("", self.annotator, talk.names, ranks, seconds, ""))
        except RoleLLMError as error:
            raise _problem(str(error)) from error
        talk.hidden = False
        return *self._ended(talk), *_named(talk)


def _named(talk: _Talk, *said: list[dict[str, Any]]) -> list[Any]:
    """The two sides with who is on them, and what was said."""
    given = [{"value": value} for value in said] or [{}, {}]
    sides = [gr.update(label=name, visible=True, **one) for name, one in zip(talk.shown, given, strict=False)]
    return [*sides, gr.update(visible=False)][:2]


def _said(chat: Chat) -> list[dict[str, Any]]:
    return [_message(turn.role, turn.content) for turn in chat.turns]


def _message(role: str, text: str) -> dict[str, Any]:
    # A string would lose its indent, and without Markdown, Gradio still takes a text for HTML.
    return {"role": role, "content": [{"type": "text", "text": html.escape(visible(text), quote=False)}]}


def _problem(text: str) -> Any:
    """A sentence that the page shows; Gradio takes it for HTML."""
    return gr.Error(html.escape(visible(text)), print_exception=False)


def _kept(folder: Path) -> Comparison:
    """The votes in a folder so far."""
    if not (folder / RESULT).is_file():
        if folder.exists() and any(one.name != ".lock" for one in folder.iterdir()):
            raise SettingsError(f"{folder} holds other files; name another folder with --votes")
        return Comparison([], [], {})
    run = read_run(folder)
    if not run.manifest.get("votes"):
        raise SettingsError(f"{folder} is a run with judges, not a folder of votes; name another one with --votes")
    return run.comparison


def _keep(folder: Path, row: Row, answers: Mapping[str, str], label: RankingLabel) -> None:
    with locked(folder):
        before = _kept(folder)
        row = replace(row, id=f"vote-{len(before.rows) + 1:05}")
        label = replace(label, row=row.id, answers=content_hash(row, answers))
        names = list(dict.fromkeys([*(one.name for one in before.systems), *answers]))
        given = {name: dict(before.answers.get(name, {})) for name in names}
        for name, text in answers.items():
            given[name][row.id] = text
        comparison = Comparison([*before.rows, row], [System(name) for name in names], given)
        write_manifest(folder, {"votes": True, "systems": [asdict(one) for one in comparison.systems]})
        write_comparison(folder, comparison)
        write_judgements(folder, ())
        append_label(label_path(folder, label.annotator, RankingLabel), label)
        write_json(folder / RESULT, {})
