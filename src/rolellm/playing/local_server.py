"""``transformers serve``, started with a model of this machine, for `rolellm.playing.server` to pass requests on to."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rolellm.core.errors import ModelError
from rolellm.llm.llm import LLM
from rolellm.models.load import merge_adapter
from rolellm.models.local_model import LocalModel
from rolellm.models.prompts.encode import find_end_token
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
def run_transformers_serve(
    model: str, adapter: str | None = None
) -> Iterator[tuple[LLM, int | None, Mapping[str, Any]]]:
    """Run ``transformers serve`` with a model while the block runs.

    It takes no adapters: one is merged into its base first, in a temporary folder.

    Yields:
        The model behind the server, the length of its context where its config gives one, and what it ignores as
        `IGNORED` does.

    Raises:
        ModelError: When the model cannot be loaded or the server does not start.
    """
    local = LocalModel(model, adapter=adapter)
    with tempfile.TemporaryDirectory(prefix="rolellm-serve-") as scratch:
        source = local.source
        name = local.source.base
        tokenizer = local.source.tokenizer
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
            body = {
                "chat_template_kwargs": {"chat_template": continue_last_turn(own)},
                "generation_config": json.dumps(_GENERATION),
            }
            llm = LLM(base_url=f"http://127.0.0.1:{port}/v1", model=name, tokenizer=tokenizer, extra_body=body)
            ignored = {**IGNORED}
            if not _reads_tool_calls(local, own):
                ignored["tools"] = []
            yield llm, local.context, ignored
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
            raise ModelError(f"`transformers serve` ended before it was ready: {last[:500]}")
        try:
            urllib.request.urlopen(health, timeout=1).close()
            return
        except OSError:
            time.sleep(0.2)
