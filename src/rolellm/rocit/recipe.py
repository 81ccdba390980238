"""A RoCIT recipe: a tree of settings classes, one for each section of the YAML, read from files that may extend others.

The paper (arXiv 2310.00746) names no rank, learning rate, number of epochs or batch size, so the defaults are our
choice. `training` takes the fields of TRL's `SFTConfig` and `method.lora` those of PEFT's `LoraConfig`, under their own
names: those that rolellm has another default for or reads itself are declared here, any other is checked against the
installed library.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import importlib
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic import field_validator, model_serializer, model_validator
from pydantic_core import ArgsKwargs

from rolellm.core.errors import RecipeError, SettingsError
from rolellm.core.fingerprint import hash_json
from rolellm.core.records import Language
from rolellm.core.settings import (
    Field,
    Values,
    beside,
    dump,
    known_keys,
    laid_over,
    leaves,
    nearest,
    parse_yaml,
    read,
    read_file,
    settings,
)

#: The one key of a file that is not part of the recipe: the files that it builds on.
EXTENDS = "extends"
Count = Annotated[int, Field(gt=0)]
Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]


# Fields of libraries' classes that cannot be set, as patterns, by the reason.
_REFUSED = {
    "trl.SFTConfig": {
        "replies are tokenized, masked and packed by rolellm; see shared_prefix, pack_tokens and max_length": (
            "packing packing_strategy padding_free eval_packing completion_only_loss assistant_only_loss dataset_* "
            "truncation_mode pad_* eos_token remove_unused_columns label_names include_num_input_tokens_seen"
        ),
        "the order of replies is fixed before training, so that a run resumes exactly; change seed for another order": (
            "shuffle_dataset train_sampling_strategy length_column_name dataloader_drop_last data_seed "
            "ignore_data_skip accelerator_config"
        ),
        "a step always covers the same number of replies; lower pack_tokens, or per_device_train_batch_size": (
            "auto_find_batch_size"
        ),
        "the loss is the mean negative log-likelihood of the trained tokens": (
            "loss_type label_smoothing_factor *liger_kernel* average_tokens_across_devices neftune_noise_alpha "
            "router_aux_loss_coef use_cache"
        ),
        "gradients that overflow in float16 look like divergence; use bf16": "fp16* bf16_full_eval",
        "it has not been tested with shared prefixes": "torch_compile*",
        "checkpoints are written every save_steps, whole, so that the run can be resumed": (
            "save_strategy save_only_model save_on_each_node enable_jit_checkpoint "
            "restore_callback_states_from_checkpoint"
        ),
        "the newest save_total_limit checkpoints are kept, so the best step may have none, and a run ends with the "
        "weights of its last step; use early_stopping_patience to stop in time": "load_best_model_at_end",
        "metrics.jsonl has one line for every step": "logging_* disable_tqdm",
        "it belongs in the accelerate config (--config_file)": "fsdp* deepspeed parallelism_config local_rank",
        "publishing is set in output: push_to_hub, hub_repo, license, private and merge": "push_to_hub hub_*",
        "rolellm sets it": (
            "output_dir do_* resume_from_checkpoint chat_template_path model_init_kwargs "
            "activation_checkpointing_kwargs ddp_find_unused_parameters debug prediction_loss_only batch_eval_metrics "
            "include_for_metrics eval_do_concat_batches eval_use_gather_object eval_accumulation_steps"
        ),
        "code from model repositories is never run": "trust_remote_code",
    },
    "peft.LoraConfig": {
        "rolellm sets it": (
            "task_type peft_type peft_version auto_mapping base_model_name_or_path revision inference_mode "
            "runtime_config"
        ),
        "tokens of a pack stand next to other replies, so what depends on a place in the sequence is not exact": (
            "alora_invocation_tokens"
        ),
    },
}
#: Fields of `training` that do not change a run's result, so that a resumed run may have others.
_ON_THE_SIDE = (
    *("save_steps", "save_total_limit", "report_to", "run_name", "project", "log_level", "log_level_replica"),
    *("trackio_space_id", "trackio_bucket_id", "trackio_static_space_id", "dataloader_num_workers"),
)


@settings
class Mix:
    """The share of rows kept from each subset; row ids and the seed decide which rows."""

    general: Share = 1.0
    role_specific: Share = 1.0


@settings
class DataRecipe:
    """Which rows to train on.

    Attributes:
        source: ``rolebench``: questions and replies; ``script``: the roles' own lines, after the lines before them (the
            paper's baseline LLaMA-script); ``dataset``: the train_dataset given to rolellm.train.
        script_turns: With ``source: script``, maximum turns before the line to learn.
        config: Config of the dataset, or sample.
        split: Split of the dataset.
        data_dir: Local copy of the release; found by default.
        roles: Use only these roles.
        languages: Use only these languages.
        mix: The share of rows kept from each subset.
        max_rows: Use only the first N rows, after all other choices.
        replies: Train on all references of a row, or on the first.
        held_out: With ``training.eval_strategy``, share of instructions held out for eval_loss.
    """

    source: Literal["rolebench", "script", "dataset"] = "rolebench"
    script_turns: Count = 6
    config: str = "instruction-generalization-eng"
    split: str = "train"
    data_dir: Path | None = None
    roles: tuple[str, ...] | None = Field(default=None, min_length=1)
    languages: tuple[Language, ...] | None = Field(default=None, min_length=1)
    mix: Mix = Field(default_factory=Mix)
    max_rows: Count | None = None
    replies: Literal["all", "first"] = "all"
    held_out: float = Field(default=0.05, gt=0, lt=1)


@settings
class Tiny:
    """The size of a model built from the data.

    Attributes:
        hidden_size: Width; a multiple of twice the heads.
        intermediate_size: Width of the feed-forward layers.
        layers: Number of layers.
        heads: Number of attention heads.
        vocab_size: Maximum number of tokens in the vocabulary.
        initializer_range: Standard deviation of new weights; wide, because narrow networks start slowly.
    """

    hidden_size: Count = 192
    intermediate_size: Count = 512
    layers: Count = 3
    heads: Count = 4
    vocab_size: int = Field(default=3000, ge=300, le=1_000_000)
    initializer_range: Positive = 0.05


@settings
class Warm:
    """How a built base is warmed up, so that there is something to tune.

    Attributes:
        alone: Passes over the instructions with their role-free answers alone.
        in_role: Passes over the same under each role's system instruction.
        batch_size: Examples per step.
        learning_rate: Peak learning rate.
    """

    alone: Count = 30
    in_role: Count = 4
    batch_size: Count = 8
    learning_rate: Positive = 2e-3


@settings
class BaseRecipe:
    """The model to tune: on the Hub, in a folder, or built from the data (exactly one of the three).

    Attributes:
        model: Repository on the Hub.
        revision: Its branch, tag or commit.
        path: Folder with a model and its tokenizer.
        build: Build a model of this family and its tokenizer from the training rows.
        tiny: The size of a model that is built.
        warm: How a model that is built is warmed up.
    """

    model: str | None = None
    revision: str | None = None
    path: Path | None = None
    build: Literal["tiny-llama", "tiny-glm", "tiny-glm4"] | None = None
    tiny: Tiny = Field(default_factory=Tiny)
    warm: Warm = Field(default_factory=Warm)


@settings
class _Section:
    """A section that also takes any field of a library's class that is not refused.

    Attributes:
        others: Those fields; in a file they are written like the section's own.
        library: The class.
    """

    others: Values = Field(default_factory=dict)
    library = ""

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, given: Any) -> Any:
        values = given.kwargs if isinstance(given, ArgsKwargs) else given
        if not isinstance(values, dict):
            return given
        own = {field.name for field in dataclasses.fields(cls)}
        others = dict(values.get("others") or {}) | {str(key): item for key, item in values.items() if key not in own}
        if others:
            cls.check(others)
        return {key: item for key, item in values.items() if key in own} | {"others": others}

    @classmethod
    def why_not(cls, key: str) -> str | None:
        """Why a field of the library's class cannot be set, if it cannot."""
        refused = _REFUSED[cls.library].items()
        return next((reason for reason, names in refused if any(fnmatch(key, name) for name in names.split())), None)

    @classmethod
    def check(cls, values: Values) -> None:
        """Check values of the library's class by name and type.

        Raises:
            RecipeError: For a field that is refused or unknown, with the nearest known one, and a wrong value.
        """
        hints = _library_hints(cls.library)
        own = [field.name for field in dataclasses.fields(cls) if field.name != "others"]
        for key in values:
            if reason := cls.why_not(key):
                raise RecipeError(f"{key} cannot be set: {reason}")
            if key in hints:
                continue
            allowed = [*own, *(name for name in hints if not cls.why_not(name)), *known_keys(Recipe)]
            hint = nearest(key, allowed).partition("; known")[0]
            known = hint or f"; known keys: {', '.join(own)}, and the fields of {cls.library}"
            raise RecipeError(f"unknown key {key}{known}")
        fields = {"__annotations__": {key: hints[key] for key in values}, **dict.fromkeys(values)}
        with _recipe_errors():
            read(settings(type(cls.library, (), fields)), values)

    @model_serializer(mode="wrap")
    def _flat(self, dumped: Any) -> Values:
        values: Values = dumped(self)
        others: Values = values.pop("others")
        return values | others


