"""What a published checkpoint may say and hold, and what is refused by name."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rolellm.core.errors import ModelError, RoleLLMError
from rolellm.models.chatglm.convert import convert_chatglm, find_shards, load_shard, read_config

from .conftest import Publish
from .published import CONFIG, random_tensors, tokenizer_bytes, write_shards

NORM = "transformer.encoder.final_layernorm.weight"
CODE3 = "role_special_tokens = ['<|system|>', '<|user|>', '<|assistant|>', '<|observation|>']"
Change = Callable[[Path], object]


def set_config(**values: Any) -> Change:
    """Change values of config.json; ``...`` takes one out."""
    config = {key: value for key, value in (CONFIG | values).items() if value is not ...}
    return write("config.json", json.dumps(config))


def write(name: str, content: str | bytes) -> Change:
    data = content.encode() if isinstance(content, str) else content
    return lambda src: (src / name).write_bytes(data)


def remove(name: str) -> Change:
    return lambda src: (src / name).unlink()


def set_tensors(**values: Tensor | None) -> Change:
    """Change tensors; ``None`` takes one out."""
    tensors = random_tensors(CONFIG) | values
    kept = {name: value for name, value in tensors.items() if value is not None}

    def rewrite(src: Path) -> None:
        for file in src.glob("pytorch_model*"):
            file.unlink()
        write_shards(src, kept, "bin", 2)

    return rewrite


def set_tokenizer(**options: Any) -> Change:
    return lambda src: (src / "tokenizer.model").write_bytes(tokenizer_bytes(src.parent, **options))


def edit_pieces(score: float | None = None, names: dict[int, str] | None = None) -> Change:
    """Give all pieces of text one score, or some another name."""
    from sentencepiece import sentencepiece_model_pb2

    def edit(src: Path) -> None:
        file = src / "tokenizer.model"
        proto = sentencepiece_model_pb2.ModelProto.FromString(file.read_bytes())
        for number, piece in enumerate(proto.pieces):
            if piece.type == 1 and score is not None:
                piece.score = score
            piece.piece = (names or {}).get(number, piece.piece)
        file.write_bytes(proto.SerializeToString())

    return edit


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(write("config.json", "{"), "give the folder of a ChatGLM2", id="no-json"),
        pytest.param(
            set_config(fp32_residual_connection=True, multi_query_attention=False),
            "multi_query_attention is False, fp32_residual_connection is True",
            id="another-architecture",
        ),
        pytest.param(set_config(quantization_bit=4), "quantized to 4 bits", id="quantized"),
        pytest.param(set_config(pre_seq_len=128), "P-tuning prefix", id="p-tuned"),
        pytest.param(set_config(position_encoding_2d=True), "ChatGLM-6B, the first one", id="first"),
        pytest.param(set_config(padded_vocab_size=151552), "GLM-4", id="glm-4"),
        pytest.param(set_config(model_type="glm"), "already native", id="native"),
        pytest.param(set_config(model_type="llama"), "found model_type 'llama'", id="llama"),
        pytest.param(set_config(num_layers=True), "num_layers should be .* found True", id="no-number"),
        pytest.param(set_config(multi_query_group_num=3), "shared out over 3", id="groups"),
        pytest.param(remove("tokenizer_config.json"), "add the checkpoint's tokenization_chatglm.py", id="no-family"),
        pytest.param(set_tensors(**{NORM: None}), f"lacks 1 of 24 tensors: {NORM}", id="tensor-missing"),
        pytest.param(set_tensors(adapter=torch.ones(1)), "no place in GlmForCausalLM: adapter", id="tensor-extra"),
        pytest.param(set_tensors(**{NORM: torch.ones(31)}), r"\(31,\); config.json asks for \(32,\)", id="shape"),
        pytest.param(set_tensors(**{NORM: torch.ones(32).char()}), "type torch.int8.*quantized", id="integers"),
        pytest.param(set_tensors(**{NORM + "_scale": torch.ones(1)}), "convert the full checkpoint", id="scales"),
        pytest.param(remove("pytorch_model-00002-of-00002.bin"), "lacks 1 of 2 shards", id="no-shard"),
        pytest.param(write("pytorch_model-00002-of-00002.bin", b"PK"), "00002-of-00002", id="torn-shard"),
        pytest.param(write("pytorch_model.bin.index.json", "{}"), "should be an index", id="no-weight-map"),
        pytest.param(
            write("pytorch_model.bin.index.json", '{"weight_map": {"a": "../outside.bin"}}'),
            "lacks 1 of 1 shards",
            id="shard-outside",
        ),
        pytest.param(remove("pytorch_model.bin.index.json"), "holds no weights; expected one of", id="no-weights"),
        pytest.param(set_config(padded_vocab_size=604), "605 tokens and the embedding has 604 rows", id="embedding"),
        pytest.param(edit_pieces(score=-1.0), r"splits \d+ of 4445 texts differently", id="ties"),
        pytest.param(edit_pieces(names={590: "[gMASK]"}), "called like special", id="piece-like-special"),
        pytest.param(set_tokenizer(eos_id=-1), "no end token; .* </s>", id="no-end"),
        pytest.param(set_tokenizer(kind="char", vocab_size=450), "words or characters", id="characters"),
        pytest.param(
            write("tokenizer.model", "IQ== 0\nIg== 1\nIw== 2\n"), "is not a SentencePiece model", id="tiktoken"
        ),
        pytest.param(remove("tokenizer.model"), "has no tokenizer", id="no-tokenizer"),
    ],
)
def test_what_cannot_be_converted_is_refused_and_leaves_nothing(
    published: Publish, tmp_path: Path, change: Change, message: str
) -> None:
    src = published()
    (src.parent / "outside.bin").touch()
    change(src)
    with pytest.raises(ModelError, match=message):
        convert_chatglm(src, tmp_path / "native")
    assert not list(tmp_path.glob("*native*"))


def test_places_that_cannot_be(published: Publish, tmp_path: Path) -> None:
    src = published()
    (tmp_path / "file").touch()
    refusals = [
        (tmp_path / "nowhere", tmp_path / "native", "no folder at .*nowhere"),
        (src, src, "is not empty; give a new folder"),
        (src, tmp_path / "file", "is a file"),
        (src, tmp_path / "file" / "native", "cannot be written"),
    ]
    for source, target, message in refusals:
        with pytest.raises(RoleLLMError, match=message):
            convert_chatglm(source, target)


@pytest.mark.parametrize(
    ("name", "files", "family"),
    [
        ("mine", {"tokenization_chatglm.py": "special_tokens = ['sop', 'eop']"}, "chatglm2"),
        ("mine/ChatGLM2-copy", {"tokenization_chatglm.py": CODE3}, "chatglm3"),
        ("THUDM/chatglm3-6b-base", {}, "chatglm3"),
    ],
)
def test_the_family_is_told_from_the_folder(tmp_path: Path, name: str, files: dict[str, str], family: str) -> None:
    for file, content in files.items():
        write(file, content)(tmp_path)
    set_config(_name_or_path=name)(tmp_path)
    assert read_config(tmp_path).family == family


class Trap:
    """Unpickled, it would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_a_pickle_of_code_is_not_run(tmp_path: Path) -> None:
    trace, file = tmp_path / "ran", tmp_path / "pytorch_model.bin"
    torch.save({"a": Trap(trace)}, file)
    for content in (file.read_bytes(), pickle.dumps(Trap(trace), protocol=2)):
        file.write_bytes(content)
        with pytest.raises(ModelError, match="holds more than tensors"):
            find_shards(tmp_path)
    torch.save(torch.ones(1), file)
    with pytest.raises(ModelError, match="should hold a mapping"):
        load_shard(file)
    assert not trace.exists()


def test_safetensors_are_preferred(tmp_path: Path) -> None:
    for kind in ("bin", "safetensors"):
        write_shards(tmp_path, {"a": torch.zeros(1), "b": torch.ones(1)}, kind, 2)
    assert {file.suffix for file in find_shards(tmp_path)} == {".safetensors"}
