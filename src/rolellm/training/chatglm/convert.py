"""A published ChatGLM2-6B or ChatGLM3-6B checkpoint as a native one: weights, configuration, tokenizer, template.

What corresponds to what was read in ``modeling_chatglm.py`` of THUDM/chatglm2-6b and THUDM/chatglm3-6b and in
``models/glm/modeling_glm.py`` of `transformers`: both rotate adjacent pairs in the first half of each head, put the
feed-forward gate before the value, and normalize before each block and once at the end. So nothing is computed: the
fused projection is cut in three and all else is renamed, shard by shard.
"""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from rolellm.core.errors import ModelError, RecipeError, require
from rolellm.core.files import fill_folder, write_json
from rolellm.core.progress import Progress
from rolellm.core.text import join_names
from rolellm.training.chatglm.config import DType, Family, Published, read_config
from rolellm.training.chatglm.tokenizer import compare_tokenizers, convert_tokenizer, find_stop_tokens

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerFast

Shards = Mapping[Path, Sequence[str]]

_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_SINGLE = ("model.safetensors", "pytorch_model.bin")
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
class Converted:
    """A finished conversion.

    Attributes:
        out: The folder with the native checkpoint.
        family: ``chatglm2`` or ``chatglm3``.
        dtype: The weights' type, such as ``float16``.
        parameters: Numbers in all tensors.
        bytes: Bytes of all tensors.
        files: Number of files with tensors.
        tokenizer: Number of ``texts`` compared with SentencePiece's splitting, and of ``differing`` ones.
    """

    out: Path
    family: Family
    dtype: str
    parameters: int
    bytes: int
    files: int
    tokenizer: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        """Give the same as one JSON object."""
        return asdict(self) | {"out": str(self.out)}


def convert_chatglm(
    src: str | Path,
    dst: str | Path,
    *,
    dtype: DType | None = None,
    family: Family | None = None,
    allow_differences: bool = False,
) -> Converted:
    """Turn a published checkpoint into a native `GlmForCausalLM` with a fast tokenizer; complete, or not at all.

    Args:
        src: A folder in the layout of THUDM/chatglm2-6b or THUDM/chatglm3-6b, with safetensors or ``.bin`` shards. Its
            Python files are not run.
        dst: The folder to make; it may be there when it is empty.
        dtype: The weights' type; by default the checkpoint's own.
        family: Which of the two it is; by default what the folder says.
        allow_differences: Continue when the fast tokenizer splits some text differently from SentencePiece.

    Raises:
        RecipeError: When ``dst`` is not an empty or a new folder, or ``dtype`` or ``family`` is unknown.
        ModelError: When the checkpoint is of another kind, quantized, incomplete or broken; names what is wrong.
        MissingExtraError: Without the ``train`` extra.
    """
    require("torch", "transformers", "safetensors", "sentencepiece", extra="train")
    from safetensors import SafetensorError

    source, target = Path(src), Path(dst)
    for name, value, choices in (("dtype", dtype, get_args(DType)), ("family", family, get_args(Family))):
        if value is not None and value not in choices:
            raise RecipeError(f"unknown {name} {value!r}; known: {', '.join(choices)}")
    if not source.is_dir():
        raise ModelError(f"no folder at {source}; give the folder of a downloaded ChatGLM2 or ChatGLM3 checkpoint")
    if target.is_dir() and any(target.iterdir()):
        raise RecipeError(f"{target} is not empty; give a new folder, or clear it first")
    if target.exists() and not target.is_dir():
        raise RecipeError(f"{target} is a file; give a folder to make")
    # All that can be refused is refused before a byte is written.
    model = read_config(source, family)
    shards = find_shards(source)
    targets = _map_tensors(model)
    _check_names(shards, targets)
    tokenizer = convert_tokenizer(source, model.family)
    comparison = _check_tokenizer(source, tokenizer, model, allow_differences)
    try:
        with fill_folder(target) as partial:
            weights = _convert_weights(shards, targets, model, partial, dtype)
            _save_rest(partial, source, model, tokenizer, weights["dtype"])
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{target} cannot be written: {error}") from error
    return Converted(out=target, family=model.family, tokenizer=comparison, **weights)


