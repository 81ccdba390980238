"""Where a model comes from: a full model or an adapter, in a directory or on the Hub, and the hash that names it."""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rolellm.core.errors import DataError, ModelError
from rolellm.core.fingerprint import hash_bytes, hash_json
from rolellm.core.jsonl import read_json
from rolellm.core.scrub import hide_hub_token
from rolellm.models.training_record import MANIFEST, TrainedOn, read_manifest

#: The name of the tiny model that comes with the package, tuned on the embedded sample.
SAMPLE: Final = "sample"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "adapter_model.bin")
# Whatever changes an answer: what the model is, its weights, its text form and its stop tokens.
_IDENTITY = (
    "config.json",
    "generation_config.json",
    "adapter_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "vocab*",
    "merges.txt",
    "*.model",
    *_WEIGHTS,
)
# What a run of `rolellm train` holds besides its result; the run's manifest speaks for these, too.
_WITHIN_A_RUN = re.compile(r"(checkpoint|base)-.+")
_BLOCK = 256 * 1024
_BLOCKS = 256


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model that has been found, with nothing of it loaded yet.

    Attributes:
        base: The full model: a directory or a Hub id.
        adapter: The PEFT adapter to put on it, if any: a directory or a Hub id.
        tokenizer: Whichever of the two brings the tokenizer.
        revision: The base's branch, tag or commit on the Hub, where the adapter names one.
        is_cached: Whether the Hub cannot be reached, so that its cache alone counts.
    """

    base: str
    adapter: str | None
    tokenizer: str
    revision: str | None = None
    is_cached: bool = False


def find_model(model: str, adapter: str | None = None) -> ModelSource:
    """Find a model, and say in words what is wrong when it is not there.

    Args:
        model: A directory with a full model or a PEFT adapter (a run of ``rolellm train`` is either), a Hub id, or
            ``sample``.
        adapter: A PEFT adapter to put on a full model: a directory or a Hub id.

    Raises:
        ModelError: When a directory is missing or holds no model, or an adapter's base cannot be found.
    """
    model = locate_model(model)
    config = read_adapter_config(model)
    revision = None
    if adapter is None:
        if config is None:
            return ModelSource(model, None, model, is_cached=not _is_reachable(model))
        adapter = model
        model = _find_base(adapter, config)
        named = config.get("revision")
        if isinstance(named, str) and not Path(model).is_dir():
            revision = named
    elif config is not None:
        raise ModelError(f"{model} is itself an adapter; give its base model, or leave the adapter {adapter} out")
    elif read_adapter_config(adapter) is None:
        raise ModelError(f"{adapter} is not an adapter: it has no adapter_config.json")
    # On the Hub, the base's own counts.
    has_tokenizer = any(Path(adapter).glob("tokenizer*"))
    tokenizer = adapter if has_tokenizer else model
    is_cached = not (_is_reachable(model) and _is_reachable(adapter))
    return ModelSource(model, adapter, tokenizer, revision, is_cached)


def locate_model(name: str) -> str:
    """Return the folder of the model that comes with the package for its name, and any other name as it is."""
    if name == SAMPLE and not Path(name).is_dir():
        return str(Path(__file__).with_name(SAMPLE))
    return name


def read_adapter_config(name: str) -> dict[str, object] | None:
    """Read ``adapter_config.json``; ``None`` for a full model."""
    from transformers.utils import find_adapter_config_file

    _check_name(name)
    is_reachable = _is_reachable(name)
    try:
        path = find_adapter_config_file(name, local_files_only=not is_reachable)
    except (OSError, ValueError) as error:
        reason = hide_hub_token(error)
        raise ModelError(f"{name} is not a directory here, and the Hub gave no such model: {reason}") from None
    folder = Path(name)
    if path is None and folder.is_dir() and not (folder / "config.json").is_file():
        raise ModelError(
            f"{name} holds no model: neither config.json nor adapter_config.json. "
            "A run of `rolellm train` writes one of them when it is done"
        )
    if path is None:
        return None
    try:
        return read_json(path)
    except DataError as error:
        raise ModelError(str(error)) from error


@functools.lru_cache(maxsize=8)
def _is_reachable(name: str) -> bool:
    """Tell whether a model is in a folder here, or the Hub gives it at the first attempt; clients of the Hub make many.

    Raises:
        ModelError: When neither the Hub nor its cache has it.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import EntryNotFoundError

    if Path(name).is_dir():
        return True
    try:
        get_hf_file_metadata(hf_hub_url(name, "config.json"))
    except EntryNotFoundError:
        pass
    except Exception as error:
        # What the client raises without a connection has no one base.
        if find_cached_folder(name, "config.json", "adapter_config.json") is None:
            reason = hide_hub_token(error).splitlines()[0]
            raise ModelError(f"{name} is not a directory here, and the Hub gave no such model: {reason}") from None
        return False
    return True


def is_hub_id(name: str) -> bool:
    """Tell whether a name can be that of a repository on the Hub, ``OWNER/NAME``, and is no path into a folder here."""
    return _HUB_ID.fullmatch(name) is not None and not Path(name).parent.is_dir()


def _check_name(name: str) -> None:
    """Refuse what can only be a mistyped path, before anything asks the Hub for it."""
    path = Path(name)
    if name and path.is_dir():
        return
    if name and path.exists():
        raise ModelError(f"{name} is a file; a model is a directory, or the id of a model on the Hub")
    if not is_hub_id(name):
        raise ModelError(
            f"no model at {name!r}: there is no such directory, and a model on the Hub is OWNER/NAME; to try things "
            f"out, {SAMPLE!r} is a tiny model that comes with rolellm"
        )


