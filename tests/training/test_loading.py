"""Bases as a recipe asks for them: held in 4 bits, whole or refused, from a folder or from the Hub."""

import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bitsandbytes.nn import Linear4bit
from huggingface_hub import constants, hf_hub_download
from safetensors.torch import load_file, save_file
from transformers import GenerationConfig

from rolellm.core.errors import ModelError, RoleLLMWarning, SettingsError
from rolellm.models.find import hash_model
from rolellm.models.load import add_stop_token, fetch
from rolellm.models.local_model import Decoding, LocalModel
from rolellm.training.bases import build_base, load_model, load_tokenizer
from rolellm.training.examples import Example
from rolellm.training.fit import fit
from rolellm.training.recipe import Lora, MethodRecipe, TrainingRecipe
from rolellm.training.rows import load_rows
from rolellm.training.train import train

from .fits import make_job
from .models import gradient, new_model, with_adapter
from .runs import make_recipe, read_lines, read_object

CPU = TrainingRecipe(use_cpu=True)
FULL = MethodRecipe(name="full")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    # Wide enough for several blocks of 64 weights, each with its own scale.
    tiny = {"hidden_size": 64, "intermediate_size": 128, "layers": 2, "heads": 2, "vocab_size": 700}
    recipe = make_recipe(folder, base__tiny=tiny)
    return build_base(recipe, load_rows(recipe), folder)


@pytest.fixture
def copy(base: Path, tmp_path: Path) -> Path:
    """A copy of the base to spoil."""
    return Path(shutil.copytree(base, tmp_path / "copy"))


QLORA = MethodRecipe(name="qlora", lora=Lora(r=4))


def layers_of(model: Any) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, Linear4bit)]


def copy_weights(model: Any) -> list[Any]:
    return [layer.weight.data.clone() for layer in layers_of(model)]


IDS = torch.arange(5, 45).reshape(2, 20)


def score(model: Any) -> Any:
    return gradient(model, model(input_ids=IDS, labels=IDS).loss)


def test_gradients_stay_right_after_a_look_without_them(base: Path) -> None:
    """On CPUs with AVX512-BF16, bitsandbytes would repack the weights then, and gradients would come out wrong."""
    model = with_adapter(load_model(base, QLORA, CPU))
    before, held = score(model), copy_weights(model)
    with torch.no_grad():
        model.eval()(input_ids=IDS)
    assert torch.equal(score(model.train()), before)
    assert all(map(torch.equal, held, copy_weights(model)))
    assert all(layer.support_avx512bf16_for_cpu is False for layer in layers_of(model))


def test_tuning_on_4_bits_moves_the_adapter_alone_in_float32(base: Path, tmp_path: Path) -> None:
    """TRL puts such an adapter in bfloat16, where an update of this size is lost."""
    model = load_model(base, QLORA, CPU)
    held = copy_weights(model)
    examples = [Example(str(number), (5, 6), (7 + number, 2)) for number in range(4)]
    job = make_job(tmp_path / "run", QLORA, learning_rate=1e-7, max_steps=3, save_steps=2)
    fitted = fit(model, load_tokenizer(base), examples, job)
    assert all(map(torch.equal, held, copy_weights(model)))
    fitted.save(tmp_path / "saved")
    saved, early = (
        load_file(folder / "adapter_model.safetensors")
        for folder in (tmp_path / "saved", tmp_path / "run" / "checkpoint-2")
    )
    assert {tensor.dtype for tensor in saved.values()} == {torch.float32}
    assert any(not torch.equal(saved[name], early[name]) for name in saved)


@pytest.mark.parametrize(("method", "dtype"), [("full", "float32"), ("lora", "bfloat16")])
def test_what_is_trained_is_held_in_full_and_what_is_frozen_as_computed(method: Any, dtype: str, base: Path) -> None:
    model = load_model(base, MethodRecipe(name=method), TrainingRecipe(use_cpu=True, bf16=True))
    assert {parameter.dtype for parameter in model.parameters()} == {getattr(torch, dtype)}


