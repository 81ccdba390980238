"""`rolellm.export`: a tuned character becomes files that other programs run."""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args

from rolellm.characters.folder import PROFILE
from rolellm.characters.roles import Part, find_part
from rolellm.core.errors import ModelError, SettingsError, StoppedShortError, require
from rolellm.core.files import is_disk_full, write_json
from rolellm.core.result import Result
from rolellm.core.settings import suggest_keywords
from rolellm.core.text import make_safe_name
from rolellm.exporting.check import ExportCheck, check_export
from rolellm.exporting.gguf import LlamaCpp, open_llama_cpp
from rolellm.exporting.modelfile import read_turn_form, write_modelfile
from rolellm.exporting.passport import PASSPORT, Passport, make_passport, stamp_safetensors
from rolellm.llm.model import Sampling
from rolellm.llm.vllm import find_lora_rank
from rolellm.models.find import locate_model
from rolellm.models.load import fetch, load_whole, merge_adapter
from rolellm.models.local_model import LocalModel
from rolellm.models.prompts.render import load_system_template
from rolellm.training.run_folder import ADAPTER, FULL

Form = Literal["merged", "gguf", "ollama", "vllm"]
_MODELFILE: Final = "Modelfile"
_TEMPLATE: Final = "chat_template.jinja"
#: Tokens of prompt and reply that Ollama gives memory to, at most; its own default is 4,096.
_CONTEXT: Final = 8192


@dataclass(frozen=True, slots=True, repr=False)
class Exported(Result):
    """What was exported.

    Attributes:
        folder: Where it is.
        form: What it is for.
        files: Its files.
        passport: What is known of the character; also ``role.json``.
        check: What was written, compared with the run; ``None`` where the adapter was copied as it is.
        lines: The command lines that start it.
    """

    folder: Path
    form: Form
    files: tuple[str, ...]
    passport: Passport
    check: ExportCheck | None
    lines: tuple[str, ...] = field(default=())

    @property
    def has_passed(self) -> bool:
        """True if what was written answers as the run does."""
        return self.check is None or self.check.has_passed

    def remarks(self) -> list[str]:
        """Say what was written, and what the check found."""
        remarks = [f"In {self.folder}: {', '.join(self.files)}"]
        if self.check is not None:
            remarks.append(str(self.check))
        return remarks

    @property
    def continues_with(self) -> tuple[str, ...]:
        """The command lines that start it."""
        return self.lines

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, and the check in words."""
        values = super(Exported, self).to_dict()
        return {**values, "checked": str(self.check or "")}


@dataclass(frozen=True, slots=True)
class _Export:
    """What is exported: a model, and the role that it plays."""

    folder: Path
    model: LocalModel
    name: str
    part: Part | None
    passport: Passport

    @property
    def adapter(self) -> Path | None:
        """The folder of the adapter; ``None`` for a full model."""
        adapter = self.model.source.adapter
        return None if adapter is None else Path(adapter)

    @property
    def system(self) -> str:
        """The role's system turn; empty where no role is known."""
        if self.part is None:
            return ""
        return self.part.system_turn(load_system_template(self.part.sheet.language))

    def find_base(self) -> Path:
        """Find the folder of the base, fetched from the Hub where it is there."""
        source = self.model.source
        if Path(source.base).is_dir():
            return Path(source.base)
        return fetch(source.base, source.revision, weights=True)


