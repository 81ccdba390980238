"""`rolellm.export`: a tuned model in the form that another program takes, checked against the run that it is from."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal

from rolellm.characters.folder import PROFILE
from rolellm.characters.roles import Part, find_part
from rolellm.core.errors import ModelError, SettingsError, require
from rolellm.core.files import fill_folder, is_disk_full, open_atomic, write_json
from rolellm.core.result import Result
from rolellm.core.settings import Advanced, read, settings, suggest_keywords
from rolellm.core.text import join_names
from rolellm.exporting.check import REPLY_TOKENS, ExportCheck, ask_model, ask_server, compare, make_check_prompts
from rolellm.exporting.llama_cpp import INSTALL, SERVER, LlamaCpp
from rolellm.exporting.modelfile import write_modelfile, write_template
from rolellm.exporting.passport import FILE, make_passport, stamp_safetensors, write_model_card
from rolellm.llm.vllm import find_lora_rank
from rolellm.models.find import locate_model, read_adapter_config
from rolellm.models.load import fetch, load_part, merge_adapter
from rolellm.models.local_model import LocalModel
from rolellm.models.prompts.render import load_chat_template, load_system_template
from rolellm.models.training_record import MANIFEST, read_manifest
from rolellm.playing.settings import PlaySettings
from rolellm.training.publish import check_base, link_files, read_finished_run
from rolellm.training.run_folder import ADAPTER, FULL, name_base

Json = Mapping[str, Any]
Format = Literal["merged", "gguf", "ollama", "vllm"]
_MODELFILE: Final = "Modelfile"
#: Most tokens of a talk that Ollama keeps memory for (our choice); it has 4,096 by default.
_CONTEXT: Final = 8192
# The tag by which TRL finds the replies in a template; other programs' engines do not know it.
_GENERATION: Final = re.compile(r"{%(-?)\s*(?:end)?generation\s*(-?)%}")
# What vLLM takes in an adapter is a low-rank change of linear layers.
_NOT_SERVED: Final = ("use_dora", "modules_to_save", "trainable_token_indices", "target_parameters")


@settings
class ExportSettings:
    """Export.

    Attributes:
        role: Who the model plays: a character's folder, a card or a role; by default the run's, where it has one.
        quantize: Type of the weights in GGUF, such as f16, q8_0 or q4_k_m; by default the base's precision.
        llama_cpp: Folder of llama.cpp; by default $LLAMA_CPP, then the PATH.
        license: License, as the Hub spells it, for the passport.
        apart: Write the base and an adapter as two GGUF files.
        scores: Output of rolellm score --json, for the passport; may be repeated.
    """

    role: Path | None = None
    quantize: str = "auto"
    llama_cpp: Path | None = None
    license: Advanced[str | None] = None
    apart: Advanced[bool] = False
    scores: Advanced[tuple[Path, ...]] = ()


@dataclass(frozen=True, slots=True, repr=False)
class Exported(Result):
    """A model that went out.

    Attributes:
        out: The folder.
        to: For what.
        files: What was written.
        check: What was written against the run.
        hints: What the user should know.
        continues_with: The lines to type.
    """

    out: Path
    to: Format
    files: tuple[str, ...]
    check: ExportCheck
    hints: tuple[str, ...] = ()
    continues_with: Sequence[str] = ()

    def remarks(self) -> list[str]:
        """Return what was written, and whether it is the same model."""
        return [f"Wrote {join_names(self.files, 8)} to {self.out}.", self.check.sentence, *self.check.differences]

    def notes(self) -> list[str]:
        """Return what the user should know."""
        return [f"note: {hint}" for hint in self.hints]

    @property
    def has_passed(self) -> bool:
        """True if it is the same model."""
        return self.check.has_passed


@suggest_keywords(ExportSettings)
def export(run: Any, to: Format, out: str | Path, **options: Any) -> Exported:
    """Write a tuned model in the form that another program takes, and check it against the run.

    Args:
        run: A run of `rolellm.train`, an adapter, a model, or a character's folder with an adapter.
        to: ``merged`` for transformers, vLLM, SGLang and LM Studio; ``gguf`` for llama.cpp; ``ollama``, with a
            Modelfile; or ``vllm``, with its command line.
        out: A folder that does not exist.
        options: Fields of `ExportSettings`.

    Raises:
        SettingsError: For an `out` that exists, and a role or a tool that is missing.
        ModelError: When the model cannot be loaded or converted, the adapter is for another base, or the disk is full;
            nothing is left at `out` then.
    """
    require("torch", "transformers", "peft", extra="train")
    chosen = read(ExportSettings, options)
    target = Path(out)
    if target.exists():
        raise SettingsError(f"{target} exists already; name a new folder with --out")
    if to in ("merged", "vllm") and (chosen.quantize != "auto" or chosen.apart):
        raise SettingsError(f"{to} has no GGUF; leave --quantize and --set apart out, or export --to gguf")
    source = _ExportSource.find(run, chosen.role)
    passport = make_passport(source.manifest, source.part, source.folder, chosen.scores, chosen.license)
    hints = []
    if source.part is None:
        hints.append("no role is named (--role), so there is no system prompt")
    tools = LlamaCpp(chosen.llama_cpp)
    with _explain_full_disk(target), fill_folder(target) as folder:
        files: list[Path] = []
        lines: list[list[str]] = []
        if to == "gguf" or (to == "ollama" and tools.converter is not None):
            files = _write_gguf(source, tools, chosen, folder, passport)
        elif to == "vllm":
            lines = [_write_vllm(source, folder, target)]
        else:
            source.write_merged(folder)
        if to == "ollama":
            hints += filter(None, [_write_modelfile(source, files, folder)])
            create = ["ollama", "create", source.name, "-f", str(target / _MODELFILE)]
            lines = [create, ["ollama", "run", source.name]]
            if not files:
                hints.append(f"without llama.cpp, Ollama converts the weights itself; for GGUF, get it: {INSTALL}")
        check = _check_files(source, tools, files, folder, hints)
        passport["check"] = check.to_dict()
        write_json(folder / FILE, passport)
        for file in folder.glob("*.safetensors"):
            stamp_safetensors(file, passport)
        names = sorted(path.name for path in folder.iterdir())
    return Exported(target, to, tuple(names), check, tuple(hints), tuple(map(shlex.join, lines)))


@contextmanager
def _explain_full_disk(target: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not is_disk_full(error):
            raise
        raise ModelError(
            f"the disk is full, so {target} was not written; free some space and rerun the same command"
        ) from error


@dataclass(frozen=True, slots=True)
class _ExportSource:
    """A model that goes out.

    Attributes:
        folder: Its folder; may be the id of a model on the Hub.
        model: The model, without its weights.
        manifest: Its run's; ``None`` for a model of others.
        part: Whom it plays.
        system: The role's system turn; empty for none.
    """

    folder: Path
    model: LocalModel
    manifest: dict[str, Any] | None
    part: Part | None
    system: str

    @classmethod
    def find(cls, run: Any, role: Path | None) -> _ExportSource:
        """Find a model and its role; no weights are loaded."""
        folder = Path(locate_model(str(getattr(run, "model_dir", run))))
        home = folder if (folder / PROFILE).is_file() else folder.parent
        if home == folder:
            folder /= "adapter"
            if not folder.is_dir():
                raise SettingsError(f"{run} has no adapter yet; tune one: rolellm make {run} --base MODEL")
        manifest = None
        if (folder / MANIFEST).is_file() and read_manifest(folder / MANIFEST) is not None:
            manifest = read_finished_run(folder)
        model = LocalModel(str(folder))
        if manifest is not None and model.source.adapter is not None and Path(model.source.base).is_dir():
            check_base(Path(model.source.base), manifest)
        if not model.tokenizer.chat_template:
            model.tokenizer.chat_template = load_chat_template()
        part = None
        if role is not None:
            part = find_part(role)
        elif (home / PROFILE).is_file():
            part = find_part(home)
        elif manifest is not None and len(manifest["trained_on"]["roles"]) == 1:
            # Where the role is of a release that is not here, only the user can name it.
            with suppress(SettingsError):
                part = find_part(manifest["trained_on"]["roles"][0])
        system = ""
        if part is not None:
            own = None if manifest is None else manifest["recipe"]["prompt"].get("system_template")
            system = part.system_turn(load_system_template(part.sheet.language, own))
        return cls(folder, model, manifest, part, system)

    @property
    def name(self) -> str:
        """The model's name elsewhere: in lower case, as Ollama wants it."""
        name = self.folder.name if self.part is None else self.part.sheet.role
        return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "character"

    @property
    def base(self) -> Path:
        """The folder of its base, or of the model where that is a whole one."""
        source = self.model.source
        if Path(source.base).is_dir():
            return Path(source.base)
        return fetch(source.base, source.revision, weights=True)

    def write_base(self, folder: Path) -> None:
        """Write the base alone, with the model's tokenizer and chat template."""
        folder.mkdir(exist_ok=True)
        link_files(self.base, ("model*.safetensors", "pytorch_model*.bin"), folder)
        # Copies, since people edit these.
        for file in self.base.glob("*.json"):
            if file.name in FULL or file.name.endswith(".index.json"):
                shutil.copyfile(file, folder / file.name)
        self.model.tokenizer.save_pretrained(folder)

    def write_merged(self, folder: Path) -> None:
        """Write the model as a whole one, in the base's precision."""
        adapter = self.model.source.adapter
        if adapter is None:
            self.write_base(folder)
            return
        merge_adapter(self.base, Path(adapter), folder, self.model.end)
        self.model.tokenizer.save_pretrained(folder)


