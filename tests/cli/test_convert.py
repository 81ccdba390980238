"""`rolellm data convert-chatglm`, as a shell runs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ..models.chatglm.published import CONFIG, publish, random_tensors, tokenizer_bytes

pytestmark = pytest.mark.slow

BIN = Path(sys.executable).parent


@pytest.fixture
def src(tmp_path: Path) -> Path:
    tensors = random_tensors(CONFIG, torch.float16)
    return publish(tmp_path / "published", "chatglm3", CONFIG, tensors, tokenizer_bytes(tmp_path))


def run(env: dict[str, str], *words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "rolellm"), "data", "convert-chatglm", *map(str, words)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=200, check=False)


def test_a_refusal_is_one_message(src: Path, tmp_path: Path, clean_env: dict[str, str]) -> None:
    quantised = CONFIG | {"quantization_bit": 4}
    (src / "config.json").write_text(json.dumps(quantised), encoding="utf-8")
    failed = run(clean_env, src, tmp_path / "native")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.startswith(f"error: {src / 'config.json'}: the weights are quantized to 4 bits")

    taken = run(clean_env, src, src)
    assert taken.returncode == 2
    assert "is not empty" in taken.stderr
    assert "Traceback" not in failed.stderr + taken.stderr
