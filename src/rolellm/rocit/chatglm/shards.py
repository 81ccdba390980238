"""The files a checkpoint's tensors lie in, read one tensor at a time; never a pickle's code."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolellm.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

Shards = Mapping[Path, Sequence[str]]

_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_SINGLE = ("model.safetensors", "pytorch_model.bin")


def find_shards(src: Path) -> Shards:
    """Which tensors lie in which file, in the order of the files' names; safetensors are preferred to ``.bin``.

    Raises:
        ModelError: When there are no weights, a shard is missing, or an index or file cannot be read.
    """
    for index, single in zip(_INDEXES, _SINGLE, strict=True):
        if (src / index).is_file():
            return _indexed(src / index)
        if (src / single).is_file():
            return {src / single: [name for name, _ in read_shard(src / single)]}
    raise ModelError(f"{src} holds no weights; expected one of {', '.join(_INDEXES + _SINGLE)}")


def read_shard(file: Path, names: Sequence[str] | None = None) -> Iterator[tuple[str, Tensor]]:
    """Tensors of a file one by one, mapped from the disk and not yet read; the file is let go of at the end.

    Args:
        file: A ``.safetensors`` file, or a ``.bin`` file as ``torch.save`` wrote it.
        names: Those to read; by default all.

    Raises:
        ModelError: When the file is broken, lacks one of them, or is a pickle of more than tensors.
    """
    read = _read_safetensors if file.suffix == ".safetensors" else _read_bin
    return read(file, names)


def _indexed(index: Path) -> Shards:
    try:
        held = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        placed = {str(name): str(file) for name, file in held.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index} should be an index of shards, a JSON object with weight_map: {error!r}") from error
    shards: dict[Path, list[str]] = {}
    for name, file in sorted(placed.items(), key=lambda item: item[1]):
        # A name that leads out of the folder is no shard of this checkpoint.
        path = index.parent / Path(file).name
        shards.setdefault(path, []).append(name)
    missing = [path.name for path in shards if not path.is_file()]
    if missing:
        raise ModelError(f"{index.parent} lacks {len(missing)} of {len(shards)} shards: {', '.join(missing)}")
    return shards


def _read_safetensors(file: Path, names: Sequence[str] | None) -> Iterator[tuple[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as opened:
            held = opened.keys()
            _check_names(file, names, held)
            for name in names if names is not None else held:
                yield name, opened.get_tensor(name)
    except SafetensorError as error:
        raise ModelError(f"{file} is not a whole safetensors file: {error}") from error


def _read_bin(file: Path, names: Sequence[str] | None) -> Iterator[tuple[str, Tensor]]:
    held = _load(file)
    _check_names(file, names, held)
    for name in names if names is not None else list(held):
        # Taken out, so that a tensor that has been used can be let go of.
        yield name, held.pop(name)


def _load(file: Path) -> dict[str, Tensor]:
    import torch

    options: dict[str, Any] = {"map_location": "cpu", "weights_only": True}
    try:
        try:
            held = torch.load(file, mmap=True, **options)
        except RuntimeError:  # Files of torch before 1.6 cannot be mapped.
            held = torch.load(file, **options)
    except pickle.UnpicklingError as error:
        raise ModelError(f"{file} holds more than tensors, or none; it is not unpickled: {error}") from error
    except Exception as error:  # Torn files end in many kinds, and torch has no class of its own for them.
        raise ModelError(f"{file} cannot be read: {error}") from error
    if not isinstance(held, dict) or not all(isinstance(value, torch.Tensor) for value in held.values()):
        raise ModelError(f"{file} should hold a mapping of names to tensors")
    return dict(held)


def _check_names(file: Path, names: Sequence[str] | None, held: Sequence[str] | Mapping[str, Any]) -> None:
    missing = sorted(set(names or ()) - set(held))
    if missing:
        raise ModelError(f"{file} lacks {len(missing)} tensors that the index places in it: {', '.join(missing[:3])}")
