"""llama.cpp's own tools: found, and run as programs. No GGUF is written here."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from rolellm.core.errors import ModelError, SettingsError
from rolellm.core.files import NO_ROOM
from rolellm.core.jsonl import read_json
from rolellm.llm.vllm import find_free_port, run_server

#: Names a folder with llama.cpp.
VARIABLE: Final = "LLAMA_CPP"
INSTALL: Final = "git clone --depth 1 https://github.com/ggml-org/llama.cpp, and name the folder: --llama-cpp llama.cpp"
SERVER: Final = "build llama.cpp, and put its build/bin on the PATH; or pip install 'llama-cpp-python[server]'"
#: What the converter writes itself; other types need `llama-quantize`.
CONVERTED: Final = ("auto", "f32", "f16", "bf16", "q8_0")
_CONVERT, _CONVERT_LORA = "convert_hf_to_gguf.py", "convert_lora_to_gguf.py"
_QUANTIZER = "llama-quantize"
_FOLDERS = ("", "bin", "build/bin")
_SHORT_WRITE = re.compile("[0-9]+ requested and [0-9]+ written")
_UNKNOWN_RULE = "pre-tokenizer was not recognized"
#: GPT-2's rule, which tokenizers trained from scratch have; the converter knows rules by their vocabularies alone.
_GPT2 = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
_CONVERT_GPT2 = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import convert_hf_to_gguf
for model in convert_hf_to_gguf.ModelBase.__subclasses__():
    model.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
convert_hf_to_gguf.main()
"""


class LlamaCpp:
    """The tools of one llama.cpp.

    Args:
        folder: A checkout, or another folder with the tools; by default ``$LLAMA_CPP``, then the PATH.

    Attributes:
        converter: The script that converts a model; ``None`` where there is none.

    Raises:
        SettingsError: When the folder is not there, or has none of the tools.
    """

    def __init__(self, folder: str | Path | None) -> None:
        named = folder or os.environ.get(VARIABLE)
        self._folders: list[Path] = []
        if named:
            root = Path(named).expanduser().absolute()
            self._folders = [root / name for name in _FOLDERS]
        self.converter = self._find(_CONVERT)
        if named and self.converter is None:
            raise SettingsError(f"{named} has no {_CONVERT}; get llama.cpp: {INSTALL}")

    def _find(self, name: str) -> Path | None:
        """Find a tool in the folder, else on the PATH."""
        for folder in self._folders:
            if (folder / name).is_file():
                return folder / name
        path = shutil.which(name)
        return None if path is None else Path(path).resolve()

    def check_quantization(self, quantization: str) -> None:
        """Check that weights can be written in a type.

        Raises:
            SettingsError: When a tool for it is missing; says how to get it.
        """
        if self.converter is None:
            raise SettingsError(f"GGUF needs llama.cpp, which is not here; get it: {INSTALL}")
        if quantization not in CONVERTED and self._find(_QUANTIZER) is None:
            raise SettingsError(
                f"--quantize {quantization} needs llama.cpp's {_QUANTIZER}, which is not here; build llama.cpp and "
                f"put its build/bin on the PATH, or use one of {', '.join(CONVERTED)}"
            )

    def convert(self, model: Path, out: Path, quantization: str) -> None:
        """Convert a model's folder.

        Args:
            model: The folder.
            out: The file to write.
            quantization: One of `CONVERTED`, or a type that `llama-quantize` knows.

        Raises:
            ModelError: When a tool refuses the model; has its words.
        """
        assert self.converter is not None
        is_whole = quantization in CONVERTED
        whole = out if is_whole else out.with_suffix(".whole")
        options = ["--outfile", str(whole), "--outtype", quantization if is_whole else "auto", str(model)]
        try:
            _run(_CONVERT, sys.executable, str(self.converter), *options)
        except ModelError as error:
            if _UNKNOWN_RULE not in str(error) or not _splits_like_gpt2(model):
                raise
            _run(_CONVERT, sys.executable, "-c", _CONVERT_GPT2, str(self.converter.parent), *options)
        if not is_whole:
            _run(_QUANTIZER, str(self._find(_QUANTIZER)), str(whole), str(out), quantization)
            whole.unlink()

    def convert_adapter(self, adapter: Path, base: Path, out: Path) -> None:
        """Convert an adapter's folder.

        Args:
            adapter: The folder.
            base: The folder of its base.
            out: The file to write.

        Raises:
            ModelError: When the converter refuses the adapter; has its words.
        """
        script = self._find(_CONVERT_LORA)
        if script is None:
            raise ModelError(f"{self.converter} has no {_CONVERT_LORA} beside it; leave --set apart out")
        options = ["--outtype", "f32", "--base", str(base), "--outfile", str(out), str(adapter)]
        try:
            _run(_CONVERT_LORA, sys.executable, str(script), *options)
        except ModelError as error:
            raise ModelError(f"{error}; merge the adapter into its base: leave --set apart out") from error

    def find_server(self) -> list[str] | None:
        """Find llama.cpp's server: ``llama-server``, or that of ``llama-cpp-python``."""
        path = self._find("llama-server")
        if path is not None:
            return [str(path)]
        if find_spec("llama_cpp") is not None and find_spec("starlette_context") is not None:
            return [sys.executable, "-m", "llama_cpp.server"]
        return None

    @contextmanager
    def serve(self, files: Sequence[Path], context: int) -> Iterator[str]:
        """Run llama.cpp's server with a file while the block runs.

        Args:
            files: The model's file, and that of an adapter on it.
            context: The most tokens of a prompt and its reply.

        Yields:
            Its address.

        Raises:
            ModelError: When it ends before it answers.
        """
        command = self.find_server()
        assert command is not None
        model, adapter = (*files, None)[:2]
        options: dict[str, Any] = {"model": model, "host": "127.0.0.1", "port": find_free_port()}
        if len(command) == 1:
            options |= {"lora": adapter, "ctx-size": context, "parallel": 1}
            command.append("--jinja")
        else:
            options |= {"lora_path": adapter, "n_ctx": context, "logits_all": "true"}
        for name, value in options.items():
            if value is not None:
                command += [f"--{name}", str(value)]
        address = f"http://127.0.0.1:{options['port']}/v1"
        with run_server(command, f"{address}/models"):
            yield address


def _run(tool: str, *command: str) -> None:
    """Run a tool; `tool` is its name in messages.

    Raises:
        OSError: When it found no room on the disk.
        ModelError: When it fails; has the last line that it wrote.
    """
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", env=environment
        )
    except OSError as error:
        raise ModelError(f"{command[0]} cannot be run: {error}") from error
    if done.returncode == 0:
        return
    output = done.stdout + done.stderr
    # NumPy's words name no reason.
    if _SHORT_WRITE.search(output) or any(os.strerror(number) in output for number in NO_ROOM):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    lines = [line for line in output.splitlines() if re.match(r"ERROR|\w*(Error|Exception)\b|error", line)]
    last = (lines or output.strip().splitlines() or ["no message"])[-1]
    raise ModelError(f"llama.cpp's {tool} failed: {last[:500]}")


def _splits_like_gpt2(model: Path) -> bool:
    """Tell whether a tokenizer splits texts by GPT-2's rule."""
    file = model / "tokenizer.json"
    if not file.is_file():
        return False
    content = read_json(file)
    rule = content.get("pre_tokenizer") or {}
    return content.get("normalizer") is None and rule.items() >= _GPT2.items()
