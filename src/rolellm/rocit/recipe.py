"""A RoCIT recipe: a tree of settings classes, one for each section of the YAML, read from files that may extend others.

The paper (arXiv 2310.00746) names no rank, learning rate, number of epochs or batch size, so the defaults are our
choice. `training` takes the fields of TRL's `SFTConfig` and `method.lora` those of PEFT's `LoraConfig`, under their own
names: the fields that rolellm uses itself are declared here, any other is checked against the installed library.
"""

from __future__ import annotations

import difflib
import enum
import importlib
import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError, field_validator, model_serializer, model_validator
from pydantic_core import ArgsKwargs

from rolellm.core.errors import RecipeError, SettingsError
from rolellm.core.fingerprint import hash_json
from rolellm.core.records import Language
from rolellm.core.settings import (
    Field,
    FilePath,
    Values,
    beside,
    dump,
    known_keys,
    laid_over,
    nearest,
    parse_yaml,
    read,
    read_file,
    settings,
)

#: The one key of a file that is not part of the recipe: the files that it builds on.
EXTENDS = "extends"
_SKETCH = "section.key=value, such as training.max_steps=5"
_RENAMED = {
    "training.epochs": "training.num_train_epochs",
    "training.schedule": "training.lr_scheduler_type",
    "training.warmup": "training.warmup_steps",
    "training.warmup_ratio": "training.warmup_steps (below 1, it is a share of all steps)",
    "training.batch_size": "training.per_device_train_batch_size",
    "training.grad_accumulation": "training.gradient_accumulation_steps",
    "training.precision": "training.bf16 (true or false)",
    "training.device": "training.use_cpu (true or false)",
    "training.activation_checkpointing": "training.gradient_checkpointing",
    "method.lora.alpha": "method.lora.lora_alpha",
    "method.lora.dropout": "method.lora.lora_dropout",
    "method.lora.targets": "method.lora.target_modules",
    "method.quantization.type": "method.quantization.bnb_4bit_quant_type",
    "method.quantization.double": "method.quantization.bnb_4bit_use_double_quant",
    "method.quantization.compute": "method.quantization.bnb_4bit_compute_dtype (bfloat16 or float32)",
    "output.checkpoint_every": "training.save_steps",
    "output.keep_checkpoints": "training.save_total_limit",
}


def _refused(reasons: Mapping[str, str]) -> dict[str, str]:
    return {name: reason for reason, names in reasons.items() for name in names.split()}


_NOT_TRL = _refused(
    {
        "replies are tokenized, masked and packed by rolellm; see shared_prefix, pack_tokens and max_length": (
            "packing packing_strategy padding_free eval_packing completion_only_loss assistant_only_loss "
            "dataset_text_field dataset_kwargs dataset_num_proc truncation_mode pad_to_multiple_of pad_token eos_token "
            "remove_unused_columns label_names include_num_input_tokens_seen"
        ),
        "the order of replies is fixed before training, so that a run resumes exactly; change seed for another order": (
            "shuffle_dataset train_sampling_strategy length_column_name dataloader_drop_last data_seed "
            "ignore_data_skip accelerator_config"
        ),
        "a step always covers the same number of replies; lower pack_tokens, or per_device_train_batch_size": (
            "auto_find_batch_size"
        ),
        "the loss is the mean negative log-likelihood of the trained tokens": (
            "loss_type label_smoothing_factor use_liger_kernel liger_kernel_config average_tokens_across_devices "
            "neftune_noise_alpha router_aux_loss_coef use_cache"
        ),
        "gradients that overflow in float16 look like divergence; use bf16": "fp16 fp16_full_eval bf16_full_eval",
        "it has not been tested with shared prefixes": "torch_compile torch_compile_backend torch_compile_mode",
        "checkpoints are written every save_steps, whole, so that the run can be resumed": (
            "save_strategy save_only_model save_on_each_node enable_jit_checkpoint "
            "restore_callback_states_from_checkpoint"
        ),
        "a run ends with the weights of its last step; use early_stopping_patience to stop in time": (
            "load_best_model_at_end"
        ),
        "metrics.jsonl has one line for every step": (
            "logging_strategy logging_steps logging_first_step logging_nan_inf_filter disable_tqdm"
        ),
        "it belongs in the accelerate config (--config_file)": (
            "fsdp fsdp_config deepspeed parallelism_config local_rank"
        ),
        "publishing is set in output: push_to_hub, hub_repo, license, private and merge": (
            "push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision"
        ),
        "rolellm sets it": (
            "output_dir do_train do_eval do_predict resume_from_checkpoint chat_template_path model_init_kwargs "
            "activation_checkpointing_kwargs ddp_find_unused_parameters debug prediction_loss_only "
            "batch_eval_metrics include_for_metrics eval_do_concat_batches eval_use_gather_object "
            "eval_accumulation_steps"
        ),
        "code from model repositories is never run": "trust_remote_code",
    }
)
_NOT_PEFT = _refused(
    {
        "rolellm sets it": (
            "task_type peft_type peft_version auto_mapping base_model_name_or_path revision inference_mode "
            "runtime_config"
        ),
        "tokens of a pack stand next to other replies, so what depends on a place in the sequence is not exact": (
            "alora_invocation_tokens"
        ),
    }
)
#: Fields of `training` that do not change a run's result, so that a resumed run may have others.
_ON_THE_SIDE = (
    *("save_steps", "save_total_limit", "report_to", "run_name", "project", "log_level", "log_level_replica"),
    *("trackio_space_id", "trackio_bucket_id", "trackio_static_space_id", "dataloader_num_workers"),
)