def _write_gguf(
    source: _ExportSource, tools: LlamaCpp, chosen: ExportSettings, folder: Path, passport: Json
) -> list[Path]:
    """Write GGUF: one file of the whole, or the base's and the adapter's."""
    tools.check_quantization(chosen.quantize)
    tokenizer = source.model.tokenizer
    template = tokenizer.chat_template
    # A comment trims white space as the tag does.
    tokenizer.chat_template = _GENERATION.sub(r"{#\1 \2#}", template)
    with TemporaryDirectory(dir=folder) as name:
        whole = Path(name, "model")
        files = [folder / f"{source.name}.gguf"]
        adapter = source.model.source.adapter
        if chosen.apart and adapter is not None:
            files = [folder / "base.gguf", folder / f"{source.name}-adapter.gguf"]
            source.write_base(whole)
            own = Path(name, "adapter")
            own.mkdir()
            link_files(Path(adapter), ADAPTER, own)
            write_model_card(own, passport, source.name)
            tools.convert_adapter(own, whole, files[1])
        else:
            source.write_merged(whole)
        write_model_card(whole, passport, source.name)
        tools.convert(whole, files[0], chosen.quantize)
    tokenizer.chat_template = template
    return files


def _write_modelfile(source: _ExportSource, files: Sequence[Path], folder: Path) -> str:
    """Write the Modelfile for files of GGUF, or for the folder itself; return what is wrong with it."""
    model = source.model
    sources = dict(zip(("FROM", "ADAPTER"), (f"./{file.name}" for file in files), strict=False)) or {"FROM": "."}
    parameters: list[tuple[str, object]] = [("stop", model.tokenizer.decode([stop])) for stop in model.stops]
    parameters.append(("temperature", PlaySettings().temperature))
    parameters.append(("num_ctx", min(model.context or _CONTEXT, _CONTEXT)))
    problem = template = ""
    try:
        template = write_template(model.tokenizer)
    except ModelError as error:
        problem = f"{error}, so the Modelfile has no TEMPLATE; Ollama takes the one that is in the file"
    with open_atomic(folder / _MODELFILE) as stream:
        stream.write(write_modelfile(sources, template, source.system, parameters))
    return problem


