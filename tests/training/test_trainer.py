"""Training from a recipe: what a run leaves, and what is refused before any work."""

import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from rolellm.core.errors import ModelError, SettingsError
from rolellm.core.files import write_json
from rolellm.core.fingerprint import hash_file
from rolellm.core.records import Row
from rolellm.data.rolebench import dataset_fingerprint
from rolellm.models.load import list_stop_tokens
from rolellm.models.prompts.encode import encode_prompt
from rolellm.models.prompts.render import make_messages
from rolellm.models.training_record import hash_instruction
from rolellm.training.bases import build_base, build_hash, load_model
from rolellm.training.examples import Example
from rolellm.training.fit import fit
from rolellm.training.recipe import Lora, MethodRecipe, Recipe, TrainingRecipe
from rolellm.training.rows import load_rows
from rolellm.training.train import TrainingRun, prepare, train

from .fits import make_job
from .runs import make_recipe, read_lines, read_object

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def full_recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    return make_recipe(tmp_path_factory.mktemp("full"))


@pytest.fixture(scope="module")
def full_run(full_recipe: Recipe) -> TrainingRun:
    """The mini recipe, carried out."""
    return train(full_recipe)


def loaded(folder: Path) -> Any:
    return load_model(folder, MethodRecipe(name="full"), TrainingRecipe(use_cpu=True))


def test_the_manifest_names_recipe_data_prompt_base_and_versions(
    full_run: TrainingRun, full_recipe: Recipe, sample_rows: list[Row]
) -> None:
    manifest = read_object(full_run.out)
    rows = sample_rows[:12]
    assert [line["step"] for line in full_run.metrics] == [1, 2, 3]
    assert all(line["loss"] > 0 and line["grad_norm"] > 0 for line in full_run.metrics)
    assert full_run.metrics[0]["loss"] == full_run.first_loss
    assert (manifest["recipe_hash"], manifest["seed"]) == (full_recipe.hash, 42)
    assert manifest["recipe"]["training"]["max_steps"] == 3
    data, trained_on = manifest["data"], manifest["trained_on"]
    assert data["fingerprint"] == dataset_fingerprint("sample")
    assert (data["rows"], data["examples"]) == (12, sum(len(row.references) for row in rows))
    assert trained_on["roles"] == sorted({row.role for row in rows})
    assert set(trained_on["instructions"]) == {hash_instruction(row.question) for row in rows}
    assert {"torch", "transformers", "trl", "peft", "rolellm"} <= manifest["versions"].keys()
    for files, folder in ((manifest["files"], full_run.out), (manifest["base"]["files"], full_run.base)):
        assert files["model.safetensors"] == hash_file(folder / "model.safetensors")
    assert len(manifest["prompt"]["system_templates"]["zh"]) == 64


def test_a_run_leaves_a_model_that_loads_with_its_prompt_form_and_its_end(
    full_run: TrainingRun, full_recipe: Recipe, sample_rows: list[Row]
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(full_run.out)
    model = AutoModelForCausalLM.from_pretrained(full_run.out)
    turns = make_messages(sample_rows[0])
    trained = prepare(full_recipe, full_run.out).examples[0]
    assert encode_prompt(tokenizer, turns) == list(trained.prompt_ids)
    assert tokenizer.apply_chat_template(turns, add_generation_prompt=True)["input_ids"] == list(trained.prompt_ids)
    assert list_stop_tokens(model.generation_config) == [tokenizer.eos_token_id] == [trained.reply_ids[-1]]


def test_an_adapter_on_its_base_gives_the_logits_of_the_run(tmp_path: Path, base: Path, tokenizer: Any) -> None:
    # Dropout must not be left on.
    method = MethodRecipe(name="lora", lora=Lora(r=4, lora_dropout=0.3))
    examples = [Example(str(number), (5, 6), (7 + number, 2)) for number in range(4)]
    fitted = fit(loaded(base), tokenizer, examples, make_job(tmp_path, method, max_steps=3, learning_rate=1e-3))
    # A base in the run's folder is named by its place there.
    run = Path(shutil.copytree(base, tmp_path / "run" / base.name)).parent
    fitted.trainer.model.peft_config["default"].base_model_name_or_path = str(run / base.name)
    fitted.save(run)
    assert read_object(run, "adapter_config.json")["base_model_name_or_path"] == base.name
    assert (run / "chat_template.jinja").exists() and not (run / "model.safetensors").exists()
    stock = PeftModel.from_pretrained(loaded(base), run)
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        models = (fitted.trainer.model, stock, loaded(base))
        expected, found, plain = (model.eval()(ids).logits for model in models)
    assert torch.allclose(found, expected, atol=1e-6)
    assert not torch.allclose(found, plain, atol=1e-6)


def test_a_finished_run_is_replaced_when_asked_and_its_base_is_kept(
    full_run: TrainingRun, full_recipe: Recipe, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match="holds a finished run"):
        train(full_recipe)
    shutil.copytree(full_run.out, run := tmp_path / "run")
    (run / "notes.txt").write_text("mine", encoding="utf-8")
    (run / "checkpoint-best").mkdir()
    weights = run / full_run.base.name / "model.safetensors"
    built = weights.stat().st_mtime_ns
    once = replace(full_recipe, training=replace(full_recipe.training, max_steps=1))
    assert train(once, out=run, overwrite=True).steps == 1
    assert len(read_lines(run)) == 1
    assert {path.name for path in run.glob("checkpoint-*")} == {"checkpoint-1", "checkpoint-best"}
    assert weights.stat().st_mtime_ns == built
    assert (run / "notes.txt").read_text(encoding="utf-8") == "mine"


THEIRS = "but no run of this command; choose another folder with --out"


@pytest.mark.parametrize(
    ("left", "words"),
    [
        pytest.param(["recipe.json", "checkpoint-5/x"], "holds an unfinished run; continue it", id="unfinished"),
        pytest.param(["checkpoint-5/x"], f"holds checkpoint-5, {THEIRS}", id="another-trainer-s-run"),
        pytest.param(["model.safetensors"], f"holds model.safetensors, {THEIRS}", id="a-model"),
        pytest.param(["pytorch_model.bin"], f"holds pytorch_model.bin, {THEIRS}", id="a-pickled-model"),
    ],
)
def test_what_is_in_a_folder_is_not_replaced_unasked(left: list[str], words: str, mini: Recipe, tmp_path: Path) -> None:
    files = [tmp_path / "run" / name for name in left]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}", encoding="utf-8")
    # What no run left is not overwritten even when asked.
    for overwrite in (False, True) if words.endswith(THEIRS) else (False,):
        with pytest.raises(SettingsError, match=words):
            train(mini, overwrite=overwrite)
    assert {path for path in (tmp_path / "run").rglob("*") if path.is_file()} == set(files)


