"""``rolellm chat`` and ``rolellm serve``: talk to a role, here or through any client of OpenAI's API."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rolellm.cli.options import with_options
from rolellm.cli.output import say
from rolellm.core.errors import SettingsError, require
from rolellm.core.settings import Advanced, Field, dump, settings
from rolellm.llm.llm import LLM, CallOptions, PlayedOptions
from rolellm.playing.settings import PlaySettings, PromptLimits, TalkSettings

if TYPE_CHECKING:
    from rolellm.playing.player import RolePlayer


@settings
class _Page:
    """Page.

    Attributes:
        web: Talk on a local page instead.
        against: With --web: a second model that replies as well, for blind votes; a folder, a Hub id, or YAML settings.
        votes: With --web: the folder of the votes, which `rolellm label --agreement` reads.
        port: With --web: port to listen on; 0 for any that is free.
        share: With --web: also give the page a public address through a Gradio server; anyone who has it can enter.
    """

    web: bool = False
    against: Advanced[str | None] = None
    votes: Advanced[Path] = Path("rolellm-votes")
    port: Advanced[int] = Field(default=0, ge=0, le=65_535)
    share: Advanced[bool] = False


@with_options
def run_chat(
    role: Annotated[str, typer.Argument(metavar="ROLE")],
    model_options: PlayedOptions,
    play_settings: PlaySettings,
    talk_settings: TalkSettings,
    page: _Page,
    resume: bool = False,
) -> None:
    """Talk to a role in the terminal or on a local page (--web).

    In the terminal, /help lists the commands. Without a terminal, each line of the input is a turn. Talks are kept in
    the character's folder, else in the user's data directory.

    Args:
        role: A character's folder, a card, or the name of a role of RoleBench.
        resume: Continue the last talk.
    """
    from rolellm.core.threads import wait_briefly

    wait_briefly()
    require("prompt_toolkit", extra="llm")
    if page.against is not None and not page.web:
        raise SettingsError("against needs --web: both models reply on the page")
    llm = make_played_llm(model_options)
    name = str(model_options.model or model_options.llm)
    if page.against == name:
        raise SettingsError("against names the same model again; name another one")
    if page.web:
        from rolellm.cli.label import prepare_gradio

        prepare_gradio()

    from rolellm.playing.player import RolePlayer
    from rolellm.playing.terminal import Terminal

    player = RolePlayer(llm, role, **dump(play_settings))
    # Its progress bar is not to appear within a talk.
    player.load()
    if not page.web:
        Terminal(player, role, talk_settings, resume=resume).run()
        return
    players = {name: player}
    if page.against is not None:
        players[page.against] = RolePlayer(page.against, player.part, **dump(play_settings))
        players[page.against].load()
    _serve_talk_page(players, role, page, talk_settings, resume)


def make_played_llm(chosen: PlayedOptions, calls: CallOptions | None = None, default: str | None = None) -> LLM:
    """Return the model that plays.

    Args:
        chosen: What the user named.
        calls: How it is called.
        default: The model where no option names one: a folder, a Hub id or a settings file.

    Raises:
        SettingsError: When none is named, or two ways to one.
    """
    from rolellm.cli.llm_options import get_scripted_models

    if not chosen.is_named:
        if default is None:
            raise SettingsError("no model is named; give --model FOLDER, --llm FILE.yaml, or --llm URL --model NAME")
        name = "llm" if Path(default).is_file() else "model"
        chosen = replace(chosen, **{name: default})
    return LLM.from_options(chosen, calls, get_scripted_models())


def _serve_talk_page(
    players: Mapping[str, RolePlayer], role: str, page: _Page, talk_settings: TalkSettings, resume: bool
) -> None:
    """Serve the page until somebody asks to stop."""
    from rolellm.cli.label import get_login, serve_until_stopped
    from rolellm.reporting.labelling.talk import TalkPage

    talk_page = TalkPage(players, role, talk_settings, page.votes, get_login(), resume=resume)
    serve_until_stopped(talk_page.build(), port=page.port, share=page.share)
    if page.votes.is_dir():
        votes = str(page.votes)
        say(f"Votes: {votes}. Next: {shlex.join(['rolellm', 'label', '--agreement', votes])}")


@with_options
def run_serve(
    roles: Annotated[list[str], typer.Argument(metavar="ROLE...")],
    model_options: PlayedOptions,
    limits: PromptLimits,
    host: Advanced[str] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8040,
    key_env: str | None = None,
    allow_origin: Advanced[list[str] | None] = None,
) -> None:
    """Serve roles to any client of OpenAI's API.

    The client's model is the name of a role. With a model on this machine, `transformers serve` is started.

    Args:
        roles: Characters' folders, cards, or names of roles of RoleBench.
        host: Address to listen on.
        port: Port to listen on; 0 for any that is free.
        key_env: Environment variable that holds the key that clients have to send.
        allow_origin: Origin whose web pages may use the server, such as http://localhost:3000; * for any; repeatable.
    """
    require("starlette", "uvicorn", "openai", extra="play")
    from rolellm.core.interrupts import handle_signals
    from rolellm.llm.settings import is_near
    from rolellm.playing import server

    key = _read_client_key(key_env)
    with ExitStack() as stack:
        listening = stack.enter_context(server.listen(host, port))
        stack.enter_context(handle_signals(_raise_interrupt))
        llm, context, ignored = stack.enter_context(_reach_model(model_options))
        limits = replace(limits, context=min(filter(None, (limits.context, context)), default=None))
        players = server.play_all(llm, roles, **dump(limits))
        if next(iter(players.values())).context is None:
            say(
                "the server does not say how long its context is; --set context=N has old turns left out",
                err=True,
            )
        near: tuple[str, ...] = ("*",)
        if is_near(host, this_machine=True):
            near = ("localhost", "127.0.0.1", "[::1]")
        if not key and "*" in near:
            say("anybody who reaches this machine can use the server; --key-env sets a key", err=True)
        model = model_options.model or ""
        plain = model
        if Path(model).is_dir():
            plain = Path(model).name
        app = server.build_application(
            players, plain=plain, key=key, hosts=near, origins=allow_origin or (), ignored=ignored
        )
        where = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}/v1"
        say(f"{', '.join(players)} at {where}. Press Ctrl-C to stop.", err=True)
        try:
            server.serve(listening, app)
        except KeyboardInterrupt:
            say("stopped", err=True)


def _read_client_key(key_env: str | None) -> str:
    key = os.environ.get(key_env, "") if key_env else ""
    if key_env and not key:
        raise SettingsError(f"the environment variable {key_env} holds no key; set it and try again")
    return key


def _reach_model(chosen: PlayedOptions) -> AbstractContextManager[tuple[LLM, int | None, Mapping[str, Any] | None]]:
    """Find the model at its server or run it here.

    The context gives it, how much it can read where known, and the fields of a request that its server ignores.
    """
    from rolellm.playing.local_server import run_transformers_serve

    if chosen.llm or not chosen.model:
        return nullcontext((make_played_llm(chosen), None, None))
    require("transformers", "fastapi", extra="train,play")
    say("starting `transformers serve` …", err=True)
    return run_transformers_serve(chosen.model)


def _raise_interrupt(*_: object) -> None:
    raise KeyboardInterrupt
