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
        pytest.param({"tie_word_embeddings": True}, "tie_word_embeddings is True", id="tied"),
        pytest.param(
            {"apply_residual_connection_post_layernorm": True, "fp32_residual_connection": True},
            "apply_residual_connection_post_layernorm is True, fp32_residual_connection is True",
            id="two at once",
        ),
        pytest.param({"quantization_bit": 4}, "quantized to 4 bits; convert the full checkpoint", id="int4"),
        pytest.param({"pre_seq_len": 128}, "P-tuning prefix", id="P-tuning"),
        pytest.param({"position_encoding_2d": True}, "this is ChatGLM-6B, the first one", id="ChatGLM-6B"),
        pytest.param({"inner_hidden_size": 16384}, "this is ChatGLM-6B, the first one", id="ChatGLM-6B, by its width"),
        pytest.param({"padded_vocab_size": 151552}, "this is GLM-4, which has native checkpoints", id="GLM-4"),
        pytest.param({"model_type": "glm"}, "already native", id="native"),
        pytest.param(
            {"model_type": "llama"}, "expected the configuration of ChatGLM2 or ChatGLM3.*'llama'", id="LLaMA"
        ),
        pytest.param({"padded_vocab_size": ...}, "with padded_vocab_size, num_layers", id="no vocabulary"),
        pytest.param({"num_layers": ...}, "num_layers should be a whole number above 0, found None", id="no layers"),
        pytest.param({"num_layers": True}, "num_layers should be a whole number above 0, found True", id="a truth"),
        pytest.param({"multi_query_group_num": 3}, "4 attention heads cannot be shared out over 3", id="groups"),
    ],
)
def test_what_cannot_be_converted_is_refused_by_name(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_config(write(tmp_path, **changed), "chatglm2")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(None, "config.json: cannot be read .*; give the folder of a ChatGLM2", id="missing"),
        pytest.param("{", "not valid JSON", id="torn"),
    ],
)
def test_a_config_that_cannot_be_read(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content, encoding="utf-8")
    with pytest.raises(ModelError, match=message):
        read_config(tmp_path)


CODE3 = "role_special_tokens = ['<|system|>', '<|user|>', '<|assistant|>', '<|observation|>']"


@pytest.mark.parametrize(
    ("config", "files", "family"),
    [
        pytest.param({}, {"tokenization_chatglm.py": "special_tokens = ['sop', 'eop']"}, "chatglm2", id="code of 2"),
        pytest.param({}, {"tokenization_chatglm.py": CODE3}, "chatglm3", id="code of 3"),
        pytest.param({"_name_or_path": "THUDM/chatglm3-6b-base"}, {}, "chatglm3", id="its name"),
        pytest.param(
            {}, {"tokenizer_config.json": '{"name_or_path": "THUDM/chatglm2-6b"}'}, "chatglm2", id="tokenizer"
        ),
        pytest.param(
            {"_name_or_path": "mine/ChatGLM2-copy"}, {"tokenization_chatglm.py": CODE3}, "chatglm3", id="code over name"
        ),
    ],
)
def test_the_family_is_told_from_the_folder(
    tmp_path: Path, config: dict[str, Any], files: dict[str, str], family: str
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    assert read_config(write(tmp_path, **config)).family == family


def test_a_family_that_cannot_be_told_is_asked_for(tmp_path: Path) -> None:
    src = write(tmp_path, _name_or_path="/models/mine")
    with pytest.raises(ModelError, match="ChatGLM2 or ChatGLM3; add --family chatglm2"):
        read_config(src)
    assert read_config(src, "chatglm3").family == "chatglm3"
