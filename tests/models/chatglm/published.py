"""Tiny random checkpoints in the published layout."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

# As in the published config.json of both, but for the sizes.
CONFIG: dict[str, Any] = {
    "model_type": "chatglm",
    "architectures": ["ChatGLMModel"],
    "add_bias_linear": False,
    "add_qkv_bias": True,
    "apply_query_key_layer_scaling": True,
    "apply_residual_connection_post_layernorm": False,
    "attention_dropout": 0.0,
    "attention_softmax_in_fp32": True,
    "bias_dropout_fusion": True,
    "eos_token_id": 2,
    "ffn_hidden_size": 56,
    "fp32_residual_connection": False,
    "hidden_dropout": 0.0,
    "hidden_size": 32,
    "kv_channels": 16,
    "layernorm_epsilon": 1e-5,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "num_attention_heads": 4,
    "num_layers": 3,
    "original_rope": True,
    "pad_token_id": 0,
    "padded_vocab_size": 640,
    "post_layer_norm": True,
    "rmsnorm": True,
    "seq_length": 512,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "use_cache": True,
}

CORPUS = """\
The lighthouse keeper counts the ships and writes their names in the book beside the lamp.
A philosopher, people say, is somebody who reasons about philosophy with a sop and a soap.
How long does it take to cook a goose? Three hours, said the old captain, and a little more.
[Round 1] [Round 2] [Round 10] name: value; 0123456789 100 200 31 365
def main():\n    print('hello')\t# greeting
你好，我是守灯塔的人。你叫什么名字？我叫李白，很高兴见到你。
床前明月光，疑是地上霜。举头望明月，低头思故乡。
问：今天天气怎么样？答：今天天气很好，我们去江边喝酒吧！
俺老孙来也！师父，前面有妖怪，你且在此等候，不要走开。
请用你的口吻回答下面的问题：什么是哲学？人为什么要读书？
"""


def tokenizer_bytes(folder: Path, *, kind: str = "bpe", **options: Any) -> bytes:
    """A SentencePiece model like the published one: byte fallback, text untouched, a space put before it."""
    from sentencepiece import SentencePieceTrainer

    settings: dict[str, Any] = {
        "vocab_size": 600,
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "split_digits": True,
        "character_coverage": 0.999,
        "minloglevel": 2,
    }
    text = folder / "corpus.txt"
    text.write_text(CORPUS, encoding="utf-8")
    prefix = folder / f"{kind}-tokenizer"
    SentencePieceTrainer.train(input=str(text), model_prefix=str(prefix), model_type=kind, **(settings | options))
    return prefix.with_suffix(".model").read_bytes()


def random_tensors(config: dict[str, Any], dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Weights under the published names; wide enough that attention is not flat and the best token stands clear."""
    numbers = torch.Generator().manual_seed(7)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(*shape, generator=numbers).mul(scale).to(dtype)

    hidden, inner, vocabulary = (config[key] for key in ("hidden_size", "ffn_hidden_size", "padded_vocab_size"))
    queries = config["num_attention_heads"] * config["kv_channels"]
    fused = queries + 2 * config["multi_query_group_num"] * config["kv_channels"]
    tensors = {
        "transformer.embedding.word_embeddings.weight": normal(vocabulary, hidden),
        "transformer.rotary_pos_emb.inv_freq": normal(config["kv_channels"] // 4),
        "transformer.encoder.final_layernorm.weight": 1 + normal(hidden, scale=0.2),
        "transformer.output_layer.weight": normal(vocabulary, hidden, scale=0.1),
    }
    for layer in range(config["num_layers"]):
        prefix = f"transformer.encoder.layers.{layer}."
        tensors |= {
            f"{prefix}input_layernorm.weight": 1 + normal(hidden, scale=0.2),
            f"{prefix}post_attention_layernorm.weight": 1 + normal(hidden, scale=0.2),
            f"{prefix}self_attention.query_key_value.weight": normal(fused, hidden, scale=0.2),
            f"{prefix}self_attention.dense.weight": normal(hidden, queries, scale=0.2),
            f"{prefix}mlp.dense_h_to_4h.weight": normal(2 * inner, hidden, scale=0.2),
            f"{prefix}mlp.dense_4h_to_h.weight": normal(hidden, inner, scale=0.2),
        }
        if config["add_qkv_bias"]:
            tensors[f"{prefix}self_attention.query_key_value.bias"] = normal(fused, scale=0.5)
    return tensors


def publish(
    folder: Path,
    family: str,
    config: dict[str, Any],
    tensors: dict[str, Tensor],
    tokenizer: bytes,
    *,
    form: str = "bin",
) -> Path:
    """Write a checkpoint, its tensors as ``bin`` or ``safetensors``: two shards, or as in ``bin-8`` so many."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"name_or_path": f"THUDM/{family}-6b"}), encoding="utf-8")
    (folder / "tokenizer.model").write_bytes(tokenizer)
    (folder / "MODEL_LICENSE").write_text("The licence of the weights.\n", encoding="utf-8")
    # Stands for the published code: whoever imports it leaves a trace.
    trace = "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\n"
    for name in ("configuration_chatglm", "modeling_chatglm"):
        (folder / f"{name}.py").write_text(trace, encoding="utf-8")
    kind, _, count = form.partition("-")
    write_shards(folder, tensors, kind, int(count or 2))
    return folder


def write_shards(folder: Path, tensors: dict[str, Tensor], kind: str, count: int) -> None:
    """Write tensors in so many shards of about equal numbers of tensors, with an index where there are several."""
    stem, suffix = ("pytorch_model", "bin") if kind == "bin" else ("model", "safetensors")
    names = list(tensors)
    placed: dict[str, str] = {}
    for number, held in enumerate(_even(names, count), start=1):
        file = f"{stem}-{number:05}-of-{count:05}.{suffix}" if count > 1 else f"{stem}.{suffix}"
        part = {name: tensors[name] for name in held}
        if kind == "bin":
            torch.save(part, folder / file)
        else:
            save_file(part, folder / file)
        placed |= dict.fromkeys(held, file)
    if count > 1:
        index = {"metadata": {"total_size": sum(t.nbytes for t in tensors.values())}, "weight_map": placed}
        (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps(index), encoding="utf-8")


def _even(names: list[str], count: int) -> Iterable[list[str]]:
    step = -(-len(names) // count)
    return (names[start : start + step] for start in range(0, len(names), step))