@settings
class Mix:
    """The share of rows kept from each subset; row ids and the seed decide which rows."""

    general: float = Field(default=1.0, ge=0, le=1, description="Share of general rows to keep.")
    role_specific: float = Field(default=1.0, ge=0, le=1, description="Share of role-specific rows to keep.")


@settings
class DataRecipe:
    """Which rows to train on."""

    source: Literal["rolebench", "script", "dataset"] = Field(
        default="rolebench",
        description="rolebench: questions and replies; script: the roles' own lines, after the lines before them (the "
        "paper's baseline LLaMA-script); dataset: the train_dataset given to rolellm.train.",
    )
    script_turns: int = Field(
        default=6, gt=0, description="With source: script, maximum turns before the line to learn."
    )
    config: str = Field(default="instruction-generalization-eng", description="Config of the dataset, or sample.")
    split: str = Field(default="train", description="Split of the dataset.")
    data_dir: FilePath | None = Field(default=None, description="Local copy of the release; found by default.")
    roles: tuple[str, ...] | None = Field(default=None, min_length=1, description="Use only these roles.")
    languages: tuple[Language, ...] | None = Field(default=None, min_length=1, description="Use only these languages.")
    mix: Mix = Field(default_factory=Mix)
    max_rows: int | None = Field(default=None, gt=0, description="Use only the first N rows, after all other choices.")
    replies: Literal["all", "first"] = Field(
        default="all", description="Train on all references of a row, or on the first."
    )
    held_out: float = Field(
        default=0.05,
        gt=0,
        lt=1,
        description="With training.eval_strategy, share of instructions held out for eval_loss.",
    )


@settings
class Tiny:
    """The size of a model built from the data."""

    hidden_size: int = Field(default=192, gt=0, description="Width; a multiple of twice the heads.")
    intermediate_size: int = Field(default=512, gt=0, description="Width of the feed-forward layers.")
    layers: int = Field(default=3, gt=0, description="Number of layers.")
    heads: int = Field(default=4, gt=0, description="Number of attention heads.")
    vocab_size: int = Field(
        default=3000, ge=300, le=1_000_000, description="Maximum number of tokens in the vocabulary."
    )
    initializer_range: float = Field(
        default=0.05, gt=0, description="Standard deviation of new weights; wide, because narrow networks start slowly."
    )