# What is not whole


def drop_a_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        pytest.param(drop_a_tensor, r"lacks 1 of the model's weights \(model\.layers\.1\.mlp\.up_proj\.", id="tensor"),
        pytest.param(lambda f: (f / "config.json").write_text("{"), "cannot be loaded", id="config-cut-off"),
    ],
)
@pytest.mark.parametrize("method", [FULL, QLORA], ids=["full", "qlora"])
def test_a_base_that_is_not_whole_is_refused(spoil: Any, words: str, method: MethodRecipe, copy: Path) -> None:
    spoil(copy)
    with pytest.raises(ModelError, match=words):
        load_model(copy, method, CPU)


def test_a_base_without_a_chat_template_has_no_form_of_its_own_and_one_without_a_tokenizer_none(copy: Path) -> None:
    (copy / "chat_template.jinja").unlink()
    with pytest.raises(ModelError, match=r"no chat template; use prompt\.form: rolellama"):
        load_tokenizer(copy, "model")
    assert "### Response:" in str(load_tokenizer(copy).chat_template)
    for file in copy.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(ModelError, match="its tokenizer cannot be loaded"):
        load_tokenizer(copy)


class Trap:
    """Unpickled, it makes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


def test_pickled_code_is_not_run(copy: Path, tmp_path: Path) -> None:
    (copy / "model.safetensors").unlink()
    mark = tmp_path / "mark"
    torch.save({"model.norm.weight": Trap(mark)}, copy / "pytorch_model.bin")
    with pytest.raises(ModelError, match="its model cannot be loaded"):
        load_model(copy, FULL, CPU)
    assert not mark.exists()


# From the Hub


@pytest.fixture
def on_hub(hub: Any, base: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., str]:
    """Puts the base on a local Hub, with changes; returns its name. The client's cache is empty."""
    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
    template = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))

    def put(**changes: bytes | None) -> str:
        files: dict[str, bytes | None] = {path.name: path.read_bytes() for path in base.iterdir()}
        files |= {"base.json": None} | changes
        kept = {name: content for name, content in files.items() if content is not None}
        hub.store.create("model", "me/tiny", private=False, files=kept)
        return "me/tiny"

    return put


def losses(run: Path) -> list[float]:
    return [line["loss"] for line in read_lines(run)]


def change_on_hub(hub: Any) -> str:
    """Put other weights in the place of the base's; the commit that had those."""
    commit = hub.store.read("model", "me/tiny")["branches"]["main"]
    other = {"path": "model.safetensors", "content": b"not these weights any more"}
    lines = [{"key": "header", "value": {"summary": "Other weights"}}, {"key": "file", "value": other}]
    hub.store.commit("model", "me/tiny", "main", lines)
    return str(commit)


LORA = {"name": "lora", "lora": {"r": 4}}


def test_a_base_on_the_hub_is_tuned_and_named_as_it_is_there(
    on_hub: Callable[..., str], hub: Any, base: Path, tmp_path: Path
) -> None:
    recipe = make_recipe(tmp_path, base={"model": on_hub(), "revision": "main"}, method=LORA)
    result = train(recipe)
    here = train(make_recipe(tmp_path, base={"path": str(base)}, method=LORA), out=tmp_path / "here")
    assert losses(result.out) == losses(here.out)
    # Another model comes to the Hub and into the cache: the adapter answers on its own.
    commit = change_on_hub(hub)
    manifest = read_object(result.out)
    named = {key: manifest["base"][key] for key in ("kind", "name", "model", "revision")}
    assert named == {"kind": "hub", "name": "me/tiny", "model": "me/tiny", "revision": commit}
    adapter = read_object(result.out, "adapter_config.json")
    assert (adapter["base_model_name_or_path"], adapter["revision"]) == ("me/tiny", commit)
    hf_hub_download("me/tiny", "config.json", force_download=True)
    model = LocalModel(str(result.out), device="cpu")
    assert model.generate_batch([[5, 6]], Decoding(max_new_tokens=1))
    assert model.source.revision == commit
    assert model.hashes["model_hash"] == hash_model("me/tiny", commit) != hash_model("me/tiny")
    (result.out / "manifest.json").unlink()
    other = make_recipe(tmp_path, base={"model": "me/tiny", "revision": "v2"}, method=LORA)
    with pytest.raises(SettingsError, match=r'another recipe: base\.revision was "main" and is now "v2";'):
        train(other, resume=True)


