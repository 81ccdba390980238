"""`vllm serve` as a process of a run: found where vLLM is installed, started by the first request, asked by tokens.

vLLM pins another torch, so it is in an environment of its own and reached over HTTP on this machine. Prompts go as
tokens and replies come as tokens, both by the tokenizer of `rolellm.models.local_model.LocalModel`, so that they are
those of the built-in engine.
"""

from __future__ import annotations

import asyncio
import gc
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
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from rolellm.core.errors import ModelError, SettingsError, require
from rolellm.core.fingerprint import hash_json
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
_GRACE = 5.0
# Seconds in which it ends after it has closed its port, and between two looks.
_ENDING, _LOOK = 30.0, 0.2
# Seconds for an answer while a server starts.
_PATIENCE = 5.0
# Servers that start together may choose the same port, and a GPU may have less memory left than they ask for.
_STARTS = 3
# Ranks that vLLM takes as the largest.
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
# Of this environment, or for servers that others reach.
_NOT_INHERITED = ("PYTHONPATH", "PYTHONHOME", "VLLM_API_KEY")
# However this process ends, its end of the pipe closes then: what is left of the server's group ends, too.
_WATCH = "read _; kill -9 -$1"
_ERROR = re.compile(r"(?:\w*(?:Error|Exception)|\berror): (.+)")
_NO_ERROR = re.compile(r"(\(.*?\) )?(INFO|WARNING)\b")
# What follows the error of the engine.
_EPILOGUES = ("initialization failed", "EngineDeadError")
# vLLM asks for a share of the GPU that others may have part of; the second number is the total.
_FREE_MEMORY = re.compile(r"Free memory on device[^(]*\(([\d.]+)/([\d.]+) GiB\)")
_MEMORY_FLAG = "--gpu-memory-utilization"
# The share that its measurement may be off by, and the least that is worth a start (our choice).
_MARGIN, _LEAST_SHARE = 0.01, 0.05
_BASE = "base"

_INSTALL = (
    "install it in an environment of its own (python -m venv ~/vllm && ~/vllm/bin/pip install vllm) and name that: "
    "--engine ~/vllm"
)


def find_vllm(engine: str, device: str = "auto") -> list[str] | None:
    """Find the command that starts vLLM for a setting of `engine`.

    Args:
        engine: ``auto``, ``builtin``, or a command: ``vllm`` or the path of its executable or of its environment, with
            flags where needed.
        device: Where the model is to run.

    Returns:
        The command's words; ``None`` for the built-in engine.

    Raises:
        SettingsError: When vLLM is asked for and there is none, or only one for GPUs and no GPU.
    """
    is_auto = engine == AUTO
    if engine == BUILTIN or (is_auto and not has_gpu(device)):
        return None
    words = [VLLM] if is_auto else _split_words(engine)
    is_named = words[:1] != [VLLM] or VARIABLE in os.environ
    if words[:1] == [VLLM]:
        words[:1] = _split_words(os.environ.get(VARIABLE, VLLM))
    path = None
    if words:
        path = _find_executable(words[0])
    if path is None and is_auto:
        _say_faster()
        return None
    if path is None:
        raise SettingsError(
            f"engine is {engine!r}, and there is no such program; it is auto, builtin, vllm or the folder of "
            f"vLLM's environment. If vLLM is missing, {_INSTALL}"
        )
    if not is_named and not has_gpu(device):
        raise SettingsError(
            "engine vllm needs a GPU, and there is none; use --engine builtin, or name the environment of a "
            "vLLM built for CPUs (--engine DIR)"
        )
    return [path, *words[1:]]


def _split_words(engine: str) -> list[str]:
    try:
        return shlex.split(engine)
    except ValueError as error:
        raise SettingsError(f"engine is {engine!r}: {error}") from error


def _find_executable(name: str) -> str | None:
    """Find a program by its path, by the folder of its environment, on the PATH, or beside this Python."""
    path = Path(name).expanduser()
    # A folder may have this name, too, such as a copy of vLLM's source.
    if name != VLLM and path.is_dir():
        path = path / "bin" / VLLM
    return shutil.which(str(path)) or shutil.which(str(path), path=str(Path(sys.executable).parent))


def has_gpu(device: str = "auto") -> bool:
    """Tell whether there is a GPU for a model; this environment's torch may be one for CPUs."""
    require("torch", extra="train")
    import torch

    return device != "cpu" and (torch.cuda.is_available() or bool(_list_gpus()))


