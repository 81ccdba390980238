"""The tensors of ChatGLM2 and ChatGLM3 under the names of `GlmForCausalLM`, streamed from shards into shards.

What corresponds to what was read in ``modeling_chatglm.py`` of THUDM/chatglm2-6b and THUDM/chatglm3-6b and in
``models/glm/modeling_glm.py`` of `transformers`: both rotate neighbouring pairs in the first half of each head, put the
feed-forward gate before the value, and normalise before each block and once at the end. So nothing is computed: the
fused projection is cut in three and all else is renamed.
"""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolellm.core.errors import ModelError
from rolellm.core.files import write_json
from rolellm.core.text import listed
from rolellm.rocit.chatglm.config import DType, Published
from rolellm.runtime.progress import Progress

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import GlmConfig

# --- The files a checkpoint's tensors lie in, read one tensor at a time; never a pickle's code


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


# --- The tensors of ChatGLM2 and ChatGLM3 under the names of `GlmForCausalLM`, streamed from shards into shards


# Files of the result hold at most so many bytes, unless one tensor is larger (our choice).
_FILE_BYTES = 2**30
_FLOATS = ("torch.float16", "torch.bfloat16", "torch.float32")
# The angles are computed from the configuration.
_COMPUTED = "transformer.rotary_pos_emb.inv_freq"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a published tensor goes.

    Attributes:
        shape: What it has to be.
        native: Its name in `GlmForCausalLM`; for the fused projection those of query, key and value.
    """

    shape: tuple[int, ...]
    native: tuple[str, ...]


@dataclass(slots=True)
class Written:
    """What has been written.

    Attributes:
        dtype: The weights' type, such as ``float16``.
        files: The file of each native tensor.
        parameters: Numbers in all tensors.
        size: Bytes of all tensors.
    """

    dtype: str = ""
    files: dict[str, str] = field(default_factory=dict)
    parameters: int = 0
    size: int = 0


def places(model: Published) -> dict[str, Place]:
    """Where each tensor of a published checkpoint goes."""
    ends = (model.vocabulary, model.hidden)
    whole = {
        "transformer.embedding.word_embeddings.weight": Place(ends, ("model.embed_tokens.weight",)),
        "transformer.encoder.final_layernorm.weight": Place((model.hidden,), ("model.norm.weight",)),
        "transformer.output_layer.weight": Place(ends, ("lm_head.weight",)),
    }
    for number in range(model.layers):
        for name, place in _layer(model).items():
            native = tuple(f"model.layers.{number}.{part}" for part in place.native)
            whole[f"transformer.encoder.layers.{number}.{name}"] = Place(place.shape, native)
    return whole


def check_names(shards: Shards, model: Published) -> None:
    """Check that shards hold the tensors that a model needs and no others.

    Raises:
        ModelError: Names what is missing or has no place, and says so where it is a sign of a quantised checkpoint.
    """
    held = {name for names in shards.values() for name in names} - {_COMPUTED}
    wanted = places(model).keys()
    missing, strange = sorted(wanted - held), sorted(held - wanted)
    if any(name.endswith("weight_scale") for name in strange):
        raise ModelError("the weights are quantised (there are weight_scale tensors); convert the full checkpoint")
    if missing:
        raise ModelError(f"the checkpoint lacks {len(missing)} of {len(wanted)} tensors: {listed(missing)}")
    if strange:
        raise ModelError(f"the checkpoint has tensors that have no place in GlmForCausalLM: {listed(strange)}")


def check_native(model: Published, config: GlmConfig) -> None:
    """Check that the result will be exactly what the installed `transformers` expects, name by name and shape by shape.

    Raises:
        ModelError: When it expects something else.
    """
    import torch
    from transformers import GlmForCausalLM

    with torch.device("meta"):
        expected = {name: tuple(value.shape) for name, value in GlmForCausalLM(config).state_dict().items()}
    made: dict[str, tuple[int, ...]] = {}
    for place in places(model).values():
        parts = _cut(torch.empty(place.shape, device="meta"), place, model)
        made |= {name: tuple(part.shape) for name, part in parts}
    if made != expected:
        apart = sorted(dict(made.items() ^ expected.items()))
        raise ModelError(f"this version of transformers lays GlmForCausalLM out in another way: {listed(apart)}")


def convert_weights(shards: Shards, model: Published, out: Path, dtype: DType | None = None) -> Written:
    """Write the tensors as safetensors files with an index, holding one file of either side at a time.

    Tensors are mapped from the shard and written from there; only a change of ``dtype`` copies them, at most one file
    of the result at a time.

    Args:
        shards: As from `find_shards`, checked by `check_names`.
        model: What the checkpoint says about itself.
        out: The folder to write to.
        dtype: The weights' type; by default the checkpoint's own.

    Raises:
        ModelError: When a tensor has another shape or type than it should, two have different types and ``dtype`` is
            not given, or a number does not fit the type asked for.
    """
    table = places(model)
    writer = _Writer(out)
    with Progress("converting", len(table), unit="tensors") as bar:
        for file, names in shards.items():
            wanted = [name for name in names if name != _COMPUTED]
            for name, tensor in read_shard(file, wanted):
                _check_tensor(name, tensor, table[name])
                for native, part in _cut(tensor, table[name], model):
                    writer.add(native, _cast(name, part, dtype))
                bar.advance()
            writer.flush()  # Its tensors keep the shard mapped.
    return writer.finish()


def _layer(model: Published) -> dict[str, Place]:
    queries, keys = model.heads * model.head_dim, model.groups * model.head_dim
    fused = tuple("qkv")
    layer = {
        "input_layernorm.weight": Place((model.hidden,), ("input_layernorm.weight",)),
        "post_attention_layernorm.weight": Place((model.hidden,), ("post_attention_layernorm.weight",)),
        "self_attention.query_key_value.weight": Place(
            (queries + 2 * keys, model.hidden), tuple(f"self_attn.{part}_proj.weight" for part in fused)
        ),
        "self_attention.dense.weight": Place((model.hidden, queries), ("self_attn.o_proj.weight",)),
        "mlp.dense_h_to_4h.weight": Place((2 * model.inner, model.hidden), ("mlp.gate_up_proj.weight",)),
        "mlp.dense_4h_to_h.weight": Place((model.hidden, model.inner), ("mlp.down_proj.weight",)),
    }
    if model.qkv_bias:
        layer["self_attention.query_key_value.bias"] = Place(
            (queries + 2 * keys,), tuple(f"self_attn.{part}_proj.bias" for part in fused)
        )
    return layer


def _cut(tensor: Tensor, place: Place, model: Published) -> Iterator[tuple[str, Tensor]]:
    import torch

    if len(place.native) == 1:
        yield place.native[0], tensor
        return
    if model.by_head:
        rows = tensor.reshape(model.heads, 3, model.head_dim, *tensor.shape[1:])
        parts: Sequence[Tensor] = [rows[:, part].flatten(0, 1) for part in range(3)]
    else:
        queries, keys = model.heads * model.head_dim, model.groups * model.head_dim
        parts = torch.split(tensor, [queries, keys, keys])
    yield from zip(place.native, parts, strict=True)


def _check_tensor(name: str, tensor: Tensor, place: Place) -> None:
    if tuple(tensor.shape) != place.shape:
        raise ModelError(f"{name} has the shape {tuple(tensor.shape)}; config.json asks for {place.shape}")
    if str(tensor.dtype) not in _FLOATS:
        raise ModelError(
            f"{name} is of type {tensor.dtype}; expected float16, bfloat16 or float32 (quantised weights?)"
        )


def _cast(name: str, tensor: Tensor, dtype: DType | None) -> Tensor:
    import torch

    if dtype is None:
        return tensor.contiguous()
    cast = tensor.to(getattr(torch, dtype)).contiguous()
    if dtype == "float16" and tensor.dtype != cast.dtype and not bool(cast.isfinite().all()):
        raise ModelError(f"{name} has numbers that float16 cannot hold; use bfloat16 or float32")
    return cast


class _Writer:
    """Files of the result, filled one after the other."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._held: dict[str, Tensor] = {}
        self._bytes = 0
        self._batches: list[list[str]] = []
        self._written = Written()

    def add(self, name: str, tensor: Tensor) -> None:
        kind = str(tensor.dtype).removeprefix("torch.")
        if self._written.dtype not in ("", kind):
            raise ModelError(
                f"the checkpoint holds both {self._written.dtype} and {kind} ({name}); choose one: --dtype {kind}"
            )
        if self._held and self._bytes + tensor.nbytes > _FILE_BYTES:
            self.flush()
        self._held[name] = tensor
        self._bytes += tensor.nbytes
        self._written.dtype = kind
        self._written.parameters += math.prod(tensor.shape)
        self._written.size += tensor.nbytes

    def flush(self) -> None:
        from safetensors.torch import save_file

        if not self._held:
            return
        self._batches.append(list(self._held))
        save_file(self._held, self._part(len(self._batches)), metadata={"format": "pt"})
        self._held = {}
        self._bytes = 0

    def finish(self) -> Written:
        count = len(self._batches)
        for number, names in enumerate(self._batches, start=1):
            file = "model.safetensors" if count == 1 else f"model-{number:05}-of-{count:05}.safetensors"
            self._part(number).rename(self._out / file)
            self._written.files |= dict.fromkeys(names, file)
        if count > 1:
            index: Mapping[str, object] = {
                "metadata": {"total_parameters": self._written.parameters, "total_size": self._written.size},
                "weight_map": dict(sorted(self._written.files.items())),
            }
            write_json(self._out / "model.safetensors.index.json", index)
        return self._written

    def _part(self, number: int) -> Path:
        # How many there will be is known at the end.
        return self._out / f"{number:05}.part"