@settings
class Warm:
    """How a built base is warmed up, so that there is something to tune."""

    alone: int = Field(default=30, gt=0, description="Passes over the instructions with their role-free answers alone.")
    in_role: int = Field(default=4, gt=0, description="Passes over the same under each role's system instruction.")
    batch_size: int = Field(default=8, gt=0, description="Examples per step.")
    learning_rate: float = Field(default=2e-3, gt=0, description="Peak learning rate.")


@settings
class BaseRecipe:
    """The model to tune: on the Hub, in a folder, or built from the data (exactly one of the three)."""

    model: str | None = Field(default=None, description="Repository on the Hub.")
    revision: str | None = Field(default=None, description="Its branch, tag or commit.")
    path: FilePath | None = Field(default=None, description="Folder with a model and its tokenizer.")
    build: Literal["tiny-llama", "tiny-glm", "tiny-glm4"] | None = Field(
        default=None, description="Build a model of this family and its tokenizer from the training rows."
    )
    tiny: Tiny = Field(default_factory=Tiny)
    warm: Warm = Field(default_factory=Warm)


@settings
class Lora:
    """A LoRA adapter, with the fields of PEFT's `LoraConfig`."""

    r: int = Field(default=16, gt=0, description="Rank.")
    lora_alpha: float = Field(default=32.0, gt=0, description="Scale of the adapter.")
    lora_dropout: float = Field(default=0.05, ge=0, le=0.99, description="Dropout in front of the adapter.")
    target_modules: str | list[str] = Field(
        default="all-linear", min_length=1, description="Layer names, a regular expression, or all-linear."
    )
    others: Values = Field(default_factory=dict, description="Any other field of PEFT's LoraConfig.")

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, given: Any) -> Any:
        return _gathered(cls, given, "peft.LoraConfig", _NOT_PEFT)

    @model_serializer(mode="wrap")
    def _flat(self, dumped: Any) -> Values:
        return _flattened(dumped(self))


@settings
class Quantization:
    """How `qlora` holds the frozen base (arXiv 2305.14314, sections 2 and 3): fields of `BitsAndBytesConfig`."""

    bnb_4bit_quant_type: Literal["nf4", "fp4"] = Field(default="nf4", description="4-bit data type.")
    bnb_4bit_use_double_quant: bool = Field(default=True, description="Quantize the quantization constants, too.")
    bnb_4bit_compute_dtype: Literal["bfloat16", "float32"] = Field(
        default="bfloat16", description="Type that weights are unpacked to for each product."
    )
    bnb_4bit_quant_storage: Literal["uint8", "bfloat16", "float32"] = Field(
        default="uint8", description="Type that packed weights are stored in."
    )
    llm_int8_skip_modules: list[str] | None = Field(default=None, description="Modules to leave unquantized.")


@settings
class MethodRecipe:
    """What is trained: every weight, an adapter (as in the paper), or an adapter on a 4-bit base."""

    name: Literal["full", "lora", "qlora"] = "lora"
    lora: Lora = Field(default_factory=Lora)
    quantization: Quantization = Field(default_factory=Quantization)


@settings
class PromptRecipe:
    """The text form of a prompt."""

    form: Literal["rolellama", "chatglm2", "chatglm3", "model"] = Field(
        default="rolellama",
        description="The paper's text form for base models, that of a ChatGLM, or the tokenizer's own chat template.",
    )
    system_template: FilePath | None = Field(
        default=None,
        description="System instruction to use in place of the built-in one; with {examples} for retrieval.",
    )
    profile: Literal["description", "retrieval"] = Field(
        default="description",
        description="What a prompt says about the role: its description, or script lines found by BM25 for each "
        "question (the paper's ablation).",
    )
    retrieved: int = Field(default=5, gt=0, description="With profile: retrieval, number of exchanges.")