def _list_gpus() -> list[str]:
    """Ask NVIDIA's driver for the names of the GPUs that programs may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible in ("", "-1"):
        return []
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    if visible:
        command += ["-i", visible]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_GRACE, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return answer.stdout.splitlines()


def _free_memory() -> None:
    """Give back the GPU's memory that this process keeps for what it has let go of, such as a training."""
    if "torch" not in sys.modules:
        return
    import torch

    gc.collect()
    torch.cuda.empty_cache()


@cache
def _say_faster() -> None:
    sys.stderr.write(f"note: with vLLM, answers are several times faster on a GPU; {_INSTALL}\n")


class VLLMServer:
    """``vllm serve`` with one base and adapters on it, from the first request of a run to its end.

    Kept for several runs, it goes on to the end of the last model's.

    Args:
        command: The words that start vLLM.
        models: The models that it serves, without weights: one base, and any adapters on it.

    Attributes:
        endpoint: Where it listens; ``None`` while it is not running.
        seconds: How long it took to start, so far.
        last: The model that is asked last, where it is kept for several runs.
    """

    last: LocalModel | None = None

    def __init__(self, command: Sequence[str], models: Iterable[LocalModel]) -> None:
        self._command = command
        self._models = list(models)
        self._model = self._models[0]
        # Served names by adapter.
        self._names: dict[str | None, str] = {None: _BASE}
        for number, model in enumerate(self._models):
            self._names.setdefault(model.source.adapter, f"adapter-{number}")
        self._is_merged = False
        self._resources = ExitStack()
        self._starting: asyncio.Task[None] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._log = Path()
        self.endpoint: Endpoint | None = None
        self.seconds = 0.0

    def get_name(self, model: LocalModel) -> str:
        """Return the name that a model is served by."""
        return _BASE if self._is_merged else self._names[model.source.adapter]

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
        self._is_merged = False
        self._resources.pop_all().close()

    async def _check_running(self, patience: float) -> None:
        """Check that it has not ended, and does not within some seconds; raise its last errors otherwise."""
        deadline = time.monotonic() + patience
        while (process := self._process) is not None:
            if process.poll() is not None:
                raise StopAskingError(self._describe_end(process))
            if time.monotonic() >= deadline:
                return
            await asyncio.sleep(_LOOK)

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
        except CallError as error:
            is_unreachable = error.kind == "connection" and not error.billed
            await self._check_running(_ENDING if is_unreachable else 0.0)
            raise

    async def _start(self, is_stopped: Callable[[], bool]) -> None:
        source = self._model.source
        adapters = {name: path for path, name in self._names.items() if path is not None}
        _free_memory()
        sys.stderr.write(f"starting vLLM, which takes a minute or more; its log is {self._log}\n")
        started = time.perf_counter()
        try:
            await self._launch(source.base, source.tokenizer, adapters, is_stopped)
        except ModelError as error:
            is_lora = any("lora" in problem.casefold() for problem in self._find_errors())
            if not (adapters and is_lora and len(self._models) == 1):
                example = shlex.quote(shlex.join([self._command[0], "--tensor-parallel-size", "2"]))
                raise ModelError(
                    f"{error}. Flags for vLLM go after its path, as in --engine {example}; the engine builtin does "
                    "without it"
                ) from error
            sys.stderr.write(
                f"{error}\nvLLM starts again, with the adapter merged into its base in a temporary folder\n"
            )
            merged = await asyncio.to_thread(self._merge)
            self._is_merged = True
            await self._launch(merged, merged, {}, is_stopped)
        self.seconds += time.perf_counter() - started
        sys.stderr.write(f"vLLM answers after {self.seconds:.0f} seconds\n")

    def _merge(self) -> str:
        model = self._model
        folder = self._resources.enter_context(tempfile.TemporaryDirectory(prefix="rolellm-vllm-"))
        merge_adapter(model.source.base, Path(model.source.adapter or ""), Path(folder), model.end)
        model.tokenizer.save_pretrained(folder)
        return folder

    async def _launch(
        self, base: str, tokenizer: str, adapters: dict[str, str], is_stopped: Callable[[], bool]
    ) -> None:
        """Start the process, and wait until it answers; again where another program had its port or its memory."""
        from rolellm.llm.endpoint import Endpoint

        words = ["serve", base, "--served-model-name", _BASE, "--tokenizer", tokenizer]
        # Without a limit, a long context that has no room on a small card is an error.
        words += ["--dtype", self._model.dtype, "--generation-config", "vllm", "--max-model-len", "auto"]
        revision = self._model.source.revision
        if revision is not None:
            words += ["--revision", revision]
        if adapters:
            largest = find_lora_rank(adapters.values())
            modules = [f"{name}={path}" for name, path in adapters.items()]
            words += ["--enable-lora", "--max-lora-rank", str(largest), "--max-loras", str(len(adapters))]
            words += ["--lora-modules", *modules]
        environment = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
        if self._model.source.is_cached:
            environment["HF_HUB_OFFLINE"] = "1"
        for attempt in range(_STARTS):
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
                share = self._find_share(str(error))
                is_taken = "address already in use" in str(error).casefold()
                if attempt == _STARTS - 1 or not (share or is_taken):
                    raise
                if share:
                    words += [_MEMORY_FLAG, f"{share:.2f}"]
                    sys.stderr.write(f"other programs use the GPU: vLLM starts again, with {share:.0%} of its memory\n")
            else:
                self._process = process
                self.endpoint = endpoint
                return

    def _find_share(self, error: str) -> float | None:
        """Find the share of a GPU that others leave, where vLLM by itself wants more; ``None`` for too little."""
        memory = _FREE_MEMORY.search(error)
        if memory is None or _MEMORY_FLAG in str(self._command):
            return None
        share = float(memory[1]) / float(memory[2]) - _MARGIN
        return share if share > _LEAST_SHARE else None

    async def _wait_until_ready(
        self, process: subprocess.Popen[bytes], endpoint: Endpoint, names: set[str], is_stopped: Callable[[], bool]
    ) -> None:
        # Another program may answer at this port, but not by these names.
        while not names <= (await endpoint.list_models()).keys():
            if process.poll() is not None:
                raise ModelError(self._describe_end(process))
            if is_stopped():
                raise StopAskingError(STOP_REQUEST)
            await asyncio.sleep(1)

    def _describe_end(self, process: subprocess.Popen[bytes]) -> str:
        words = "; ".join(self._find_errors()[-3:]) or "no message"
        return f"vLLM ended with exit code {process.returncode} ({words}); its log is {self._log}"

    def _find_errors(self) -> list[str]:
        """Find what is wrong in the log, without what only repeats it; its last lines where no error is marked."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        causes: dict[str, str] = {}
        effects: list[str] = []
        for line in lines:
            match = _ERROR.search(line)
            if match is None or _NO_ERROR.match(line):
                continue
            error = match[0].strip()[:300]
            if any(words in line for words in _EPILOGUES):
                effects.append(error)
            elif not any(f"'{cause}'" in line for cause in causes):
                causes.setdefault(match[1], error)
        return list(causes.values()) or effects[:1] or lines[-3:]


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

    @property
    def base(self) -> tuple[Any, ...]:
        """What models share that one server can have."""
        source = self.model.source
        return Path(source.base).resolve(), source.revision, self.model.dtype

    async def start(self, folder: Path, is_stopped: Callable[[], bool]) -> None:
        """Start the server, as `VLLMServer.start`; one of its own where that for several runs does not start."""
        server = self.server
        try:
            await server.start(folder, is_stopped)
        except ModelError as error:
            if server.last is None:
                raise
            if self.server is server:
                sys.stderr.write(f"{error}\nvLLM starts again, for {self.name} alone\n")
                self.server = VLLMServer(self.command, [self.model])
            await self.server.start(folder, is_stopped)

    def stop(self) -> None:
        """End the server, unless it is kept for another model."""
        if self.server.last in (None, self.model):
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
            raise ModelError("this vLLM does not return the tokens of its replies; use a newer one") from error
        return self._read_completion(self.model.make_completion(prompt, tokens))

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
    bases = {chat.base for chat in chats}
    if len(bases) < 2:
        if chats:
            _join(chats)
        return list(models)
    if required:
        raise SettingsError(
            "engine vllm serves one base with its adapters, and these models have several bases; use --engine builtin, "
            "or start a server for each and list them under endpoints (docs/models.md)"
        )
    return [LocalChat(model.model) if isinstance(model, VLLMChat) else model for model in models]


@contextmanager
def keep_servers(models: Iterable[Model | None]) -> Iterator[None]:
    """Keep a server for models on one base that are asked one after the other, each in a run of its own.

    Args:
        models: The models in the order of their runs, with ``None`` for others.
    """

    def find_base(model: Model | None) -> object:
        return model.base if isinstance(model, VLLMChat) else None

    with ExitStack() as servers:
        for base, group in groupby(models, find_base):
            if base is not None:
                chats = cast(list[VLLMChat], list(group))
                server = _join(chats)
                servers.callback(server.stop)
                if len(chats) > 1:
                    server.last = chats[-1].model
        yield


def _join(chats: Sequence[VLLMChat]) -> VLLMServer:
    server = VLLMServer(chats[0].command, [chat.model for chat in chats])
    for chat in chats:
        chat.server = server
    return server
