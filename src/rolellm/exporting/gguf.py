"""GGUF files, written by llama.cpp's own converters, and quantized by its own program."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rolellm.core.errors import ModelError, SettingsError
from rolellm.core.sanitize import show_on_line
from rolellm.exporting.passport import Passport

_CONVERTER: Final = "convert_hf_to_gguf.py"
_LORA_CONVERTER: Final = "convert_lora_to_gguf.py"
_BUNDLE: Final = "gitRelease.bundle"
_HOW: Final = "get it by `git clone --depth 1 https://github.com/ggml-org/llama.cpp`, and name it with --llama-cpp DIR"
_TYPES: Final = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


@dataclass(frozen=True, slots=True)
class LlamaCpp:
    """A copy of llama.cpp.

    Attributes:
        folder: Where its converters are.
    """

    folder: Path

    def convert(self, model: Path, out: Path, dtype: str, passport: Passport) -> None:
        """Convert a full model, in the precision that its weights have.

        Args:
            model: A folder as transformers writes it.
            out: The file to write.
            dtype: The weights' type, such as ``bfloat16``.
            passport: Goes into the file's description.

        Raises:
            ModelError: When the converter refuses it; says why.
        """
        described = f"Made by rolellm {passport.rolellm}. {json.dumps(passport.to_dict())}"
        with tempfile.TemporaryDirectory() as scratch:
            metadata = Path(scratch, "metadata.json")
            metadata.write_text(json.dumps({"general.description": described}), encoding="utf-8")
            words = [str(model), "--outfile", str(out), "--outtype", _TYPES.get(dtype, "auto")]
            self._run(_CONVERTER, [*words, "--metadata", str(metadata)], out)

    def convert_adapter(self, adapter: Path, base: Path, out: Path) -> None:
        """Convert an adapter for its base.

        Raises:
            ModelError: When the converter refuses it, such as for a target that it does not know; says why.
        """
        self._run(_LORA_CONVERTER, [str(adapter), "--base", str(base), "--outfile", str(out), "--outtype", "f32"], out)

    def quantize(self, model: Path, kind: str) -> Path:
        """Quantize a file by ``llama-quantize``, and put the result in its place.

        Raises:
            SettingsError: Without the program, or for a kind that it does not know.
        """
        program = self.find_program("llama-quantize")
        if program is None:
            raise SettingsError(
                f"no llama-quantize in {self.folder}: build it there with `cmake -B build && cmake --build build "
                "--target llama-quantize`, or leave --quantize out"
            )
        out = model.with_name(f"{model.stem}-{kind.lower()}.gguf")
        done = subprocess.run([program, str(model), str(out), kind.upper()], capture_output=True, text=True)
        if done.returncode or not out.is_file():
            raise SettingsError(f"llama-quantize refuses {kind}: {_find_reason(done)}")
        model.unlink()
        return out

    def find_program(self, name: str) -> str | None:
        """Find a program of llama.cpp: where it is built, else on the PATH."""
        for folder in (self.folder, self.folder / "build" / "bin", self.folder / "bin"):
            if (folder / name).is_file():
                return str(folder / name)
        return shutil.which(name)

    def _run(self, script: str, words: Sequence[str], out: Path) -> None:
        path = self.folder / script
        if not path.is_file():
            raise SettingsError(f"{self.folder} has no {script}; {_HOW}")
        library = os.pathsep.join(filter(None, (str(self.folder / "gguf-py"), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": library, "HF_HUB_OFFLINE": "1"}
        done = subprocess.run([sys.executable, str(path), *words], env=environment, capture_output=True, text=True)
        if done.returncode or not out.is_file():
            raise ModelError(f"llama.cpp's {script} refuses the model: {_find_reason(done)}")


def _find_reason(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return show_on_line(lines[-1]) if lines else f"exit code {done.returncode}"


@contextmanager
def open_llama_cpp(folder: str | Path | None) -> Iterator[LlamaCpp]:
    """Find llama.cpp: in the folder given, in ``$LLAMA_CPP``, or where its converter is on the PATH.

    A folder of npm's ``node-llama-cpp`` has the source as a bundle of git, which is unpacked for as long as needed.

    Raises:
        SettingsError: When there is none; says how to get it.
    """
    given = folder or os.environ.get("LLAMA_CPP")
    on_path = shutil.which(_CONVERTER)
    if given is None and on_path is not None:
        given = Path(on_path).resolve().parent
    if given is None:
        raise SettingsError(f"no llama.cpp: {_HOW}")
    path = Path(given)
    bundles = [bundle for bundle in (path / _BUNDLE, path / "llama" / _BUNDLE) if bundle.is_file()]
    if (path / _CONVERTER).is_file() or not bundles:
        if not path.is_dir():
            raise SettingsError(f"{path} is not a folder with llama.cpp; {_HOW}")
        yield LlamaCpp(path)
        return
    with tempfile.TemporaryDirectory() as scratch:
        clone = ["git", "clone", "-q", str(bundles[0]), scratch]
        done = subprocess.run(clone, capture_output=True, text=True)
        if done.returncode:
            raise SettingsError(f"{bundles[0]} cannot be unpacked: {_find_reason(done)}")
        yield LlamaCpp(Path(scratch))
