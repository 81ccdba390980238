"""`vllm serve` as a process of a run: found where vLLM is installed, started by the first request, asked by tokens.

vLLM pins another torch, so it is in an environment of its own and reached over HTTP on this machine. Prompts go as
tokens and replies come as tokens, both by the tokenizer of `rolellm.models.local_model.LocalModel`, so that they are
those of the built-in engine.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rolellm.core.errors import ModelError, SettingsError, require
from rolellm.core.fingerprint import hash_json
from rolellm.core.progress import open_bar
from rolellm.llm.dispatcher import STOP_REQUEST, StopAskingError
from rolellm.llm.local import LocalChat
from rolellm.llm.model import CallError, Json, Model, Request
from rolellm.llm.settings import ModelSettings
from rolellm.models.find import read_adapter_config
from rolellm.models.load import merge_adapter

if TYPE_CHECKING:
    from rolellm.llm.endpoint import Endpoint
    from rolellm.models.local_model import LocalModel

AUTO: Final = "auto"
BUILTIN: Final = "builtin"
VLLM: Final = "vllm"
#: Names the executable, and flags for it.
VARIABLE: Final = "VLLM"
LOG: Final = "vllm.log"
#: Calls at once; vLLM batches them by itself.
_CONCURRENCY = 256
_TIMEOUT = 3600.0
# Seconds that a server gets to end by itself.
_GRACE = 10.0
# Seconds for an answer while a server starts.
_PATIENCE = 5.0
# Servers that start together may choose the same port.
_PORTS = 3
# Ranks that vLLM takes as the largest.
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
# Of this environment, or for servers that others reach.
_NOT_INHERITED = ("PYTHONPATH", "PYTHONHOME", "VLLM_API_KEY")
# However this process ends, its end of the pipe closes then: what is left of the server's group ends, too.
_WATCH = "read _; kill -9 -$1"
_ERROR = re.compile(r"\w*(?:Error|Exception): .*")
# What follows the error of the engine.
_EPILOGUE = "initialization failed"
_BASE = "base"

_INSTALL = (
    "install it in an environment of its own (python -m venv ~/vllm && ~/vllm/bin/pip install vllm) and name it: "
    "--engine ~/vllm/bin/vllm"
)


def find_vllm(engine: str, device: str = "auto") -> list[str] | None:
    """Find the command that starts vLLM for a setting of `engine`.

    Args:
        engine: ``auto``, ``builtin``, or a command: ``vllm`` or the path of its executable, with flags where needed.
        device: Where the model is to run.

    Returns:
        The command's words; ``None`` for the built-in engine.

    Raises:
        SettingsError: When vLLM is asked for and there is none, or only one for GPUs and no GPU.
    """
    is_auto = engine == AUTO
    if engine == BUILTIN or (is_auto and not has_gpu(device)):
        return None
    words = [VLLM] if is_auto else shlex.split(engine)
    is_named = words[:1] != [VLLM] or VARIABLE in os.environ
    if words[:1] == [VLLM]:
        words[:1] = shlex.split(os.environ.get(VARIABLE, VLLM))
    path = None
    if words:
        path = shutil.which(str(Path(words[0]).expanduser()))
    if path is None and is_auto:
        _say_faster()
        return None
    if path is None:
        raise SettingsError(
            f"engine is {engine!r}, and there is no such program; it is auto, builtin, vllm or the path of vLLM's "
            f"executable. If vLLM is missing, {_INSTALL}"
        )
    if not is_named and not has_gpu(device):
        raise SettingsError(
            "engine vllm needs a GPU, and there is none; use --engine builtin, or name a vLLM built for CPUs by its "
            "path (--engine DIR/bin/vllm)"
        )
    return [path, *words[1:]]


def has_gpu(device: str = "auto") -> bool:
    """Tell whether there is a GPU for a model; this environment's torch may be one for CPUs."""
    require("torch", extra="train")
    import torch

    return device != "cpu" and (torch.cuda.is_available() or shutil.which("nvidia-smi") is not None)


