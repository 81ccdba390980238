"""Whether a server of one's own still serves the model that a run began with.

A name says little there: many servers answer to any. So a run notes what each of them replies to one greedy request,
and a run that continues compares. Others' servers are not asked: they charge, and seldom reply twice the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

from rolellm.core.errors import DataError, SettingsError
from rolellm.core.files import write_json
from rolellm.core.interrupts import run_to_end
from rolellm.core.jsonl import read_json
from rolellm.core.text import join_names
from rolellm.llm.model import CallError, Model, Request, Sampling, UnacceptableError, user
from rolellm.llm.settings import is_near

if TYPE_CHECKING:
    from rolellm.llm.endpoint import Endpoint

#: In the run's folder: by endpoint, its reply.
SERVED: Final = "served.json"
# Long enough that two models differ, short enough to cost nothing (our choice).
_REQUEST = Request(
    (user("Name five animals and five colors, then say who you are."),), Sampling(temperature=0, max_tokens=24)
)
_NAMED = 5


def check_served(models: Iterable[Model], folder: Path) -> None:
    """Ask each server on this machine or a private network for its greedy reply, and compare it with the run's first.

    A server that does not answer is passed over: the run itself says what is wrong with it.

    Args:
        models: Who is asked in the run.
        folder: The run's folder.

    Raises:
        SettingsError: When a server lists other models than the one asked for, or replies in another way than before.
    """
    try:
        recorded: dict[str, Any] = read_json(folder / SERVED) if (folder / SERVED).is_file() else {}
    except DataError:
        recorded = {}
    near = [cast("Endpoint", model) for model in models if _is_own(model)]
    answers: list[tuple[list[str], str | None]] = []
    stopped: list[bool] = []

    async def ask_all() -> None:
        for model in near:
            answers.append(await _ask_server(model))

    run_to_end(ask_all, lambda: stopped.append(True))
    if stopped:
        raise KeyboardInterrupt
    for model, (listing, reply) in zip(near, answers, strict=True):
        if listing and model.settings.model not in listing:
            raise SettingsError(
                f"{model.name}: the server does not list this model; it has {join_names(sorted(listing), _NAMED)}. "
                "Give one of these as the model, or start the server with the one you mean"
            )
        if reply is None:
            continue
        if recorded.get(model.name, reply) != reply:
            raise SettingsError(
                f"{model.name} answers the same greedy request differently than when this run began, so it seems to "
                f"serve another model. Serve the first one again, or use another --out; if the model is the same, "
                f"delete {folder / SERVED}"
            )
        recorded[model.name] = reply
    if recorded:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / SERVED, recorded)


def _is_own(model: Model) -> bool:
    host = urlsplit(str(model.identity.get("base_url", ""))).hostname
    return model.identity.get("backend") == "openai" and is_near(host or "")


async def _ask_server(model: Endpoint) -> tuple[list[str], str | None]:
    """The models that a server lists, and its greedy reply; empty and ``None`` where it gives none."""
    try:
        listing = await model.list_models()
        return list(listing), model.read(await model.call(_REQUEST)).text
    except (CallError, UnacceptableError):
        return [], None
    finally:
        await model.close()