@settings
class TrainingRecipe:
    """How to train: rolellm's own fields, and those of TRL's `SFTConfig`.

    An optimizer step covers per_device_train_batch_size x gradient_accumulation_steps x processes replies, however they
    are laid out.
    """

    num_train_epochs: float = Field(default=3.0, gt=0, description="Passes over the replies.")
    max_steps: int = Field(
        default=-1, ge=-1, description="Stop after N optimizer steps; -1 trains for num_train_epochs."
    )
    learning_rate: float = Field(default=2e-4, gt=0, description="Peak learning rate.")
    lr_scheduler_type: str = Field(
        default="cosine", description="Schedule of the learning rate, such as linear or constant."
    )
    warmup_steps: float = Field(default=0.03, ge=0, description="Steps of warm-up; below 1, a share of all steps.")
    weight_decay: float = Field(default=0.0, ge=0, description="Weight decay.")
    max_grad_norm: float = Field(default=1.0, gt=0, description="Clip gradients to this norm.")
    per_device_train_batch_size: int = Field(default=8, gt=0, description="Replies per device and forward pass.")
    gradient_accumulation_steps: int = Field(default=1, gt=0, description="Forward passes per optimizer step.")
    shared_prefix: bool = Field(
        default=True,
        description="Compute the system instruction and question that replies share only once; same gradients.",
    )
    pack_tokens: int = Field(default=2048, gt=1, description="With shared_prefix, maximum tokens per forward pass.")
    roles_per_step: int = Field(
        default=4,
        gt=0,
        description="With shared_prefix, minimum groups of one role each in a step; more is closer to random.",
    )
    max_length: int = Field(default=1024, gt=1, description="Maximum tokens of prompt and reply together.")
    truncate_replies: bool = Field(
        default=False, description="Cut replies that are too long, instead of refusing their rows."
    )
    group_by_length: bool = Field(default=True, description="Without shared_prefix, batch replies of similar length.")
    gradient_checkpointing: bool = Field(default=False, description="Use less memory, for about a third more time.")
    bf16: bool = Field(default=False, description="Train in bfloat16 instead of float32.")
    use_cpu: bool = Field(default=False, description="Stay on the CPU even where there is a GPU.")
    threads: int | None = Field(default=None, gt=0, description="CPU threads; torch's own choice by default.")
    seed: int = Field(default=42, ge=0, description="Random seed for the order of rows, new weights and dropout.")
    save_steps: int | None = Field(default=None, gt=0, description="Steps between checkpoints; by default, an epoch.")
    save_total_limit: int = Field(default=2, gt=0, description="Number of checkpoints to keep.")
    eval_strategy: Literal["no", "steps", "epoch"] = Field(
        default="no", description="When to compute the held-out loss."
    )
    eval_steps: int | None = Field(
        default=None, gt=0, description="With eval_strategy: steps, steps between evaluations."
    )
    early_stopping_patience: int | None = Field(
        default=None, gt=0, description="Stop after N evaluations without improvement; needs eval_strategy."
    )
    report_to: str | list[str] = Field(default="none", description="Trackers, such as tensorboard, trackio or wandb.")
    others: Values = Field(default_factory=dict, description="Any other field of TRL's SFTConfig.")

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, given: Any) -> Any:
        return _gathered(cls, given, "trl.SFTConfig", _NOT_TRL)

    @field_validator("lr_scheduler_type")
    @classmethod
    def _is_schedule(cls, value: str) -> str:
        # The most common ones are known without an import of seconds.
        return (
            value if value in ("linear", "cosine", "constant") else _typed("trl.SFTConfig", "lr_scheduler_type", value)
        )

    @model_serializer(mode="wrap")
    def _flat(self, dumped: Any) -> Values:
        return _flattened(dumped(self))

    @property
    def replies_per_step(self) -> int:
        """Replies in an optimizer step of each process."""
        return self.per_device_train_batch_size * self.gradient_accumulation_steps

    @property
    def trackers(self) -> list[str]:
        """The trackers of ``report_to``, by name."""
        names = [self.report_to] if isinstance(self.report_to, str) else self.report_to
        return [name for name in names if name != "none"]


@settings
class OutputRecipe:
    """Where a run goes, and whether it is published."""

    dir: Path = Field(default=Path("runs/rocit"), description="The run's folder.")
    push_to_hub: bool = Field(default=False, description="Publish the finished run, as `rolellm push` does.")
    hub_repo: str | None = Field(default=None, description="Repository, OWNER/NAME.")
    license: str | None = Field(
        default=None, description="License of the model, such as apache-2.0; the base must allow it."
    )
    private: bool = Field(default=True, description="Make a newly created repository private.")
    merge: bool = Field(default=False, description="Publish the adapter merged into its base.")