@settings
class Lora(_Section):
    """A LoRA adapter, with the fields of PEFT's `LoraConfig`."""

    library = "peft.LoraConfig"
    r: Count = 16
    lora_alpha: Positive = 32.0
    lora_dropout: float = Field(default=0.05, ge=0, le=0.99)
    target_modules: str | list[str] = Field(default="all-linear", min_length=1)


@settings
class Quantization:
    """How `qlora` holds the frozen base (arXiv 2305.14314, sections 2 and 3): fields of `BitsAndBytesConfig`."""

    bnb_4bit_quant_type: Literal["nf4", "fp4"] = "nf4"
    bnb_4bit_use_double_quant: bool = True
    bnb_4bit_compute_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    bnb_4bit_quant_storage: Literal["uint8", "bfloat16", "float32"] = "uint8"
    llm_int8_skip_modules: list[str] | None = None


@settings
class MethodRecipe:
    """What is trained: every weight, an adapter (as in the paper), or an adapter on a 4-bit base."""

    name: Literal["full", "lora", "qlora"] = "lora"
    lora: Lora = Field(default_factory=Lora)
    quantization: Quantization = Field(default_factory=Quantization)


@settings
class PromptRecipe:
    """The text form of a prompt.

    Attributes:
        form: The paper's text form for base models, that of a ChatGLM, or the tokenizer's own chat template.
        system_template: System instruction to use in place of the built-in one; with {examples} for retrieval.
        profile: What a prompt says about the role: its description, or script lines found by BM25 for each question
            (the paper's ablation).
        retrieved: With ``profile: retrieval``, number of exchanges.
    """

    form: Literal["rolellama", "chatglm2", "chatglm3", "model"] = "rolellama"
    system_template: Path | None = None
    profile: Literal["description", "retrieval"] = "description"
    retrieved: Count = 5


