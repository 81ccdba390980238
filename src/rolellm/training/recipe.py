"""A RoCIT recipe: a tree of settings classes, one for each section of its YAML (see `rolellm.training.recipe_files`).

The paper (arXiv 2310.00746) names no rank, learning rate, number of epochs or batch size, so the defaults are our
choice. `training` takes the fields of TRL's `SFTConfig` and `method.lora` those of PEFT's `LoraConfig`, under their own
names: those that rolellm has another default for or reads itself are declared here, any other is checked against the
installed library.
"""

from __future__ import annotations

import dataclasses
import enum
import pkgutil
from collections.abc import Mapping
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic import field_validator, model_serializer, model_validator
from pydantic_core import ArgsKwargs

from rolellm.core.errors import MissingExtraError, RecipeError, require
from rolellm.core.fingerprint import hash_json
from rolellm.core.records import Language
from rolellm.core.settings import (
    Field,
    Values,
    describe_alternatives,
    dump,
    list_keys,
    load_packaged_yaml,
    read,
    settings,
)

Count = Annotated[int, Field(gt=0)]
Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]

#: Fields of `training` that do not change a run's result, so that a resumed run may have others.
_ON_THE_SIDE = (
    *("replies_per_pass", "gradient_checkpointing", "use_liger_kernel", "per_device_eval_batch_size"),
    *("save_steps", "save_total_limit", "report_to", "run_name", "project", "log_level", "log_level_replica"),
    *("trackio_space_id", "trackio_bucket_id", "trackio_static_space_id", "dataloader_num_workers"),
)


@settings
class Mix:
    """The share of rows kept from each subset; row ids and the seed decide which rows.

    Attributes:
        general: Of the general rows, the share to keep.
        role_specific: Of the role-specific ones.
        safety: Of all training replies, the share of the base's own refusals of harmful prompts and answers to harmless
            look-alikes, in the roles' voices.
    """

    general: Share = 1.0
    role_specific: Share = 1.0
    safety: float = Field(default=0.0, ge=0, le=0.5)


@settings
class DataRecipe:
    """The rows to train on.

    Attributes:
        source: ``rolebench``: questions and replies; ``script``: the roles' own lines, after the lines before them (the
            paper's baseline LLaMA-script); ``dataset``: the train_dataset given to rolellm.train.
        path: Rows of your own: a file or folder (JSON Lines, JSON, CSV, Parquet), or a data set on the Hub.
        columns: Columns of your own rows that have other names than their form expects, such as ``prompt: question``.
        skip_bad: Skip bad rows of your own, and count them.
        config: Config of the dataset, or sample.
        split: Split of the dataset.
        data_dir: Local copy of the release; found by default.
        roles: Use only these roles.
        languages: Use only these languages.
        mix: The share of rows kept from each subset, and of refusals mixed in.
        safety_prompts: With ``mix.safety``, a file of prompts (columns prompt and harmful) in the place of our own.
        max_rows: Use only the first N rows, after all other choices.
        replies: Train on all references of a row, or on the first.
        held_out: Of your own rows, and with ``training.eval_strategy``, share of instructions held out for the loss.
    """

    source: Literal["rolebench", "script", "dataset"] = "rolebench"
    path: str | None = None
    columns: dict[str, str] = Field(default_factory=dict)
    skip_bad: bool = False
    config: str = "instruction-generalization-eng"
    split: str = "train"
    data_dir: Path | None = None
    roles: tuple[str, ...] | None = Field(default=None, min_length=1)
    languages: tuple[Language, ...] | None = Field(default=None, min_length=1)
    mix: Mix = Field(default_factory=Mix)
    safety_prompts: Path | None = None
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
    """The warm-up of a built base, so that there is something to tune.

    Attributes:
        alone: Passes over the instructions with their role-free answers alone.
        in_role: Passes over the same under each role's system instruction.
    """

    alone: Count = 30
    in_role: Count = 4