@settings
class Recipe:
    """A whole RoCIT recipe, as `load_recipe` reads it."""

    data: DataRecipe = Field(default_factory=DataRecipe)
    base: BaseRecipe = Field(default_factory=BaseRecipe)
    method: MethodRecipe = Field(default_factory=MethodRecipe)
    prompt: PromptRecipe = Field(default_factory=PromptRecipe)
    training: TrainingRecipe = Field(default_factory=TrainingRecipe)
    output: OutputRecipe = Field(default_factory=OutputRecipe)

    def to_dict(self) -> Values:
        """The recipe as JSON values."""
        return dump(self)

    @property
    def hash(self) -> str:
        """SHA-256 in hex of `decisive`."""
        return hash_json(self.decisive())

    def decisive(self, values: Values | None = None) -> Values:
        """What decides the result, as JSON values: not where data and runs are, what is logged, or what is kept.

        Args:
            values: What `to_dict` gave, of this recipe or another; by default of this one.
        """
        whole = self.to_dict() if values is None else values
        kept = {section: dict(keys) for section, keys in whole.items() if section != "output"}
        kept["data"].pop("data_dir", None)
        for key in _ON_THE_SIDE:
            kept["training"].pop(key, None)
        for section, key in (("base", "path"), ("prompt", "system_template")):
            if kept[section].get(key) is not None:
                kept[section][key] = Path(kept[section][key]).name
        return kept


def _gathered(cls: Any, given: Any, library: str, refused: Mapping[str, str]) -> Any:
    """The values of a class, with those that it does not declare checked and put under ``others``."""
    values = given.kwargs if isinstance(given, ArgsKwargs) else given
    if not isinstance(values, dict):
        return given
    own = cls.__dataclass_fields__
    others = dict(values.get("others") or {}) | {str(key): item for key, item in values.items() if key not in own}
    for key in others:
        if key in refused:
            raise RecipeError(f"{key} cannot be set: {refused[key]}")
    checked = {
        key: _typed(library, key, item, [name for name in own if name != "others"]) for key, item in others.items()
    }
    return {key: item for key, item in values.items() if key in own} | {"others": checked}


def _flattened(dumped: Values) -> Values:
    flat: Values = {key: item for key, item in dumped.items() if key != "others"} | dumped["others"]
    return flat


@lru_cache
def _library_hints(library: str) -> Mapping[str, Any]:
    """The fields of a configuration class and their types; none where the library is not installed."""
    package, _, name = library.partition(".")
    if importlib.util.find_spec(package) is None:
        return {}
    hints = get_type_hints(getattr(importlib.import_module(package), name))
    return {key: hint for key, hint in hints.items() if not key.startswith("_")}


def _typed(library: str, key: str, value: Any, own: Sequence[str] = ()) -> Any:
    """A value of a library's configuration class, checked against the type of its field.

    Raises:
        RecipeError: For an unknown name, with the nearest known one, and a value of another type.
    """
    hints = _library_hints(library)
    if key not in hints:
        hint = nearest(key, [*own, *hints])
        hint = hint if hint.startswith("; did") else nearest(key, known_keys(Recipe))
        known = hint if hint.startswith("; did") else f"; known keys: {', '.join(own)}, and the fields of {library}"
        raise RecipeError(f"unknown key {key}{known}")
    enums: list[Any] = [part for part in get_args(hints[key]) if isinstance(part, enum.EnumType)]
    if enums:
        names = [str(choice.value) for choice in enums[0]]
        if value not in names:
            raise RecipeError(f"{key}: unknown value {value!r}{nearest(str(value), names)}")
        return value
    try:
        TypeAdapter(hints[key]).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        problem = error.errors()[0]["msg"].replace("Input should be", "must be").replace(" valid ", " ")
        raise RecipeError(f"{key}: {problem}, found {value!r}") from None
    except (TypeError, ValueError) as error:
        raise RecipeError(f"{key}: not a plain value: {error}") from None
    return value