@settings
class TrainingRecipe(_Section):
    """How to train: the fields of TRL's `SFTConfig`, and rolellm's own.

    An optimizer step covers per_device_train_batch_size x gradient_accumulation_steps x processes replies, however they
    are laid out.

    Attributes:
        shared_prefix: Compute the system instruction and question that replies share only once; same gradients.
        pack_tokens: With ``shared_prefix``, maximum tokens per forward pass.
        roles_per_step: With ``shared_prefix``, minimum groups of one role each in a step; more is closer to random.
        truncate_replies: Cut replies that are too long, instead of refusing their rows.
        group_by_length: Without ``shared_prefix``, batch replies of similar length.
        threads: CPU threads; torch's own choice by default.
        early_stopping_patience: Stop after N evaluations without improvement; needs ``eval_strategy``.
        save_steps: Steps between checkpoints; by default, an epoch.
    """

    library = "trl.SFTConfig"
    num_train_epochs: Positive = 3.0
    max_steps: int = Field(default=-1, ge=-1)
    learning_rate: Positive = 2e-4
    lr_scheduler_type: str = "cosine"
    warmup_steps: float = Field(default=0.03, ge=0)
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: Positive = 1.0
    per_device_train_batch_size: Count = 8
    gradient_accumulation_steps: Count = 1
    shared_prefix: bool = True
    pack_tokens: int = Field(default=2048, gt=1)
    roles_per_step: Count = 4
    max_length: int = Field(default=1024, gt=1)
    truncate_replies: bool = False
    group_by_length: bool = True
    gradient_checkpointing: bool = False
    bf16: bool = False
    use_cpu: bool = False
    threads: Count | None = None
    seed: int = Field(default=42, ge=0)
    save_steps: Count | None = None
    save_total_limit: Count = 2
    eval_strategy: Literal["no", "steps", "epoch"] = "no"
    eval_steps: Count | None = None
    early_stopping_patience: Count | None = None
    report_to: str | list[str] = "none"

    @field_validator("lr_scheduler_type")
    @classmethod
    def _is_schedule(cls, value: str) -> str:
        # The most common ones are known without an import of seconds.
        if value not in ("linear", "cosine", "constant"):
            cls.check({"lr_scheduler_type": value})
        return value

    @property
    def replies_per_step(self) -> int:
        """Replies in an optimizer step of each process."""
        return self.per_device_train_batch_size * self.gradient_accumulation_steps

    @property
    def on_cpu(self) -> bool:
        """Whether training stays on the CPU: because the recipe says so, or because there is no GPU."""
        import torch

        return self.use_cpu or not torch.cuda.is_available()

    @property
    def trackers(self) -> list[str]:
        """The trackers of ``report_to``, by name."""
        names = [self.report_to] if isinstance(self.report_to, str) else self.report_to
        return [name for name in names if name != "none"]


