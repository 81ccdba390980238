"""What config.json may say, and what is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from rolellm.core.errors import ModelError
from rolellm.models.chatglm.convert import read_config

from .published import CONFIG


def write(folder: Path, **changed: Any) -> Path:
    values = {key: value for key, value in (CONFIG | changed).items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"fp32_residual_connection": True, "tie_word_embeddings": True}, "fp32_residual_connection is True, tie_word"),
        ({"quantization_bit": 4}, "quantized to 4 bits"),
        ({"pre_seq_len": 128}, "P-tuning prefix"),
        ({"position_encoding_2d": True}, "ChatGLM-6B, the first one"),
        ({"inner_hidden_size": 16384}, "ChatGLM-6B, the first one"),
        ({"padded_vocab_size": 151552}, "GLM-4"),
        ({"model_type": "glm"}, "already native"),
        ({"model_type": "llama"}, "found model_type 'llama'"),
        ({"padded_vocab_size": ...}, "with padded_vocab_size"),
        ({"num_layers": ...}, "num_layers should be .* found None"),
        ({"num_layers": True}, "num_layers should be .* found True"),
        ({"multi_query_group_num": 3}, "shared out over 3"),
    ],
    ids=str,
)
def test_what_cannot_be_converted_is_refused_by_name(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_config(write(tmp_path, **changed), "chatglm2")


@pytest.mark.parametrize("content", ["", "{", "[]"])
def test_a_config_that_cannot_be_read_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content, encoding="utf-8")
    with pytest.raises(ModelError, match="give the folder of a ChatGLM2"):
        read_config(tmp_path)


CODE3 = "role_special_tokens = ['<|system|>', '<|user|>', '<|assistant|>', '<|observation|>']"


@pytest.mark.parametrize(
    ("name", "files", "family"),
    [
        ("mine", {"tokenization_chatglm.py": "special_tokens = ['sop', 'eop']"}, "chatglm2"),
        ("mine/ChatGLM2-copy", {"tokenization_chatglm.py": CODE3}, "chatglm3"),
        ("THUDM/chatglm3-6b-base", {}, "chatglm3"),
        ("mine", {"tokenizer_config.json": '{"name_or_path": "THUDM/chatglm2-6b"}'}, "chatglm2"),
    ],
)
def test_the_family_is_told_from_the_folder(tmp_path: Path, name: str, files: dict[str, str], family: str) -> None:
    for file, content in files.items():
        (tmp_path / file).write_text(content, encoding="utf-8")
    assert read_config(write(tmp_path, _name_or_path=name)).family == family


def test_a_family_that_cannot_be_told_is_asked_for(tmp_path: Path) -> None:
    src = write(tmp_path, _name_or_path="/models/mine")
    with pytest.raises(ModelError, match="ChatGLM2 or ChatGLM3; add --set family=chatglm2"):
        read_config(src)
    assert read_config(src, "chatglm3").family == "chatglm3"