def _write_vllm(source: _ExportSource, folder: Path, out: Path) -> list[str]:
    """Write what vLLM serves, an adapter on its base where it takes that; return the words that start it."""
    model = source.model
    adapter = model.source.adapter
    config = read_adapter_config(adapter) if adapter else None
    is_served = config is not None and config.get("bias", "none") == "none" and not any(map(config.get, _NOT_SERVED))
    if adapter is None or not is_served:
        source.write_merged(folder)
        return ["vllm", "serve", str(out), "--served-model-name", source.name]
    from transformers import GenerationConfig

    link_files(source.folder, ADAPTER, folder)
    base = model.source.base
    name_base(folder, base, model.source.revision)
    model.tokenizer.save_pretrained(folder)
    GenerationConfig(eos_token_id=model.stops).save_pretrained(folder)
    words = ["vllm", "serve", base, "--enable-lora", "--max-lora-rank", str(find_lora_rank([adapter]))]
    words += ["--lora-modules", f"{source.name}={out}", "--tokenizer", str(out), "--generation-config", str(out)]
    words += ["--chat-template", str(out / "chat_template.jinja")]
    if model.source.revision is not None:
        words += ["--revision", model.source.revision]
    return words


def _check_files(
    source: _ExportSource, tools: LlamaCpp, files: Sequence[Path], folder: Path, hints: list[str]
) -> ExportCheck:
    """Compare what was written with the run."""
    language = "en" if source.part is None else source.part.sheet.language
    prompts = make_check_prompts(source.system, language)
    before = ask_model(LocalModel(str(source.folder)), prompts)
    by = "transformers"
    if files and tools.find_server() is not None:
        by = "llama.cpp's server"
        context = max(reply.prompt_tokens for reply in before) + REPLY_TOKENS + 1
        with tools.serve(files, context) as address:
            after = ask_server(address, prompts)
    elif len(files) == 1 and find_spec("gguf") is not None:
        from transformers import AutoModelForCausalLM

        weights = load_part("GGUF", AutoModelForCausalLM, folder, gguf_file=files[0].name, dtype="float32")
        after = ask_model(source.model.with_weights(weights), prompts)
    elif files:
        by = "transformers, before the conversion to GGUF"
        hints.append(f"the GGUF was not run: llama.cpp's server is not here ({SERVER})")
        with TemporaryDirectory(dir=folder) as name:
            source.write_merged(Path(name))
            after = ask_model(LocalModel(name), prompts)
    else:
        after = ask_model(LocalModel(str(folder)), prompts)
    return compare(by, before, after, source.model)