@suggest_keywords()
def export(
    run: Any,
    to: str,
    out: str | Path,
    *,
    role: Any = None,
    llama_cpp: str | Path | None = None,
    quantize: str | None = None,
    apart: bool = False,
    license: str = "",
) -> Exported:
    """Export a tuned character for other programs.

    Args:
        run: A run of `rolellm.train`, any folder of an adapter or a full model, or a character's folder as
            `rolellm.make` leaves it.
        to: ``merged`` for transformers, vLLM, SGLang and LM Studio; ``gguf`` for llama.cpp; ``ollama``; or ``vllm``,
            which puts the adapter on its base.
        out: A new folder. Nothing is left under this name unless all is written.
        role: Whom it plays, as `rolellm.RolePlayer` takes it; by default the character in whose folder the run is.
        llama_cpp: For GGUF: a copy of llama.cpp; by default ``$LLAMA_CPP``, or where its converter is on the PATH.
        quantize: For GGUF: the kind, such as ``q4_k_m``.
        apart: For GGUF: the base and the adapter in a file each.
        license: As the Hub spells it, for the passport.

    Raises:
        SettingsError: For an unknown form, a folder that is there, a role that is needed and unknown, and no llama.cpp.
        ModelError: When there is no model, an adapter does not fit its base, or a converter refuses it.
        StoppedShortError: With a full disk; nothing is left.
    """
    require("torch", "transformers", "peft", extra="train")
    forms: tuple[Form, ...] = get_args(Form)
    if to not in forms:
        raise SettingsError(f"no form {to!r}; export to one of {', '.join(forms)}")
    form: Form = to
    target = Path(out)
    if target.exists():
        raise SettingsError(f"{target} exists already; choose another folder (--out)")
    if quantize and form not in ("gguf", "ollama"):
        raise SettingsError(f"only GGUF files are quantized, and {form} has none; leave --quantize out")
    source = _find_source(run, role, license)
    if form == "ollama" and source.part is None:
        raise SettingsError("a Modelfile needs the role's prompt, and no role is known; name it with --role")
    with _stage(target) as staged:
        if form == "merged":
            check = _write_merged(source, staged)
        elif form == "vllm":
            check = None
            _write_for_vllm(source, staged)
        else:
            with open_llama_cpp(llama_cpp) as converter:
                check = _write_gguf(source, staged, converter, quantize, apart=apart)
        if form == "ollama":
            _write_modelfile(source, staged)
        write_json(staged / PASSPORT, source.passport.to_dict())
        files = tuple(sorted(file.name for file in staged.iterdir()))
    return Exported(target, form, files, source.passport, check, tuple(_list_lines(source, target, form, files)))


def _find_source(run: Any, role: Any, license: str) -> _Export:
    folder = Path(locate_model(str(getattr(run, "out", run))))
    character: Path | None = None
    for candidate in (folder, folder.parent):
        if (candidate / PROFILE).is_file():
            character = candidate
            break
    if character == folder:
        folder /= "adapter"
        if not folder.is_dir():
            raise ModelError(f"{character} has no adapter; tune one: rolellm make {character} --base BASE")
    role = character if role is None else role
    part = None if role is None else find_part(role)
    name, language = "", ""
    if part is not None:
        name, language = part.sheet.role, part.sheet.language
    passport = make_passport(folder, character, name, language, license)
    label = make_safe_name(name or folder.name).lower()
    return _Export(folder, LocalModel(str(folder)), label, part, passport)


@contextmanager
def _stage(target: Path) -> Iterator[Path]:
    """A folder next to the target, which gets its name when all is written, and is gone otherwise."""
    target.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        yield staged
        staged.chmod(0o755)
        staged.rename(target)
    except BaseException as error:
        shutil.rmtree(staged, ignore_errors=True)
        if isinstance(error, OSError) and is_disk_full(error):
            text = f"the disk of {target.parent} is full; nothing was left there. Free some space and rerun"
            raise StoppedShortError(text, resume="the same command") from error
        raise


def _merge(source: _Export, folder: Path) -> None:
    """Write the full model: an adapter merged into its base, or the model as it is, with its tokenizer."""
    if source.adapter is not None:
        merge_adapter(source.find_base(), source.adapter, folder, source.model.end)
    else:
        load_whole(source.find_base(), dtype="auto").save_pretrained(folder)
    source.model.tokenizer.save_pretrained(folder)


