"""``rolellm chat`` and ``rolellm serve``: talk to a role, here or through any client of OpenAI's API."""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rolellm.cli.options import with_options
from rolellm.cli.output import say
from rolellm.core.errors import SettingsError, require
from rolellm.core.settings import Field, dump, settings
from rolellm.playing.settings import PlaySettings, PromptLimits

if TYPE_CHECKING:
    from rolellm.llm.llm import LLM


@settings
class Played:
    """Model.

    Attributes:
        model: A folder with a model, adapter or run of `rolellm train`, or a Hub id; with --base-url, the model to ask
            there.
        adapter: A PEFT adapter to put on a full model.
        llm_file: YAML settings of a model (docs/endpoints.md).
        base_url: An OpenAI-compatible endpoint, such as http://localhost:8000/v1.
        api_key_env: Environment variable that holds the API key.
        tokenizer: With --base-url: the model's tokenizer (a folder), to count tokens instead of estimating them.
    """

    model: str | None = None
    adapter: str | None = None
    llm_file: Path | None = Field(default=None, json_schema_extra={"flag": "llm"})
    base_url: str | None = None
    api_key_env: str | None = None
    tokenizer: str | None = None


@settings
class _Page:
    """Page.

    Attributes:
        web: Talk on a local page instead: two roles or two models side by side, and a blind vote between them.
        against: With --web: a second model; a folder, a Hub id, or YAML settings.
        votes: With --web: the folder of the votes, which `rolellm agreement` reads.
        port: With --web: port to listen on; 0 for any that is free.
        share: With --web: also give the page a public address through a Gradio server; anyone who has it can enter.
    """

    web: bool = False
    against: str | None = None
    votes: Path = Path("rolellm-votes")
    port: int = Field(default=0, ge=0, le=65_535)
    share: bool = False


@with_options
def chat(role: Annotated[str, typer.Argument(metavar="ROLE")], asked: Played, how: PlaySettings, page: _Page) -> None:
    """Talk to a role in the terminal, where /help lists the commands, or on a local page (--web).

    Args:
        role: A character's folder, a card, or the name of a role of RoleBench.
    """
    from rolellm.runtime.threads import wait_briefly

    wait_briefly()
    _check_named(asked)
    if page.web:
        # Gradio counts its users unless it is told not to.
        os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
        require("gradio", extra="web")

    from rolellm.playing.player import RolePlayer
    from rolellm.playing.terminal import Terminal

    remote = asked.llm_file or asked.base_url
    model: Any = _llm(asked) if remote else asked.model
    player = RolePlayer(model, role, adapter=asked.adapter, **dump(how))
    if page.web:
        _talk_page(player, str(asked.llm_file or asked.model), page, how)
        return
    if page.against is not None:
        raise SettingsError("--against needs --web: two models are shown side by side on the page")
    # Arrow keys edit the line and bring earlier ones back, where there is such a library.
    with suppress(ImportError):
        import readline  # noqa: F401
    Terminal(player).run()


def _check_named(asked: Played) -> None:
    if asked.llm_file is None and asked.base_url is None and asked.model is None:
        raise SettingsError("no model is named; give --model FOLDER, --llm FILE.yaml, or --base-url URL --model NAME")


def played_model(asked: Played) -> LLM:
    """The model that the options name, as one that stages can ask.

    Raises:
        SettingsError: When they name none.
    """
    from rolellm.llm.llm import LLM

    _check_named(asked)
    remote = asked.llm_file or asked.base_url
    return _llm(asked) if remote else LLM(backend="local", model=asked.model, adapter=asked.adapter)


def _talk_page(player: Any, name: str, page: _Page, how: PlaySettings) -> None:
    """Serve the page until somebody asks to stop."""
    import shlex
    import sys
    import webbrowser

    from rolellm.cli.label import login
    from rolellm.core.sanitize import visible
    from rolellm.playing.player import RolePlayer

    if page.against == name:
        raise SettingsError("--against names the same model again; name another one")
    from rolellm.labelling import stop_request
    from rolellm.labelling.talk import TalkPage

    models = {name: player}
    if page.against is not None:
        models[page.against] = RolePlayer(page.against, player.part, **dump(how))
    talks = TalkPage(models, page.votes, login())
    with stop_request() as wait, talks.serve(port=page.port, share=page.share) as url:
        say(f"Open {url} in a browser. Press Ctrl-C to stop.", err=True)
        if sys.stdout.isatty():
            webbrowser.open(url)
        wait()
    if page.votes.is_dir():
        say(f"Votes: {visible(str(page.votes))}. Next: {visible(f'rolellm agreement {shlex.quote(str(page.votes))}')}")


def _llm(asked: Played) -> LLM:
    from rolellm.cli.llm_options import scripted_models
    from rolellm.llm.llm import LLM, LLMOptions

    names = ("model", "llm_file", "base_url", "api_key_env", "tokenizer")
    return LLM.from_options(LLMOptions(**{name: getattr(asked, name) for name in names}), scripted_models())


@with_options
def serve(
    roles: Annotated[list[str], typer.Argument(metavar="ROLE...")],
    model: str,
    limits: PromptLimits,
    upstream: str | None = None,
    adapter: str | None = None,
    api_key_env: str | None = None,
    host: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8040,
    key_env: str | None = None,
) -> None:
    """Serve roles to any client of OpenAI's API: the client's model is the name of a role.

    Args:
        roles: Characters' folders, cards, or names of roles of RoleBench.
        model: The model's name at --upstream; without it, a folder or a Hub id for `transformers serve`.
        upstream: The OpenAI-compatible server that answers; by default `transformers serve` is started.
        adapter: Without --upstream: a PEFT adapter to put on a full model.
        api_key_env: Environment variable that holds the key for --upstream.
        host: Address to listen on.
        port: Port to listen on; 0 for any that is free.
        key_env: Environment variable that holds the key that clients have to send.
    """
    require("starlette", "uvicorn", "openai", extra="play")
    from rolellm.llm.llm import LLM
    from rolellm.llm.settings import is_near
    from rolellm.playing import server
    from rolellm.runtime.interrupts import handling

    key = os.environ.get(key_env, "") if key_env else ""
    if key_env and not key:
        raise SettingsError(f"the environment variable {key_env} holds no key; set it and try again")
    if upstream is not None and adapter is not None:
        raise SettingsError("--adapter cannot be combined with --upstream; the server there has its own")
    with ExitStack() as stack:
        listening = stack.enter_context(server.listen(host, port))
        stack.enter_context(handling(_interrupt))
        name = model
        if upstream is None:
            require("transformers", "fastapi", extra="train,play")
            if (command := server.vllm_command(model, adapter)) is not None:
                say(f"vLLM answers faster: {command}", err=True)
            say("starting `transformers serve` …", err=True)
            upstream, name = stack.enter_context(server.transformers_serve(model, adapter))
        llm = LLM(base_url=upstream, model=name, api_key_env=api_key_env)
        players = server.play_all(llm, roles, **dump(limits))
        if next(iter(players.values())).context is None:
            say("the server does not say how long its context is; give --context to have old turns left out", err=True)
        if not key and not is_near(host, this_machine=True):
            say("anybody who reaches this machine can use the server; --key-env sets a key", err=True)
        where = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}/v1"
        say(f"{', '.join(players)} at {where}. Press Ctrl-C to stop.", err=True)
        try:
            server.serve(listening, players, key=key)
        except KeyboardInterrupt:
            say("stopped", err=True)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
