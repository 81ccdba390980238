"""``rolellm chat`` and ``rolellm serve``: talk to a role, here or through any client of OpenAI's API."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rolellm.cli.options import with_options
from rolellm.cli.output import say
from rolellm.core.errors import SettingsError, require
from rolellm.core.settings import Advanced, Field, dump, settings
from rolellm.llm.llm import LLM, CallOptions, PlayedOptions
from rolellm.playing.settings import PlaySettings, PromptLimits, TalkSettings

if TYPE_CHECKING:
    from rolellm.characters.roles import Part
    from rolellm.playing.local_server import Backend
    from rolellm.playing.player import RolePlayer


@settings
class PageOptions:
    """Page.

    Attributes:
        web: Use a local page instead of the terminal.
        port: With --web: port to listen on; 0 for any that is free.
    """

    web: bool = False
    port: Advanced[int] = Field(default=0, ge=0, le=65_535)


@settings
class _VotePage(PageOptions):
    """Page.

    Attributes:
        against: With --web: a second model that replies as well, for blind votes; a folder, a Hub id, or YAML settings.
        votes: With --web: the folder of the votes, which `rolellm label --agreement` reads.
        share: With --web: also give the page a public address through a Gradio server; anyone who has it can enter.
    """

    against: Advanced[str | None] = None
    votes: Advanced[Path] = Path("rolellm-votes")
    share: Advanced[bool] = False


@with_options
def run_chat(
    role: Annotated[str, typer.Argument()],
    model_options: PlayedOptions,
    play_settings: PlaySettings,
    talk_settings: TalkSettings,
    page: _VotePage,
    resume: bool = False,
) -> None:
    """Talk to a role in the terminal or on a local page (--web).

    In the terminal, /help lists the commands. Without a terminal, each line of the input is a turn. Talks are kept in
    the character's folder, else in the user's data directory.

    Args:
        role: A character's folder, a card, or the name of a role of RoleBench.
        resume: Continue the last talk.
    """
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
    players: Mapping[str, RolePlayer], role: str, page: _VotePage, talk_settings: TalkSettings, resume: bool
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
    roles: Annotated[list[str], typer.Argument(metavar="ROLE[=ADAPTER]")],
    model_options: PlayedOptions,
    limits: PromptLimits,
    base: str | None = None,
    engine: Advanced[str] = "auto",
    host: Advanced[str] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8040,
    key_env: str | None = None,
    allow_origin: Advanced[list[str] | None] = None,
) -> None:
    """Serve roles to any client of OpenAI's API.

    The client's model is the name of a role. A model on this machine is started; roles with adapters share one base.

    Args:
        roles: Characters' folders, cards, or names of roles of RoleBench, each with an adapter where it has one.
        base: The model under the adapters, a folder or a Hub id; by default the first adapter's.
        engine: For a model on this machine: builtin, vllm, or vLLM's path; auto: vLLM where found with a GPU.
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
        stack.enter_context(handle_signals(signal.default_int_handler))
        cast = list(map(_read_member, roles))
        llm, adapters, under = stack.enter_context(_reach_model(model_options, base, engine, cast))
        players = server.play_all(llm, [part for part, _ in cast], **dump(limits))
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
        model = base or model_options.model or ("" if model_options.llm else "base")
        plain = Path(model).name if Path(model).is_dir() else model
        members = [(part.sheet.role, adapter) for part, adapter in cast]
        members.append((plain, _make_absolute(model)))
        served = {name: adapters[adapter] for name, adapter in members if adapter in adapters}
        app = server.build_application(
            players,
            plain=plain,
            key=key,
            hosts=near,
            origins=allow_origin or (),
            served=served,
            base=under,
            has_tools=bool(model_options.llm) or "--enable-auto-tool-choice" in engine,
        )
        where = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}/v1"
        say(f"{', '.join(players)} at {where}. Press Ctrl-C to stop.", err=True)
        try:
            server.serve(listening, app)
        except KeyboardInterrupt:
            say("stopped", err=True)


def _read_member(word: str) -> tuple[Part, str]:
    """Read ``ROLE`` or ``ROLE=ADAPTER`` as a role and its adapter, empty for none."""
    from rolellm.characters.roles import find_part

    role, equals, adapter = word.rpartition("=")
    if not equals or Path(word).exists():
        return find_part(word), ""
    try:
        return find_part(role), _make_absolute(adapter)
    except SettingsError as error:
        raise SettingsError(
            f"{error}. An adapter has no system prompt of its own: give the character's folder or card, "
            f"such as ada.json={adapter}"
        ) from error


def _make_absolute(model: str) -> str:
    """Make a folder's path absolute; a Hub id stays."""
    return str(Path(model).absolute()) if Path(model).is_dir() else model


def _read_client_key(key_env: str | None) -> str:
    key = os.environ.get(key_env, "") if key_env else ""
    if key_env and not key:
        raise SettingsError(f"the environment variable {key_env} holds no key; set it and try again")
    return key


def _reach_model(
    chosen: PlayedOptions, base: str | None, engine: str, cast: Sequence[tuple[Part, str]]
) -> AbstractContextManager[Backend]:
    """Find the model at its server, or run it here."""
    from rolellm.llm.vllm import find_vllm
    from rolellm.playing.local_server import run_builtin, run_vllm

    if base and (chosen.model or chosen.llm):
        raise SettingsError("--base names the model already; leave --model and --llm out")
    adapters = {adapter: part.sheet.role for part, adapter in cast if adapter}
    model = base or chosen.model
    if chosen.llm or not (model or adapters):
        # Adapters are models of that server.
        return nullcontext((make_played_llm(chosen), {adapter: adapter for adapter in adapters}, None))
    require("torch", "transformers", extra="train")
    from rolellm.models.find import find_model

    source = find_model(model or next(iter(adapters)))
    if model and source.adapter is not None:
        adapters.setdefault(_make_absolute(model), Path(model).name)
    command = find_vllm(engine)
    if command is not None:
        return run_vllm(command, source.base, adapters)
    say("loading the model …", err=True)
    return run_builtin(source.base, adapters)