@settings
class BaseRecipe:
    """The model to tune: on the Hub, in a folder, or built from the data (exactly one of the three).

    ``--base RUN``, the folder of a tuned adapter, names both the adapter and its base.

    Attributes:
        model: Repository on the Hub.
        revision: Its branch, tag or commit.
        path: Folder with a model and its tokenizer.
        adapter: Folder with a tuned adapter of this model, to go on training instead of a new one.
        build: Build a model of this family and its tokenizer from the training rows.
        tiny: The size of a model that is built.
        warm: How a model that is built is warmed up.
    """

    model: str | None = None
    revision: str | None = None
    path: Path | None = None
    adapter: Path | None = None
    build: Literal["tiny-llama", "tiny-glm", "tiny-glm4"] | None = None
    tiny: Tiny = Field(default_factory=Tiny)
    warm: Warm = Field(default_factory=Warm)


@settings
class _Section:
    """A section that also takes any field of a library's class that is not refused.

    Attributes:
        extra: Those fields; in a file they are written like the section's own.
    """

    #: The library's class; ``{trainer}`` is that of the section.
    library = ""
    extra: Values = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, data: Any) -> Any:
        values = data.kwargs if isinstance(data, ArgsKwargs) else data
        if not isinstance(values, dict):
            return data
        own = {field.name for field in dataclasses.fields(cls)}
        extra = dict(values.get("extra") or {}) | {str(key): item for key, item in values.items() if key not in own}
        if extra:
            cls.check(extra, values)
        return {key: item for key, item in values.items() if key in own} | {"extra": extra}

    @classmethod
    def find_library(cls, section: Values) -> str:
        """The library's class, such as ``peft.LoraConfig``, for the values of this section."""
        return cls.library.format(trainer=str(section.get("trainer") or "sft").upper())

    @classmethod
    def find_refusal(cls, library: str, key: str) -> str | None:
        """Why a field of the library's class cannot be set, if it cannot."""
        refused = load_packaged_yaml("rolellm.training", "refused_fields.yaml")
        reasons = refused[library.partition(".")[0]] | refused.get(library, {})
        return next((why for why, names in reasons.items() if any(fnmatch(key, name) for name in names.split())), None)

    @classmethod
    def check(cls, values: Values, section: Values) -> None:
        """Check values of the library's class by name and type.

        Args:
            values: The values.
            section: All values of the section, for `find_library`.

        Raises:
            RecipeError: For a field that is refused or unknown, with the nearest known one.
            SettingsError: For a wrong value.
        """
        library = cls.find_library(section)
        hints = _read_library_hints(library)
        own = [field.name for field in dataclasses.fields(cls) if field.name != "extra"]
        for key in values:
            if reason := cls.find_refusal(library, key):
                raise RecipeError(f"{key} cannot be set: {reason}")
            if key in hints:
                continue
            allowed = [*own, *(name for name in hints if not cls.find_refusal(library, name)), *list_keys(Recipe)]
            hint = describe_alternatives(key, allowed).partition("; known")[0]
            suggestion = hint or f"; known keys: {', '.join(own)}, and the fields of {library}"
            raise RecipeError(f"unknown key {key}{suggestion}")
        fields = {"__annotations__": {key: hints[key] for key in values}, **dict.fromkeys(values)}
        read(settings(type(library, (), fields)), values)

    @model_serializer(mode="wrap")
    def _flatten_extra(self, dumped: Any) -> Values:
        values: Values = dumped(self)
        extra: Values = values.pop("extra")
        return values | extra


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
    """The frozen base under `qlora` (arXiv 2305.14314, sections 2 and 3): fields of `BitsAndBytesConfig`."""

    bnb_4bit_quant_type: Literal["nf4", "fp4"] = "nf4"
    bnb_4bit_use_double_quant: bool = True
    bnb_4bit_compute_dtype: Literal["bfloat16", "float32"] = "bfloat16"