@cache
def _say_faster() -> None:
    sys.stderr.write(f"note: with vLLM, answers are several times faster on a GPU; {_INSTALL}\n")


class VLLMServer:
    """``vllm serve`` with one base and adapters on it, from the first request of a run to its end.

    Args:
        command: The words that start vLLM.
        models: The models that it serves, without weights: one base, and any adapters on it.

    Attributes:
        endpoint: Where it listens; ``None`` while it is not running.
    """

    def __init__(self, command: Sequence[str], models: Iterable[LocalModel]) -> None:
        self._command = command
        self._models = list(models)
        self._model = self._models[0]
        # Served names by adapter.
        self._names: dict[str | None, str] = {None: _BASE}
        for number, model in enumerate(self._models):
            self._names.setdefault(model.source.adapter, f"adapter-{number}")
        self._resources = ExitStack()
        self._starting: asyncio.Task[None] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._log = Path()
        self.endpoint: Endpoint | None = None

    def get_name(self, model: LocalModel) -> str:
        """Return the name that a model is served by."""
        return self._names[model.source.adapter]

    async def start(self, folder: Path, is_stopped: Callable[[], bool]) -> None:
        """Start it, unless it runs; the log goes to the folder.

        Raises:
            ModelError: When it ends before it is ready; has the last errors of its log.
            StopAskingError: When the run is stopped before that.
        """
        if self._starting is None:
            self._log = folder.absolute() / LOG
            self._starting = asyncio.create_task(self._start(is_stopped))
        await self._starting

    def stop(self) -> None:
        """End it, with all of its processes."""
        self._starting = self._process = self.endpoint = None
        self._resources.pop_all().close()

    def check_running(self) -> None:
        """Check that it has not ended.

        Raises:
            StopAskingError: When it has; has the last errors of its log.
        """
        if self._process is not None and self._process.poll() is not None:
            raise StopAskingError(self._describe_end(self._process))

    async def post(self, body: Json) -> Json:
        """Ask for a completion.

        Raises:
            CallError: When no reply came.
            StopAskingError: When the server has ended.
        """
        from rolellm.llm.endpoint import httpx
        from rolellm.llm.openai_format import parse_body

        endpoint = self.endpoint
        if endpoint is None:
            raise StopAskingError("vLLM was stopped")
        try:
            work = partial(endpoint.post, "/completions", body, cast_to=httpx.Response)
            response = await endpoint.send(work, _TIMEOUT)
            return endpoint.clean_body(parse_body(response.content), None)
        except CallError:
            self.check_running()
            raise

    async def _start(self, is_stopped: Callable[[], bool]) -> None:
        source = self._model.source
        adapters = {name: path for path, name in self._names.items() if path is not None}
        try:
            await self._launch(source.base, source.tokenizer, adapters, is_stopped)
        except ModelError as error:
            is_lora = adapters and "lora" in str(error).casefold()
            if not is_lora:
                raise
            if len(self._models) > 1:
                raise ModelError(
                    f"{error}. With --engine builtin, several models on one base do without vLLM"
                ) from error
            sys.stderr.write(f"{error}\nmerging the adapter into its base, in a temporary folder\n")
            merged = await asyncio.to_thread(self._merge)
            self._names[source.adapter] = _BASE
            await self._launch(merged, merged, {}, is_stopped)

    def _merge(self) -> str:
        model = self._model
        folder = self._resources.enter_context(tempfile.TemporaryDirectory(prefix="rolellm-vllm-"))
        merge_adapter(model.source.base, Path(model.source.adapter or ""), Path(folder), model.end)
        model.tokenizer.save_pretrained(folder)
        return folder

    async def _launch(
        self, base: str, tokenizer: str, adapters: dict[str, str], is_stopped: Callable[[], bool]
    ) -> None:
        """Start the process, on another port where another program was faster, and wait until it answers."""
        from rolellm.llm.endpoint import Endpoint

        words = ["serve", base, "--served-model-name", _BASE, "--tokenizer", tokenizer]
        words += ["--dtype", self._model.dtype, "--generation-config", "vllm"]
        revision = self._model.source.revision
        if revision is not None:
            words += ["--revision", revision]
        if adapters:
            largest = find_lora_rank(adapters.values())
            modules = [f"{name}={path}" for name, path in adapters.items()]
            words += ["--enable-lora", "--max-lora-rank", str(largest), "--max-loras", str(len(adapters))]
            words += ["--lora-modules", *modules]
        environment = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
        for attempt in range(_PORTS):
            port = find_free_port()
            command = [*self._command[:1], *words, "--host", "127.0.0.1", "--port", str(port), *self._command[1:]]
            process = self._resources.enter_context(run_process(command, self._log, environment))
            settings = ModelSettings(
                base_url=f"http://127.0.0.1:{port}/v1", model=_BASE, concurrency=_CONCURRENCY, timeout=_TIMEOUT
            )
            endpoint = Endpoint(settings)
            try:
                await self._wait_until_ready(process, endpoint, {_BASE, *adapters}, is_stopped)
            except ModelError as error:
                if "address already in use" not in str(error).casefold() or attempt == _PORTS - 1:
                    raise
            else:
                self._process = process
                self.endpoint = endpoint
                return

    async def _wait_until_ready(
        self, process: subprocess.Popen[bytes], endpoint: Endpoint, names: set[str], is_stopped: Callable[[], bool]
    ) -> None:
        with open_bar("starting vLLM", unit="s") as bar:
            # Another program may answer at this port, but not by these names.
            while not names <= (await endpoint.list_models()).keys():
                if process.poll() is not None:
                    raise ModelError(self._describe_end(process))
                if is_stopped():
                    raise StopAskingError(STOP_REQUEST)
                await asyncio.sleep(1)
                bar.update()

    def _describe_end(self, process: subprocess.Popen[bytes]) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        matches = [_ERROR.search(line) for line in lines if _EPILOGUE not in line]
        errors = list(dict.fromkeys(match[0] for match in matches if match)) or lines
        words = "; ".join(error.strip()[:300] for error in errors[-3:])
        return f"vLLM ended with exit code {process.returncode} ({words or 'no message'}); its log is {self._log}"


