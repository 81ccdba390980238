"""ChatGLM2 and ChatGLM3 once more, from the mathematics of the published code and from nothing of ours.

Facts from ``modeling_chatglm.py`` and ``tokenization_chatglm.py`` beside the weights of THUDM/chatglm2-6b and
THUDM/chatglm3-6b. The formulation is deliberately another one than either side's: rotations are products of complex
numbers, attention is an explicit softmax over all pairs, the tokenizer is `sentencepiece` itself.
"""

from collections.abc import Sequence
from typing import Any

import torch
from sentencepiece import SentencePieceProcessor
from torch import Tensor

SPECIAL = ["[MASK]", "[gMASK]", "[sMASK]", "sop", "eop"]
ROLES = ["<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"]


class ReferenceModel:
    """The original architecture over a mapping of the published names to tensors; computes in float32.

    Args:
        family: ``chatglm2`` or ``chatglm3``; they read ``rope_ratio`` differently.
        config: As in the published ``config.json``.
        tensors: As in the published shards.
    """

    def __init__(self, family: str, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.family = family
        self.config = config
        self.tensors = {name: tensor.float() for name, tensor in tensors.items()}
        self.heads: int = config["num_attention_heads"]
        self.head_dim: int = config["kv_channels"]

    def logits(self, ids: Tensor) -> Tensor:
        """``(batch, length)`` token ids → ``(batch, length, vocabulary)``."""
        length = ids.shape[1]
        turns = self._turns(torch.arange(length)[None])
        visible = torch.ones(length, length, dtype=torch.bool).tril()
        stream = self.tensors["transformer.embedding.word_embeddings.weight"][ids]
        for layer in range(self.config["num_layers"]):
            stream = self._block(f"transformer.encoder.layers.{layer}.", stream, turns, visible)
        normed = self._norm("transformer.encoder.final_layernorm.weight", stream)
        return normed @ self.tensors["transformer.output_layer.weight"].T

    def greedy(self, prompt: Sequence[int], steps: int, stops: Sequence[int] = ()) -> list[int]:
        """The likeliest token, one after the other, without a cache."""
        ids = list(prompt)
        for _ in range(steps):
            ids.append(int(self.logits(torch.tensor([ids]))[0, -1].argmax()))
            if ids[-1] in stops:
                break
        return ids[len(prompt) :]

    def _turns(self, positions: Tensor) -> Tensor:
        """``(batch, length, pairs)`` unit complex numbers: by how much each pair of numbers is turned at each place."""
        ratio = self.config.get("rope_ratio", 1)
        base = 10_000 * (ratio if self.family == "chatglm3" else 1)
        places = positions.double() / (ratio if self.family == "chatglm2" else 1)
        width = self.head_dim // 2
        speeds = torch.tensor([float(base) ** (-pair / width) for pair in range(0, width, 2)], dtype=torch.float64)
        angles = places[..., None] * speeds
        return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)

    def _block(self, prefix: str, stream: Tensor, turns: Tensor, visible: Tensor) -> Tensor:
        normed = self._norm(prefix + "input_layernorm.weight", stream)
        stream = stream + self._attention(prefix + "self_attention.", normed, turns, visible)
        normed = self._norm(prefix + "post_attention_layernorm.weight", stream)
        gate, value = (normed @ self.tensors[prefix + "mlp.dense_h_to_4h.weight"].T).chunk(2, dim=-1)
        return stream + (gate * gate.sigmoid() * value) @ self.tensors[prefix + "mlp.dense_4h_to_h.weight"].T

    def _attention(self, prefix: str, normed: Tensor, turns: Tensor, visible: Tensor) -> Tensor:
        batch, length, _ = normed.shape
        fused = normed @ self.tensors[prefix + "query_key_value.weight"].T
        bias = self.tensors.get(prefix + "query_key_value.bias")
        fused = fused if bias is None else fused + bias
        groups = self.config["multi_query_group_num"]
        by_head = fused.view(batch, length, self.heads + 2 * groups, self.head_dim)
        query, key, value = by_head.split([self.heads, groups, groups], dim=2)
        group_of = torch.arange(self.heads) // (self.heads // groups)
        query, key = self._turn(query, turns), self._turn(key, turns)[:, :, group_of]
        scores = torch.einsum("bqhd,bkhd->bhqk", query, key) / self.head_dim**0.5
        weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
        mixed = torch.einsum("bhqk,bkhd->bqhd", weights, value[:, :, group_of])
        return mixed.flatten(2) @ self.tensors[prefix + "dense.weight"].T

    def _turn(self, heads: Tensor, turns: Tensor) -> Tensor:
        rotated, still = heads.split(self.head_dim // 2, dim=-1)
        pairs = torch.view_as_complex(rotated.unflatten(-1, (-1, 2)).contiguous())
        turned = torch.view_as_real(pairs * turns[:, :, None]).flatten(-2)
        return torch.cat([turned, still], dim=-1)

    def _norm(self, name: str, stream: Tensor) -> Tensor:
        power = stream.pow(2).mean(-1, keepdim=True)
        return self.tensors[name] * stream / torch.sqrt(power + self.config["layernorm_epsilon"])


class ReferenceTokenizer:
    """The original tokenizers: SentencePiece, and special tokens that only code writes.

    Args:
        family: ``chatglm2`` or ``chatglm3``.
        model: The file ``tokenizer.model``.
    """

    def __init__(self, family: str, model: str) -> None:
        self.pieces = SentencePieceProcessor(model_file=model)
        names = SPECIAL + (ROLES if family == "chatglm3" else [])
        first = self.pieces.get_piece_size()
        self.special = {name: first + number for number, name in enumerate(names)}
        self.end = self.pieces.eos_id()
        self.opening = [self.special["[gMASK]"], self.special["sop"]]

    def text(self, text: str) -> list[int]:
        """What ``tokenizer(text)`` gives."""
        return self.opening + self.pieces.encode(text)

    def prompt2(self, question: str, history: Sequence[tuple[str, str]] = ()) -> list[int]:
        """ChatGLM2: ``tokenizer(tokenizer.build_prompt(question, history))``."""
        rounds = [f"[Round {n}]\n\n问：{asked}\n\n答：{said}\n\n" for n, (asked, said) in enumerate(history, start=1)]
        return self.text("".join(rounds) + f"[Round {len(history) + 1}]\n\n问：{question}\n\n答：")

    def prompt3(self, question: str, history: Sequence[tuple[str, str]] = ()) -> list[int]:
        """ChatGLM3: ``tokenizer.build_chat_input(question, history)``; history is of (role, content)."""
        ids = list(self.opening)
        for role, content in [*history, ("user", question)]:
            ids += self.message3(role, content)
        return [*ids, self.special["<|assistant|>"]]

    def message3(self, role: str, content: str) -> list[int]:
        """ChatGLM3: ``tokenizer.build_single_message(role, "", content)``."""
        return [self.special[f"<|{role}|>"], *self.pieces.encode("\n"), *self.pieces.encode(content)]