@settings
class MethodRecipe:
    """The weights that are trained: every weight, an adapter (as in the paper), or an adapter on a 4-bit base."""

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
    """Training: the fields of the configuration of TRL's trainer, and rolellm's own.

    Attributes:
        trainer: Learn replies (``sft``), preferences (``dpo``, ``kto``) or rewards (``grpo``), by TRL's trainer of that
            name; all other keys that are not listed here are those of its configuration.
        reward_funcs: With ``trainer: grpo``, dotted paths of reward functions.
        audit_rewards: With ``trainer: grpo``, refuse rewards that a canary beats (`rolellm check reward`).
        replies_per_step: Replies in an optimizer step, over all processes (pairs with ``dpo``).
        replies_per_pass: Replies in a forward pass of each process; by default, as many as fit. The result is the same.
        gradient_checkpointing: Compute activations again instead of keeping them; by default, where memory is short.
        use_liger_kernel: Use Liger's norm, rotation and gate; by default, on a GPU where they are exact and installed.
        shared_prefix: Compute the system instruction and question that replies share only once; same gradients.
        attention: With ``shared_prefix``, FlexAttention, SDPA in blocks, or the first of them that works here.
        roles_per_step: With ``shared_prefix``, minimum groups of one role each in a step; more is closer to random.
        truncate_replies: Cut replies that are too long, instead of refusing their rows.
        group_by_length: Without ``shared_prefix``, batch replies of similar length.
        threads: CPU threads; torch's own choice by default.
        early_stopping_patience: Stop after N evaluations without improvement; needs ``eval_strategy``.
        bf16: Compute in bfloat16; by default, where the GPU can.
        save_steps: Steps between checkpoints; by default, an epoch.
    """

    library = "trl.{trainer}Config"
    trainer: Literal["sft", "dpo", "kto", "grpo"] = "sft"
    reward_funcs: list[str] = Field(default_factory=list)
    audit_rewards: bool = True
    num_train_epochs: Positive = 3.0
    max_steps: int = Field(default=-1, ge=-1)
    learning_rate: Positive = 2e-4
    lr_scheduler_type: str = "cosine"
    warmup_steps: float = Field(default=0.03, ge=0)
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: Positive = 1.0
    replies_per_step: Count = 8
    replies_per_pass: Count | Literal["auto"] = "auto"
    gradient_checkpointing: bool | Literal["auto"] = "auto"
    use_liger_kernel: bool | Literal["auto"] = "auto"
    shared_prefix: bool = True
    attention: Literal["auto", "flex", "blocks"] = "auto"
    roles_per_step: Count = 4
    max_length: int = Field(default=1024, gt=1)
    truncate_replies: bool = False
    group_by_length: bool = True
    bf16: bool | None = None
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
            cls.check({"lr_scheduler_type": value}, {})
        return value

    @property
    def on_cpu(self) -> bool:
        """True if training stays on the CPU: because the recipe says so, or because there is no GPU."""
        import torch

        return self.use_cpu or not torch.cuda.is_available()

    @property
    def half_precision(self) -> bool:
        """True to compute in bfloat16."""
        if self.bf16 is not None:
            return self.bf16
        import torch

        return not self.on_cpu and torch.cuda.is_bf16_supported()


@settings
class OutputRecipe:
    """The folder of a run.

    Attributes:
        dir: The run's folder.
    """

    dir: Path = Path("runs/rocit")


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
        """SHA-256 in hex of `select_decisive`."""
        return hash_json(select_decisive(self.to_dict()))


def select_decisive(recipe: Values) -> Values:
    """Select the values that decide a recipe's result: not where data and runs are, what is logged, or what is kept."""
    sections = {section: dict(keys) for section, keys in recipe.items() if section != "output"}
    sections["data"].pop("data_dir", None)
    for key in _ON_THE_SIDE:
        sections["training"].pop(key, None)
    files = (*(("base", "path"), ("base", "adapter")), *(("data", "path"), ("data", "safety_prompts")))
    for section, key in (*files, ("prompt", "system_template")):
        if sections[section].get(key) is not None:
            sections[section][key] = Path(sections[section][key]).name
    return sections


@lru_cache
def _read_library_hints(library: str) -> Mapping[str, Any]:
    """The fields of a configuration class and their types; none where the library is not installed."""
    try:
        require(library.partition(".")[0], extra="train")
    except MissingExtraError:
        return {}
    hints = get_type_hints(pkgutil.resolve_name(library))
    # Fields of a few choices are of an enumeration or any text.
    return {
        key: next((part for part in get_args(hint) if isinstance(part, enum.EnumType)), hint)
        for key, hint in hints.items()
        if not key.startswith("_")
    }
