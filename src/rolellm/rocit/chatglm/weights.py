"""The tensors of ChatGLM2 and ChatGLM3 under the names of `GlmForCausalLM`, streamed from shards into shards.

What corresponds to what was read in ``modeling_chatglm.py`` of THUDM/chatglm2-6b and THUDM/chatglm3-6b and in
``models/glm/modeling_glm.py`` of `transformers`: both rotate adjacent pairs in the first half of each head, put the
feed-forward gate before the value, and normalize before each block and once at the end. So nothing is computed: the
fused projection is cut in three and all else is renamed.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolellm.core.errors import ModelError
from rolellm.core.files import write_json
from rolellm.core.text import listed
from rolellm.rocit.chatglm.config import DType, Published
from rolellm.runtime.progress import Progress

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
    """Tensors of a file one by one, mapped from the disk and not yet read.

    Args:
        file: A ``.safetensors`` file, or a ``.bin`` file as ``torch.save`` wrote it.
        names: Those to read; by default all.

    Raises:
        ModelError: When the file is broken, lacks one of them, or is a pickle of more than tensors.
    """
    held = _load(file)
    missing = sorted(set(names or ()) - held.keys())
    if missing:
        raise ModelError(f"{file} lacks {len(missing)} tensors that the index places in it: {', '.join(missing[:3])}")
    for name in names if names is not None else list(held):
        # Taken out, so that a tensor that has been used can be let go of.
        yield name, held.pop(name)


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


def _load(file: Path) -> dict[str, Tensor]:
    import torch
    from transformers.modeling_utils import load_state_dict

    try:
        held: Any = load_state_dict(file)
    except pickle.UnpicklingError as error:
        raise ModelError(f"{file} holds more than tensors, or none; it is not unpickled: {error}") from error
    except Exception as error:  # Torn files end in many kinds, and torch has no class of its own for them.
        raise ModelError(f"{file} cannot be read: {error}") from error
    if not isinstance(held, dict) or not all(isinstance(value, torch.Tensor) for value in held.values()):
        raise ModelError(f"{file} should hold a mapping of names to tensors")
    return dict(held)


# Maximum bytes of a file of the result, unless one tensor is larger (our choice).
_FILE_BYTES = 2**30
# The angles are computed from the configuration.
_COMPUTED = "transformer.rotary_pos_emb.inv_freq"
# Published names and native ones; {part} is query, key and value, which are fused in one published tensor.
_NAMES = {
    "transformer.embedding.word_embeddings.weight": "model.embed_tokens.weight",
    "transformer.encoder.final_layernorm.weight": "model.norm.weight",
    "transformer.output_layer.weight": "lm_head.weight",
}
_NAMES_IN_A_LAYER = {
    "input_layernorm.weight": "input_layernorm.weight",
    "post_attention_layernorm.weight": "post_attention_layernorm.weight",
    "self_attention.query_key_value.weight": "self_attn.{part}_proj.weight",
    "self_attention.query_key_value.bias": "self_attn.{part}_proj.bias",
    "self_attention.dense.weight": "self_attn.o_proj.weight",
    "mlp.dense_h_to_4h.weight": "mlp.gate_up_proj.weight",
    "mlp.dense_4h_to_h.weight": "mlp.down_proj.weight",
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a published tensor goes.

    Attributes:
        native: Its name in `GlmForCausalLM`; for the fused projection those of query, key and value.
        rows: How many rows of it each takes.
        rest: Its shape without the rows.
    """

    native: tuple[str, ...]
    rows: tuple[int, ...]
    rest: tuple[int, ...]


@dataclass(slots=True)
class Written:
    """What has been written.

    Attributes:
        dtype: The weights' type, such as ``float16``.
        parameters: Numbers in all tensors.
        bytes: Bytes of all tensors.
        files: How many files they lie in.
    """

    dtype: str = ""
    parameters: int = 0
    bytes: int = 0
    files: int = 0


def places(model: Published) -> dict[str, Place]:
    """Where each tensor of a published checkpoint goes, by the shapes that the installed `transformers` expects.

    Raises:
        ModelError: When it expects tensors of other names.
    """
    import torch
    from transformers import GlmConfig, GlmForCausalLM

    with torch.device("meta"):
        shapes = {
            name: tuple(value.shape) for name, value in GlmForCausalLM(GlmConfig(**model.native)).state_dict().items()
        }
    names = dict(_NAMES)
    for number in range(model.native["num_hidden_layers"]):
        for old, new in _NAMES_IN_A_LAYER.items():
            if model.native["attention_bias"] or not old.endswith("bias"):
                names[f"transformer.encoder.layers.{number}.{old}"] = f"model.layers.{number}.{new}"
    native = {old: tuple(dict.fromkeys(new.format(part=part) for part in "qkv")) for old, new in names.items()}
    apart = sorted({name for group in native.values() for name in group} ^ shapes.keys())
    if apart:
        raise ModelError(f"this version of transformers lays GlmForCausalLM out in another way: {listed(apart)}")
    return {
        old: Place(group, tuple(shapes[name][0] for name in group), shapes[group[0]][1:])
        for old, group in native.items()
    }


