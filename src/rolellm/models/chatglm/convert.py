"""A published ChatGLM2-6B or ChatGLM3-6B checkpoint as a native one: weights, configuration, tokenizer, template.

The keys of the published configuration are those of ``configuration_chatglm.py`` next to the weights, which is not run.
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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

from rolellm.core.errors import DataError, ModelError, RecipeError, require
from rolellm.core.files import fill_folder, write_json
from rolellm.core.jsonl import read_json
from rolellm.core.progress import open_bar
from rolellm.core.result import Result
from rolellm.core.text import join_names
from rolellm.models.chatglm.tokenizer import Family, compare_tokenizers, convert_tokenizer, find_stop_tokens

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerFast

Shards = Mapping[Path, Sequence[str]]
# Published names, and the native ones of each with their shapes.
Targets = Mapping[str, Mapping[str, tuple[int, ...]]]

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

# What GlmConfig calls the sizes.
_SIZES = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "ffn_hidden_size": "intermediate_size",
    "num_attention_heads": "num_attention_heads",
    "kv_channels": "head_dim",
    "padded_vocab_size": "vocab_size",
    "seq_length": "max_position_embeddings",
}
# The only value of each that GlmForCausalLM can follow and that is published.
_ONLY: Final[Mapping[str, bool]] = {
    "multi_query_attention": True,
    "rmsnorm": True,
    "post_layer_norm": True,
    "original_rope": True,
    "add_bias_linear": False,
    "apply_residual_connection_post_layernorm": False,
    "fp32_residual_connection": False,
    "tie_word_embeddings": False,
}
_GLM4_VOCABULARY = 151552


@dataclass(frozen=True, slots=True, repr=False)
class Conversion(Result):
    """A checkpoint as converted.

    Attributes:
        out: The folder.
        family: The original's family.
        dtype: The weights' type.
        parameters: How many.
        bytes: Of all weights.
        files: How many hold them.
        texts: How many both tokenizers split alike.
    """

    out: Path
    family: Family
    dtype: str
    parameters: int
    bytes: int
    files: int
    texts: int

    def remarks(self) -> tuple[str, str]:
        """Say what was written, and how the tokenizer compares."""
        weights = f"{self.parameters:,} parameters of {self.family} in {self.dtype}, {self.files} files: {self.out}"
        return weights, f"The tokenizer splits {self.texts:,} texts as SentencePiece does."


def convert_chatglm(src: str | Path, dst: str | Path) -> Conversion:
    """Turn a published checkpoint into a native `GlmForCausalLM` with a fast tokenizer; complete, or not at all.

    Args:
        src: A folder in the layout of THUDM/chatglm2-6b or THUDM/chatglm3-6b, with safetensors or ``.bin`` shards. Its
            Python files are not run.
        dst: The folder to make; it may be there when it is empty.

    Raises:
        RecipeError: When ``dst`` is not an empty or a new folder.
        ModelError: When the checkpoint is of another kind, quantized, incomplete or broken; names what is wrong.
        MissingExtraError: Without the ``train`` extra.
    """
    require("torch", "transformers", "safetensors", "sentencepiece", extra="train")
    from safetensors import SafetensorError

    source = Path(src)
    target = Path(dst)
    if not source.is_dir():
        raise ModelError(f"no folder at {source}; give the folder of a downloaded ChatGLM2 or ChatGLM3 checkpoint")
    if target.is_dir() and any(target.iterdir()):
        raise RecipeError(f"{target} is not empty; give a new folder, or clear it first")
    if target.exists() and not target.is_dir():
        raise RecipeError(f"{target} is a file; give a folder to make")
    # All that can be refused is refused before a byte is written.
    model = read_config(source)
    shards = find_shards(source)
    targets = _map_tensors(model)
    _check_names(shards, targets)
    tokenizer = convert_tokenizer(source, model.family)
    texts = _check_tokenizer(source, tokenizer, model)
    try:
        with fill_folder(target) as partial:
            weights = _convert_weights(shards, targets, partial)
            _save_rest(partial, source, model, tokenizer, weights["dtype"])
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{target} cannot be written: {error}") from error
    return Conversion(target, model.family, **weights, texts=texts)


@dataclass(frozen=True, slots=True)
class Published:
    """A checkpoint of the original architecture.

    Attributes:
        family: They differ in special tokens, in the chat's text form and in what ``rope_ratio`` does.
        native: The same model in the arguments of ``GlmConfig``, without type and special tokens.
    """

    family: Family
    native: dict[str, Any]


def read_config(src: Path) -> Published:
    """Read ``config.json`` of a published checkpoint.

    A ``rope_ratio`` multiplies the base of the rotary angles in ChatGLM3 and divides the positions in ChatGLM2-32k,
    according to the two ``modeling_chatglm.py``.

    Args:
        src: The checkpoint's folder.

    Raises:
        ModelError: When there is none, when it is another architecture (ChatGLM-6B, GLM-4, an already native one), when
            it is quantized or P-tuned, when a setting has no counterpart, or when the family cannot be told.
    """
    path = src / "config.json"
    config = _read_json(path)
    _check_config(config, path)
    sizes = {native: _get_positive(config, key, path) for key, native in _SIZES.items()}
    heads = sizes["num_attention_heads"]
    groups = _get_positive(config, "multi_query_group_num", path)
    if heads % groups:
        raise ModelError(f"{path}: {heads} attention heads cannot be shared out over {groups} multi_query_group_num")
    kind = _find_family(src, config)
    ratio = float(config.get("rope_ratio") or 1)
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}
    if kind == "chatglm3":
        rope["rope_theta"] = 10_000.0 * ratio
    elif ratio != 1:
        rope |= {"rope_type": "linear", "factor": ratio}
    native: dict[str, Any] = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    native |= sizes
    native["architectures"] = ["GlmForCausalLM"]
    native["num_key_value_heads"] = groups
    native["rms_norm_eps"] = float(config.get("layernorm_epsilon", 1e-5))
    native["rope_parameters"] = rope
    native["attention_bias"] = bool(config.get("add_qkv_bias"))
    native["tie_word_embeddings"] = False
    return Published(kind, native)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except DataError as error:
        raise ModelError(f"{error}; give the folder of a ChatGLM2 or ChatGLM3 checkpoint") from error


def _check_config(config: Mapping[str, Any], path: Path) -> None:
    kind = config.get("model_type")
    if kind in ("glm", "glm4"):
        raise ModelError(f"{path}: this checkpoint is already native (model_type {kind}); use it directly")
    if "position_encoding_2d" in config or "inner_hidden_size" in config:
        raise ModelError(
            f"{path}: this is ChatGLM-6B, the first one, whose two-dimensional positions and two-way attention over "
            "the prompt have no native counterpart; convert ChatGLM2-6B or ChatGLM3-6B"
        )
    if kind != "chatglm" or "padded_vocab_size" not in config:
        raise ModelError(
            f"{path}: expected the configuration of ChatGLM2 or ChatGLM3 (model_type chatglm, with padded_vocab_size, "
            f"num_layers, …), found model_type {kind!r}"
        )
    if config["padded_vocab_size"] == _GLM4_VOCABULARY:
        raise ModelError(
            f"{path}: this is GLM-4, which has native checkpoints, such as zai-org/glm-4-9b-chat-hf; use one"
        )
    if config.get("quantization_bit"):
        raise ModelError(
            f"{path}: the weights are quantized to {config['quantization_bit']} bits; convert the full checkpoint "
            "(a QLoRA recipe quantizes it again)"
        )
    if config.get("pre_seq_len"):
        raise ModelError(
            f"{path}: pre_seq_len is set: a P-tuning prefix cannot be kept; convert the model it belongs to"
        )
    differing = []
    for key, only in _ONLY.items():
        value = config.get(key, only)
        if value != only:
            differing.append(f"{key} is {value}")
    if differing:
        raise ModelError(f"{path}: GlmForCausalLM has no such architecture: {', '.join(differing)}")


def _get_positive(config: Mapping[str, Any], key: str, path: Path) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"{path}: {key} should be a whole number above 0, found {value!r}")
    return value


def _find_family(src: Path, config: Mapping[str, Any]) -> Family:
    code = src / "tokenization_chatglm.py"
    if code.is_file():
        text = code.read_text(encoding="utf-8", errors="replace")
        return "chatglm3" if "<|assistant|>" in text else "chatglm2"
    names = str(config.get("_name_or_path"))
    described = src / "tokenizer_config.json"
    if described.is_file():
        names += str(_read_json(described).get("name_or_path"))
    families: tuple[Family, ...] = get_args(Family)
    for family in families:
        if family in names.lower():
            return family
    raise ModelError(
        f"{src}: the folder does not say whether it is ChatGLM2 or ChatGLM3; add the checkpoint's {code.name}"
    )


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
        files = sorted((str(file), str(name)) for name, file in weight_map.items())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index} should be an index of shards, a JSON object with weight_map: {error!r}") from error
    shards: dict[Path, list[str]] = {}
    for file, name in files:
        # A name that leads out of the folder is no shard of this checkpoint.
        path = index.parent / Path(file).name
        shards.setdefault(path, []).append(name)
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
    values = tensors.values() if isinstance(tensors, dict) else [None]
    if not all(isinstance(value, torch.Tensor) for value in values):
        raise ModelError(f"{file} should hold a mapping of names to tensors")
    missing = sorted(set(names) - tensors.keys())
    if missing:
        raise ModelError(f"{file} lacks {len(missing)} tensors that the index places in it: {', '.join(missing[:3])}")
    return dict(tensors)


def _map_tensors(model: Published) -> Targets:
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
    targets: dict[str, dict[str, tuple[int, ...]]] = {}
    differing = set(shapes)
    for old, new in names.items():
        group = dict.fromkeys(new.format(part=part) for part in "qkv")
        differing ^= group.keys()
        targets[old] = {name: shapes.get(name, ()) for name in group}
    if differing:
        raise ModelError(
            f"this version of transformers lays GlmForCausalLM out in another way: {join_names(sorted(differing))}"
        )
    return targets


def _check_names(shards: Shards, targets: Mapping[str, object]) -> None:
    """Check that shards hold the tensors that a model needs and no others."""
    names = set().union(*shards.values()) - {_COMPUTED}
    missing = sorted(targets.keys() - names)
    strange = sorted(names - targets.keys())
    if any(name.endswith("weight_scale") for name in strange):
        raise ModelError("the weights are quantized (there are weight_scale tensors); convert the full checkpoint")
    if missing:
        raise ModelError(f"the checkpoint lacks {len(missing)} of {len(targets)} tensors: {join_names(missing)}")
    if strange:
        raise ModelError(f"the checkpoint has tensors that have no place in GlmForCausalLM: {join_names(strange)}")


def _convert_weights(shards: Shards, targets: Targets, out: Path) -> dict[str, Any]:
    """Write each shard's tensors as a safetensors file, and an index; give their type, number, bytes and files.

    Tensors are mapped from the shard and written from there, a shard at a time.
    """
    from safetensors.torch import save_file

    files: dict[str, str] = {}
    parameters = size = 0
    kind = ""
    with open_bar("converting", len(targets), unit="tensors") as bar:
        for number, (shard, names) in enumerate(shards.items(), start=1):
            tensors = dict(_convert_shard(shard, names, targets))
            for tensor in tensors.values():
                parameters += tensor.numel()
                size += tensor.nbytes
                kind = str(tensor.dtype).removeprefix("torch.")
            file = "model.safetensors"
            if len(shards) > 1:
                file = f"model-{number:05}-of-{len(shards):05}.safetensors"
            save_file(tensors, out / file, metadata={"format": "pt"})
            files |= dict.fromkeys(tensors, file)
            # Before the next shard's tensors are there, too.
            tensors.clear()
            bar.update(len(names))
    if len(shards) > 1:
        facts = {"total_parameters": parameters, "total_size": size}
        index = {"metadata": facts, "weight_map": dict(sorted(files.items()))}
        write_json(out / _INDEXES[0], index)
    return {"dtype": kind, "parameters": parameters, "bytes": size, "files": len(shards)}


def _convert_shard(file: Path, names: Sequence[str], targets: Targets) -> Iterator[tuple[str, Tensor]]:
    """Give a shard's tensors under their native names, checked."""
    import torch

    tensors = load_shard(file, names)
    for name in names:
        if name == _COMPUTED:
            continue
        tensor = tensors[name]
        native = targets[name]
        shapes = list(native.values())
        rows = [shape[0] for shape in shapes]
        shape = (sum(rows), *shapes[0][1:])
        if tuple(tensor.shape) != shape:
            raise ModelError(f"{name} has the shape {tuple(tensor.shape)}; config.json asks for {shape}")
        if tensor.dtype not in (torch.float16, torch.bfloat16, torch.float32):
            raise ModelError(
                f"{name} is of type {tensor.dtype}; expected float16, bfloat16 or float32 (quantized weights?)"
            )
        for target, part in zip(native, torch.split(tensor, rows), strict=True):
            yield target, part.contiguous()


def _check_tokenizer(source: Path, tokenizer: PreTrainedTokenizerFast, model: Published) -> int:
    """Check that a tokenizer fits the embedding and SentencePiece; give the number of texts that were compared."""
    rows = model.native["vocab_size"]
    if len(tokenizer) > rows:
        raise ModelError(
            f"tokenizer.model makes {len(tokenizer)} tokens and the embedding has {rows} rows; they do not "
            "belong together"
        )
    texts, differing = compare_tokenizers(source, tokenizer)
    if differing:
        sample = ", ".join(map(repr, differing[:3]))
        raise ModelError(
            f"the fast tokenizer splits {len(differing)} of {texts} texts differently from tokenizer.model, such as "
            f"{sample}; it is not the tokenizer of ChatGLM2-6B or ChatGLM3-6B"
        )
    return texts


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