def read_recipe(values: Mapping[Any, Any], source: str = "") -> Recipe:
    """A recipe from plain values; choices that depend on each other are not checked.

    Raises:
        RecipeError: For an unknown or renamed key, and a value of the wrong type or outside its limits.
    """
    where = f"{source}: " if source else ""
    for name in _names(values):
        if name in _RENAMED:
            raise RecipeError(f"{where}{name} is now called {_RENAMED[name]}")
    try:
        return read(Recipe, values, source)
    except SettingsError as error:
        raise RecipeError(str(error)) from None


def shipped_recipes() -> dict[str, Path]:
    """The recipes that come with the library, by name."""
    # The wheel carries them beside this file; a clone has them in its own folder.
    here = Path(__file__).resolve()
    folders = (here.parent / "recipes", here.parents[3] / "recipes")
    return {file.stem: file for folder in folders for file in sorted(folder.glob("*.yaml"))}


def find_recipe(name: str | Path) -> Path:
    """The file of a recipe: a path, or the name of one that ships, such as ``smoke-cpu``.

    Raises:
        RecipeError: When there is neither; names those that ship.
    """
    return _find(Path(name), str(name))


def load_recipe(
    source: str | Path | Mapping[str, Any] | Recipe, overrides: Sequence[str] = (), **training: Any
) -> Recipe:
    """Read a recipe.

    Args:
        source: A YAML file, the name of a recipe that ships, a dict with the same sections, or a recipe. What it leaves
            out has its default or, with ``extends: other.yaml`` (or a list of files, of which later ones win), that
            file's value. A key without a value goes back to its default.
        overrides: ``section.key=value`` each, the value written as in YAML; they win over the source.
        training: Values of the ``training`` section; they win over both.

    Raises:
        RecipeError: For a file that is missing or not YAML, one that extends itself, an unknown key (with the nearest
            known one), a value of the wrong type or outside its limits, and choices that conflict.
    """
    if isinstance(source, Recipe):
        layers: list[Values] = [source.to_dict()]
    elif isinstance(source, Mapping):
        layers = list(_extended(dict(source), "recipe", Path(), ()))
    else:
        layers = list(_layers(find_recipe(source), ()))
    layers += [_sections(override) for override in overrides]
    layers += [{"training": training}] if training else []
    values: Values = {}
    for layer in layers:
        _check_nulls(layer)
        values = laid_over(values, layer)
    recipe = read_recipe(values)
    check_recipe(recipe)
    return recipe


def check_recipe(recipe: Recipe) -> None:
    """Check the choices that depend on each other.

    Raises:
        RecipeError: With the keys concerned.
    """
    base, tiny, output, training = recipe.base, recipe.base.tiny, recipe.output, recipe.training
    if sum(choice is not None for choice in (base.model, base.path, base.build)) != 1:
        raise RecipeError("base: give one of model (on the Hub), path (a folder with a model) and build: tiny-llama")
    if base.revision is not None and base.model is None:
        raise RecipeError("base.revision: only a base.model on the Hub has revisions")
    if base.build is not None and recipe.prompt.form == "model":
        raise RecipeError("prompt.form: a built base has no chat template of its own; use rolellama")
    if training.shared_prefix and training.pack_tokens < training.max_length:
        raise RecipeError("training.pack_tokens must be at least training.max_length: a pack holds one reply or more")
    if recipe.data.source == "script" and recipe.prompt.profile == "retrieval":
        raise RecipeError("prompt.profile: retrieval searches by question, and data.source: script has none")
    if output.push_to_hub and (output.hub_repo is None or output.license is None):
        raise RecipeError(
            "output.push_to_hub: needs output.hub_repo (OWNER/NAME) and output.license (such as apache-2.0), "
            "which is never guessed"
        )
    if tiny.hidden_size % (2 * tiny.heads):
        raise RecipeError("base.tiny.hidden_size must be a multiple of twice base.tiny.heads")
    if recipe.data.mix.general == 0 and recipe.data.mix.role_specific == 0:
        raise RecipeError("data.mix leaves no rows: general and role_specific are both 0")
    if training.eval_strategy == "steps" and training.eval_steps is None:
        raise RecipeError("training.eval_strategy: steps needs training.eval_steps; or evaluate every epoch")
    if training.early_stopping_patience is not None and training.eval_strategy == "no":
        raise RecipeError("training.early_stopping_patience needs training.eval_strategy: steps or epoch")
    for tracker in training.trackers:
        _check_tracker(tracker)