@settings
class OutputRecipe:
    """Where a run goes, and whether it is published.

    Attributes:
        dir: The run's folder.
        push_to_hub: Publish the finished run, as `rolellm push` does.
        hub_repo: Repository, OWNER/NAME.
        license: License of the model, such as apache-2.0; the base must allow it.
        private: Make a newly created repository private.
        merge: Publish the adapter merged into its base.
    """

    dir: Path = Path("runs/rocit")
    push_to_hub: bool = False
    hub_repo: str | None = None
    license: str | None = None
    private: bool = True
    merge: bool = False


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
        return hash_json(decisive(self.to_dict()))


def decisive(recipe: Values) -> Values:
    """What decides the result of a recipe's values: not where data and runs are, what is logged, or what is kept."""
    kept = {section: dict(keys) for section, keys in recipe.items() if section != "output"}
    kept["data"].pop("data_dir", None)
    for key in _ON_THE_SIDE:
        kept["training"].pop(key, None)
    for section, key in (("base", "path"), ("prompt", "system_template")):
        if kept[section].get(key) is not None:
            kept[section][key] = Path(kept[section][key]).name
    return kept


def read_recipe(values: Mapping[Any, Any], source: str = "") -> Recipe:
    """A recipe from plain values; choices that depend on each other are not checked.

    Raises:
        RecipeError: For an unknown key, and a value of the wrong type or outside its limits.
    """
    with _recipe_errors():
        return read(Recipe, values, source)


