"""What a RoCIT recipe holds: a tree of frozen dataclasses, one section of the YAML each.

Where the paper (arXiv 2310.00746) names a value, its recipe says so; it names no rank, learning rate, epochs or batch,
so the defaults here are our choice. Limits of numbers stand in each field's metadata and are checked on reading.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from rolellm.core import typed_yaml
from rolellm.core.errors import RecipeError
from rolellm.core.fingerprint import hash_json
from rolellm.core.records import Language
from rolellm.core.typed_yaml import Form, Values, build, describe, laid_over, parse_yaml


def _above(limit: float, default: Any) -> Any:
    return field(default=default, metadata={"above": limit})


def _between(low: float, high: float, default: Any) -> Any:
    return field(default=default, metadata={"low": low, "high": high})


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """The share of rows kept from each subset, 0 to 1; which rows is decided by their ids and the seed."""

    general: float = _between(0, 1, 1.0)
    role_specific: float = _between(0, 1, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRecipe:
    """Which rows to train on.

    Attributes:
        source: ``rolebench`` (questions and replies) or ``script`` (the roles' own lines in their scripts, after the
            lines spoken before them: the paper's baseline LLaMA-script).
        script_turns: With ``script``, the most lines that are shown before the one to learn.
        config: A configuration of the data set, such as ``instruction-generalization-eng`` or ``sample``.
        split: Its split.
        data_dir: A local copy of the release; by default what ``load_rolebench`` finds.
        roles: Only these roles.
        languages: Only these languages.
        mix: The share of each subset.
        max_rows: Only the first so many rows, after the other choices.
        replies: Train on all references of a row, one example each, or on the first.
    """

    source: Literal["rolebench", "script"] = "rolebench"
    script_turns: int = _above(0, 6)
    config: str = "instruction-generalization-eng"
    split: str = "train"
    data_dir: Path | None = None
    roles: tuple[str, ...] | None = None
    languages: tuple[Language, ...] | None = None
    mix: Mix = field(default_factory=Mix)
    max_rows: int | None = _above(0, None)
    replies: Literal["all", "first"] = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiny:
    """Sizes of a model built from the data: ``vocab_size`` in tokens, the others in units of the network.

    Attributes:
        hidden_size: Width; a multiple of twice the heads.
        intermediate_size: Width of the feed-forward layers.
        layers: Depth.
        heads: Attention heads.
        vocab_size: At most so many tokens; fewer where the data has no more to merge.
        initializer_range: Standard deviation of new weights; wide, because so narrow a network starts slowly.
    """

    hidden_size: int = _above(0, 192)
    intermediate_size: int = _above(0, 512)
    layers: int = _above(0, 3)
    heads: int = _above(0, 4)
    vocab_size: int = _between(300, 1_000_000, 3000)
    initializer_range: float = _above(0, 0.05)


@dataclass(frozen=True, slots=True, kw_only=True)
class Warm:
    """How a built base is warmed before tuning, so that there is something to tune.

    Attributes:
        alone: Passes over the instructions with their role-free answers and nothing else: short, so cheap.
        in_role: Passes over the same under each role's system instruction, still answered plainly.
        batch_size: Examples a step.
        learning_rate: The peak.
    """

    alone: int = _above(0, 30)
    in_role: int = _above(0, 4)
    batch_size: int = _above(0, 8)
    learning_rate: float = _above(0, 2e-3)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseRecipe:
    """The model to tune: on the Hub, in a folder, or built from the data (exactly one of the three).

    Attributes:
        model: A repository on the Hub.
        revision: Its branch, tag or commit.
        path: A folder with a model and its tokenizer, as ``save_pretrained`` writes them.
        build: Builds a model of that family and its tokenizer from the training rows.
        tiny: Sizes of what is built.
        warm: How what is built is warmed.
    """

    model: str | None = None
    revision: str | None = None
    path: Path | None = None
    build: Literal["tiny-llama", "tiny-glm", "tiny-glm4"] | None = None
    tiny: Tiny = field(default_factory=Tiny)
    warm: Warm = field(default_factory=Warm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """A LoRA adapter; ``targets`` are names of linear layers, or ``all-linear`` for all but the output layer."""

    r: int = _above(0, 16)
    alpha: float = _above(0, 32.0)
    dropout: float = _between(0, 0.99, 0.05)
    targets: tuple[str, ...] = ("all-linear",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """How ``qlora`` holds the frozen base (QLoRA, arXiv 2305.14314, sections 2 and 3).

    Attributes:
        type: The 4-bit data type: NormalFloat or plain floats.
        double: Quantise the quantisation constants, too.
        compute: The type that weights are unpacked to for each product.
    """

    type: Literal["nf4", "fp4"] = "nf4"
    double: bool = True
    compute: Literal["bf16", "fp32"] = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodRecipe:
    """What is trained: ``full`` (every weight), ``lora`` (an adapter, as in the paper) or ``qlora`` (one on 4 bits)."""

    name: Literal["full", "lora", "qlora"] = "lora"
    lora: Lora = field(default_factory=Lora)
    quantization: Quantization = field(default_factory=Quantization)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRecipe:
    """The text form of a prompt.

    Attributes:
        form: ``rolellama`` (the paper's text form, for base models), ``chatglm2`` or ``chatglm3`` (those chat
            models' own), or ``model`` (the tokenizer's own chat template).
        system_template: A system instruction in place of the ones that ship; for ``retrieval`` with ``{examples}``.
        profile: What a prompt says of the role: its ``description``, or lines of its script found by BM25 for each
            question (``retrieval``, the paper's ablation).
        retrieved: With ``retrieval``, how many exchanges.
    """

    form: Literal["rolellama", "chatglm2", "chatglm3", "model"] = "rolellama"
    system_template: Path | None = None
    profile: Literal["description", "retrieval"] = "description"
    retrieved: int = _above(0, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRecipe:
    """How it is trained.

    Attributes:
        epochs: Passes over the examples.
        max_steps: Stop after so many optimiser steps, whatever ``epochs`` says.
        learning_rate: The peak.
        schedule: How the learning rate falls after the warm-up.
        warmup: The share of the steps (below 1) or the number of steps that the learning rate rises for.
        weight_decay: AdamW's.
        max_grad_norm: Gradients are clipped to this norm.
        batch_size: Replies a device and forward pass; an optimiser step is on ``batch_size`` x ``grad_accumulation`` x
            processes replies, however they are laid out.
        grad_accumulation: Forward passes an optimiser step, where replies are trained row by row.
        shared_prefix: Compute what replies have in common (system instruction, question) once, see
            docs/shared_prefix.md; the loss and its gradient are the same as row by row.
        pack_tokens: With ``shared_prefix``, the most tokens of a forward pass.
        roles_per_step: With ``shared_prefix``, a step's replies come in at least so many groups of one role each: few
            share more, many are more like a random batch.
        max_length: Tokens of prompt and reply together.
        truncate_replies: Cut a reply that does not fit and leave its end token off, instead of refusing its row.
        group_by_length: Batch examples of like length, which saves padding.
        gradient_checkpointing: Less memory for about a third more time.
        precision: ``fp32`` or ``bf16``.
        device: ``auto`` takes a GPU when there is one; ``cpu`` stays off it.
        threads: Threads that torch computes with on a CPU; by default torch's own choice.
        seed: For the order of rows, new weights and dropout.
    """

    epochs: float = _above(0, 3.0)
    max_steps: int | None = _above(0, None)
    learning_rate: float = _above(0, 2e-4)
    schedule: Literal["linear", "cosine", "constant", "constant_with_warmup"] = "cosine"
    warmup: float = field(default=0.03, metadata={"low": 0})
    weight_decay: float = field(default=0.0, metadata={"low": 0})
    max_grad_norm: float = _above(0, 1.0)
    batch_size: int = _above(0, 8)
    grad_accumulation: int = _above(0, 1)
    shared_prefix: bool = True
    pack_tokens: int = _above(1, 2048)
    roles_per_step: int = _above(0, 4)
    max_length: int = _above(1, 1024)
    truncate_replies: bool = False
    group_by_length: bool = True
    gradient_checkpointing: bool = False
    precision: Literal["fp32", "bf16"] = "fp32"
    device: Literal["auto", "cpu"] = "auto"
    threads: int | None = _above(0, None)
    seed: int = field(default=42, metadata={"low": 0})


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRecipe:
    """Where a run goes.

    Attributes:
        dir: The run's folder.
        checkpoint_every: Optimiser steps between checkpoints; by default one at the end of each epoch.
        keep_checkpoints: How many of the newest stay.
        push_to_hub: Publish the finished run, as ``rolellm push`` does.
        hub_repo: The repository, ``owner/name``.
        license: The licence of what is published, such as ``apache-2.0``; it has to be allowed by the base's.
        private: Whether a repository that is made is private.
        merge: Publish the adapter merged into its base.
    """

    dir: Path = Path("runs/rocit")
    checkpoint_every: int | None = _above(0, None)
    keep_checkpoints: int = _above(0, 2)
    push_to_hub: bool = False
    hub_repo: str | None = None
    license: str | None = None
    private: bool = True
    merge: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A whole RoCIT recipe, as `rolellm.rocit.recipe.load_recipe` reads it."""

    data: DataRecipe = field(default_factory=DataRecipe)
    base: BaseRecipe = field(default_factory=BaseRecipe)
    method: MethodRecipe = field(default_factory=MethodRecipe)
    prompt: PromptRecipe = field(default_factory=PromptRecipe)
    training: TrainingRecipe = field(default_factory=TrainingRecipe)
    output: OutputRecipe = field(default_factory=OutputRecipe)

    def to_dict(self) -> dict[str, Any]:
        """The recipe as JSON values: paths as strings, tuples as lists."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain

    @property
    def hash(self) -> str:
        """SHA-256 in hex of `decisive`."""
        return hash_json(self.decisive())

    def decisive(self, values: dict[str, Any] | None = None) -> dict[str, Any]:
        """What decides the result, as JSON values; where data and runs lie does not, nor do folders above a base.

        Args:
            values: What `to_dict` gave, of this recipe or another; by default of this one.
        """
        whole = self.to_dict() if values is None else values
        kept = {section: dict(keys) for section, keys in whole.items() if section != "output"}
        kept["data"].pop("data_dir", None)
        for section, key in (("base", "path"), ("prompt", "system_template")):
            if kept[section].get(key) is not None:
                kept[section][key] = Path(kept[section][key]).name
        return kept


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.as_posix() if isinstance(value, Path) else value


# --- Typing what a recipe's YAML says: every key known, every value of its type, or an error that says what to


__all__ = ["EXTENDS", "Values", "build", "describe", "laid_over", "parse_yaml", "typed"]

#: The one key of a file that is no part of a recipe: the file it builds on.
EXTENDS = "extends"
_FORM = Form(Recipe, kept=("output.dir",), also=(EXTENDS,))


def typed(values: Mapping[Any, Any], folder: Path, *, nulls: bool) -> Values:
    """The sections that a file or an override names, each value typed; what it leaves out stays out.

    Args:
        values: As parsed from YAML.
        folder: What paths are relative to, but for ``output.dir``, which is relative to the current directory.
        nulls: Whether a key may have no value, which takes it back to its default.

    Raises:
        RecipeError: For an unknown key (with its dotted name and the nearest known one), or a value of a wrong type or
            outside its limits.
    """
    return typed_yaml.typed(_FORM, values, folder, nulls=nulls)


# --- Reading a recipe from YAML files, one on top of another where a file says ``extends``


__all__ = ["Recipe", "check_recipe", "find_recipe", "load_recipe", "shipped_recipes"]

_SKETCH = "section.key=value, such as training.max_steps=5"


def shipped_recipes() -> dict[str, Path]:
    """The recipes that come with the library, by name."""
    # The wheel carries them beside this file; a clone has them in its own folder.
    here = Path(__file__).resolve()
    folders = (here.parent / "recipes", here.parents[3] / "recipes")
    return {file.stem: file for folder in folders for file in sorted(folder.glob("*.yaml"))}


def find_recipe(name: str | Path) -> Path:
    """The file of a recipe: a path as it stands, or the name of one that ships, such as ``smoke-cpu``.

    Raises:
        RecipeError: When there is neither; names those that ship.
    """
    return _find(Path(name), str(name))


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe.

    Args:
        path: A YAML file with the sections of `rolellm.rocit.recipe.Recipe`; what it leaves out has its default, or,
            with ``extends: other.yaml`` (or a list of files, of which later ones win), is as it is there. There, a key
            without a value goes back to its default.
        overrides: ``section.key=value`` each, the value written as in YAML; they win over the file.

    Raises:
        RecipeError: For a file that is not there or not YAML, one that extends itself, an unknown key (with its dotted
            name and the nearest known one), a value of a wrong type or outside its limits, and choices that do not go
            together.
    """
    values: Values = {}
    for layer in _layers(Path(path), ()):
        values = laid_over(values, layer)
    for override in overrides:
        values = laid_over(values, typed(_sections(override), Path(), nulls=True))
    recipe = build(Recipe, values)
    check_recipe(recipe)
    return recipe


def check_recipe(recipe: Recipe) -> None:
    """Check the choices that depend on each other.

    Raises:
        RecipeError: With the keys concerned.
    """
    base, tiny, output = recipe.base, recipe.base.tiny, recipe.output
    if sum(choice is not None for choice in (base.model, base.path, base.build)) != 1:
        raise RecipeError("base: give one of model (on the Hub), path (a folder with a model) and build: tiny-llama")
    if base.revision is not None and base.model is None:
        raise RecipeError("base.revision: only a base.model on the Hub has revisions")
    if base.build is not None and recipe.prompt.form == "model":
        raise RecipeError("prompt.form: a built base has no chat template of its own; use rolellama")
    if recipe.training.shared_prefix and recipe.training.pack_tokens < recipe.training.max_length:
        raise RecipeError("training.pack_tokens has to be at least training.max_length: a pack holds one reply or more")
    if recipe.data.source == "script" and recipe.prompt.profile == "retrieval":
        raise RecipeError("prompt.profile: retrieval searches by question, and data.source: script has none")
    if output.push_to_hub and (output.hub_repo is None or output.license is None):
        raise RecipeError(
            "output.push_to_hub: needs output.hub_repo (owner/name) and output.license (such as apache-2.0), "
            "which is never guessed"
        )
    if tiny.hidden_size % (2 * tiny.heads):
        raise RecipeError("base.tiny.hidden_size has to be a multiple of twice base.tiny.heads")
    if recipe.data.mix.general == 0 and recipe.data.mix.role_specific == 0:
        raise RecipeError("data.mix leaves no rows: general and role_specific are both 0")


def _find(path: Path, name: str) -> Path:
    if path.is_file():
        return path
    shipped = shipped_recipes()
    if name in shipped:
        return shipped[name]
    raise RecipeError(f"no recipe at {path}; those that ship: {', '.join(sorted(shipped)) or 'none'}")


def _layers(file: Path, above: tuple[Path, ...]) -> Iterator[Values]:
    """What a file is laid over, the lowest first, and then what it says itself."""
    here = file.resolve()
    if here in above:
        chain = " extends ".join(path.name for path in (*above[above.index(here) :], here))
        raise RecipeError(f"{file}: a recipe cannot extend itself: {chain}")
    values = _read(file)
    names = _extended(values.pop(EXTENDS, []), file)
    for name in names:
        yield from _layers(_find(file.parent / name, name), (*above, here))
    try:
        yield typed(values, file.absolute().parent, nulls=bool(names))
    except RecipeError as error:
        if not above:
            raise
        # Whoever asks for a recipe need not know what it extends.
        raise RecipeError(f"{file}: {error}") from error


def _extended(value: Any, file: Path) -> list[str]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise RecipeError(f"{file}: {EXTENDS}: expected a recipe's file or a list of them, found {describe(value)}")
    return names


def _read(file: Path) -> dict[Any, Any]:
    if not file.is_file():
        raise RecipeError(f"no recipe at {file}")
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecipeError(f"{file}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    values = parse_yaml(text, str(file))
    if not isinstance(values, dict):
        raise RecipeError(f"{file}: expected sections such as data: and training:, found {describe(values)}")
    return values


def _sections(override: str) -> Values:
    """An override as a file would say it: ``a.b=1`` is ``a: {b: 1}``."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise RecipeError(f"{override!r} is not an override; write {_SKETCH}")
    value = parse_yaml(text, override)
    for name in reversed(key.strip().split(".")):
        value = {name: value}
    sections: Values = value
    return sections