def _check_tracker(name: str) -> None:
    modules = {"tensorboard": ("tensorboard", "tensorboardX"), "comet_ml": ("comet_ml",)}.get(name, (name,))
    if name == "all" or any(importlib.util.find_spec(module) for module in modules):
        return
    known = ("tensorboard", "trackio", "wandb", "mlflow", "comet_ml", "swanlab", "clearml")
    if name not in known:
        raise RecipeError(f"training.report_to: unknown tracker {name}{nearest(name, known)}")
    raise RecipeError(f"training.report_to: {name} is not installed; install it with: pip install {name}")


def _find(path: Path, name: str) -> Path:
    if path.is_file():
        return path
    shipped = shipped_recipes()
    if name in shipped:
        return shipped[name]
    raise RecipeError(f"no recipe at {path}; those that ship: {', '.join(sorted(shipped)) or 'none'}")


def _layers(file: Path, above: tuple[Path, ...]) -> Iterator[Values]:
    """What a file builds on, the lowest first, and then what it says itself."""
    here = file.resolve()
    if here in above:
        chain = " extends ".join(path.name for path in (*above[above.index(here) :], here))
        raise RecipeError(f"{file}: a recipe cannot extend itself: {chain}")
    try:
        values = read_file(file)
    except SettingsError as error:
        raise RecipeError(str(error)) from error
    yield from _extended(values, str(file), file.parent, (*above, here))


def _extended(values: Values, source: str, folder: Path, above: tuple[Path, ...]) -> Iterator[Values]:
    named = values.pop(EXTENDS, [])
    names = [named] if isinstance(named, str) else named
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise RecipeError(f"{source}: {EXTENDS}: expected a recipe's file or a list of files, found {named!r}")
    for name in names:
        yield from _layers(_find(folder / name, name), above)
    if close := difflib.get_close_matches(EXTENDS, [key for key in values if isinstance(key, str)], n=1):
        raise RecipeError(f"{source}: unknown key {close[0]}; did you mean {EXTENDS}?")
    _check_nulls(values)
    try:
        read_recipe(values)
    except RecipeError as error:
        # Whoever asks for a recipe need not know what it extends.
        raise RecipeError(f"{source}: {error}") from error
    yield beside(Recipe, values, folder.absolute())


def _names(values: Mapping[Any, Any], dotted: str = "") -> Iterator[str]:
    """The dotted names of all keys."""
    for key, value in values.items():
        yield f"{dotted}{key}"
        if isinstance(value, Mapping):
            yield from _names(value, f"{dotted}{key}.")


def _check_nulls(layer: Values) -> None:
    """Refuse a misspelled key that has no value: laying it over another file would drop it silently."""
    known = known_keys(Recipe)
    for section, values in layer.items():
        for key, value in values.items() if isinstance(values, dict) else ():
            name = f"{section}.{key}"
            if value is not None or name in known:
                continue
            if section == "training":
                others = [*TrainingRecipe.__dataclass_fields__, *_library_hints("trl.SFTConfig")]
                if key in others:
                    continue
                raise RecipeError(f"unknown key {name}{nearest(key, others)}")
            raise RecipeError(f"unknown key {name}{nearest(name, known)}")


def _sections(override: str) -> Values:
    """An override as a file would say it: ``a.b=1`` is ``a: {b: 1}``."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise RecipeError(f"{override!r} is not an override; write {_SKETCH}")
    try:
        value = parse_yaml(text, override)
    except SettingsError as error:
        raise RecipeError(str(error)) from error
    for name in reversed(key.strip().split(".")):
        value = {name: value}
    sections: Values = value
    return sections
