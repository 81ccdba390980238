"""The page of ``rolellm chat --web``: a role, or two side by side on the same messages, and a blind vote on replies.

Votes are kept as a judging run without judges (`rolellm.judging.records`), for ``rolellm label --agreement``: a row for
each vote, both replies to its message, and who was preferred.
"""

from __future__ import annotations

import copy
import html
import logging
import random
import re
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import gradio as gr
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from rolellm.characters.roles import Part, load_rolebench_roles
from rolellm.core.errors import RoleLLMError, SettingsError
from rolellm.core.locks import lock_folder
from rolellm.core.records import Row
from rolellm.core.sanitize import make_visible
from rolellm.core.text import find_name
from rolellm.judging.people.labels import RankingLabel, append_label, check_annotator, hash_content, label_path
from rolellm.judging.records import RESULT, Comparison, System, read_run, write_run
from rolellm.llm.local import LocalChat
from rolellm.playing.player import Chat, RolePlayer
from rolellm.reporting.labelling.server import explain_port

_HOST: Final = "127.0.0.1"
#: The longest request that is read, in bytes (our choice).
_MAX_BODY: Final = 8 << 20
#: What Gradio itself asks for as it starts.
_STARTED: Final = "/gradio_api/startup-events"
#: What browsers ask for besides the page, and do not need.
_BESIDES: Final = ("/manifest.json", "/favicon.ico")
#: What the page sends besides asking for files.
_POSTED: Final = ("gradio_api/queue/join", "gradio_api/cancel")
#: Seconds between two views of a reply (our choice): each is sent, and drawn, whole.
_PAUSE: Final = 0.1
#: What a character does, between single asterisks on one line.
_ACTION: Final = re.compile(r"(?<![*\w])\*(?![*\s])([^*\n]+)(?<!\s)\*(?![*\w])")
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
        """Names that the page gives the sides."""
        return ("Left", "Right") if self.hidden else tuple(map(make_visible, self.names))


def _is_ours(record: logging.LogRecord) -> bool:
    """Tell whether a record is about more than a browser that left between two streams, a 404 of Gradio."""
    raised = record.exc_info[1] if record.exc_info else None
    cause = raised and raised.__cause__
    return not (isinstance(cause, HTTPException) and cause.status_code == 404)