def test_a_split_that_is_not_there_is_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"one of .*'train', 'test'"):
        train(make_recipe(tmp_path, data__split="dev"))
    assert not (tmp_path / "run").exists()


LAYERS = "down_proj, embed_tokens, gate_proj, k_proj, lm_head, o_proj, q_proj, up_proj, v_proj"
TYPO = f"target_modules: the base has no layer q_porj; it has {LAYERS}"
MIXTRAL = {"model_type": "mixtral", "num_local_experts": 2}


@pytest.mark.parametrize(
    ("config", "targets", "words"),
    [
        pytest.param({}, ["q_porj"], TYPO, id="typo"),
        pytest.param({}, ["q_proj", "v_porj"], "has no layer v_porj;", id="one-typo-of-two"),
        pytest.param(MIXTRAL, ["gate"], "no layer gate;", id="a-router"),
        pytest.param({}, "(q", r"method.lora: .*'\(q' cannot be used: missing \)", id="no-pattern"),
        pytest.param({"model_type": "t5"}, ["q"], "not a causal language model", id="an-encoder"),
        pytest.param({}, ["self_attn.o_proj", "v_proj"], None, id="layers"),
        pytest.param({}, ".*_proj", None, id="pattern"),
    ],
)
def test_what_the_configuration_tells_is_refused_before_weights_are_read(
    config: dict[str, Any],
    targets: Any,
    words: str | None,
    full_run: TrainingRun,
    tmp_path: Path,
) -> None:
    base = tmp_path / "base"
    # As the Hub gives it before its weights are fetched.
    shutil.copytree(full_run.base, base, ignore=shutil.ignore_patterns("*.safetensors"))
    write_json(base / "config.json", read_object(base, "config.json") | config)
    method = {"name": "lora", "lora": {"r": 4, "target_modules": targets}}
    recipe = make_recipe(tmp_path, base={"path": str(base)}, method=method)
    with pytest.raises((ModelError, SettingsError), match=words) if words else nullcontext():
        assert prepare(recipe, tmp_path).examples


def test_a_base_is_built_once_for_its_content(full_run: TrainingRun, full_recipe: Recipe) -> None:
    rows = load_rows(full_recipe)
    known = build_hash(full_recipe, rows)
    assert full_run.base.name == f"base-{known[:12]}"
    built = (full_run.base / "model.safetensors").stat().st_mtime_ns
    assert build_base(full_recipe, rows, full_run.out) == full_run.base
    assert (full_run.base / "model.safetensors").stat().st_mtime_ns == built
    assert build_hash(full_recipe, rows[:-1]) != known
    for change in ({"seed": 1}, {"lr_scheduler_type": "linear"}, {"max_length": 511}, {"shared_prefix": False}):
        changed = replace(full_recipe, training=replace(full_recipe.training, **change))
        assert build_hash(changed, rows) != known
    # Tuning is none of the base's business.
    slower = replace(full_recipe, training=replace(full_recipe.training, learning_rate=1e-5, max_steps=1))
    assert build_hash(slower, rows) == known


def test_a_base_half_built_by_a_run_that_was_killed_is_built_anew(full_recipe: Recipe, tmp_path: Path) -> None:
    rows = load_rows(full_recipe)
    name = f"base-{build_hash(full_recipe, rows)[:12]}"
    for folder in (tmp_path / name, tmp_path / f".{name}.part"):
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"half")
        (folder / "strange.bin").write_bytes(b"?")
    base = build_base(full_recipe, rows, tmp_path)
    assert base == tmp_path / name
    assert list(loaded(base).parameters())
    assert not (base / "strange.bin").exists()
    assert not (tmp_path / f".{name}.part").exists()