def _find_base(adapter: str, config: dict[str, object]) -> str:
    base = config.get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise ModelError(
            f"the adapter {adapter} does not say which base it was tuned on; give the base and the adapter"
        )
    beside = Path(adapter) / base
    if not Path(base).is_dir() and beside.is_dir():
        base = str(beside)
    try:
        nested = read_adapter_config(base)
    except ModelError as error:
        raise ModelError(
            f"the adapter {adapter} was tuned on {base}, which cannot be used ({error}); "
            f"name the base yourself: --model BASE --set adapter={adapter}"
        ) from error
    if nested is not None:
        raise ModelError(f"the adapter {adapter} was tuned on {base}, which is an adapter too; merge that one first")
    return base


def find_manifests(name: str) -> list[Path]:
    """List where a manifest may say what a model was trained on: its own, then that of the run it is a part of.

    Args:
        name: A directory, or the id of a model on the Hub that has been found already.

    Returns:
        Files that are there, the nearest first; they may be other programs'.
    """
    if not Path(name).is_dir():
        return _fetch_manifest(name)
    folder = Path(name).resolve()
    run = [folder.parent] if _WITHIN_A_RUN.fullmatch(folder.name) else []
    paths = [parent / MANIFEST for parent in (folder, *run)]
    return [path for path in paths if path.is_file()]


def read_trained_on(name: str) -> TrainedOn:
    """Read what a model says that it was trained on; nothing where it has no record of it.

    Args:
        name: As for `find_manifests`.

    Raises:
        DataError: When a record of ours cannot be read.
    """
    for file in find_manifests(name):
        record = read_manifest(file)
        if record is not None:
            return record
    return TrainedOn()


def _fetch_manifest(name: str) -> list[Path]:
    from huggingface_hub import hf_hub_download

    try:
        return [Path(hf_hub_download(name, MANIFEST))]
    except Exception:
        # Most models have none, and what the client raises when it cannot tell has no one base. The model itself was
        # found, and to know nothing of its training is no failure.
        return []


def hash_model(name: str, revision: str | None = None) -> str:
    """The hash that names a model, by content and not by place; takes a fraction of a second at any size.

    Of a directory, the files that decide an answer count, by name, size and content. A file over 64 MiB counts with 256
    blocks of 256 KiB spread evenly over it: a tuned model differs in all of them, a forged one need not. An adapter's
    settings count by value, whatever the order of their names. A model on the Hub is named by its id and commit. (All
    this is our choice.)

    Args:
        name: A directory, or the id of a model on the Hub that has been found already.
        revision: The branch, tag or commit on the Hub that was loaded; by default the main branch.

    Raises:
        ModelError: When a directory holds no weights.
    """
    folder = Path(name)
    if not folder.is_dir():
        cached = find_cached_folder(name, "config.json", "adapter_config.json", revision=revision)
        # snapshots/COMMIT
        return hash_json({"hub": name, "commit": cached.name if cached else None})
    files = sorted({path for pattern in _IDENTITY for path in folder.glob(pattern) if path.is_file()})
    if not any(path.match(pattern) for path in files for pattern in _WEIGHTS):
        raise ModelError(f"{name} holds no weights; expected one of: {', '.join(_WEIGHTS)}")
    parts: list[list[object]] = []
    for path in files:
        part = [path.name, path.stat().st_size, _hash_samples(path)]
        if path.name == "adapter_config.json":
            part = [path.name, sort_names(read_json(path))]
        parts.append(part)
    return hash_json(parts)


def sort_names(config: dict[str, Any]) -> dict[str, Any]:
    """Sort the lists of names in an adapter's settings: PEFT writes sets of them, in an order that changes by run."""
    ordered = dict(config)
    for key, value in config.items():
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            ordered[key] = sorted(value)
    return ordered


def count_parameters(name: str, revision: str | None = None) -> int | None:
    """Count the numbers in a model's weights, by the headers of its safetensors files.

    Args:
        name: As for `hash_model`.
        revision: As for `hash_model`.

    Returns:
        Their number; ``None`` where the files are not here, are of another form, or pack several weights into a number.
    """
    from safetensors import safe_open

    folder: Path | None = Path(name)
    if not Path(name).is_dir():
        folder = find_cached_folder(name, "config.json", revision=revision)
    files = list(folder.glob("*.safetensors")) if folder else []
    if folder is None or not files or "quantization_config" in read_json(folder / "config.json"):
        return None
    count = 0
    for file in files:
        with safe_open(file, "numpy") as tensors:
            shapes = [tensors.get_slice(key).get_shape() for key in tensors.keys()]  # noqa: SIM118
            count += sum(map(math.prod, shapes))
    return count


def find_cached_folder(name: str, *files: str, revision: str | None = None) -> Path | None:
    """Find where the cache of the Hub has one of these files of a repository; ``None`` for nowhere."""
    from huggingface_hub import try_to_load_from_cache

    for file in files:
        path = try_to_load_from_cache(name, file, revision=revision)
        if isinstance(path, str):
            return Path(path).parent
    return None


def _hash_samples(path: Path) -> str:
    size = path.stat().st_size
    if size <= _BLOCK * _BLOCKS:
        return hash_bytes(path.read_bytes())
    last = size - _BLOCK
    blocks = []
    with path.open("rb") as stream:
        for number in range(_BLOCKS):
            start = last * number // (_BLOCKS - 1)
            stream.seek(start)
            block = stream.read(_BLOCK)
            blocks.append(hash_bytes(block))
    return hash_json(blocks)
