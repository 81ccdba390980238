"""``transformers serve``, started with a model of this machine, for `rolellm.playing.server` to pass requests on to."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rolellm.core.errors import ModelError
from rolellm.llm.llm import LLM
from rolellm.models.find import find_model
from rolellm.models.load import merge_adapter
from rolellm.models.local_model import LocalModel
from rolellm.models.prompts.encode import find_end_token
from rolellm.models.prompts.render import load_chat_template
from rolellm.playing.server import listen

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


@contextmanager
def run_transformers_serve(model: str, adapter: str | None = None) -> Iterator[tuple[LLM, int | None]]:
    """Run ``transformers serve`` with a model while the block runs.

    It takes no adapters: one is merged into its base first, in a temporary folder.

    Yields:
        The model behind the server, and the length of its context where its config gives one.

    Raises:
        ModelError: When the model cannot be loaded or the server does not start.
    """
    local = LocalModel(model, adapter=adapter)
    with tempfile.TemporaryDirectory(prefix="rolellm-serve-") as scratch:
        source, name, tokenizer = local.source, local.source.base, local.source.tokenizer
        if source.adapter is not None:
            name = tokenizer = str(Path(scratch) / "model")
            merge_adapter(source.base, Path(source.adapter), Path(name), find_end_token(local.tokenizer))
            local.tokenizer.save_pretrained(name)
        with listen("127.0.0.1", 0) as free:
            port = free.getsockname()[1]
        words = ["serve", name, "--host", "127.0.0.1", "--port", str(port)]
        words += ["--device", local.device, "--dtype", local.dtype]
        log = Path(scratch) / "log"
        with log.open("wb") as out:
            command = [sys.executable, "-m", "transformers.cli.transformers", *words]
            process = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            _wait(process, f"http://127.0.0.1:{port}/health", log)
            # The template as `rolellm chat` and training use it, which may not be the one in the folder.
            own = local.tokenizer.get_chat_template() if local.tokenizer.chat_template else load_chat_template()
            body = {"chat_template_kwargs": {"chat_template": continue_last_turn(own)}}
            url = f"http://127.0.0.1:{port}/v1"
            yield LLM(base_url=url, model=name, tokenizer=tokenizer, extra_body=body), local.context
        finally:
            process.terminate()
            process.wait()


def _wait(process: subprocess.Popen[bytes], health: str, log: Path) -> None:
    while True:
        if process.poll() is not None:
            last = (log.read_text(errors="replace").strip().splitlines() or ["no message"])[-1]
            raise ModelError(f"`transformers serve` ended before it was ready: {last[:500]}")
        try:
            urllib.request.urlopen(health, timeout=1).close()
            return
        except OSError:
            time.sleep(0.2)


def build_vllm_command(model: str, adapter: str | None = None) -> str | None:
    """The command by which vLLM serves an adapter; ``None`` for a whole model."""
    source = find_model(model, adapter)
    if source.adapter is None:
        return None
    words = ["vllm", "serve", source.base, "--enable-lora", "--lora-modules", f"tuned={source.adapter}"]
    return f"{shlex.join(words)}  # then: --base-url http://localhost:8000/v1 --model tuned"