def check_names(shards: Shards, wanted: Mapping[str, Place]) -> None:
    """Check that shards hold the tensors that a model needs and no others.

    Raises:
        ModelError: Names what is missing or has no place, and says so where it is a sign of a quantized checkpoint.
    """
    held = {name for names in shards.values() for name in names} - {_COMPUTED}
    missing, strange = sorted(wanted.keys() - held), sorted(held - wanted.keys())
    if any(name.endswith("weight_scale") for name in strange):
        raise ModelError("the weights are quantized (there are weight_scale tensors); convert the full checkpoint")
    if missing:
        raise ModelError(f"the checkpoint lacks {len(missing)} of {len(wanted)} tensors: {listed(missing)}")
    if strange:
        raise ModelError(f"the checkpoint has tensors that have no place in GlmForCausalLM: {listed(strange)}")


def convert_weights(
    shards: Shards, table: Mapping[str, Place], model: Published, out: Path, dtype: DType | None = None
) -> Written:
    """Write the tensors as safetensors files with an index, holding one file of either side at a time.

    Tensors are mapped from the shard and written from there; only a change of ``dtype`` copies them, at most one file
    of the result at a time.

    Args:
        shards: As from `find_shards`, checked by `check_names`.
        table: As from `places`.
        model: What the checkpoint says about itself.
        out: The folder to write to.
        dtype: The weights' type; by default the checkpoint's own.

    Raises:
        ModelError: When a tensor has another shape or type than it should, two have different types and ``dtype`` is
            not given, or a number does not fit the type asked for.
    """
    from safetensors.torch import save_file

    written, files = Written(), list[list[str]]()
    with Progress("converting", len(table), unit="tensors") as bar:
        for file, names in shards.items():
            wanted = [name for name in names if name != _COMPUTED]
            # No file takes tensors of two shards: what is not written yet keeps a shard mapped.
            for batch in _batches(_converted(file, wanted, table, model, dtype)):
                for name, tensor in batch.items():
                    kind = str(tensor.dtype).removeprefix("torch.")
                    if written.dtype not in ("", kind):
                        raise ModelError(
                            f"the checkpoint holds both {written.dtype} and {kind} ({name}); choose one: --dtype {kind}"
                        )
                    written.dtype = kind
                    written.parameters += tensor.numel()
                    written.bytes += tensor.nbytes
                files.append(list(batch))
                save_file(batch, _part(out, len(files)), metadata={"format": "pt"})
                batch.clear()  # before those of the next file are copied
            bar.advance(len(wanted))
    written.files = len(files)
    _name_files(out, files, written)
    return written


def _converted(
    file: Path, names: Sequence[str], table: Mapping[str, Place], model: Published, dtype: DType | None
) -> Iterator[tuple[str, Tensor]]:
    """A shard's tensors under their native names, checked and in the type asked for."""
    import torch

    for name, tensor in read_shard(file, names):
        place = table[name]
        shape = (sum(place.rows), *place.rest)
        if tuple(tensor.shape) != shape:
            raise ModelError(f"{name} has the shape {tuple(tensor.shape)}; config.json asks for {shape}")
        if tensor.dtype not in (torch.float16, torch.bfloat16, torch.float32):
            raise ModelError(
                f"{name} is of type {tensor.dtype}; expected float16, bfloat16 or float32 (quantized weights?)"
            )
        if model.by_head and len(place.native) > 1:
            heads = tensor.reshape(-1, 3, model.native["head_dim"], *place.rest)
            parts: Sequence[Tensor] = [heads[:, part].flatten(0, 1) for part in range(3)]
        else:
            parts = torch.split(tensor, list(place.rows))
        for native, part in zip(place.native, parts, strict=True):
            cast = part.to(getattr(torch, dtype) if dtype else part.dtype).contiguous()
            if dtype == "float16" and part.dtype != cast.dtype and not bool(cast.isfinite().all()):
                raise ModelError(f"{name} has numbers that float16 cannot hold; use bfloat16 or float32")
            yield native, cast


def _batches(tensors: Iterator[tuple[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    held: dict[str, Tensor] = {}
    for name, tensor in tensors:
        if held and sum(other.nbytes for other in held.values()) + tensor.nbytes > _FILE_BYTES:
            yield held
            held = {}
        held[name] = tensor
    if held:
        yield held


def _part(out: Path, number: int) -> Path:
    # How many there will be is known at the end.
    return out / f"{number:05}.part"


def _name_files(out: Path, files: Sequence[Sequence[str]], written: Written) -> None:
    count = written.files
    places: dict[str, str] = {}
    for number, names in enumerate(files, start=1):
        file = "model.safetensors" if count == 1 else f"model-{number:05}-of-{count:05}.safetensors"
        _part(out, number).rename(out / file)
        places |= dict.fromkeys(names, file)
    if count > 1:
        index: Mapping[str, object] = {
            "metadata": {"total_parameters": written.parameters, "total_size": written.bytes},
            "weight_map": dict(sorted(places.items())),
        }
        write_json(out / "model.safetensors.index.json", index)