@pytest.mark.slow
def test_a_base_that_changed_on_the_hub_is_resumed_at_the_commit_that_was_used(
    on_hub: Callable[..., str], hub: Any, tmp_path: Path
) -> None:
    recipe = make_recipe(tmp_path, base={"model": on_hub()}, method=LORA, training__save_steps=1)
    run = train(recipe).out
    straight = losses(run)
    for name in ("manifest.json", "adapter_model.safetensors", "metrics.jsonl"):
        (run / name).unlink()
    shutil.rmtree(run / "checkpoint-3")
    commit = change_on_hub(hub)
    train(recipe, resume=True)
    assert losses(run) == straight
    assert read_object(run)["base"]["revision"] == commit
    assert read_object(run, "adapter_config.json")["revision"] == commit


def test_routers_are_not_weighed_in_inference(tokenizer: Any, tmp_path: Path) -> None:
    """A checkpoint may say so; `generate` then fails on a padded batch."""
    model = new_model("Mixtral", len(tokenizer), num_local_experts=4)
    model.config.output_router_logits = True
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    local = LocalModel(str(tmp_path), device="cpu")
    with pytest.warns(RoleLLMWarning, match="mixtral"):
        assert len(local.generate_batch([[5], [5, 6, 7]], Decoding(max_new_tokens=2))) == 2


def test_what_was_fetched_is_there_without_the_hub(
    on_hub: Callable[..., str], hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fetch(on_hub(), None, weights=True)
    hub.asked.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch("me/tiny", None, weights=True) == folder
    assert hub.asked == []
    with pytest.raises(ModelError, match=r"base\.model: cannot download me/other from the Hub"):
        fetch("me/other", None, weights=True)


def test_an_older_repository_gives_its_pickled_weights(on_hub: Callable[..., str], base: Path) -> None:
    stream = io.BytesIO()
    torch.save(load_file(base / "model.safetensors"), stream)
    changes: dict[str, bytes | None] = {"pytorch_model.bin": stream.getvalue(), "model.safetensors": None}
    folder = fetch(on_hub(**changes), None, weights=True)
    assert list(load_model(folder, FULL, CPU).parameters())


@pytest.mark.parametrize(
    ("model", "revision", "failures"),
    [
        pytest.param("me/nonesuch", None, 0, id="no-such-repository"),
        pytest.param("me/tiny", "v9", 0, id="no-such-revision"),
        pytest.param("me/tiny", None, 100, id="gated"),
    ],
)
def test_what_the_hub_does_not_give_is_a_word_and_the_way_out(
    model: str, revision: str | None, failures: int, on_hub: Callable[..., str], hub: Any
) -> None:
    on_hub()
    hub.fail("info", 403, times=failures)
    with pytest.raises(ModelError, match=rf"(?s)base\.model: cannot download {model} .* or set base\.path"):
        fetch(model, revision, weights=True)


def test_the_end_of_a_reply_ends_generation_in_a_configuration_that_can_be_saved(tmp_path: Path) -> None:
    """With settings of sampling and no `do_sample`, as some bases have them."""
    config = GenerationConfig(eos_token_id=[2, 7, 3], temperature=0.9, top_p=0.6)
    add_stop_token(config, 7)
    config.save_pretrained(tmp_path)
    assert GenerationConfig.from_pretrained(tmp_path).eos_token_id == [7, 2, 3]
