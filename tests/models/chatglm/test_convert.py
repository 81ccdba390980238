"""A whole conversion: what lies in the folder, who can use it, and what is left when it fails."""

from pathlib import Path
from typing import Any

import pytest
import torch

from rolellm.core.errors import ModelError, SettingsError
from rolellm.models.chatglm.convert import convert_chatglm
from rolellm.models.local_model import Decoding, LocalModel

from ...forking import Forking
from .conftest import Publish
from .published import CONFIG, publish, random_tensors
from .reference import ReferenceModel, ReferenceTokenizer

pytestmark = pytest.mark.slow

MESSAGES = [{"role": "system", "content": "你是李白。"}, {"role": "user", "content": "今天天气怎么样？"}]


def test_the_folder_holds_a_native_checkpoint_and_nothing_else(native: Path) -> None:
    assert sorted(file.name for file in native.iterdir()) == [
        "MODEL_LICENSE",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert sorted(file.name for file in native.parent.iterdir()) == ["native", "published"]
    assert not (native.parent / "published" / "ran").exists()


def test_it_answers_through_generate_as_the_original_would(
    native: Path, family: str, original_model: ReferenceModel, original_tokenizer: ReferenceTokenizer
) -> None:
    from transformers import GenerationConfig

    stops = [2] if family == "chatglm2" else [2, 606, 608]
    saved = GenerationConfig.from_pretrained(native)
    assert (saved.eos_token_id, saved.pad_token_id) == (stops, 0)
    model = LocalModel(str(native), device="cpu")
    prompt = model.encode(MESSAGES)
    short = model.encode(MESSAGES[1:])
    assert model.vocabulary == CONFIG["padded_vocab_size"]
    assert model.context == CONFIG["seq_length"]
    assert prompt[:2] == original_tokenizer.opening

    replies = model.generate_batch([prompt, short], Decoding(max_new_tokens=24))
    for ids, reply in zip([prompt, short], replies, strict=True):
        expected = original_model.greedy(ids, 24, stops)
        ended = expected[-1] in stops
        text = model.tokenizer.decode(expected[: len(expected) - ended], skip_special_tokens=True)
        assert reply.text == text.strip()
        assert (reply.new_tokens, reply.finish) == (len(expected), "stop" if ended else "length")


def test_an_empty_folder_is_taken_and_a_full_one_is_not(published: Publish, tmp_path: Path) -> None:
    src = published()
    (tmp_path / "native").mkdir()
    convert_chatglm(src, tmp_path / "native")
    before = {file: file.read_bytes() for file in (tmp_path / "native").iterdir()}
    with pytest.raises(SettingsError, match="is not empty; give a new folder"):
        convert_chatglm(src, tmp_path / "native")
    assert {file: file.read_bytes() for file in (tmp_path / "native").iterdir()} == before


def test_places_and_options_that_cannot_be(published: Publish, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no folder at .*nowhere; give the folder of a downloaded"):
        convert_chatglm(tmp_path / "nowhere", tmp_path / "native")
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match="is a file; give a folder to make"):
        convert_chatglm(published(), tmp_path / "file")
    with pytest.raises(ModelError, match="cannot be written"):
        convert_chatglm(tmp_path / "published", tmp_path / "file" / "native")
    unknown: list[Any] = [{"dtype": "int8"}, {"family": "chatglm"}]
    for option in unknown:
        with pytest.raises(SettingsError, match=r"unknown .*; known: "):
            convert_chatglm(tmp_path / "published", tmp_path / "native", **option)


@pytest.mark.parametrize("broken", ["pytorch_model-00002-of-00002.bin", "model-00002-of-00002.safetensors"])
def test_a_conversion_that_fails_half_way_leaves_nothing(published: Publish, tmp_path: Path, broken: str) -> None:
    src = published(form="bin" if broken.endswith("bin") else "safetensors")
    torn = (src / broken).read_bytes()
    (src / broken).write_bytes(torn[: len(torn) // 2])
    with pytest.raises(ModelError, match=broken):
        convert_chatglm(src, tmp_path / "native")
    assert [file.name for file in tmp_path.iterdir()] == ["published"]


def test_a_native_layout_that_changed_is_refused(
    published: Publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it would be with a later transformers."""
    from transformers import GlmForCausalLM

    real = GlmForCausalLM.state_dict

    def renamed(self: Any, *args: Any, **options: Any) -> Any:
        return {name.replace("o_proj", "out_proj"): value for name, value in real(self, *args, **options).items()}

    monkeypatch.setattr(GlmForCausalLM, "state_dict", renamed)
    with pytest.raises(
        ModelError, match=r"lays GlmForCausalLM out in another way: model\.layers\.0\.self_attn\.o_proj"
    ):
        convert_chatglm(published(), tmp_path / "native")


LARGE = CONFIG | {
    "num_layers": 16,
    "hidden_size": 768,
    "ffn_hidden_size": 2048,
    "num_attention_heads": 12,
    "kv_channels": 64,
    "padded_vocab_size": 4096,
}
# The peak is set back once everything is imported and a small checkpoint has been converted.
MEASURE = """
import sys
from pathlib import Path
from rolellm.models.chatglm.convert import convert_chatglm

def peak():
    return int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))) * 1024

small, large, out, dtype = sys.argv[1:]
convert_chatglm(small, out + "-small", dtype=dtype or None)
Path("/proc/self/clear_refs").write_text("5")
before = peak()
made = convert_chatglm(large, out, dtype=dtype or None)
print(peak() - before, made.bytes)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak can be set back on Linux only")
@pytest.mark.parametrize(
    ("form", "dtype", "copies"),
    [
        pytest.param("bin", "", 0, id="bin"),
        pytest.param("safetensors", "", 0, id="safetensors"),
        pytest.param("bin", "float32", 2, id="bin, twice as wide"),
    ],
)
def test_memory_is_that_of_one_shard(
    tmp_path: Path, pieces: bytes, warm: Forking, form: str, dtype: str, copies: int
) -> None:
    """210 MB in eight shards; the margin is of what Python and its allocator take beside the tensors."""
    small = publish(tmp_path / "small", "chatglm2", CONFIG, random_tensors(CONFIG), pieces, form=form)
    tensors = random_tensors(LARGE, torch.float16)
    large = publish(tmp_path / "large", "chatglm2", LARGE, tensors, pieces, form=f"{form}-8")
    shards = [file.stat().st_size for file in large.iterdir() if file.suffix in (".bin", ".safetensors")]
    run = warm.run([small, large, tmp_path / "native", dtype], tmp_path, code=MEASURE)
    assert run.returncode == 0, run.stderr
    grown, size = map(int, run.stdout.split())
    assert len(shards) == 8
    assert size > sum(shards) * max(1, copies) * 0.99
    assert grown < (1 + copies) * max(shards) + 24e6 < size / 3
