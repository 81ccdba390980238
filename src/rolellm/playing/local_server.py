"""Servers of models on this machine, started for `rolellm.playing.server` to pass requests on to."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rolellm.core.errors import SettingsError
from rolellm.llm.llm import LLM
from rolellm.llm.settings import ModelSettings
from rolellm.llm.vllm import VLLMServer, find_free_port, has_gpu, run_server
from rolellm.models.adapters import PLAIN, check_tuned_on
from rolellm.models.local_model import LocalModel, choose_dtype
from rolellm.models.prompts.render import load_chat_template

#: A model behind an address, the names there of adapters, by their paths, and their base where it is on this machine.
Backend = tuple[LLM, Mapping[str, str], str | None]


@contextmanager
def run_builtin(base: str, adapters: Mapping[str, str]) -> Iterator[Backend]:
    """Run `rolellm.playing.adapter_server` while the block runs.

    Args:
        base: A folder with a full model, or a Hub id.
        adapters: Their names, by their paths.

    Raises:
        ModelError: When a model cannot be loaded, an adapter is for another base, or the server does not start.
    """
    local = LocalModel(base, adapter=next(iter(adapters), None))
    port = find_free_port()
    paths = {name: adapter for adapter, name in adapters.items()}
    settings = {"base": local.source.base, "adapters": paths, "port": port}
    url = f"http://127.0.0.1:{port}/v1"
    with run_server([sys.executable, "-m", "rolellm.playing.adapter_server", json.dumps(settings)], f"{url}/models"):
        llm = LLM(base_url=url, model=PLAIN, tokenizer=local.source.tokenizer)
        yield llm, adapters, local.source.base


@contextmanager
def run_vllm(command: Sequence[str], base: str, adapters: Mapping[str, str]) -> Iterator[Backend]:
    """Run vLLM with one base and adapters while the block runs; as `run_builtin`.

    Raises:
        ModelError: When vLLM does not start, or an adapter is for another base.
        SettingsError: For adapters whose chat templates differ: vLLM has one.
    """
    for adapter in adapters:
        check_tuned_on(base, adapter)
    models = [LocalModel(base, adapter=adapter) for adapter in adapters] or [LocalModel(base)]
    templates = {model.tokenizer.chat_template or load_chat_template() for model in models}
    if len(templates) > 1:
        raise SettingsError("these adapters have several chat templates, and vLLM takes one; use --set engine=builtin")
    if has_gpu():
        # vLLM's torch has one, even where that of this environment has none.
        models[0].dtype = choose_dtype("auto", "cuda", models[0].config)
    # It adds adapters while it runs.
    os.environ["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "True"
    scratch = Path(tempfile.mkdtemp(prefix="rolellm-serve-"))
    template = scratch / "chat_template.jinja"
    template.write_text(templates.pop(), encoding="utf-8")
    server = VLLMServer([*command, "--chat-template", str(template)], models)

    async def start() -> ModelSettings:
        await server.start(scratch, lambda: False)
        assert server.endpoint is not None
        await server.endpoint.close()
        return server.endpoint.settings

    try:
        settings = asyncio.run(start())
        llm = LLM(base_url=settings.base_url, model=settings.model, tokenizer=models[0].source.tokenizer)
        served = {model.source.adapter: server.get_name(model) for model in models if model.source.adapter}
        yield llm, served, base
    finally:
        server.stop()
    # After an error, its log is needed.
    shutil.rmtree(scratch)