def find_lora_rank(adapters: Iterable[str]) -> int:
    """Find the largest rank of adapters, rounded up to one that vLLM takes."""
    rank = max(map(_read_rank, adapters))
    return next((allowed for allowed in _RANKS if allowed >= rank), rank)


def _read_rank(adapter: str) -> int:
    config: dict[str, Any] = read_adapter_config(adapter) or {}
    ranks: list[int] = [config.get("r") or 1, *(config.get("rank_pattern") or {}).values()]
    return max(ranks)


def find_free_port() -> int:
    """Find a port at which nothing listens on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


#: Opens a URL of this machine: never through the environment's proxy.
open_local: Final = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


@contextmanager
def run_server(command: Sequence[str], url: str) -> Iterator[None]:
    """Run a program that serves, from its first answer at a URL to the end of the block.

    Raises:
        ModelError: When it ends before that; has the last line that it wrote.
    """
    with tempfile.TemporaryDirectory(prefix="rolellm-serve-") as scratch:
        log = Path(scratch) / "log"
        with run_process(command, log) as process:
            while process.poll() is None:
                try:
                    open_local(url, timeout=_PATIENCE).close()
                    break
                except OSError:
                    time.sleep(0.2)
            else:
                lines = log.read_text(errors="replace").strip().splitlines() or ["no message"]
                raise ModelError(f"the model's server ended before it was ready: {lines[-1][:500]}")
            yield


@contextmanager
def run_process(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program in a process group of its own, and end the whole group with the block or with this process."""
    try:
        with log.open("wb") as out:
            # Ctrl-C in a terminal is for this process alone.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment, start_new_session=True
            )
    except OSError as error:
        raise ModelError(f"{command[0]} cannot be started: {error}") from error
    watch = ["sh", "-c", _WATCH, "sh", str(process.pid)]
    quiet = subprocess.DEVNULL
    watcher = subprocess.Popen(watch, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True)
    try:
        yield process
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
        watcher.communicate()
        process.wait()