def shipped_recipes() -> dict[str, Path]:
    """The recipes that come with the library, by name."""
    # The wheel carries them next to this file; a clone has them in its own folder.
    here = Path(__file__).resolve()
    folders = (here.parent / "recipes", here.parents[3] / "recipes")
    return {file.stem: file for folder in folders for file in sorted(folder.glob("*.yaml"))}


def find_recipe(name: str | Path, folder: Path = Path()) -> Path:
    """The file of a recipe: a path from a folder, or the name of one that ships, such as ``smoke-cpu``.

    Raises:
        RecipeError: When there is neither; names those that ship.
    """
    path, shipped = folder / name, shipped_recipes()
    if path.is_file():
        return path
    if str(name) in shipped:
        return shipped[str(name)]
    raise RecipeError(f"no recipe at {path}; those that ship: {', '.join(sorted(shipped)) or 'none'}")


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
    values: Values = {}
    for layer in [*layers, *map(_sections, overrides), {"training": training}]:
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


def _layers(file: Path, above: tuple[Path, ...]) -> Iterator[Values]:
    """What a file builds on, the lowest first, and then what it says itself."""
    here = file.resolve()
    if here in above:
        chain = " extends ".join(path.name for path in (*above[above.index(here) :], here))
        raise RecipeError(f"{file}: a recipe cannot extend itself: {chain}")
    with _recipe_errors():
        values = read_file(file)
    yield from _extended(values, str(file), file.parent, (*above, here))


def _extended(values: Values, source: str, folder: Path, above: tuple[Path, ...]) -> Iterator[Values]:
    named = values.pop(EXTENDS, [])
    names = [named] if isinstance(named, str) else named
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise RecipeError(f"{source}: {EXTENDS}: expected a recipe's file or a list of files, found {named!r}")
    for name in names:
        yield from _layers(find_recipe(name, folder), above)
    if close := difflib.get_close_matches(EXTENDS, [key for key in values if isinstance(key, str)], n=1):
        raise RecipeError(f"{source}: unknown key {close[0]}; did you mean {EXTENDS}?")
    _check_nulls(values)
    # Whoever asks for a recipe need not know what it extends.
    read_recipe(values, source)
    yield beside(values, folder.absolute(), "data.data_dir", "base.path", "prompt.system_template")


def _check_nulls(layer: Values) -> None:
    """Refuse a misspelled key that has no value: laying it over another file would drop it silently."""
    sections: dict[str, type[_Section]] = {"training": TrainingRecipe, "method.lora": Lora}
    for name, value in leaves(layer):
        section, _, key = name.rpartition(".")
        if value is not None or name in known_keys(Recipe):
            continue
        if section not in sections:
            raise RecipeError(f"unknown key {name}{nearest(name, known_keys(Recipe))}")
        sections[section].check({key: None})


def _sections(override: str) -> Values:
    """An override as a file would say it: ``a.b=1`` is ``a: {b: 1}``."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise RecipeError(f"{override!r} is not an override; write section.key=value, such as training.max_steps=5")
    with _recipe_errors():
        value = parse_yaml(text, override)
    for name in reversed(key.strip().split(".")):
        value = {name: value}
    sections: Values = value
    return sections


@lru_cache
def _library_hints(library: str) -> Mapping[str, Any]:
    """The fields of a configuration class and their types; none where the library is not installed."""
    package, _, name = library.partition(".")
    if importlib.util.find_spec(package) is None:
        return {}
    hints = get_type_hints(getattr(importlib.import_module(package), name))
    # Fields of a few choices are of an enumeration or any text.
    return {
        key: next((part for part in get_args(hint) if isinstance(part, enum.EnumType)), hint)
        for key, hint in hints.items()
        if not key.startswith("_")
    }


@contextmanager
def _recipe_errors() -> Iterator[None]:
    """Make errors of settings errors of the recipe."""
    try:
        yield
    except SettingsError as error:
        raise RecipeError(str(error)) from None