def find_shards(src: Path) -> Shards:
    """List the tensors in each file, in the order of the files' names; safetensors are preferred to ``.bin``."""
    for index, single in zip(_INDEXES, _SINGLE, strict=True):
        if (src / index).is_file():
            return _read_index(src / index)
        if (src / single).is_file():
            return {src / single: list(load_shard(src / single))}
    raise ModelError(f"{src} holds no weights; expected one of {', '.join(_INDEXES + _SINGLE)}")


def _read_index(index: Path) -> Shards:
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = {str(name): str(file) for name, file in weight_map.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index} should be an index of shards, a JSON object with weight_map: {error!r}") from error
    shards: dict[Path, list[str]] = {}
    for name, file in sorted(files.items(), key=lambda item: item[1]):
        # A name that leads out of the folder is no shard of this checkpoint.
        shards.setdefault(index.parent / Path(file).name, []).append(name)
    missing = [path.name for path in shards if not path.is_file()]
    if missing:
        raise ModelError(f"{index.parent} lacks {len(missing)} of {len(shards)} shards: {', '.join(missing)}")
    return shards


def load_shard(file: Path, names: Sequence[str] = ()) -> dict[str, Tensor]:
    """Map the tensors of a ``.safetensors`` or ``.bin`` file from the disk; nothing is read yet.

    Raises:
        ModelError: When the file is broken, lacks one of the names, or is a pickle of more than tensors.
    """
    import torch
    from transformers.modeling_utils import load_state_dict

    try:
        tensors: Any = load_state_dict(file)
    except pickle.UnpicklingError as error:
        raise ModelError(f"{file} holds more than tensors, or none; it is not unpickled: {error}") from error
    except Exception as error:  # Torn files end in many kinds, and torch has no class of its own for them.
        raise ModelError(f"{file} cannot be read: {error}") from error
    if not isinstance(tensors, dict) or not all(isinstance(value, torch.Tensor) for value in tensors.values()):
        raise ModelError(f"{file} should hold a mapping of names to tensors")
    missing = sorted(set(names) - tensors.keys())
    if missing:
        raise ModelError(f"{file} lacks {len(missing)} tensors that the index places in it: {', '.join(missing[:3])}")
    return dict(tensors)


def _map_tensors(model: Published) -> dict[str, dict[str, tuple[int, ...]]]:
    """Map each published tensor to its native ones and their shapes, as the installed `transformers` expects them."""
    import torch
    from transformers import GlmConfig, GlmForCausalLM

    with torch.device("meta"):
        empty = GlmForCausalLM(GlmConfig(**model.native))
    shapes = {name: tuple(value.shape) for name, value in empty.state_dict().items()}
    names = dict(_NAMES)
    for number in range(model.native["num_hidden_layers"]):
        for old, new in _NAMES_IN_A_LAYER.items():
            if model.native["attention_bias"] or not old.endswith("bias"):
                names[f"transformer.encoder.layers.{number}.{old}"] = f"model.layers.{number}.{new}"
    native = {old: dict.fromkeys(new.format(part=part) for part in "qkv") for old, new in names.items()}
    differing = sorted({name for group in native.values() for name in group} ^ shapes.keys())
    if differing:
        raise ModelError(
            f"this version of transformers lays GlmForCausalLM out in another way: {join_names(differing)}"
        )
    return {old: {name: shapes[name] for name in group} for old, group in native.items()}


def _check_names(shards: Shards, targets: Mapping[str, object]) -> None:
    """Check that shards hold the tensors that a model needs and no others."""
    names = {name for group in shards.values() for name in group} - {_COMPUTED}
    missing, strange = sorted(targets.keys() - names), sorted(names - targets.keys())
    if any(name.endswith("weight_scale") for name in strange):
        raise ModelError("the weights are quantized (there are weight_scale tensors); convert the full checkpoint")
    if missing:
        raise ModelError(f"the checkpoint lacks {len(missing)} of {len(targets)} tensors: {join_names(missing)}")
    if strange:
        raise ModelError(f"the checkpoint has tensors that have no place in GlmForCausalLM: {join_names(strange)}")