def _write_merged(source: _Export, staged: Path) -> ExportCheck:
    _merge(source, staged)
    for file in staged.glob("*.safetensors"):
        stamp_safetensors(file, source.passport)
    return _check(source, staged, "merged")


def _check(source: _Export, written: Path, form: str) -> ExportCheck:
    language = "en" if source.part is None else source.part.sheet.language
    return check_export(source.model, source.system, language, written, form)


def _write_gguf(
    source: _Export, staged: Path, converter: LlamaCpp, quantize: str | None, *, apart: bool
) -> ExportCheck | None:
    """Write one file of the merged model, or the base and the adapter."""
    file = staged / f"{source.name}.gguf"
    with tempfile.TemporaryDirectory(dir=staged.parent, prefix=".merged-") as scratch:
        folder = Path(scratch)
        if apart:
            if source.adapter is None:
                raise SettingsError("all weights are tuned, so there is no adapter apart; leave apart out")
            load_whole(source.find_base(), dtype="auto").save_pretrained(folder)
            source.model.tokenizer.save_pretrained(folder)
            file = staged / "base.gguf"
            converter.convert_adapter(source.adapter, folder, staged / f"{source.name}.gguf")
        else:
            _merge(source, folder)
        dtype = str(LocalModel(str(folder)).config.dtype).removeprefix("torch.")
        converter.convert(folder, file, dtype, source.passport)
    check = None if apart else _check(source, file, "gguf")
    if quantize:
        converter.quantize(file, quantize)
    return check


def _write_modelfile(source: _Export, staged: Path) -> None:
    files = sorted(file.name for file in staged.glob("*.gguf"))
    bases = [name for name in files if name.startswith("base")]
    adapter = next((name for name in files if bases and name not in bases), "")
    tokenizer = source.model.tokenizer
    text = write_modelfile(
        bases[0] if bases else files[0],
        read_turn_form(tokenizer),
        system=source.system,
        stops=[str(tokenizer.convert_ids_to_tokens(stop)) for stop in source.model.stops],
        temperature=Sampling().temperature,
        context=min(source.model.context or _CONTEXT, _CONTEXT),
        adapter=adapter,
    )
    (staged / _MODELFILE).write_text(text, encoding="utf-8")


def _write_for_vllm(source: _Export, staged: Path) -> None:
    """Copy the adapter, or the model, with the chat template as training settled it."""
    patterns = FULL if source.adapter is None else ADAPTER
    for pattern in patterns:
        for file in (source.adapter or source.folder).glob(pattern):
            shutil.copyfile(file, staged / file.name)
    source.model.tokenizer.save_pretrained(staged)
    (staged / _TEMPLATE).write_text(str(source.model.tokenizer.chat_template), encoding="utf-8")


def _list_lines(source: _Export, target: Path, form: Form, files: tuple[str, ...]) -> Iterator[str]:
    """List the command lines that start what was written."""
    if form == "ollama":
        yield shlex.join(["ollama", "create", source.name, "-f", str(target / _MODELFILE)])
        yield shlex.join(["ollama", "run", source.name])
    elif form == "gguf":
        model = next(name for name in files if name.endswith(".gguf"))
        words = ["llama-server", "-m", str(target / model)]
        if "base.gguf" in files:
            words = ["llama-server", "-m", str(target / "base.gguf"), "--lora", str(target / f"{source.name}.gguf")]
        yield shlex.join([*words, "--jinja"])
    elif form == "vllm":
        template = ["--chat-template", str(target / _TEMPLATE), "--generation-config", "vllm"]
        if source.adapter is None:
            yield shlex.join(["vllm", "serve", str(target), *template])
            return
        rank = str(find_lora_rank([str(source.adapter)]))
        lora = ["--enable-lora", "--max-lora-rank", rank, "--lora-modules", f"{source.name}={target}"]
        yield shlex.join(["vllm", "serve", source.model.source.base, *lora, *template])
