"""Servers of models on this machine, started for `rolellm.playing.server` to pass requests on to."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rolellm.core.errors import ModelError, SettingsError
from rolellm.llm.llm import LLM
from rolellm.llm.vllm import VLLMServer
from rolellm.models.adapters import check_tuned_on
from rolellm.models.local_model import LocalModel
from rolellm.models.prompts.render import load_chat_template
from rolellm.playing.server import listen

#: Fields of a request that `transformers serve` accepts and ignores, with the values by which no reply is another.
IGNORED: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("audio", "function_call", "functions", "prediction", "reasoning_effort", "web_search_options")),
    "logprobs": False,
    "modalities": ["text"],
    "n": 1,
    "parallel_tool_calls": True,
    "presence_penalty": 0,
    "response_format": {"type": "text"},
    "tool_choice": "auto",
    "top_logprobs": 0,
}
#: What it takes by default: without `do_sample`, it ignores the temperature for models that are greedy by default.
_GENERATION: Final = {"do_sample": True, "max_new_tokens": 1024}
#: Fields that the server of a base with adapters ignores, too.
_IGNORED_WITH_ADAPTERS: Final[Mapping[str, Any]] = {**IGNORED, "tools": [], "frequency_penalty": 0, "logit_bias": {}}
#: The name of a base in front of its adapters.
_PLAIN: Final = "base"
#: Marks the end of a turn that is to be continued.
_MARK: Final = "\u241eend\u241e"


def continue_last_turn(template: str) -> str:
    """A chat template that leaves the role's own turn open where it comes last, and otherwise does what this one does.

    `transformers serve` asks for a new turn in any case.
    """
    return (
        "{%- if messages[-1].role == 'assistant' and messages[-1].content is string -%}"
        f"{{%- set messages = messages[:-1] + [dict(messages[-1], content=messages[-1].content + '{_MARK}')] -%}}"
        "{%- set add_generation_prompt = false -%}{%- endif -%}"
        f"{{%- set text %}}{template.removesuffix(chr(10))}{{% endset -%}}{{{{- text.partition('{_MARK}')[0] -}}}}"
    )


@dataclass(frozen=True, slots=True)
class Backend:
    """The server that answers.

    Attributes:
        llm: The model behind it.
        context: The length of its context, where known.
        ignored: What it ignores, as `IGNORED`; ``None`` for nothing.
        served: By an adapter's path, its name there.
        default: The adapter's name there that answers where no other does; empty for the base.
    """

    llm: LLM
    context: int | None = None
    ignored: Mapping[str, Any] | None = None
    served: Mapping[str, str] = field(default_factory=dict)
    default: str = ""


@contextmanager
def run_transformers_serve(model: str) -> Iterator[Backend]:
    """Run ``transformers serve`` with a full model while the block runs.

    Raises:
        ModelError: When the model cannot be loaded or the server does not start.
    """
    local = LocalModel(model)
    name = local.source.base
    port = _find_free_port()
    words = ["transformers.cli.transformers", "serve", name, "--host", "127.0.0.1", "--port", str(port)]
    words += ["--device", local.device, "--dtype", local.dtype]
    with _run_module(words, port):
        # The template as `rolellm chat` and training use it, which may not be the one in the folder.
        own = local.tokenizer.get_chat_template() if local.tokenizer.chat_template else load_chat_template()
        body = {
            "chat_template_kwargs": {"chat_template": continue_last_turn(own)},
            "generation_config": json.dumps(_GENERATION),
        }
        llm = LLM(base_url=f"http://127.0.0.1:{port}/v1", model=name, tokenizer=local.source.tokenizer, extra_body=body)
        ignored = {**IGNORED}
        if not _reads_tool_calls(local, own):
            ignored["tools"] = []
        yield Backend(llm, local.context, ignored)


@contextmanager
def run_adapter_server(base: str, adapters: Mapping[str, str], default: str = "") -> Iterator[Backend]:
    """Run `rolellm.playing.adapter_server` while the block runs.

    Args:
        base: A folder with a full model, or a Hub id.
        adapters: Their names, by their paths.
        default: The path of the adapter that answers where no other does; empty for the base.

    Raises:
        ModelError: When a model cannot be loaded, an adapter is for another base, or the server does not start.
    """
    for adapter in adapters:
        check_tuned_on(base, adapter)
    local = LocalModel(base)
    tokenizer = LocalModel(base, adapter=default).source.tokenizer if default else local.source.tokenizer
    port = _find_free_port()
    paths = {name: adapter for adapter, name in adapters.items()}
    settings = {"base": local.source.base, "plain": _PLAIN, "adapters": paths, "port": port}
    with _run_module(["rolellm.playing.adapter_server", json.dumps(settings)], port):
        llm = LLM(base_url=f"http://127.0.0.1:{port}/v1", model=_PLAIN, tokenizer=tokenizer)
        yield Backend(llm, local.context, _IGNORED_WITH_ADAPTERS, adapters, adapters.get(default, ""))


@contextmanager
def run_vllm(command: Sequence[str], base: str, adapters: Mapping[str, str], default: str = "") -> Iterator[Backend]:
    """Run vLLM with one base and adapters while the block runs; as `run_adapter_server`.

    Raises:
        ModelError: When vLLM does not start, or an adapter is for another base.
        SettingsError: For adapters whose chat templates differ: vLLM has one.
    """
    for adapter in adapters:
        check_tuned_on(base, adapter)
    models = [LocalModel(base, adapter=adapter) for adapter in adapters] or [LocalModel(base)]
    templates = {model.tokenizer.chat_template or load_chat_template() for model in models}
    if len(templates) > 1:
        raise SettingsError("these adapters have several chat templates, and vLLM takes one; use --engine builtin")
    # It adds adapters while it runs.
    os.environ["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "True"
    with tempfile.TemporaryDirectory(prefix="rolellm-serve-") as scratch:
        template = Path(scratch) / "chat_template.jinja"
        template.write_text(templates.pop(), encoding="utf-8")
        server = VLLMServer([*command, "--chat-template", str(template)], models)
        try:
            asyncio.run(server.start(Path(scratch), lambda: False))
            endpoint = server.endpoint
            assert endpoint is not None
            settings = endpoint.settings
            llm = LLM(base_url=settings.base_url, model=settings.model, tokenizer=models[0].source.tokenizer)
            served = {model.source.adapter: server.get_name(model) for model in models if model.source.adapter}
            yield Backend(llm, models[0].context, None, served, served.get(default, ""))
        finally:
            server.stop()


def _find_free_port() -> int:
    with listen("127.0.0.1", 0) as free:
        port: int = free.getsockname()[1]
    return port


@contextmanager
def _run_module(words: list[str], port: int) -> Iterator[None]:
    """Run a module of Python that serves at a port, from its first answer on, while the block runs."""
    with tempfile.TemporaryDirectory(prefix="rolellm-serve-") as scratch:
        log = Path(scratch) / "log"
        with log.open("wb") as out:
            process = subprocess.Popen([sys.executable, "-m", *words], stdout=out, stderr=out)
        try:
            _wait(process, f"http://127.0.0.1:{port}/health", log)
            yield
        finally:
            process.terminate()
            process.wait()


def _reads_tool_calls(local: LocalModel, template: str) -> bool:
    """Tell whether a model's template shows tools, and `transformers serve` finds the calls in its replies."""
    from transformers.cli.serving.utils import get_response_template

    return "tools" in template and get_response_template(local.tokenizer, local) is not None


def _wait(process: subprocess.Popen[bytes], health: str, log: Path) -> None:
    while True:
        if process.poll() is not None:
            last = (log.read_text(errors="replace").strip().splitlines() or ["no message"])[-1]
            raise ModelError(f"the server of the model ended before it was ready: {last[:500]}")
        try:
            urllib.request.urlopen(health, timeout=1).close()
            return
        except OSError:
            time.sleep(0.2)
