"""A tuned model goes out to other programs: what is written is what was tuned, and a failure leaves nothing."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rolellm.core.errors import DataError, ModelError, SettingsError
from rolellm.exporting import export as exporting
from rolellm.exporting.check import ask_server
from rolellm.exporting.export import export
from rolellm.exporting.passport import show
from rolellm.models.find import SAMPLE, locate_model
from rolellm.models.local_model import LocalModel
from rolellm.training.train import train

from ..training.runs import make_recipe

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
]
ROLE = "Queen of Hearts"
#: A checkout of llama.cpp, next to its tools on the PATH.
LLAMA_CPP = os.environ.get("LLAMA_CPP")
needs_llama_cpp = pytest.mark.skipif(
    not LLAMA_CPP or not shutil.which("llama-server"), reason="needs a checkout at $LLAMA_CPP and llama-server"
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that tuned an adapter."""
    return train(make_recipe(tmp_path_factory.mktemp("run"), method={"name": "lora"})).out


@pytest.fixture(autouse=True)
def _hide_llama_cpp(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if not any(mark.name == "skipif" for mark in request.node.iter_markers()):
        monkeypatch.delenv("LLAMA_CPP", raising=False)
        monkeypatch.setattr(shutil, "which", lambda name: None)


def test_a_merged_model_is_the_run_s_and_has_its_passport(run: Path, tmp_path: Path) -> None:
    exported = export(run, "merged", tmp_path / "out", role=ROLE, license="mit")
    assert exported.has_passed and exported.check.equal_replies == 8
    model = AutoModelForCausalLM.from_pretrained(exported.out, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(exported.out)
    talk = [{"role": "system", "content": "You are Ada."}, {"role": "user", "content": "Who are you?"}]
    ids = tokenizer.apply_chat_template(talk, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    tuned = LocalModel(str(run))
    tuned.load()
    with torch.no_grad():
        pair = [loaded(input_ids=ids["input_ids"]).logits for loaded in (model, tuned._model)]
    assert torch.allclose(*pair, atol=1e-4)
    passport = show(exported.out).content
    assert passport == show(exported.out / "model.safetensors").content
    assert (passport["role"]["name"], passport["license"]) == (ROLE, "mit")
    assert passport["check"]["equal_replies"] == 8 and "revision" not in passport["base"]
    assert str(tmp_path) not in json.dumps(passport)
    with safe_open(exported.out / "model.safetensors", "pt") as tensors:
        assert tensors.metadata()["format"] == "pt"


def test_ollama_gets_a_modelfile_with_the_role_and_the_lines_to_type(run: Path, tmp_path: Path) -> None:
    exported = export(run, "ollama", tmp_path / "out", role=ROLE)
    modelfile = (exported.out / "Modelfile").read_text(encoding="utf-8")
    lines = modelfile.splitlines()
    assert lines[0] == "FROM ."
    assert 'SYSTEM """You are Queen of Hearts' in modelfile
    assert [line for line in lines if line.startswith("PARAMETER")] == [
        'PARAMETER stop "</s>"',
        "PARAMETER temperature 0.7",
        "PARAMETER num_ctx 2048",
    ]
    assert exported.continues_with[1] == "ollama run queen-of-hearts"
    assert "git clone" in exported.hints[0]


def test_vllm_gets_the_adapter_and_a_whole_command_line(run: Path, tmp_path: Path) -> None:
    exported = export(run, "vllm", tmp_path / "out", role=ROLE)
    assert "adapter_model.safetensors" in exported.files and exported.check.equal_replies == 8
    (line,) = exported.continues_with
    assert f"--max-lora-rank 16 --lora-modules queen-of-hearts={exported.out}" in line
    assert f"--chat-template {exported.out / 'chat_template.jinja'}" in line


def test_without_a_role_there_is_no_system_prompt(tmp_path: Path) -> None:
    exported = export(SAMPLE, "ollama", tmp_path / "out")
    assert "SYSTEM" not in (exported.out / "Modelfile").read_text(encoding="utf-8")
    assert exported.hints[0] == "no role is named (--role), so there is no system prompt"


@needs_llama_cpp
@pytest.mark.parametrize("apart", [False, True], ids=["merged", "apart"])
def test_gguf_answers_as_transformers(apart: bool, run: Path, tmp_path: Path) -> None:
    exported = export(run, "ollama", tmp_path / "out", role=ROLE, quantize="f32", apart=apart)
    check = exported.check
    assert (check.by, check.equal_replies, check.equal_prompts) == ("llama.cpp's server", 8, 8)
    files = list(exported.out.glob("*.gguf"))
    assert len(files) == 1 + apart
    for file in files:
        assert show(file).content["role"]["name"] == ROLE
    modelfile = (exported.out / "Modelfile").read_text(encoding="utf-8")
    assert ("ADAPTER ./queen-of-hearts-adapter.gguf" in modelfile) == apart


@needs_llama_cpp
def test_an_adapter_that_the_converter_refuses_is_said(run: Path, tmp_path: Path) -> None:
    changed = shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoint-*", "manifest.json"))
    config = json.loads((changed / "adapter_config.json").read_text())
    config["modules_to_save"] = ["embed_tokens"]
    base = AutoModelForCausalLM.from_pretrained(LocalModel(str(run)).source.base)
    model = PeftModel.from_pretrained(base, run)
    embedding = model.get_input_embeddings().weight.detach().clone()
    file = changed / "adapter_model.safetensors"
    save_file(load_file(file) | {"base_model.model.model.embed_tokens.weight": embedding}, file)
    (changed / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"convert_lora_to_gguf\.py failed: .*leave --set apart out"):
        export(changed, "gguf", tmp_path / "out", role=ROLE, apart=True)
    assert not (tmp_path / "out").exists()


def _spoil_base(run: Path) -> None:
    config = next(run.glob("base-*/config.json"))
    config.write_text(config.read_text().replace("}", " }"))


def _take_another_base(run: Path) -> None:
    file = run / "adapter_config.json"
    config = json.loads(file.read_text())
    (run / "manifest.json").unlink()
    file.write_text(json.dumps(config | {"base_model_name_or_path": locate_model(SAMPLE)}))


@pytest.mark.parametrize(
    ("spoil", "to", "message"),
    [
        pytest.param(_spoil_base, "merged", "is not the base that was tuned: config.json changed", id="changed-base"),
        pytest.param(_take_another_base, "merged", "cannot be put on its base model", id="another-base"),
        pytest.param(lambda run: None, "gguf", "GGUF needs llama.cpp.*git clone --depth 1 https", id="no-llama.cpp"),
    ],
)
def test_what_cannot_go_out_is_said_and_leaves_nothing(
    spoil: Callable[[Path], Any], to: Any, message: str, run: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoint-*"))
    spoil(copy)
    with pytest.raises((ModelError, SettingsError), match=message):
        export(copy, to, tmp_path / "new" / "out", role=ROLE)
    assert not (tmp_path / "new").exists() or not any((tmp_path / "new").iterdir())


def test_a_full_disk_leaves_no_half_folder(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill_disk(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(exporting, "stamp_safetensors", fill_disk)
    with pytest.raises(ModelError, match=r"the disk is full, so .* was not written; free some space"):
        export(run, "merged", tmp_path / "new" / "out", role=ROLE)
    assert not any((tmp_path / "new").iterdir())


@pytest.mark.parametrize("words", ["OSError: 9 requested and 3 written", "[Errno 28] No space left on device"])
def test_a_full_disk_under_a_tool_is_told_from_a_refusal(words: str, tmp_path: Path) -> None:
    (tmp_path / "convert_hf_to_gguf.py").write_text(f"import sys; sys.exit({words!r})")
    with pytest.raises(ModelError, match="the disk is full"):
        export(SAMPLE, "gguf", tmp_path / "new" / "out", llama_cpp=tmp_path)
    assert not any((tmp_path / "new").iterdir())


def test_a_folder_that_exists_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "kept").touch()
    with pytest.raises(SettingsError, match="exists already; name a new folder with --out"):
        export(SAMPLE, "merged", tmp_path)


def test_an_option_that_does_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="merged has no GGUF"):
        export(SAMPLE, "merged", tmp_path / "out", quantize="q8_0")


@pytest.mark.parametrize("content", [b"GGUF\x03\x00", b"", b"\xff" * 64, b"\x02" + bytes(7) + b"{}"])
def test_a_file_without_a_passport_is_said(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"model\.gguf: no"):
        show(file)


def test_a_server_on_this_machine_is_asked_past_the_proxy(
    llm_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = llm_server()
    from llm_faults import Answer

    monkeypatch.setattr(server, "route", lambda *_: (Answer(200, b'{"choices": []}'), 0.0))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setattr("urllib.request._opener", None)
    with pytest.raises(ModelError, match="IndexError"):
        ask_server(server.url, [[{"role": "user", "content": "Who are you?"}]])