class VLLMChat(LocalChat):
    """A model on this machine that vLLM answers for while a run asks; outside of a run, the built-in engine does.

    Args:
        model: The model; its tokenizer is used, its weights are not loaded.
        command: The words that start vLLM.
    """

    def __init__(self, model: LocalModel, command: Sequence[str]) -> None:
        super().__init__(model, batch_size=_CONCURRENCY)
        self.command = command
        self.server = VLLMServer(command, [model])

    @cached_property
    def identity(self) -> Json:
        """As that of `LocalChat`, with the engine."""
        return {**super().identity, "engine": VLLM}

    async def start(self, folder: Path, is_stopped: Callable[[], bool]) -> None:
        """Start the server, as `VLLMServer.start`."""
        await self.server.start(folder, is_stopped)

    def stop(self) -> None:
        """End the server."""
        self.server.stop()

    async def close(self) -> None:
        """Let go of connections; the server goes on."""
        await super().close()
        if self.server.endpoint is not None:
            await self.server.endpoint.close()

    async def call(self, request: Request, attempt: int = 1) -> Json:
        """Answer by the server.

        Raises:
            CallError: For a prompt or a setting that the model cannot take, and when no reply came.
            StopAskingError: When the server has ended.
            ModelError: When the server does not say which tokens it made.
        """
        if self.server.endpoint is None:
            return await super().call(request, attempt)
        prompt, decoding, key = self._prepare_call(request, attempt)
        most = request.sampling.top_logprobs
        body: dict[str, Any] = {
            "model": self.server.get_name(self.model),
            "prompt": prompt,
            "max_tokens": decoding.max_new_tokens,
            "temperature": decoding.temperature,
            "top_p": decoding.top_p,
            "stop_token_ids": self.model.stops,
            "return_token_ids": True,
        }
        if decoding.temperature:
            seed = hash_json([decoding.seed, key])
            body["seed"] = int(seed[:8], 16) & 0x7FFFFFFF
        if most:
            body |= {"logprobs": most, "return_tokens_as_token_ids": True}
        raw = await self.server.post(body)
        try:
            choice = raw["choices"][0]
            tokens = choice["token_ids"]
            if most:
                ranking = choice["logprobs"]["top_logprobs"][0]
                likeliest = [(self._decode(name), value) for name, value in ranking.items()]
                likeliest.sort(key=lambda item: -item[1])
                return self._make_ranking(len(prompt), likeliest[:most])
        except (KeyError, IndexError, TypeError) as error:
            raise ModelError("this vLLM does not return the tokens of its replies; use 0.11 or newer") from error
        return self._read_completion(request, self.model.make_completion(prompt, tokens))

    def _decode(self, name: str) -> str:
        """The text of ``token_id:N``."""
        text: str = self.model.tokenizer.decode([int(name.partition(":")[2])])
        return text


def share_server(models: Sequence[Model], *, required: bool) -> list[Model]:
    """Have the models on one base share a server: no GPU holds two.

    Args:
        models: All models of a run.
        required: Whether vLLM is asked for; otherwise models on several bases get the built-in engine.

    Raises:
        SettingsError: When vLLM is asked for, and their bases differ.
    """
    chats = [model for model in models if isinstance(model, VLLMChat)]
    bases = {(chat.model.source.base, chat.model.source.revision, chat.model.dtype) for chat in chats}
    if len(bases) < 2:
        if chats:
            server = VLLMServer(chats[0].command, [chat.model for chat in chats])
            for chat in chats:
                chat.server = server
        return list(models)
    if required:
        raise SettingsError(
            "engine vllm serves one base with its adapters, and these models have several bases; use --engine builtin, "
            "or start a server for each and list them under endpoints (docs/models.md)"
        )
    return [LocalChat(model.model) if isinstance(model, VLLMChat) else model for model in models]