def _convert_weights(
    shards: Shards,
    targets: Mapping[str, Mapping[str, tuple[int, ...]]],
    model: Published,
    out: Path,
    dtype: DType | None,
) -> dict[str, Any]:
    """Write each shard's tensors as a safetensors file, and an index; give their type, number, bytes and files.

    Tensors are mapped from the shard and written from there; only a change of ``dtype`` copies them, a shard at a time.
    """
    from safetensors.torch import save_file

    files: dict[str, str] = {}
    types: dict[str, str] = {}
    parameters = size = 0
    with Progress("converting", len(targets), unit="tensors") as bar:
        for number, (shard, names) in enumerate(shards.items(), start=1):
            tensors = dict(_convert_shard(shard, names, targets, model, dtype))
            for name, tensor in tensors.items():
                types.setdefault(str(tensor.dtype).removeprefix("torch."), name)
                parameters, size = parameters + tensor.numel(), size + tensor.nbytes
                if len(types) > 1:
                    first, kind = types
                    raise ModelError(
                        f"the checkpoint holds both {first} and {kind} ({name}); choose one: --dtype {kind}"
                    )
            single = len(shards) == 1
            file = "model.safetensors" if single else f"model-{number:05}-of-{len(shards):05}.safetensors"
            save_file(tensors, out / file, metadata={"format": "pt"})
            files |= dict.fromkeys(tensors, file)
            # Before the next shard's tensors are there, too.
            tensors.clear()
            bar.advance(len(names))
    if len(shards) > 1:
        facts = {"total_parameters": parameters, "total_size": size}
        write_json(out / _INDEXES[0], {"metadata": facts, "weight_map": dict(sorted(files.items()))})
    return {"dtype": next(iter(types)), "parameters": parameters, "bytes": size, "files": len(shards)}


def _convert_shard(
    file: Path,
    names: Sequence[str],
    targets: Mapping[str, Mapping[str, tuple[int, ...]]],
    model: Published,
    dtype: DType | None,
) -> Iterator[tuple[str, Tensor]]:
    """Give a shard's tensors under their native names, checked and in the type asked for."""
    import torch

    tensors = load_shard(file, names)
    for name in names:
        if name == _COMPUTED:
            continue
        tensor, native = tensors[name], targets[name]
        rows = [shape[0] for shape in native.values()]
        shape = (sum(rows), *next(iter(native.values()))[1:])
        if tuple(tensor.shape) != shape:
            raise ModelError(f"{name} has the shape {tuple(tensor.shape)}; config.json asks for {shape}")
        if tensor.dtype not in (torch.float16, torch.bfloat16, torch.float32):
            raise ModelError(
                f"{name} is of type {tensor.dtype}; expected float16, bfloat16 or float32 (quantized weights?)"
            )
        if model.by_head and len(native) > 1:
            heads = tensor.reshape(-1, 3, model.native["head_dim"], *shape[1:])
            parts: Sequence[Tensor] = [heads[:, part].flatten(0, 1) for part in range(3)]
        else:
            parts = torch.split(tensor, rows)
        for target, part in zip(native, parts, strict=True):
            cast = part.to(getattr(torch, dtype) if dtype else part.dtype).contiguous()
            if dtype == "float16" and part.dtype != cast.dtype and not bool(cast.isfinite().all()):
                raise ModelError(f"{name} has numbers that float16 cannot hold; use bfloat16 or float32")
            yield target, cast


def _check_tokenizer(source: Path, tokenizer: PreTrainedTokenizerFast, model: Published, allow: bool) -> dict[str, int]:
    rows = model.native["vocab_size"]
    if len(tokenizer) > rows:
        raise ModelError(
            f"tokenizer.model makes {len(tokenizer)} tokens and the embedding has {rows} rows; they do not "
            "belong together"
        )
    texts, differing = compare_tokenizers(source, tokenizer)
    if differing and not allow:
        sample = ", ".join(map(repr, differing[:3]))
        raise ModelError(
            f"the fast tokenizer splits {len(differing)} of {texts} texts differently from tokenizer.model, such as "
            f"{sample}; to accept that, convert with --allow-differences"
        )
    return {"texts": texts, "differing": len(differing)}


def _save_rest(partial: Path, source: Path, model: Published, tokenizer: PreTrainedTokenizerFast, dtype: str) -> None:
    from transformers import GenerationConfig, GlmConfig

    tokens = {"eos_token_id": find_stop_tokens(tokenizer), "pad_token_id": int(tokenizer.pad_token_id)}
    GlmConfig(**model.native | tokens, dtype=dtype).save_pretrained(partial)
    GenerationConfig(**tokens).save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    # The weights go on under the license they came with.
    for pattern in ("LICENSE*", "MODEL_LICENSE*"):
        for file in source.glob(pattern):
            shutil.copyfile(file, partial / file.name)