class _Guard:
    """A filter for the page's own requests: below an address that nobody can guess, and nothing is uploaded.

    Args:
        app: What answers the others.
        token: The first part of the address.
        hosts: The server's own names, so that no other name is pointed at this machine, and no other page asks; empty
            for any.
    """

    def __init__(self, app: ASGIApp, token: str, hosts: tuple[str, ...]) -> None:
        self._app, self._token, self._hosts = app, token, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse."""
        if scope["type"] == "http" and (refusal := self._refusal(Request(scope))) is not None:
            await refusal(scope, receive, send)
            return
        await self._app({**scope, "root_path": f"/{self._token}"}, receive, send)

    def _refusal(self, request: Request) -> Response | None:
        host, origin = request.headers.get("Host", ""), request.headers.get("Origin")
        if self._hosts and (host not in self._hosts or origin not in (None, f"http://{host}")):
            return PlainTextResponse("only this server's own page may ask here", 403)
        if request.url.path == _STARTED:
            return None
        if request.url.path in _BESIDES:
            return Response('{"name": "Talk to a role"}', media_type="application/manifest+json")
        token, _, name = request.url.path.removeprefix("/").partition("/")
        if not secrets.compare_digest(token.encode(), self._token.encode()):
            return PlainTextResponse("open the address printed in the terminal", 401)
        if request.method not in ("GET", "HEAD") and name not in _POSTED:
            return PlainTextResponse("nothing is taken here", 403)
        return None


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
        for name, sheet in load_rolebench_roles().items():
            self.roles.setdefault(find_name(name, self.roles) or name, Part(sheet))
        # Asked of the server once, for all talks.
        self.contexts = [player.context for player in models.values()]
        _read_votes(votes)
        # One model of this machine answers once at a time.
        self._turns = {
            id(role_player.model): threading.Lock()
            for role_player in models.values()
            if isinstance(role_player.model, LocalChat)
        }

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
            raise explain_port(port, error) from error
        token = secrets.token_urlsafe(16)
        guards = [
            Middleware(_Guard, token=token, hosts=() if share else (f"{_HOST}:{port}", f"localhost:{port}")),
            Middleware(RequestBodyLimitMiddleware, max_body_size=_MAX_BODY),
        ]
        logging.getLogger("uvicorn.error").addFilter(_is_ours)
        page = self._page()
        _, url, public = page.launch(
            server_name=_HOST,
            server_port=port,
            share=share,
            app_kwargs={"middleware": guards},
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
            yield f"{(public or url).rstrip('/')}/{token}/"
        finally:
            page.close(verbose=False)

    def _page(self) -> Any:
        """Build all that is shown, and what happens when something is pressed."""
        roles, models = list(self.roles), list(self.models)
        two = len(models) > 1
        quick = {"show_progress": "hidden", "concurrency_limit": None}
        with gr.Blocks(title="Talk to a role", analytics_enabled=False, fill_height=True) as page:
            talk, choice = gr.State(), []
            with gr.Sidebar(label="Settings", open=False):
                for role_label, model_label, options, model in (
                    ("Role", "Model", roles, models[0]),
                    ("Second role", "Second model", [("nobody", ""), *roles], models[-1]),
                ):
                    start = roles[0] if two or role_label == "Role" else ""
                    role = gr.Dropdown(options, value=start, label=role_label)
                    choice += [role, gr.Dropdown(models, value=model, label=model_label, visible=two)]
                    about = gr.Textbox(self._about(start), max_lines=4, container=False, interactive=False)
                    role.change(self._about, role, about, **quick)
                blind = gr.Checkbox(label="Blind, to vote")
                new = gr.Button("New talk", size="sm")
                transcript = gr.Textbox(label="Transcript", max_lines=6, buttons=["copy"], interactive=False)
            with gr.Row(scale=1):
                plain = {"render_markdown": False, "latex_delimiters": [], "group_consecutive_messages": False}
                chatbots = [gr.Chatbot(buttons=[], height="68vh", **plain) for _ in range(2)]
            with gr.Row(visible=False) as votes:
                buttons = [gr.Button(label) for label in _RANKS]
            with gr.Row():
                text = gr.Textbox(
                    placeholder="Say something", show_label=False, submit_btn="Send", scale=8, min_width=140
                )
                again, stop = gr.Button("Retry", min_width=60), gr.Button("Stop", min_width=60)
            outputs, replies = [votes, transcript, *chatbots], []
            for trigger, repeat in ((text.submit, False), (again.click, True)):
                event = trigger(partial(self._say, repeat), [talk, text], [votes, text], **quick)
                for number, chatbot in enumerate(chatbots):
                    reply = event.success(partial(self._reply, number), talk, chatbot, **quick)
                    reply.then(self._ended, talk, [votes, transcript], **quick)
                    replies.append(reply)
            stop.click(self._stop, talk, [votes, transcript], cancels=replies, **quick)
            starts = [page.load, new.click, *(chatbot.clear for chatbot in chatbots)]
            gr.on(starts, self._begin, [*choice, blind], [talk, *outputs], cancels=replies, **quick)
            for button, ranks in zip(buttons, _RANKS.values(), strict=True):
                button.click(partial(self._vote, ranks), talk, outputs, **quick)
        return page

    def _about(self, role: str) -> str:
        return make_visible(self.roles[role].sheet.full_description or "") if role else ""

    def _begin(self, role: str, model: str, second: str, second_model: str, blind: bool) -> tuple[Any, ...]:
        """Begin a new talk."""
        players = [(role, model), (second, second_model)][: 2 if second else 1]
        if players[1:] == players[:1]:
            raise _make_error("the two sides are the same; choose another role or another model for one of them")
        if blind:
            random.shuffle(players)
        same = role == second
        names = tuple(plays if same else f"{role_name} by {plays}" for role_name, plays in players)
        talk = _Talk(names, tuple(Chat(self._player(*pair)) for pair in players), blind and len(players) == 2)
        return talk, *self._ended(talk), *_update_sides(talk, *map(_list_messages, talk.chats))

    def _player(self, role: str, model: str) -> RolePlayer:
        player = self.models[model].with_role(self.roles[role])
        if not isinstance(player.model, LocalChat):
            # A model behind an API has its connections to itself: sides are answered at the same time.
            player.model = copy.copy(player.model)
        return player

    def _say(self, again: bool, talk: _Talk | None, text: str) -> tuple[Any, str]:
        """Say a message to all sides, or the last one again."""
        if talk is None or talk.open:
            raise _make_error("the last message is still being answered, or the talk is gone; wait or start a new one")
        if not (talk.text if again else text.strip()):
            raise _make_error("there is nothing to say; type a message")
        talk.text, talk.again = talk.text if again else text, again
        talk.open, talk.replied = set(range(len(talk.chats))), set()
        return gr.update(visible=False), text if again else ""

    def _reply(self, number: int, talk: _Talk) -> Iterator[Any]:
        """Yield what a side shows as its reply arrives; a browser that leaves ends the work with the next piece."""
        if number not in talk.open:
            yield gr.skip()
            return
        chat, reply, problem, due = talk.chats[number], "", "", 0.0
        message, before = _make_message("user", talk.text), _list_messages(chat)
        again = talk.again and chat.message == talk.text
        try:
            with self._turns.get(id(chat.player.model), nullcontext()):
                pieces: Any = chat.retry(stream=True) if again else chat.say(talk.text, stream=True)
                before = _list_messages(chat)
                with closing(pieces):
                    for piece in pieces:
                        reply += piece
                        if time.monotonic() > due:
                            due = time.monotonic() + _PAUSE
                            yield [*before, message, _make_message("assistant", reply)]
            if chat.prompt is not None and (chat.prompt.dropped or chat.prompt.dropped_lore):
                problem = "The context is full: earlier turns or lore are left out."
            problem = problem or chat.note
            if not reply:
                raise SettingsError("the reply is empty; say it again or something else")
            if chat.is_answered:
                talk.replied.add(number)
                talk.ready = time.monotonic()
        except RoleLLMError as error:
            # The reason names the model.
            problem = "There was no reply; a talk that is not blind says why." if talk.hidden else str(error)
        finally:
            talk.open.discard(number)
        yield [
            *before,
            message,
            *(_make_message("assistant", content) for content in (reply, f"⚠ {problem}") if content.strip("⚠ ")),
        ]

    def _ended(self, talk: _Talk) -> tuple[Any, str]:
        """Return whether there is something to vote on, and the transcript."""
        turns = [
            f"{name if turn.role == 'assistant' else 'You'}: {make_visible(turn.content)}"
            for name, chat in zip(talk.shown, talk.chats, strict=True)
            for turn in chat.turns
        ]
        return gr.update(visible=talk.hidden and len(talk.replied) == 2), "\n\n".join(turns)

    def _stop(self, talk: _Talk) -> tuple[Any, str]:
        """Stop the replies; what is there of them stays on the page."""
        talk.open.clear()
        return self._ended(talk)

    def _vote(self, ranks: tuple[float, float], talk: _Talk | None) -> tuple[Any, ...]:
        """Keep a vote, and say who was on which side."""
        if talk is None or not talk.hidden or len(talk.replied) < 2:
            raise _make_error("there is nothing to vote on; start a blind talk and wait for both replies")
        question, first, second = talk.chats[0].turns[-2].content, *(chat.turns[-1].content for chat in talk.chats)
        parts = [chat.player.part.sheet for chat in talk.chats]
        answers = dict(zip(talk.names, (first, second), strict=True))
        roles = sorted({part.role for part in parts})
        about = parts[0].full_description if len(roles) == 1 else None
        row = Row("", " / ".join(roles), parts[0].language, "general", question, (), role_description=about)
        seconds = round(time.monotonic() - talk.ready, 1)
        try:
            _append_vote(self.votes, row, answers, RankingLabel("", self.annotator, talk.names, ranks, seconds, ""))
        except RoleLLMError as error:
            raise _make_error(str(error)) from error
        talk.hidden = False
        better = "neither is better" if ranks[0] == ranks[1] else f"{talk.names[ranks.index(1.0)]} is better"
        gr.Info(html.escape(make_visible(f"Vote kept in {self.votes}: {better}.")))
        return *self._ended(talk), *_update_sides(talk)


def _update_sides(talk: _Talk, *messages: list[dict[str, Any]]) -> list[Any]:
    """Update the two sides with who is on them, and what was said."""
    values = [{"value": value} for value in messages] or [{}, {}]
    updates = [gr.update(label=name, visible=True, **update) for name, update in zip(talk.shown, values, strict=False)]
    return [*updates, gr.update(visible=False)][:2]


def _list_messages(chat: Chat) -> list[dict[str, Any]]:
    return [_make_message(turn.role, turn.content) for turn in chat.turns]


def _make_message(role: str, text: str) -> dict[str, Any]:
    # A string would lose its indent, and without Markdown, Gradio still takes a text for HTML.
    shown = _ACTION.sub(r"<em>\1</em>", html.escape(make_visible(text), quote=False))
    return {"role": role, "content": [{"type": "text", "text": shown}]}


def _make_error(text: str) -> Any:
    """Return a sentence that the page shows; Gradio takes it for HTML."""
    return gr.Error(html.escape(make_visible(text)), print_exception=False)


def _read_votes(folder: Path) -> Comparison:
    """Read the votes in a folder so far."""
    if not (folder / RESULT).is_file():
        if folder.exists() and any(file.name != ".lock" for file in folder.iterdir()):
            raise SettingsError(f"{folder} holds other files; name another folder with --votes")
        return Comparison([], [], {})
    run = read_run(folder)
    if not run.manifest.get("votes"):
        raise SettingsError(f"{folder} is a run with judges, not a folder of votes; name another one with --votes")
    return run.comparison


def _append_vote(folder: Path, row: Row, answers: Mapping[str, str], label: RankingLabel) -> None:
    with lock_folder(folder):
        before = _read_votes(folder)
        row = replace(row, id=f"vote-{len(before.rows) + 1:05}")
        label = replace(label, row=row.id, answers=hash_content(row, answers))
        names = list(dict.fromkeys([*(system.name for system in before.systems), *answers]))
        all_answers = {name: dict(before.answers.get(name, {})) for name in names}
        for name, text in answers.items():
            all_answers[name][row.id] = text
        comparison = Comparison([*before.rows, row], [System(name) for name in names], all_answers)
        write_run(folder, comparison, votes=True)
        append_label(label_path(folder, label.annotator, RankingLabel), label)
